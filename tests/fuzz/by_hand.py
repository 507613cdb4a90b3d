"""Thousands of mutated runs, and the smallest file of each kind of failure.

`python -m tests.fuzz.by_hand FOLDER COUNT [SEED]` writes the files of each new kind of failure into FOLDER;
`python -m tests.fuzz.by_hand FOLDER` then minimizes those that still fail, and removes those that do not.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.environment import enter_session, leave_session
from tests.fuzz.mutate import Files, mutated, write_files
from tests.fuzz.whole_way import problems_of

SLOW_S = 60
"""Of CPU time: what a busy machine delays is not slow."""


class SlowError(BaseException):
    """A run that takes this long."""


def _stop(number: int, frame: object) -> None:
    raise SlowError


def look_at(files: Files, *, page: bool) -> list[str]:
    """What goes wrong with a run; numbers are replaced, so that one defect has one text."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder) / "run", files)
        signal.setitimer(signal.ITIMER_PROF, SLOW_S)
        try:
            return [re.sub(r"\d+", "#", each) for each in problems_of(Path(folder) / "run", page=page, anonymize=page)]
        except SlowError:
            return [f"more than {SLOW_S} s of CPU"]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def minimized(files: Files, fails: Callable[[Files], bool], seconds: float = 120) -> Files:
    """Fewer files, fewer events, fewer keys, as long as it fails."""
    until = time.monotonic() + seconds

    def works(candidate: Files) -> bool:
        return time.monotonic() < until and fails(candidate)

    for name in list(files):
        fewer = {other: data for other, data in files.items() if other != name}
        if fewer and works(fewer):
            files = fewer
    for name in list(files):
        try:
            content = json.loads(files[name], strict=False)
            events = content["traceEvents"]
        except (ValueError, KeyError, TypeError):
            continue

        def with_events(kept: list[Any], name: str = name, content: Any = content, files: Files = files) -> Files:
            text = json.dumps({**content, "traceEvents": kept})
            return {**files, name: text.encode("utf-8", "surrogatepass")}

        if not works(with_events(events)):
            continue
        size = len(events) // 2
        while size >= 1:
            at = 0
            while at < len(events):
                fewer_events = events[:at] + events[at + size :]
                if works(with_events(fewer_events)):
                    events = fewer_events
                else:
                    at += size
            size //= 2
        for key in [key for key in content if key != "traceEvents"]:
            fewer_keys = {k: v for k, v in content.items() if k != key}
            if works({**files, name: json.dumps({**fewer_keys, "traceEvents": events}).encode()}):
                content = fewer_keys
        for place, one in enumerate(events):
            if not isinstance(one, dict):
                continue
            for holder in (one.get("args"), one):
                for key in list(holder) if isinstance(holder, dict) else []:
                    value = holder.pop(key)
                    if not works(with_events(events, content=content)):
                        holder[key] = value
            events[place] = one
        files = with_events(events, content=content)
    return files


def main(folder: Path, count: int, seed: int) -> None:
    signal.signal(signal.SIGPROF, _stop)
    root = enter_session()
    known: dict[str, int] = {}
    began = time.process_time()
    try:
        for number in range(seed, seed + count):
            files = mutated(random.Random(number))
            for problem in look_at(files, page=number % 4 == 0):
                known[problem] = known.get(problem, 0) + 1
                if known[problem] > 1:
                    continue
                print(f"{number}: {problem}", flush=True)

                write_files(folder / f"{number}-{len(known)}", files)
                (folder / f"{number}-{len(known)}" / "problem.txt").write_text(problem)
            if number % 100 == 99:
                print(f"… {number + 1 - seed} runs, {time.process_time() - began:.0f} s of CPU", flush=True)
    finally:
        leave_session(root)
        for problem, times in sorted(known.items(), key=lambda each: -each[1]):
            print(f"{times:5} {problem}")


def minimize(folder: Path) -> None:
    """Make each failure's files as small as they can be."""
    signal.signal(signal.SIGPROF, _stop)
    root = enter_session()
    try:
        for place in sorted(folder.iterdir()):
            problem = (place / "problem.txt").read_text()
            files = {path.name: path.read_bytes() for path in place.iterdir() if path.name != "problem.txt"}

            def fails(candidate: Files, problem: str = problem) -> bool:
                return problem in look_at(candidate, page=problem.startswith("page"))

            again = fails(files)
            shutil.rmtree(place)
            if again:
                write_files(place, minimized(files, fails))
                (place / "problem.txt").write_text(problem)
            print(f"{place.name}: {problem if again else 'fixed'}", flush=True)
    finally:
        leave_session(root)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(Path(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:4] or ["0"])[0]))
    else:
        minimize(Path(sys.argv[1]))
