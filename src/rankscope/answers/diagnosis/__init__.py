"""What to do about a run: from the results of analyses to findings.

In: frames of analyses (`rankscope.results.Inputs`). Out: findings with evidence, an upper bound of the saving, advice.
"""
