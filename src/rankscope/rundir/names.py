"""Names of files in a run directory: those that rankscope writes, and those of other tools.

A name is made from a template, ``rank{rank}[_restart{restart}][_{mesh}]_iter{first}_{last}`` by default; a
part in square brackets is left out when a value in it is empty. Names of other tools are
read as far as they are known: process ids and time stamps are never taken for ranks.

In: ranks, steps and coordinates, or a name. Out: a name, or a `TraceName`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rankscope.errors import ConfigError

DEFAULT_TEMPLATE = "rank{rank}[_restart{restart}][_{mesh}]_iter{first}_{last}"
LAYOUTS = {
    "rankscope": DEFAULT_TEMPLATE,
    "d9d": "step_{next}/rank-{rank}[-coord-{coord}][_restart{restart}]-trace.json",
    "tensorboard": "{host}[_restart{restart}]_{pid}.{time_ns}.pt.trace.json",
    "of": "rank-{rank}-of-{world_size}[_restart{restart}]_iter{first}_{last}",
}
"""Layouts of other tools, by the word that selects one. d9d's ``step_`` counts finished steps, as in d9d; TensorBoard's
names are those of ``torch.profiler.tensorboard_trace_handler``."""
TRACE_SUFFIX = ".trace.json"
ENDINGS = {"gz": TRACE_SUFFIX + ".gz", "zst": TRACE_SUFFIX + ".zst", "tar.gz": ".trace.tar.gz", "none": TRACE_SUFFIX}
"""How a trace's name ends, by how it is compressed."""
PERFETTO_SUFFIXES = (".pftrace", ".perfetto-trace")
"""How Perfetto's traces end, before the ending of a compression."""
PERFETTO_ENDINGS = tuple(suffix + packed for suffix in PERFETTO_SUFFIXES for packed in ("", ".gz", ".zst", ".zstd"))
"""The same with that ending, or without one."""
DATABASE_SUFFIXES = (".sqlite", ".db")
"""How the databases of Nsight Systems and rocprofv3 end; other programs use these endings, too."""
RUN_MANIFEST = "run.json"
RANKS_FOLDER = "ranks"
TEMPORARY_PREFIX = "."
TEMPORARY_SUFFIX = ".tmp"

RANKS_PER_FOLDER = 1024
"""Above this many ranks, traces and rank manifests go to sub-folders of this many ranks each."""

PLACEHOLDERS = (
    "rank",
    "world_size",
    "local_rank",
    "host",
    "first",
    "last",
    "next",
    "mesh",
    "coord",
    "time",
    "time_ns",
    "restart",
    "pid",
)
"""``next`` is the step after the last, ``coord`` the mesh coordinate without names (``0-1``), ``time_ns`` the time of
writing in nanoseconds since 1970."""


@dataclass(frozen=True)
class TraceName:
    """What the path of a trace contains; None for what it does not."""

    rank: int | None = None
    world_size: int | None = None
    first: int | None = None
    """The first ``ProfilerStep#`` in the file."""
    last: int | None = None
    """The last ``ProfilerStep#`` in the file, inclusive."""
    mesh: Mapping[str, int] | None = field(default=None, hash=False)
    """This rank's coordinate by dimension name; unnamed dimensions are ``dim0``, ``dim1`` …"""
    restart: int | None = None
    host: str | None = None
    pattern: str = "unknown"
    """Which pattern matched: ``rankscope``, ``d9d``, ``of``, ``rank``, ``worker``, ``sglang``, ``lightning``,
    ``torchtitan``, ``frontend`` (a process of the job that is none of its ranks), ``tensorboard``, ``folder``,
    ``unknown``."""

    @property
    def names_rank(self) -> bool:
        """Whether the rank is called one, and so is the job's: a worker's or folder's number may be something else."""
        return self.rank is not None and self.pattern in ("rankscope", "d9d", "of", "rank", "torchtitan")


# --- writing ------------------------------------------------------------------------------------------------


def format_mesh(mesh: Mapping[str, int]) -> str:
    """``{"dp": 1, "tp": 0}`` as ``dp1-tp0``.

    A dimension name that itself ends in a digit, or that could be read as another part of the name, is set
    off by a dot: ``dp2.1``.
    """
    parts = []
    for name, coordinate in mesh.items():
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name) or "dim"
        apart = plain[-1].isdigit() or plain.endswith(("restart", "iter"))
        parts.append(f"{plain}{'.' if apart else ''}{coordinate}")
    return "-".join(parts)


