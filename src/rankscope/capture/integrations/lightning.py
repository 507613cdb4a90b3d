"""Profile a Lightning ``Trainer``: ``Trainer(..., callbacks=[RankscopeCallback("run", ranks="0-3")])``.

Needs lightning or pytorch_lightning (``pip install rankscope[lightning]``). A step ends with a batch after which an
optimizer has stepped: with gradient accumulation it spans several batches.

In: the options of `Profiler`. Out: a callback that profiles the steps.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankscope.capture.profiler import Profiler

if TYPE_CHECKING:
    Callback = object
else:
    # Both packages have a Callback; the job uses the one that it has imported.
    _PACKAGE = "pytorch_lightning" if "lightning" not in sys.modules and "pytorch_lightning" in sys.modules else None
    try:
        Callback = import_module(_PACKAGE or "lightning.pytorch").Callback
    except ModuleNotFoundError:
        Callback = import_module("pytorch_lightning").Callback


class RankscopeCallback(Callback):
    """Takes the arguments of :class:`~rankscope.Profiler`; a training that is resumed keeps its step numbers.

    Raises:
        ConfigError: an argument that is not valid.
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
        """Count a step if an optimizer has stepped with this batch."""
        steps = int(trainer.global_step)
        if steps != self._optimizer_steps:
            self._optimizer_steps = steps
            self.profiler.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End, and wait for the last trace."""
        self.profiler.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End, and wait for the last trace."""
        self.profiler.interrupted_by(type(exception), exception)
        self.profiler.stop()
