"""Chakra traces, decoded by Google's protobuf from a declaration of the published schema."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses.reference import write_reference

import rankscope
from rankscope.show.export.chakra import write_chakra

pb = pytest.importorskip("google.protobuf.descriptor_pb2")

# Number and type of the fields of `et_def.proto` that are written: name, number, type, repeated.
FIELDS: dict[str, list[tuple[str, int, str, bool]]] = {
    "Int32List": [("values", 1, "INT32", True)],
    "AttributeProto": [
        ("name", 1, "STRING", False),
        ("int32_val", 7, "INT32", False),
        ("int32_list", 8, "Int32List", False),
        ("int64_val", 9, "INT64", False),
        ("bool_val", 27, "BOOL", False),
        ("string_val", 29, "STRING", False),
    ],
    "GlobalMetadata": [("version", 1, "STRING", False), ("attr", 2, "AttributeProto", True)],
    "Node": [
        ("id", 1, "UINT64", False),
        ("name", 2, "STRING", False),
        ("type", 3, "INT32", False),
        ("ctrl_deps", 4, "UINT64", True),
        ("data_deps", 5, "UINT64", True),
        ("start_time_micros", 6, "UINT64", False),
        ("duration_micros", 7, "UINT64", False),
        ("attr", 10, "AttributeProto", True),
    ],
}


def message_classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pool, message_factory

    file = pb.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = pb.FieldDescriptorProto
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in FIELDS:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in FIELDS
    }


def decoded(path: Path) -> tuple[Any, list[Any]]:
    """Metadata and nodes of a file."""
    from google.protobuf.proto import parse_length_prefixed
    from google.protobuf.unknown_fields import UnknownFieldSet

    classes = message_classes()
    file = io.BytesIO(path.read_bytes())
    metadata = parse_length_prefixed(classes["GlobalMetadata"], file)
    nodes = []
    while (node := parse_length_prefixed(classes["Node"], file)) is not None:
        assert len(UnknownFieldSet(node)) == 0
        nodes.append(node)
    return metadata, nodes


def attributes(message: Any) -> dict[str, Any]:
    found = {}
    for attribute in message.attr:
        (field, value), *others = [(d.name, v) for d, v in attribute.ListFields() if d.name != "name"] or [
            ("default", 0)
        ]
        assert not others
        found[attribute.name] = list(value.values) if field == "int32_list" else value
    return found


def test_nodes_are_the_collectives_of_each_rank(tmp_path: Path, shared_cache: Path) -> None:
    run = rankscope.open(write_reference(tmp_path / "run"), executor="serial")
    written = write_chakra(run, tmp_path / "et")
    assert [path.name for path in written.files] == ["chakra.0.et", "chakra.1.et"]
    groups = json.loads((tmp_path / "et" / "comm_groups.json").read_text())
    rows = run.collectives()
    for rank, path in enumerate(written.files):
        metadata, nodes = decoded(path)
        assert attributes(metadata)["rank"] == rank
        own = rows.filter(rows["rank"] == rank).sort("start_ns")
        assert len(nodes) == own.height > 0
        last: dict[int, int] = {}
        for node, row in zip(nodes, own.iter_rows(named=True), strict=True):
            found = attributes(node)
            assert node.type == 7 and node.name == row["name"]
            assert found["comm_size"] == row["in_elements"] * row["bytes"] // (
                row["out_elements"] if row["collective"] == "all_gather" else row["in_elements"]
            )
            assert groups[found["pg_name"]] == found["involved_ranks"] == json.loads(row["group_ranks"])
            assert node.duration_micros == round(row["duration_ns"] / 1000)
            assert found["duration_ns"] == row["duration_ns"]
            expected = [last[row["stream"]]] if row["stream"] in last else []
            assert list(node.ctrl_deps) == list(node.data_deps) == expected
            last[row["stream"]] = node.id


def test_kinds_sends_and_what_is_left_out(tmp_path: Path, shared_cache: Path) -> None:
    def events(rank: int) -> list[kineto.Event]:
        peer = {"Dst Rank": 1} if rank == 0 else {"Src Rank": 0}
        return [
            kineto.step(1, 0, 1000),
            kineto.collective(10, 20, kind="_allgather_base", elements=100, out_elements=200, dtype="Half"),
            kineto.collective(40, 20, kind="reduce_scatter", elements=200, out_elements=100, dtype="Half"),
            kineto.collective(70, 20, kind="send" if rank == 0 else "recv", elements=8, **peer),
            kineto.collective(100, 20, kind="mystery", name="ncclDevKernel_Mystery", elements=8),
        ]

    folder = kineto.write_ranks(tmp_path / "run", {rank: events(rank) for rank in (0, 1)})
    written = write_chakra(rankscope.open(folder, executor="serial"), tmp_path / "et")
    assert written.left_out == {"unknown (Chakra has no such operation)": 2}
    for path, end in zip(written.files, (5, 6), strict=True):
        _, nodes = decoded(path)
        gather, scatter, point = map(attributes, nodes)
        assert [node.type for node in nodes] == [7, 7, end]
        assert (gather["comm_type"], gather["comm_size"]) == (2, 200)  # its own 100 elements of 2 bytes
        assert (scatter["comm_type"], scatter["comm_size"]) == (7, 400)
        assert (point.get("comm_src", 0), point["comm_dst"], point["comm_size"]) == (0, 1, 32)


def test_a_collective_that_a_rank_lacks_is_left_out_on_all(tmp_path: Path, shared_cache: Path) -> None:
    def events(rank: int) -> list[kineto.Event]:
        first = [kineto.collective(10, 20, elements=8, sequence=1)] if rank == 0 else []
        return [kineto.step(1, 0, 1000), *first, kineto.collective(100, 20, elements=16, sequence=2)]

    folder = kineto.write_ranks(tmp_path / "run", {rank: events(rank) for rank in (0, 1)})
    written = write_chakra(rankscope.open(folder, executor="serial"), tmp_path / "et")
    assert written.left_out == {"all_reduce (not recorded on all ranks of its group)": 1}
    assert [[attributes(node)["comm_size"] for node in decoded(path)[1]] for path in written.files] == [[64], [64]]
