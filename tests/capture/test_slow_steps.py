"""Which steps are slow: the rule, against durations made up for it."""

from __future__ import annotations

import random

from rankscope.capture.watch.slow_steps import ENOUGH, HISTORY, NEW_NORMAL, SlowSteps

MS = 10**6


def feed(durations):
    rule = SlowSteps()
    return rule, {step: slow for step, ms in enumerate(durations) if (slow := rule.add(step, round(ms * MS)))}


def test_no_step_is_slow_without_a_history():
    _, slow = feed([100] * 20 + [1000] + [100] * 10)
    assert slow == {}


def test_noise_is_not_slow():
    rng = random.Random(5)
    for spread in (1, 10, 30):
        _, slow = feed([max(rng.gauss(100, spread), 1) for _ in range(3000)])
        assert slow == {}, spread


def test_a_long_step_is_slow_and_says_against_what():
    rng = random.Random(6)
    durations = [rng.gauss(100, 2) for _ in range(400)]
    durations[300] = 350
    _, slow = feed(durations)
    assert list(slow) == [300]
    found = slow[300]
    assert found.ns == 350 * MS
    assert abs(found.usual_ns - 100 * MS) < MS
    assert found.history == HISTORY
    assert found.worth_recording
    assert found.first


def test_a_single_hiccup_is_not_worth_a_recording_but_two_are():
    durations = [100.0] * 400
    durations[200] = durations[300] = durations[310] = 180
    _, slow = feed(durations)
    assert {step: found.worth_recording for step, found in slow.items()} == {200: False, 300: False, 310: True}


def test_a_few_milliseconds_more_are_not_slow():
    durations = [10.0] * 300
    durations[200] = 25
    _, slow = feed(durations)
    assert slow == {}


def test_what_stays_is_the_new_usual():
    rule, slow = feed([100] * 100 + [200] * 300)
    assert list(slow) == list(range(100, 100 + NEW_NORMAL))
    assert [step for step, found in slow.items() if found.first] == [100]
    assert rule.median_ns == 200 * MS
    assert ENOUGH <= NEW_NORMAL
