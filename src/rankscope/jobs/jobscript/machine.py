"""Settings of machines, one TOML file each: those that come with rankscope, and those that a site adds.

A name is looked up in the folders of ``RANKSCOPE_MACHINES`` (as in ``PATH``), in ``rankscope/machines`` under
``XDG_CONFIG_HOME`` (``~/.config``), then here. A file can extend another one: ``base = "aurora"``.

In: a name or a file. Out: a checked `Machine`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError
from rankscope.jobs.jobscript.quoting import VARIABLE as NAME
from rankscope.rundir.cpus import parse_cpus
from rankscope.rundir.ranges import as_ranges

SCHEDULERS = ("slurm", "pbs", "flux")
LAUNCHERS = ("torchrun", "srun", "mpiexec", "flux")
MPIS = ("pals", "openmpi", "mpich", "intel")
DEVICES = ("cuda", "rocm", "xpu", "cpu")
_HERE = Path(__file__).parent / "machines"


@dataclass(frozen=True)
class Setting:
    """An environment variable for the machine, and why."""

    name: str
    value: str
    """``{user}`` and ``{job}`` are replaced by the job's owner and id; ``{local_ranks}`` by ``0,1,2``."""
    why: str = ""
    launchers: tuple[str, ...] = LAUNCHERS
    """The launchers under which it is set."""


@dataclass(frozen=True)
class Machine:
    """A machine, or what one of its kind needs; each field is a key of the file, in the table named first."""

    name: str = "generic"
    title: str = "no particular machine"
    sources: tuple[str, ...] = ()
    """Where its values were read."""
    unverified: tuple[str, ...] = ()
    """Settings without a reliable source: ``launch.arguments``, ``environment.NAME``, or one of a list,
    ``directives.lines --exclusive``."""
    checked: str = ""
    scheduler: str | None = None
    node_device: str = "cpu"
    """What ranks compute on: cuda, rocm, xpu or cpu."""
    node_ranks: int | None = None
    """Ranks per node, one for each device."""
    node_cpus_per_rank: int | None = None
    node_cores: tuple[str, ...] = ()
    """Which cores each rank of a node is bound to, in the order of local ranks."""
    node_ccl_cores: tuple[str, ...] = ()
    """The core of each local rank's oneCCL worker; no rank is bound to any of them."""
    launch_launcher: str | None = None
    launch_mpi: str = "openmpi"
    launch_mpiexec: str = "mpiexec"
    """The name of ``mpiexec`` on it."""
    launch_arguments: tuple[str, ...] = ()
    """Of srun, mpiexec or flux run."""
    launch_cpu_bind: str | None = None
    """What ``--cpu-bind`` gets where no cores are listed."""
    launch_master_suffix: str = ""
    directives_queue: str | None = None
    directives_qos: str | None = None
    directives_constraint: str | None = None
    directives_filesystems: str | None = None
    directives_gpus: str | None = None
    """Slurm's option for devices; ``{devices}`` is replaced by the number per node."""
    directives_lines: tuple[str, ...] = ()
    software_purge: bool = False
    software_modules_use: tuple[str, ...] = ()
    software_modules: tuple[str, ...] = ()
    software_conda: str | None = None
    container_command: str = "apptainer"
    container_arguments: tuple[str, ...] = ()
    container_binds: tuple[str, ...] = ()
    container_modules_use: tuple[str, ...] = ()
    container_modules: tuple[str, ...] = ()
    environment: tuple[Setting, ...] = ()
    path: str | None = field(default=None, compare=False)
    """The file it was read from."""

    def with_values(self, names: Sequence[str]) -> list[str]:
        """Names of values as :attr:`unverified` has them, each with what it is: ``launch.arguments (--pmi=pmix)``."""
        settings = {f"environment.{setting.name}": setting.value for setting in self.environment}
        shown = []
        for name in names:
            value = settings.get(name, getattr(self, name.replace(".", "_"), None))
            words = ", ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
            shown.append(f"{name} ({words})" if words else name)
        return shown

    def bound(self, ranks_per_node: int) -> tuple[str, ...]:
        """The cores of each local rank; empty where the machine's list has fewer."""
        return self.node_cores[:ranks_per_node] if ranks_per_node <= len(self.node_cores) else ()

    def worker_cores(self, ranks_per_node: int) -> tuple[str, ...]:
        """The core of each local rank's oneCCL worker; empty where the ranks are not bound, or the list has fewer."""
        enough = ranks_per_node <= len(self.node_ccl_cores) and self.bound(ranks_per_node)
        return self.node_ccl_cores[:ranks_per_node] if enough else ()


