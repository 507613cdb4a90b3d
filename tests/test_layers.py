"""The import contracts of .importlinter hold on the real tree, and each of them bites.

Each contract gets at least one planted violation: in a copy of the package one forbidden import is added, and
the linter has to fail naming that contract.
"""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / ".importlinter"

SOURCE = ROOT / "src" / "rankscope"


def layers(contract: str) -> list[list[str]]:
    """A contract's layers, top first, siblings together."""
    config = configparser.ConfigParser()
    config.read(CONFIG, encoding="utf-8")
    lines = config[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [[name.strip() for name in line.split("|")] for line in lines if line.strip()]


LAYERS = layers("layers")
MODULES = {name for name in chain.from_iterable(LAYERS) if (SOURCE / f"{name}.py").exists()}  # the others are packages

# A module that is named by a string is imported all the same, and no contract sees it: by file, with the reason.
NAMED_BY_STRING: dict[str, set[str]] = {
    # Started as scripts, in processes of their own: the command line's side never loads torch.
    "cli/demo.py": {"rankscope.capture.workloads.resnet18"},
    "experiments/measure/jobs.py": {"rankscope.capture.workloads.function"},
    "experiments/measure/scaling.py": {
        "rankscope.capture.workloads.resnet18",
        "rankscope.capture.workloads.transformer",
    },
    # A key, not a module.
    "cli/capture_options.py": {"rankscope.capture"},
}


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
    Plant("layers", "analyses/planted.py", "import rankscope.engine.pipeline"),
    # Imports inside functions and for type checkers count as well.
    Plant("layers", "rundir/planted.py", "def late() -> None: import rankscope.store"),
    Plant("layers", "experiments/compare/planted.py", "if typing.TYPE_CHECKING: import rankscope.show.web"),
    Plant("layers", "rundir/planted.py", "import rankscope.capture"),
    Plant("layers", "jobs/planted.py", "import rankscope.capture"),
    Plant("layers", "capture/planted.py", "import rankscope.jobs"),
    Plant("layers", "capture/planted.py", "import rankscope.store"),
    Plant("layers", "jobs/planted.py", "import rankscope.engine.pipeline"),
    Plant("layers", "capture/workloads/planted.py", "import rankscope.cli"),
    Plant("layers", "capture/planted.py", "import rankscope.show.monitor"),
    Plant("layers", "capture/measured/planted.py", "import rankscope.ingest"),
    Plant("layers", "capture/measured/planted.py", "import rankscope.experiments.measure.results"),
    Plant("inside", "show/report/planted.py", "import rankscope.show.web"),
    Plant("inside", "engine/query/planted.py", "import rankscope.engine.pipeline"),
    Plant("inside", "experiments/simulate/planted.py", "import rankscope.experiments.measure"),
    Plant("inside", "answers/watch/planted.py", "import rankscope.answers.diagnosis"),
    Plant("job-apart", "analyses/planted.py", "import rankscope.capture"),
    Plant("job-apart", "show/web/planted.py", "import rankscope.jobs"),
    Plant("job-apart", "ingest/planted.py", "import rankscope.jobs.doctor"),
    Plant("job-apart", "experiments/measure/planted.py", "import rankscope.capture.workloads"),
    Plant("job-apart", "experiments/compare/planted.py", "import rankscope.jobs"),
    Plant("job-apart", "experiments/simulate/planted.py", "import rankscope.jobs"),
    Plant("analyses-independent", "analyses/planted.py", "import rankscope.analyses.planted_too"),
    Plant("analyses-pure", "analyses/planted.py", "import pathlib"),
    Plant("torch-in-the-job", "analyses/planted.py", "import torch"),
    Plant("torch-in-the-job", "cli/planted.py", "import torch.distributed"),
    Plant("torch-in-the-job", "planted.py", "import torchvision"),
    Plant("torch-in-the-job", "experiments/measure/planted.py", "import torch"),
    Plant("job-needs-torch-alone", "capture/planted.py", "import polars"),
    Plant("job-needs-torch-alone", "capture/measured/planted.py", "import polars"),
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
    """A copy of the package, to plant one violation at a time in."""
    directory = tmp_path_factory.mktemp("layers")
    copy = directory / "src" / "rankscope"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "ui", "static"))
    (copy / "analyses" / "planted_too.py").touch()
    return directory


def test_every_package_is_on_one_side_of_the_job() -> None:
    names = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    config = configparser.ConfigParser()
    config.read(CONFIG, encoding="utf-8")
    apart = config["importlinter:contract:job-apart"]
    sides = [apart[side].split() for side in ("source_modules", "forbidden_modules")]
    assert {name.removeprefix("rankscope.") for side in sides for name in side} == names - {"cli", "rundir"}


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


def test_the_picture_in_the_docs_shows_these_layers() -> None:
    text = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8").partition("## Layers")[2].split("```")[1]
    shown = [re.split(r"  +", line)[0].split(" | ") for line in text.strip().splitlines() if line[0] != " "]
    assert shown == LAYERS


def test_modules_named_by_string_are_listed() -> None:
    unlisted = []
    for file in SOURCE.rglob("*.py"):
        name = file.relative_to(SOURCE).as_posix()
        if "ui" in file.parts or name == "__init__.py":
            continue  # the package's own names are its public API
        own = f"rankscope.{name.split('/')[0]}"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and is_module(value) and not value.startswith(own):
                unlisted += [f"{name}: {value}"] if value not in NAMED_BY_STRING.get(name, ()) else []
    assert not unlisted
    assert all((SOURCE / name).exists() for name in NAMED_BY_STRING)


def is_module(text: str) -> bool:
    if not re.fullmatch(r"rankscope(\.\w+)+", text):
        return False
    path = ROOT / "src" / Path(*text.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()
