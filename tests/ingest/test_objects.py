"""Runs behind URLs: what is read equals what is on disk, whatever the store does meanwhile."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import fsspec
import polars as pl
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.analyses.reference import write_reference
from tests.kineto import small_step, trace, write, write_ranks
from tests.ports import free_port

import rankscope
from rankscope.engine.pipeline import load
from rankscope.engine.pipeline.run import Run
from rankscope.errors import NoTracesError, RankscopeError, without_credentials
from rankscope.ingest.discover import find_traces
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.manifest import LostWindow, RankManifest, RunManifest, to_json
from rankscope.store import objects
from rankscope.store.cache import Cache
from rankscope.store.key import trace_key

SECRET = "s3cr3tSignature"
BUCKET = "s3://bucket/run"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "FIRST_PAUSE_S", 0.0)


# -- S3 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file system of a bucket in a server of its own."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    # What it stores outlives the server, in this process.
    reset = Request(f"http://{host}:{port}/moto-api/reset", method="POST")
    urlopen(reset).close()
    try:
        system = s3fs.S3FileSystem()
        system.mkdir("bucket")
        yield system
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        urlopen(reset).close()
        server.stop()


def opened(source: str | Path) -> Run:
    return rankscope.open(str(source), executor="serial")


def without_place(run: Run, place: str) -> list[str]:
    return [str(finding.to_json()).replace(place, "") for finding in run.diagnose()]


def test_a_run_in_a_bucket_gives_what_its_directory_gives(s3: Any, tmp_path: Path) -> None:
    folder = write_reference(tmp_path / "run")
    s3.put(f"{folder}/", "bucket/run/", recursive=True)
    here, there = opened(folder), opened(BUCKET)
    names = ["kernels", "collectives", "stragglers", "step_time"]
    for name, result in here.analyze(*names).items():
        assert there.analyze(name)[name].frame.equals(result.frame), name
    assert without_place(there, BUCKET) == without_place(here, str(folder))
    assert there.name == "run"
    assert there.path == BUCKET


def test_manifests_in_a_bucket_are_read(s3: Any, tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()}, rankscope={"run_id": "r"})
    write_atomic(folder / "run.json", to_json(RunManifest(run_id="r", ranks=(0, 1, 2))))
    lost = LostWindow(1, 2, "the disk is full")
    write_atomic(folder / "ranks" / "rank0.json", to_json(RankManifest(run_id="r", rank=0, failed=(lost,))))
    s3.put(f"{folder}/", "bucket/run/", recursive=True)
    here, there = opened(folder), opened(BUCKET)
    assert here.manifest is not None
    assert there.manifest == here.manifest
    assert len(here.loaded.rank_manifests) == 1
    assert there.loaded.rank_manifests == here.loaded.rank_manifests
    assert without_place(there, BUCKET) == without_place(here, str(folder))


def test_an_object_is_read_again_only_if_its_etag_changes(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    s3.put(f"{folder}/", "bucket/run/", recursive=True)
    read: list[str] = []
    ingest = load.ingest_trace
    monkeypatch.setattr(load, "ingest_trace", lambda path, *rest: read.append(path) or ingest(path, *rest))
    opened(BUCKET).load()
    assert read == [f"{BUCKET}/rank0.json", f"{BUCKET}/rank1.json"]
    read.clear()
    opened(BUCKET).load()
    assert read == []
    write(folder / "rank1.json", trace(small_step(waiting=10), rank=1, world_size=2))
    s3.put_file(str(folder / "rank1.json"), "bucket/run/rank1.json")
    s3.invalidate_cache()
    opened(BUCKET).load()
    assert read == [f"{BUCKET}/rank1.json"]


def test_a_listing_and_a_question_for_one_object_give_the_same_key(s3: Any, tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", {0: small_step()})
    s3.put(f"{tmp_path}/run/", "bucket/run/", recursive=True)
    found = find_traces(BUCKET)
    (url,) = found.traces
    s3.invalidate_cache()
    assert trace_key(url, found.objects[url]) == trace_key(url)


@pytest.mark.slow
def test_listings_of_several_pages_are_complete(s3: Any) -> None:
    names = [f"rank{rank}.json" for rank in range(1_010)]  # a page has a thousand
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: s3.pipe_file(f"bucket/run/{name}", b"[]"), names))
    s3.invalidate_cache()
    found = find_traces(BUCKET)
    assert found.traces == [f"{BUCKET}/{name}" for name in names]
    assert list(found.objects) == [f"{BUCKET}/{name}" for name in sorted(names)]


def test_a_bucket_without_access_is_an_error_without_the_credentials(s3: Any) -> None:
    with pytest.raises(NoTracesError) as raised:
        find_traces("s3://no-such-bucket/run")
    assert SECRET not in str(raised.value)


def test_a_run_and_its_cache_in_buckets(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    s3.put(f"{folder}/", "bucket/run/", recursive=True)
    wanted = opened(folder).kernels()
    monkeypatch.setenv("RANKSCOPE_CACHE", "s3://bucket/cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    assert opened(BUCKET).kernels().equals(wanted)
    s3.invalidate_cache()
    kinds = sorted(name.rpartition(".")[2] for name in s3.find("bucket/cache"))
    assert kinds == ["json", "json", "parts", "parts", "tar", "tar"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    monkeypatch.setattr(load, "ingest_trace", lambda *_: pytest.fail("read again"))
    assert opened(BUCKET).kernels().equals(wanted)


# -- HTTP ----------------------------------------------------------------------------------------------------------


class Files(BaseHTTPRequestHandler):
    """Files without ranges; those in ``breaks`` end too early so many times, and those in ``hangs`` never come."""

    files: ClassVar[dict[str, bytes]] = {}
    breaks: ClassVar[dict[str, int]] = {}
    hangs: ClassVar[set[str]] = set()
    closing = threading.Event()
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        name = self.path.partition("?")[0]
        self.asked.append(self.path)
        if name in self.hangs:
            self.closing.wait(60)
            return
        content = self.files.get(name)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash(content)}"')
        self.end_headers()
        if with_body and self.breaks.get(name, 0) > 0:
            self.breaks[name] -= 1
            self.wfile.write(content[: len(content) // 2])
        elif with_body:
            self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        """Print nothing."""


@pytest.fixture
def http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with two ranks' traces; waits of 0.3 s are too long."""
    pytest.importorskip("aiohttp")
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    monkeypatch.setattr(Files, "files", {f"/{file.name}": file.read_bytes() for file in folder.iterdir()})
    monkeypatch.setattr(Files, "breaks", {})
    monkeypatch.setattr(Files, "hangs", set())
    monkeypatch.setattr(Files, "asked", [])
    monkeypatch.setattr(Files, "closing", threading.Event())
    monkeypatch.setattr(objects, "HTTP_LIMIT_S", 0.3)
    fsspec.get_filesystem_class("http").clear_instance_cache()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        Files.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
        fsspec.get_filesystem_class("http").clear_instance_cache()


