"""More than one run: ``compare`` two, ``measure`` a job under several conditions, ``simulate`` one whose truth is
known.

In: runs, a script and what to vary, or the description of a job. Out: differences and costs with their uncertainty, or
a run directory with its truth.
"""
