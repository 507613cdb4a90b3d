"""Hangs: our verdict and that of torch's `fr_trace` on the same dumps, case by case.

The real Gloo jobs of tests/answers/hang (one fault each, known from the script), and the two recorded NCCL hangs of
`flight-recorder/` (the ranks at fault from the publisher's log); of the same jobs with NCCL, the recorded dumps in
tests/answers/hang/nccl. `fr_trace` cannot read Gloo's dumps as torch 2.13
writes them, since their groups have no names; it gets the names put in, as pickles called `dump_RANK`. Its first three
statements are shown, of the number in brackets.

The seconds are from the threshold, the end of the time that a step may take on the first rank to notice, to the right
verdict, of a reader that looks again and again; where an exception is noticed before, from its dump.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.answers.hang.jobs import verdict_of
from tests.answers.hang.test_real_jobs import CASES
from tests.conftest import SHARED_TRACES

from rankscope.answers.hang import HangVerdict, read

RECORDED = ("gpu_error_1st", "lock_gil_1st")
NCCL = Path(__file__).parents[1] / "tests" / "answers" / "hang" / "nccl"
_STATEMENT = re.compile(
    r"Not all ranks joining collective, sequence number: \d+|group info: [^\n]*|missing ranks: [^\n]*|"
    r"Culprit rank [^\n]*|We cannot decide[^\n]*?\}\)|No errors found|Input/output mismatch[^\n]*"
)
_BEGINNING = re.compile(
    r"Not all ranks joining|Collective sequence number|We cannot decide|No errors found|Input/output"
)


def ours(verdict: HangVerdict) -> str:
    """Group, sequence number, ranks and cause."""
    place = verdict.collective
    where = f"{place.operation} {place.sequence} of group {place.group}" if place else "no collective"
    return f"{where}; ranks {list(verdict.culprits)}; {verdict.cause.value}"


def named_dumps(written: Path, folder: Path) -> int:
    """Write the Flight Recorders in rankscope's dumps as `fr_trace` needs them; how many there are."""
    count = 0
    for path in sorted(written.glob("rank?.json")):
        dump = json.loads(path.read_text())
        recorder = dump["flight_recorder"]
        for entry in recorder.get("entries", ()):
            entry["process_group"] = tuple(entry["process_group"])
            entry.setdefault("frames", [])
        if recorder.get("entries"):
            described = dict(entry["process_group"] for entry in recorder["entries"])
            recorder["pg_config"] = {
                group["name"]: {
                    "name": group["name"],
                    "desc": described.get(group["name"], group["description"]),
                    "ranks": str(group["ranks"]),
                }
                for group in dump["groups"]
            }
            (folder / f"dump_{dump['rank']}").write_bytes(pickle.dumps(recorder))
            count += 1
    return count


def fr_trace(folder: Path, prefix: str) -> str:
    """What torch's analyzer says."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "--prefix", prefix]
    done = subprocess.run([*command, "--allow-incomplete-ranks"], capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if done.returncode:
        return f"error: {text.splitlines()[-1]}"
    statements = _BEGINNING.split(text)
    heads = _BEGINNING.findall(text)
    shown = [" ".join(_STATEMENT.findall(head + rest)) for head, rest in zip(heads[:3], statements[1:4], strict=True)]
    return f"[{len(heads)}] " + " / ".join(shown)


def is_complete(case: str, verdict: HangVerdict) -> bool:
    """Whether the ranks have written what they can, and the verdict is the right one."""
    right = CASES[case]
    # A rank that is stopped, killed or ended by Gloo has no dump.
    dumps = right.ranks - (case in ("stopped", "killed", "size", "dtype", "no_store"))
    is_right = verdict.cause is right.cause and set(right.culprits) <= set(verdict.culprits)
    return is_right and (right.group is None or verdict.collective is not None) and verdict.dumps >= dumps


def _is_complete_at(case: str, at: list[float], verdict: HangVerdict) -> bool:
    found = is_complete(case, verdict)
    if found:
        at.append(time.time())
    return found


def noticed_at(run: Path, limit_s: float) -> float:
    """When the first rank had noticed that the job hangs, seconds since 1970."""
    found = []
    for path in (run / "hang").glob("rank?.json"):
        dump = json.loads(path.read_text())
        waited = dump["since_step_ns"] / 1e9 - limit_s if dump["reason"].startswith("no step") else 0.0
        found.append(dump["time_ns"] / 1e9 - waited)
    return min(found)


def main(cases: Sequence[str] = tuple(CASES)) -> None:
    for case in RECORDED:
        folder = SHARED_TRACES / "flight-recorder" / case
        if folder.is_dir():
            begin = time.perf_counter()
            verdict = read(folder)
            seconds = time.perf_counter() - begin
            print(
                f"{case}: ours ({seconds:.2f} s): {ours(verdict)}\n  fr_trace: {fr_trace(folder, '_dump_')}", flush=True
            )
    for written in sorted(NCCL.iterdir()):
        with tempfile.TemporaryDirectory() as made:
            named_dumps(written, Path(made))
            print(f"{written.name} (NCCL): ours: {ours(read(written))}\n  fr_trace: {fr_trace(Path(made), 'dump_')}")
    seconds_of: dict[str, float] = {}
    for case in cases:
        right = CASES[case]
        with tempfile.TemporaryDirectory() as made:
            run, dumps = Path(made, "run"), Path(made, "dumps")
            dumps.mkdir()

            said_at: list[float] = []
            verdict = verdict_of(case, run, right.ranks, partial(_is_complete_at, case, said_at))
            # As in the job's script.
            limit_s = 15.0 if case == "no_store" else 6.0
            seconds_of[case] = said_at[0] - noticed_at(run, limit_s) if said_at else float("nan")
            wanted = f"ranks {list(right.culprits)}; {right.cause.value}"
            count = named_dumps(run / "hang", dumps)
            other = fr_trace(dumps, "dump_") if count else "no dump of the Flight Recorder"
            took = f"{seconds_of[case]:.1f} s"
            print(
                f"{case} (right: {wanted}): ours ({took}): {ours(verdict)}\n  fr_trace ({count} dumps): {other}",
                flush=True,
            )
            shutil.rmtree(run, ignore_errors=True)
    known = [each for each in seconds_of.values() if not math.isnan(each)]
    count = f"{len(known)} of {len(cases)}"
    print(f"to the verdict: mean {statistics.fmean(known):.1f} s, at most {max(known):.1f} s, {count}")


if __name__ == "__main__":
    main(sys.argv[1:] or tuple(CASES))
