"""The import contracts of .importlinter hold on the real tree, and each of them bites.

Each contract gets at least one planted violation: in a copy of the package one forbidden import is added, and
the linter has to fail naming that contract.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / ".importlinter"

# Top first, siblings together: the order that design and docs give.
LAYERS = [
    ["cli"],
    ["web"],
    ["report"],
    ["export", "measure"],
    ["timeline"],
    ["pipeline"],
    ["ingest", "analyses", "executors"],
    ["results"],
    ["primitives"],
    ["store"],
    ["rundir"],
    ["errors"],
]
MODULES = {"results", "errors"}  # a file each; the others are packages
JOB = ["workloads", "capture", "jobs", "simulate"]


@dataclass(frozen=True)
class Plant:
    """A line of code that the contract forbids in that file."""

    contract: str
    file: str
    line: str

    def __str__(self) -> str:
        return f"{self.contract}-{self.file}-{self.line.split()[1]}"


PLANTS = [
    Plant("layers", "primitives/planted.py", "import rankscope.analyses"),
    Plant("layers", "store/planted.py", "from rankscope import ingest"),
    Plant("layers", "analyses/planted.py", "import rankscope.pipeline"),
    # Imports inside functions and for type checkers count as well.
    Plant("layers", "rundir/planted.py", "def late() -> None: import rankscope.store"),
    Plant("layers", "report/planted.py", "if typing.TYPE_CHECKING: import rankscope.web"),
    Plant("job-layers", "capture/planted.py", "import rankscope.workloads"),
    Plant("job-layers", "rundir/planted.py", "import rankscope.capture"),
    Plant("job-layers", "capture/planted.py", "import rankscope.measure.injob"),
    Plant("job-layers", "measure/injob/planted.py", "import rankscope.workloads"),
    Plant("job-layers", "jobs/planted.py", "import rankscope.capture"),
    Plant("job-layers", "jobs/planted.py", "import rankscope.simulate"),
    Plant("job-layers", "simulate/planted.py", "import rankscope.jobs"),
    Plant("job-sees-no-analysis", "capture/planted.py", "import rankscope.store"),
    Plant("job-sees-no-analysis", "jobs/planted.py", "import rankscope.pipeline"),
    Plant("job-sees-no-analysis", "simulate/planted.py", "import rankscope.ingest"),
    Plant("job-sees-no-analysis", "workloads/planted.py", "import rankscope.cli"),
    Plant("analysis-sees-no-job", "analyses/planted.py", "import rankscope.capture"),
    Plant("analysis-sees-no-job", "web/planted.py", "import rankscope.jobs"),
    Plant("analysis-sees-no-job", "ingest/planted.py", "import rankscope.simulate"),
    Plant("analysis-sees-no-job", "measure/planted.py", "import rankscope.workloads"),
    Plant("analysis-sees-no-job", "capture/planted.py", "import rankscope.jobs"),
    Plant("analysis-sees-no-job", "measure/planted.py", "import rankscope.capture"),
    Plant("injob-sees-no-analysis", "measure/injob/planted.py", "import rankscope.ingest"),
    Plant("injob-sees-no-analysis", "measure/injob/planted.py", "import rankscope.measure.results"),
    Plant("analyses-independent", "analyses/planted.py", "import rankscope.analyses.planted_too"),
    Plant("analyses-pure", "analyses/planted.py", "import pathlib"),
    Plant("executors-one-caller", "report/planted.py", "import rankscope.executors"),
    Plant("torch-in-the-job", "analyses/planted.py", "import torch"),
    Plant("torch-in-the-job", "cli/planted.py", "import torch.distributed"),
    Plant("torch-in-the-job", "planted.py", "import torchvision"),
    Plant("job-needs-torch-alone", "capture/planted.py", "import polars"),
    Plant("torch-in-the-job", "measure/planted.py", "import torch"),
    Plant("job-needs-torch-alone", "measure/injob/planted.py", "import polars"),
    Plant("job-needs-torch-alone", "rundir/planted.py", "import msgspec"),
    Plant("job-needs-torch-alone", "jobs/planted.py", "from rich import print"),
]


def contracts() -> dict[str, str]:
    """Every contract's id and name, as the linter prints it."""
    config = configparser.ConfigParser()
    config.read(CONFIG, encoding="utf-8")
    prefix = "importlinter:contract:"
    return {s.removeprefix(prefix): config[s]["name"] for s in config.sections() if s.startswith(prefix)}


def lint(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the linter on the package in `directory`/src, with our contracts."""
    # Wide enough that the linter wraps no line that is looked for.
    settings = {"PYTHONPATH": str(directory / "src"), "COLUMNS": "200", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    command = "from importlinter.cli import lint_imports_command as main; main()"
    return subprocess.run(
        [sys.executable, "-c", command, "--config", str(CONFIG), "--no-cache", "--no-logo", *options],
        cwd=directory,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which every layer exists, to plant one violation at a time in."""
    directory = tmp_path_factory.mktemp("layers")
    copy = directory / "src" / "rankscope"
    shutil.copytree(ROOT / "src" / "rankscope", copy, ignore=shutil.ignore_patterns("__pycache__", "ui", "static"))
    for name in [*chain.from_iterable(LAYERS), *JOB]:
        file = copy / (f"{name}.py" if name in MODULES else f"{name}/__init__.py")
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (copy / "analyses" / "planted_too.py").touch()
    return directory


def test_the_real_tree_keeps_every_contract() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in contracts().values():
        assert f"{name} KEPT" in result.stdout


def test_every_contract_has_a_planted_violation() -> None:
    assert {plant.contract for plant in PLANTS} == set(contracts())


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_a_planted_violation_is_found(package: Path, plant: Plant) -> None:
    file = package / "src" / "rankscope" / plant.file
    file.write_text(f"import typing\n\n{plant.line}\n", encoding="utf-8")
    try:
        result = lint(package, "--contract", plant.contract)
    finally:
        file.unlink()
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contracts()[plant.contract]} BROKEN" in result.stdout
    module = ".".join(["rankscope", *Path(plant.file).with_suffix("").parts])
    assert f"{module} -> " in result.stdout, "broken, but not by what was planted"


def test_each_layer_is_kept_from_the_one_above_and_siblings_from_each_other(package: Path) -> None:
    pairs = [(low, high) for above, layer in pairwise(LAYERS) for low in layer for high in above]
    pairs += [(one, other) for layer in LAYERS for one in layer for other in layer if one != other]
    source = package / "src" / "rankscope"
    files = {low: source / (f"{low}.py" if low in MODULES else f"{low}/planted.py") for low, _ in pairs}
    before = {file: file.read_text(encoding="utf-8") if file.exists() else None for file in files.values()}
    try:
        for low, file in files.items():
            # A module's own text is replaced: its imports cannot stand in for the planted ones.
            file.write_text("".join(f"import rankscope.{high}\n" for name, high in pairs if name == low))
        result = lint(package, "--contract", "layers")
    finally:
        for file, text in before.items():
            file.unlink() if text is None else file.write_text(text, encoding="utf-8")
    missed = [
        (low, high)
        for low, high in pairs
        if f"rankscope.{low} is not allowed to import rankscope.{high}:" not in result.stdout
    ]
    assert not missed, result.stdout + result.stderr


def test_a_package_on_no_layer_is_found(package: Path) -> None:
    file = package / "src" / "rankscope" / "helpers.py"
    file.touch()
    try:
        result = lint(package, "--contract", "layers")
    finally:
        file.unlink()
    assert result.returncode == 1, result.stdout + result.stderr
    assert "- rankscope.helpers" in result.stdout
