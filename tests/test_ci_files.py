"""The GitHub Action and the GitLab template: their shell steps, run by bash with an environment as CI systems have it.

A stand-in for rankscope writes down its arguments; one slow test runs the real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.compare.test_diff import job

yaml = pytest.importorskip("yaml", reason="pip install --group tools")
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")

ROOT = Path(__file__).resolve().parent.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
SPEC, TEMPLATE = yaml.safe_load_all((ROOT / "templates" / "diff.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
EVIL = "$(touch pwned); `touch pwned` '\"; touch pwned #\\"

STAND_IN = """#!/usr/bin/env bash
printf '%s\\0' "$@" >"$ASIDE/arguments"
for each in "$@"; do
  case $each in --markdown=*) echo "<!-- rankscope diff -->" >"${each#*=}" ;; esac
  case $each in --junit=*) echo "<x/>" >"${each#*=}" ;; esac
done
echo "::error::from a trace"
exit "${OUTCOME:-0}"
"""
GH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$ASIDE/gh"
case $* in *--paginate*) echo "${OLD_COMMENT:-}" ;; *) exit "${GH_STATUS:-0}" ;; esac
"""


@dataclass
class Runner:
    """A machine of a CI system."""

    folder: Path
    rankscope: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text().split("\0")[:-1]

    @property
    def pwned(self) -> bool:
        return any(self.folder.rglob("pwned"))

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.variables, **variables, "ASIDE": str(self.folder)}
        environment["PATH"] = f"{self.folder / 'commands'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300
        )

    def outputs(self) -> dict[str, str]:
        lines = (self.folder / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    temp = tmp_path / "temp dir"
    found = script(temp / "rankscope" / "bin" / "rankscope", STAND_IN)
    (found.parent / "python").symlink_to(sys.executable)
    script(tmp_path / "commands" / "gh", GH)
    (tmp_path / ".rankscope").symlink_to(temp / "rankscope")
    variables = {
        "RUNNER_TEMP": str(temp),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_REPOSITORY": "owner/name",
    }
    return Runner(tmp_path, found, variables)


def compare(runner: Runner, **inputs: str) -> subprocess.CompletedProcess[str]:
    names = {"INPUT_BASELINE": "a", "INPUT_RUN": "b", "INPUT_FAIL_ON": "", "INPUT_RANKS": "", "INPUT_STEPS": ""}
    return runner.run(STEPS["Compare"]["run"], **{**names, **inputs})


def test_no_script_contains_an_expression() -> None:
    for step in STEPS.values():
        assert "${{" not in step["run"], step["name"]
        assert step["shell"] == "bash"
    assert not [line for line in TEMPLATE["$[[ inputs.job ]]"]["script"] if "$[[" in line]
    declared = set(ACTION["inputs"])
    used = {part for step in STEPS.values() for part in declared if f"inputs.{part} " in str(step.get("env"))}
    assert used == declared - {"comment"}


def test_conditions_become_arguments_one_per_line(runner: Runner) -> None:
    done = compare(runner, INPUT_FAIL_ON="step_time > 5%\n\n  \nfindings > 0\n", INPUT_RANKS="0-3", INPUT_STEPS="10:12")
    assert done.returncode == 0, done.stderr
    given = runner.arguments
    assert [each for each in given if each.startswith("--fail-on=")] == [
        "--fail-on=step_time > 5%",
        "--fail-on=findings > 0",
    ]
    assert given[0] == "diff"
    assert {"--ranks=0-3", "--steps=10:12"} <= set(given)
    assert given[-3:] == ["--", "a", "b"]
    found = runner.outputs()
    assert found["status"] == "0"
    assert Path(found["junit"]).exists()
    assert (runner.folder / "summary").read_text() == Path(found["markdown"]).read_text()


def test_without_conditions_there_is_no_junit(runner: Runner) -> None:
    assert compare(runner).returncode == 0
    assert runner.outputs()["junit"] == ""
    assert not [each for each in runner.arguments if each.startswith(("--junit", "--fail-on", "--ranks"))]


@pytest.mark.parametrize("status", ["0", "1", "2"])
def test_the_job_ends_as_the_diff_does_after_everything_is_reported(runner: Runner, status: str) -> None:
    assert compare(runner, OUTCOME=status, INPUT_FAIL_ON="x > 1").returncode == 0
    assert runner.outputs()["status"] == status
    assert runner.run(STEPS["Verdict"]["run"], STATUS=status).returncode == int(status)
    assert runner.run(STEPS["Verdict"]["run"], STATUS="").returncode != 0


def test_inputs_are_never_run(runner: Runner) -> None:
    inputs = dict.fromkeys(("BASELINE", "RUN", "FAIL_ON", "RANKS", "STEPS"), EVIL)
    assert compare(runner, **{f"INPUT_{name}": text for name, text in inputs.items()}).returncode == 0
    assert not runner.pwned
    assert runner.arguments[-2:] == [EVIL, EVIL]
    assert f"--fail-on={EVIL}" in runner.arguments
    compare(runner, INPUT_BASELINE="--help", INPUT_RUN="-o")
    assert runner.arguments[-3:] == ["--", "--help", "-o"]


def test_what_is_printed_gives_the_log_no_commands(runner: Runner) -> None:
    lines = compare(runner).stdout.splitlines()
    start, end = (n for n, line in enumerate(lines) if line.startswith("::") and line != "::error::from a trace")
    pause = lines[start].removeprefix("::stop-commands::")
    assert lines[end] == f"::{pause}::"
    assert len(pause) == 32
    assert start < lines.index("::error::from a trace") < end
    assert pause not in compare(runner).stdout


def test_the_comment_is_written_or_replaced_and_its_failure_fails_nothing(runner: Runner) -> None:
    comment = STEPS["Comment on the pull request"]["run"]
    markdown = runner.folder / "x.md"
    markdown.write_text("<!-- rankscope diff -->\n")
    given = {"PULL_REQUEST": "7", "MARKDOWN": str(markdown), "GH_TOKEN": "t"}
    calls = runner.folder / "gh"
    assert runner.run(comment, **given).returncode == 0
    assert "POST repos/owner/name/issues/7/comments -F body=@" in calls.read_text().splitlines()[-1]
    assert runner.run(comment, **given, OLD_COMMENT="42").returncode == 0
    assert "PATCH repos/owner/name/issues/comments/42 -F body=@" in calls.read_text().splitlines()[-1]
    assert runner.run(comment, **given, OLD_COMMENT="42; touch pwned").returncode == 0
    assert "POST " in calls.read_text().splitlines()[-1] and not runner.pwned
    failed = runner.run(comment, **given, GH_STATUS="1")
    assert failed.returncode == 0
    assert "::warning::" in failed.stdout
    assert runner.run(comment, **{**given, "MARKDOWN": ""}).returncode == 0


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_gitlab_job(runner: Runner, status: int) -> None:
    text = TEMPLATE["$[[ inputs.job ]]"]["script"][-1]
    variables = {
        "RANKSCOPE_BASELINE": EVIL,
        "RANKSCOPE_RUN": "-b",
        "RANKSCOPE_FAIL_ON": f"step_time > 5%; ;findings > 0;{EVIL.split(';')[0]}",
        "RANKSCOPE_COMMENT": "false",
    }
    done = runner.run(text, **variables, OUTCOME=str(status))
    assert done.returncode == status, done.stderr
    assert not runner.pwned
    assert runner.arguments == [
        "diff", "--markdown=rankscope.md", "--fail-on=step_time > 5%", "--fail-on=findings > 0",
        f"--fail-on={EVIL.split(';')[0]}", "--junit=rankscope.xml", "--", EVIL, "-b",
    ]  # fmt: skip
    reports = TEMPLATE["$[[ inputs.job ]]"]["artifacts"]
    assert (runner.folder / reports["paths"][0]).exists()
    assert (runner.folder / reports["reports"]["junit"]).exists()


def test_every_gitlab_input_has_its_use() -> None:
    text = str(TEMPLATE)
    assert all(f"$[[ inputs.{name} ]]" in text for name in SPEC["spec"]["inputs"])


@pytest.mark.slow
def test_the_action_with_the_real_command(runner: Runner) -> None:
    a, b = job(runner.folder / "a", gemm=100), job(runner.folder / "b", gemm=150)
    source = ROOT / "src"
    script(runner.rankscope, f'#!/usr/bin/env bash\nPYTHONPATH="{source}" exec "{sys.executable}" -m rankscope "$@"\n')
    inputs = {"INPUT_BASELINE": str(a), "INPUT_RUN": str(b), "INPUT_FAIL_ON": "compute > 20%\nstep_time > 5%"}
    done = compare(runner, **inputs)
    assert done.returncode == 0, done.stderr
    found = runner.outputs()
    assert found["status"] == "1", done.stdout
    assert "1 of 2 conditions failed" in (runner.folder / "summary").read_text(encoding="utf-8")
    assert 'failures="1"' in Path(found["junit"]).read_text(encoding="utf-8")
