"""Scenarios from options: `rank=1,2:host@10-12; group=0-3`, `2x`, `ranks`; or from all of them as one line.

In: the options of `whatif`. Out: scenarios in their order; an error that names the option that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankscope.errors import ConfigError
from rankscope.rundir.ranges import parse_numbers
from rankscope.whatif.buckets import Buckets
from rankscope.whatif.scenarios import (
    COMPONENTS,
    WITHOUT,
    AsPeers,
    Balanced,
    GroupAsOthers,
    Network,
    Overlapped,
    Scenario,
    Without,
)

FIX = "rank=RANKS[:COMPONENT][@STEPS] or group=RANKS"
_MOST = 1 << 20
_COMMAND = "whatif RUN "
_WITH_VALUE = ("fix", "buckets", "network", "balance")
_FLAGS = (*(f"no_{what}" for what in WITHOUT), "overlap")
_NAMES = tuple(f"--{name.replace('_', '-')}" for name in (*_WITH_VALUE, *_FLAGS))


def scenarios_of(options: Mapping[str, str | int | bool | None]) -> list[Scenario]:
    """The scenarios that the options ask for; none if no option is given.

    Raises:
        ConfigError: a value is not valid.
    """
    fix, buckets, network, balance = (str(options.get(name) or "") for name in _WITH_VALUE)
    found: list[Scenario] = [_fixed(part.strip()) for part in fix.split(";") if part.strip()]
    found += [Without(what) for what in WITHOUT if options.get(f"no_{what}")]
    found += [Buckets(_factor("buckets", buckets, "large"))] if buckets else []
    found += [Network(_factor("network", network, "fast"))] if network else []
    found += [Overlapped()] if options.get("overlap") else []
    found += [Balanced(over.strip()) for over in balance.split(",")] if balance else []
    wrong = [each.over for each in found if isinstance(each, Balanced) and each.over not in ("ranks", "stages")]
    if wrong:
        raise ConfigError(f"--balance cannot be {wrong[0]!r}", hint="write ranks, stages, or ranks,stages")
    return found


def command_of(scenario: Scenario) -> str:
    """The command that replays a run with a scenario, as tables have it: `whatif RUN --fix rank=1`."""
    return f"{_COMMAND}{scenario.option}"


def options_in(command: str) -> str:
    """The options of such a command, as `scenarios_in` reads them."""
    return command.removeprefix(_COMMAND)


def scenarios_in(text: str) -> list[Scenario]:
    """The scenarios in a command's options: `--fix rank=3 --overlap`.

    Raises:
        ConfigError: there is no such option, or a value is not valid.
    """
    found: dict[str, str | bool] = {}
    words = iter(text.split())
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in (*_WITH_VALUE, *_FLAGS):
            raise ConfigError(f"there is no scenario {word[:40]!r}", hint=f"options: {', '.join(_NAMES)}")
        if name in _FLAGS:
            found[name] = True
        else:
            value, separator = next(words, ""), ";" if name == "fix" else ","
            if not value or value.startswith("--"):
                raise ConfigError(
                    f"{word} needs a value", hint=f"write {FIX}, --buckets 2x, --network 2x, or --balance ranks"
                )
            found[name] = f"{found[name]}{separator}{value}" if name in found else value
    return scenarios_of(found)


def _fixed(text: str) -> Scenario:
    """One value of `--fix`."""
    what, has_value, value = text.partition("=")
    numbers, _, steps = value.partition("@")
    numbers, _, component = numbers.partition(":")
    what, component = what.strip(), component.strip().replace("-", "_")
    if not has_value or what not in ("rank", "group") or (what == "group" and (component or steps)):
        raise ConfigError(f"--fix cannot be {text!r}", hint=f"write {FIX}, as rank=1,2:host")
    if component and component not in COMPONENTS:
        raise ConfigError(
            f"--fix {text}: there is no component {component!r}", hint=f"components: {', '.join(COMPONENTS)}"
        )
    try:
        ranks = tuple(sorted(set(parse_numbers(numbers, _MOST))))
        chosen = tuple(sorted(set(parse_numbers(steps, _MOST)))) if steps else ()
    except ValueError as error:
        raise ConfigError(f"--fix {text}: {error}", hint=f"write {FIX}, as rank=0-3,8:host@10-12") from None
    return GroupAsOthers(ranks) if what == "group" else AsPeers(ranks, component, chosen)


def _factor(name: str, text: str, what: str) -> float:
    """`2x` as 2."""
    try:
        factor = float(text.strip().lower().removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e6:
        raise ConfigError(f"--{name} cannot be {text!r}", hint=f"write how many times as {what}: 2x")
    return factor
