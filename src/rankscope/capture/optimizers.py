"""Which optimizer's steps are the training's, where a job has several."""

from __future__ import annotations

import weakref
from typing import Any

OTHERS_UNTIL_CHANGE = 16
"""After so many steps of other optimizers alone, the next of these is the one that is counted: the first was of an
earlier phase of the training."""


class Primary:
    """The optimizer that is counted: the first to make a step, until it makes no more."""

    def __init__(self) -> None:
        self._chosen: weakref.ref[Any] | None = None
        self._others = 0

    def counts(self, optimizer: object) -> bool:
        """Whether this step, which is over, is one of the training's."""
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is not optimizer:
            self._others += 1
            if chosen is not None and self._others < OTHERS_UNTIL_CHANGE:
                return False
            self._chosen = weakref.ref(optimizer)
        self._others = 0
        return True