def parse_mesh(text: str) -> dict[str, int] | None:
    """The reverse of :func:`format_mesh`; None if the text is not a mesh coordinate."""
    mesh: dict[str, int] = {}
    for part in text.split("-"):
        match = re.fullmatch(r"([A-Za-z0-9_]+)\.(\d{1,9})|([A-Za-z_][A-Za-z0-9_]*?)(\d{1,9})", part)
        if match is None:
            return None
        name = match[1] if match[1] is not None else match[3]
        mesh[name] = int(match[2] if match[1] is not None else match[4])
    return mesh


def check_template(template: str) -> str:
    """The template that ``template`` names (one of :data:`LAYOUTS`, or itself), if names can be made from it.

    Raises:
        ConfigError: an unknown placeholder, an unbalanced bracket, a path that leaves the directory.
    """
    template = LAYOUTS.get(template, template)
    rest = template
    for placeholder in PLACEHOLDERS:
        rest = rest.replace("{" + placeholder + "}", "x")
    known = " ".join("{" + p + "}" for p in PLACEHOLDERS) + "; or one of " + ", ".join(LAYOUTS)
    if "{" in rest or "}" in rest:
        raise ConfigError(f"the trace name template {template!r} has an unknown placeholder", hint=f"known: {known}")
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", template)):
        raise ConfigError(f"the trace name template {template!r} has a bracket without its pair")
    parts = rest.replace("\\", "/").split("/")
    if not template or rest.startswith(("/", "\\")) or ":" in rest or any(p in ("", ".", "..") for p in parts):
        raise ConfigError(
            f"the trace name template {template!r} must be a relative path inside the run directory",
            hint=f"for example {DEFAULT_TEMPLATE!r}; placeholders: {known}",
        )
    return template


@dataclass(frozen=True)
class TraceIdentity:
    """What a new trace's name is made from."""

    rank: int
    first: int
    """The first ``ProfilerStep#`` in the file."""
    last: int
    """The last ``ProfilerStep#`` in the file, inclusive."""
    world_size: int | None = None
    local_rank: int | None = None
    host: str | None = None
    mesh: Mapping[str, int] | None = field(default=None, hash=False)
    """This rank's coordinate by dimension name."""
    restart: int = 0
    """How often the job was restarted; in the name when above zero."""
    time: str | None = None
    """The time of writing, as it appears in the name."""
    time_ns: int | None = None
    """The time of writing in nanoseconds since 1970."""
    pid: int | None = None


def format_trace_name(trace: TraceIdentity, template: str = DEFAULT_TEMPLATE, compression: str = "gz") -> str:
    """The path of a trace relative to the run directory, with ``/`` between folders.

    Args:
        trace: what goes into it.
        template: what the name is made of, or one of :data:`LAYOUTS`; see the module's docstring.
        compression: how the file is compressed, one of :data:`ENDINGS`.

    Raises:
        ConfigError: the template is not usable.
    """
    template = check_template(template)
    values = {
        "rank": str(trace.rank),
        "world_size": _text(trace.world_size),
        "local_rank": _text(trace.local_rank),
        "host": re.sub(r"[^A-Za-z0-9.-]", "-", trace.host or "").strip("."),
        "first": str(trace.first),
        "last": str(trace.last),
        "next": str(trace.last + 1),
        "mesh": format_mesh(trace.mesh) if trace.mesh else "",
        "coord": "-".join(map(str, trace.mesh.values())) if trace.mesh else "",
        "time": re.sub(r"[^A-Za-z0-9.-]", "-", trace.time or ""),
        "time_ns": _text(trace.time_ns),
        "restart": str(trace.restart) if trace.restart > 0 else "",
        "pid": _text(trace.pid),
    }

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text)

    def optional(match: re.Match[str]) -> str:
        inner = match[1]
        empty = any(not values[name] for name in re.findall(r"\{(\w+)\}", inner))
        return "" if empty else fill(inner)

    stem = fill(re.sub(r"\[([^\[\]]*)\]", optional, template))
    if trace.restart > 0 and "{restart}" not in template:
        # Ranks can change at a restart: a file written after it must not look like one from before.
        bare = stem.removesuffix(".json")
        stem = f"{bare}_restart{trace.restart}{stem[len(bare) :]}"
    ending = ENDINGS[compression]
    if not stem.endswith(".json"):
        return stem + ending
    return stem + ending.removeprefix(TRACE_SUFFIX) if ending.startswith(TRACE_SUFFIX) else stem[:-5] + ".tar.gz"


