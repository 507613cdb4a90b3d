"""How often the right rank and the right cause are named: see the tables in benchmarks/README.md."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.diagnosis.scoring import Case, misses, summary, table


def show(title: str, cases: Sequence[Case]) -> None:
    """A part's figures."""
    print(f"\n### {title}\n")
    print("\n".join(summary(cases)))
    print("\nBy what the fault costs of a step:\n")
    print("\n".join(table(cases)))
    print("\nBy kind, where it costs 5 % or more:\n")
    print("\n".join(table(cases, by=lambda done: done.kind, least=0.05)))
    print("\nWhere it failed:\n")
    print("\n".join(misses(cases)) or "  nowhere")
