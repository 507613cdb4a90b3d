"""Which source files belong to the training."""

from __future__ import annotations

import json
import subprocess
import sys

from rankscope.rundir.measurement import digest_of

LOOK = """
import json, sys
import torch, numpy, model
from rankscope.capture.measured.sources import own_sources
import rankscope.capture.workloads
found = own_sources({"/gone/before.py": "abc"})
print(json.dumps(found))
"""


def test_only_the_scripts_own_files(tmp_path):
    (tmp_path / "model.py").write_text("import package.layers\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "layers.py").write_text("WIDTH = 3\n")
    (tmp_path / "unused.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(LOOK)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=True)
    names = ("train.py", "model.py", "package/__init__.py", "package/layers.py")
    wanted = {str((tmp_path / name).resolve()): digest_of((tmp_path / name).read_bytes()) for name in names}
    assert json.loads(done.stdout) == {**wanted, "/gone/before.py": "abc"}
