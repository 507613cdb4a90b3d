"""The options of capture, defined once: arguments of ``Profiler``, ``RANKSCOPE_*`` variables, command line, and docs.

In: arguments, and variables of the environment. Out: a checked :class:`CaptureConfig`. An argument wins
over its variable, and the variable over the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from rankscope.errors import ConfigError
from rankscope.rundir.directory import is_store_url
from rankscope.rundir.names import DEFAULT_TEMPLATE, ENDINGS, check_template
from rankscope.rundir.options import command_line_names, option, options_of
from rankscope.rundir.ranks import RanksLike, parse_ranks

ENVIRONMENT_PREFIX = "RANKSCOPE_"
SKIP, WAIT = "skip", "wait"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


PRESETS: Mapping[str, Mapping[str, object]] = {
    "minimal": {"warmup": 1, "active": 1},
    "detailed": {"record_shapes": True, "with_stack": True, "with_flops": True},
    "memory": {"record_shapes": True, "with_stack": True, "profile_memory": True},
    "d9d": {"record_shapes": True, "with_stack": True, "name_template": "d9d", "when_busy": WAIT},
}
"""Sets of options by name; docs/capture.md has the cost of each."""


def _described(options: Mapping[str, object]) -> str:
    return ", ".join(name if value is True else f"{name}={value}" for name, value in options.items())


@dataclass(frozen=True)
class CaptureConfig:
    """How this job is profiled. All counts are steps of the training loop."""

    save_dir: str | None = option(
        None,
        "The run directory, or a URL as for upload_to. Default: rankscope_run_{time} in the working directory.",
        "--run-dir",
        metavar="DIR",
    )
    upload_to: str | None = option(
        None,
        "URL to upload complete files to (s3://…, gs://…, or another that fsspec knows); the local copies stay.",
        metavar="URL",
    )
    run_id: str | None = option(
        None, "Id that all ranks of this run share. Default: from the launcher, or generated.", metavar="ID"
    )
    ranks: RanksLike = option(
        "all",
        "Ranks to profile: all, 0,2,4, 0-3, every:8, node (one per host), or several of these joined by commas. "
        "The others log their steps (watch).",
    )
    wait: int = option(10, "Steps to skip before each warm-up.", least=0)
    warmup: int = option(5, "Steps during which the profiler runs and its events are discarded.", least=0)
    active: int = option(3, "Steps to record in each window.", least=1)
    repeat: int = option(1, "Windows to record; 0 for no limit.", least=0)
    skip_first: int = option(0, "Steps to skip once, before the first wait.", least=0)
    period_steps: int | None = option(
        None, "Record the last active steps of every period of this many steps; replaces wait and repeat.", least=1
    )
    preset: str | None = option(
        None,
        "A set of options; those that are given as well override it: "
        + "; ".join(f"{name} ({_described(options)})" for name, options in PRESETS.items())
        + ".",
        metavar="NAME",
    )
    record_shapes: bool = option(False, "Record the shapes of operators' inputs.")
    with_stack: bool = option(False, "Record Python stacks.")
    profile_memory: bool = option(False, "Record allocations.")
    with_flops: bool = option(False, "Estimate the FLOPs of matrix products and convolutions.")
    with_modules: bool = option(False, "Record the module hierarchy (TorchScript only).")
    compression: str = option("gz", "gz, zst (needs zstandard), tar.gz or none.")
    name_template: str = option(
        DEFAULT_TEMPLATE, "Template of trace names, or a layout: d9d (with tar.gz by default), tensorboard, of."
    )
    # The training loop writes there alone, so that a slow run directory does not delay it.
    staging_dir: str | None = option(
        None, "Local directory for traces that are not complete yet. Default: $TMPDIR.", metavar="DIR"
    )
    keep_windows: int = option(0, "Newest windows of each process to keep; 0 keeps all.", least=0)
    keep_bytes: int = option(
        0, "Bytes of each process's newest traces to keep; 0 keeps all. One trace is always kept.", least=0
    )
    stop_off_loop: str = option(
        "auto",
        "Stop and save recordings in a separate thread: never, always (if torch lets other threads run meanwhile), or "
        "auto (the same, but only if no accelerator is recorded).",
    )

    when_busy: str = option(
        SKIP,
        "If a window is due while the previous trace is still being written: skip (the window), or wait, which delays "
        "the training.",
    )

    watch: bool = option(
        True, "Log every step, watch for hangs, and record on request (rankscope trigger) besides the schedule."
    )
    watch_windows: int = option(
        0, "Windows that the watch may record by itself after slow steps; 0: only on request.", least=0
    )
    watch_pause: int = option(600, "Minimum seconds between two such windows.", "--watch-pause", metavar="S", least=0)
    watch_bytes: int = option(
        2 << 30, "No further such window once this rank's traces have reached this many bytes; 0 for no limit.", least=0
    )
    watch_signal: bool = option(False, "Record on SIGUSR2, too, unless the job has its own handler for it.")
    hang_timeout: int = option(
        300,
        "With the watch: seconds without a step (and at least ten times a usual step) after which each rank writes "
        "a dump for rankscope hang; 0: never.",
        "--hang-timeout",
        metavar="S",
        least=0,
    )
    hang_exit_status: int = option(
        0,
        "With the watch: exit status, up to 255, with which a rank that hangs ends after its dump; 0: it continues.",
        metavar="N",
        least=0,
        most=255,
    )

    take_over: bool = option(
        False,
        "Disable the script's own torch profilers and record this schedule instead. By default, run and exec adopt "
        "the windows that they record.",
    )

    def __post_init__(self) -> None:
        for name in (*_NUMBERS, *SWITCH_FIELDS, *_CHOICES):
            if getattr(self, name) is not None or name not in _OPTIONAL:
                _check(name, getattr(self, name), name)
        if self.period_steps is not None and self.period_steps < self.warmup + self.active:
            raise ConfigError(
                f"period_steps={self.period_steps} is shorter than warmup={self.warmup} and active={self.active}",
                hint="make the period longer, or the warm-up shorter",
            )
        if self.upload_to is not None and not is_store_url(self.upload_to):
            raise ConfigError(f"upload_to={self.upload_to!r} is not a URL", hint="for example s3://bucket/run")
        parse_ranks(self.ranks)
        check_template(self.name_template)

    @property
    def steps_between(self) -> int:
        """Steps from the end of a window to the next warm-up."""
        return self.wait if self.period_steps is None else self.period_steps - self.warmup - self.active

    @classmethod
    def resolve(
        cls,
        given: Mapping[str, object],
        environ: Mapping[str, str] | None = None,
        written: Mapping[str, str] | None = None,
    ) -> CaptureConfig:
        """Join arguments, environment, the preset and defaults.

        Args:
            given: arguments by field name, ``warmup_steps`` and ``active_steps`` too; ``None`` means not given.
            environ: where the variables are looked up, ``os.environ`` by default.
            written: by field name, what errors call the source of a text; its variable by default.

        Raises:
            ConfigError: an invalid value, with the argument or variable that holds it.
        """
        environ = os.environ if environ is None else environ
        given = {**given, **{name: _one_of(name, given) for name in _OTHER_NAMES}}
        values: dict[str, object] = {}
        for field in fields(cls):
            if given.get(field.name) is not None:
                values[field.name] = given[field.name]
            elif environ.get(variable_of(field.name), "").strip():
                source = (written or {}).get(field.name, variable_of(field.name))
                values[field.name] = _read(field.name, environ[variable_of(field.name)].strip(), source)
        preset = values.get("preset")
        for name, value in PRESETS.get(preset, {}).items() if isinstance(preset, str) else ():
            values.setdefault(name, value)
        if values.get("period_steps") is not None:
            if given.get("period_steps") is not None and given.get("wait") is not None:
                raise ConfigError(
                    "wait and period_steps contradict each other: a period says how long to wait",
                    hint="leave out one of them",
                )
            values.setdefault("repeat", 0)
        if values.get("name_template") == "d9d":
            values.setdefault("compression", "tar.gz")
        for name in ("save_dir", "staging_dir"):
            path = values.get(name)
            if isinstance(path, os.PathLike):
                path = values[name] = os.fspath(path)
            if path is not None and not isinstance(path, str):
                raise ConfigError(f"{name}={path!r} is not a path", hint="give text or a pathlib.Path")
        if is_store_url(values.get("save_dir")):
            url = values.pop("save_dir")
            if values.setdefault("upload_to", url) != url:
                raise ConfigError(
                    f"save_dir={url!r} and upload_to={values['upload_to']!r} are both URLs to upload to",
                    hint="leave out one of them, or give a directory as save_dir",
                )
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks them


_OTHER_NAMES = {"warmup": "warmup_steps", "active": "active_steps"}
_OPTIONS = options_of(CaptureConfig)
SWITCH_FIELDS = frozenset(name for name in _OPTIONS if isinstance(getattr(CaptureConfig, name), bool))
"""The options that are on or off."""
_NUMBERS = {name: option for name, option in _OPTIONS.items() if option.least is not None}
_CHOICES = {
    "compression": tuple(ENDINGS),
    "stop_off_loop": ("auto", "always", "never"),
    "when_busy": (SKIP, WAIT),
    "preset": tuple(PRESETS),
}
_OPTIONAL = frozenset({"period_steps", "preset"})
OPTIONS = command_line_names(CaptureConfig)
"""The options on a command line, and the field of :class:`CaptureConfig` that each sets."""


def variable_of(name: str) -> str:
    """The environment variable of a field of :class:`CaptureConfig`."""
    names = _OPTIONS[name].names
    return ENVIRONMENT_PREFIX + (names[0].lstrip("-").replace("-", "_") if names else name).upper()


def option_docs() -> str:
    """The options as the ``Args`` of a docstring lists them, from the second line on indented by four."""
    return "\n    ".join(f"{name}: {option.help}" for name, option in _OPTIONS.items())


def _one_of(name: str, given: Mapping[str, object]) -> object:
    value, other = given.get(name), given.get(_OTHER_NAMES[name])
    if value is not None and other is not None and value != other:
        raise ConfigError(
            f"{name}={value} and {_OTHER_NAMES[name]}={other} are two names for one option",
            hint="leave out one of them",
        )
    return other if value is None else value


def _check(name: str, value: object, source: str) -> None:
    """Raise an error that calls the value what its source calls it: an argument, a variable or an option."""
    if name in _NUMBERS:
        least, most = _NUMBERS[name].least or 0, _NUMBERS[name].most
        number = value if isinstance(value, int) and not isinstance(value, bool) else None
        if number is None or number < least or (most is not None and number > most):
            limits = f"{least} or more" if most is None else f"{least} to {most}"
            raise ConfigError(f"{source}={value!r} must be a whole number, {limits}")
    elif name in SWITCH_FIELDS and not isinstance(value, bool):
        raise ConfigError(f"{source}={value!r} must be True or False")
    elif name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"{source}={value!r} is not known", hint=f"one of {', '.join(_CHOICES[name])}")


def _read(name: str, text: str, source: str) -> object:
    value: object = text
    if name in _NUMBERS and re.fullmatch("-?[0-9]{1,18}", text):
        value = int(text)
    elif name in SWITCH_FIELDS:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ConfigError(f"{source}={text!r} is neither yes nor no", hint="write 1 or 0")
        value = text.lower() in _TRUE
    _check(name, value, source)
    return value