def both(http: str, query: str = "") -> list[str]:
    return [f"{http}/rank{rank}.json{query}" for rank in (0, 1)]


def test_a_connection_that_breaks_is_continued(http: str, tmp_path: Path) -> None:
    Files.breaks["/rank1.json"] = objects.ATTEMPTS - 1
    there = rankscope.open(both(http), executor="serial")
    assert there.kernels().equals(opened(tmp_path / "run").kernels())
    assert Files.breaks["/rank1.json"] == 0
    assert [finding for finding in there.findings if finding.id == "unreadable-file"] == []


def test_an_object_that_always_times_out_is_named_once_and_the_others_are_analyzed(http: str) -> None:
    Files.hangs.add("/rank1.json")
    run = rankscope.open(both(http), executor="serial")
    assert run.ranks == [0]
    assert run.kernels().height
    named = [finding for finding in run.diagnose() if "rank1.json" in str(finding.to_json())]
    assert len(named) == 1
    assert "Timeout" in str(named[0].to_json())


def test_credentials_in_a_url_are_used_and_appear_nowhere(http: str) -> None:
    query = f"?X-Amz-Signature={SECRET}&part=1"
    good, bad = both(http, query)
    Files.files.pop("/rank1.json")
    run = rankscope.open([good, bad], executor="serial")
    shown = [str(run.traces), *(str(finding.to_json()) for finding in run.diagnose()), run.path, repr(run)]
    assert SECRET not in "".join(shown)
    assert any(query in path for path in Files.asked)
    kept = [file for file in Cache().root.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert kept == []
    with pytest.raises(RankscopeError) as raised:
        rankscope.open(f"{http.replace('//', f'//user:{SECRET}@')}/nothing.json?sig={SECRET}", executor="serial").load()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("https://me:pass@host/a", "https://<redacted>@host/a"),
        ("https://host/a?X-Amz-Signature=abc&x=1", "https://host/a?X-Amz-Signature=<redacted>&x=1"),
        ("https://a.blob.host/c?sv=2024&sig=a%2Fb", "https://a.blob.host/c?sv=2024&sig=<redacted>"),
        ("GET 'https://h/a?access_token=t' failed", "GET 'https://h/a?access_token=<redacted>' failed"),
        ("a?token=1", "a?token=1"),
    ],
)
def test_credentials_are_cut_from_urls(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


# -- any store ------------------------------------------------------------------------------------------------------


class Flaky(MemoryFileSystem):
    """A store that fails as often as ``failures`` says, whatever it is asked for."""

    protocol = "flaky"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures: ClassVar[list[Exception]] = []

    def _maybe_fail(self) -> None:
        if self.failures:
            raise self.failures.pop()

    def _open(self, *arguments: Any, **options: Any) -> Any:
        self._maybe_fail()
        return super()._open(*arguments, **options)

    def find(self, *arguments: Any, **options: Any) -> Any:
        self._maybe_fail()
        return super().find(*arguments, **options)


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Flaky, "store", {})
    monkeypatch.setattr(Flaky, "pseudo_dirs", [""])
    monkeypatch.setattr(Flaky, "failures", [])
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    system, root = fsspec.core.url_to_fs("flaky://bucket")
    for file in folder.iterdir():
        system.pipe_file(f"{root}/{file.name}", file.read_bytes())
    return "flaky://bucket"


