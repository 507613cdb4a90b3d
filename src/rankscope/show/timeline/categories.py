"""Categories of events, which determine their color: the terms of the analyses, in the order of `step_time`.

In: nothing. Out: names and titles, in the order of their numbers.
"""

from __future__ import annotations

CATEGORIES: tuple[tuple[str, str], ...] = (
    ("compute", "Compute"),
    ("communication", "Communication"),
    ("memory", "Memory copies"),
    ("memset", "Memory sets"),
    ("runtime", "Device runtime calls"),
    ("data_loading", "Data loading"),
    ("host_op", "Host operators"),
    ("annotation", "Named ranges"),
    ("python", "Python"),
    ("other", "Other"),
)
"""Name and title of each; its place here is its number everywhere."""

COMPUTE, COMMUNICATION, MEMORY, MEMSET, RUNTIME, DATA_LOADING, HOST_OP, ANNOTATION, PYTHON, OTHER = range(
    len(CATEGORIES)
)
