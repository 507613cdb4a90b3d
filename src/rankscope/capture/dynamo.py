"""What torch.compile, whose tracer is Dynamo, may see of the capture: nothing. A call that it cannot trace is a break
in a graph of the job, and an error in one that must not have any (``fullgraph=True``).

In: functions of ours that run among the job's. Out: graphs as they are without them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_wrap_graph: list[Callable[[Any, Callable[..., Any]], Callable[..., Any]]] = []


def never_compile(function: Callable[..., Any]) -> None:
    """Do not compile this function by itself, as Dynamo does with what is called after a break in a graph. Without
    effect where Dynamo is not loaded yet, which takes long; the creation of an optimizer loads it."""
    with suppress(Exception):
        sys.modules["torch._dynamo.eval_frame"].skip_code(function.__code__)


def wrap_graphs_with_steps(wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Have ``wrap(optimizer, graph)`` called when a graph was compiled that must be one and has a step of an optimizer
    in it; what it returns is called instead of the graph."""
    _wrap_graph[:] = [wrap]


def must_be_one_graph() -> bool:
    """Whether a break in the graph of the caller is an error. To be asked while Dynamo traces a step of an optimizer,
    which is ``args[0]`` there; a constant in the graph."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        translator: Any = InstructionTranslator.current_tx()
        # torch.compile(fullgraph=True), or torch._dynamo.error_on_graph_break
        if not (translator.one_graph or getattr(translator.output.current_tx, "error_on_graph_break", False)):
            return False
    except Exception:
        return False
    _note_step(translator.output)
    return True


setattr(must_be_one_graph, "_dynamo_marked_constant", True)  # noqa: B010 (functions have no such attribute)


def _note_step(output: Any) -> None:
    """Wrap what the compiler makes of the graph that is being traced.

    Args:
        output: Dynamo's ``OutputGraph``. In a torch whose has other attributes, the step is not noticed.
    """
    with suppress(Exception):
        compiler, wrap = output.compiler_fn, _wrap_graph[-1]
        optimizer = output.current_tx.symbolic_locals["args"].realize().items[0].realize().value

        @functools.wraps(compiler)
        def compile_and_wrap(*args: Any, **options: Any) -> Any:
            return wrap(optimizer, compiler(*args, **options))

        output.compiler_fn = compile_and_wrap
