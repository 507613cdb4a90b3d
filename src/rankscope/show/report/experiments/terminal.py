"""The results of `rankscope measure` in the terminal.

In: a result. Out: tables, a sentence with the conclusion, and how it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.experiments.measure.results import (
    AnyResult,
    Binding,
    Buckets,
    EfficiencyLoss,
    Overhead,
    ProfilerCost,
    Recommendation,
    Scaling,
    Setting,
    Share,
    Size,
    Time,
    TraceSummary,
)
from rankscope.experiments.measure.statistics import difference_from, verdict_of
from rankscope.rundir.plurals import counted
from rankscope.show.report.experiments.statements import statements
from rankscope.show.report.formatting import NOTHING, number_of, plain, sentence, signed_number, with_interval

_FAILURE_LINES = 12
_DIFFERENCE = ("difference", "verdict")
_MODES = {"weak": "Weak scaling (the same batch on each rank)", "strong": "Strong scaling (the same global batch)"}
_OVERHEADS = (
    "1 − efficiency: the loss against T1. sync: gradient synchronization's share of the step, measured with and "
    "without it. exposed: the share of exposed communication of the worst rank, from a profiled window, and how much "
    "of it is waiting for other ranks."
)


def measured(result: AnyResult) -> RenderableType:
    """The result as tables, with how it was measured."""
    if isinstance(result, Overhead):
        parts = _overhead(result)
    elif isinstance(result, Scaling):
        parts = _scaling(result)
    elif isinstance(result, Buckets):
        parts = _buckets(result)
    elif isinstance(result, Binding):
        parts = _binding(result)
    else:
        parts = _profiler(result)
    return Group(*parts, *_setting(result.setting))


def _overhead(result: Overhead) -> list[RenderableType]:
    table = _table("", "sync", "no sync", "difference")
    for name in ("step", "forward_backward", "forward", "backward", "optimizer", "rest"):
        on, off = getattr(result.sync, name), getattr(result.no_sync, name)
        if on is None or off is None:
            continue
        difference = result.sync_cost if name == "step" else difference_from(on, off)
        label = "forward and backward" if name == "forward_backward" else name
        table.add_row(label, _time(on), _time(off), _time(difference, signed=True))
    head = (
        f"{result.wrapper.upper()} on {counted(result.world_size, 'rank')}, {result.setting.device or 'device unknown'}"
    )
    return [_line(head), table, Text(), *_statements(result)]


def _statements(result: AnyResult) -> list[RenderableType]:
    return [_line(sentence(said), bold=not number) for number, said in enumerate(statements(result))]


def _exposed(shown: str, traced: TraceSummary) -> str:
    """Exposed communication, and how much of it is waiting."""
    waits, exposed = traced.exposed_wait_ns, traced.exposed_communication_ns
    return shown if waits is None or not exposed else f"{shown}, {_percent(waits / exposed)} waiting"


def _scaling(result: Scaling) -> list[RenderableType]:
    table = _table("ranks", "step", "speed-up", "efficiency", "1 − efficiency", "sync", "exposed", "")
    for size in result.sizes:
        table.add_row(
            size.name,
            _time(size.step),
            _ratio(size.speed_up),
            _share(size.efficiency),
            _share(size.derived_overhead),
            _share(size.measured_overhead),
            NOTHING if size.traced is None else _exposed(_percent(size.traced.exposed_share), size.traced),
            _remark(size),
        )
    parts: list[RenderableType] = [
        _line(f"{_MODES.get(result.mode, result.mode)}; baseline T1: {_base(result.base)}"),
        table,
        Text(),
        *_statements(result),
        _line(_OVERHEADS, style="dim"),
    ]
    errors = [size for size in result.sizes if size.error]
    parts += [_failure(size.name, size.error) for size in errors if size.error]
    lost = [(size, size.lost) for size in result.sizes if size.lost is not None and not size.oversubscribed]
    if lost:
        parts += [
            Text(),
            _line("Time lost per step against perfect scaling, from the traces of the worst ranks"),
            _lost(lost),
        ]
    if result.projection is not None:
        projected = _table("ranks", "speed-up", "efficiency", "step")
        for point in result.projection.points:
            projected.add_row(
                str(point.ranks), _ratio(point.speed_up), _share(point.efficiency), number_of(point.step_ns, "ns")
            )
        law = result.projection
        name = "Amdahl's law" if law.model == "amdahl" else "the Universal Scalability Law"
        head = f"Projection, not measured: {name}, {law.formula}; sigma {law.contention:.3g}, kappa {law.coherence:.3g}"
        parts += [Text(), _line(head), projected, _line(f"Assumed: {'; '.join(law.assumptions)}.", style="dim")]
    return parts


def _base(base: str | None) -> str:
    return {"plain": "the plain process", "1": "the job of one rank", None: "unknown"}.get(base, str(base))


def _remark(size: Size) -> str:
    notes = [] if size.state == "done" else [size.state]
    return ", ".join(notes + (["oversubscribed"] if size.oversubscribed else []))


def _lost(lost: Sequence[tuple[Size, EfficiencyLoss]]) -> RenderableType:
    table = _table("ranks", "total", "compute", "exposed communication", "of which waiting", "data loading", "other")
    for size, each in lost:
        table.add_row(
            size.name,
            _signed(each.total_ns),
            _signed(each.compute_ns),
            _signed(each.exposed_communication_ns),
            NOTHING if each.wait_ns is None else number_of(each.wait_ns, "ns"),
            _signed(each.data_loading_ns),
            _signed(each.other_ns),
        )
    return table


def _buckets(result: Buckets) -> list[RenderableType]:
    table = _table("", "step", *_DIFFERENCE, "all-reduces", "buckets", "first", "hidden", "exposed, worst rank")
    for variant in result.variants:
        sizes, traced = variant.bucket_bytes or [], variant.traced
        reduces = traced.all_reduces if traced is not None else None
        hidden = traced.overlap_ratio if traced is not None else None
        table.add_row(
            variant.name,
            _time(variant.step) if variant.step is not None else variant.state,
            *_difference(variant.difference),
            NOTHING if reduces is None else f"{reduces:.4g}",
            str(len(sizes)) if sizes else NOTHING,
            number_of(sizes[0], "bytes") if sizes else NOTHING,
            NOTHING if hidden is None else _percent(hidden),
            NOTHING if traced is None else _exposed(number_of(traced.exposed_communication_ns, "ns"), traced),
        )
    failed = [_failure(each.name, each.error) for each in result.variants if each.error]
    return [
        _line(f"{result.wrapper.upper()} on {counted(result.world_size, 'rank')}"),
        table,
        *failed,
        Text(),
        _advice(result.recommendation),
    ]


def _binding(result: Binding) -> list[RenderableType]:
    host = result.topology
    launched = any(variant.launch_latency is not None for variant in result.variants)  # not on the CPU
    table = _table("", "step", *_DIFFERENCE, *(["launch"] if launched else []), "CPUs of each rank")
    for variant in result.variants:
        table.add_row(
            variant.name,
            _time(variant.step) if variant.step is not None else variant.state,
            *_difference(variant.difference),
            *([_time(variant.launch_latency)] if launched else []),
            plain(" : ".join(variant.cpus) or "any"),
        )
    failed = [_failure(each.name, each.error) for each in result.variants if each.error]
    parts: list[RenderableType] = [
        _line(
            f"{counted(result.world_size, 'rank')} on {counted(host.cores, 'core')} (CPUs {host.cpus}), "
            f"{counted(host.sockets, 'socket')}, {counted(len(host.nodes), 'NUMA node')}, "
            f"{counted(len(host.devices), 'device') if host.devices else 'no device'}"
        ),
        table,
        *failed,
        Text(),
        _advice(result.recommendation),
    ]
    for variant in result.variants:
        if variant.cpus and variant.step is not None:
            parts += [Text(), _line(f"{variant.name}:", bold=True)]
            parts += [_line(f"  {name}: {text}") for name, text in variant.flags.items()]
    return parts


def _profiler(result: ProfilerCost) -> list[RenderableType]:
    table = _table("", "step", "cost", "verdict", "stop", "save", "trace per step")
    for variant in result.variants:
        size = variant.bytes_per_step
        table.add_row(
            variant.name,
            _time(variant.step),
            *_difference(variant.cost),
            NOTHING if variant.stop is None else number_of(variant.stop.median_ns, "ns"),
            NOTHING if variant.save is None else number_of(variant.save.median_ns, "ns"),
            NOTHING if size is None else number_of(size, "bytes"),
        )
    head = f"Profiler overhead on {counted(result.world_size, 'rank')}, {result.setting.device or 'device unknown'}"
    return [_line(head), table]


def _advice(advice: Recommendation) -> RenderableType:
    return _line(advice.text[:1].upper() + advice.text[1:], bold=True)


def _setting(setting: Setting) -> list[RenderableType]:
    load = "" if setting.load is None else f"; load average before {setting.load:g}"
    lines = [
        f"In brackets the {100 * setting.confidence:.0f} % interval: {setting.method}. A difference is significant if "
        "its interval excludes 0.",
        f"{counted(setting.repeats, 'job')} of each kind; in each {counted(setting.warmup_steps, 'step')} of warm-up, "
        f"then up to {counted(setting.blocks, 'block')} of each condition: {counted(setting.settle_steps, 'step')} to "
        f"settle, {setting.block_steps} that count{'s' * (setting.block_steps == 1)}; seed {setting.seed}; clock: "
        f"{setting.clock}{load}.",
        *setting.notes,
    ]
    return [Text(), *(_line(line, style="dim") for line in lines)]


def _table(*columns: str) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or number == len(columns) - 1 else "right")
    return table


def _line(text: str, *, bold: bool = False, style: str = "") -> Text:
    return Text(plain(text, limit=2000), style="bold" if bold else style)


def _failure(name: str, error: str) -> Text:
    """Why one failed: the last lines of its output."""
    first, *others = error.splitlines() or [""]
    lines = [f"{name} failed: {plain(first, limit=600)}"]
    lines += ["    …"] if len(others) > _FAILURE_LINES else []
    lines += [f"    {plain(line)}" for line in others[-_FAILURE_LINES:] if line.strip()]
    return Text("\n".join(lines))


def _time(time: Time | None, *, signed: bool = False) -> str:
    return NOTHING if time is None else with_interval(time.median_ns, time.low_ns, time.high_ns, "ns", signed=signed)


def _signed(ns: float) -> str:
    return signed_number(ns, "ns")


def _share(share: Share | None) -> str:
    return NOTHING if share is None else with_interval(share.value, share.low, share.high, "ratio")


def _ratio(share: Share | None) -> str:
    if share is None:
        return NOTHING
    ends = "" if share.low is None or share.high is None else f" ({share.low:.2f} to {share.high:.2f})"
    return f"{share.value:.2f}{ends}"


def _difference(share: Share | None) -> tuple[str, str]:
    """The difference to the base with its interval, and the verdict on it."""
    if share is None:
        return NOTHING, ""
    # Without an interval it may be all noise, and is no figure.
    shown = NOTHING if share.low is None else with_interval(share.value, share.low, share.high, "ratio", signed=True)
    return shown, verdict_of(share, 0, 0).significance.value


def _percent(value: float) -> str:
    return number_of(value, "ratio")
