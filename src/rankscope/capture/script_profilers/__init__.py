"""The script's own torch profilers: ``interception`` notices them, ``adoption`` and ``adopted_window`` save what they
record, and ``conflicts`` gives them priority over rankscope's.

In: the script's calls of its profilers. Out: windows of the run, and recordings of rankscope's that end in time.
"""
