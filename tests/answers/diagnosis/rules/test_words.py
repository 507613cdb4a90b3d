"""What rules call what their figures are of, where files mark no steps."""

from __future__ import annotations

import re
from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed

import rankscope

TELLING = ("a step", "per step", "step time", "each step")


def events(at: float) -> list[kineto.Event]:
    """Loading with an idle device, pageable copies, waiting, tiny kernels: something for many rules."""
    made: list[kineto.Event] = [kineto.loading(at, 300)]
    for n in range(30):
        one = round(at) * 100 + n
        made += [kineto.launch(at + 310 + 15 * n, 3, correlation=one)]
        made += [kineto.kernel("small", at + 315 + 15 * n, 2, correlation=one)]
    made += [
        kineto.memcpy(at + 780, 100, name="Memcpy HtoD (Pageable -> Device)", size=4000),
        kineto.op("aten::item", at + 885, 30),
        kineto.launch(at + 886, 20, name="cudaStreamSynchronize"),
        kineto.kernel("gemm", at + 950, 40),
    ]
    return made


def test_of_a_step_where_there_are_steps(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: events(at))
    texts = " ".join([each.title for each in found.values()] + [e.name for f in found.values() for e in f.evidence])
    assert re.search(r"The job waits for data for \d+ % of a step", texts)
    assert "the recorded span" not in texts


def test_of_the_window_where_there_are_none(tmp_path: Path) -> None:
    made = [kineto.kernel("first", -10, 5), *events(0)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: made}), executor="serial")
    found = {finding.id: finding for finding in run.diagnosis().stated}
    assert {"data_loading", "pageable_copies", "small_kernels"} <= set(found)
    assert re.fullmatch(r"The job waits for data for \d+ % of the recorded span", found["data_loading"].title)
    for finding in found.values():
        if finding.id == "too_few_steps":
            continue
        for text in (finding.title, *(each.name for each in finding.evidence)):
            assert not any(word in text for word in TELLING), text
