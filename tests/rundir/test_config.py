"""Arguments, variables and defaults."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rankscope.errors import ConfigError, LaunchError
from rankscope.jobs.exec import take_options
from rankscope.rundir.config import OPTIONS, PRESETS, SWITCH_FIELDS, CaptureConfig, variable_of


def test_defaults():
    config = CaptureConfig.resolve({}, {})
    assert (config.wait, config.warmup, config.active, config.repeat, config.skip_first) == (10, 5, 3, 1, 0)
    assert (config.ranks, config.compression, config.save_dir) == ("all", "gz", None)


def test_arguments_win_over_variables_and_variables_over_defaults():
    environ = {"RANKSCOPE_WAIT": "7", "RANKSCOPE_WARMUP": "2", "RANKSCOPE_WITH_STACK": "yes", "RANKSCOPE_RUN_DIR": "/r"}
    config = CaptureConfig.resolve({"wait": 1, "warmup": None, "save_dir": Path("/mine")}, environ)
    assert (config.wait, config.warmup, config.with_stack, config.save_dir) == (1, 2, True, "/mine")
    assert CaptureConfig.resolve({}, environ).save_dir == "/r"
    # An explicit no is an argument too.
    assert CaptureConfig.resolve({"with_stack": False}, environ).with_stack is False


@pytest.mark.parametrize(
    ("given", "environ", "named"),
    [
        ({"wait": -1}, {}, "wait"),
        ({"active": 0}, {}, "active"),
        ({"active": 2.0}, {}, "active"),
        ({"warmup": True}, {}, "warmup"),
        ({"ranks": "x"}, {}, "ranks"),
        ({"compression": "zip"}, {}, "compression"),
        ({"name_template": "{x}"}, {}, "template"),
        ({"period_steps": 4, "warmup": 2, "active": 3}, {}, "period_steps"),
        ({"period_steps": 40, "wait": 2}, {}, "wait"),
        ({"warmup": 2, "warmup_steps": 3}, {}, "warmup_steps"),
        ({}, {"RANKSCOPE_WAIT": "many"}, "RANKSCOPE_WAIT"),
        ({}, {"RANKSCOPE_WAIT": "-3"}, "whole number, 0 or more"),
        ({}, {"RANKSCOPE_ACTIVE": "x"}, "whole number, 1 or more"),
        ({}, {"RANKSCOPE_WITH_STACK": "maybe"}, "RANKSCOPE_WITH_STACK"),
        ({"hang_exit_status": 256}, {}, "hang_exit_status=256 must be a whole number, 0 to 255"),
        ({}, {"RANKSCOPE_HANG_EXIT_STATUS": "256"}, "RANKSCOPE_HANG_EXIT_STATUS=256 must"),
        ({}, {"RANKSCOPE_ACTIVE": "0"}, "RANKSCOPE_ACTIVE=0 must"),
        ({}, {"RANKSCOPE_COMPRESSION": "zip"}, "RANKSCOPE_COMPRESSION='zip'"),
    ],
)
def test_what_is_not_valid_is_refused_by_name(given, environ, named):
    with pytest.raises(ConfigError, match=named):
        CaptureConfig.resolve(given, environ)


def test_d9ds_names():
    config = CaptureConfig.resolve({"period_steps": 20, "warmup_steps": 2, "active_steps": 4}, {})
    assert (config.period_steps, config.warmup, config.active, config.repeat) == (20, 2, 4, 0)


def test_a_preset_stands_for_options_and_gives_way_to_them():
    detailed = CaptureConfig.resolve({"preset": "detailed"}, {})
    assert (detailed.record_shapes, detailed.with_stack, detailed.with_flops) == (True, True, True)
    environ = {"RANKSCOPE_PRESET": "memory", "RANKSCOPE_WITH_STACK": "0", "RANKSCOPE_ACTIVE": "7"}
    memory = CaptureConfig.resolve({}, environ)
    assert (memory.profile_memory, memory.with_stack, memory.active) == (True, False, 7)
    assert CaptureConfig.resolve({"preset": "minimal", "active_steps": 2}, {}).active == 2
    d9d = CaptureConfig.resolve({"preset": "d9d", "period_steps": 50}, {})
    assert (d9d.name_template, d9d.compression, d9d.with_stack, d9d.repeat) == ("d9d", "tar.gz", True, 0)
    assert (d9d.when_busy, CaptureConfig().when_busy) == ("wait", "skip")
    assert CaptureConfig.resolve({"preset": "d9d", "name_template": "of"}, {}).compression == "gz"
    for preset, options in PRESETS.items():
        assert CaptureConfig.resolve({"preset": preset}, {}) == CaptureConfig.resolve({"preset": preset, **options}, {})
    with pytest.raises(ConfigError, match="preset='all' is not known"):
        CaptureConfig.resolve({"preset": "all"}, {})


def test_every_field_has_a_variable_of_its_own():
    names = [variable_of(field.name) for field in dataclasses.fields(CaptureConfig)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("RANKSCOPE_") for name in names)


def test_an_error_names_what_the_user_wrote():
    with pytest.raises(ConfigError, match=r"^--wait='x'"):
        CaptureConfig.resolve({}, {"RANKSCOPE_WAIT": "x"}, {"wait": "--wait"})


@pytest.mark.parametrize(
    "given", [{"with_stack": "yes"}, {"record_shapes": 1}, {"save_dir": 3}, {"staging_dir": b"/x"}]
)
def test_a_value_of_another_type_is_refused(given):
    (name,) = given
    with pytest.raises(ConfigError, match=f"^{name}="):
        CaptureConfig.resolve(given, {})


TEXTS = {
    "save_dir": "/run",
    "run_id": "abc",
    "upload_to": "s3://bucket/run",
    "preset": "memory",
    "ranks": "0-1",
    "compression": "none",
    "name_template": "of",
    "staging_dir": "/scratch",
    "stop_off_loop": "never",
    "when_busy": "wait",
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(CaptureConfig)])
def test_each_option_is_the_same_as_an_argument_a_variable_and_on_the_command_line(name):
    default = getattr(CaptureConfig(), name)
    value = TEXTS.get(name, not default if name in SWITCH_FIELDS else 9)
    text = str(int(value)) if name in SWITCH_FIELDS else str(value)
    option = [each for each, field in OPTIONS.items() if field == name][-1]  # of a switch that is on: --no-watch
    variables, rest = take_options([option, *([] if name in SWITCH_FIELDS else [text]), "t.py"])
    assert rest == ["t.py"]
    expected = CaptureConfig.resolve({name: value}, {})
    assert getattr(expected, name) == value != getattr(CaptureConfig(), name)
    assert CaptureConfig.resolve({}, {variable_of(name): text}) == CaptureConfig.resolve({}, variables) == expected


def test_the_watch_can_be_turned_off_and_on():
    def watches(*words):
        return CaptureConfig.resolve({}, take_options([*words, "t.py"])[0]).watch

    assert (watches(), watches("--no-watch"), watches("--no_watch")) == (True, False, False)
    assert (watches("--no-watch", "--watch"), watches("--watch=0")) == (True, False)
    with pytest.raises(LaunchError, match="--no-watch takes no value"):
        watches("--no-watch=0")