def test_a_store_that_fails_now_and_then_is_asked_again(flaky: str) -> None:
    Flaky.failures += [OSError("slow down"), TimeoutError()]
    assert len(find_traces(flaky).traces) == 2
    Flaky.failures += [OSError("slow down"), TimeoutError()]
    assert opened(flaky).ranks == [0, 1]


def test_a_store_that_always_fails_is_an_error(flaky: str) -> None:
    Flaky.failures += [OSError("slow down")] * objects.ATTEMPTS
    with pytest.raises(NoTracesError, match="slow down"):
        find_traces(flaky)


def test_frames_are_the_same_from_any_store(flaky: str, tmp_path: Path) -> None:
    here, there = opened(tmp_path / "run").kernels(), opened(flaky).kernels()
    assert isinstance(here, pl.DataFrame)
    assert there.equals(here)


# -- bad input among many ranks --------------------------------------------------------------------------------------


def test_a_run_with_bad_objects_is_analyzed_and_each_is_named_once(http: str, tmp_path: Path) -> None:
    """Of 16 ranks, one is cut, one is missing, two are there twice, and one never comes."""
    folder = write_ranks(tmp_path / "many", {rank: small_step() for rank in range(16)}, rankscope={"run_id": "r"})
    Files.files = {f"/{file.name}": file.read_bytes() for file in folder.iterdir()}
    content = Files.files["/rank3.json"]
    Files.files["/rank3.json"] = content[: len(content) * 2 // 3]
    del Files.files["/rank7.json"]
    for rank in (4, 9):
        Files.files[f"/rank{rank}.2.json"] = Files.files[f"/rank{rank}.json"]
    Files.hangs.add("/rank11.json")
    run = rankscope.open([f"{http}{name}" for name in Files.files], executor="serial")
    assert run.ranks == [rank for rank in range(16) if rank not in (7, 11)]
    assert run.kernels()["rank"].unique().sort().to_list() == run.ranks
    titles = {finding.title: finding.id for finding in run.diagnose()}

    def named(file: str) -> list[str]:
        return [id_of for title, id_of in titles.items() if re.search(rf"(^|[/ ]){file}(?![.\w])", title)]

    assert named("rank3.json") == ["trace-truncated"]
    assert named("rank11.json") == ["trace-unreadable"]
    assert [named(f"rank{rank}.json") for rank in (4, 9)] == [["rank-conflict"]] * 2
    (missing,) = [finding for finding in run.findings if finding.id == "missing-ranks"]
    assert missing.ranks == (7, 11)
