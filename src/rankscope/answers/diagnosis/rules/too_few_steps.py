"""Too few steps were recorded.

Fires if the files hold steps, but fewer than three: the first step of a window includes work that was launched before
it, and one or two steps do not show the spread. Also fires if files have no steps at all, so that the complete
file counts as one.
"""

from __future__ import annotations

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.step_costs import number_of_steps, steps_of
from rankscope.results import ENOUGH_STEPS, Evidence, Finding, Inputs, Rule
from rankscope.rundir.plurals import counted


def find(inputs: Inputs) -> list[Finding]:
    """At most one finding."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty() or inputs.options.steps is not None:
        return []
    count = number_of_steps(inputs)
    if count >= ENOUGH_STEPS:
        return []
    title = f"Only {counted(count, 'step')} recorded: too few for reliable figures per step"
    return [
        Finding(
            rule.name,
            "info",
            title if count else "No steps are marked in these traces: figures are of the recorded span, not per step",
            steps=steps_of(inputs),
            evidence=(Evidence("steps", count), Evidence("steps needed", ENOUGH_STEPS)),
            advice=(
                "Record more: rankscope.Profiler(active=5) or --active 5."
                if count
                else "Call step() once an iteration"
                + (", or use `rankscope run`, which counts steps at the optimizer." if job_of(inputs).trains else ".")
            ),
        )
    ]


rule = Rule("too_few_steps", __doc__, ("step_time",), find)
