"""What the loop's thread of a late rank did for longer than its peers', as a step log has it.

In: nothing. Out: values that the reader of logs makes, and `reasons` puts into words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CodePlace:
    """A place in the job's code.

    Attributes:
        file: its path.
        line: the line on which most samples are.
        function: the function's name; ``<module>`` outside of one.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}" if self.function.startswith("<") else f"{self.function} ({name}:{self.line})"


@dataclass(frozen=True)
class ThreadExcess:
    """What a late rank's loop thread did for longer than its peers', ns per compared step; None where not known.

    Attributes:
        running_ns: it ran on a core, or waited for one in proportion to that, as its peers do.
        ready_ns: it waited for a core beyond that.
        asleep_ns: it slept or was blocked, other than in waiting for a rank.
        collecting_ns: Python collected garbage in it.
        place: where in the job's code most of it is, from samples of its stack.
        place_ns: how much.
        in_loop: whether the peers, too, are mostly in that function: it is the loop's own.
    """

    running_ns: int | None = None
    ready_ns: int | None = None
    asleep_ns: int | None = None
    collecting_ns: int = 0
    place: CodePlace | None = None
    place_ns: int = 0
    in_loop: bool = False
