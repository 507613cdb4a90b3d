"""Which code is the job's own, and which belongs to Python, an installed package, torch, or this package's capture.

In: the path of a source file, as a frame or a trace has it. Out: whether it is a library's, or of an installed package.
"""

from __future__ import annotations

import re
from pathlib import Path

_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[\d.]*|rankscope/capture)/|^<|(?:^|/)torch/")


def is_library(file: str) -> bool:
    """Whether a source file belongs to a library; so does what has no file (``<string>``)."""
    return _LIBRARY.search(file.replace("\\", "/")) is not None


def is_installed(path: Path) -> bool:
    """Whether a file of this machine is in a folder of installed packages."""
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
