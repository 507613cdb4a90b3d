"""The lanes of a name against the lanes that they are taken from, event by event and bin by bin."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.kineto import annotation, kernel, op, small_step, write_ranks
from tests.show.timeline.drawing import Drawn, draw, touching

from rankscope.engine.pipeline import open_run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.timeline.named_lanes import NameTracks
from rankscope.show.timeline.pyramid import shift_of
from rankscope.show.timeline.timeline import Timeline


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Two ranks. On the first, `same` is on two streams at once, a range on the host, and nested within itself."""
    first = [
        *small_step(),
        kernel("same", 1000, 50, stream=7),
        kernel("same", 1020, 80, stream=9),
        kernel("same", 1020, 10, stream=11),
        *(kernel("same", 2000 + 3 * number, 2, stream=7) for number in range(400)),
        annotation("same", 500, 100),
        op("same", 700, 90),
        op("same", 710, 20),
    ]
    second = [*small_step(), kernel("other", 900, 10), annotation("same", 3000, 0)]
    source = write_ranks(tmp_path_factory.mktemp("named"), {0: first, 1: second})
    run = open_run(source, executor="serial")
    return draw_run(run, clock_of(run))


def named_in_all_lanes(timeline: Timeline, rank: int, name: str) -> list[tuple[int, int, int, int, int]]:
    """Start, end, category, lane and row of a rank's events with a name, from the lanes of the run."""
    in_run = timeline.ranks[rank]
    lanes = range(in_run.first_lane + 1, in_run.first_lane + len(in_run.lanes.lanes))
    _, columns = read_column_file(timeline.events(lanes, -(1 << 52), 1 << 52, 1 << 30))
    return sorted(
        (int(start), int(end), category, lanes[lane], row)
        for lane, row, start, end, number, category in zip(
            *(columns[each].tolist() for each in ("lane", "row", "start_ns", "end_ns", "name", "category")), strict=True
        )
        if timeline.names[number] == name
    )


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["same", "other"])
def test_a_lane_of_a_name_has_its_events_and_leads_to_them(timeline: Timeline, rank: int, name: str) -> None:
    expected = named_in_all_lanes(timeline, rank, name)
    number, tracks = timeline.names.index(name), NameTracks(timeline)
    named = tracks.of(number)
    head, columns = read_column_file(named.timeline.events(named.lanes([rank]), -(1 << 52), 1 << 52, 1 << 30))
    assert not head["more"]
    assert columns["row"].tolist() == list(range(len(expected)))
    assert set(columns["name"].tolist()) <= {number}
    found = zip(*(columns[each].astype(int).tolist() for each in ("start_ns", "end_ns", "category")), strict=True)
    assert Counter(found) == Counter(each[:3] for each in expected)
    places = [tracks.place(number, rank, row) for row in range(len(expected))]
    assert Counter(places) == Counter(each[3:] for each in expected)
    for place, start in zip(places, columns["start_ns"].tolist(), strict=True):
        assert (int(start), *place) in {(each[0], *each[3:]) for each in expected}  # type: ignore[misc] # not None
    assert tracks.place(number, rank, len(expected)) is None
    assert tracks.place(number, rank, -1) is None


def test_bins_of_a_lane_of_a_name_are_those_of_its_events(timeline: Timeline) -> None:
    named = NameTracks(timeline).of(timeline.names.index("same"))
    (lane,) = named.lanes([0])
    events = [Drawn(*each[:3]) for each in named_in_all_lanes(timeline, 0, "same")]
    events.sort(key=lambda each: (each.start, each.end))
    for level in range(timeline.levels):
        width = 1 << shift_of(level)
        first = max(0, events[0].start // width - 2)
        _, tile = read_column_file(named.timeline.tiles(level, first, 1024, [lane]))
        expected = draw(events, width, first, 1024)
        assert tile["bin"].tolist() == sorted(expected)
        assert tile["bin_count"].tolist() == [expected[number].count for number in sorted(expected)]
        for number, row in zip(tile["bin"].tolist(), tile["bin_row"].tolist(), strict=True):
            covers = expected[number].covers
            assert covers[row] == max(covers.values())
        busy = {
            (number, category): ns
            for number, category, ns in zip(
                tile["busy_bin"].tolist(), tile["busy_category"].tolist(), tile["busy_ns"].tolist(), strict=True
            )
        }
        assert busy == {(number, kind): ns for number, one in expected.items() for kind, ns in one.busy.items()}
    middle = events[3].start
    _, columns = read_column_file(named.timeline.events([lane], middle, middle + 30_000, 1 << 20))
    assert columns["row"].tolist() == touching(events, middle, middle + 30_000)


def test_ranks_drawn_later_are_in_the_lanes(timeline: Timeline) -> None:
    part = Timeline(timeline.clock, timeline.traces)  # as at the beginning of a run
    part.add(timeline.ranks[1].lanes)
    tracks = NameTracks(part)
    assert tracks.of(part.names.index("same")).places.keys() == {1}
    part.add(timeline.ranks[0].lanes)
    assert tracks.of(part.names.index("same")).places.keys() == {0, 1}
    with pytest.raises(KeyError):
        tracks.of(part.names.index("same")).lanes([7])
