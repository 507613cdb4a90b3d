"""The package in examples/plugin, installed into a fresh environment, appears wherever analyses and rules do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.analyses.reference import write_reference
from tests.show.report.reading import read_report
from tests.tutorials.blocks import read

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "plugin"
# What the page is given, asked of the server as the page asks it.
ASK_PAGE = """
import json, sys
from tests.show.web.asking import serving
served = serving(sys.argv[1])
charts = served.ask("/api/table/longest_kernels").json()["charts"]
print(json.dumps({**served.ask("/api/summary").json(), "charts": charts}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that sees this one's packages and has the example installed."""
    folder = tmp_path_factory.mktemp("plugins")
    example = folder / "example"
    shutil.copytree(EXAMPLE, example)  # pip builds in it
    venv.create(folder / "env", symlinks=os.name == "posix")
    found = folder / "env" / ("bin/python" if os.name == "posix" else "Scripts/python.exe")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([found, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    lines = [f"import site; site.addsitedir({path!r})" for path in sys.path if path.endswith("site-packages")]
    (Path(site) / "these.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-warn-script-location"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(found),
        *install,
        str(example),
    ]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return found


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run([python, *arguments], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_docs_show_the_files_of_the_example() -> None:
    shown = {block.file: block.text for block in read((ROOT / "docs" / "plugins.md").read_text(encoding="utf-8"))[0]}
    written = [file for pattern in ("*.toml", "*/*.py") for file in EXAMPLE.glob(pattern)]
    assert {file.relative_to(EXAMPLE).as_posix(): file.read_text(encoding="utf-8") for file in written} == shown


@pytest.mark.slow
def test_an_installed_package_appears_in_command_line_docs_page_and_report(python: Path, tmp_path: Path) -> None:
    traces = str(write_reference(tmp_path / "run"))
    rows = json.loads(
        run(python, "-m", "rankscope", "analyze", "longest_kernels", traces, "--count", "1", "--format", "json")
    )
    assert [row["duration_ns"] for row in rows["rows"]] == [300_000, 200_250]
    assert "longest_kernels" in run(python, "-m", "rankscope", "analyses")
    assert "--count" in run(python, "-m", "rankscope", "analyses", "longest_kernels")
    assert "more than a tenth of the step" in run(python, "-m", "rankscope", "findings", traces)

    run(python, "docs/build.py", str(tmp_path / "docs"))
    assert "longest kernels" in (tmp_path / "docs" / "analyses" / "longest_kernels.md").read_text(encoding="utf-8")
    assert "`dominant_kernel`" in (tmp_path / "docs" / "rules.md").read_text(encoding="utf-8")

    page = json.loads(run(python, "-c", ASK_PAGE, traces))
    assert page["analyses"]["longest_kernels"]["state"] == "ready"
    assert page["charts"] == [{"name": "name", "value": "duration_ns", "title": "Longest kernels"}]
    assert "dominant_kernel" in {finding["id"] for finding in page["findings"]}

    run(python, "-m", "rankscope", "report", traces, "--output", str(tmp_path / "report.html"))
    report, _ = read_report((tmp_path / "report.html").read_bytes())
    table = report["analyses"]["longest_kernels"]
    assert table["title"] == "The longest kernels of each rank"
    assert table["headline"]["values"][2]["value"] == 300_000
    assert table["charts"] == page["charts"]
    # Instants are counted from the start of the file, which its column's declaration asks for.
    assert min(table["data"]["start_ns"]) < 1_000_000
    assert "dominant_kernel" in {finding["id"] for finding in report["findings"]}
