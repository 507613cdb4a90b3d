"""The two manifests of a run directory: their fields, and how they are read and written as JSON.

``run.json`` is written once, by rank 0. ``ranks/rank3.json`` is written by its rank alone, again after each
trace. Where the name is taken by another process (a second job in the same directory, a restart), ``.2``,
``.3`` … is set before the extension: readers take ``run*.json`` and everything under ``ranks/``.

In: facts about a run or a rank, or JSON. Out: files, or dataclasses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rankscope.errors import without_credentials
from rankscope.rundir.fields import Positive, Rank, Signed, Step, WorldSize, read
from rankscope.rundir.metadata import ClockAnchor, Device, Mesh, StepSpan
from rankscope.rundir.plurals import counted, plural

SCHEMA_VERSION = 1
_MAX_BYTES = 64 << 20
_CUT = "<redacted>"
# `tokens` is not among them: `--max-tokens 100` is not a secret, and describes the run.
_SECRET = re.compile(
    r"(?:^|[^a-z])(?:api|access|auth|private|secret|ssh|aws|wandb|hf)?(?:keys?|token|password|passwd|passphrase|pwd|"
    r"secrets?|credentials?|authorization)(?:$|[^a-z])",
    re.IGNORECASE,
)
_WELL_KNOWN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{8,}|(?<=\bbearer )\s*\S+", re.IGNORECASE
)


@dataclass(frozen=True)
class RunManifest:
    """The facts about a run that hold for all of its ranks."""

    run_id: str | None = None
    schema_version: Positive = SCHEMA_VERSION
    command: tuple[str, ...] = ()
    """The command line of rank 0, secrets cut."""
    world_size: WorldSize | None = None
    launcher: str | None = None
    job_id: str | None = None
    host: str | None = None
    """Rank 0's."""
    ranks: str | None = None
    """The expression that chose the ranks to profile."""
    schedule: Mapping[str, int] = field(default_factory=dict)
    mesh: Mesh | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    started_ns: Signed | None = None
    """Wall clock of rank 0, nanoseconds since 1970."""


@dataclass(frozen=True)
class WrittenTrace:
    """A trace that is complete in the run directory."""

    file: str
    """Relative to the run directory, with ``/`` between folders."""
    first_step: Step | None = None
    last_step: Step | None = None
    bytes: int | None = None
    """Size on disk."""
    json_bytes: int | None = None
    """Size before compression."""
    stall_ns: int | None = None
    """How long the training loop was blocked for this window: prepare, start, and what of stop and save was done in
    it."""
    off_loop_ns: int | None = None
    """How long the rest took: verify, compress, sync, rename, and what of stop and save was done there."""
    uploaded: bool | None = None
    """Whether a copy of it is at ``upload_to``; none if there is no such place."""
    adopted: bool = False
    """Whether a torch profiler of the script recorded it."""
    recorded_by: str | None = None
    """That profiler: its class, and where it was created."""


@dataclass(frozen=True)
class StepBlock:
    """Successive steps whose times are kept together, so that a long job's are of bounded size."""

    first_step: Step
    steps: Step
    min_ns: int
    max_ns: int
    total_ns: int


@dataclass(frozen=True)
class LostWindow:
    """A window of steps of which there is no trace, and why."""

    first_step: Step | None = None
    last_step: Step | None = None
    reason: str = ""
    on_all_ranks: bool = False
    """Whether no rank is to have it: readers leave out a trace that another rank had written by then."""


@dataclass(frozen=True)
class ScriptProfiler:
    """A torch profiler that the script itself made."""

    name: str = ""
    """Its class, and where it was created."""
    treatment: str = ""
    """``adopted``, or why it was not."""
    exported: tuple[str, ...] = ()
    """The latest files that the script made it write."""

    def __str__(self) -> str:
        files = f"; its traces: {', '.join(self.exported)}" if self.exported else "; it exported no trace"
        return f"{self.name} ({self.treatment}{files})"


