"""What the results of `rankscope measure` say, in sentences: the same in the terminal, the report and the page.

In: a result. Out: headlines, the most important first.
"""

from __future__ import annotations

from rankscope.experiments.measure.results import AnyResult, Binding, Buckets, Overhead, Scaling, Share, TraceSummary
from rankscope.experiments.measure.statistics import verdict_of
from rankscope.results import Headline
from rankscope.rundir.plurals import plural

Values = dict[str, tuple[int | float | str, str]]


def statements(result: AnyResult) -> list[Headline]:
    """The sentences of a result; none where only its table tells it."""
    if isinstance(result, Buckets | Binding):
        return [Headline.of("{text}", text=(result.recommendation.text, ""))]
    if isinstance(result, Overhead):
        return _overhead(result)
    return _scaling(result) if isinstance(result, Scaling) else []


def _overhead(result: Overhead) -> list[Headline]:
    verdict = verdict_of(result.measured_overhead, result.sync_cost.blocks, result.setting.confidence)
    text, values = _with_ends("share", result.measured_overhead)
    said = [
        Headline.of(
            f"Gradient synchronization takes {text} of a step, measured with and without it: {{verdict}}.",
            **values,
            verdict=(str(verdict), ""),
        )
    ]
    if result.forward_backward_overhead is not None:
        text, values = _with_ends("share", result.forward_backward_overhead)
        said.append(
            Headline.of(
                f"Of forward and backward alone, without data loading and optimizer, it takes {text}.", **values
            )
        )
    return [*said, _exposed(result.traced)] if result.traced is not None else said


def _exposed(traced: TraceSummary) -> Headline:
    values: Values = {
        "share": (traced.exposed_share, "ratio"),
        "exposed": (traced.exposed_communication_ns, "ns"),
        "communication": (traced.communication_ns, "ns"),
    }
    rank = "" if traced.rank is None else " ({rank})"
    if traced.rank is not None:
        values["rank"] = (f"rank {traced.rank}", "")
    waits = "waiting and transfer cannot be separated"
    if traced.exposed_wait_ns is not None:
        waits = "{waiting} of it waiting for other ranks"
        values["waiting"] = (traced.exposed_wait_ns, "ns")
    hidden = ""
    if traced.overlap_ratio is not None:
        hidden = ", {overlap} of it overlapped with compute"
        values["overlap"] = (traced.overlap_ratio, "ratio")
    return Headline.of(
        f"Exposed communication of the worst rank{rank}, traced: {{share}} of a step, {{exposed}}; {waits}. All its "
        f"communication takes {{communication}} per step{hidden}.",
        **values,
    )


def _scaling(result: Scaling) -> list[Headline]:
    done = [size for size in result.sizes if size.efficiency is not None]
    # Oversubscribed sizes do not show how the job scales: they count only if there is no other.
    fair = [size for size in done if not size.oversubscribed and size.ranks > 1]
    most = max(fair or done, key=lambda size: size.ranks, default=None)
    if most is None or most.efficiency is None:
        return []
    text, values = _with_ends("efficiency", most.efficiency)
    ranks: Values = {"ranks": (most.ranks, "count")}
    return [
        Headline.of(
            f"On {{ranks}} {plural('rank', most.ranks)} the efficiency is {text}, {{mode}} scaling.",
            **ranks,
            **values,
            mode=(result.mode, ""),
        )
    ]


def _with_ends(name: str, share: Share) -> tuple[str, Values]:
    """A share with both ends of its interval: the text and its values; without ends where there is no interval."""
    values: Values = {name: (share.value, "ratio")}
    if share.low is None or share.high is None:
        return f"{{{name}}}", values
    return f"{{{name}}} ({{low}} to {{high}})", {**values, "low": (share.low, "ratio"), "high": (share.high, "ratio")}
