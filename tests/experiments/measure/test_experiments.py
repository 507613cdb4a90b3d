"""Parts of the experiments, without a job: what they sample, compare, and make of what ranks wrote."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from rankscope.errors import ConfigError, LaunchError, RankscopeError
from rankscope.experiments.measure.efficiency_loss import efficiency_loss_at
from rankscope.experiments.measure.jobs import Outcome, _cause, series, target_of
from rankscope.experiments.measure.overhead import CONDITIONS, LEAST_JOBS, is_enough, overhead_of
from rankscope.experiments.measure.projection import project
from rankscope.experiments.measure.results import Size, TraceSummary
from rankscope.experiments.measure.sampling import Sampling
from rankscope.experiments.measure.scaling import Study, name_of
from rankscope.experiments.measure.stability import drift_note, job_to_job_notes
from rankscope.experiments.measure.statistics import Series, replicates
from rankscope.experiments.measure.variants import compare_conditions, compare_jobs, recommend
from rankscope.rundir.measurement import (
    Block,
    Plan,
    RankMeasurement,
    read_measurements,
    read_plan,
    write_measurement,
    write_plan,
)

MS = 1_000_000


def rank_of(rank, blocks, **fields):
    return RankMeasurement(
        rank, 2, rank, "host", "complete", 100, "host", "CPU", "2.13", wrapper="ddp", blocks=blocks, **fields
    )


def steps(base, round_number, rank):
    # Each block a little different; rank 1 the slower by 1 ms.
    return tuple(base * MS + rank * MS + round_number * 1000 + k * 100 for k in range(5))


def outcome_of(tmp_path, times, rounds=6):
    """A job whose conditions take these milliseconds."""
    ranks = tuple(
        rank_of(
            rank,
            tuple(Block(name, r, steps(base, r, rank)) for r in range(rounds) for name, base in times.items()),
        )
        for rank in range(2)
    )
    return Outcome(tmp_path, ranks)


def test_each_round_has_every_condition_once_in_an_order_of_its_own():
    rounds = Sampling(blocks=50).rounds(["a", "b"], 0)
    assert len(rounds) == 50
    assert all(sorted(each) == ["a", "b"] for each in rounds)
    first = [each[0] for each in rounds]
    assert 10 < first.count("a") < 40
    assert rounds == Sampling(blocks=50).rounds(["a", "b"], 0)
    assert rounds != Sampling(blocks=50).rounds(["a", "b"], 1)
    assert rounds != Sampling(blocks=50, seed=1).rounds(["a", "b"], 0)


def test_jobs_are_interleaved():
    order = Sampling(repeats=3).job_order(["plain", "1", "2", "4"])
    assert [sorted(name for r, name in order if r == repeat) for repeat in range(3)] == [["1", "2", "4", "plain"]] * 3
    assert [repeat for repeat, _ in order] == sorted(repeat for repeat, _ in order)


@pytest.mark.parametrize("wrong", [{"blocks": 0}, {"warmup_steps": 0}, {"repeats": 0}, {"settle_steps": -1}])
def test_numbers_that_are_not_valid(wrong):
    with pytest.raises(ConfigError):
        Sampling(**wrong)


def test_overhead_from_what_the_ranks_wrote(tmp_path):
    outcome = outcome_of(tmp_path, {"sync": 50, "no_sync": 40})
    result = overhead_of([outcome], target_of(["resnet18"]), Sampling(blocks=6, traced_steps=0), tmp_path, 0.5)
    # The slowest rank's: 51 ms and 41 ms, by the median of blocks 0 to 5 and of steps 0 to 4.
    middle = sorted(r * 1000 + k * 100 for r in range(6) for k in range(5))
    exact = (middle[14] + middle[15]) / 2
    assert result.sync.step.median_ns == 51 * MS + exact
    assert result.measured_overhead.value == pytest.approx(10 * MS / (51 * MS + exact))
    assert result.sync_cost.median_ns == 10 * MS
    assert [(each.rank, each.sync_ns, each.no_sync_ns) for each in result.ranks] == [
        (0, 50 * MS + exact, 40 * MS + exact),
        (1, 51 * MS + exact, 41 * MS + exact),
    ]
    assert result.sync.backward is None
    assert result.setting.load == 0.5


def with_passes(outcome, passes):
    """The job with what forward and backward take in each condition, ms; a block's steps differ as in `steps`."""
    ranks = tuple(
        dataclasses.replace(
            rank,
            blocks=tuple(
                dataclasses.replace(b, forward_backward_ns=steps(passes[b.condition], b.round, rank.rank))
                for b in rank.blocks
            ),
        )
        for rank in outcome.ranks
    )
    return Outcome(outcome.folder, ranks)


