"""A run in a notebook: the numbers of `rankscope summary` as HTML.

In: a run. Out: text, tables and colored bars; all text from traces is escaped, and there is no script, no address and
no style except on the elements themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rankscope.engine.pipeline import Run
from rankscope.errors import RankscopeError
from rankscope.results import Finding
from rankscope.show.report.formatting import cell, numbered, percent, plain, saving_of
from rankscope.show.report.summary import ANALYSES, LABEL, PARTS, mean_basis, memory, slowest, step_basis

# The page's colors, readable on light and dark.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b8528d", "#8c96a0")
_SHOWN = 5


def run_html(run: Run) -> str:
    """The summary of a run, or the reason why it cannot be read."""
    try:
        results = run.attempt(*ANALYSES)
        findings, about = run.diagnose(), run.about()
    except RankscopeError as error:
        hint = f"<br>→ {_text(error.hint, 2000)}" if error.hint else ""
        return f"<div><b>{_text(error.path or run.path, 400)}</b>: {_text(error.what, 2000)}{hint}</div>"
    parts = [f"<p><b>{_text(about['name'] or about['path'], 200)}</b><br>{_head(about)}</p>"]
    if "overview" in results:
        parts.append(_step(results["overview"].frame.row(0, named=True)))
    facts = {"Stragglers": slowest(run.diagnosis(), about["steps"]), "Memory": memory(results.get("memory"))}
    parts.append(_table([(f"<b>{name}</b>", escape(line.plain[LABEL:].strip())) for name, line in facts.items()]))
    parts.append(_findings(findings, about["steps"]))
    return f"<div>{''.join(parts)}</div>"


def _text(value: object, limit: int = 200) -> str:
    return escape(plain(value, limit=limit))


def _table(rows: Sequence[Sequence[str]]) -> str:
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left;padding:1px 12px 1px 0">{each}</td>' for each in row) + "</tr>"
        for row in rows
    )
    return f'<table style="border:0"><tbody>{body}</tbody></table>'


def _head(about: Mapping[str, Any]) -> str:
    size = f" of {about['world_size']}" if about["world_size"] else ""
    facts = [escape(numbered("rank", about["ranks"])) + size]
    if about["steps"]:
        facts.append(escape(numbered("step", about["steps"], limit=80)))
    facts += [", ".join(_text(value, 60) for value in about[key][:4]) for key in ("devices", "hosts") if about[key]]
    return " · ".join(facts)


def _step(overview: Mapping[str, Any]) -> str:
    """The step time, and the breakdown of the mean step as bars."""
    rows = [("<b>Step</b>", f"<b>{_text(cell(overview['step_ns'], 'ns'))}</b>", "", escape(step_basis(overview)))]
    mean = overview["mean_step_ns"]
    if mean:
        basis = mean_basis(overview) or "of which"
        rows.append((escape(f"{basis}:".capitalize()), cell(mean, "ns"), "", ""))
    for (column, label, _, _), color in zip(PARTS, _COLORS, strict=True):
        if not mean:
            break
        share = overview[column] / mean
        bar = f'<div style="background:{color};height:0.8em;width:{round(200 * share)}px"></div>'
        rows.append((escape(label), cell(overview[column], "ns"), escape(percent(share)), bar))
    return _table(rows)


def _findings(findings: Sequence[Finding], steps: Sequence[int]) -> str:
    if not findings:
        return "<p>No findings.</p>"
    items = []
    for finding in findings[:_SHOWN]:
        saving = saving_of(finding, steps)
        advice = f"<br>→ {_text(finding.advice, 1000)}" if finding.advice and finding.severity != "info" else ""
        below = "".join(f"<li>{_text(each.title, 400)}: {_text(each.because)}</li>" for each in finding.symptoms)
        below = f"<ul>{below}</ul>" if below else ""
        items.append(f"<li><b>{finding.severity}</b> {_text(finding.title, 400)}{escape(saving)}{advice}{below}</li>")
    left = len(findings) - len(items)
    more = f"<p>… {left} more: <code>run.diagnose()</code></p>" if left > 0 else ""
    return f"<ul>{''.join(items)}</ul>{more}"
