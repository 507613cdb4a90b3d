"""Local times on the device, against simulated jobs whose local times are given."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from rankscope.answers.watch.device_times import NO_COLLECTIVES, device_times
from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import read_status, significance_of
from rankscope.primitives.statistics import Significance
from rankscope.rundir.watch_files import SCHEMA_VERSION, Header, log_folder, to_json

MS = 10**6
START = 1_700_000_000 * 10**9
FORWARD, BACKWARD, OPTIMIZER, TRANSFER = 20 * MS, 30 * MS, 5 * MS, MS


def write(
    run_dir, *, ranks=4, steps=60, slow=None, forward_calls=0, timed=True, calls=True, marked=True, loading=2 * MS
):
    """Logs of a DDP job, or with ``forward_calls`` also a tensor-parallel one; returns (ranks, steps) local times.

    The hosts run ahead: they call all that they call in the first tenth of a step.
    """
    slow = slow or (lambda _rank, _step, _place: 0)
    rng = random.Random(1)
    lines = [[] for _ in range(ranks)]
    made = [[] for _ in range(ranks)]
    truth = np.zeros((ranks, steps), dtype=np.int64)
    began, sequence, now = START, 0, [0] * ranks

    def own(step, place, ns):
        return [max(round(rng.gauss(ns, MS / 10)), 1000) + slow(rank, step, place) for rank in range(ranks)]

    for step in range(steps):
        load, forward, backward, optimizer = (
            own(step, place, ns)
            for place, ns in (
                ("loading", loading), ("forward", FORWARD), ("backward", BACKWARD), ("optimizer", OPTIMIZER)
            )
        )  # fmt: skip
        begin, waits = list(now), [0] * ranks
        for r in range(ranks):
            now[r] += load[r]
        for part in range(forward_calls):
            arrived = [now[r] + forward[r] // forward_calls for r in range(ranks)]
            now = [max(arrived) + TRANSFER] * ranks
            for r in range(ranks):
                made[r].append((0, sequence, began + 1000 * part, now[r] - arrived[r]))
                waits[r] += max(arrived) - arrived[r] + TRANSFER
            sequence += 1
        if not forward_calls:
            now = [now[r] + forward[r] for r in range(ranks)]
        ends = [now[r] + backward[r] for r in range(ranks)]
        release = max(ends) + TRANSFER
        for r in range(ranks):
            made[r].append((1, step + 1, began + 4 * MS, release - ends[r]))
            total = release + optimizer[r] - begin[r]
            truth[r, step] = total - waits[r] - (release - ends[r])
            device = {
                "device_ns": total,
                "device_forward_ns": now[r] - begin[r],
                "device_backward_ns": backward[r] if marked else release - now[r],
                "device_waiting_ns": release - ends[r],
                "device_optimizer_ns": optimizer[r],
            }
            if not marked:
                del device["device_waiting_ns"]
            host = {
                "step": step, "start_ns": began, "ns": 80 * MS, "loading_ns": load[r], "forward_ns": MS,
                "backward_ns": 3 * MS, "optimizer_ns": MS, "backward_end_ns": 6 * MS,
            }  # fmt: skip
            lines[r].append(host | device)
        now = [release + optimizer[r] for r in range(ranks)]
        began += 80 * MS
    for r in range(ranks):
        header = Header(
            SCHEMA_VERSION, r, run_id="one", world_size=ranks, host="a", pid=r + 1, began_ns=START, device="CUDA",
            has_all_calls=True,
        )  # fmt: skip
        folder = log_folder(run_dir, r, ranks)
        folder.mkdir(parents=True, exist_ok=True)
        text = [to_json(header)]
        for number, group in enumerate(("0", "1")):
            text.append(json.dumps({"group": group, "ranks": f"0-{ranks - 1}"}))
            text.append(json.dumps({"kind": number, "group": group, "op": "allreduce", "dtype": "float32", "bytes": 8}))
        text += map(json.dumps, lines[r])
        if calls:
            end = (1, steps + 1, began, 1)  # the next step has begun
            rows = [
                [kind, 1 + number, (at - START) // 1000, *([ns // 1000] if timed else [])]
                for kind, number, at, ns in sorted([*made[r], end], key=lambda call: call[2])
            ]
            text.append(json.dumps({"calls": rows, "base_ns": START}))
        (folder / f"rank{r}.jsonl").write_text("\n".join(text) + "\n")
    return truth


def delay(rank, place, ns=6 * MS):
    return lambda r, _step, p: ns if (r, p) == (rank, place) else 0


@pytest.mark.parametrize("place", ["", "loading", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("forward_calls", [0, 4])
def test_local_times_are_those_that_were_given(tmp_path, place, forward_calls):
    truth = write(tmp_path, slow=delay(1, place), forward_calls=forward_calls)
    found = device_times(WatchLogs(tmp_path).latest(), 1000)
    assert found.basis == "device"
    columns = found.steps.tolist()
    assert len(columns) >= 58
    assert np.abs(found.local_ns - truth[:, columns]).max() <= 1000 * (forward_calls + 1)


@pytest.mark.parametrize("place", ["loading", "forward", "backward", "optimizer"])
def test_the_straggler_and_its_phase_without_timed_kernels(tmp_path, place):
    write(tmp_path, slow=delay(2, place), timed=False)
    status = read_status(tmp_path, WatchLogs(tmp_path))
    (late,) = status.late_ranks
    assert late.rank == 2
    assert late.phase == ("data loading" if place == "loading" else place)
    assert late.found.excess_ns == pytest.approx(6 * MS, rel=0.05)
    assert [each.waiting_ns > 4 * MS for each in status.rank_times] == [True, True, False, True]


def test_the_straggler_where_ranks_wait_in_the_forward_pass(tmp_path):
    write(tmp_path, slow=delay(3, "forward"), forward_calls=4)
    status = read_status(tmp_path, WatchLogs(tmp_path))
    (late,) = status.late_ranks
    assert (late.rank, late.phase) == (3, None)
    arrivals = {each.group: each for each in status.last_arrivals}
    assert arrivals["0"].rank == 3
    assert arrivals["0"].share > 0.9


def test_nobody_is_accused_without_a_straggler(tmp_path):
    write(tmp_path)
    status = read_status(tmp_path, WatchLogs(tmp_path))
    assert not status.late_ranks
    assert significance_of(status) is Significance.NOT_SIGNIFICANT


def rewritten(run_dir, change):
    """Change each line of the logs."""
    for path in (run_dir / "watch").rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rank = lines[0]["rank"]
        path.write_text("\n".join(json.dumps(change(rank, line) or line) for line in lines) + "\n")


def with_call(at_us, kind, numbers, *timed):
    """A change that adds a collective to each step."""

    def change(_rank, line):
        if "calls" in line:
            more = [[kind, numbers + step, 80_000 * step + at_us, *timed] for step in range(60)]
            line["calls"] = sorted([*line["calls"], *more], key=lambda call: call[2])

    return change


def test_a_call_after_ddp_s_backward_pass_does_not_double_the_delay(tmp_path):
    write(tmp_path, slow=delay(1, "forward"))
    rewritten(tmp_path, with_call(20_000, 1, 1000, 100))
    (late,) = read_status(tmp_path, WatchLogs(tmp_path)).late_ranks
    assert late.rank == 1
    assert late.found.excess_ns == pytest.approx(6 * MS, rel=0.05)


def test_a_group_without_timed_kernels_is_named(tmp_path):
    write(tmp_path, slow=delay(3, "forward"), forward_calls=4)
    rewritten(tmp_path, with_call(20_000, 1, 1000))
    rewritten(tmp_path, with_call(21_000, 1, 2000))
    unknown = read_status(tmp_path, WatchLogs(tmp_path)).unknown
    assert "(group 1)" in unknown
    assert "with NCCL set" in unknown


def test_gradients_that_a_job_reduces_by_itself_are_unknown(tmp_path):
    """It waits for the collectives after the backward pass: no rank waits at its end."""
    write(tmp_path, slow=delay(2, "forward"), timed=False)

    def waits_later(_rank, line):
        if "device_waiting_ns" in line:
            line["device_waiting_ns"] = 1000

    rewritten(tmp_path, waits_later)
    assert "where ranks wait" in read_status(tmp_path, WatchLogs(tmp_path)).unknown


def test_a_slow_network_is_no_work_of_its_ranks(tmp_path):
    """Two groups of two ranks; the second one's transfers take 5 ms longer."""
    write(tmp_path, forward_calls=4)

    def slower(rank, line):
        groups = {0: "0", 1: "0", 2: "2", 3: "2"}
        if "kind" in line and line["group"] == "0":
            line["group"] = groups[rank]
        if "group" in line and "ranks" in line and line["group"] == "0":
            line.update(group=groups[rank], ranks="0-1" if rank < 2 else "2-3")
        if "device_forward_ns" in line and rank > 1:
            for name in ("device_ns", "device_forward_ns"):
                line[name] += 20 * MS
        if "calls" in line and rank > 1:
            line["calls"] = [[*call[:3], call[3] + 5000] if call[0] == 0 else call for call in line["calls"]]

    rewritten(tmp_path, slower)
    status = read_status(tmp_path, WatchLogs(tmp_path))
    assert not status.late_ranks
    assert not status.unknown


