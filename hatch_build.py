"""Builds the compiled reader (`native/`) into the package, where there is `cargo`.

Without `cargo`, or if it fails, the package has Python alone: it reads the same traces, in twice the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = {"darwin": "librankscope_reader.dylib", "win32": "rankscope_reader.dll"}.get(
    sys.platform, "librankscope_reader.so"
)
# In the package the name begins alike on every platform (`rankscope.ingest.native.LIBRARY`).
TARGET = "src/rankscope/ingest/librankscope_reader" + Path(NAME).suffix


class ReaderHook(BuildHookInterface[Any]):
    """Adds the library to a wheel, whose tag then names the platform; any Python can load it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, before files are collected."""
        if not build(Path(self.root)):
            return
        build_data["artifacts"].append(TARGET)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def build(root: Path) -> bool:
    """Build the library into the package. False, and a line that says why, if that cannot be done."""
    cargo = shutil.which("cargo")
    if cargo is None:
        print("rankscope: no `cargo` here: traces will be read by Python alone, in twice the time", file=sys.stderr)
        return False
    command = [cargo, "build", "--release", "--offline", "--locked", "--manifest-path", str(root / "native/Cargo.toml")]
    folder = Path(os.environ.get("CARGO_TARGET_DIR") or root / "native" / "target")
    done = subprocess.run(
        command, env={**os.environ, "CARGO_TARGET_DIR": str(folder)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        print("rankscope: the compiled reader cannot be built: traces will be read by Python alone", file=sys.stderr)
        return False
    # Renamed, not written over: a running process may have the old one in memory.
    new = root / f"{TARGET}.new"
    shutil.copyfile(folder / "release" / NAME, new)
    new.replace(root / TARGET)
    return True


if __name__ == "__main__":
    sys.exit(not build(Path(__file__).parent))