def test_the_overhead_of_forward_and_backward_alone(tmp_path):
    outcome = with_passes(outcome_of(tmp_path, {"sync": 100, "no_sync": 80}), {"sync": 60, "no_sync": 40})
    result = overhead_of([outcome], target_of(["resnet18"]), Sampling(blocks=6, traced_steps=0), tmp_path, 0.5)
    middle = sorted(r * 1000 + k * 100 for r in range(6) for k in range(5))
    exact = (middle[14] + middle[15]) / 2
    assert result.measured_overhead.value == pytest.approx(20 * MS / (101 * MS + exact))
    assert result.forward_backward_overhead.value == pytest.approx(20 * MS / (61 * MS + exact))
    assert result.sync.forward_backward.median_ns == 61 * MS + exact
    # Of ranks that wrote it before it was measured, or of a script without a forward, nothing is known.
    without = outcome_of(tmp_path, {"sync": 100, "no_sync": 80})
    result = overhead_of([without], target_of(["resnet18"]), Sampling(blocks=6, traced_steps=0), tmp_path, 0.5)
    assert result.forward_backward_overhead is None and result.sync.forward_backward is None


def jobs_that_differ(tmp_path, *overheads):
    return [outcome_of(tmp_path, {"sync": 100, "no_sync": 100 - points}) for points in overheads]


def test_it_stops_at_a_narrow_interval_of_enough_jobs(tmp_path):
    sampling = Sampling(blocks=6, repeats=5, traced_steps=0)

    def stops(jobs, precision=0.02):
        return is_enough(jobs, sampling, 3, precision)

    alike = jobs_that_differ(tmp_path, *[20] * 5)
    assert [stops(alike[:count]) for count in range(1, 6)] == [False] * (LEAST_JOBS - 1) + [True, True, False]
    assert not stops(jobs_that_differ(tmp_path, 20, 24, 20))
    assert stops(jobs_that_differ(tmp_path, 20, 24, 20), precision=1.0)


def test_an_interval_that_may_end_the_measurement_is_wider(tmp_path):
    sampling = Sampling(blocks=6, repeats=5, traced_steps=0)
    jobs = jobs_that_differ(tmp_path, 20, 21, 22)
    fixed, stopping = (
        overhead_of(jobs, target_of(["resnet18"]), sampling, tmp_path, None, looks=looks) for looks in (1, 3)
    )
    a, b = fixed.measured_overhead, stopping.measured_overhead
    assert a.value == b.value
    assert b.low < a.low < a.value < a.high < b.high
    assert stopping.sync_cost.low_ns < fixed.sync_cost.low_ns
    assert "99.67 %" in stopping.setting.method and "99.67 %" not in fixed.setting.method
    assert stopping.setting.confidence == 0.99  # over all looks


