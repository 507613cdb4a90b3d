"""How many devices and CPUs this host has for ranks; torch is asked in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_COUNT = "import torch; a = torch.cuda if torch.cuda.is_available() else getattr(torch, 'xpu', None); \
print(a.device_count() if a is not None and a.is_available() else 0)"
_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri")


def accelerators() -> int:
    """How many devices torch sees; 0 where there are none or torch is not there."""
    if not any(Path(path).exists() for path in _FILES) or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return 0
    try:
        asked = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, timeout=120, check=False)
        return int(asked.stdout.strip() or 0)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0