def known_machines(environ: Mapping[str, str] | None = None) -> dict[str, Path]:
    """The files of all machines by name; the first that is found counts."""
    found: dict[str, Path] = {}
    for folder in _folders(os.environ if environ is None else environ):
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def find_machine(name_or_file: str, environ: Mapping[str, str] | None = None) -> Machine:
    """A machine by name, or from a file.

    Raises:
        ConfigError: there is none of that name, or its file is invalid; with the file.
    """
    path = Path(name_or_file).expanduser()
    if path.suffix == ".toml" or len(path.parts) > 1:
        return _read(path, environ, ())
    known = known_machines(environ)
    if name_or_file not in known:
        raise ConfigError(
            f"no machine is known as {name_or_file!r}",
            hint=f"known: {', '.join(sorted(known))}; or name a file: --profile ./mine.toml",
        )
    return _read(known[name_or_file], environ, ())


def _folders(environ: Mapping[str, str]) -> list[Path]:
    own = [Path(part) for part in environ.get("RANKSCOPE_MACHINES", "").split(os.pathsep) if part]
    home = environ.get("XDG_CONFIG_HOME") or (str(Path(environ["HOME"]) / ".config") if environ.get("HOME") else None)
    return [*own, *([Path(home) / "rankscope" / "machines"] if home else []), _HERE]


def _read(path: Path, environ: Mapping[str, str] | None, over: tuple[Path, ...]) -> Machine:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path=path, hint="--profile NAME|FILE.toml") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid TOML: {error}", path=path) from error
    base = Machine()
    if "base" in raw:
        name = raw.pop("base")
        if not isinstance(name, str):
            raise ConfigError("base must be the name of a machine", path=path)
        known = known_machines(environ)
        # A site's own aurora.toml may start from ours.
        other = next((p for p in (known.get(name), _HERE / f"{name}.toml") if p and p != path and p.exists()), None)
        if other is None or other in over:
            raise ConfigError(f"base = {name!r} is not a known machine", path=path, hint=", ".join(sorted(known)))
        base = _read(other, environ, (*over, path))
    return _machine(raw, base, path)


_TABLES = ("node", "launch", "directives", "software", "container")
_ONE_OF = {"scheduler": SCHEDULERS, "node_device": DEVICES, "launch_launcher": LAUNCHERS, "launch_mpi": MPIS}
_INTEGERS = ("node_ranks", "node_cpus_per_rank")


def _machine(raw: Mapping[str, Any], base: Machine, path: Path) -> Machine:
    values: dict[str, Any] = {f.name: getattr(base, f.name) for f in fields(Machine)}
    values |= {"name": path.stem, "path": str(path)}
    # A value that this file overrides no longer comes from the other.
    own = _names_in(raw)
    values["unverified"] = tuple(name for name in base.unverified if name not in own and name.split(" ")[0] not in own)
    for key, value in raw.items():
        if key in _TABLES and isinstance(value, dict):
            for inner, item in value.items():
                _set(values, f"{key}_{inner}", f"[{key}] {inner}", item, path)
        elif key == "environment":
            values["environment"] = _settings(value, base.environment, path)
        elif key in ("title", "sources", "checked", "scheduler"):
            _set(values, key, key, value, path)
        elif key == "unverified":
            values[key] = (*values[key], *_known_names(value, own, "unverified", path))
        elif key == "source":
            continue
        else:
            tables = ", ".join(f"[{table}]" for table in _TABLES)
            known = f"title, sources, unverified, checked, scheduler, base, [[source]], [[environment]], {tables}"
            raise ConfigError(f"{key!r} is not a key of a machine's file", path=path, hint=f"known: {known}")
    ranks = {cpu for cores in values["node_cores"] for cpu in parse_cpus(cores, path)}
    workers = {cpu for cores in values["node_ccl_cores"] for cpu in parse_cpus(cores, path)}
    if ranks & workers:
        raise ConfigError(
            f"[node] ccl_cores and cores share {as_ranges(ranks & workers)}",
            path=path,
            hint="oneCCL's workers poll: give them cores that no rank has",
        )
    values["sources"] = (*values["sources"], *verified(raw, path))
    return Machine(**values)


