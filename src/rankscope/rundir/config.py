"""What can be set about a capture, once: the arguments of ``Profiler``, the ``RANKSCOPE_*`` variables, and
their docs.

An argument that is given wins over its variable, and the variable over the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from rankscope.errors import ConfigError
from rankscope.rundir.names import DEFAULT_TEMPLATE, ENDINGS, check_template
from rankscope.rundir.ranks import RanksLike, parse_ranks

ENVIRONMENT_PREFIX = "RANKSCOPE_"
_VARIABLES = {"save_dir": "RANKSCOPE_RUN_DIR"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class CaptureConfig:
    """How this job is profiled. All counts are steps of the training loop."""

    save_dir: str | None = None
    """The run directory, or its ``file:`` URL. Without one, ``rankscope_run_<time>`` in the working directory."""
    ranks: RanksLike = "all"
    """Which ranks to profile: ``all``, ``0, 2, 4``, ``0-3``, ``every:8``, ``node``, or any of them joined."""
    wait: int = 10
    """Steps to let pass before each warm-up."""
    warmup: int = 5
    """Steps during which the profiler runs and its events are thrown away."""
    active: int = 3
    """Steps to record in each window."""
    repeat: int = 1
    """How many windows to record; 0 for as many as the loop is long."""
    skip_first: int = 0
    """Steps to let pass once, before the first wait."""
    period_steps: int | None = None
    """Record the last ``active`` steps of each period of this many steps, instead of ``wait`` and
    ``repeat``."""
    record_shapes: bool = False
    """Record the shapes of operators' inputs."""
    with_stack: bool = False
    """Record Python stacks."""
    profile_memory: bool = False
    """Record allocations."""
    with_flops: bool = False
    """Estimate the FLOPs of matrix products and convolutions."""
    with_modules: bool = False
    """Record the module hierarchy (TorchScript only)."""
    compression: str = "gz"
    """``gz``, ``zst`` (needs zstandard), ``tar.gz`` or ``none``."""
    name_template: str = DEFAULT_TEMPLATE
    """What trace names are made of, or ``d9d`` (with ``tar.gz`` by default), ``tensorboard``, ``of``; see
    ``rankscope.rundir.names``."""
    staging_dir: str | None = None
    """Where a trace lies until it is complete: a local directory with room for it, ``$TMPDIR`` by default. The
    training loop writes there alone, so that a slow run directory does not hold it up."""
    keep_windows: int = 0
    """How many windows of this process to keep, the newest; 0 keeps all."""
    keep_bytes: int = 0
    """How many bytes of this process's traces to keep, the newest; 0 keeps all. One trace is always kept."""
    stop_off_loop: str = "auto"
    """Whether recordings are stopped and saved off the training loop: ``auto`` where torch lets other threads run
    meanwhile and the CPU alone is recorded, ``always`` where torch lets them run, or ``never``."""
    run_id: str | None = None
    """What all ranks of this run share; found out by itself where it is not given."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name == "period_steps":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name}={value!r} must be a whole number from {least}")
        if self.period_steps is not None and self.period_steps < self.warmup + self.active:
            raise ConfigError(
                f"period_steps={self.period_steps} is shorter than warmup={self.warmup} and active={self.active}",
                hint="make the period longer, or the warm-up shorter",
            )
        for name, known in (("compression", tuple(ENDINGS)), ("stop_off_loop", ("auto", "always", "never"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not known", hint=f"one of {', '.join(known)}")
        parse_ranks(self.ranks)
        check_template(self.name_template)

    @classmethod
    def resolve(cls, given: Mapping[str, object], environ: Mapping[str, str] | None = None) -> CaptureConfig:
        """Join arguments, environment and defaults.

        Args:
            given: arguments by field name, ``warmup_steps`` and ``active_steps`` too; ``None`` means not given.
            environ: where the variables are looked up, ``os.environ`` by default.

        Raises:
            ConfigError: a value that cannot be meant, with the argument or variable that holds it.
        """
        environ = os.environ if environ is None else environ
        given = {**given, **{name: _one_of(name, given) for name in _OTHER_NAMES}}
        values: dict[str, object] = {}
        for field in fields(cls):
            if given.get(field.name) is not None:
                values[field.name] = given[field.name]
            elif environ.get(variable_of(field.name), "").strip():
                values[field.name] = _read(field.name, environ[variable_of(field.name)].strip())
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
            if values.get(name) is not None:
                values[name] = os.fspath(values[name])  # type: ignore[call-overload]
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks them


_OTHER_NAMES = {"warmup": "warmup_steps", "active": "active_steps"}
_LEAST = {
    "wait": 0,
    "warmup": 0,
    "active": 1,
    "repeat": 0,
    "skip_first": 0,
    "period_steps": 1,
    "keep_windows": 0,
    "keep_bytes": 0,
}


def variable_of(name: str) -> str:
    """The environment variable of a field of :class:`CaptureConfig`."""
    return _VARIABLES.get(name, ENVIRONMENT_PREFIX + name.upper())


def _one_of(name: str, given: Mapping[str, object]) -> object:
    value, other = given.get(name), given.get(_OTHER_NAMES[name])
    if value is not None and other is not None and value != other:
        raise ConfigError(
            f"{name}={value} and {_OTHER_NAMES[name]}={other} are one thing", hint="leave out one of them"
        )
    return other if value is None else value


def _read(name: str, text: str) -> object:
    variable = variable_of(name)
    if name in _LEAST:
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{variable}={text!r} must be a whole number from {_LEAST[name]}")
        return int(text)
    if isinstance(getattr(CaptureConfig, name, None), bool):
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise ConfigError(f"{variable}={text!r} is neither yes nor no", hint="write 1 or 0")
    return text
