"""Anonymizes a report: hosts, users, paths, runs, groups, threads, modules, ranges and frames become numbers.

In: a run, and values of its report. Out: the same values without names. Names of kernels, runtime calls, torch's own
operators, ranges and files, and devices stay, as do all numbers. All other names are collected from all tables first,
and each gets one replacement everywhere (`host 2`, `range 17`). A text that is such a name is replaced; in longer
texts the names are, and words that occur only in them. Rankscope's own texts (captions, columns) are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rankscope.analyses import all_analyses
from rankscope.answers.diagnosis.rules import all_rules
from rankscope.engine.pipeline import Run
from rankscope.show.report.experiments.tables import PREFIX
from rankscope.store.cache import CachedTrace
from rankscope.store.schema import TABLES

# Torch's own operators, by namespace; what other libraries register is somebody's.
_OPERATOR = re.compile(
    r"(aten|prims?|c10d|_?c10d_functional|nccl|torch|torchvision|autograd|quantized|inductor|fsdp|profiler|cuda|triton|"
    r"symm_mem|onednn|mkldnn|xpu|rngprims|debugprims|higher_order|record_param_comms)(::[\w.]+)*"
    r"(: [A-Za-z]+Backward\d+|: torch::autograd::\w+)?|[A-Za-z]+Backward\d+|record_param_comms"
)
_RANGE = re.compile(
    r"ProfilerStep#\d+|(nccl|gloo|xccl|ucc|mpi):\w+|DistributedDataParallel\.forward|"
    r"(Torch-Compiled Region|CompiledFunction|CompiledFunctionBackward|CompiledFxGraph)(: \d+/\d+)?|"
    r"enumerate\(DataLoader\)#_(Single|Multi)ProcessingDataLoaderIter\.__next__|PyTorch Profiler \(\d+\)|"
    r"Iteration Start: PyTorch Profiler|Record Window End|Trace PyTorch Profiler|PyTorch Profiler|"
    r"(Buffer Flush|Activity Buffer Request|Instrumentation|Resource|Lazy Function Loading|Context Sync|Stream Sync|"
    r"Event Sync|Stream Wait Event|Runtime Triggered Module Loading|Command Buffer Full|Unknown)"
)
_FRAME = re.compile(r"(torch/[\w/]+\.py\(\d+\): [\w<>]+|<built-in \w+ \w+ of \w+ object>|nn\.Module: None)")
# Names of mesh dimensions that everybody has.
_DIMENSION = re.compile(
    r"(h?s?dp|tp|pp|ep|cp|sp|fsdp|world|dp_(shard|replicate)(_cp)?|default(_pg)?|\d+)", re.IGNORECASE
)
_WORD = re.compile(r"[^\W\d]\w{3,}")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """torch nn module modules forward backward python lib site packages home users user usr local data init main
        call none self step train file true false float double int64 cuda stream thread process default name args
        list""",
    )
)
# Arguments that are columns of the tables, and those of Kineto that are kept as text; any other may be somebody's.
_ARGUMENTS = frozenset(column.name for table in TABLES.values() for column in table.columns) | {
    "Collective name",
    "Process Group Ranks",
}
# The words of arguments, shapes and types that PyTorch and Kineto write themselves.
_TERM = re.compile(r"[^\W\d][\w:]*")
_TORCH_TERM = re.compile(
    r"input|dims|types|strides|(c10::)?b?float\w*|(c10::)?(half|complex)\w*|double|long|short|u?int\d*|bool|unsigned|signed|"
    r"char|scalar|scalarlist|tensorlist|genericlist|genericdict|device|string|none|true|false|null|x|kernel|gpu_\w+|"
    r"cpu_op|cuda_\w+|hip_\w+|xpu_\w+|(user|gpu_user)_annotation|python_function|overhead|trace|mtia_\w+|"
    r"((nccl|gloo|xccl|ucc|mpi)[:_]*)?_?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|broadcast|barrier|send|"
    r"recv|gather|scatter|reduce|coalesced)\w*",
    re.IGNORECASE,
)
HIDDEN = "?"
# Columns of the tables of experiments with whatever a job or its script wrote.
_FREE = ("error", "run")


class Anonymizer:
    """Names of a run, and what takes their place.

    Args:
        run: the run, read.
    """

    def __init__(self, run: Run) -> None:
        self._kept: set[str] = set()
        self._taken: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        about = run.about()
        for host in about["hosts"]:
            self._take("host", host)
        paths = {about["path"], *(trace.path for trace in run.traces), *_paths_in_findings(run)}
        for name in (about["name"], about["id"], run.loaded.label, *(about["command"] or ())):
            self._take("run", name)
        for path in paths:
            for part in (path, *Path(path).parts, *(Path(path).resolve().parts if "://" not in path else ())):
                self._take("path", part if len(part) > 2 else None)
        for traces in run.loaded.ranks.values():
            for trace in traces:
                self._collect(trace)
        for manifest in run.loaded.rank_manifests:
            self._take("host", manifest.host)
        own = _own_words()
        public = {word.lower() for name in self._kept for word in _WORD.findall(name)}
        words = {word for name in self._taken for word in _WORD.findall(name)}
        sensitive = sorted(word for word in words if word.lower() not in own and word.lower() not in public)
        self._words = {word: self._taken.get(word) or f"name {place + 1}" for place, word in enumerate(sensitive)}
        # The longest first: a name can be a part of another one.
        plain = [name for name in self._taken if name.lower() not in own and len(name) > 2]
        self._inside = sorted(plain, key=len, reverse=True)
        self.text = lru_cache(maxsize=None)(self._text)

    def _take(self, kind: str, name: str | None) -> None:
        if name and name not in self._taken and name not in self._kept:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._taken[name] = f"{kind} {self._counts[kind]}"

    def _sort(self, kind: str, names: Iterable[str | None], stays: re.Pattern[str]) -> None:
        for name in names:
            if name is not None and stays.fullmatch(name):
                self._kept.add(name)
            else:
                self._take(kind, name)

    def _collect(self, trace: CachedTrace) -> None:
        def values(table: str, column: str) -> list[str]:
            return sorted(trace.load(table, [column])[column].drop_nulls().unique().to_list())

        self._take("host", trace.info.host)
        for category in trace.info.account.unknown:
            self._take("category", category or None)
        for table in ("device_events", "runtime_calls"):
            self._kept.update(values(table, "name"))
        self._sort("operator", values("host_ops", "name"), _OPERATOR)
        for table in ("annotations", "other_events"):
            self._sort("range", values(table, "name"), _RANGE)
        self._sort("frame", values("python_frames", "name"), _FRAME)
        for table, about in TABLES.items():
            for column in {"call_stack", "stack"} & {each.name for each in about.columns}:
                for stack in values(table, column):
                    self._sort("frame", re.split(r"[;\n]", stack), _FRAME)
        for column in ("module_hierarchy", "kernel_file", "kernel_name"):
            for value in values("host_ops", column):
                self._take("module" if column == "module_hierarchy" else "file", value)
        for column in ("group_name", "group_description"):
            self._sort("group", values("collectives", column), _DIMENSION)
        self._sort("dimension", trace.info.mesh, _DIMENSION)
        threads = trace.load("tracks", ["field", "value"])
        for field, value in threads.iter_rows():
            if field in ("thread_name", "process_labels", "text") and value:
                self._take("thread", value)

    # -- what is shown --------------------------------------------------------------------------------------------

    def _text(self, text: str) -> str:
        """A text of the data without names."""
        # A host that is called as a kernel is a host.
        if text in self._taken:
            return self._taken[text]
        if text in self._kept:
            return text
        for name in self._inside:
            if name in text:
                text = text.replace(name, self._taken[name])
        return _WORD.sub(lambda word: self._words.get(word.group(), word.group()), text)

    def value(self, value: Any) -> Any:
        """JSON values without names, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.value(each) for key, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list | tuple) else value

    def payload(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The report's payload."""
        run = payload["run"]
        about = {**run, "id": None, "command": None, "name": "run", "path": "run", "hosts": self.value(run["hosts"])}
        analyses = {
            name: {
                **table,
                "headline": self._headline(table.get("headline")),
                "data": {column: self.value(cells) for column, cells in table["data"].items()},
                **(self._experiment(table) if name.startswith(PREFIX) else {}),
            }
            for name, table in payload["analyses"].items()
        }
        found = {"run": about, "analyses": analyses, "findings": [self.finding(each) for each in payload["findings"]]}
        return {**payload, **found, "diagnosis": self._diagnosis(payload["diagnosis"])}

    def _experiment(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """What replaces an experiment's texts: its script and hosts need not be the run's, whose names are known."""
        data = {
            column: [cell and HIDDEN for cell in cells] if column in _FREE else self.value(cells)
            for column, cells in table["data"].items()
        }
        # After the first paragraph it says how it was measured: the script's path, and notes.
        return {"doc": table["doc"].split("\n\n")[0], "data": data}

    def finding(self, finding: Mapping[str, Any]) -> dict[str, Any]:
        """One of the payload's findings."""
        texts = {key: self.value(finding[key]) for key in ("title", "advice", "evidence")}
        return {**finding, **texts, "symptoms": [self.finding(each) for each in finding["symptoms"]]}

    def _diagnosis(self, diagnosis: Mapping[str, Any]) -> dict[str, Any]:
        stragglers = diagnosis["stragglers"]
        return {
            **diagnosis,
            "headline": self._headline(diagnosis["headline"]),
            "stragglers": {**stragglers, "sentence": self._headline(stragglers["sentence"])},
            "not_judged": [{key: self.text(text) for key, text in each.items()} for each in diagnosis["not_judged"]],
        }

    def _headline(self, headline: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """An answer in one sentence: names from traces are only among its values."""
        if headline is None:
            return None
        return {**headline, "values": [{**each, "value": self.value(each["value"])} for each in headline["values"]]}

    def head(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The head of the report's timeline."""
        layout = head["layout"]
        ranks = [
            {**row, "host": self.value(row["host"]), "mesh": {self.text(k): v for k, v in row["mesh"].items()}}
            for row in layout["ranks"]
        ]
        tracks = [
            {**track, "title": track["title"] if track["kind"] in ("rank", "stream") else self._title(track)}
            for track in layout["tracks"]
        ]
        kinds = [[kind, None if group is None else self.text(group), size] for kind, group, size in head["kinds"]]
        names = [self.text(name) for name in head["names"]]
        left = [self.value(text) for text in head.get("left_out", ())]
        return {
            **head, "layout": {**layout, "ranks": ranks, "tracks": tracks}, "names": names, "kinds": kinds,
            "left_out": left,
        }  # fmt: skip

    def _title(self, track: Mapping[str, Any]) -> str:
        title: str = track["title"]
        begin = "Python, " if title.startswith("Python, ") else ""
        rest = title.removeprefix("Python, ")
        return title if title.startswith("ranges on ") or _RANGE.fullmatch(title) else begin + self.text(rest)

    def details(self, details: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Arguments, shapes and stacks of events; of arguments and shapes only PyTorch's own words and numbers."""
        found: dict[str, dict[str, Any]] = {}
        for event, about in details.items():
            args = {key: _public(each) for key, each in about.get("args", {}).items() if key in _ARGUMENTS}
            shapes = [_public(line) for line in about.get("shapes", "").splitlines() if not line.startswith("concrete")]
            own = {"args": args, "shapes": "\n".join(shapes), "stack": self.value(about.get("stack", []))}
            found[event] = {key: each for key, each in own.items() if each}
        return found


def _public(value: Any) -> Any:
    """A JSON value whose texts have no words but PyTorch's."""
    if isinstance(value, str):
        return _TERM.sub(lambda word: word.group() if _TORCH_TERM.fullmatch(word.group()) else HIDDEN, value)
    if isinstance(value, Mapping):
        return {_public(key): _public(each) for key, each in value.items()}
    return [_public(each) for each in value] if isinstance(value, list | tuple) else value


def _paths_in_findings(run: Run) -> set[str]:
    """Paths of files that were not read, which findings name."""
    evidence = (each for finding in run.loaded.findings for each in finding.evidence)
    return {str(each.value) for each in evidence if each.name in ("file", "link") and each.value is not None}


def _own_words() -> frozenset[str]:
    """Words that rankscope itself uses: in a name they reveal nothing."""
    texts = [rule.doc for rule in all_rules().values()]
    for analysis in all_analyses().values():
        texts += [analysis.title, analysis.doc]
        texts += [text for column in analysis.columns for text in (column.name, column.doc)]
    return _COMMON | {word.lower() for text in texts for word in re.findall(r"\w+", text)}
