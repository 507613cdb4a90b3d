"""What a hostile agent may try: every path that is not below the directories is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.ingest import test_nsight as nsight
from tests.kineto import dumps, small_step, trace, write

from rankscope.errors import ConfigError, NoTracesError
from rankscope.show.agents.roots import OUTSIDE, Roots
from rankscope.show.agents.toolbox import Toolbox


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A directory that may be read, and one that may not, each with a run's traces and the dump of a hang."""
    for name in ("open/job", "secret"):
        write(tmp_path / name / "rank0.json", trace(small_step(), rank=0, world_size=1))
        dump = {"format": "rankscope-hang", "rank": 0, "threads": [], "marker": name}
        write(tmp_path / name / "hang" / "rank0.json", dump)
    (tmp_path / "open" / "empty").mkdir()
    return tmp_path / "open", tmp_path / "secret"


def hostile(secret: Path) -> list[str]:
    return [
        str(secret),
        "/etc",
        "..",
        "open/..",
        "open/../secret",
        "open/job/../../secret",
        "open/./job",
        "open//job",
        "../secret",
        "~",
        "~root",
        "secret",
        "",
        ".",
        "open/job\0",
        "open/job\n",
        "open\\..\\secret",
        "C:\\Windows",
        "open/C:",
        "open/%2e%2e/secret",
        "file:///etc",
        "open/nothing",
        "open/job/rank0.json",
        "open/" + "a" * 2000,
        "open/" + "a/" * 900,
    ]


def test_every_other_path_is_refused(places: tuple[Path, Path]) -> None:
    roots = Roots([str(places[0])])
    for name in hostile(places[1]):
        with pytest.raises(ConfigError):
            roots.folder(name)
    assert roots.folder("open") == places[0]
    assert roots.folder("open/job") == places[0] / "job"
    assert roots.folder("open/job/") == places[0] / "job"


def test_what_is_outside_and_what_does_not_exist_get_the_same_answer(places: tuple[Path, Path]) -> None:
    (places[0] / "link").symlink_to(places[1])
    roots = Roots([str(places[0])])
    answers = set()
    for name in ("open/link", "open/nothing"):
        with pytest.raises(ConfigError) as refused:
            roots.folder(name)
        answers.add(str(refused.value))
    assert len(answers) == 1


@pytest.mark.parametrize("target", ["secret", "secret/hang/rank0.json"])
def test_links_that_lead_out_are_not_read(places: tuple[Path, Path], target: str) -> None:
    """The log and the dumps of a job: a link anywhere below its directory may lead to another one."""
    link = places[0] / "job" / "hang" / "rank1.json"
    link.symlink_to(places[0].parent / target)
    box = Toolbox(Roots([str(places[0])]), executor="serial")
    for tool in ("hang", "watch"):
        reply = box.call(tool, {"folder": "open/job"})
        assert reply.is_error
        assert OUTSIDE in json.loads(reply.text)["error"]["what"]
        assert "secret" not in reply.text
    link.unlink()
    (places[0] / "job" / "inner").symlink_to(places[0] / "empty")
    assert Roots([str(places[0])]).checked("open/job") == places[0] / "job"
    box.close()


def test_traces_behind_links_that_lead_out_are_left_out(places: tuple[Path, Path]) -> None:
    (places[0] / "job" / "rank1.json").symlink_to(places[1] / "rank0.json")
    (places[0] / "job" / "more").symlink_to(places[1], target_is_directory=True)
    found = Roots([str(places[0])]).traces(Roots([str(places[0])]).all[0])
    assert {Path(path).parent.name for path in found.traces} == {"job"}
    assert str(places[0] / "job" / "rank1.json") not in found.traces
    assert {reason for _, reason in found.unfollowed} == {OUTSIDE}
    (places[0] / "job" / "rank0.json").unlink()
    (places[0] / "job" / "hang" / "rank0.json").unlink()
    with pytest.raises(NoTracesError):
        Roots([str(places[0])]).traces(Roots([str(places[0])]).all[0])


def test_a_report_of_several_processes_behind_a_link_that_leads_out_is_left_out(places: tuple[Path, Path]) -> None:
    nsight.two_nodes(places[1] / "reports", ranks=False)
    (places[0] / "job" / "node0.sqlite").symlink_to(places[1] / "reports" / "node0.sqlite")
    (places[1] / "reports" / "node1.sqlite").rename(places[0] / "job" / "node1.sqlite")
    found = Roots([str(places[0])]).traces(Roots([str(places[0])]).all[0])
    reports = {Path(path).name for path in found.traces if ".sqlite" in path}
    assert reports == {"node1.sqlite#process0", "node1.sqlite#process1"}


def test_a_directory_that_is_a_link_itself_is_the_user_s_choice(places: tuple[Path, Path]) -> None:
    link = places[0].parent / "latest"
    link.symlink_to(places[0])
    roots = Roots([str(link), str(places[0])])
    assert [(root.name, root.path) for root in roots.all] == [("open", Path(os.path.realpath(places[0])))]


def test_names_of_several_directories_differ(tmp_path: Path) -> None:
    for name in ("a/run", "b/run", "c/run"):
        (tmp_path / name).mkdir(parents=True)
    roots = Roots([str(tmp_path / name) for name in ("a/run", "b/run", "c/run")])
    assert [root.name for root in roots.all] == ["run", "run-2", "run-3"]
    assert roots.folder("run-3") == tmp_path / "c" / "run"


@pytest.mark.parametrize("given", ["nothing", "s3://bucket/run", "file.json"])
def test_only_directories_of_this_machine_are_served(tmp_path: Path, given: str) -> None:
    (tmp_path / "file.json").write_bytes(dumps(trace(small_step())))
    with pytest.raises(ConfigError, match="is not a directory"):
        Roots([given if "://" in given else str(tmp_path / given)])


def test_jobs_are_found_below_the_directories(places: tuple[Path, Path]) -> None:
    (places[0] / "job" / "watch").mkdir()
    assert Roots([str(places[0])]).jobs() == [{"folder": "open/job", "watched": True, "hang": True}]
