"""Ways to bind the ranks of a host to its CPUs, and the launcher options for each.

==========  ===========================================================================================================
``compact``  neighbouring cores to neighbouring ranks: the first ranks fill the first socket
``spread``   ranks in turn to the NUMA nodes, and within a node as far apart as possible
``numa``     each rank on cores of its device's NUMA node; without devices, nodes are divided evenly
``list``     as given: ``0-3:4-7``, one list per rank
==========  ===========================================================================================================

A rank gets cores with all their hardware threads; if there are more ranks than cores, cores are shared.

In: a host's topology, ranks and a policy's name. Out: CPUs per rank, and launcher options.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.errors import ConfigError
from rankscope.measure.topology import Core, Host
from rankscope.rundir.cpus import cpu_masks, parse_cpus
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
        return _given(given, host, ranks)
    if cores is not None and cores > len(host.cores):
        raise ConfigError(
            f"{counted(cores, 'core')} for each rank are more than the {len(host.cores)} that may be used here",
            hint=f"--cores {max(1, len(host.cores) // ranks)}"
            + (": none is shared" if ranks <= len(host.cores) else ""),
        )
    if name == COMPACT:
        each = _share(len(host.cores), ranks, cores)
        return [_of(host.cores, rank * each, each) for rank in range(ranks)]
    if name == SPREAD:
        return _by_node(host, [host.nodes[rank % len(host.nodes)] for rank in range(ranks)], cores, apart=True)
    if name == NUMA:
        return _by_node(host, [_node_of(host, rank, ranks) for rank in range(ranks)], cores, apart=False)
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
    found = {
        "srun": f"--cpu-bind=mask_cpu:{cpu_masks(cpus)}",
        "mpiexec": f"--cpu-bind=list:{joined}",
        "taskset": f"taskset -c {per_rank} python train.py",
    }
    nodes = [{core.node for core in host.cores if set(core.cpus) & set(each)} for each in numbers]
    if all(len(each) == 1 for each in nodes):
        own = ":".join(str(next(iter(each))) for each in nodes)
        memory = f"$(echo {own} | cut -d: -f$((LOCAL_RANK+1)))"
        found["numactl"] = f"numactl --physcpubind={per_rank} --membind={memory} python train.py"
    if host.vendor == "Intel":
        found["ZE_FLAT_DEVICE_HIERARCHY"] = "FLAT"
        # All ranks see the devices of all: a rank that saw its own alone could not choose it by its local rank.
        found["ZE_AFFINITY_MASK"] = ",".join(map(str, range(len(cpus))))
        if workers := _worker_cpus(numbers, host):
            found["CCL_WORKER_AFFINITY"] = ",".join(map(str, workers))
    return found


def _worker_cpus(numbers: Sequence[Sequence[int]], host: Host) -> list[int]:
    """A CPU for each rank's oneCCL worker, which polls: of a core that no rank has, the last ones of the rank's NUMA
    node first. Empty if there are too few."""
    taken = {cpu for each in numbers for cpu in each}
    free = [core for core in reversed(host.cores) if not taken & set(core.cpus)]
    found = []
    for each in numbers:
        near = {core.node for core in host.cores if set(core.cpus) & set(each)}
        core = next((core for core in free if core.node in near), None) or next(iter(free), None)
        if core is None:
            return []
        free.remove(core)
        found.append(core.cpus[0])
    return found


def _given(given: str | None, host: Host, ranks: int) -> list[str]:
    lists = [as_ranges(parse_cpus(part)) for part in (given or "").split(":") if part.strip()]
    if len(lists) != ranks:
        problem = f"{counted(len(lists), 'list')} of CPUs for {counted(ranks, 'rank')} of a host"
        raise ConfigError(problem, hint="write --list 0-3:4-7")
    known = {cpu for core in host.cores for cpu in core.cpus}
    unusable = sorted({cpu for text in lists for cpu in parse_cpus(text)} - known)
    if unusable:
        raise ConfigError(f"CPUs {as_ranges(unusable)} may not be used here", hint=f"usable: {as_ranges(known)}")
    return lists


def _by_node(host: Host, wanted: Sequence[int], cores: int | None, *, apart: bool) -> list[str]:
    found = []
    for rank, node in enumerate(wanted):
        own = [core for core in host.cores if core.node == node]
        if cores is not None and cores > len(own):
            raise ConfigError(
                f"{cores} cores for each rank are more than the {len(own)} of NUMA node {node}",
                hint="choose fewer --cores, or --affinities compact",
            )
        place, fellows = wanted[:rank].count(node), wanted.count(node)
        each = _share(len(own), fellows, cores)
        step = max(each, len(own) // fellows) if apart else each
        found.append(_of(own, place * step, each))
    return found


def _node_of(host: Host, rank: int, ranks: int) -> int:
    nodes = host.nodes
    if host.devices:
        node = host.devices[rank % len(host.devices)].numa_node
        if node in nodes and node is not None:
            return node
    return nodes[rank * len(nodes) // ranks]


def _share(cores: int, ranks: int, wanted: int | None) -> int:
    return max(1, min(wanted or cores, cores // ranks if wanted is None else cores))


def _of(cores: Sequence[Core], first: int, count: int) -> str:
    picked = [cores[(first + k) % len(cores)] for k in range(min(count, len(cores)))]
    return as_ranges(cpu for core in picked for cpu in core.cpus)
