"""What a trace carries: it survives torch's writer, and odd content never raises."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.rundir.metadata import (
    ClockAnchor,
    Device,
    Mesh,
    ProcessGroup,
    TraceMetadata,
    kineto_json,
)

# A loaded machine is no error.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

FULL = TraceMetadata(
    run_id="slurm-1-0",
    rank=3,
    world_size=8,
    local_rank=1,
    host="node1",
    launcher="slurm",
    restart_count=2,
    mesh=Mesh(("dp", "tp"), (4, 2), (1, 1)),
    process_groups=(ProcessGroup("0", "default_pg", (0, 1, 2)), ProcessGroup("1", "mesh_tp", (2, 3))),
    schedule={"wait": 10, "warmup": 5},
    first_step=15,
    last_step=17,
    partial_step=18,
    clock_anchors=(ClockAnchor(1, 2), ClockAnchor(3, 4)),
    device=Device("cuda", "H100", 1, 80 << 30),
    versions={"torch": "2.13.0"},
    profiler={"with_stack": True, "start_stall_ns": 5},
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def test_everything_is_read_back():
    assert TraceMetadata.from_json(FULL.to_json()) == FULL
    assert TraceMetadata.from_json(json.loads(FULL.to_json())) == FULL


@calm
@given(st.dictionaries(st.sampled_from(sorted(json.loads(FULL.to_json()))), json_values))
def test_odd_content_never_raises(raw):
    metadata = TraceMetadata.from_json(raw)
    assert metadata.rank is None or metadata.rank >= 0
    assert TraceMetadata.from_json(metadata.to_json()).rank == metadata.rank


def test_an_odd_field_does_not_cost_the_others():
    metadata = TraceMetadata.from_json(
        {"rank": "3", "world_size": 8, "mesh": [1], "process_groups": [7, {"name": "a", "ranks": [0, "x", 2]}]}
    )
    assert (metadata.rank, metadata.world_size, metadata.mesh) == (None, 8, None)
    assert metadata.process_groups == (ProcessGroup("a", "", (0, 2)),)
    assert TraceMetadata.from_json("not json") == TraceMetadata()


@calm
@given(json_values)
def test_the_json_needs_no_escape(value):
    text = kineto_json(value)
    assert "\\" not in text
    assert "\n" not in text
    json.loads(text)
    text.encode("utf-8")
