"""The host read from a tree like /sys, and the bindings that follow."""

from __future__ import annotations

import json

import pytest

from rankscope.errors import ConfigError
from rankscope.experiments.measure.binding_policies import bind, flags
from rankscope.experiments.measure.topology import read_host
from rankscope.rundir.cpus import parse_cpus
from rankscope.rundir.ranges import as_ranges


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def sysfs(root, sockets=2, cores=4, threads=2, devices=()):
    """Two sockets with a NUMA node each; the second hardware threads are numbered behind all first ones."""
    total = sockets * cores
    for socket in range(sockets):
        own = []
        for core in range(cores):
            for thread in range(threads):
                cpu = thread * total + socket * cores + core
                own.append(cpu)
                write(root / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", socket)
                write(root / f"devices/system/cpu/cpu{cpu}/topology/core_id", core)
        write(root / f"devices/system/node/node{socket}/cpulist", as_ranges(own))
    for address, vendor, kind, node in devices:
        folder = root / "bus/pci/devices" / address
        write(folder / "vendor", vendor)
        write(folder / "class", kind)
        write(folder / "numa_node", node)
    return root


def nothing(command):
    return None


GPUS = (("0000:17:00.0", "0x10de", "0x030200", 1), ("0000:65:00.0", "0x10de", "0x030200", 0))
INTEL = (("0000:18:00.0", "0x8086", "0x038000", 0), ("0000:42:00.0", "0x8086", "0x038000", 1))
WRONG = (("0000:01:00.0", "0x8086", "0x020000", 0), ("0000:02:00.0", "0x1a03", "0x030000", 0))  # a NIC, a BMC's display


def host_of(root, usable=range(16), ask=nothing, **options):
    return read_host(sysfs(root, **options), list(usable), ask)


def test_sockets_cores_nodes(tmp_path):
    topology = host_of(tmp_path).topology()
    assert (topology.sockets, topology.cores, topology.cpus) == (2, 8, "0-15")
    assert [(n.node, n.cpus) for n in topology.nodes] == [(0, "0-3,8-11"), (1, "4-7,12-15")]
    assert topology.devices == []
    assert topology.source == ["/sys"]


def test_only_what_may_be_used(tmp_path):
    topology = host_of(tmp_path, usable=[1, 2, 9, 10]).topology()
    assert (topology.sockets, topology.cores, topology.cpus) == (1, 2, "1-2,9-10")
    assert [n.node for n in topology.nodes] == [0]


def test_without_sysfs_every_cpu_is_a_core(tmp_path):
    topology = read_host(tmp_path / "no", [0, 1, 5], nothing).topology()
    assert (topology.sockets, topology.cores, topology.cpus, topology.source) == (1, 3, "0-1,5", [])


def test_devices_by_pci_class(tmp_path):
    host = host_of(tmp_path, devices=GPUS + WRONG)
    assert [(d.pci, d.numa_node, d.name) for d in host.devices] == [
        ("0000:17:00.0", 1, "NVIDIA"),
        ("0000:65:00.0", 0, "NVIDIA"),
    ]


def test_devices_in_the_order_of_nvidia_smi(tmp_path):
    answer = "0, NVIDIA H100, 00000000:65:00.0\n1, NVIDIA H100, 00000000:17:00.0\nnonsense\n"
    host = host_of(tmp_path, devices=GPUS, ask=lambda command: answer if command[0] == "nvidia-smi" else None)
    assert [(d.index, d.pci, d.numa_node) for d in host.devices] == [(0, "0000:65:00.0", 0), (1, "0000:17:00.0", 1)]
    assert host.topology().source == ["/sys", "nvidia-smi"]


def test_devices_of_xpu_smi(tmp_path):
    answer = json.dumps({"device_list": [{"device_name": "Max 1550", "pci_bdf_address": "0000:42:00.0"}]})
    host = host_of(tmp_path, devices=INTEL, ask=lambda command: answer if command[0] == "xpu-smi" else None)
    assert [(d.name, d.numa_node) for d in host.devices] == [("Max 1550", 1)]
    assert host.vendor == "Intel"


@pytest.mark.parametrize("answer", ["", "{", "[]", '{"device_list": 3}', '{"device_list": [1]}'])
def test_a_tool_that_says_something_else(tmp_path, answer):
    assert host_of(tmp_path, ask=lambda command: answer).devices == ()


def test_compact_fills_the_first_socket_first(tmp_path):
    assert bind("compact", host_of(tmp_path), 4) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert bind("compact", host_of(tmp_path), 2, cores=1) == ["0,8", "1,9"]


def test_spread_takes_nodes_in_turn(tmp_path):
    assert bind("spread", host_of(tmp_path), 4) == ["0-1,8-9", "4-5,12-13", "2-3,10-11", "6-7,14-15"]
    assert bind("spread", host_of(tmp_path), 4, cores=1) == ["0,8", "4,12", "2,10", "6,14"]


def test_numa_is_by_the_device(tmp_path):
    host = host_of(tmp_path, devices=GPUS)
    assert bind("numa", host, 2) == ["4-7,12-15", "0-3,8-11"]
    assert bind("numa", host_of(tmp_path / "none"), 4) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]


