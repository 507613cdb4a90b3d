"""Manifests: read back as written, odd fields keep their defaults, no secret in them."""

from __future__ import annotations

import pytest

from rankscope.rundir.atomic import overwrite, write_atomic
from rankscope.rundir.manifest import (
    LostWindow,
    RankManifest,
    RunManifest,
    WrittenTrace,
    read_rank_manifest,
    read_run_manifest,
    redact,
    shortened,
    to_json,
)
from rankscope.rundir.metadata import Device, Mesh


def test_both_are_read_back(tmp_path):
    run = RunManifest(run_id="a", command=("python", "x"), world_size=2, mesh=Mesh(("dp",), (2,), (0,)), started_ns=5)
    rank = RankManifest(
        run_id="a",
        rank=1,
        device=Device("cpu"),
        written=(WrittenTrace("rank1_iter1_2.trace.json", 1, 2, 10, 100, 7),),
        skipped=(LostWindow(3, 4, "why"),),
        warnings=("careful",),
    )
    write_atomic(tmp_path / "run.json", to_json(run))
    write_atomic(tmp_path / "ranks" / "rank1.json", to_json(rank))
    assert read_run_manifest(tmp_path / "run.json") == run
    assert read_rank_manifest(tmp_path / "ranks" / "rank1.json") == rank
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["rank1.json", "ranks", "run.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_manifest_is_none(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    assert read_run_manifest(tmp_path / "run.json") is None
    assert read_run_manifest(tmp_path / "absent.json") is None


def test_odd_fields_keep_their_defaults(tmp_path):
    (tmp_path / "r.json").write_bytes(
        b'{"rank": -1, "written": [{"file": 3}, {"file": "a", "bytes": "x"}], "state": 7}'
    )
    manifest = read_rank_manifest(tmp_path / "r.json")
    assert manifest is not None
    assert (manifest.rank, manifest.state, manifest.written) == (None, "running", (WrittenTrace("a"),))


def test_redact():
    given = [
        "train.py", "--lr", "0.1", "--token", "abc", "--hf-token=def", "WANDB_API_KEY=ghi", "--apiKey", "jkl",
        "--password=mno", "--max-tokens", "100", "--tokenizer", "gpt2", "--url", "https://me:pw@host/x",
        "hf_abcdefghijkl", "--secret", "--steps", "5", "model.auth_token=x", "--header", "Authorization: Bearer q1w2",
    ]  # fmt: skip
    kept = redact(given)
    text = " ".join(kept)
    for secret in ("abc", "def", "ghi", "jkl", "mno", "me:pw", "q1w2", "auth_token=x"):
        assert secret not in text
    for plain in ("--lr 0.1", "--max-tokens 100", "--tokenizer gpt2", "@host/x", "--steps 5", "train.py"):
        assert plain in text
    assert len(kept) == len(given)


def test_a_manifest_in_the_place_of_a_shorter_one(tmp_path):
    lost = tuple(LostWindow(n, n + 1, f"OSError: [Errno 28] {n}") for n in range(100))
    manifest = RankManifest("r", 3, state="interrupted", ended_by="SIGTERM", failed=lost, environment={"a": "b" * 9999})
    path = tmp_path / "rank3.json"
    for size in (100_000, 2000, 600):
        text = shortened(manifest, size)
        assert text is not None
        path.write_bytes(b"x" * size)
        assert overwrite(path, text)
        assert path.stat().st_size == size
        known = read_rank_manifest(path)
        assert known is not None
        assert (known.rank, known.state, known.ended_by) == (3, "interrupted", "SIGTERM")
        # The latest are kept.
        assert known.failed == lost[len(lost) - len(known.failed) :]
        assert known.failed or size < 2000
    assert shortened(manifest, 50) is None
    assert not overwrite(path, b" " * 601)