def test_no_key_of_the_scripts_is_written_down(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr("sys.argv", ["rankscope", "measure", "overhead", str(script), "--api-key", "abc123"])
    outcome = outcome_of(tmp_path, {"sync": 50, "no_sync": 40})
    target = target_of([str(script), "--api-key", "abc123"])
    setting = overhead_of([outcome], target, Sampling(blocks=6, traced_steps=0), tmp_path, None).setting
    assert "abc123" not in f"{setting.target} {setting.command}"
    assert setting.target.startswith(str(script))


def test_a_round_that_one_rank_did_not_finish_is_left_out(tmp_path):
    whole = outcome_of(tmp_path, {"sync": 50, "no_sync": 40})
    short = replace(whole.ranks[1], blocks=whole.ranks[1].blocks[:-1])
    outcome = Outcome(tmp_path, (whole.ranks[0], short))
    assert outcome.rounds == [0, 1, 2, 3, 4]
    assert series([outcome], "sync").jobs[0].shape == (5, 2, 5)


def test_variants_of_jobs_and_what_is_recommended(tmp_path):
    jobs = {
        "base": [outcome_of(tmp_path, {"x": 50})] * 3,
        "faster": [outcome_of(tmp_path, {"x": 45})] * 3,
        "fastest": [outcome_of(tmp_path, {"x": 40})] * 3,
        "slower": [outcome_of(tmp_path, {"x": 60})] * 3,
        "failed": [],
    }
    compared = compare_jobs(jobs, "x", "base", 0)
    assert set(compared) == {"base", "faster", "fastest", "slower"}
    assert compared["base"].difference is None
    assert compared["faster"].difference.value == pytest.approx(-5 / 51, rel=1e-3)
    assert compared["slower"].beyond_chance is True
    advice = recommend(compared, "base", {"fastest": "fastest=1"})
    assert (advice.variant, advice.saving_ns) == ("fastest", 10 * MS)
    assert advice.text.startswith("fastest=1: 19.6 % faster")


def test_nothing_is_recommended_that_chance_explains(tmp_path):
    def noisy(base, seed):
        import random

        rng = random.Random(seed)
        ranks = tuple(
            rank_of(
                k,
                tuple(Block("x", r, tuple(int(base * MS * rng.uniform(0.8, 1.2)) for _ in range(5))) for r in range(6)),
            )
            for k in range(2)
        )
        return Outcome(tmp_path, ranks)

    jobs = {"base": [noisy(50, 1)], "other": [noisy(49.5, 2)]}
    advice = recommend(compare_jobs(jobs, "x", "base", 0), "base", {})
    assert (advice.variant, advice.text) == (None, "keep the current setting: no variant is significantly faster")


def test_too_few_blocks_and_a_base_that_failed(tmp_path):
    few = {"base": [outcome_of(tmp_path, {"x": 50}, 2)], "other": [outcome_of(tmp_path, {"x": 40}, 2)]}
    assert "too few steps to tell" in recommend(compare_jobs(few, "x", "base", 0), "base", {}).text
    assert "the base failed" in recommend(compare_jobs({"base": []}, "x", "base", 0), "base", {}).text


def test_conditions_of_one_job(tmp_path):
    outcome = outcome_of(tmp_path, {"none": 50, "recording": 55})
    found = compare_conditions([outcome], ["none", "recording", "never"], "none", 0)
    assert set(found) == {"none", "recording"}
    assert found["recording"].difference.value == pytest.approx(5 / 51, rel=1e-3)


def test_lost_time_adds_up():
    base = TraceSummary("a", 4, 100 * MS, 90 * MS, 0, 0, None, 0.0, None, 6 * MS, 4 * MS)
    at = TraceSummary(
        "b", 4, 60 * MS, 47 * MS, 20 * MS, 8 * MS, 0.6, 0.13, 7 * MS, 3 * MS, 2 * MS, exposed_wait_ns=3 * MS
    )
    # Unprofiled: 100 and 55 ms; strong on 2, so that perfect is 50. The window of 60 ms stands for 55.
    lost = efficiency_loss_at(at, base, 55 * MS, 100 * MS, 2, "strong")
    assert lost.total_ns == 5 * MS
    assert lost.compute_ns == round(47 * MS * 55 / 60 - 45 * MS)
    assert lost.exposed_communication_ns == round(8 * MS * 55 / 60)
    assert lost.wait_ns == round(3 * MS * 55 / 60)
    parts = lost.compute_ns + lost.exposed_communication_ns + lost.data_loading_ns + lost.other_ns
    assert parts == pytest.approx(lost.total_ns, abs=3)


def test_sizes_of_a_study():
    study = Study(ranks=(2, 4), nodes=(1, 2), launcher="srun -N {nodes} -n {ranks}")
    assert [(name_of(s), s.ranks, s.nodes) for s in study.sizes()] == [
        ("plain", 1, 1),
        ("2", 2, 1),
        ("4", 4, 1),
        ("4 on 2 nodes", 4, 2),
        ("8 on 2 nodes", 8, 2),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": ()}, "at least 1"),
        ({"ranks": (0,)}, "at least 1"),
        ({"ranks": (2,), "nodes": (1, 2)}, "launcher that starts ranks on all"),
        ({"ranks": (3,), "mode": "strong", "global_batch": 64}, "evenly"),
    ],
)
def test_studies_that_are_not_valid(given, message):
    with pytest.raises(ConfigError, match=message):
        Study(**given)


