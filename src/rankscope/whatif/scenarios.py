"""Scenarios: what would be different, as small values, and what the segments of a run would then cost.

In: a graph and costs. Out: the costs of a scenario; an error that names the option if the run cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rankscope.errors import ConfigError
from rankscope.rundir.ranges import as_ranges, named_ranks
from rankscope.whatif.graph import PARTS, Bool, Float, Graph, Places, S
from rankscope.whatif.moments import HOST_PARTS
from rankscope.whatif.replay import Costs

COMPONENTS = {
    "compute": ("compute",),
    "copies": ("copies",),
    "data_loading": ("data_loading",),
    "allocation": ("allocation",),
    "host": ("runtime", "operators", "nothing"),
}
"""What a rank can be slow in, and the parts of its time that this is."""
WITHOUT = {
    "data_loading": "no data loading",
    "allocation": "no calls for device memory",
    "copies": "no copies",
    "synchronization": "the host never waits for its device",
    "launches": "the host needs no time to launch",
}
"""What can take no time, as options of `rankscope whatif`."""


class Scenario(Protocol):
    """Something that could be different."""

    @property
    def name(self) -> str:
        """In words."""
        ...

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`; empty for none."""
        ...

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without.

        Raises:
            ConfigError: the run cannot tell.
        """
        ...


@dataclass(frozen=True)
class AsPeers:
    """Some ranks take as long as the mean of the other ranks with their program, place by place.

    What varies from step to step stays as it is: only the means are made equal, of components in which a rank takes
    longer than its peers.

    Attributes:
        ranks: which.
        component: one of `COMPONENTS`; empty for all.
        steps: only in these steps, by number; empty for all.
    """

    ranks: tuple[int, ...]
    component: str = ""
    steps: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """In words."""
        what = f"{self.component.replace('_', ' ')} of " if self.component else ""
        when = f" in steps {as_ranges(self.steps)}" if self.steps else ""
        whose = "its" if len(self.ranks) == 1 else "their"
        return f"{what}{named_ranks(self.ranks)} like {whose} peers{when}"

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`."""
        component = f":{self.component}" if self.component else ""
        steps = f"@{as_ranges(self.steps)}" if self.steps else ""
        return f"--fix rank={','.join(map(str, self.ranks))}{component}{steps}"

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without."""
        fixed = _lines(graph, self.ranks, self.option)
        alone = [
            int(graph.lines.rank[line])
            for line in np.flatnonzero(fixed).tolist()
            if not _peers(graph, fixed, line).any()
        ]
        if alone:
            raise ConfigError(
                f"{self.option}: {named_ranks(alone)} cannot be compared: no other rank runs the same program",
                hint="fix fewer ranks, or use --balance stages",
            )
        comparison = Comparison.of(graph, fixed, self.steps)
        factor = comparison.factor(graph, [self.component] if self.component else list(COMPONENTS))
        stretches = graph.stretches
        nodes = np.flatnonzero(fixed[graph.line] & (stretches.of_node >= 0))
        nodes = nodes[_chosen(graph, self.steps)[stretches.step[stretches.of_node[nodes]]]]
        row = comparison.places.of_stretch[stretches.of_node[nodes]]
        host, device, waits = costs.host.copy(), costs.device.copy(), costs.waits
        host[nodes] *= factor[row, : len(HOST_PARTS)]
        device[nodes] *= factor[row, len(HOST_PARTS) :]
        if self.component in ("", "allocation"):
            waits = waits.copy()
            waits[nodes] &= ~(comparison.more_waits[row] & graph.allocates[nodes])
        return replace(costs, host=host, device=device, waits=waits)


@dataclass(frozen=True)
class Network:
    """Every transfer between ranks is faster by a factor."""

    factor: float

    @property
    def name(self) -> str:
        """In words."""
        return f"a network {self.factor:g} times as fast"

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`."""
        return f"--network {self.factor:g}x"

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without."""
        _check_collectives(graph, self.option)
        return _transferred(graph, costs, np.where(graph.group >= 0, 1 / self.factor, 1.0))


@dataclass(frozen=True)
class GroupAsOthers:
    """The transfers of one group are as fast as those of comparable groups: the same operation and size.

    Attributes:
        ranks: of the group.
    """

    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """In words."""
        return f"network of {named_ranks(self.ranks)} like that of comparable groups"

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`."""
        return f"--fix group={','.join(map(str, self.ranks))}"

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without."""
        number = {ranks: group for group, ranks in graph.group_ranks.items()}.get(self.ranks)
        if number is None:
            raise ConfigError(
                f"{self.option}: these ranks have no matched collective of their own",
                hint="name the ranks of a process group: `rankscope analyze collectives RUN` lists them",
            )
        share = group_factors(graph, number)
        if (share == 1).all():
            raise ConfigError(
                f"{self.option}: no other group moves data of the same size, so nothing tells how fast it could be",
                hint="use --network 2x",
            )
        return _transferred(graph, costs, share)


@dataclass(frozen=True)
class Overlapped:
    """All transfers overlap with compute: nothing waits for their end; late ranks are waited for."""

    @property
    def name(self) -> str:
        """In words."""
        return "all transfers overlap with compute"

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`."""
        return "--overlap"

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without."""
        _check_collectives(graph, self.option)
        matched = graph.group >= 0
        overlapped = np.where(matched, costs.transfer, costs.overlapped)
        return replace(costs, overlapped=overlapped, skew=_skew(graph, costs, np.where(matched, 0.0, 1.0)))


@dataclass(frozen=True)
class Without:
    """Something takes no time.

    Attributes:
        what: one of `WITHOUT`, or `compute`, which bounds what findings save.
    """

    what: str

    @property
    def name(self) -> str:
        """In words."""
        return WITHOUT.get(self.what, f"no {self.what}")

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`; empty for a bound that nobody asks for."""
        return f"--no-{self.what.replace('_', '-')}" if self.what in WITHOUT else ""

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without."""
        is_wait = graph.kind == S
        on_device = graph.lines.on_device[graph.line]
        if self.what == "synchronization":
            return replace(costs, waits=costs.waits & ~(is_wait & on_device))
        component = "host" if self.what == "launches" else self.what
        parts = component_parts(graph)[component][graph.line]
        scaled = _scaled(costs, np.where(parts, 0.0, 1.0))
        return replace(scaled, waits=scaled.waits & ~graph.allocates) if self.what == "allocation" else scaled


@dataclass(frozen=True)
class Balanced:
    """Compute is shared equally in every step: among ranks with one program, or among the stages of a pipeline.

    Attributes:
        over: `ranks` or `stages`.
    """

    over: str

    @property
    def name(self) -> str:
        """In words."""
        return f"compute balanced over {self.over}"

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`."""
        return f"--balance {self.over}"

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without."""
        roles = graph.lines.role
        several = (
            np.unique(roles).size > 1
            if self.over == "stages"
            else np.bincount(np.unique(roles, return_inverse=True)[1]).max(initial=0) > 1
        )
        if not several:
            missing = "all recorded ranks run one program" if self.over == "stages" else "no two ranks run one program"
            raise ConfigError(f"{self.option}: {missing}, so there is nothing to balance")
        parts = component_parts(graph)["compute"][graph.line]
        inside = graph.step >= 0
        steps = len(graph.step_names)
        key = graph.line[inside] * steps + graph.step[inside]
        work = (np.concatenate([costs.host, costs.device], axis=1) * parts).sum(axis=1)[inside]
        total = np.bincount(key, work, graph.lines.rank.size * steps).reshape(-1, steps)
        recorded = total > 0
        number = np.unique(roles, return_inverse=True)[1].reshape(-1)
        of_role = np.zeros((number.max() + 1, steps))
        counted = np.zeros_like(of_role)
        np.add.at(of_role, number, total)
        np.add.at(counted, number, recorded)
        mean = of_role / np.maximum(counted, 1)
        if self.over == "ranks":
            share = mean[number] / np.where(recorded, total, 1)
        else:
            share = (total.sum(axis=0) / np.maximum(recorded.sum(axis=0), 1) / np.where(mean > 0, mean, 1))[number]
        share = np.where(recorded, share, 1.0)
        factor = np.ones((graph.line.size, len(PARTS)))
        factor[inside] = np.where(parts[inside], share[graph.line[inside], graph.step[inside]][:, None], 1.0)
        return _scaled(costs, factor)


def component_parts(graph: Graph) -> dict[str, Bool]:
    """(lines, `PARTS`) which parts each component is; without a device, operators are compute."""
    found = {}
    for component, names in COMPONENTS.items():
        parts = np.zeros((graph.lines.rank.size, len(PARTS)), dtype=np.bool_)
        parts[:, [PARTS.index(name) for name in names]] = True
        found[component] = parts
    operators = PARTS.index("operators")
    found["compute"][~graph.lines.on_device, operators] = True
    found["host"][~graph.lines.on_device, operators] = False
    return found


def costs_of(graph: Graph, scenarios: Sequence[Scenario]) -> Costs:
    """The costs with several scenarios at once. Ranks that are fixed together are no peers of one another."""
    fixed: dict[tuple[str, tuple[int, ...]], set[int]] = {}
    for each in scenarios:
        if isinstance(each, AsPeers):
            fixed.setdefault((each.component, each.steps), set()).update(each.ranks)
    merged: list[Scenario] = [AsPeers(tuple(sorted(ranks)), *rest) for rest, ranks in fixed.items()]
    costs = Costs.recorded(graph)
    for scenario in [*merged, *(each for each in scenarios if not isinstance(each, AsPeers))]:
        costs = scenario.apply(graph, costs)
    return costs


def _scaled(costs: Costs, factor: Float) -> Costs:
    parts = len(HOST_PARTS)
    return replace(costs, host=costs.host * factor[:, :parts], device=costs.device * factor[:, parts:])


def _transferred(graph: Graph, costs: Costs, share: Float) -> Costs:
    """The costs with a share of each transfer."""
    skew = _skew(graph, costs, share)
    return replace(costs, transfer=costs.transfer * share, overlapped=costs.overlapped * share, skew=skew)


def _skew(graph: Graph, costs: Costs, share: Float) -> Float:
    """The skew with a share of each transfer: on hosts, what a rank takes longer than the first is a part of it."""
    skew: Float = costs.skew.copy()
    on_host = np.flatnonzero((graph.collective >= 0) & ~graph.lines.on_device[graph.line])
    skew[on_host] *= share[graph.collective[on_host]]
    return skew


def _lines(graph: Graph, ranks: tuple[int, ...], option: str) -> Bool:
    unknown = sorted(set(ranks) - set(graph.lines.rank.tolist()))
    if unknown:
        raise ConfigError(
            f"{option}: {named_ranks(unknown)} cannot be replayed",
            hint=f"ranks that can: {as_ranges(sorted(set(graph.lines.rank.tolist())))}",
        )
    return np.isin(graph.lines.rank, ranks)


def _check_collectives(graph: Graph, option: str) -> None:
    if not (graph.group >= 0).any():
        raise ConfigError(
            f"{option}: no collective was matched over ranks, so it is not known how long a transfer takes",
            hint="record several ranks",
        )


def _peers(graph: Graph, fixed: Bool, line: int) -> Bool:
    lines = graph.lines
    peers: Bool = (lines.role == lines.role[line]) & (lines.window == lines.window[line]) & ~fixed
    return peers


def _chosen(graph: Graph, steps: tuple[int, ...]) -> Bool:
    """Which steps are meant; all if none are named."""
    numbers = np.array([number for _, number in graph.step_names], dtype=np.int64)
    return np.isin(numbers, steps) if steps else np.ones(numbers.size, dtype=np.bool_)


@dataclass(frozen=True)
class Comparison:
    """Some lines, place by place, and their peers.

    Attributes:
        places: what all lines do.
        excess: (rows, `PARTS`) how much longer than their peers they take, over all steps, ns; 0 for other lines.
        mean: (rows, `PARTS`) the peers' mean by their own.
        more_waits: whether they have more waits in calls for memory.
    """

    places: Places
    excess: Float
    mean: Float
    more_waits: Bool

    @classmethod
    def of(cls, graph: Graph, fixed: Bool, steps: tuple[int, ...] = ()) -> Comparison:
        """Compare some lines in some steps, all if none are named."""
        places = graph.places
        if steps:
            places = Places.of(graph.stretches, graph.lines, _chosen(graph, steps)[graph.stretches.step])
        peers, waits, has_peers = places.peer_means(fixed)
        compared = fixed[places.line] & has_peers & (places.count > 0)
        count = np.maximum(places.count, 1)
        own = places.total / count[:, None]
        share = np.divide(peers, own, out=np.ones_like(own), where=(own > 0) & compared[:, None])
        excess = places.total * (1 - share)
        return cls(places, excess, share, compared & (places.memory_waits / count > waits + 0.5))

    def factor(self, graph: Graph, components: Sequence[str]) -> Float:
        """(rows, `PARTS`) the factors that make lines like their peers in components in which they take longer."""
        factor = np.ones_like(self.mean)
        parts_of = component_parts(graph)
        for component in components:
            parts = parts_of[component][self.places.line]
            excess = np.bincount(self.places.line, (self.excess * parts).sum(axis=1), graph.lines.rank.size)
            longer = parts & (excess > 0)[self.places.line][:, None]
            factor[longer] = self.mean[longer]
        return factor


def group_factors(graph: Graph, group: int) -> Float:
    """By how much each transfer of a group would be longer if it were like comparable groups; never more than 1.

    By program: the median of the other groups' mean transfers.
    """
    factor = np.ones(graph.transfer.size)
    mine = np.flatnonzero(graph.group == group)
    means = graph.mean_transfers
    for program in np.unique(graph.program[mine]).tolist():
        groups, usual = means[program]
        others, own = usual[groups != group], float(usual[groups == group][0])
        if others.size and own > 0:
            factor[mine[graph.program[mine] == program]] = min(float(np.median(others)) / own, 1.0)
    return factor
