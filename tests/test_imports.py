"""What importing rankscope costs and needs, asked of fresh interpreters; what no committed file may name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ["torch", "polars", "msgspec", "rich", "typer", "numpy"]
# The only package that imports torch (.importlinter holds the same, without running anything).
WITH_TORCH = ["rankscope.capture"]
# Modules that need an extra as a whole: imported only by what says that it is missing.
WITH_AN_EXTRA = ["rankscope.show.agents.server"]
# What works beside torch with nothing else installed, and needs not even torch itself.
BARE = ["rankscope.errors", "rankscope.jobs", "rankscope.rundir"]


def python(code: str) -> str:
    """What `code` prints, run in a fresh interpreter on this tree's package with warnings as errors."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_after(code: str) -> set[str]:
    """The modules that are loaded once `code` has run, without those that Python starts with."""
    modules: list[str] = json.loads(
        python(
            "import sys\n"
            "before = set(sys.modules)\n"
            f"{code}\n"
            "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
        )
    )
    return set(modules)


# Every module of the package but those that run on import.
# Listed from the files: to walk the packages would import them, those of the job among them.
ALL_MODULES = """
import importlib, pathlib, rankscope
root = pathlib.Path(rankscope.__file__).parent
files = [f.relative_to(root.parent).with_suffix("") for f in root.rglob("*.py") if "ui" not in f.parts]
names = sorted(".".join(f.parts).removesuffix(".__init__") for f in files if f.name != "__main__")
"""


def test_import_rankscope_is_cheap() -> None:
    loaded = loaded_after("import rankscope")
    assert not loaded & set(HEAVY)
    assert {name for name in loaded if name.startswith("rankscope")} == {"rankscope"}


def test_dir_and_version_load_nothing_more() -> None:
    loaded = loaded_after("import rankscope; dir(rankscope); rankscope.__version__")
    assert {name for name in loaded if name.startswith("rankscope")} == {"rankscope"}


def test_open_loads_no_torch() -> None:
    loaded = loaded_after("from rankscope import open; assert callable(open)")
    assert "rankscope.engine.pipeline" in loaded
    assert "torch" not in loaded


def test_reading_files_loads_nothing_for_urls() -> None:
    """Each worker starts with it; fsspec and what it brings were a sixth of that."""
    assert "fsspec" not in loaded_after("import rankscope.ingest.task, rankscope.engine.pipeline")


def test_the_error_family_loads_nothing_else() -> None:
    loaded = loaded_after("from rankscope import RankscopeError")
    assert {name for name in loaded if name.startswith("rankscope")} == {"rankscope", "rankscope.errors"}
    assert not loaded & set(HEAVY)


def test_what_runs_in_a_measured_job_loads_the_jobs_side_alone() -> None:
    """`rankscope.capture.measured` runs beside a bare torch: nothing of `rankscope.experiments` comes with it."""
    loaded = {name for name in loaded_after("import rankscope.capture.measured") if name.startswith("rankscope.")}
    sides = ("rankscope.capture", "rankscope.errors", "rankscope.rundir")
    assert not {name for name in loaded if not name.startswith(sides)}


FORMER = """
import rankscope.hang, rankscope.answers.hang, rankscope.hang.files, rankscope.answers.hang.files
assert rankscope.hang.read is rankscope.answers.hang.read
assert rankscope.hang.files.find_dumps is rankscope.answers.hang.files.find_dumps
from rankscope.measure.results import Share
from rankscope.experiments.measure import results
assert Share is results.Share
from rankscope.measure.injob import measure
from rankscope.capture import measured
assert measure is measured.measure
try:
    import rankscope.hang.nothing
except ModuleNotFoundError as error:
    assert error.name == "rankscope.hang.nothing", error.name
else:
    raise AssertionError
"""


def test_documented_modules_are_found_by_their_former_names() -> None:
    python(FORMER)


