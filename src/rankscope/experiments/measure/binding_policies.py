"""Ways to bind the ranks of a host to its CPUs, and the launcher options for each.

==========  ===========================================================================================================
``compact``  neighboring cores to neighboring ranks: the first ranks fill the first socket
``spread``   ranks in turn to the NUMA nodes, and within a node as far apart as possible
``numa``     each rank on cores of its device's NUMA node; without devices, nodes are divided evenly
``list``     as given: ``0-3:4-7``, one list per rank, also with what mpiexec wants before it (``list:``)
==========  ===========================================================================================================

A rank gets cores with all their hardware threads; if there are more ranks than cores, cores are shared.

In: a host's topology, ranks and a policy's name. Out: CPUs per rank, and launcher options.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.errors import ConfigError
from rankscope.experiments.measure.topology import Core, Host
from rankscope.rundir.cpus import cpu_lists, cpu_masks, parse_cpus
from rankscope.rundir.plurals import counted
from rankscope.rundir.ranges import as_ranges

NONE, COMPACT, SPREAD, NUMA, LIST = "none", "compact", "spread", "numa", "list"
NAMES = (NONE, COMPACT, SPREAD, NUMA, LIST)


def bind(name: str, host: Host, ranks: int, cores: int | None = None, given: str | None = None) -> list[str]:
    """The CPUs of each local rank, as ``0-3,8``; empty for ``none``.

    Args:
        name: one of :data:`NAMES`.
        host: the host.
        ranks: the number of ranks on it.
        cores: cores per rank; by default all cores are divided among the ranks.
        given: the CPU lists for ``list``.

    Raises:
        ConfigError: an invalid list or an unknown name.
    """
    if name == NONE:
        return []
    if name == LIST:
        return _given_lists(given, host, ranks)
    if cores is not None and cores > len(host.cores):
        raise ConfigError(
            f"{counted(cores, 'core')} for each rank are more than the {len(host.cores)} that may be used here",
            hint=f"--cores {max(1, len(host.cores) // ranks)}"
            + (": none is shared" if ranks <= len(host.cores) else ""),
        )
    if name == COMPACT:
        per_rank = _share(len(host.cores), ranks, cores)
        return [_cpus_of(host.cores, rank * per_rank, per_rank) for rank in range(ranks)]
    if name == SPREAD:
        return _by_node(host, [host.nodes[rank % len(host.nodes)] for rank in range(ranks)], cores, far_apart=True)
    if name == NUMA:
        return _by_node(host, [_node_of(host, rank, ranks) for rank in range(ranks)], cores, far_apart=False)
    raise ConfigError(f"{name!r} is not a binding", hint=", ".join(NAMES))


def flags(cpus: Sequence[str], host: Host) -> dict[str, str]:
    """The options that set a binding: for Slurm, PALS and MPICH, any launcher, and oneAPI, as they apply.

    Args:
        cpus: the CPUs of each local rank; empty for no binding.
        host: the host.
    """
    if not cpus:
        return {"srun": "--cpu-bind=none", "mpiexec": "--cpu-bind=none"}
    joined = ":".join(cpus)
    numbers = [parse_cpus(text) for text in cpus]
    # Launchers name the local rank differently; torchrun and rankscope set LOCAL_RANK.
    per_rank = f"$(echo {joined} | cut -d: -f$((LOCAL_RANK+1)))"
    options = {
        "srun": f"--cpu-bind=mask_cpu:{cpu_masks(cpus)}",
        "mpiexec": f"--cpu-bind=list:{joined}",
        "taskset": f"taskset -c {per_rank} python train.py",
    }
    nodes = [{core.node for core in host.cores if set(core.cpus) & set(rank_cpus)} for rank_cpus in numbers]
    if all(len(rank_nodes) == 1 for rank_nodes in nodes):
        memory_nodes = ":".join(str(next(iter(rank_nodes))) for rank_nodes in nodes)
        memory = f"$(echo {memory_nodes} | cut -d: -f$((LOCAL_RANK+1)))"
        options["numactl"] = f"numactl --physcpubind={per_rank} --membind={memory} python train.py"
    if host.vendor == "Intel":
        options["ZE_FLAT_DEVICE_HIERARCHY"] = "FLAT"
        # Every rank sees all devices: a rank that saw only its own could not select it by local rank.
        options["ZE_AFFINITY_MASK"] = ",".join(map(str, range(len(cpus))))
        if workers := _worker_cpus(numbers, host):
            options["CCL_WORKER_AFFINITY"] = ",".join(map(str, workers))
    return options


def _worker_cpus(numbers: Sequence[Sequence[int]], host: Host) -> list[int]:
    """A CPU for each rank's oneCCL worker, which polls: on a free core, preferably the last one of the rank's NUMA
    node. Empty if there are too few free cores."""
    used = {cpu for rank_cpus in numbers for cpu in rank_cpus}
    free = [core for core in reversed(host.cores) if not used & set(core.cpus)]
    workers = []
    for rank_cpus in numbers:
        near = {core.node for core in host.cores if set(core.cpus) & set(rank_cpus)}
        core = next((core for core in free if core.node in near), None) or next(iter(free), None)
        if core is None:
            return []
        free.remove(core)
        workers.append(core.cpus[0])
    return workers


def _given_lists(given: str | None, host: Host, ranks: int) -> list[str]:
    lists = cpu_lists(given or "")
    if len(lists) != ranks:
        problem = f"{counted(len(lists), 'list')} of CPUs for {counted(ranks, 'rank')} of a host"
        raise ConfigError(problem, hint="write --list 0-3:4-7")
    known = {cpu for core in host.cores for cpu in core.cpus}
    unusable = sorted({cpu for text in lists for cpu in parse_cpus(text)} - known)
    if unusable:
        raise ConfigError(f"CPUs {as_ranges(unusable)} may not be used here", hint=f"usable: {as_ranges(known)}")
    return lists


def _by_node(host: Host, nodes: Sequence[int], cores: int | None, *, far_apart: bool) -> list[str]:
    lists = []
    for rank, node in enumerate(nodes):
        node_cores = [core for core in host.cores if core.node == node]
        if cores is not None and cores > len(node_cores):
            raise ConfigError(
                f"{cores} cores for each rank are more than the {len(node_cores)} of NUMA node {node}",
                hint="choose fewer --cores, or --affinities compact",
            )
        index, sharing = nodes[:rank].count(node), nodes.count(node)
        count = _share(len(node_cores), sharing, cores)
        step = max(count, len(node_cores) // sharing) if far_apart else count
        lists.append(_cpus_of(node_cores, index * step, count))
    return lists


def _node_of(host: Host, rank: int, ranks: int) -> int:
    nodes = host.nodes
    if host.devices:
        node = host.devices[rank % len(host.devices)].numa_node
        if node in nodes and node is not None:
            return node
    return nodes[rank * len(nodes) // ranks]


def _share(cores: int, ranks: int, wanted: int | None) -> int:
    return max(1, min(wanted or cores, cores // ranks if wanted is None else cores))


def _cpus_of(cores: Sequence[Core], first: int, count: int) -> str:
    picked = [cores[(first + k) % len(cores)] for k in range(min(count, len(cores)))]
    return as_ranges(cpu for core in picked for cpu in core.cpus)
