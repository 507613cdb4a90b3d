"""What mpi4py's wheel needs to find Debian's MPICH."""

from __future__ import annotations

from ctypes.util import find_library
from pathlib import Path


def mpich(folder: Path) -> dict[str, str]:
    """Variables, and a folder with the library under the name that the wheel looks for; nothing without MPICH."""
    found = find_library("mpich")
    if found is None:
        return {}
    folder.mkdir()
    name = next(path for path in Path("/usr/lib").rglob(found))
    (folder / "libmpi.so.12").symlink_to(name)
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(folder)}
