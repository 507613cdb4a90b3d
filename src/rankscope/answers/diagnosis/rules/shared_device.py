"""Several ranks run on one device.

Fires if the ranks' manifests show one device (its UUID, or PCI address on one host) for more than one rank of an
attempt: usually the launcher's mistake. Slices of a device (MIG) do not count. Processes that share a device take
turns on it, and the turns of the others look like idle time: findings about it are then about the sharing. There is no
saving, as the trace does not show these turns.
"""

from __future__ import annotations

from collections import defaultdict

from rankscope.results import Evidence, Finding, Inputs, Rule
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.plurals import listed

_SHOWN = 8


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, about the device with most ranks."""
    sharing: dict[tuple[str, int], dict[int, RankManifest]] = defaultdict(dict)
    for manifest in inputs.capture:
        device = _device_of(manifest)
        if device is not None and manifest.rank is not None:
            sharing[device, manifest.restart_count][manifest.rank] = manifest
    shared = [each for each in sharing.values() if len(each) > 1]
    if not shared:
        return []
    most = max(shared, key=len)
    ranks = sorted(most)
    name = next((each.device.name for each in most.values() if each.device and each.device.name), "unknown")
    more = [f"{len(ranks) - _SHOWN} more"] if len(ranks) > _SHOWN else []
    return [
        Finding(
            rule.name,
            "warning",
            f"Ranks {listed([*map(str, ranks[:_SHOWN]), *more])} share one device",
            ranks=tuple(sorted({rank for each in shared for rank in each})),
            evidence=(Evidence("device", name), Evidence("devices with several ranks", len(shared), "count")),
            advice=(
                "Give each rank its own device: torch.cuda.set_device(LOCAL_RANK) before anything uses one, or "
                "CUDA_VISIBLE_DEVICES by rank. Until then, idle time, late launches and waiting calls also show the "
                "other ranks' turns."
            ),
        )
    ]


def _device_of(manifest: RankManifest) -> str | None:
    """What identifies a rank's device among those of all hosts; None if nothing does."""
    device = manifest.device
    if device is None or device.type == "cpu" or " MIG " in (device.name or ""):
        return None
    if device.uuid:
        return device.uuid
    return f"{manifest.host} {device.pci_bus_id}" if manifest.host and device.pci_bus_id else None


rule = Rule("shared_device", __doc__, (), find)