def unique_name(name: str, attempt: int) -> str:
    """``name`` for attempt 0; for later ones with the attempt set before the extension:
    ``….2.trace.json.gz``."""
    if attempt == 0:
        return name
    known = (".pt" + TRACE_SUFFIX, TRACE_SUFFIX, ".json")
    packed = (*(e + p for p in (".gz", ".zst") for e in known), ".trace.tar.gz", ".tar.gz")
    for extension in (*packed, *known):
        if name.endswith(extension):
            return f"{name[: -len(extension)]}.{attempt + 1}{extension}"
    return f"{name}.{attempt + 1}"


def rank_folder(rank: int, world_size: int | None) -> str:
    """The sub-folder of a rank's files: ``""`` up to 1,024 ranks, above that ``ranks1024-2047`` and so on."""
    if world_size is None or world_size <= RANKS_PER_FOLDER:
        return ""
    first = rank // RANKS_PER_FOLDER * RANKS_PER_FOLDER
    return f"ranks{first}-{first + RANKS_PER_FOLDER - 1}"


def rank_manifest_name(rank: int, world_size: int | None, restart: int = 0) -> str:
    """The path of a rank's manifest relative to the run directory, with ``/`` between folders."""
    folder = rank_folder(rank, world_size)
    file = f"rank{rank}_restart{restart}.json" if restart > 0 else f"rank{rank}.json"
    return "/".join(part for part in (RANKS_FOLDER, folder, file) if part)


# --- reading ------------------------------------------------------------------------------------------------

_PROCESS = re.compile(r"(.+\.(?:sqlite|db))#process(\d{1,6})", re.IGNORECASE | re.DOTALL)


def process_path(file: str, place: int) -> str:
    """The path under which one process of a database with several is read: ``node0.sqlite#process3``.

    Args:
        place: its place among the processes with kernels, from 0.
    """
    return f"{file}#process{place}"


def split_process(path: str) -> tuple[str, int | None]:
    """The reverse of :func:`process_path`: the file, and None for the place if the path names no process."""
    match = _PROCESS.fullmatch(path)
    return (path, None) if match is None else (match[1], int(match[2]))


