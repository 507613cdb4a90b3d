"""Detect the host's sockets, cores, NUMA nodes and accelerators, from /sys and from vendors' tools if installed.

In: /sys, or the output of tools. Out: sockets, cores, NUMA nodes and devices.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError
from rankscope.experiments.measure.results import NumaNode, Topology, TopologyDevice
from rankscope.rundir.cpus import parse_cpus, usable_cpus
from rankscope.rundir.ranges import as_ranges

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_CLASSES = ("0x0302", "0x0380", "0x1200")
"""PCI classes of compute devices: 3D controllers, other display controllers, processing accelerators."""
_TOOL_TIMEOUT_S = 30
Ask = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Core:
    """A physical core and its usable hardware threads."""

    socket: int
    node: int
    number: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Host:
    """The cores and devices of a host."""

    cores: tuple[Core, ...]
    """By socket, NUMA node and number, so that neighboring cores are next to each other."""
    devices: tuple[TopologyDevice, ...]
    vendor: str | None
    """Of the devices: NVIDIA, AMD or Intel."""
    source: tuple[str, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes with usable cores."""
        return tuple(sorted({core.node for core in self.cores}))

    def topology(self) -> Topology:
        """The form in results."""
        return Topology(
            cpus=as_ranges(cpu for core in self.cores for cpu in core.cpus),
            sockets=len({core.socket for core in self.cores}),
            cores=len(self.cores),
            nodes=[
                NumaNode(node, as_ranges(cpu for core in self.cores if core.node == node for cpu in core.cpus))
                for node in self.nodes
            ],
            devices=list(self.devices),
            source=list(self.source),
        )


def ask_tool(command: Sequence[str]) -> str | None:
    """The output of a tool; None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def read_host(root: Path = Path("/sys"), usable: Sequence[int] | None = None, ask: Ask = ask_tool) -> Host:
    """Detect this host.

    Args:
        root: where sysfs is.
        usable: the CPUs to consider; by default those that this process may use.
        ask: runs a vendor's tool.
    """
    allowed = list(usable_cpus() if usable is None else usable)
    node_of = _nodes(root)
    threads: dict[tuple[int, int, int], list[int]] = {}
    for cpu in allowed:
        folder = root / "devices/system/cpu" / f"cpu{cpu}" / "topology"
        socket, core = _number(folder / "physical_package_id"), _number(folder / "core_id")
        if core is None:  # without sysfs (another system, a container that hides it) every CPU is a core of one socket
            socket, core = 0, cpu
        threads.setdefault((max(0, socket or 0), node_of.get(cpu, 0), core), []).append(cpu)
    cores = tuple(Core(s, n, c, tuple(sorted(cpus))) for (s, n, c), cpus in sorted(threads.items()))
    source = ["/sys"] if (root / "devices/system/cpu").is_dir() else []
    devices, vendor, tool = _devices(root, ask)
    return Host(cores, tuple(devices), vendor, tuple(source + ([tool] if tool else [])))


def _nodes(root: Path) -> dict[int, int]:
    node_of: dict[int, int] = {}
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        try:
            text = (folder / "cpulist").read_text(encoding="ascii").strip()
            cpus = parse_cpus(text) if text else []
        except (OSError, ValueError, ConfigError):
            continue
        node_of |= dict.fromkeys(cpus, int(folder.name[4:]))
    return node_of


def _devices(root: Path, ask: Ask) -> tuple[list[TopologyDevice], str | None, str | None]:
    output = ask(["nvidia-smi", "--query-gpu=index,name,pci.bus_id", "--format=csv,noheader"])
    devices: list[TopologyDevice] = []
    for line in (output or "").splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[0].isdigit():
            devices.append(_device(root, int(parts[0]), parts[1], parts[2]))
    if devices:
        return devices, "NVIDIA", "nvidia-smi"
    for index, (name, pci) in enumerate(_parse_xpu_smi(ask(["xpu-smi", "discovery", "-j"]))):
        devices.append(_device(root, index, name, pci))
    if devices:
        return devices, "Intel", "xpu-smi"
    vendors = []
    for folder in sorted((root / "bus/pci/devices").glob("*")):
        kind, vendor = _text(folder / "class") or "", _text(folder / "vendor") or ""
        if kind[:6] in _CLASSES and vendor in _VENDORS:
            vendors.append(_VENDORS[vendor])
            devices.append(_device(root, len(devices), _VENDORS[vendor], folder.name))
    return devices, vendors[0] if vendors else None, None


def _parse_xpu_smi(output: str | None) -> list[tuple[str | None, str | None]]:
    try:
        listed: Any = json.loads(output or "{}").get("device_list", [])
        return [(device.get("device_name"), device.get("pci_bdf_address")) for device in listed]
    except (ValueError, AttributeError, TypeError):
        return []


def _device(root: Path, index: int, name: str | None, pci: str | None) -> TopologyDevice:
    address, node = None, None
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", pci or "")
    if match:
        # nvidia-smi writes the domain with eight digits, sysfs with four.
        address = f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()
        node = _number(root / "bus/pci/devices" / address / "numa_node")
    return TopologyDevice(index, name, address, None if node is None or node < 0 else node)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
