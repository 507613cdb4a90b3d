"""The other methods of ``torch.profiler.profile``, so that code written for it also runs with ``rankscope.Profiler``.

A method that would delay the training, or needs a result that the training does not keep, warns where to find it
instead and does nothing. Nothing here raises. With ``take_over``, the script's profilers (`script_profilers`) become an
``InertProfile``, which records nothing and gives empty results.

In: calls of torch's methods. Out: the same result as from torch, or a warning and an empty one.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.autograd.profiler_util import EventList

from rankscope.capture.notices import warn
from rankscope.capture.rank_log import RankLog
from rankscope.capture.recording import Recording
from rankscope.capture.writer import Writer
from rankscope.rundir.metadata import kineto_json
from rankscope.rundir.schedule import Window

_EXPORT_LIMIT_S = 60.0


class UserMetadata:
    """What the job puts into its traces by ``add_metadata``: JSON text by key, which cannot break the file."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}

    def add(self, key: str, value: object) -> None:
        """Keep a value that JSON can represent."""
        self.by_key[json.loads(kineto_json(str(key)))] = kineto_json(value)

    def add_json(self, key: str, text: str) -> None:
        """Keep a value that is given as JSON text; warn and leave it out if it is not JSON."""
        try:
            self.add(key, json.loads(text))
        except (TypeError, ValueError) as error:
            # Torch would write it into the file as it is, and the file would not be JSON.
            warn(f"add_metadata_json({key!r}): the value is not JSON and is left out: {error}")


