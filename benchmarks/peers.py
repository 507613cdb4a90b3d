"""Installs other tools, each in its own environment under `.bench/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"

# HTA 0.6.1 assigns int64 into int16 columns, which pandas 3 refuses: the newest pandas that it works with.
HTA = ("traceinsight==0.6.1", "pandas<3")


def environment(name: str, packages: tuple[str, ...]) -> Path | None:
    """The Python of an environment with these packages; None, with the reason printed, if they cannot be installed."""
    folder = ROOT / ".bench" / name
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name} is left out: it cannot be installed: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
        stamp.write_text(" ".join(packages))
    return python
