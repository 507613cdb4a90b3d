"""Larger buckets: successive all-reduces of a group as one, as with another `bucket_cap_mb` of DDP.

In: a graph. Out: a graph in which what waited for one of several buckets waits for the last of them, and the transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.errors import ConfigError
from rankscope.primitives.intervals import Int64
from rankscope.rundir.ranges import named_ranks
from rankscope.whatif.graph import Bool, C, E, Float, Graph, in_order, line_order
from rankscope.whatif.replay import Costs
from rankscope.whatif.scenarios import Scenario


@dataclass(frozen=True)
class Buckets:
    """Several successive buckets of DDP are one.

    Buckets are all-reduces of a group in a step that follow each other without a wait for any of them. The one that
    they become starts when the last of them does, and its transfer takes as long as theirs, less the latency of those
    that are saved: the latency is fitted to the group's own transfers, by size.

    Attributes:
        factor: how many become one.
    """

    factor: float

    @property
    def name(self) -> str:
        """In words."""
        return f"all-reduce buckets {self.factor:g} times as large"

    @property
    def option(self) -> str:
        """As an option of `rankscope whatif`."""
        return f"--buckets {self.factor:g}x"

    def apply(self, graph: Graph, costs: Costs) -> Costs:
        """The costs with it, from those without."""
        last = self.last(graph)
        merged = last != np.arange(last.size)
        factor = np.where(graph.transfer > 0, costs.transfer / np.maximum(graph.transfer, 1), 1.0)
        saved = self._latency(graph, merged) * factor
        transfer = costs.transfer + np.bincount(last[merged], np.maximum(costs.transfer - saved, 0)[merged], last.size)
        transfer = np.where(merged, 0.0, np.maximum(transfer, costs.transfer))
        hidden = np.divide(costs.overlapped, costs.transfer, out=np.zeros_like(transfer), where=costs.transfer > 0)
        return replace(costs, transfer=transfer, overlapped=hidden * transfer)

    def regrouped(self, graph: Graph) -> Graph:
        """The graph in which what waits for a bucket waits for the one that it becomes part of.

        Raises:
            ConfigError: the run cannot tell.
        """
        last = self.last(graph)
        size = max(last.size, 1)
        nodes = np.flatnonzero(graph.kind == C)
        key = graph.line[nodes] * size + graph.collective[nodes]
        by_key = np.argsort(key)
        owner = np.repeat(np.arange(graph.kind.size), np.diff(graph.need_start))
        # The next bucket of its stream does not wait for what it is part of.
        waits = graph.kind[owner] != C
        wanted = graph.line[owner] * size + last[graph.collective[graph.needs]]
        found = nodes[by_key][np.searchsorted(key[by_key], wanted)]
        changed = in_order(line_order(replace(graph, needs=np.where(waits, found, graph.needs))))
        if changed.dropped > 0:
            raise ConfigError(
                f"{self.option}: a rank waits for a bucket before another rank starts the next one",
                hint="larger buckets would wait for each other",
            )
        return replace(changed, dropped=graph.dropped)

    def last(self, graph: Graph) -> Int64:
        """(collectives,) the last of the buckets that each becomes one with; itself for what stays as it is.

        Raises:
            ConfigError: the factor is no whole number, or there is nothing to merge.
        """
        if self.factor < 2 or self.factor != int(self.factor):
            raise ConfigError(
                f"{self.option}: a trace does not record when the parts of a bucket are ready, so only whole buckets "
                "can become one",
                hint="write 2x, 3x, …",
            )
        every = np.flatnonzero((graph.reduced > 0) & (graph.group >= 0))
        if every.size < 2:
            raise self._nothing_to_merge()
        order = every[np.lexsort((every, graph.group[every]))]
        opens = _opens(graph)[order] | (np.diff(graph.group[order], prepend=-1) != 0)
        first = np.flatnonzero(opens)
        run = np.cumsum(opens) - 1
        bucket = (np.arange(order.size) - first[run]) // int(self.factor)
        closes = np.ones(order.size, dtype=np.bool_)
        closes[:-1] = (np.diff(run) != 0) | (np.diff(bucket) != 0)
        last = np.arange(graph.transfer.size)
        closing = np.flatnonzero(closes)
        last[order] = order[closing[np.searchsorted(closing, np.arange(order.size))]]
        if (last == np.arange(last.size)).all():
            raise self._nothing_to_merge()
        return last

    def _nothing_to_merge(self) -> ConfigError:
        return ConfigError(
            f"{self.option}: no all-reduces of known size follow each other without a wait for one of them",
            hint="it is about DDP's gradient buckets: `rankscope analyze ddp_buckets RUN` lists them",
        )

    def _latency(self, graph: Graph, merged: Bool) -> Float:
        """(collectives,) the latency of the transfers of each group with buckets, ns."""
        latency = np.zeros(graph.transfer.size)
        for group in np.unique(graph.group[merged]).tolist():
            mine = (graph.group == group) & (graph.reduced > 0)
            sizes, number = np.unique(graph.reduced[mine], return_inverse=True)
            usual = np.array(
                [np.median(graph.transfer[mine][number.reshape(-1) == each]) for each in range(sizes.size)]
            )
            if sizes.size < 2:
                ranks = named_ranks(graph.group_ranks[group])
                raise ConfigError(
                    f"{self.option}: all all-reduces of {ranks} have one size, so their latency is not known",
                    hint="record a run with another bucket_cap_mb, so that its buckets have several sizes",
                )
            slope, intercept = np.polyfit(sizes, usual, 1)
            latency[mine] = np.clip(intercept if slope > 0 else usual.min(), 0, usual.min())
        return latency


def _opens(graph: Graph) -> Bool:
    """(collectives,) whether a bucket is the first after a wait for one before it, or of a step."""
    size = int(graph.group.max(initial=0)) + 1
    owner = np.repeat(np.arange(graph.kind.size), np.diff(graph.need_start))
    waited = np.flatnonzero(
        (graph.kind[owner] != C) & (graph.kind[owner] != E) & (graph.group[graph.collective[graph.needs]] >= 0)
    )
    nodes = np.flatnonzero((graph.kind == C) & (graph.group[graph.collective] >= 0))
    which = graph.collective[nodes]
    # One row per launch and per wait, by line and group, in the order of the host.
    at = np.concatenate([nodes, owner[waited]])
    key = graph.line[at] * size + graph.group[np.concatenate([which, graph.collective[graph.needs[waited]]])]
    bucket = np.concatenate([np.where(graph.reduced[which] > 0, which, -1), np.full(waited.size, -1)])
    order = np.lexsort((at, key))
    key, bucket, step = key[order], bucket[order], graph.step[at[order]]
    follows = np.zeros(order.size, dtype=np.bool_)
    follows[1:] = (np.diff(key) == 0) & (bucket[:-1] >= 0) & (np.diff(step) == 0)
    opens = np.zeros(graph.transfer.size, dtype=np.bool_)
    opens[bucket[(bucket >= 0) & ~follows]] = True
    return opens


def regrouped(graph: Graph, scenarios: Sequence[Scenario]) -> Graph:
    """The graph with those of some scenarios that change what waits for what.

    Raises:
        ConfigError: the run cannot tell.
    """
    for each in scenarios:
        if isinstance(each, Buckets):
            graph = each.regrouped(graph)
    return graph
