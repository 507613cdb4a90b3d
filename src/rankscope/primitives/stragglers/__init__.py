"""Which ranks delay the others, and why.

Traces → `timeline`, `paces` (one rank) → `observations` (all ranks, as matrices) → `measures` → `detectors` →
`stragglers` with `causes`; `network` does the same for groups, `waits` says which rank caused each wait. All
thresholds: `thresholds`.

In: times of all ranks and steps. Out: late ranks, their causes, and who caused which wait.
"""