class EmptyAverages(list[Any]):
    """What ``key_averages()`` returns: nothing, and the command that prints the table."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def table(self, *_args: object, **_options: object) -> str:
        """The command that prints the table."""
        return self._command

    def total_average(self) -> None:
        """There is none."""

    def __str__(self) -> str:
        return self._command


class TorchProfilerMethods:
    """Methods and attributes of torch's profiler that ``Profiler`` itself does not need."""

    step_num: int
    run_dir: str | None
    run_id: str | None
    _recording: Recording | None
    _window: Window | None
    _last_log: RankLog | None
    _writer: Writer
    _user_metadata: UserMetadata

    @property
    def current_action(self) -> torch.profiler.ProfilerAction:
        """What is done with the current step."""
        actions = torch.profiler.ProfilerAction
        recording, window = self._recording, self._window
        if recording is None or window is None:
            return actions.NONE
        if not recording.started:
            return actions.WARMUP
        return actions.RECORD_AND_SAVE if self.step_num >= window.last else actions.RECORD

    def add_metadata(self, key: str, value: str) -> None:
        """Put a text into every trace that is still to be written."""
        self._user_metadata.add(key, str(value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Put a JSON value, given as text, into every trace that is still to be written."""
        self._user_metadata.add_json(key, value)

    preset_metadata_json = add_metadata_json

    def export_chrome_trace(self, path: str, **_options: object) -> None:
        """Copy the last finished trace to ``path``; compressed if that ends in ``.gz``."""
        try:
            if not self._writer.drain(_EXPORT_LIMIT_S):
                warn("export_chrome_trace(): the trace is still being written")
                return
            written = self._last_log.manifest.written if self._last_log is not None else ()
            if self.run_dir is None or not written:
                warn("export_chrome_trace(): this rank has written no trace")
                return
            source, target = Path(self.run_dir, written[-1].file), Path(path)
            if source.name.endswith((".zst", ".tar.gz")):
                warn(f"export_chrome_trace(): the trace is {source}; it is not copied")
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            with _opened(source, "rb") as read, _opened(target, "wb") as write:
                shutil.copyfileobj(read, write)
        except Exception as error:
            warn(f"export_chrome_trace() failed: {error}")

    def key_averages(self, *_args: object, **_options: object) -> EmptyAverages:
        """An empty list: torch would block the training for as long as nine stops. The analysis makes the table."""
        command = f"rankscope analyze operators {self.run_dir or 'RUN'} --format table"
        warn(f"key_averages() would block the training; print the table afterwards: {command}")
        return EmptyAverages(command)

    def events(self) -> list[Any]:
        """An empty list, for the same reason."""
        warn(f"events() would block the training; read them afterwards with rankscope.open({self.run_dir or 'RUN'!r})")
        return []

    def get_trace_id(self) -> str | None:
        """The id that the traces of all ranks share: the run's id."""
        return self.run_id

    def toggle_collection_dynamic(self, enable: bool, activities: Any) -> None:
        """Switch activities off or on in the window that is being recorded."""
        if self._recording is not None and self._recording.started:
            self._recording.toggle(enable, activities)

    def wait_for_exports(self) -> None:
        """Wait until everything recorded is written."""
        try:
            if not self._writer.drain(_EXPORT_LIMIT_S):
                warn("wait_for_exports(): a trace is still being written")
        except Exception as error:
            warn(f"wait_for_exports() failed: {error}")

    def take_pending_cupti_export(self) -> None:
        """Does nothing: torch's own CUPTI monitor (2.14) is not used here."""

    def take_pending_cuspy_export(self) -> None:
        """Does nothing, for the same reason (its name in 2.15)."""

    def _unsupported(self, method: str, advice: str) -> None:
        warn(f"{method}() does nothing here: {advice}")

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Does nothing but warn."""
        self._unsupported("export_stacks", "with_stack=True puts stacks into the trace")

    def export_memory_timeline(self, path: str, device: str | None = None) -> None:
        """Does nothing but warn."""
        self._unsupported("export_memory_timeline", "profile_memory=True puts allocations into the trace")

    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        """Does nothing but warn."""
        self._unsupported("set_custom_trace_id_callback", "the run's id is in every trace; set it with run_id=")

    def prepare_trace(self) -> None:
        """Does nothing but warn."""
        self._unsupported("prepare_trace", "the schedule decides when the warm-up begins")

    def start_trace(self) -> None:
        """Does nothing but warn."""
        self._unsupported("start_trace", "the schedule decides when a recording begins")

    def stop_trace(self) -> None:
        """Does nothing but warn."""
        self._unsupported("stop_trace", "the schedule decides when a recording ends")


def _opened(path: Path, mode: str) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, cast("Any", mode), compresslevel=1))
    return cast("IO[bytes]", path.open(mode))


# --- a script's profiler that is taken over ----------------------------------------------------------------


class InertProfile(torch.autograd.profiler.profile):
    """Records nothing, and gives empty results."""

    def __init__(self) -> None:
        super().__init__(enabled=False)
        self.kineto_results = None
        self.trace_id = ""

    def __enter__(self) -> InertProfile:
        return self

    def __exit__(self, *_args: Any) -> None: ...

    @property
    def function_events(self) -> Any:
        """No events."""
        make: Any = EventList
        events = make([])
        events._build_tree()  # without it, torch makes no averages
        return events

    def key_averages(self, *_args: Any, **_options: Any) -> Any:
        """No averages; the analysis of rankscope's trace has them."""
        warn("key_averages() is empty: the script's profiler was taken over; see `rankscope analyze operators`")
        return self.function_events.key_averages()

    def table(self, *_args: Any, **_options: Any) -> str:
        """Empty."""
        return ""

    def total_average(self) -> Any:
        """The average of no events."""
        return self.function_events.total_average()

    @property
    def self_cpu_time_total(self) -> int:
        """Zero."""
        return 0

    def export_chrome_trace(self, path: str, *_args: Any, **_options: Any) -> None:
        """A trace without events: the script may read it."""
        warn(f"{path} has no events: the script's profiler was taken over, and rankscope records instead")
        content = b'{"traceEvents": []}'
        _write(path, gzip.compress(content, mtime=0) if os.fspath(path).endswith(".gz") else content)

    def export_stacks(self, path: str, *_args: Any, **_options: Any) -> None:
        """An empty file."""
        _write(path, b"")

    def toggle_collection_dynamic(self, *_args: Any, **_options: Any) -> None:
        """Does nothing: it would switch off what rankscope records."""

    def __repr__(self) -> str:
        return "<torch profiler, taken over by rankscope>"

    __str__ = __repr__


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        warn(f"{path} could not be written: {error}")
