"""Python stacks as text: the ``stacks_*.txt`` of ``torch.distributed.debug``, which has a section for each rank, and
within it what :mod:`faulthandler` prints.

In: the text of a file. Out: the stacks of each rank.
"""

from __future__ import annotations

import re

from rankscope.rundir.fields import MAX_RANKS
from rankscope.rundir.hang_dump import Frame, ThreadStack

SECTION = re.compile(r"^=== Rank (\d{1,7}): .*===[ \t]*$", re.MULTILINE)
_THREAD = re.compile(
    r"^(?:Current thread|Thread) (?P<id>0x[0-9a-fA-F]{1,16})(?: \[(?P<name>[^\]\n]{1,100})\])?"
    r"[^\n]*\(most recent call first\):[ \t]*$",
    re.MULTILINE,
)
_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]{1,4096})", line (?P<line>\d{1,9}) in (?P<function>[^\n]{1,500})$', re.MULTILINE
)


def stacks_by_rank(text: str) -> dict[int, tuple[ThreadStack, ...]]:
    """The stacks of each rank that the file has a section for."""
    marks = list(SECTION.finditer(text))
    found = {}
    for mark, end in zip(marks, _ends(marks, text), strict=True):
        threads = _threads(text[mark.end() : end])
        if threads and int(mark[1]) < MAX_RANKS:
            found[int(mark[1])] = threads
    return found


def _ends(marks: list[re.Match[str]], text: str) -> list[int]:
    """Where the part behind each mark ends: at the next one, or with the text."""
    return [*(mark.start() for mark in marks[1:]), len(text)][: len(marks)]


def _threads(text: str) -> tuple[ThreadStack, ...]:
    marks = list(_THREAD.finditer(text))
    threads = []
    for mark, end in zip(marks, _ends(marks, text), strict=True):
        frames = tuple(
            Frame(frame["file"], int(frame["line"]), frame["function"])
            for frame in _FRAME.finditer(text[mark.end() : end])
        )
        threads.append(ThreadStack(frames, mark["name"] or "", int(mark["id"], 16)))
    # The main thread's stack ends in the script; faulthandler lists the oldest thread last.
    main = next((i for i in reversed(range(len(threads))) if _is_script(threads[i])), None)
    return tuple(
        ThreadStack(thread.frames, thread.name, thread.id, training=i == main) for i, thread in enumerate(threads)
    )


def _is_script(thread: ThreadStack) -> bool:
    return bool(thread.frames) and thread.frames[-1].function == "<module>"