def test_every_rank_of_one_nodes_devices_gets_its_share(tmp_path):
    both = tuple((address, vendor, kind, 1) for address, vendor, kind, _ in GPUS)
    assert bind("numa", host_of(tmp_path, devices=both), 2) == ["4-5,12-13", "6-7,14-15"]


@pytest.mark.parametrize("name", ["compact", "spread", "numa"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 11])
def test_every_rank_has_cores_and_shares_them_only_where_it_must(tmp_path, name, ranks):
    lists = [parse_cpus(text) for text in bind(name, host_of(tmp_path), ranks)]
    assert len(lists) == ranks
    assert all(lists)
    assert {cpu for each in lists for cpu in each} <= set(range(16))
    if ranks <= 8:
        taken = [cpu for each in lists for cpu in each]
        assert len(taken) == len(set(taken))


def test_none_binds_nothing(tmp_path):
    assert bind("none", host_of(tmp_path), 4) == []
    assert flags([], host_of(tmp_path)) == {"srun": "--cpu-bind=none", "mpiexec": "--cpu-bind=none"}


def test_a_list_of_ones_own(tmp_path):
    for before in ("", "list:", "verbose,list:", "--cpu-bind=list:", "--cpu-bind list:"):
        assert bind("list", host_of(tmp_path), 2, given=f"{before}3,1-2:4") == ["1-3", "4"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0-3", "1 list of CPUs for 2 ranks"),
        ("0:99", "CPUs 99"),
        ("0:x", "'x'"),
        ("list:list:0:1", "'list'"),
        ("list:0-3", "1 list of CPUs for 2 ranks"),
        ("3-1:2", "'3-1'"),
        (None, "0 lists"),
    ],
)
def test_lists_that_are_not_valid(tmp_path, given, message):
    with pytest.raises(ConfigError, match=message):
        bind("list", host_of(tmp_path), 2, given=given)


@pytest.mark.parametrize(
    ("name", "cores", "message"),
    [
        ("compact", 9, "9 cores for each rank are more than the 8 that may be used here"),
        ("spread", 5, "5 cores for each rank are more than the 4 of NUMA node 0"),
        ("numa", 5, "5 cores for each rank are more than the 4 of NUMA node 0"),
    ],
)
def test_more_cores_than_there_are(tmp_path, name, cores, message):
    host = host_of(tmp_path)
    with pytest.raises(ConfigError, match=message):
        bind(name, host, 2, cores)
    assert [len(parse_cpus(text)) for text in bind(name, host, 2, 4)] == [8, 8]


def test_what_to_write_for_it(tmp_path):
    found = flags(["0-1,8-9", "4-5"], host_of(tmp_path))
    # 0,1,8,9 are bits 0x303; 4,5 are 0x30.
    assert found["srun"] == "--cpu-bind=mask_cpu:0x303,0x30"
    assert found["mpiexec"] == "--cpu-bind=list:0-1,8-9:4-5"
    assert "--membind=$(echo 0:1 " in found["numactl"]
    assert not any(name.startswith(("ZE_", "CCL_")) for name in found)


def test_no_memory_of_one_node_for_a_rank_on_two(tmp_path):
    assert "numactl" not in flags(["0,4"], host_of(tmp_path))


def test_oneapis_variables_where_they_apply(tmp_path):
    found = flags(["0-3", "4-7"], host_of(tmp_path, devices=INTEL))
    assert found["ZE_FLAT_DEVICE_HIERARCHY"] == "FLAT"
    # A rank that saw its own device alone could not call set_device(LOCAL_RANK).
    assert found["ZE_AFFINITY_MASK"] == "0,1"
    # No core is left.
    assert "CCL_WORKER_AFFINITY" not in found


@pytest.mark.parametrize(
    ("lists", "workers"),
    [(["0-1", "4-5"], "3,7"), (["0", "1"], "3,2"), (["0-3", "4"], "7,6"), (["0-3", "4-6"], None)],
)
def test_oneccls_workers_have_cores_that_no_rank_has(tmp_path, lists, workers):
    assert flags(lists, host_of(tmp_path, devices=INTEL)).get("CCL_WORKER_AFFINITY") == workers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1--2", "1,,2", "²", "0-99999999"])
def test_no_lists_of_cpus(text):
    with pytest.raises(ConfigError):
        parse_cpus(text)


def test_lists_go_there_and_back():
    assert as_ranges(parse_cpus("8,0-3,2")) == "0-3,8"
