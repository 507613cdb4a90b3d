"""How ranks agree on a window to record: simulated ranks that share a list, and lists in a store and in files."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
import torch.distributed as dist

from rankscope.capture.process import Process
from rankscope.capture.votes import BUSY, OTHER_PROFILER, SKIP_LEAD_STEPS
from rankscope.capture.watch import requests
from rankscope.capture.watch.board import FileBoard, LocalBoard, StoreBoard
from rankscope.capture.watch.requests import (
    MOST_STEPS,
    TRIES,
    Pace,
    Planned,
    Requests,
    automatic_request,
    reads_files,
)
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.schedule import Window, WindowPlan, windows
from rankscope.rundir.watch_files import Request, answer_path, read_answer, request_path, write_request

PACE = Pace(100, 100_000_000)


def ranks(tmp_path, number=2, schedule=()):
    return [Requests(str(tmp_path), rank, rank, 2, lambda: schedule, reach_s=3.0) for rank in range(number)]


def test_all_ranks_get_the_same_window_far_enough_ahead(tmp_path):
    board, (one, other) = LocalBoard(), ranks(tmp_path)
    one.add(Request("a", 3))
    (planned,) = one.agree(board, PACE)
    # Three seconds are thirty steps, and the votes come before the warm-up.
    assert planned.window == Window(135, 137, 139, requested=True)
    assert planned.window.warmup - PACE.step >= 30 + SKIP_LEAD_STEPS
    assert other.agree(board, Pace(101, 90_000_000)) == [planned]
    assert one.agree(board, PACE) == other.agree(board, PACE) == []


def test_one_rank_of_a_host_reads_requests_and_others_if_theirs_is_another_directory(tmp_path):
    processes = [Process(rank, 4, rank % 2, "host", "torchrun", None, 0, None) for rank in range(4)]
    assert [reads_files(each, str(tmp_path)) for each in processes] == [True] * 4
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank2.json").touch()
    assert [reads_files(each, str(tmp_path)) for each in processes] == [True, True, True, False]


def test_a_rank_that_is_not_chosen_follows_the_list_without_recording(tmp_path):
    board, (one, other) = LocalBoard(), ranks(tmp_path)
    one.add(Request("a", 1, ranks="1"))
    assert one.agree(board, PACE) == []
    assert [each.request.id for each in other.agree(board, PACE)] == ["a"]


def test_two_requests_at_once_get_windows_one_after_the_other(tmp_path):
    board, (one, other) = LocalBoard(), ranks(tmp_path)
    one.add(Request("a", 3))
    other.add(Request("b", 2))
    first = one.agree(board, PACE)
    second = other.agree(board, PACE)
    assert [each.request.id for each in second] == ["a", "b"]
    assert first + one.agree(board, PACE) == second
    assert second[1].window.warmup > second[0].window.last + SKIP_LEAD_STEPS


def test_a_request_that_two_ranks_have_read_is_recorded_once(tmp_path):
    board, everyone = LocalBoard(), ranks(tmp_path)
    write_request(tmp_path, Request("same", 3))
    for rank in everyone:
        rank.look_for_files()
    found = [each for rank in everyone for each in rank.agree(board, PACE)]
    assert len(found) == 2
    assert found[0] == found[1]
    assert read_answer(answer_path(tmp_path, "same")).first_step == found[0].window.first
    for rank in ranks(tmp_path):  # a restart
        rank.look_for_files()
        assert rank.agree(LocalBoard(), PACE) == []


def test_a_rank_that_cannot_write_the_answer_records_all_the_same(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError("no space left on device")

    board, (one, other) = LocalBoard(), ranks(tmp_path)
    write_request(tmp_path, Request("a", 3))
    monkeypatch.setattr(requests, "write_atomic", full)
    one.look_for_files()
    (planned,) = one.agree(board, PACE)
    assert other.agree(board, PACE) == [planned]


def test_slow_steps_of_all_ranks_are_one_window(tmp_path):
    board, everyone = LocalBoard(), ranks(tmp_path, 8)
    for number, rank in enumerate(everyone):
        rank.add(automatic_request(90 + number % 2, 3, f"slow on {number}"))
    found = [rank.agree(board, PACE) for rank in everyone]
    assert all(each == found[0] for each in found)
    assert len(found[0]) == 1


def test_a_window_avoids_those_of_the_schedule(tmp_path):
    config = CaptureConfig(wait=20, warmup=2, active=3, repeat=0)
    board, one = LocalBoard(), Requests(str(tmp_path), 0, 0, 2, lambda: windows(config, 0), 0.1)
    for number in range(5):
        one.add(Request(f"r{number}", 4))
    found = [each.window for each in one.agree(board, PACE)]
    assert len(found) == 5
    scheduled = windows(config, 0)
    every = sorted([*found, *(next(scheduled) for _ in range(100))], key=lambda window: window.warmup)
    assert all(later.warmup - earlier.last > SKIP_LEAD_STEPS for earlier, later in pairwise(every))


def test_a_schedule_without_room_refuses(tmp_path):
    config = CaptureConfig(wait=2, warmup=1, active=3, repeat=0)
    one = Requests(str(tmp_path), 0, 0, 1, lambda: windows(config, 0), 0.1)
    write_request(tmp_path, Request("a", 3))
    one.look_for_files()
    assert one.agree(LocalBoard(), PACE) == []
    assert "the schedule leaves no steps" in read_answer(answer_path(tmp_path, "a")).refused


@pytest.mark.parametrize(
    ("request_", "why"),
    [(Request("a", MOST_STEPS + 1), "are more than"), (Request("a", 1, ranks="first"), "ranks")],
    ids=["too many steps", "no ranks"],
)
def test_what_cannot_be_recorded_is_refused(tmp_path, request_, why):
    (one,) = ranks(tmp_path, 1)
    write_request(tmp_path, request_)
    one.look_for_files()
    assert one.agree(LocalBoard(), PACE) == []
    assert why in read_answer(answer_path(tmp_path, "a")).refused


BUSY_ON_0 = f"{BUSY} on rank 0"


def test_a_window_that_was_not_recorded_is_tried_further_ahead_by_one_rank(tmp_path):
    board, (one, other) = LocalBoard(), ranks(tmp_path)
    write_request(tmp_path, Request("a", 3))
    one.look_for_files()
    tried = one.agree(board, PACE)
    other.agree(board, PACE)
    ahead = [tried[0].window.warmup - PACE.step]
    for number in range(1, TRIES):
        pace = Pace(10_000 * number, 100_000_000)
        assert one.lost(tried[-1], BUSY_ON_0)
        again = one.agree(board, pace)
        # The other rank hears of the next try before it finds that the one before was lost, or after that.
        if number % 2:
            assert other.agree(board, pace) == again
        assert other.lost(tried[-1], BUSY_ON_0)
        assert other.agree(board, pace) == ([] if number % 2 else again)
        assert one.agree(board, pace) == []
        assert len(again) == 1
        tried += again
        ahead.append(again[0].window.warmup - pace.step)
        answer = read_answer(answer_path(tmp_path, "a"))
        assert (answer.first_step, answer.tries, answer.refused) == (again[0].window.first, number + 1, "")
    assert ahead == [ahead[0] * 2**number for number in range(TRIES)]
    assert not one.lost(tried[-1], BUSY_ON_0)
    assert one.agree(board, PACE) == other.agree(board, PACE) == []
    assert read_answer(answer_path(tmp_path, "a")).refused == BUSY_ON_0


def test_a_rank_that_was_not_chosen_passes_on_that_a_request_was_given_up(tmp_path):
    board, (one, other) = LocalBoard(), ranks(tmp_path)
    write_request(tmp_path, Request("a", 3, ranks="1"))
    one.look_for_files()  # the other rank does not see this directory
    assert one.agree(board, PACE) == []
    (planned,) = other.agree(board, PACE)
    for _ in range(1, TRIES):
        assert other.lost(planned, f"{BUSY} on rank 1")
        (planned,) = other.agree(board, PACE)
        assert one.agree(board, PACE) == []
    assert not other.lost(planned, f"{BUSY} on rank 1")
    other.agree(board, PACE)
    assert one.agree(board, PACE) == []
    assert read_answer(answer_path(tmp_path, "a")).refused == f"{BUSY} on rank 1"


def test_the_rank_whose_profiler_was_faster_asks_again(tmp_path):
    board, (one, other) = LocalBoard(), ranks(tmp_path)
    one.add(Request("a", 3))
    (planned,) = one.agree(board, PACE)
    other.agree(board, PACE)
    assert other.lost(planned, f"{OTHER_PROFILER} on rank 0", elsewhere=True)
    assert other.agree(board, PACE) == []
    assert one.lost(planned, f"{OTHER_PROFILER} on rank 0")
    (again,) = one.agree(board, PACE)
    assert (again.tries, other.agree(board, PACE)) == (2, [again])


def test_the_trace_of_the_window_before_has_time_to_be_written(tmp_path):
    board, (one,) = LocalBoard(), ranks(tmp_path, 1)
    one.add(Request("a", 3))
    one.add(Request("b", 3))
    first, second = one.agree(board, PACE)
    assert (second.window.warmup - first.window.last) * PACE.usual_ns >= 3e9  # as long as it takes to reach all ranks


def test_more_requests_than_fit_wait_in_a_queue(tmp_path):
    board, (one,) = LocalBoard(), ranks(tmp_path, 1)
    for number in range(600):
        write_request(tmp_path, Request(f"r{number:03}", 1))
    found, step = [], 100
    for _ in range(1000):
        one.look_for_files()
        new = one.agree(board, Pace(step, 100_000_000))
        found += [each.request.id for each in new]
        assert len(new) <= 64
        step += 40
    assert found == [f"r{number:03}" for number in range(600)]
    assert all(read_answer(answer_path(tmp_path, f"r{number:03}")) is not None for number in range(600))


def test_a_request_that_was_withdrawn_is_not_recorded(tmp_path):
    (one,) = ranks(tmp_path, 1)
    write_request(tmp_path, Request("a", 3))
    one.look_for_files()
    assert one.agree(LocalBoard(), Pace(2, 0)) == []
    request_path(tmp_path, "a").unlink()
    assert one.agree(LocalBoard(), PACE) == []


def test_a_request_waits_for_the_end_of_a_script_profiler(tmp_path):
    board, (one,) = LocalBoard(), ranks(tmp_path, 1)
    write_request(tmp_path, Request("a", 3))
    one.look_for_files()
    assert one.agree(board, Pace(100, 100_000_000, "profile, job.py:3", waits=True)) == []
    answer = read_answer(answer_path(tmp_path, "a"))
    assert (answer.waits, answer.script_profiler, answer.first_step) == (True, "profile, job.py:3", None)
    (planned,) = one.agree(board, Pace(200, 100_000_000, "profile, job.py:3"))
    answer = read_answer(answer_path(tmp_path, "a"))
    assert (answer.waits, answer.first_step) == (False, planned.window.first)


def test_a_request_that_waits_is_found_again_after_a_restart(tmp_path):
    write_request(tmp_path, Request("a", 3))
    for pace in (Pace(100, 100_000_000, waits=True), PACE):
        (one,) = ranks(tmp_path, 1)
        one.look_for_files()
        found = one.agree(LocalBoard(), pace)
    assert len(found) == 1


def test_nothing_is_planned_before_the_pace_is_known(tmp_path):
    (one,) = ranks(tmp_path, 1)
    one.add(Request("a", 3))
    assert one.agree(LocalBoard(), Pace(2, 0)) == []
    assert len(one.agree(LocalBoard(), PACE)) == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"request":{"id":"../x","steps":1},"window":{"warmup":1,"first":2,"last":3}}',
     '{"request":{"id":"a","steps":1},"window":{"warmup":5,"first":2,"last":3}}',
     '{"request":{"id":"a","steps":1},"window":{"warmup":1,"first":2}}'],
)  # fmt: skip
def test_entries_that_make_no_sense_are_left_out(tmp_path, text):
    board, (one,) = LocalBoard(), ranks(tmp_path, 1)
    board.post(1, text)
    assert Planned.from_text(text) is None
    one.add(Request("a", 3))
    assert len(one.agree(board, PACE)) == 1


# --- lists that ranks share -------------------------------------------------------------------------------------


@pytest.fixture(params=["store", "files"])
def boards(request, tmp_path):
    if request.param == "files":
        return [FileBoard(str(tmp_path), "rankscope/watch/0/1") for _ in range(8)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return [
        StoreBoard(dist.TCPStore("127.0.0.1", store.port, is_master=False), "rankscope/watch/0/1") for _ in range(8)
    ] + [store]


def test_of_many_ranks_one_makes_an_entry(boards):
    boards = boards[:8]
    assert [board.read(1) for board in boards] == [None] * 8
    found, start = [], threading.Barrier(8)

    def post(number):
        start.wait()
        found.append(boards[number].post(1, f"of {number}"))

    threads = [threading.Thread(target=post, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert {board.read(1) for board in boards} == set(found)
    assert boards[0].read(2) is None


# --- the plan of the loop ---------------------------------------------------------------------------------------


def test_windows_that_are_added_come_in_order():
    plan = WindowPlan(iter([Window(10, 12, 13), Window(30, 32, 33)]))
    plan.add(Window(20, 22, 23))
    assert next(plan).first == 12
    plan.add(Window(15, 17, 18))
    plan.add(Window(40, 42, 43))
    assert [window.first for window in plan] == [17, 22, 32, 42]


def test_windows_that_were_added_stay_without_the_schedule():
    plan = WindowPlan(iter([Window(10, 12, 13), Window(30, 32, 33)]))
    plan.add(Window(20, 22, 23))
    plan.drop_schedule()
    plan.add(Window(40, 42, 43))
    assert [window.first for window in plan] == [22, 42]


class CountedBoard(LocalBoard):
    """Counts what one rank asks the store that all share."""

    def __init__(self, texts):
        self._texts, self.reads, self.posts = texts, 0, 0

    def post(self, number, text):
        self.posts += 1
        return super().post(number, text)

    def read(self, number):
        self.reads += 1
        return super().read(number)


def test_a_rank_asks_the_store_as_often_whatever_the_number_of_ranks(tmp_path):
    asked = {}
    for number in (2, 64):
        texts, everyone = {}, ranks(tmp_path, number)
        boards = [CountedBoard(texts) for _ in everyone]
        everyone[0].add(Request("a", 3))
        for _ in range(5):
            for rank, board in zip(everyone, boards, strict=True):
                rank.agree(board, PACE)
        # One list for all: no key by rank, and one entry for the request.
        assert len(texts) == sum(board.posts for board in boards) == 1
        asked[number] = max(board.reads for board in boards)
    # One read in each round, and one for the entry.
    assert asked == {2: 6, 64: 6}
