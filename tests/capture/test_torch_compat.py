"""Capture as users of other tools know it: d9d's profiler, torch's methods, TensorBoard's files; XPU and ROCm."""

from __future__ import annotations

import inspect
import io
import json
import re
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest
import torch

from rankscope import Profiler
from rankscope.capture import CaptureWarning, environment
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata

from .conftest import clean_environ, read_trace, steps_in, traces, train

SHORT = {"wait": 1, "warmup": 1, "active": 2}

# --- d9d ----------------------------------------------------------------------------------------------------

D9D = """
import sys, torch, rankscope
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
class Context:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "dp"))
    mesh_params = type("P", (), {"is_distributed": True})
    def mesh_for(self, domain):
        assert domain == "regular"
        return self.mesh
context = Context() if dist.get_rank() == 0 else Context.mesh
with rankscope.Profiler("traces", 5, 1, 2, context, preset="d9d").open(start_step=3) as profiler:
    for step in range(3, 20):
        assert profiler.step_num == step
        dist.all_reduce(torch.ones(4))
        profiler.step()
        profiler._writer.drain(60)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_d9ds_profiler_and_its_files_in_a_job(tmp_path):
    (tmp_path / "job.py").write_text(D9D)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "job.py"]
    done = subprocess.run(line, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # At step 3 the warm-up of the first period, steps 0 to 4, has passed: it is step 3, and step 4 is recorded.
    names = [f"step_{n}/rank-{r}-coord-0-{r}-trace.tar.gz" for n in (5, 10, 15, 20) for r in (0, 1)]
    found = sorted(p.relative_to(tmp_path / "traces").as_posix() for p in (tmp_path / "traces").rglob("*.tar.gz"))
    assert found == sorted(names)
    for name in names:
        with tarfile.open(fileobj=io.BytesIO((tmp_path / "traces" / name).read_bytes())) as archive:
            (member,) = archive.getmembers()
            assert member.name == name.split("/")[1].replace(".tar.gz", ".json")
            trace = json.load(archive.extractfile(member))
        # d9d's number counts the steps that are over.
        over = int(re.match(r"step_(\d+)", name)[1])
        assert steps_in(trace) == ([4] if over == 5 else [over - 2, over - 1])
        assert trace["record_shapes"] == trace["with_stack"] == 1
        assert trace[METADATA_KEY]["mesh"]["coordinate"] == [0, int(name.split("rank-")[1][0])]


def test_a_context_that_is_not_distributed_has_no_mesh(tmp_path):
    def refuses(domain):
        raise ValueError("not distributed")

    context = SimpleNamespace(mesh_for=refuses, mesh_params=SimpleNamespace(is_distributed=False))
    with Profiler(tmp_path / "a", dist_context=context, name_template="d9d", **SHORT) as prof:
        train(prof, 5)
    assert [p.relative_to(tmp_path / "a").as_posix() for p in (tmp_path / "a").rglob("*.tar.gz")] == [
        "step_4/rank-0-trace.tar.gz"
    ]
    context.mesh_params.is_distributed = True
    broken = Profiler(tmp_path / "b", dist_context=context, **SHORT)
    with pytest.warns(CaptureWarning, match="gives no mesh: ValueError: not distributed"), broken as prof:
        train(prof, 5)
    assert traces(tmp_path / "b") == ["rank0_iter2_3.trace.json.gz"]


def test_rotation_removes_folders_that_a_name_made(tmp_path):
    with Profiler(tmp_path, name_template="d9d", keep_windows=1, repeat=3, **SHORT) as prof:
        train(prof, 14)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("step_")] == ["step_12"]


# --- TensorBoard --------------------------------------------------------------------------------------------


def test_tensorboards_layout(tmp_path):
    with Profiler(tmp_path / "ours", name_template="tensorboard", **SHORT) as prof:
        train(prof, 5)
    schedule = torch.profiler.schedule(**SHORT, repeat=1)
    handler = torch.profiler.tensorboard_trace_handler(str(tmp_path / "theirs"), use_gzip=True)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, schedule=schedule, on_trace_ready=handler) as theirs:
        for _ in range(5):
            theirs.step()
    (ours,), (known,) = (list((tmp_path / who).glob("*.pt.trace.json.gz")) for who in ("ours", "theirs"))
    # Worker, nanoseconds since 1970, and the ending: equal but for the time.
    assert re.sub(r"\.\d{19}\.", ".", ours.name) == re.sub(r"\.\d{19}\.", ".", known.name)
    assert steps_in(read_trace(ours)) == [2, 3]


# --- torch --------------------------------------------------------------------------------------------------


def test_all_methods_of_torchs_profiler_exist():
    for name, member in inspect.getmembers(torch.profiler.profile):
        if not name.startswith("_"):
            assert hasattr(Profiler, name), name
            assert callable(getattr(Profiler, name)) == callable(member)
    for name in ("step_num", "current_action"):
        assert hasattr(torch.profiler.profile(), name)
        assert hasattr(Profiler(), name)


def test_after_waiting_for_exports_the_trace_is_there(tmp_path):
    prof = Profiler(tmp_path, **SHORT)
    prof.wait_for_exports()  # before anything was recorded
    prof.start()
    train(prof, 5)
    prof.wait_for_exports()
    assert steps_in(read_trace(tmp_path / "rank0_iter2_3.trace.json.gz")) == [2, 3]
    assert prof.take_pending_cuspy_export() is prof.take_pending_cupti_export() is None
    prof.stop()


def test_the_current_action_is_torchs(tmp_path):
    theirs = [torch.profiler.schedule(**SHORT, repeat=1)(step) for step in range(6)]
    ours = []
    with Profiler(tmp_path, **SHORT) as prof:
        for _ in range(6):
            ours.append(prof.current_action)
            train(prof, 1)
    assert ours == theirs


def test_torchs_methods_never_raise(tmp_path):
    with Profiler(tmp_path / "run", **SHORT) as prof:
        with pytest.warns(CaptureWarning, match="has written no trace"):
            prof.export_chrome_trace(str(tmp_path / "early.json"))
        train(prof, 3)
        prof.toggle_collection_dynamic(False, [torch.profiler.ProfilerActivity.CPU])
        prof.toggle_collection_dynamic(True, [torch.profiler.ProfilerActivity.CPU])
        train(prof, 2)
        with pytest.warns(CaptureWarning, match="rankscope analyze operators"):
            table = prof.key_averages(group_by_input_shape=True).table(sort_by="cpu_time_total", row_limit=5)
        assert table.startswith("rankscope analyze operators")
        with pytest.warns(CaptureWarning):
            assert prof.events() == []
        for name, given in {
            "export_stacks": ["x"],
            "export_memory_timeline": ["x"],
            "set_custom_trace_id_callback": [str],
            "prepare_trace": [],
            "start_trace": [],
            "stop_trace": [],
        }.items():
            with pytest.warns(CaptureWarning, match=name):
                getattr(prof, name)(*given)
        assert prof.get_trace_id() == prof.run_id
        prof.preset_metadata_json("late", "1")
    for target in ("copy.json", "copy.json.gz"):
        prof.export_chrome_trace(str(tmp_path / "new" / target))
        assert steps_in(read_trace(tmp_path / "new" / target)) == [2, 3]
    with pytest.warns(CaptureWarning, match="export_chrome_trace"):
        prof.export_chrome_trace("/proc/no/such")
    inert = Profiler(tmp_path / "run", ranks="none", **SHORT)
    with inert, pytest.warns(CaptureWarning):
        inert.key_averages().table()
        inert.export_chrome_trace(str(tmp_path / "x"))


# --- accelerators, by stand-ins: nothing here ran on one ----------------------------------------------------


class Accelerator:
    """A ``torch.xpu`` or ``torch.cuda`` that says that there is a device."""

    def __init__(self, **properties):
        self.properties = SimpleNamespace(**properties)

    def is_available(self):
        return True

    is_initialized = is_available

    def current_device(self):
        return 3

    def get_device_properties(self, index):
        assert index == 3
        return self.properties

    def memory_allocated(self):
        return 10

    def max_memory_allocated(self):
        return 20

    def memory_reserved(self):
        return 30


XPU = Accelerator(name="Intel(R) Data Center GPU Max 1550", total_memory=64 << 30, uuid="8680d60b")
ROCM = Accelerator(
    name="AMD Instinct MI300X", total_memory=192 << 30, uuid="u", pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0
)


@pytest.mark.parametrize(("kind", "module"), [("xpu", XPU), ("cuda", ROCM)])
def test_an_accelerator_is_recorded_and_described(tmp_path, monkeypatch, kind, module):
    kinds = torch.profiler.ProfilerActivity
    wanted = {"xpu": kinds.XPU, "cuda": kinds.CUDA}[kind]
    for name in ("xpu", "cuda"):
        monkeypatch.setattr(
            torch,
            name,
            module if name == kind else SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False),
        )
    if kind == "cuda":
        monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {kinds.CPU, wanted})
    real, asked = torch.profiler.profile, []

    def profile(*, activities, **options):
        asked.append(list(activities))
        return real(activities=[kinds.CPU], **options)

    monkeypatch.setattr(torch.profiler, "profile", profile)
    monkeypatch.setattr(environment, "numa_node_of", lambda pci: 1 if pci == "0000:c1:00.0" else None)
    with Profiler(tmp_path, **SHORT) as prof:
        train(prof, 5)
    # What the probe of the way records is its own affair: every recording of the job has both.
    assert asked[-1] == [kinds.CPU, wanted]
    said = TraceMetadata.from_json(read_trace(tmp_path / "rank0_iter2_3.trace.json.gz")[METADATA_KEY])
    device = said.device
    assert (device.type, device.name, device.index) == (kind, module.properties.name, 3)
    assert (device.total_memory, device.uuid) == (module.properties.total_memory, module.properties.uuid)
    assert (device.pci_bus_id, device.numa_node) == (("0000:c1:00.0", 1) if kind == "cuda" else (None, None))
    assert [said.memory[name] for name in ("allocated", "peak_allocated", "reserved")] == [10, 20, 30]
    assert said.versions.get("hip") == ("6.4.1" if kind == "cuda" else None)
    assert said.profiler["stop"] == "loop"
    assert read_rank_manifest(tmp_path / "ranks" / "rank0.json").device == device


def test_the_numa_node_of_a_device(tmp_path, monkeypatch):
    said = tmp_path / "numa_node"
    real = environment.Path
    monkeypatch.setattr(environment, "Path", lambda path: said if "0000:c1" in str(path) else real(path))
    for text, node in (("1\n", 1), ("-1\n", None), ("", None)):
        said.write_text(text)
        assert environment.numa_node_of("0000:C1:00.0") == node
    assert environment.numa_node_of(None) is None
    assert environment.numa_node_of("ffff:ff:1f.7") is None
