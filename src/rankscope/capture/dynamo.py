"""Keeps the capture out of the graphs that torch.compile makes of the job.

Dynamo, its tracer, breaks the graph at a call that it cannot trace, or raises an error if graph breaks are not allowed
(``fullgraph=True``).

In: rankscope's functions that run inside the job's code. Out: the graphs that the job would have without them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_wrap_graph: list[Callable[[Any, Callable[..., Any]], Callable[..., Any]]] = []


def never_compile(function: Callable[..., Any], *, callees: bool = False) -> None:
    """Keep Dynamo from compiling this function on its own, as it does with functions that are called after a graph
    break. Works before Dynamo is loaded, which is slow: torch's C extension keeps the mark with the code.

    Args:
        callees: also what it calls; an older torch cannot.
    """
    with suppress(Exception):
        from torch._C._dynamo import eval_frame

        frames: Any = eval_frame
        if skip := getattr(frames, "skip_code", None):  # an older torch
            skip(function.__code__)
        else:
            action = frames._FrameAction
            strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if callees else action.DEFAULT)
            frames.set_code_exec_strategy(function.__code__, strategy)


def not_compiled(function: F) -> F:
    """Decorates a function that a job may call in compiled code: Dynamo breaks the graph there instead of tracing it.

    In compiled code, torch's profiler and its ranges do nothing.
    """
    setattr(function, "_torchdynamo_disable", True)  # noqa: B010 (functions have no such attribute)
    never_compile(function, callees=True)
    return function


def wrap_graphs_with_steps(wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Register a wrapper for compiled graphs that contain an optimizer's step and must not be broken.

    Args:
        wrap: called as ``wrap(optimizer, graph)`` once such a graph is compiled; what it returns replaces the graph.
    """
    _wrap_graph[:] = [wrap]


def must_be_one_graph() -> bool:
    """Whether a graph break in the caller would be an error.

    Called while Dynamo traces an optimizer's step, in a function whose ``args[0]`` is the optimizer; Dynamo treats the
    answer as a constant.
    """
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
    """Wrap the compiled form of the graph that is being traced.

    Args:
        output: Dynamo's ``OutputGraph``. If this torch's has other attributes, the step goes unnoticed.
    """
    with suppress(Exception):
        compiler, wrap = output.compiler_fn, _wrap_graph[-1]
        optimizer = output.current_tx.symbolic_locals["args"].realize().items[0].realize().value

        @functools.wraps(compiler)
        def compile_and_wrap(*args: Any, **options: Any) -> Any:
            return wrap(optimizer, compiler(*args, **options))

        output.compiler_fn = compile_and_wrap