def test_where_collectives_take_longer_than_the_step_it_is_unknown(tmp_path):
    write(tmp_path, forward_calls=4)

    def longer(_rank, line):
        if "calls" in line:
            line["calls"] = [[*call[:3], call[3] + 30_000] if call[0] == 0 else call for call in line["calls"]]

    rewritten(tmp_path, longer)
    assert "overlap" in read_status(tmp_path, WatchLogs(tmp_path)).unknown


def test_without_timed_kernels_blocking_collectives_are_unknown(tmp_path):
    write(tmp_path, slow=delay(3, "forward"), forward_calls=4, timed=False)
    status = read_status(tmp_path, WatchLogs(tmp_path))
    assert not status.late_ranks
    assert "outside of the backward pass (group 0)" in status.unknown
    assert "TORCH_NCCL_ENABLE_TIMING=1" in status.unknown


def test_without_collectives_or_the_end_of_the_backward_pass_it_is_unknown(tmp_path):
    write(tmp_path / "a", calls=False)
    assert device_times(WatchLogs(tmp_path / "a").latest(), 100) == NO_COLLECTIVES
    write(tmp_path / "b", marked=False)
    assert "when the backward pass itself ended" in device_times(WatchLogs(tmp_path / "b").latest(), 100)


def test_logs_of_other_devices_are_unknown(tmp_path):
    write(tmp_path)
    for path in (tmp_path / "watch").rglob("*.jsonl"):
        path.write_text(path.read_text().replace('"device_ns"', '"another"'))
    assert "no times of the devices" in device_times(WatchLogs(tmp_path).latest(), 100)
