"""A rank runs on cores that are far from its device.

Fires if a rank is bound to cores of some NUMA nodes, and its device is attached to another (both from its manifest):
its launches and its copies from host memory cross the link between sockets. It is never more than an info: what that
costs depends on the job, and `rankscope measure binding` measures it.
"""

from __future__ import annotations

from rankscope.results import Evidence, Finding, Inputs, Rule
from rankscope.rundir import fields
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.plurals import plural
from rankscope.rundir.ranges import parse_range


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    far = {each.rank: each for each in inputs.capture if each.rank is not None and _is_far(each)}
    if not far:
        return []
    ranks = tuple(sorted(far))
    first = far[ranks[0]]
    assert first.device is not None
    return [
        Finding(
            rule.name,
            "info",
            f"{len(ranks)} {plural('rank', len(ranks))} {plural('runs', len(ranks), 'run')} on cores that are far from "
            f"{plural('its', len(ranks), 'their')} {plural('device', len(ranks))}",
            ranks=ranks,
            evidence=(
                Evidence(f"NUMA node of the device, rank {ranks[0]}", first.device.numa_node or 0),
                Evidence(f"NUMA nodes of its cores, rank {ranks[0]}", str(first.environment["numa_nodes"])),
            ),
            advice=(
                "Bind each rank to the cores next to its device (srun --cpu-bind, numactl --cpunodebind); "
                "`rankscope measure binding` compares bindings."
            ),
        )
    ]


def _is_far(manifest: RankManifest) -> bool:
    near = None if manifest.device is None else manifest.device.numa_node
    nodes = fields.text(manifest.environment.get("numa_nodes"))
    if near is None or not nodes:
        return False
    spans = [parse_range(part) for part in nodes.split(",")]
    return all(span is not None and not span[0] <= near <= span[1] for span in spans)


rule = Rule("numa_binding", __doc__, (), find)