def test_what_can_be_measured(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    assert target_of([str(script), "--x"]).words == (str(script), "--x")
    script.write_text("def train_step(): pass\nstep = train_step\n")
    assert target_of([f"{script}:step", "1"]).words == ("rankscope.capture.workloads.function", f"{script}:step", "1")
    assert target_of(["fsdp", "--fsdp1"]).words[:2] == ("rankscope.capture.workloads.fsdp", "--no-profile")
    assert target_of(["-m", "pkg.train"]).words == ("pkg.train",)
    with pytest.raises(LaunchError, match=re.escape("no.py: no such script")):
        target_of(["no.py"])
    with pytest.raises(ConfigError, match="no script to measure"):
        target_of([])
    with pytest.raises(LaunchError, match="has no function nostep") as error:
        target_of([f"{script}:nostep"])
    assert "it has train_step" in str(error.value)
    with pytest.raises(LaunchError, match="no such script"):
        target_of(["no.py:step"])
    # Who imports everything may have it from there.
    script.write_text("from other import *\n")
    assert target_of([f"{script}:step"]).words[1] == f"{script}:step"
    script.write_text("def (:")
    with pytest.raises(LaunchError, match="is not valid Python"):
        target_of([f"{script}:step"])


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["[rank1]: Traceback (most recent call last):", "[rank1]:   File", "[rank1]: ValueError: bad batch 20",
          "[rank0]: RuntimeError: Connection closed by peer"], ": rank 1: ValueError: bad batch 20"),
        (["  raise KeyError", "KeyError"], ": KeyError"),
        (["torch.OutOfMemoryError: CUDA out of memory"], ": torch.OutOfMemoryError: CUDA out of memory"),
        (["usage: train.py [-h]", "python -m pkg.train: error: unrecognized arguments: --x 3", "E1121 failed"],
         ": python -m pkg.train: error: unrecognized arguments: --x 3"),
        (["E1121 failed (exitcode: 1)", "an Error: not at its line's beginning", "killed"], ""),
    ],
)  # fmt: skip
def test_the_first_exception_is_the_cause(lines, cause):
    assert _cause([line + "\n" for line in lines]) == cause


def test_a_busy_machine_is_spoken_of(tmp_path):
    outcome, target = outcome_of(tmp_path, {"sync": 50, "no_sync": 40}), target_of(["resnet18"])
    sampling = Sampling(blocks=6, traced_steps=0)
    busy = overhead_of([outcome], target, sampling, tmp_path, 999.0).setting.notes
    assert any("the machine was busy at the start, with a load of 999" in note for note in busy)
    assert not [
        note for note in overhead_of([outcome], target, sampling, tmp_path, 0.1).setting.notes if "busy" in note
    ]


def wandering(seed, correlation, rounds=20, apart=4 * MS):
    """A job on a machine whose speed goes up and down, round after round."""
    rng = np.random.default_rng(seed)
    level, levels = 0.0, []
    for _ in range(rounds):
        level = correlation * level + rng.normal() * (1 - correlation**2) ** 0.5
        levels.append(level)
    return tuple(
        rank_of(
            rank,
            tuple(
                Block(name, r, tuple(int(base * MS + apart * levels[r] + rng.normal() * MS) for _ in range(5)))
                for r in range(rounds)
                for name, base in (("sync", 50), ("no_sync", 40))
            ),
        )
        for rank in range(2)
    )


def test_a_machine_that_drifts_is_spoken_of():
    notes = [drift_note(wandering(seed, 0.8)) for seed in range(20)]
    assert sum(each is not None for each in notes) >= 15
    note = next(each for each in notes if each is not None)
    alike = float(re.search(r"correlation (\d\.\d\d)", note)[1])
    times = float(re.search(r"(\d\.\d) times as wide", note)[1])
    assert times == pytest.approx(((1 + alike) / (1 - alike)) ** 0.5, abs=0.1)
    assert "--repeats" in note
    # Of one that does not, and of few rounds, hardly ever.
    assert sum(drift_note(wandering(seed, 0.0)) is not None for seed in range(20)) <= 2
    assert drift_note(wandering(0, 0.9, rounds=9)) is None
    assert drift_note(()) is None


def test_the_drift_is_a_note_of_the_result(tmp_path):
    ranks = next(each for seed in range(20) if drift_note(each := wandering(seed, 0.9)))
    notes = overhead_of([Outcome(tmp_path, ranks)], target_of(["resnet18"]), Sampling(traced_steps=0), tmp_path, 0.1)
    assert sum("speed drifted" in note for note in notes.setting.notes) == 1


