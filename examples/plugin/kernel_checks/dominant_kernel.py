"""One kernel takes a large part of the step.

Fires if the longest kernel takes more than a tenth of the median step. The saving is its duration: it cannot be larger.
"""

from rankscope import Evidence, Finding, Rule


def find(inputs):
    """A finding if the longest kernel is that long."""
    kernels, steps = inputs.results.get("longest_kernels"), inputs.results.get("step_time")
    if kernels is None or steps is None or kernels.is_empty() or steps.is_empty():
        return []
    step_ns = steps["window_ns"].median()
    worst = kernels.sort("duration_ns").row(-1, named=True)
    if worst["duration_ns"] < step_ns / 10:
        return []
    return [
        Finding(
            id=rule.name,
            severity="info",
            title="One kernel takes more than a tenth of the step",
            ranks=(worst["rank"],),
            evidence=(Evidence("kernel", worst["name"]), Evidence("its duration", worst["duration_ns"], "ns")),
            saving_ns=worst["duration_ns"],
            advice="Look at its input shapes first (rankscope analyze kernels --by shape).",
        )
    ]


rule = Rule("dominant_kernel", __doc__, ("longest_kernels", "step_time"), find)
