"""All checks together: the report, the command, and a fix for everything that is wrong."""

from __future__ import annotations

import json
import sys

import pytest
from tests.jobs.doctor.checks import CPU
from tests.jobs.parts import part

from rankscope.jobs.doctor import Check, devices, run_checks, worst
from rankscope.jobs.doctor.__main__ import report
from rankscope.jobs.doctor.devices import Answer


def test_worst():
    checks = [Check("a", "b", status, "") for status in ("ok", "warn", "fail")]
    assert [worst(checks[:n]) for n in range(4)] == ["ok", "ok", "warn", "fail"]


def test_the_report_is_inert_and_its_exit_code_tells(capsys):
    checks = [Check("s", "a", "ok", "fine"), Check("s", "b", "warn", "odd \x1b[31m\n name", "fix \x07")]
    assert report(checks) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert out.splitlines()[-1] == "1 ok, 1 warning, 0 failures"
    assert report([*checks, Check("s", "c", "fail", "bad", "fix")], as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["status"], found["fail"]) == (1, "fail", 1)
    assert found["checks"][2] == {"subject": "s", "name": "c", "status": "fail", "what": "bad", "fix": "fix"}
    report(checks, only_wrong=True)
    assert "fine" not in capsys.readouterr().out


def test_the_command(tmp_path, monkeypatch, capfd):
    from rankscope.cli import main

    probe = tmp_path / "probe.py"
    probe.write_text(f"import json\nprint(json.dumps({CPU!r} | {{'stage': 'done'}}))")
    monkeypatch.setattr(devices, "PROBE_SCRIPT", probe)
    folder = part(tmp_path / "a", (0, 1))

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["rankscope", "doctor", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, capfd.readouterr().out

    code, out = command(folder, "--json")
    found = json.loads(out)
    assert code == 1
    assert {c["name"] for c in found["checks"] if c["status"] == "fail"} == {"missing"}
    assert {c["subject"] for c in found["checks"]} >= {"software", "torch", "launcher", "network", "disk", "run"}
    assert command("--only-wrong")[0] == 0


def test_every_failure_and_warning_says_how_to_fix_it(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "ask_torch", lambda *_: Answer(CPU, "done"))
    for check in run_checks(part(tmp_path / "a", (0, 1)), environ={"RANK": "x", "MASTER_PORT": "y"}):
        assert check.what
        assert check.status == "ok" or check.fix, check
