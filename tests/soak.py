"""Values of a slow test that are tried by `make soak` only, where a few are enough for each run.

In: all values, and those that are tried each time. Out: values for ``pytest.mark.parametrize``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_of(values: Iterable[Any], *, usual: Collection[Any]) -> list[Any]:
    """All values; those that are not usual are marked with `soak`."""
    return [value if value in usual else pytest.param(value, marks=pytest.mark.soak) for value in values]
