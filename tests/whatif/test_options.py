"""Scenarios from a command's options, and back."""

from __future__ import annotations

import pytest

from rankscope.errors import ConfigError
from rankscope.whatif.buckets import Buckets
from rankscope.whatif.options import scenarios_in
from rankscope.whatif.scenarios import (
    WITHOUT,
    AsPeers,
    Balanced,
    GroupAsOthers,
    Network,
    Overlapped,
    Scenario,
    Without,
)

SCENARIOS: tuple[Scenario, ...] = (
    AsPeers((1,)), AsPeers((1, 2), "data_loading"), AsPeers((3,), "host", (10, 11, 12)), GroupAsOthers((0, 4)),
    *(Without(what) for what in WITHOUT), Buckets(2), Network(1.5), Overlapped(), Balanced("ranks"), Balanced("stages"),
)  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.option)
def test_the_option_of_a_scenario_is_that_scenario(scenario: Scenario) -> None:
    assert scenarios_in(scenario.option) == [scenario]


def test_several_options_are_all_of_them() -> None:
    assert set(scenarios_in(" ".join(each.option for each in SCENARIOS))) == set(SCENARIOS)
    assert scenarios_in("") == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("--fix", "--fix"), ("--fix rank=x", "rank=x"), ("--fix rank=1:gpu", "gpu"), ("--hurry", "--hurry"),
        ("overlap", "overlap"), ("--network fast", "fast"), ("--balance halves", "halves"), ("--overlap yes", "yes"),
    ],
)  # fmt: skip
def test_an_error_names_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("=", ".")):
        scenarios_in(text)
