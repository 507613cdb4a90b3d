"""Parts of a run, as hosts' disks hold them after a job."""

from __future__ import annotations

from pathlib import Path

from rankscope.rundir.manifest import (
    RankManifest,
    RunManifest,
    WrittenTrace,
    to_json,
)


def part(folder: Path, ranks: tuple[int, ...], *, world_size: int = 4, run_id: str = "r1", host: str = "h0") -> Path:
    """What one host's disk holds after a job: its ranks' traces and manifests; rank 0's host has the run's."""
    (folder / "ranks").mkdir(parents=True)
    for rank in ranks:
        name = f"rank{rank}_iter3_4.trace.json.gz"
        (folder / name).write_bytes(f"trace of {rank} in {run_id}".encode() * 100)
        written = WrittenTrace(name, 3, 4, (folder / name).stat().st_size)
        (folder / "ranks" / f"rank{rank}.json").write_bytes(
            to_json(
                RankManifest(
                    run_id, rank, world_size=world_size, local_rank=rank % 2, host=host, pid=100 + rank,
                    state="finished", steps=9, written=(written,),
                )
            )
        )  # fmt: skip
    if 0 in ranks:
        (folder / "run.json").write_bytes(to_json(RunManifest(run_id, world_size=world_size, ranks="all")))
    (folder / ".rank9.tmp").write_text("what a process that died left")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def seen(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in contents(folder).items() if not path.startswith(".")}


# Every way there is: rsync and copies of this machine, rsync and scp by a shell that only pretends to go elsewhere.
