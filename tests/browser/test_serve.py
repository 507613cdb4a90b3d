"""`rankscope serve` in a browser, on real traces of every kind and on simulated ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]


def api(page: Page, path: str) -> Any:
    return page.tab.evaluate("async (path) => (await fetch(`api/${path}`)).json()", path)


def test_the_overview_leads_to_the_place(opened: Opener, h100: Path) -> None:
    page = opened(h100)
    page.ready()
    page.go("overview")
    heat = page.id("heat")
    heat.wait_for()
    assert heat.get_attribute("data-rows") == "8"
    table = api(page, "heat")
    heat.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):  # the first one enters it
        page.tab.keyboard.press(key)
    assert f"Rank {table['ranks'][1]}, step {table['steps'][1]}:" in str(page.id("heat-readout").text_content())
    page.tab.keyboard.press("Enter")
    page.settled()
    step = api(page, "timeline")["ranks"][1]["steps"][1]
    assert page.id("rank-1").get_attribute("aria-expanded") == "true"
    page.press("m")
    page.id("measure").wait_for()
    low, high = (float(page.id("measure").get_attribute(f"data-{end}") or "nan") for end in ("from", "to"))
    assert low <= step[1] < step[2] <= high
    page.tab.go_back()
    page.go("overview")
    page.id("finding-event").first.click()
    page.settled()
    assert page.id("rank-1").get_attribute("aria-expanded") == "true"
    page.check()


def test_search_select_and_follow_a_collective(opened: Opener, h100: Path) -> None:
    page = opened(h100)
    page.ready()
    page.timeline()
    assert page.ink() > 20
    page.timeline("?rank=0&step=11")
    said = page.find("DevKernel_AllGather")
    first = page.selected()
    assert "DevKernel_AllGather" in first["name"]
    assert said.endswith(f"of {api(page, 'search?q=DevKernel_AllGather&after=-1&direction=next')['hits']:,}")
    page.id("search-next").click()
    page.selects("start", first["start"], other=True)
    second = page.selected()
    assert float(second["start"]) >= float(first["start"])
    detail = api(page, f"event?lane={second['lane']}&row={second['row']}")
    assert (detail["name"], detail["start_ns"], detail["end_ns"]) == (
        second["name"], float(second["start"]), float(second["end"]),
    )  # fmt: skip
    members = detail["collective"]["members"]
    assert len({member["rank"] for member in members}) == len(members) > 1
    other = next(member for member in members if member["rank"] != detail["rank"])
    page.id(f"member-{other['rank']}").click()
    page.selects("lane", str(other["lane"]))
    followed = page.selected()
    assert (int(followed["row"]), float(followed["start"])) == (other["row"], other["start_ns"])
    again = api(page, f"event?lane={followed['lane']}&row={followed['row']}")["collective"]
    assert sorted(m["rank"] for m in again["members"]) == sorted(m["rank"] for m in members)
    page.check(axe=True)


def test_a_click_selects_what_lies_under_it(opened: Opener, h100: Path) -> None:
    page = opened(h100)
    page.ready()
    page.timeline("?rank=3")
    page.find("reduce_scatter" if api(page, "search?q=reduce_scatter&after=-1&direction=next")["hits"] else "nccl")
    found = page.selected()
    page.press("f")
    page.settled()
    # What is zoomed to lies around the middle of the picture, on its lane: found by asking every row at that place.
    box = page.id("timeline-stage").bounding_box()
    hit = None
    for y in range(50, int(box["height"]), 8):
        page.tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + y)
        page.paused(60)
        chosen = page.tab.evaluate("() => ({...document.querySelector('[data-testid=selection]')?.dataset})")
        if (chosen.get("lane"), chosen.get("row")) == (found["lane"], found["row"]):
            hit = chosen
            break
        page.go(page.tab.url.split("#/")[1])
        page.settled()
    assert hit is not None
    page.check()


def test_measuring_says_what_the_server_adds_up(opened: Opener, h100: Path) -> None:
    page = opened(h100)
    page.ready()
    page.timeline("?rank=2&step=12")
    box = page.id("timeline-stage").bounding_box()
    page.tab.mouse.move(box["x"] + 100, box["y"] + 80)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 400, box["y"] + 90, steps=4)
    page.tab.mouse.up()
    measure = page.id("measure")
    measure.wait_for()
    low, high = (int(measure.get_attribute(f"data-{end}") or "0") for end in ("from", "to"))
    window = api(page, "timeline")["span_ns"]
    assert 0 < high - low < window
    rows = page.tab.evaluate(
        """() => [...document.querySelectorAll('[data-testid=table-measured] tr[data-row]')].map((row) =>
             Object.fromEntries([...row.querySelectorAll('td')].map((td) => [td.dataset.column, td.dataset.value])))"""
    )
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(8)]
    # By hand, from the single events: the union of the compute on rank 2's streams within the range.
    layout = api(page, "timeline")
    compute = [c["name"] for c in layout["categories"]].index("compute")
    streams = [
        lane
        for track in layout["tracks"]
        if track["rank"] == 2 and track["kind"] == "stream"
        for lane in range(track["lanes"][0], sum(track["lanes"]))
    ]
    query = f"events?lanes={','.join(map(str, streams))}&from={low}&to={high}&limit=100000"
    events = page.columns(query, start_ns="Float64Array", end_ns="Float64Array", category="Uint8Array")
    spans = [(start, end) for start, end, of in zip(*events, strict=True) if of == compute]
    total, reached = 0.0, float(low)
    for start, end in sorted(spans):
        total += max(0.0, min(end, high) - max(start, reached))
        reached = max(reached, min(end, high))
    assert float(rows[2]["compute_ns"]) == total > 0
    page.check(axe=True)


def test_a_link_leads_to_the_same_view_and_back_goes_back(opened: Opener, h100: Path) -> None:
    page = opened(h100)
    page.ready()
    page.timeline("?rank=1&step=11")
    page.find("nccl")
    chosen = page.selected()
    page.press("f")
    page.still()
    link = page.tab.url
    other = opened(h100)
    other.tab.goto(link)
    other.tab.reload()
    other.tab.wait_for_selector("#app[data-ready=true]")
    other.settled()
    assert other.selected() == page.selected() == chosen
    assert other.tab.url.split("#")[1] == link.split("#")[1]
    page.settled()
    pictures = [tab.evaluate("() => document.querySelector('.tl-pixels').toDataURL()") for tab in (page.tab, other.tab)]
    assert pictures[0] == pictures[1]
    page.press("Escape")
    page.tab.wait_for_selector("[data-testid=selection]", state="detached")
    page.tab.go_back()
    assert page.selected() == chosen
    page.check()
    other.check()


def test_with_the_keyboard_alone(opened: Opener, h100: Path) -> None:
    page = opened(h100)
    page.ready()
    page.timeline("?step=12")
    stage = page.id("timeline-stage")
    for _ in range(60):  # every control is reached by Tab
        page.tab.keyboard.press("Tab")
        if stage.evaluate("(e) => e === document.activeElement"):
            break
    else:
        pytest.fail("Tab does not reach the timeline")
    live = page.id("live")
    page.tab.keyboard.press("e")
    first = page.selected()
    assert str(live.text_content()).startswith(first["name"][:60])
    page.tab.keyboard.press(".")
    page.selects("row", str(int(first["row"]) + 1))
    page.tab.keyboard.press("j")
    page.selects("lane", first["lane"], other=True)
    before = page.tab.url
    page.tab.keyboard.press("w")
    page.tab.keyboard.press("d")
    page.tab.wait_for_function("(url) => location.href !== url", arg=before)
    page.tab.keyboard.press("f")
    page.tab.keyboard.press("Enter")
    assert page.id("selection").evaluate("(panel) => panel.contains(document.activeElement)")
    page.id("lane-list").locator("summary").focus()
    page.tab.keyboard.press("Enter")
    listed = page.id("lane-list").locator("li button")
    listed.first.wait_for()
    assert page.selected()["row"] in {item.get_attribute("data-row") for item in listed.all()}
    page.press("m")
    page.id("measure").wait_for()
    page.press("/")
    assert page.id("search").evaluate("(e) => e === document.activeElement")
    page.press("Escape", "Escape")
    page.tab.wait_for_selector("[data-testid=selection]", state="detached")
    page.id("rank-0").focus()
    page.tab.keyboard.press("Enter")
    assert page.id("rank-0").get_attribute("aria-expanded") == "true"
    assert page.id("rank-0").evaluate("(e) => e === document.activeElement")
    page.check(axe=True)


def test_a_gloo_run_on_cpu(opened: Opener, gloo: Path) -> None:
    page = opened(gloo)
    page.ready()
    assert page.id("run-ranks").text_content() == "Ranks2"
    page.timeline()
    assert page.ink() > 5
    page.find("gloo")
    chosen = page.selected()
    members = api(page, f"event?lane={chosen['lane']}&row={chosen['row']}")["collective"]
    assert members is None or len(members["members"]) <= 2
    page.check(axe=True)


@pytest.mark.parametrize("folder", ["ns_resolution_trace", "cpu_only"])
def test_a_single_rank(opened: Opener, shared_traces: Path, folder: str) -> None:
    page = opened(shared_traces / "hta" / folder)
    page.ready()
    page.go("overview")
    page.tab.wait_for_selector("[data-testid=working]", state="detached")
    page.check(axe=True)
    page.timeline()
    assert page.ink() > 5
    page.press("e")
    assert int(page.selected()["row"]) >= 0
    page.check(axe=True)


def test_258_ranks_one_row_each(opened: Opener, ranks258: Path) -> None:
    page = opened(ranks258, width=1280, height=1000)
    page.ready()
    page.go("overview")
    page.id("heat").wait_for()
    assert page.id("heat").get_attribute("data-rows") == "52"  # blocks of 5 ranks, each as slow as its slowest
    page.timeline("?group=none")
    assert page.ink() > 20
    hidden = page.tab.locator(".tl-box").evaluate("(box) => box.scrollHeight - box.clientHeight")
    assert hidden <= 60  # all of them are in sight at once
    page.check(axe=True)
    page.timeline("?group=none&rank=77")
    assert page.id("rank-77").get_attribute("aria-expanded") == "true"
    page.find("DevKernel")
    chosen = page.selected()
    members = api(page, f"event?lane={chosen['lane']}&row={chosen['row']}")["collective"]["members"]
    assert len(members) > 1
    page.check()


def test_hostile_names_are_text(opened: Opener, hostile: Path) -> None:
    page = opened(hostile)
    page.ready()
    for view in ("overview", "kernels", "collectives", "run"):
        page.go(view)
        page.tab.wait_for_selector("[data-testid=working]", state="detached")
        page.check()
    page.timeline()
    page.id("view-menu").locator("summary").click()
    page.id("open-all").click()
    assert "onerror" in str(page.id("run-hosts").text_content())
    for text in ("onerror", "</script>", "gnp.exe", "nnnnnnnnnn", "nn.Module: <img", "evil.py"):
        said = page.find(text)
        assert " of " in said, (text, said)
        assert text in page.selected()["name"] or "\u202e" in page.selected()["name"]
        page.press("f")
        page.settled()
        stage = page.id("timeline-stage").bounding_box()
        page.tab.mouse.move(stage["x"] + stage["width"] / 2, stage["y"] + 100)
        page.check(axe=True)
    assert page.tab.locator("script").count() == 2
    assert page.tab.locator("img").count() == 0
    # What reorders the text around it is shown as its number.
    assert "\u202e" not in str(page.tab.evaluate("() => document.body.innerText"))


def test_what_a_report_says_is_still_what_it_says(opened: Opener, h100: Path) -> None:
    """The page's numbers come from the same results: the headline is the summary's."""
    page = opened(h100)
    page.ready()
    page.go("overview")
    page.id("headline-step-time").wait_for()
    table = api(page, "table/overview")
    assert page.id("headline-step-time").get_attribute("data-value") == json.dumps(table["data"]["step_ns"][0])
    page.check()
