"""The torch profilers that the script itself makes: noticed, so that their windows can be adopted, or made inert.

Adopted (`rankscope run` and `exec`): the script's profiler runs as it was written, its handlers too. Around its own
methods, the adopter is called: at its warm-up, its beginning and its end (`adoption`).

Taken over (the option ``take_over``): its methods do nothing, and the results that it gives are empty.

Both replace methods of torch's classes. ``torch.profiler.profile`` stores some of its own methods when it is created:
they must be replaced before the script makes one. Whatever fails in what is added is one warning, and torch's own
method runs all the same. Profilers that torch makes for itself, as to tune kernels, are left alone.

In: the script's calls of its profilers. Out: calls of an ``Adopter``, or nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rankscope.capture.notices import warn
from rankscope.capture.script_profilers import conflicts
from rankscope.capture.script_profilers.adopted_window import AdoptedWindow
from rankscope.capture.torch_compat import InertProfile
from rankscope.rundir.capture_files import HOOK_FOLDER
from rankscope.rundir.code_places import is_installed

TORCH_PROFILER = "torch.profiler.profiler"
# On the script's profilers.
_WINDOW, _CREATED, _ENDED = "_rankscope_window", "_rankscope_created", "_rankscope_ended"
_TORCH = str(Path(torch.__file__).parent) + os.sep
_OWN = str(HOOK_FOLDER.parent) + os.sep
_PROFILER_FILES = (f"{_TORCH}profiler{os.sep}", str(Path(_TORCH, "autograd", "profiler.py")))


class Adopter(Protocol):
    """Writes the windows of the script's profilers; given to ``adopt``."""

    def window(self, profile: Any, owner: Any, source: str) -> AdoptedWindow | None:
        """A profiler of the script begins its warm-up; ``None`` if its window is not to be written."""

    def begin(self, window: AdoptedWindow) -> None:
        """It begins to record."""

    def end(self, window: AdoptedWindow, in_step_call: bool) -> None:
        """It has stopped, and its result is not saved yet; ``in_step_call`` if ``step()`` stopped it."""

    def exported(self, source: str, path: str) -> None:
        """The script exports a trace of it to ``path``."""


_adopter: Adopter | None = None
_taken_over = False
_open: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of the script between start and stop."""
_recording: list[tuple[AdoptedWindow, Any]] = []
"""Adopted windows that are recording, and what records each."""
_local = threading.local()
_warned: set[str] = set()
_replaced: set[tuple[Any, str, bool]] = set()


def adopt(adopter: Adopter) -> None:
    """Have ``adopter`` called for the profilers that the script makes from now on."""
    global _adopter
    _adopter = adopter
    kind: Any = torch.autograd.profiler.profile
    _replace(kind, "_prepare_trace", _call_before(_warm_up))
    _replace(kind, "_start_trace", _call_after(_start))
    _replace(kind, "__exit__", _stop)
    _replace(kind, "export_chrome_trace", _export)
    if TORCH_PROFILER in sys.modules:
        watch(sys.modules[TORCH_PROFILER])


def take_over() -> None:
    """Make the profilers that the script starts from now on inert."""
    global _taken_over
    if _taken_over:
        return
    _taken_over = True
    _replace(torch.autograd.profiler.profile, "__enter__", _inert_enter)
    if TORCH_PROFILER in sys.modules:
        watch(sys.modules[TORCH_PROFILER])


def watch(module: Any) -> None:
    """Replace the methods of ``torch.profiler.profile``.

    Args:
        module: ``torch.profiler.profiler``, loaded.
    """
    kind, base = module.profile, module._KinetoProfile
    _replace(kind, "__init__", _call_before(_note_created))
    if _taken_over:
        for name in ("start", "step", "stop"):
            _replace(kind, name, functools.partial(_inert, name))
        for name in ("prepare_trace", "start_trace", "stop_trace", "export_chrome_trace", "export_memory_timeline"):
            _replace(base, name, functools.partial(_inert, name))
    elif _adopter is not None:
        for name in ("start", "step", "stop"):
            _replace(kind, name, functools.partial(_within, name))
        _replace(base, "prepare_trace", functools.partial(_within, "prepare_trace"))
        _replace(base, "export_chrome_trace", _note_export)


def any_open() -> bool:
    """Whether a profiler of the script has been started and not stopped, recording or not."""
    return bool(_open) or bool(_recording)


def name_of_open() -> str:
    """The class of a started profiler of the script, and where it was created."""
    started = [f"{_class_name(each)}, {vars(each).get(_CREATED) or 'unknown line'}" for each in list(_open)]
    return (started or [window.source for window, _ in _recording] or ["torch.profiler.profile"])[0]


def training_stepped() -> None:
    """A step of the training has ended."""
    for window, _ in _recording:
        window.mark()


def stop_recording() -> None:
    """The process ends: stop what the script has left recording, so that it is written."""
    for _, profile in list(_recording):
        with suppress(Exception):
            profile.__exit__(None, None, None)
            vars(profile)[_ENDED] = True


def forget() -> None:
    """In a forked child: the profilers that its parent had started are not its own."""
    _open.clear()
    _recording.clear()


@dataclass(frozen=True)
class _Call:
    """A method of a script's ``torch.profiler.profile`` that is running."""

    owner: Any
    name: str


