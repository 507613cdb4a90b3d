"""The wheel and the sdist: with the compiled reader where there is cargo, pure Python without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.ingest.native_cases import toolchain
from tests.ingest.test_boundaries import REAL
from tests.kineto import trace, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
_LIBRARY = "rankscope/ingest/librankscope_reader"
_LEFT_OUT = shutil.ignore_patterns(".*_cache", ".venv", ".torch", ".bench", ".git", "node_modules", "target", "traces")


def build(tmp_path: Path, kind: str, **variables: str) -> Path:
    """A wheel or sdist of a copy of the repository, so that nothing is written into it."""
    pytest.importorskip("hatchling", reason="hatchling is in make's environment")
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(ROOT, source, ignore=_LEFT_OUT)
    for built in (source / "src/rankscope/ingest").glob("librankscope_reader.*"):
        built.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)],
        cwd=source,
        env={**os.environ, **toolchain(), **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    (found,) = out.iterdir()
    return found


@pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo here")
def test_a_wheel_with_the_reader_serves_any_python_of_its_platform(tmp_path: Path) -> None:
    wheel = build(tmp_path, "wheel")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    installed = tmp_path / "installed"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(installed),
        str(wheel),
    ]
    subprocess.run(pip, check=True, timeout=600)
    file = write(tmp_path / "t.json", trace(REAL))
    code = f"""if True:
        import rankscope
        from rankscope.ingest import native
        from rankscope.ingest.kineto import read_kineto
        assert rankscope.__file__.startswith({str(installed)!r}), rankscope.__file__
        assert native.wanted()
        assert sum(read_kineto({str(file)!r}).counts.values()) == {len(REAL)}
    """
    environment = {**os.environ, "PYTHONPATH": str(installed), "RANKSCOPE_READER": "native"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path, timeout=300)


def test_without_cargo_the_wheel_is_pure_python(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    wheel = build(tmp_path, "wheel", PATH=str(empty))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not any(name.startswith(_LIBRARY) for name in zipfile.ZipFile(wheel).namelist())


def test_the_sdist_has_the_reader_s_source(tmp_path: Path) -> None:
    with tarfile.open(build(tmp_path, "sdist")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"hatch_build.py", "native/Cargo.toml", "native/Cargo.lock", "native/src/lib.rs"} <= names
    assert not any(name.startswith(("native/target", f"src/{_LIBRARY}")) for name in names)
