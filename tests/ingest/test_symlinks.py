"""Links in a directory: linked folders are searched once; what leads round in circles is left alone, and named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.kineto import small_step, trace, write

from rankscope.engine.pipeline import open_run
from rankscope.ingest import symlinks
from rankscope.ingest.discover import find_traces


def links(*pairs: tuple[Path, Path]) -> None:
    for link, target in pairs:
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.symlink_to(target, target_is_directory=True)
        except OSError:
            pytest.skip("this account may not make symbolic links")


def names(folder: Path) -> list[str]:
    return [Path(path).relative_to(folder).as_posix() for path in find_traces(folder).traces]


def test_linked_folders_are_searched_by_the_name_of_the_link(tmp_path: Path) -> None:
    for name in ("store/one/rank0.json", "store/one/deep/rank1.json", "store/two/rank0.json", "runs/own/rank0.json"):
        write(tmp_path / name, trace(small_step()))
    links(
        (tmp_path / "runs" / "before", tmp_path / "store" / "one"),
        (tmp_path / "runs" / "x" / "after", Path("../../store/two")),
    )
    assert names(tmp_path / "runs") == [
        "before/deep/rank1.json",
        "before/rank0.json",
        "own/rank0.json",
        "x/after/rank0.json",
    ]
    assert find_traces(tmp_path / "runs").unfollowed == []
    links((tmp_path / "all", tmp_path / "runs"))
    assert len(names(tmp_path / "all")) == 4, "what is named may be a link itself"


def test_nothing_is_found_twice(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "one" / "rank0.json", trace(small_step()))
    write(tmp_path / "store" / "rank0.json", trace(small_step()))
    links(
        (tmp_path / "runs" / "latest", tmp_path / "runs" / "one"),
        (tmp_path / "runs" / "a", tmp_path / "store"),
        (tmp_path / "runs" / "b", tmp_path / "store"),
    )
    assert names(tmp_path / "runs") == ["a/rank0.json", "one/rank0.json"]
    both = find_traces([tmp_path / "runs", tmp_path / "store"])
    assert len(both.traces) == 2
    assert both.unfollowed == []


def test_what_is_hidden_is_found_by_a_link_that_is_not(tmp_path: Path) -> None:
    write(tmp_path / "runs" / ".store" / "1" / "rank0.json", trace(small_step()))
    links((tmp_path / "runs" / "latest", tmp_path / "runs" / ".store" / "1"))
    assert names(tmp_path / "runs") == ["latest/rank0.json"]


def test_circles_and_ways_up_end(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "rank0.json", trace(small_step()))
    write(tmp_path / "other" / "rank1.json", trace(small_step()))
    links(
        (tmp_path / "runs" / "self", tmp_path / "runs"),
        (tmp_path / "runs" / "up", tmp_path),
        (tmp_path / "runs" / "root", Path(tmp_path.anchor)),
        (tmp_path / "runs" / "round", tmp_path / "runs" / "round"),
        (tmp_path / "runs" / "ping", tmp_path / "other"),
        (tmp_path / "other" / "pong", tmp_path / "runs"),
    )
    found = find_traces(tmp_path / "runs")
    assert [Path(path).name for path in found.traces] == ["rank1.json", "rank0.json"]
    assert sorted(found.unfollowed) == [
        (str(tmp_path / "runs" / "root"), symlinks.TO_PARENT),
        (str(tmp_path / "runs" / "up"), symlinks.TO_PARENT),
    ]


def test_a_link_leads_no_further_than_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "rank0.json", trace(small_step()))
    write(tmp_path / "one" / "rank1.json", trace(small_step()))
    write(tmp_path / "two" / "rank2.json", trace(small_step()))
    links((tmp_path / "runs" / "one", tmp_path / "one"), (tmp_path / "one" / "two", tmp_path / "two"))
    assert names(tmp_path / "runs") == ["one/rank1.json", "rank0.json"]
    (finding,) = [each for each in open_run(tmp_path / "runs").load().findings if each.id == "link-not-followed"]
    assert str(tmp_path / "runs" / "one" / "two") in finding.title
    assert symlinks.NESTED in finding.title


def test_links_of_other_users_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "shared" / "rank0.json", trace(small_step()))
    write(tmp_path / "private" / "rank1.json", trace(small_step()))
    links((tmp_path / "shared" / "bait", tmp_path / "private"))
    (tmp_path / "shared" / "rank2.json").symlink_to(tmp_path / "private" / "rank1.json")
    monkeypatch.setattr(symlinks, "_is_trusted", lambda owner, target: False)
    found = find_traces(tmp_path / "shared")
    assert [Path(path).name for path in found.traces] == ["rank0.json"]
    assert {Path(path).name: why for path, why in found.unfollowed} == {
        "bait": symlinks.FOREIGN,
        "rank2.json": symlinks.FOREIGN,
    }


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners are numbers on POSIX")
def test_which_owners_of_links_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    led = {
        (owner, target): symlinks._is_trusted(owner, target) for owner in (0, 1000, 2000) for target in (0, 1000, 2000)
    }
    # Root, the reader, and each into what is his own.
    assert [pair for pair, may in led.items() if not may] == [(2000, 0), (2000, 1000)]
