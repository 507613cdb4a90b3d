"""The contract of analyses and rules: what goes in (`Inputs`), and what comes out (`Result`, `Finding`).

An analysis is a module in `rankscope.analyses` (or one that another package names under the entry point
``rankscope.analyses``) with an `Analysis` named ``analysis``. Its docstring is its help text, its caption on the page
and its page in the docs. It is pure: `per_rank` maps one rank's tables to a small frame on any worker, and
`across_ranks` reduces those frames to the result. It reads and writes nothing else.
"""

from rankscope.results.analysis import (
    RESULT_SCHEMA_VERSION,
    Analysis,
    Bars,
    Effect,
    Inputs,
    Result,
    Rule,
    StepPart,
    Tables,
)
from rankscope.results.by_window import (
    by_window,
    chosen_launches,
    chosen_starts,
    in_steps,
    rows_by_window,
    step_keys,
    steps_by_window,
)
from rankscope.results.compressed_frames import CompressedFrame, StoredFrame, stored_blocks
from rankscope.results.discovery import discovered
from rankscope.results.finding import (
    NOT_ANALYZED,
    Anchor,
    Evidence,
    Finding,
    Severity,
    by_severity,
    each_once,
    with_symptoms,
    worst_of,
)
from rankscope.results.frames import RANK_AND_WINDOW, concat_ranks, finite, schema_of, stored_ranks
from rankscope.results.headline import Headline, greatest, over_ranks, top_group, total_of
from rankscope.results.judged import (
    files_without_steps,
    incomplete_files,
    incomplete_ranks,
    of_judged_ranks,
    ranks_without_steps,
    recorded_of,
)
from rankscope.results.packed_parts import together
from rankscope.results.parameters import Options, Parameter, Parameters, Value
from rankscope.results.rank_state import (
    AMONG_RECORDED,
    ENOUGH_STEPS,
    RankState,
    enough,
    judged_by_log,
    late_unexplained,
    longest_wait,
    rank_state,
    ruled_out,
    undecided,
    without_straggler,
)
from rankscope.store.part_cache import Part
from rankscope.store.schema import Column

__all__ = [
    "AMONG_RECORDED",
    "ENOUGH_STEPS",
    "NOT_ANALYZED",
    "RANK_AND_WINDOW",
    "RESULT_SCHEMA_VERSION",
    "Analysis",
    "Anchor",
    "Bars",
    "Column",
    "CompressedFrame",
    "Effect",
    "Evidence",
    "Finding",
    "Headline",
    "Inputs",
    "Options",
    "Parameter",
    "Parameters",
    "Part",
    "RankState",
    "Result",
    "Rule",
    "Severity",
    "StepPart",
    "StoredFrame",
    "Tables",
    "Value",
    "by_severity",
    "by_window",
    "chosen_launches",
    "chosen_starts",
    "concat_ranks",
    "discovered",
    "each_once",
    "enough",
    "files_without_steps",
    "finite",
    "greatest",
    "in_steps",
    "incomplete_files",
    "incomplete_ranks",
    "judged_by_log",
    "late_unexplained",
    "longest_wait",
    "of_judged_ranks",
    "over_ranks",
    "rank_state",
    "ranks_without_steps",
    "recorded_of",
    "rows_by_window",
    "ruled_out",
    "schema_of",
    "step_keys",
    "steps_by_window",
    "stored_blocks",
    "stored_ranks",
    "together",
    "top_group",
    "total_of",
    "undecided",
    "with_symptoms",
    "without_straggler",
    "worst_of",
]