def _calls() -> list[_Call]:
    """The running calls of this thread, the outermost first."""
    if not hasattr(_local, "calls"):
        _local.calls = []
    calls: list[_Call] = _local.calls
    return calls


# --- adopted ------------------------------------------------------------------------------------------------


def _within(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is in ``_calls()`` while it runs: what torch does meanwhile is this profiler's."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        if conflicts.is_own(self) or vars(self).get(_CREATED) == "":
            return original(self, *args, **options)
        if name == "start":
            _open.add(self)
        elif name == "stop":
            _open.discard(self)
        _calls().append(_Call(self, name))
        try:
            return original(self, *args, **options)
        finally:
            _calls().pop()

    return method


def _warm_up(profile: Any, *_args: Any, **_options: Any) -> None:
    vars(profile).pop(_WINDOW, None)
    if conflicts.is_preparing() or _adopter is None or _taken_over:
        return
    calls = _calls()
    owner = calls[-1].owner if calls else None
    created = vars(owner).get(_CREATED) if owner is not None else None
    created = _place() if created is None else created
    if created:
        conflicts.import_before_recording()
        window = _adopter.window(profile, owner, f"{_class_name(profile if owner is None else owner)}, {created}")
        vars(profile)[_WINDOW] = window


def _start(profile: Any, *_args: Any, **_options: Any) -> None:
    window: AdoptedWindow | None = vars(profile).get(_WINDOW)
    if window is not None and _adopter is not None:
        calls = _calls()
        window.began_in = calls[0] if calls else None
        _recording.append((window, profile))
        _adopter.begin(window)


def _stop(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stop(self: Any, *args: Any, **options: Any) -> Any:
        if vars(self).get(_ENDED):
            return None  # to stop what does not run crashes
        window: AdoptedWindow | None = vars(self).get(_WINDOW)
        if window is None or window.stopped or not window.started:
            return original(self, *args, **options)
        window.stopped = True
        _recording[:] = [each for each in _recording if each[0] is not window]
        _safely(window.end)
        result = original(self, *args, **options)
        call = _calls()[0] if _calls() else None
        # Torch ends a warm-up by a start and a stop in one call: nothing was recorded.
        if _adopter is not None and (call is None or call is not window.began_in):
            _safely(_adopter.end, window, call is not None and call.name == "step")
        return result

    return stop


def _export(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def export_chrome_trace(self: Any, path: Any, *args: Any, **options: Any) -> Any:
        window: AdoptedWindow | None = vars(self).get(_WINDOW)
        by_torch_alone = bool(options.get("use_python_export") or (len(args) > 1 and args[1]))
        if window is None or by_torch_alone:
            return original(self, path, *args, **options)
        if _safely(window.export, os.fspath(path)):
            return None
        if window.lost:  # torch would refuse to save the result again, but can make the file from its events
            _safely(original, self, path, *args, **{**options, "use_python_export": True})
            return None
        return original(self, path, *args, **options)

    return export_chrome_trace


def _note_export(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note where a script's traces are: a job without other traces names them at its end."""

    @functools.wraps(original)
    def export_chrome_trace(self: Any, path: Any, *args: Any, **options: Any) -> Any:
        if _adopter is not None and not conflicts.is_own(self) and (created := vars(self).get(_CREATED)):
            _safely(_adopter.exported, f"{_class_name(self)}, {created}", str(path))
        return original(self, path, *args, **options)

    return export_chrome_trace


# --- taken over ---------------------------------------------------------------------------------------------


def _inert(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ``torch.profiler.profile`` that does nothing."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        running = self.profiler is not None and not isinstance(self.profiler, InertProfile)
        if conflicts.is_own(self) or vars(self).get(_CREATED) == "" or running:
            return original(self, *args, **options)
        self.profiler = self.profiler or InertProfile()
        if name == "step":
            self.step_num += 1
        if name == "export_chrome_trace":
            self.profiler.export_chrome_trace(*args, **options)
        if name in ("start", "prepare_trace") and not _warned:
            source = f"{_class_name(self)}, {vars(self).get(_CREATED) or _place()}"
            _warned.add(source)
            warn(f"the script's own profiler ({source}) does nothing: take_over is set, and rankscope records")
        return None

    return method


def _inert_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enter(self: Any) -> Any:
        if not _place():
            return original(self)
        self.__class__ = InertProfile
        InertProfile.__init__(self)
        return self

    return enter


# --- torch's classes ----------------------------------------------------------------------------------------


def _note_created(profile: Any, *_args: Any, **_options: Any) -> None:
    vars(profile)[_CREATED] = _place()


def _place() -> str:
    """File and line of the call that leads to torch's profiler; empty if torch made it for itself, or rankscope."""
    frame = sys._getframe()
    places: list[tuple[str, int]] = []
    while (next_frame := frame.f_back) is not None:
        frame = next_frame
        name = frame.f_code.co_filename
        if name.startswith((*_PROFILER_FILES, _OWN)) or name == contextlib.__file__:
            continue
        places.append((name, frame.f_lineno))
        if not is_installed(Path(name)):
            break
    if not places or places[0][0].startswith(_TORCH):
        return ""
    shown = [f"{_short(name)}:{line}" for name, line in places]
    # A library made it for the script: the line of the script is worth knowing, too.
    return shown[0] if len(shown) == 1 else f"{shown[0]}, called from {shown[-1]}"


def _short(name: str) -> str:
    _head, found, tail = name.rpartition(f"site-packages{os.sep}")
    with suppress(ValueError, OSError):
        return tail if found else str(Path(name).relative_to(Path.cwd()))
    return name


def _class_name(profile: Any) -> str:
    kind = type(profile)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name.replace("torch.profiler.profiler.", "torch.profiler.")


def _call_before(action: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A replacement for a method, for `_replace`: it calls ``action`` first, with the same arguments."""

    def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **options: Any) -> Any:
            _safely(action, self, *args, **options)
            return original(self, *args, **options)

        return method

    return replaced


def _call_after(action: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A replacement for a method that calls ``action`` afterwards."""

    def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **options: Any) -> Any:
            result = original(self, *args, **options)
            _safely(action, self, *args, **options)
            return result

        return method

    return replaced


def _replace(kind: Any, name: str, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method of a class, once; a torch without it stays as it is."""
    original = getattr(kind, name, None)
    key = (kind, name, _taken_over)
    if original is not None and key not in _replaced:
        _replaced.add(key)
        setattr(kind, name, replacement(original))


def _safely(action: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result of ``action``; if it fails, one warning, and ``None``."""
    try:
        return action(*args, **options)
    except Exception as error:
        if "failed" not in _warned:
            _warned.add("failed")
            warn(f"the script's own profiler is not recorded by rankscope: {type(error).__name__}: {error}")
        return None
