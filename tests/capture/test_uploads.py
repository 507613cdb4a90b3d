"""A run that is uploaded: what arrives, and what happens when the store does not work."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.ports import free_port

import rankscope
from rankscope.capture import uploads
from rankscope.errors import ConfigError, RankscopeError
from rankscope.jobs.gather import completeness, gather, parse_source
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, train

SHORT = {"wait": 0, "warmup": 1, "active": 1}
TRACE = "rank0_iter1_1.trace.json.gz"


class Unreliable(MemoryFileSystem):
    """A store that raises what is in ``errors``, one for each file that it is sent, and waits for ``answers``."""

    protocol = "unreliable"
    cachable = False
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    errors: ClassVar[list[Exception]] = []
    answers = threading.Event()

    def put_file(self, *arguments, **options):
        self.answers.wait(60)
        if self.errors:
            raise self.errors.pop(0)
        super().put_file(*arguments, **options)


@pytest.fixture(autouse=True)
def stores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setattr(Unreliable, "store", {})
    monkeypatch.setattr(Unreliable, "pseudo_dirs", [""])
    monkeypatch.setattr(Unreliable, "errors", [])
    monkeypatch.setattr(Unreliable, "answers", threading.Event())
    monkeypatch.setattr(uploads, "FIRST_PAUSE_S", 0.01)
    Unreliable.answers.set()
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)


def files(url: str) -> dict[str, bytes]:
    system, root = fsspec.core.url_to_fs(url)
    return {path[len(root) :].strip("/"): system.cat_file(path) for path in system.find(root)}


def manifest(profiler):
    return read_rank_manifest(Path(profiler.run_dir, "ranks", "rank0.json"))


def run(url: str, steps: int = 3, **options) -> rankscope.Profiler:
    with rankscope.Profiler(url, **{**SHORT, **options}) as profiler:
        train(profiler, steps)
    return profiler


def test_complete_files_arrive():
    profiler = run("unreliable://bucket/run")
    there = files("unreliable://bucket/run")
    assert sorted(there) == [TRACE, "ranks/rank0.json", "run.json"]
    assert {name: Path(profiler.run_dir, name).read_bytes() for name in there} == there
    assert (manifest(profiler).state, manifest(profiler).upload_to) == ("finished", "unreliable://bucket/run")
    assert [trace.uploaded for trace in manifest(profiler).written] == [True]
    assert rankscope.open("unreliable://bucket/run").ranks == [0]


def test_files_of_another_run_stay():
    first = run("unreliable://bucket/run")
    kept = files("unreliable://bucket/run")
    run("unreliable://bucket/run", run_id="second")
    there = files("unreliable://bucket/run")
    assert {name: there[name] for name in kept} == kept
    assert sorted(set(there) - set(kept)) == ["rank0_iter1_1.2.trace.json.gz", "ranks/rank0.2.json", "run.2.json"]
    assert Path(first.run_dir, TRACE).exists()


def test_what_fails_is_tried_again():
    Unreliable.errors += [OSError("reset by peer")] * 4
    profiler = run("unreliable://bucket/run")
    assert sorted(files("unreliable://bucket/run")) == [TRACE, "ranks/rank0.json", "run.json"]
    assert manifest(profiler).warnings == ()


def test_a_trace_that_failed_is_sent_when_the_store_answers_again(monkeypatch):
    monkeypatch.setattr(uploads, "RETRY_S", 0.0)
    Unreliable.errors += [OSError("no route to host")] * 4  # both manifests, the trace, and the manifest after it
    with pytest.warns(UserWarning, match="unreliable://bucket/run cannot be written: OSError: no route to host"):
        profiler = run("unreliable://bucket/run")
    assert TRACE in files("unreliable://bucket/run")
    assert [trace.uploaded for trace in manifest(profiler).written] == [True]


def test_a_store_that_never_works_costs_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setattr(Unreliable, "errors", [PermissionError("access denied")] * 99)
    with pytest.warns(UserWarning, match="access denied; everything remains in ") as warned:
        profiler = run("unreliable://bucket/run", 7, wait=1, repeat=2, keep_windows=1)
    assert len(warned) == 1
    # What is not uploaded is not rotated away either.
    assert [(trace.first_step, trace.uploaded) for trace in manifest(profiler).written] == [(2, False), (5, False)]
    assert "access denied" in manifest(profiler).warnings[0]
    gather(tmp_path / "all", [parse_source(profiler.run_dir)])
    assert completeness(tmp_path / "all").whole


def test_only_what_is_uploaded_is_rotated_away():
    profiler = run("unreliable://bucket/run", 7, wait=1, repeat=2, keep_windows=1)
    assert [trace.first_step for trace in manifest(profiler).written] == [5]
    assert {"rank0_iter2_2.trace.json.gz", "rank0_iter5_5.trace.json.gz"} < set(files("unreliable://bucket/run"))


def test_the_end_waits_within_its_limit():
    Unreliable.answers.clear()
    profiler = rankscope.Profiler("unreliable://bucket/run", **SHORT)
    profiler.start()
    train(profiler, 3)
    with pytest.warns(UserWarning, match="not everything was uploaded"):
        profiler.stop(timeout_s=0.5)
    Unreliable.answers.set()
    assert profiler._rank.uploads.finish(60)
    assert TRACE in files("unreliable://bucket/run")


def test_one_run_from_the_store_and_from_a_disk(tmp_path):
    profiler = run("unreliable://bucket/run")
    gather(tmp_path / "all", [parse_source("unreliable://bucket/run"), parse_source(profiler.run_dir)])
    assert completeness(tmp_path / "all").whole
    with pytest.raises(RankscopeError, match="unreliable://elsewhere: has no files"):
        gather(tmp_path / "all", [parse_source("unreliable://elsewhere")])
    with pytest.raises(RankscopeError, match="cannot be opened: Protocol not known: nonsense"):
        gather(tmp_path / "all", [parse_source("nonsense://elsewhere")])


def test_memory_of_the_process_is_no_store():
    with pytest.warns(UserWarning, match="in the memory of this process, and ends with it") as warned:
        profiler = run("memory://bucket/run")
    assert len(warned) == 1
    assert f"everything remains in {profiler.run_dir}" in str(warned[0].message)
    assert Path(profiler.run_dir, TRACE).exists()
    assert [trace.uploaded for trace in manifest(profiler).written] == [False]
    assert MemoryFileSystem.store == {}


def test_the_url_is_an_option_of_its_own():
    both = CaptureConfig.resolve({"save_dir": "here", "upload_to": "gs://b/run"}, {})
    assert (both.save_dir, both.upload_to) == ("here", "gs://b/run")
    by_variable = CaptureConfig.resolve({}, {"RANKSCOPE_RUN_DIR": "s3://b/run"})
    assert (by_variable.save_dir, by_variable.upload_to) == (None, "s3://b/run")
    with pytest.raises(ConfigError, match="both URLs"):
        CaptureConfig.resolve({"save_dir": "s3://b/run", "upload_to": "gs://b/run"}, {})
    with pytest.raises(ConfigError, match="'there' is not a URL"):
        CaptureConfig.resolve({"upload_to": "there"}, {})


JOB = """
import gc, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(8):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
del model
gc.collect()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_upload_to_an_s3_server(tmp_path):
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    access = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    environ = clean_environ() | access | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    (tmp_path / "job.py").write_text(JOB)

    def rankscope_says(*words):
        return subprocess.run(
            [sys.executable, "-m", "rankscope", *words], env=environ, capture_output=True, text=True, timeout=300
        )

    job = ["run", "--wait=1", "--warmup=1", "--nproc-per-node=2", "--run-dir=s3://bucket/a/run", "job.py"]
    try:
        bucket = "import s3fs; s3fs.S3FileSystem().mkdir('bucket')"
        subprocess.run([sys.executable, "-c", bucket], env=environ, check=True, timeout=300)
        done = rankscope_says(*job)
        assert done.returncode == 0, done.stderr
        assert "Uploaded to s3://bucket/a/run" in done.stderr, done.stderr
        shown = rankscope_says("summary", "s3://bucket/a/run")
        assert "ranks 0–1 of 2" in shown.stdout, shown
        brought = rankscope_says("gather", "all", "s3://bucket/a/run")
        assert "2 of 2 ranks" in brought.stdout, brought
    finally:
        server.stop()
