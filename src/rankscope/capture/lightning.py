"""Profile a Lightning ``Trainer``: ``Trainer(..., callbacks=[RankscopeCallback("run", ranks="0-3")])``.

Needs lightning or pytorch_lightning (``pip install rankscope[lightning]``). A step is a batch after which an optimizer
has made one: with gradient accumulation the others count to it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankscope.capture.profiler import Profiler

if TYPE_CHECKING:
    Callback = object
else:
    # They are two packages with a Callback each; the job's own is the one that it has imported.
    _OURS = "pytorch_lightning" if "lightning" not in sys.modules and "pytorch_lightning" in sys.modules else None
    try:
        Callback = import_module(_OURS or "lightning.pytorch").Callback
    except ModuleNotFoundError:
        Callback = import_module("pytorch_lightning").Callback


class RankscopeCallback(Callback):
    """Everything that a :class:`~rankscope.Profiler` takes; a training that is resumed keeps its step numbers.

    Raises:
        ConfigError: an argument that cannot be meant.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.profiler = Profiler(*args, **options)
        self._optimizer_steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self.profiler.stop()
        self._optimizer_steps = int(trainer.global_step)
        self.profiler.start(self._optimizer_steps)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_rest: Any, **_named: Any) -> None:
        """A batch is over; it is a step if an optimizer made one."""
        made = int(trainer.global_step)
        if made != self._optimizer_steps:
            self._optimizer_steps = made
            self.profiler.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End, and wait for the last trace."""
        self.profiler.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End, and save what was recorded."""
        self.profiler.stop()