@pytest.mark.parametrize("name", ["doctor", "workloads.fsdp", "workloads.resnet18", "workloads.function"])
def test_documented_programs_run_by_their_former_names(name: str) -> None:
    arguments = [] if name == "workloads.function" else ["--help"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", f"rankscope.{name}", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    now = name.replace("doctor", "jobs.doctor").replace("workloads", "capture.workloads")
    assert f"python -m rankscope.{now}" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    printed = python("import rankscope\ntry: rankscope.nothing\nexcept AttributeError as error: print(error)")
    assert "'nothing'" in printed


def test_no_module_outside_the_job_loads_torch() -> None:
    printed = python(
        "import sys\n"
        + ALL_MODULES
        + f"names = [n for n in names if not n.startswith({(*WITH_TORCH, *WITH_AN_EXTRA)!r})]\n"
        + "for name in names:\n"
        + "    importlib.import_module(name)\n"
        + "    assert 'torch' not in sys.modules, name\n"
        + "print(len(names))"
    )
    assert int(printed) > 0


@pytest.mark.parametrize("package", BARE)
def test_needs_the_standard_library_alone(package: str) -> None:
    printed = python(
        "import sys\n"
        "class Bare:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        top = name.partition('.')[0]\n"
        "        if top != 'rankscope' and top not in sys.stdlib_module_names:\n"
        "            raise ModuleNotFoundError(f'{name} is not of the standard library', name=name)\n"
        "sys.meta_path.insert(0, Bare)\n"
        + ALL_MODULES
        + f"names = [n for n in names if n == {package!r} or n.startswith({package + '.'!r})]\n"
        + "for name in names: importlib.import_module(name)\n"
        + "print(len(names))"
    )
    assert int(printed) > 0, f"{package} is not there"


# --- what no committed file may name: where packages were fetched from, paths of the machine that made it ---

# Written in pieces, so that this file does not name them either.
HOSTS = [
    "registry." + "npmjs",
    "registry." + "yarnpkg",
    "registry." + "npmmirror",
    "npm." + "pkg.github",
    "files." + "pythonhosted",
    "pypi." + "org/simple",
]
# In files that tools read, any address that looks like a package index.
INDEX = re.compile(
    r"(?:https?|file)://[^\s\"'/]*(?:registry|pypi|npm|mirror|nexus|artifactory|verdaccio)", re.IGNORECASE
)
READ_BY_TOOLS = {
    "package-lock.json",
    "package.json",
    ".npmrc",
    "constraints.txt",
    "pyproject.toml",
    "Makefile",
    "run",
}
# A home directory, but for the people whom examples are about.
HOME = re.compile(r"(?<![\w.$}~-])/(?:(?:hom[e]|Use[r]s)/(?!(?:alice|bob|me|user|you)\b)[a-z][\w.-]*|roo[t])/")


@cache
def committed_texts() -> dict[str, str]:
    """Every text file that is committed, or would be by `git add`, by its path."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    texts = {}
    for name in filter(None, listing.stdout.decode().split("\0")):
        file = ROOT / name
        if file.is_symlink() or not file.is_file():
            continue  # a link's target is text of its own, and what was removed is not there to be read
        data = file.read_bytes()
        if b"\0" not in data[:8192]:
            texts[name] = data.decode("utf-8", errors="replace")
    assert "pyproject.toml" in texts
    return texts


def lines_with(pattern: re.Pattern[str], names: set[str] | None = None) -> list[str]:
    return [
        f"{name}:{number}: {found.group()}"
        for name, text in committed_texts().items()
        if names is None or Path(name).name in names
        for number, line in enumerate(text.splitlines(), 1)
        if (found := pattern.search(line))
    ]


def test_no_file_names_a_package_registry() -> None:
    assert not lines_with(re.compile("|".join(map(re.escape, HOSTS)), re.IGNORECASE))
    assert not lines_with(INDEX, READ_BY_TOOLS)


def test_no_lock_file_says_where_packages_came_from() -> None:
    assert not lines_with(re.compile(r'"resolved": *"(?!node_modules/)[^"]*'), {"package-lock.json"})


def test_no_file_names_a_path_of_the_machine_it_was_made_on() -> None:
    assert not lines_with(HOME)
    # This checkout's own place, where it is long enough not to be a word of ordinary text.
    if len(ROOT.parts) > 2:
        assert not lines_with(re.compile(rf"(?<![\w./-]){re.escape(ROOT.as_posix())}(?![\w-])"))


@pytest.mark.parametrize("text", ["see /hom/jane/run", "/roo/x", "'/Use/jane/y'", "file:///hom/jane/z"])
def test_the_pattern_finds_homes(text: str) -> None:
    whole = {"/hom/": "/hom" + "e/", "/roo/": "/roo" + "t/", "/Use/": "/Use" + "rs/"}
    for part, name in whole.items():
        text = text.replace(part, name)
    assert HOME.search(text)


@pytest.mark.parametrize("text", ["/home/alice/run", "/Users/user/x", "~/root/x", "api/root/x", "web/home/page/x"])
def test_the_pattern_leaves_examples_alone(text: str) -> None:
    assert not HOME.search(text)
