"""A report's blocks, and what a server of the same run answers to random questions: the page is held to them.

`python -m tests.show.report.embedded_answers TRACES FILE [COUNT]` writes JSON that `ui/tests/embedded.test.ts` reads.
"""

from __future__ import annotations

import json
import random
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.show.web.asking import Asking, serving

from rankscope.show.report.embed.timeline import embed_run, grid_of
from rankscope.show.timeline.pyramid import shift_of


def write_answers(source: Path, file: Path, count: int = 120, seed: int = 1, **options: Any) -> dict[str, int]:
    """Writes the blocks and the answers; how many questions of each kind there are."""
    server = serving(source, **options)
    run = server.runs.shown.loaded.run
    assert run is not None
    found = embed_run(run, grid_of(run), 1 << 40)
    asked = [_answered(server, *question) for question in _questions(server, random.Random(seed), count)]
    value = {
        "blocks": {name: b64encode(data).decode() for name, data in found.blocks.items()},
        "left_out": found.left_out,
        "asked": asked,
    }
    file.write_text(json.dumps(value), encoding="utf-8")
    kinds = [each["name"] for each in asked]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _answered(server: Asking, name: str, params: dict[str, Any]) -> dict[str, Any]:
    answer = server.ask(f"/api/{name}?{urlencode(params)}")
    asked: dict[str, Any] = {"name": name, "params": params, "status": answer.status}
    if answer.headers["content-type"] == "application/json":
        return {**asked, "json": answer.json()}
    return {**asked, "columns": b64encode(answer.body).decode()}


def _questions(server: Asking, choose: random.Random, count: int) -> list[tuple[str, dict[str, Any]]]:
    layout = server.ask("/api/timeline").json()
    names = server.ask("/api/names").json()["names"]
    lanes, span = len(layout["lanes"]["track"]), layout["span_ns"]
    full = [lane for lane in range(lanes) if layout["lanes"]["events"][lane]]
    ranks = [row["rank"] for row in layout["ranks"]]
    whole = [track["lanes"][0] for track in layout["tracks"] if track["kind"] == "rank"]

    def some() -> list[int]:
        picked = choose.sample(full, min(len(full), choose.randint(1, 12)))
        return sorted({*picked, choose.choice(whole)})

    def window() -> tuple[int, int]:
        length = max(1, int(span * 10 ** choose.uniform(-5, 0)))
        low = choose.randint(-length // 2, max(0, span))
        return low, low + length

    def event() -> tuple[int, int]:
        lane = choose.choice([*full, choose.choice(whole)])
        return lane, choose.randrange(max(layout["lanes"]["events"][lane], 1))

    def start_of(lane: int, row: int) -> dict[str, Any]:
        found = server.ask(f"/api/event?lane={lane}&row={row}").json()
        return {"after": found.get("start_ns", 0), "lane": lane, "row": row}

    asked: list[tuple[str, dict[str, Any]]] = [("timeline", {}), ("names", {"from": 0}), ("heat", {})]
    for _ in range(count):
        level = choose.randrange(layout["levels"])
        last = span >> shift_of(level)
        bins = choose.choice([1, 7, 256, 1024])
        first = max(0, choose.randint(-bins // 2, last))
        chosen = ",".join(map(str, some()))
        asked.append(("tiles", {"level": level, "first": first, "bins": bins, "lanes": chosen}))
        low, high = window()
        limit = choose.choice([1, 50, 2000])
        asked.append(("events", {"lanes": ",".join(map(str, some())), "from": low, "to": high, "limit": limit}))
    for _ in range(count // 2):
        lane, row = event()
        asked.append(("event", {"lane": lane, "row": row}))
        text = choose.choice(names)
        text = text[(at := choose.randrange(max(len(text), 1))) : at + choose.randint(1, 12)].strip() or "e"
        place = choose.choice([{}, start_of(*event())])
        direction = choose.choice(["next", "previous"])
        where = {"rank": choose.choice(ranks)} if choose.random() < 0.4 else {}
        asked.append(("search", {"q": text, "direction": direction, **place, **where}))
        pattern = choose.choice(["gemm|all", "^[a-m].*e", r"nccl\w+_|::", "no such name", "("])
        asked.append(
            ("search", {"q": pattern, "match": "regex", "count": choose.choice([1, 5, 100]), **place, **where})
        )
        asked.append(
            ("search", {"match": "name", "direction": direction, **start_of(*event()), "first": 1, "count": 3})
        )
    for _ in range(count // 4):
        low, high = window()
        some_ranks = sorted(choose.sample(ranks, choose.randint(1, len(ranks))))
        named = {"name": choose.randrange(len(names)), "ranks": ",".join(map(str, some_ranks))}
        level = choose.randrange(layout["levels"])
        first = choose.randint(0, span >> shift_of(level))
        asked.append(("named/tiles", {**named, "level": level, "first": first, "bins": choose.choice([7, 1024])}))
        asked.append(("named/events", {**named, "from": low, "to": high, "limit": choose.choice([1, 50, 2000])}))
        one = {"name": named["name"], "rank": choose.choice(ranks), "row": choose.choice([0, 0, 1, 5, 1 << 30])}
        asked.append(("named/event", one))
        asked.append(("range", {"from": low, "to": high, "ranks": ",".join(map(str, some_ranks))}))
        by = choose.choice(["operators", "frames", "modules"])
        asked.append(("calls", {"from": low, "to": high, "ranks": ",".join(map(str, some_ranks)), "by": by}))
        own = {"rank": choose.choice(ranks)} if choose.random() < 0.5 else {}
        asked.append(("path", {"at": choose.randint(0, span), **own}))
        points = choose.choice([3, 50, 2000])
        asked.append(("counters", {"rank": choose.choice(ranks), "from": low, "to": high, "points": points}))
    asked += [("calls", {"from": 0, "to": span, "by": by}) for by in ("operators", "frames", "modules")]
    asked.append(("event", {"lane": full[0], "row": layout["lanes"]["events"][full[0]]}))
    return asked


if __name__ == "__main__":
    print(write_answers(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:4])))
