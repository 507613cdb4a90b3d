"""What is known of real traces, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope

pytestmark = pytest.mark.usefixtures("shared_cache")

# path, rank, span, busy, compute, communication, overlap (ns); no overlap where nothing communicates
FIGURES = [
    ("hta/nccl_parser_config", 0, 660551005, 157500014, 115655847, 46876493, 7317025),
    ("hta/negative_queue_length_values_check", 0, 1231461000, 438424000, 210998000, 187870000, 2553000),
    ("hta/ns_resolution_trace", 0, 480029179, 472454441, 468153602, 0, None),
    ("hta/timeline_analysis", 0, 1222847000, 547656000, 210320000, 396199000, 59216000),
    ("hta/trace_filter", 1, 1231186000, 580050000, 271973000, 379053000, 75530000),
    ("tracelens/mi300/resnet_act_checkpoint.json.gz", 0, 86567708, 84002056, 25739303, 71516523, 15891299),
    ("torchrec/rank2-sleeps-4ranks", 0, 3296150000, 3152608000, 118938000, 3069862000, 36279000),
    ("torchrec/rank2-sleeps-4ranks", 2, 3283743000, 154673000, 122459000, 37105000, 4989000),
    ("modded-nanogpt-h100-8ranks", 0, 176292273, 164365164, 122121935, 48340162, 7684051),
]
# path and the rank that is known to hold the others up
STRAGGLERS = [
    ("torchrec/rank2-sleeps-4ranks", 2),
    ("torchrec/ddp-resnet18-2ranks", 1),
    ("tensorboard-plugin/ddp_gloo_torch213_3ranks", 1),
    ("gloo-2ranks/ddp_gpt_straggler_rank1.*", 1),
    ("gloo-2ranks/fsdp2_gpt_straggler_rank1.*", 1),
]


@pytest.mark.parametrize(("path", "rank", "span", "busy", "compute", "communication", "overlap"), FIGURES)
def test_device_time(
    shared_traces: Path,
    path: str,
    rank: int,
    span: int,
    busy: int,
    compute: int,
    communication: int,
    overlap: int | None,
) -> None:
    frame = rankscope.open(shared_traces / path, executor="serial").device_time()
    row = next(row for row in frame.to_dicts() if row["rank"] == rank)
    assert row["span_ns"] == span
    assert row["busy_ns"] == busy
    assert row["compute_ns"] == compute
    assert row["communication_ns"] == communication
    assert row["overlap_ns"] == (overlap or 0)
    assert row["overlap_ratio"] == (None if overlap is None else overlap / communication)


def test_the_first_window_of_every_h100_rank_is_its_step_and_not_its_backlog(shared_traces: Path) -> None:
    steps = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial").step_time()
    first = steps.group_by("rank").first()
    assert first.height == 8
    assert first["window_ns"].is_between(36_000_000, 37_000_000).all()


@pytest.mark.parametrize(("path", "rank"), STRAGGLERS)
def test_the_rank_that_works_longest_is_the_one_that_was_made_late(shared_traces: Path, path: str, rank: int) -> None:
    row = rankscope.open(str(shared_traces / path), executor="serial").overview().row(0, named=True)
    assert row["slowest_rank"] == rank
    assert row["slowest_margin_ns"] > 0.05 * row["step_ns"]


def test_a_sleeping_loader_is_found(shared_traces: Path) -> None:
    run = rankscope.open(str(shared_traces / "gloo-2ranks/ddp_gpt_straggler_rank1.*"), executor="serial")
    loading = run.step_time().group_by("rank").sum().sort("rank")["data_loading_ns"].to_list()
    # Rank 1 sleeps 30 ms in each of three steps.
    assert loading[0] < 1_000_000
    assert 90_000_000 < loading[1] < 95_000_000


def test_collectives_of_the_h100_set_are_known(shared_traces: Path) -> None:
    found = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial").collectives()
    assert found["group"].null_count() == 0
    assert not found["group"].str.starts_with("stream ").any()
    assert set(found["group_size"]) == {8}
    assert set(found["collective"]) == {"all_gather", "reduce_scatter"}
    # A kernel whose launch is not in the file carries no metadata of its own: its size is not known.
    assert found.filter(found["bytes"].is_null() != found["launch_ns"].is_null()).is_empty()
