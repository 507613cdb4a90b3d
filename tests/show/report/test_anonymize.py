"""A report without names: nothing of whose it is in any byte of it, and every number as before."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.show.report.reading import inflated, read_report
from tests.show.report.test_html_report import hostile_run
from tests.show.report.test_measured import EIGHT, FOUR, SCALING, SETTING

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.experiments.measure.files import save
from rankscope.rundir.metadata import METADATA_KEY
from rankscope.show.report.anonymize import Anonymizer
from rankscope.show.report.html_report import write_report

# No word of these may be found anywhere, in any case; `acme` stands for a firm whose name could be a part of any.
SECRET = "acme"
STACK = "/home/alice/acmeproject/acme_model.py(3): acme_forward;torch/nn/functional.py(10): linear"
TOLD: Any = {
    "Call stack": STACK, "Concrete Inputs": ["/acme/data"], "Input type": ["float", "acmelib::SecretTensor"],
    "context": "acme context", "category": "acme category", "phase": "acme phase", "dtype": "acme dtype",
    "Collective name": "acme_allreduce", "kind": "acme kind",
}  # fmt: skip


def content(rank: int) -> kineto.Trace:
    events: list[kineto.Event] = []
    for number, at in enumerate((0, 1000)):
        late = 300 if rank == 1 and number else 0
        events += [
            kineto.step(10 + number, at, 990),
            kineto.loading(at + 2, 5),
            kineto.op("aten::mm", at + 10, 100, external=10 * number + 1, **TOLD),
            kineto.op("AcmeSecretFnBackward", at + 40, 20),
            kineto.op("acmelib::fused_attention", at + 70, 20),
            kineto.op("AddmmBackward0", at + 120, 20),
            kineto.launch(at + 30, 5, correlation=10 * number + 1, external=10 * number + 1),
            kineto.frame("/home/alice/acmeproject/acme_train.py(7): acme_step", at + 5, 900),
            kineto.frame("nn.Module: AcmeNet_0", at + 6, 800),
            kineto.frame("torch/nn/modules/linear.py(116): forward", at + 7, 700),
            kineto.kernel("gemm<4>", at + 100, 50, correlation=10 * number + 1, external=10 * number + 1),
            kineto.launch(at + 130, 5, correlation=10 * number + 2),
            kineto.collective(
                at + 200 + late, 300 - late, sequence=number, correlation=10 * number + 2, group="acme_group",
                description="acme_pg",
            ),
            kineto.annotation("acme stage: forward", at + 600, 50),
            kineto.annotation("acme stage: forward", at + 700, 50, tid=77),
            kineto.annotation("forward", at + 660, 5),
            {"ph": "X", "cat": "acme_cat", "name": "acme other", "pid": 100, "tid": 100, "ts": at + 670, "dur": 5,
             "args": {"context": "acme context", "dims": "acme"}},
            kineto.memory(at + 15, 1024, allocated=1024 * (number + 1), reserved=8192),
        ]  # fmt: skip
    events.append(
        {"ph": "M", "name": "thread_name", "pid": 100, "tid": 77, "ts": 0, "args": {"name": "acme_loader_thread"}}
    )
    mine = {
        "rank": rank,
        "world_size": 2,
        "host": f"acmehost{rank}.cluster",
        "run_id": "acmerun",
        "mesh": {"dims": ["acmedim"], "shape": [2], "coordinate": [rank]},
    }
    return kineto.trace(
        events, rank=rank, world_size=2, host_name=f"acmehost{rank}.cluster",
        deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], **{METADATA_KEY: mine},
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "acme job 7"
    folder.mkdir()
    for rank in (0, 1):
        kineto.write(folder / f"rank{rank}_acme.json", content(rank))
    manifest = {"schema_version": 1, "run_id": "acmerun", "command": ["python", "/home/alice/acme.py", "--acme"]}
    (folder / "run.json").write_text(json.dumps(manifest))
    # What findings name: a file that is no trace, and a link that is not followed.
    (folder / "acme_losses.json").write_text("loss 0.1")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "acme_link").symlink_to(Path(__file__).parent, target_is_directory=True)
    (folder / "beside").symlink_to(tmp_path / "beside", target_is_directory=True)
    return rankscope.open(folder, executor="serial")


def everything(page: bytes) -> str:
    """The page, and every block of it unpacked."""
    _, blocks = read_report(page)
    texts = [page.decode()]
    for data in blocks.values():
        texts.append(inflated(data).decode("utf-8", "replace"))
    return "\n".join(texts)


def test_the_names_are_there_without_it(run: Run) -> None:
    """Else their absence would prove nothing."""
    text = everything(write_report(run))
    wanted = (
        "acmehost0.cluster", "acme_train.py", "AcmeNet_0", "acme_pg", "acme stage: forward", "acme_loader_thread",
        "AcmeSecretFnBackward", "acmelib::fused_attention", "acme_model.py", "acme job 7", "acmedim", "/acme/data",
        "--acme", "acme_losses.json", "acme_link",
    )  # fmt: skip
    assert [name for name in wanted if name not in text] == []


def test_no_name_is_left(run: Run) -> None:
    page = write_report(run, anonymize=True)
    text = everything(page)
    found = [
        text[max(0, at.start() - 60) : at.end() + 60]
        for at in re.finditer(rf"{SECRET}|alice\b|Secret", text, re.IGNORECASE)
    ]
    assert found == []
    for kept in ("gemm<4>", "aten::mm", "AddmmBackward0", "ProfilerStep#10", "torch/nn/functional.py(10): linear"):
        assert kept in text
    assert "NVIDIA H100 80GB HBM3" in text


def test_numbers_and_order_stay(run: Run) -> None:
    named, blocks = read_report(write_report(run))
    nameless, others = read_report(write_report(run, anonymize=True))
    assert set(blocks) == set(others)
    same = {name for name, data in blocks.items() if others[name] == data}
    assert same >= {name for name in blocks if name.split("-")[0] in ("device", "host", "python", "counters")}

    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return [numbers(each) for each in value.values()]
        if isinstance(value, list):
            return [numbers(each) for each in value]
        return None if isinstance(value, str) else value

    assert set(named["analyses"]) == set(nameless["analyses"])
    for name, table in named["analyses"].items():
        assert numbers(nameless["analyses"][name]["data"]) == numbers(table["data"]), name
        # Captions and columns are our own.
        beside = {"data": 0, "headline": 0}
        assert {**nameless["analyses"][name], **beside} == {**table, **beside}
        headline, hidden = table["headline"], nameless["analyses"][name]["headline"]
        assert (headline is None) == (hidden is None)
        if headline is not None:
            assert hidden["text"] == headline["text"]
            assert numbers(hidden["values"]) == numbers(headline["values"])
    assert len(nameless["findings"]) == len(named["findings"])


def test_one_name_has_one_replacement(run: Run) -> None:
    names = Anonymizer(run)
    assert names.text("acme stage: forward").startswith("range ")
    assert names.text("acme stage: forward") == names.text("acme stage: forward")
    assert len({names.text(f"acmehost{rank}.cluster") for rank in (0, 1)}) == 2
    inside = names.text("host acmehost1.cluster waits in acme stage: forward")
    assert inside == f"host {names.text('acmehost1.cluster')} waits in {names.text('acme stage: forward')}"
    # What rankscope says itself stays, though a range is called so.
    assert names.text("time in forward and backward") == "time in forward and backward"
    _, blocks = read_report(write_report(run, anonymize=True))
    head = json.loads(inflated(blocks["timeline"]))
    assert {row["host"] for row in head["layout"]["ranks"]} == {"host 1", "host 2"}


def test_an_experiment_beside_the_traces_names_neither_its_script_nor_its_hosts(tmp_path: Path) -> None:
    setting = replace(SETTING, target="/home/bob/umbrella.py --big", notes=["umbrella ended early"])
    sizes = [FOUR, replace(EIGHT, error="no such host: umbrella07")]
    save(replace(SCALING, setting=setting, sizes=sizes), tmp_path)
    kineto.write(tmp_path / "rank0.json", content(0))
    run = rankscope.open(tmp_path, executor="serial")
    assert everything(write_report(run)).count("umbrella") == 3
    page = write_report(run, anonymize=True)
    assert "umbrella" not in everything(page)
    value, _ = read_report(page)
    table = value["analyses"]["measured_scaling"]
    assert (table["data"]["efficiency"], table["data"]["error"]) == ([0.5, None], [None, "?"])
    assert table["doc"].endswith("measured by `rankscope measure scaling`.")


def test_hostile_names_go_too(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    page = write_report(run, anonymize=True)
    value, blocks = read_report(page)
    assert value["run"]["hosts"] == ["host 1"]
    for data in blocks.values():
        assert zlib.decompress(data, -15)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_a_real_trace_keeps_kernels_and_operators(shared_traces: Path) -> None:
    run = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")
    value, blocks = read_report(write_report(run, anonymize=True))
    head = json.loads(inflated(blocks["timeline"]))
    kernels = set(run.kernels()["name"])
    assert kernels <= set(head["names"])
    assert "aten::mm" in head["names"]
    assert value["run"]["name"] == "run"
    # What is not torch's own: calls of compiled graphs carry hashes, frames and ranges names of modules.
    taken = [name for name in head["names"] if re.fullmatch(r"(range|operator|frame) \d+", name)]
    assert 0 < len(taken) < len(head["names"])