def test_jobs_that_differ_are_spoken_of(tmp_path):
    target, few = target_of(["resnet18"]), Sampling(blocks=6, repeats=3, traced_steps=0)

    def notes(*milliseconds):
        jobs = [outcome_of(tmp_path, {"sync": each, "no_sync": 40}) for each in milliseconds]
        return [note for note in overhead_of(jobs, target, few, tmp_path, 0.1).setting.notes if "jobs differ" in note]

    (note,) = notes(50, 56, 60)
    # Rank 1, the slower by 1 ms.
    assert note.startswith("the 3 jobs differ by more than their rounds explain, from 51 to 61 ms")
    assert notes(50, 50, 50) == []
    assert notes(50, 50.5, 51) == []
    assert notes(50) == []
    # Of several kinds the one whose jobs lie furthest apart.
    kinds = {
        name: [outcome_of(tmp_path, {"sync": each}) for each in times]
        for name, times in {"plain": (50, 50), "1 rank": (50, 54), "2 ranks": (60, 70), "4 ranks": (70, 75)}.items()
    }
    (note,) = job_to_job_notes(kinds, "sync")
    assert note.startswith("the 2 jobs of 2 ranks differ by more than their rounds explain, from 61 to 71 ms")
    assert job_to_job_notes({**kinds, "2 ranks": [], "1 rank": [], "4 ranks": []}, "sync") == []


def test_steps_that_did_unlike_work_are_spoken_of(tmp_path):
    def notes(sync, no_sync):
        outcome = outcome_of(tmp_path, {"sync": 50, "no_sync": 40})
        passes = {"sync": sync, "no_sync": no_sync}
        ranks = tuple(
            dataclasses.replace(
                rank,
                blocks=tuple(dataclasses.replace(b, backward_passes=passes[b.condition]) for b in rank.blocks),
            )
            for rank in outcome.ranks
        )
        few = Sampling(blocks=6, traced_steps=0)
        found = overhead_of([Outcome(tmp_path, ranks)], target_of(["resnet18"]), few, tmp_path, 0.1)
        return [note for note in found.setting.notes if "closure" in note]

    (note,) = notes((12, 20, 13), (4, 5, 4))
    assert note.startswith("a step of sync ran 15 backward passes on average, a step of no_sync 4.33:")
    # Gradient accumulation is the same in both; where no backward was seen nothing is known.
    assert notes((4, 4), (4, 4)) == []
    assert notes((), ()) == []


def test_nothing_is_projected_of_what_does_not_scale():
    rng = np.random.default_rng(0)
    times = {name: Series((at * (1 + 0.01 * rng.standard_normal((6, 1, 5))),)) for name, at in (("1", 1e7), ("2", 3e7))}
    drawn = {name: replicates({name: each}, 0)[name] for name, each in times.items()}
    sizes = [Size("2", 2, 1, "done")]
    both = {name: (times[name], drawn[name]) for name in times}
    assert project(sizes, times["1"].median(), drawn["1"], both, "weak") is None
    scaling = {**both, "2": (times["1"], drawn["1"])}
    assert project(sizes, times["1"].median(), drawn["1"], scaling, "weak") is not None
    # Nor of so few blocks that nothing is known of their noise.
    few = {**scaling, "2": (times["1"], np.empty(0))}
    assert project(sizes, times["1"].median(), drawn["1"], few, "weak") is None


def test_plans_and_measurements_go_there_and_back(tmp_path):
    plan = Plan(
        str(tmp_path), (("sync", "no_sync"),), CONDITIONS, wrapper={"bucket_cap_mb": 1}, cpus=("0-1",), limit_s=3.0
    )
    assert read_plan(write_plan(plan)) == plan
    measured = rank_of(1, (Block("sync", 0, (1, 2), stop_ns=3),), buckets=(8,), notes=("n",))
    write_measurement(tmp_path, measured)
    assert read_measurements(tmp_path) == [measured]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("world_size", 10**12),
        ("rank", -1),
        ("steps", "many"),
        ("buckets", [8, None]),
        ("blocks", [{"condition": "sync", "round": 0, "step_ns": [1, -2]}]),
        ("notes", [{}]),
        ("strange", 1),
    ],
)
def test_a_measurement_with_an_odd_value_is_refused_and_not_changed(tmp_path, field, value):
    path = write_measurement(tmp_path, rank_of(1, (Block("sync", 0, (1, 2)),)))
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(RankscopeError, match="not a measurement of a rank"):
        read_measurements(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"schema": 1, "blocks": 3}', '{"schema": 1, "blocks": [1]}', '{"schema": 7}', "[" * 10**5],
)
def test_a_measurement_that_is_none(tmp_path, content):
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "rank0.json").write_text(content)
    with pytest.raises(RankscopeError, match=r"rank0\.json"):
        read_measurements(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"out": "x", "rounds": 3}', '{"out": "x", "rounds": [], "strange": 1}'])
def test_a_plan_that_is_none(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(RankscopeError, match=r"plan\.json"):
        read_plan(path)
