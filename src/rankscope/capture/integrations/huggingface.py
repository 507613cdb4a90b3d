"""Profile a Hugging Face ``Trainer``: ``Trainer(..., callbacks=[RankscopeCallback("run", ranks="0-3")])``.

Needs transformers (``pip install rankscope[huggingface]``). A step is a step of the optimizer, as the Trainer counts
it.

In: the options of `Profiler`. Out: a callback that profiles the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankscope.capture.profiler import Profiler

if TYPE_CHECKING:  # so that types are checked without transformers too
    TrainerCallback = object
else:
    from transformers import TrainerCallback


class RankscopeCallback(TrainerCallback):
    """Takes the arguments of :class:`~rankscope.Profiler`; a training that is resumed keeps its step numbers.

    Raises:
        ConfigError: an argument that is not valid.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.profiler = Profiler(*args, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
        """Begin; an earlier training that ended with an exception is over."""
        self.profiler.stop()
        self.profiler.start(int(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
        """Count a step of the optimizer."""
        self.profiler.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
        """End, and wait for the last trace."""
        self.profiler.stop()
