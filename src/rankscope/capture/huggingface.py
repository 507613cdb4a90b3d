"""Profile a Hugging Face ``Trainer``: ``Trainer(..., callbacks=[RankscopeCallback("run", ranks="0-3")])``.

Needs transformers (``pip install rankscope[huggingface]``). A step is the optimizer's, as the Trainer counts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankscope.capture.profiler import Profiler

if TYPE_CHECKING:  # types are checked without transformers too
    TrainerCallback = object
else:
    from transformers import TrainerCallback


class RankscopeCallback(TrainerCallback):
    """Everything that a :class:`~rankscope.Profiler` takes; a training that is resumed keeps its step numbers.

    Raises:
        ConfigError: an argument that cannot be meant.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.profiler = Profiler(*args, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
        """Begin; a training before that an exception has ended is over."""
        self.profiler.stop()
        self.profiler.start(int(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
        """A step of the optimizer is over."""
        self.profiler.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
        """End, and wait for the last trace."""
        self.profiler.stop()
