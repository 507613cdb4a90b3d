"""Findings and verdicts: ``diagnosis`` (rules), ``watch`` (a job while it runs), ``hang`` (one that stopped).

In: results of analyses, or the files that a job leaves while it runs. Out: findings and verdicts, with their evidence.
"""