@dataclass(frozen=True)
class RankManifest:
    """The record of one rank: where it ran, what it wrote, and what it could not write."""

    run_id: str | None = None
    rank: Rank | None = None
    schema_version: Positive = SCHEMA_VERSION
    world_size: WorldSize | None = None
    local_rank: Rank | None = None
    host: str | None = None
    pid: int | None = None
    launcher: str | None = None
    restart_count: int = 0
    device: Device | None = None
    mesh: Mesh | None = None
    state: str = "running"
    """``running``; ``finished`` once the profiler has stopped and all is written; ``interrupted`` if a signal or an
    exception ended it, and all is written."""
    ended_by: str | None = None
    """What interrupted it: a signal (``SIGTERM``), an exception (``ValueError``), or ``killed`` where that is all that
    is known."""
    steps: Step | None = None
    """How many steps the loop had completed at the end, the first one of an unmodified script too; none before that."""
    last_step: Step | None = None
    """The last of them; none if there was none. The step after it had begun."""
    requested_steps: Step | None = None
    """Steps that the schedule wanted to record; none for no limit."""
    written: tuple[WrittenTrace, ...] = ()
    skipped: tuple[LostWindow, ...] = ()
    """Windows that were not recorded."""
    failed: tuple[LostWindow, ...] = ()
    """Windows that were recorded and could not be written."""
    script_profilers: tuple[ScriptProfiler, ...] = ()
    """The script's own, the latest of them."""
    upload_to: str | None = None
    """The URL that complete files are uploaded to, without the user and password in it."""
    rotated: int = 0
    """Traces that were removed again to keep within ``keep_windows`` and ``keep_bytes``."""
    capture: Mapping[str, str] = field(default_factory=dict)
    """How it was stopped: ``stop`` (``thread``, off the training loop, or ``loop``), ``stop_reason``, and
    ``compressor`` (``isal``, ``zlib``, ``zstandard``, ``none``)."""
    step_times: tuple[StepSpan, ...] = ()
    """How long steps took, from the first on: each of the first and of the latest by itself."""
    step_blocks: tuple[StepBlock, ...] = ()
    """The steps between those."""
    step_median_ns: Mapping[str, Positive] = field(default_factory=dict)
    """The median of these by state: what the profiler itself costs."""
    environment: Mapping[str, object] = field(default_factory=dict)
    """``cpu_affinity``, ``numa_nodes``, ``settings`` (variables of the communication library, torch and their kin),
    ``torch`` (its own settings)."""
    clock_anchors: tuple[ClockAnchor, ...] = ()
    """At the start, and at the beginning and end of each recording: the first and the latest of them."""
    warnings: tuple[str, ...] = ()

    @property
    def interruption(self) -> str:
        """What interrupted this rank, after which complete step, and how many of the requested steps were recorded by
        then; empty if nothing did."""
        if self.state != "interrupted":
            return ""
        at = f" after step {self.last_step}" if self.last_step is not None else ""
        if self.steps == 0:
            at = " in the first step"
        spans = [(each.first_step, each.last_step) for each in self.written]
        steps = sum(last - first + 1 for first, last in spans if first is not None and last is not None)
        of = f" of {self.requested_steps} requested" if self.requested_steps is not None else ""
        removed = f", {counted(self.rotated, 'trace')} removed since" if self.rotated else ""
        return f"{self.ended_by or 'unknown cause'}{at}, {steps}{of} {plural('step', steps)} recorded{removed}"


def read_run_manifest(source: Path | bytes) -> RunManifest | None:
    """Read ``run.json``, or its content; ``None`` if it is missing or no JSON object. Never raises."""
    return read(RunManifest, _load(source))


def read_rank_manifest(source: Path | bytes) -> RankManifest | None:
    """Read ``ranks/rank3.json``, or its content; ``None`` if it is missing or no JSON object. Never raises."""
    return read(RankManifest, _load(source))


def attempts(manifests: Sequence[RankManifest]) -> list[tuple[str, list[RankManifest]]]:
    """The manifests of a run by attempt of an elastic job, each with the attempt's name, which is empty if
    there is only one.

    An attempt that a later one of the same rank has replaced no longer runs: it was killed if it did not note its end.
    """
    latest: dict[int | None, int] = {}
    for each in manifests:
        latest[each.rank] = max(latest.get(each.rank, 0), each.restart_count)
    number = max(latest.values(), default=0) + 1
    found: dict[int, list[RankManifest]] = {}
    for each in manifests:
        killed = each.state == "running" and each.restart_count < latest[each.rank]
        ended = replace(each, state="interrupted", ended_by="killed") if killed else each
        found.setdefault(each.restart_count, []).append(ended)
    return [(f"attempt {count + 1} of {number}" if number > 1 else "", found[count]) for count in sorted(found)]


def to_json(manifest: RunManifest | RankManifest) -> bytes:
    """The content of a manifest's file."""
    return (json.dumps(asdict(manifest), indent=1) + "\n").encode("utf-8", "backslashreplace")


def shortened(manifest: RankManifest, size: int) -> bytes | None:
    """A manifest in at most ``size`` bytes, for a full disk: how the rank ended, and the latest of what it wrote and
    lost, as much as fits. ``None`` if there is no room even for the end."""
    bare = replace(manifest, step_times=(), step_blocks=(), step_median_ns={}, environment={}, clock_anchors=())
    lists = ("written", "skipped", "failed", "warnings", "script_profilers")
    kept = max(len(getattr(manifest, name)) for name in lists)
    while True:
        latest: dict[str, Any] = {name: getattr(manifest, name)[-kept:] if kept else () for name in lists}
        fields = {name: value for name, value in asdict(replace(bare, **latest)).items() if value not in (None, (), {})}
        text = (json.dumps(fields) + "\n").encode("utf-8", "backslashreplace")
        if len(text) <= size or not kept:
            return text if len(text) <= size else None
        kept //= 2


def redact(argv: Sequence[str]) -> list[str]:
    """A command line with everything cut that looks like a key, token, password or secret.

    ``--token X``, ``--token=X``, ``NAME_TOKEN=X``, the user part of a URL, and tokens of well-known form.
    """
    kept: list[str] = []
    cut_next = False
    for argument in argv:
        if cut_next and not argument.startswith("--"):
            kept.append(_CUT)
            cut_next = False
            continue
        cut_next = False
        name, equals, _value = argument.partition("=")
        if equals and _SECRET.search(_words(name)):
            kept.append(f"{name}={_CUT}")
        elif argument.startswith("-") and not equals and _SECRET.search(_words(argument)):
            kept.append(argument)
            cut_next = True
        else:
            kept.append(_WELL_KNOWN.sub(_CUT, without_credentials(argument)))
    return kept


def _words(name: str) -> str:
    # apiKey and hfToken are names as well as api_key and HF_TOKEN.
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def _load(source: Path | bytes) -> object:
    try:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size > _MAX_BYTES:
            return None
        return json.loads(source if isinstance(source, bytes) else source.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
