"""A run as a notebook shows it: its overview as HTML with nothing but text, tables and coloured bars in it.

The figures are those of `rankscope summary`. Every text of a trace is escaped and made inert; there is no script, no
address, and no style but on the elements themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rankscope.errors import RankscopeError
from rankscope.pipeline import Run
from rankscope.report.formatting import cell, numbered, percent, plain, saving_of
from rankscope.report.summary import ANALYSES, PARTS, mean_basis, memory, slowest, step_basis
from rankscope.results import Finding

# As the page has them; on light and on dark.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8528d", "#8c96a0")
_SHOWN = 5


def run_html(run: Run) -> str:
    """The overview of a run; where it cannot be read, why."""
    try:
        results = run.attempt(*ANALYSES)
        findings, about = run.diagnose(), run.about()
    except RankscopeError as error:
        hint = f"<br>→ {_text(error.hint, 2000)}" if error.hint else ""
        return f"<div><b>{_text(error.path or run.path, 400)}</b>: {_text(error.what, 2000)}{hint}</div>"
    parts = [f"<p><b>{_text(about['name'] or about['path'], 200)}</b><br>{_head(about)}</p>"]
    if "overview" in results:
        parts.append(_step(results["overview"].frame.row(0, named=True)))
    facts = {"Stragglers": slowest(results, about["steps"]), "Memory": memory(results.get("memory"))}
    parts.append(_table([(f"<b>{name}</b>", escape(said.plain[12:].strip())) for name, said in facts.items()]))
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
    told = [escape(numbered("rank", about["ranks"])) + size]
    if about["steps"]:
        told.append(escape(numbered("step", about["steps"], limit=80)))
    told += [", ".join(_text(value, 60) for value in about[key][:4]) for key in ("devices", "hosts") if about[key]]
    return " · ".join(told)


def _step(overview: Mapping[str, Any]) -> str:
    """How long a step takes, and the mean step's parts as bars."""
    rows = [("<b>Step</b>", f"<b>{_text(cell(overview['step_ns'], 'ns'))}</b>", "", escape(step_basis(overview)))]
    whole = overview["mean_step_ns"]
    if whole:
        rows.append((escape(f"{mean_basis(overview)}:".capitalize()), cell(whole, "ns"), "", ""))
    for (column, label, _, _), colour in zip(PARTS, _COLOURS, strict=True):
        if not whole:
            break
        share = overview[column] / whole
        bar = f'<div style="background:{colour};height:0.8em;width:{round(200 * share)}px"></div>'
        rows.append((escape(label), cell(overview[column], "ns"), escape(percent(share)), bar))
    return _table(rows)


def _findings(findings: Sequence[Finding], steps: Sequence[int]) -> str:
    if not findings:
        return "<p>Nothing stands out: no rule speaks.</p>"
    items = []
    for finding in findings[:_SHOWN]:
        saving = saving_of(finding, steps)
        advice = f"<br>→ {_text(finding.advice, 1000)}" if finding.advice and finding.severity != "info" else ""
        items.append(f"<li><b>{finding.severity}</b> {_text(finding.title, 400)}{escape(saving)}{advice}</li>")
    left = len(findings) - len(items)
    more = f"<p>… {left} more: <code>run.diagnose()</code></p>" if left > 0 else ""
    return f"<ul>{''.join(items)}</ul>{more}"