def verified(raw: Mapping[str, Any], path: Path) -> dict[str, tuple[str, ...]]:
    """The pages that a machine's file names in ``[[source]]``, and the values that were read on each.

    Raises:
        ConfigError: one is not valid, or names a value that the file does not have.
    """
    found: dict[str, tuple[str, ...]] = {}
    entries = raw.get("source", [])
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str) or set(entry) - {"url", "values"}:
            raise ConfigError(
                f"[[source]] {entry!r} is not valid", path=path, hint="url, and values: the names of those"
            )
        found[entry["url"]] = _known_names(entry.get("values", []), _names_in(raw), "[[source]] values", path)
    return found


def _names_in(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a machine's file sets, by the name that ``[[source]]`` and ``unverified`` know it by."""
    names = {"scheduler": raw["scheduler"]} if "scheduler" in raw else {}
    for table in _TABLES:
        inner = raw.get(table)
        names |= {f"{table}.{key}": value for key, value in inner.items()} if isinstance(inner, dict) else {}
    settings = raw.get("environment")
    for setting in settings if isinstance(settings, list) else []:
        if isinstance(setting, dict):
            names[f"environment.{setting.get('name')}"] = setting.get("value")
    return names


def _known_names(given: Any, names: Mapping[str, Any], where: str, path: Path) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{where} = {given!r} is not valid", path=path, hint="a list of names")
    for each in given:
        name, _, item = each.partition(" ")
        if name not in names or (item and item not in names[name]):
            raise ConfigError(
                f"{where}: {each!r} is not set in this file", path=path, hint=f"it sets {', '.join(names)}"
            )
    return tuple(given)


def _set(values: dict[str, Any], name: str, shown: str, value: Any, path: Path) -> None:
    if name not in values or name in ("name", "path"):
        table, _, _ = shown.rpartition(" ")
        prefix = table.strip("[]") + "_"
        known = ", ".join(sorted(n.removeprefix(prefix) for n in values if n.startswith(prefix)))
        raise ConfigError(f"{shown} is not known", path=path, hint=f"in {table}: {known}")
    default = getattr(Machine, name)
    if name in _INTEGERS:
        right = isinstance(value, int) and not isinstance(value, bool) and value > 0
    elif isinstance(default, bool):
        right = isinstance(value, bool)
    elif isinstance(default, tuple):
        right = isinstance(value, list) and all(isinstance(item, str) for item in value)
        value = tuple(value) if right else value
    else:
        right = isinstance(value, str)
    if not right:
        raise ConfigError(f"{shown} = {value!r} is not valid", path=path, hint="see docs/jobs.md")
    if name in _ONE_OF and value not in _ONE_OF[name]:
        raise ConfigError(f"{shown} = {value!r} is not known", path=path, hint=f"one of {', '.join(_ONE_OF[name])}")
    values[name] = value


def _settings(raw: Any, base: tuple[Setting, ...], path: Path) -> tuple[Setting, ...]:
    found = {setting.name: setting for setting in base}
    for item in raw if isinstance(raw, list) else [None]:
        entry = item if isinstance(item, dict) else {}
        name, value, why = entry.get("name"), entry.get("value"), entry.get("why", "")
        launchers = entry.get("launchers", list(LAUNCHERS))
        right = isinstance(launchers, list) and all(each in LAUNCHERS for each in launchers)
        if not (isinstance(name, str) and isinstance(value, str) and isinstance(why, str) and right):
            raise ConfigError(
                f"[[environment]] {item!r} is not valid",
                path=path,
                hint=f"name and value are text; optional: why, as text, and launchers, of {', '.join(LAUNCHERS)}",
            )
        if set(entry) - {"name", "value", "why", "launchers"}:
            raise ConfigError(f"[[environment]] {name} has a key that is not known", path=path)
        if re.search(r"\{(?!user\}|job\}|local_ranks\})", value):
            raise ConfigError(
                f"[[environment]] {name} = {value!r}: only {{user}}, {{job}} and {{local_ranks}} are placeholders",
                path=path,
            )
        if not NAME.fullmatch(name):
            raise ConfigError(f"[[environment]] {name!r} cannot be the name of a variable", path=path)
        found[name] = Setting(name, value, why, tuple(launchers))
    return tuple(found.values())