_END = r"(?:\.\d+)?(?:\.pt)?(?:\.?[-_]?trace)?(?:\.json|\.tar|\.zip|\.pickle|\.gz|\.zst|$)"
_OURS = re.compile(
    r"rank(\d{1,9})(?:_restart(\d{1,9}))?(?:_(?P<mesh>[^/]+?))?_iter(\d{1,18})_(\d{1,18})(?=" + _END + ")"
)
_D9D = re.compile(r"rank-(\d{1,9})-coord-(\d+(?:-\d+)*)(?=[-_.])")
_OF = re.compile(r"(?<![A-Za-z0-9])(?:rank)?(\d{1,7})-of-(\d{1,7})(?![A-Za-z0-9])")
_RANK = re.compile(r"(?<![A-Za-z0-9])rank[-_]?\[?(\d{1,7})(?![A-Za-z0-9])", re.IGNORECASE)
_STEPS = re.compile(r"(?<![A-Za-z0-9])iter(\d{1,18})_(\d{1,18})(?![A-Za-z0-9_])")
_RESTART = re.compile(r"_restart(\d{1,9})(?![A-Za-z0-9])")
_WORKER = re.compile(r"worker[-_]?(\d{1,7})\.")
_TENSORBOARD = re.compile(r"(?P<host>.+)_(?P<pid>\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
# SGLang names the parallel dimensions that there are; alone, the tensor's is the rank. They are followed by the stage,
# where each is recorded by itself: its name, or what Python shows of an enumeration (`ForwardMode.DECODE`, `2`).
_STAGE = r"(?:-(?:ForwardMode\.)?(?:[A-Z][A-Z_]*|[a-z][a-z_]*|\d{1,3}))"
_SGLANG = re.compile(
    r"(?<![A-Za-z0-9])TP-(\d{1,7})((?:-[A-Z]{2,4}-\d{1,7})*)" + _STAGE + r"{0,2}(?=\.trace\.json|\.pickle)"
)
# vLLM's server profiles itself as well as its workers.
_FRONTEND = re.compile(r"(?P<host>.+)_\d+\.async_llm\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
_TORCHTITAN = re.compile(r"(\d{6})_step_\d+\.pickle")
_LIGHTNING = re.compile(r".+-(\d{1,5})\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
_FOLDER = re.compile(r"(?:rank[-_]?\[?)?(\d{1,5})\]?", re.IGNORECASE)


def parse_trace_name(path: str | os.PathLike[str]) -> TraceName:
    """Read a trace's path: first its file name, then, for the rank, the name of its folder.

    Understood are rankscope's own names, torchtitan's (``iteration_10/rank0_trace.json``), d9d's
    (``step_4/rank-3-coord-1-0-trace.tar.gz``), TensorBoard's (``host_pid.time.pt.trace.json``,
    ``worker0.pt.trace.json``), Lightning's (``fit-NAME-0.time.pt.trace.json``, the local rank), SGLang's
    (``time-TP-0.trace.json.gz``, ``time-TP-0-DECODE.trace.json.gz``), ``…-3-of-8…``, torchtitan's memory snapshots
    (``000003_step_10.pickle``), and any name with ``rank3``, ``rank_3``, ``rank-3`` or ``rank[3]`` in it.
    The number in ``iteration_10`` and ``step_4`` is the step at which a file was written, not the steps in it, and
    is not read.

    The name of a database with several processes is none of any of them.

    Never raises.
    """
    if split_process(os.fspath(path))[1] is not None:
        return TraceName()
    parts = [part for part in re.split(r"[/\\]", os.fspath(path)) if part]
    file = parts[-1] if parts else ""
    folder = parts[-2] if len(parts) > 1 else ""
    return _from_file(file) or _from_folder(file, folder) or TraceName()


def _from_file(file: str) -> TraceName | None:
    if match := _OURS.match(file):
        mesh = parse_mesh(match["mesh"]) if match["mesh"] else None
        restart = None if match[2] is None else int(match[2])
        return TraceName(
            rank=int(match[1]), first=int(match[4]), last=int(match[5]), mesh=mesh, restart=restart, pattern="rankscope"
        )
    if match := _D9D.match(file):
        mesh = {f"dim{i}": int(c) for i, c in enumerate(match[2].split("-"))}
        return TraceName(rank=int(match[1]), mesh=mesh, pattern="d9d")
    if (match := _OF.search(file)) and int(match[1]) < int(match[2]):
        return _with_steps(TraceName(rank=int(match[1]), world_size=int(match[2]), pattern="of"), file)
    # The last one counts: `straggler_rank1.rank0.json` is rank 0's trace of an experiment with a slow rank 1.
    if ranks := _RANK.findall(file):
        return _with_steps(TraceName(rank=int(ranks[-1]), pattern="rank"), file)
    if match := _WORKER.match(file):
        return TraceName(rank=int(match[1]), pattern="worker")
    if match := _FRONTEND.fullmatch(file):
        return TraceName(host=match["host"], pattern="frontend")
    if match := _TORCHTITAN.fullmatch(file):
        return TraceName(rank=int(match[1]), pattern="torchtitan")
    if match := _SGLANG.search(file):
        others = {name.lower(): int(at) for name, at in re.findall(r"-([A-Z]+)-(\d+)", match[2])}
        # Experts are on the same ranks as the tensors that they are cut from.
        rank = int(match[1]) if others.keys() <= {"ep"} else None
        return TraceName(rank=rank, mesh={"tp": int(match[1]), **others}, pattern="sglang")
    if match := _LIGHTNING.fullmatch(file):
        return TraceName(rank=int(match[1]), pattern="lightning")
    return None


def _from_folder(file: str, folder: str) -> TraceName | None:
    tensorboard = _TENSORBOARD.fullmatch(file)
    host = tensorboard["host"] if tensorboard else None
    if match := _FOLDER.fullmatch(folder):
        return TraceName(rank=int(match[1]), host=host, pattern="folder")
    return TraceName(host=host, pattern="tensorboard") if tensorboard else None


def _with_steps(name: TraceName, file: str) -> TraceName:
    if match := _STEPS.search(file):
        name = replace(name, first=int(match[1]), last=int(match[2]))
    if match := _RESTART.search(file):
        name = replace(name, restart=int(match[1]))
    return name


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
