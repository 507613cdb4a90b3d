"""What the doctor says of torch and its devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.jobs.doctor.checks import CPU, wrong

from rankscope.jobs.doctor import devices
from rankscope.jobs.doctor.devices import Answer

A100 = {"name": "NVIDIA A100", "total_bytes": 80 * 2**30, "free_bytes": 79 * 2**30}
CUDA = {
    **CPU,
    "cuda_build": "12.6",
    "backends": {"gloo": True, "nccl": True, "nccl_version": "2.27.3"},
    "profiler": {"kineto": True, "activities": ["CPU", "CUDA"]},
    "cuda": {"count": 2, "devices": [A100, A100], "why": None},
}


def asked(tmp_path, said, environ=None, **answer):
    return list(devices.checks(Answer(said, answer.pop("stage", "done"), **answer), environ or {}, tmp_path))


def test_a_machine_without_devices_is_well(tmp_path):
    found = asked(tmp_path, CPU)
    assert not wrong(found)
    assert "no accelerator: ranks compute on the CPU" in [check.what for check in found]


def test_a_machine_with_devices_is_well(tmp_path):
    found = asked(tmp_path, CUDA)
    assert not wrong(found)
    said = [check.what for check in found]
    assert "2 x NVIDIA A100 (CUDA), 80 GiB each" in said
    assert "gloo, nccl 2.27.3" in said


@pytest.mark.parametrize(
    ("said", "files", "environ", "name", "text"),
    [
        (CPU, ["nvidia0"], {}, "build", "this torch is built for the CPU"),
        (CPU, ["kfd"], {}, "build", "AMD devices are here"),
        ({**CUDA, "cuda": {"count": 0, "why": "driver too old"}}, ["nvidia0"], {}, "unseen", "driver too old"),
        ({**CUDA, "cuda": {"count": 0}}, [], {}, "devices", "a login node"),
        ({**CUDA, "cuda": {"count": 0}}, ["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, "hidden", "hides the devices"),
        ({**CUDA, "backends": {"gloo": True}}, [], {}, "nccl", "this torch has no nccl"),
        ({**CUDA, "backends": {}}, [], {}, "distributed", "not available"),
        ({**CUDA, "profiler": {"kineto": False, "activities": []}}, [], {}, "kineto", "without Kineto"),
        ({**CUDA, "profiler": {"kineto": True, "activities": ["CPU"]}}, [], {}, "activities", "no cuda activity"),
        ({**CPU, "torch": "2.1.0"}, [], {}, "torch", "torch 2.1.0"),
        ({**CPU, "import_s": 45.0}, [], {}, "torch", "45.0 s"),
        (
            {**CUDA, "cuda": {"count": 2, "devices": [A100, {**A100, "free_bytes": 2**30}]}},
            [],
            {},
            "cuda-memory",
            "device 1 (1 GiB free)",
        ),
        (
            {**CUDA, "cuda": {"count": 1, "devices": [{"name": "x", "error": "busy"}]}},
            [],
            {},
            "cuda-use",
            "device 0: busy",
        ),
    ],
)
def test_what_is_wrong_with_devices(tmp_path, said, files, environ, name, text):
    (tmp_path / "dev").mkdir()
    for file in files:
        (tmp_path / "dev" / file).write_text("")
    found = wrong(asked(tmp_path, said, environ))
    assert list(found) == [name]
    assert text in found[name].what
    assert found[name].fix


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may open everything")
def test_a_device_that_may_not_be_opened(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch(0o000)
    assert wrong(asked(tmp_path, {**CUDA, "cuda": {"count": 0}}))["permission"].status == "fail"


def test_a_torch_that_does_not_answer(tmp_path):
    late = wrong(asked(tmp_path, {}, stage="import torch", error="no answer within 9 s", timed_out=True))
    assert late["torch"].status == "fail"
    absent = wrong(asked(tmp_path, {}, error="ModuleNotFoundError: No module named 'torch'"))
    # Traces can be read without it.
    assert absent["torch"].status == "warn"
    broken = wrong(asked(tmp_path, {}, error="ImportError: libcudart.so.12"))
    assert (broken["torch"].status, "libcudart" in broken["torch"].what) == ("fail", True)
    hung = wrong(asked(tmp_path, CPU, stage="cuda", error="no answer within 9 s", timed_out=True))
    assert "failed at cuda" in hung["answer"].what
    assert "nvidia-smi" in hung["answer"].fix


@pytest.mark.parametrize(
    ("code", "stage", "error"),
    [
        ("open('asleep', 'w'); import time; time.sleep(600)", "cuda", "no answer within 1 s"),
        ("raise ValueError('odd')", "cuda", "ValueError: odd"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "cuda", f"signal {int(signal.SIGSEGV)}"),
        ('print(\'{"stage": "done"}\')', "done", None),
    ],
)
def test_the_process_that_asks_torch_may_hang_or_die(tmp_path, monkeypatch, code, stage, error):
    probe = tmp_path / "probe.py"
    lines = 'print(\'chatter of a library\\n{"stage": "cuda"}\\n{"torch": "9.9"}\', flush=True)'
    probe.write_text(f"{lines}\n{code}\n")
    monkeypatch.setattr(devices, "PROBE_SCRIPT", probe)
    monkeypatch.chdir(tmp_path)
    whole = subprocess.Popen.communicate

    def communicate(self, input=None, timeout=None):
        until = time.monotonic() + 300
        # Its time begins when it is there, however long a process takes to start here.
        while timeout == 1 and not (tmp_path / "asleep").exists() and time.monotonic() < until:
            time.sleep(0.02)
        return whole(self, input, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    answer = devices.ask_torch({**os.environ}, 1 if "sleep" in code else 300)
    assert answer.stage == stage
    assert answer.report == {"torch": "9.9"}
    assert (error or "") in (answer.error or "")
    assert (answer.error is None) == (error is None)
    assert answer.timed_out == ("sleep" in code)


@pytest.mark.slow
def test_this_torch_answers():
    torch = pytest.importorskip("torch")
    answer = devices.ask_torch({**os.environ, "RANKSCOPE_HOOK": "1"}, 300)
    assert answer.error is None, answer
    assert answer.report["torch"] == str(torch.__version__)
    assert answer.report["backends"]["gloo"] == torch.distributed.is_gloo_available()
    assert answer.report["profiler"]["activities"] == sorted(a.name for a in torch.profiler.supported_activities())
    assert answer.report["cuda"]["count"] == torch.cuda.device_count()


def test_nothing_here_imports_torch_or_what_capture_lacks():
    code = (
        "import sys, rankscope.jobs.doctor.__main__ as m\n"
        "bad = {'torch', 'polars', 'typer', 'rich', 'msgspec'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
