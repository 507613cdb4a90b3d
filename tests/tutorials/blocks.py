"""The blocks of a tutorial, and how they are run: in order, in one directory, as a reader would.

- ```` ```python train.py ```` (or any other language and a file's name) is written to that file;
- ```` ```python ```` is run by Python, ```` ```bash ```` by bash, and must succeed;
- ```` ```console ```` holds commands behind ``$`` and what they print: a line stands for itself, ``…`` in it for any
  text, and ``…`` alone for any lines; blanks count as one;
- ```` ```text ```` and the like are only read; so is a block below ``<!-- not run: why -->``;
- ``<!-- needs: shellcheck -->`` names a program without which the tutorial is skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)[ \t]*(\S*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"<!-- needs: ([^\n]+?) -->")
_NOT_RUN = re.compile(r"<!-- not run: [^\n]+? -->\s*$")
ANY = "…"
TIMEOUT_S = 600


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it names, its text, and the line of the page that it begins in."""

    language: str
    file: str
    text: str
    line: int


def read(page: str) -> tuple[list[Block], list[str]]:
    """The blocks that are to be run or written, and the programs that are needed."""
    blocks = []
    for match in _FENCE.finditer(page):
        if not _NOT_RUN.search(page[: match.start()]):
            blocks.append(Block(match[1], match[2], match[3], page.count("\n", 0, match.start()) + 1))
    return blocks, [name for match in _NEEDS.finditer(page) for name in match[1].split(", ")]


def run(block: Block, folder: Path, environ: Mapping[str, str]) -> None:
    """Run a block, or write the file that it is.

    Raises:
        AssertionError: a command fails, or prints something else.
    """
    where = f"line {block.line}"
    if block.file:
        path = folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    elif block.language == "python":
        _call([sys.executable, "-c", block.text], folder, environ, where)
    elif block.language == "bash":
        _call(["bash", "-euo", "pipefail", "-c", block.text], folder, environ, where)
    elif block.language == "console":
        for command, wanted in commands(block.text):
            printed = _call(["bash", "-euo", "pipefail", "-c", command], folder, environ, f"{where}: {command}")
            missing = first_missing(wanted, printed)
            assert missing is None, f"{where}: {command}\ndoes not print\n  {missing}\nbut\n{printed}"


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a console, and the lines that each prints."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        elif found:
            found[-1][1].append(line)
        else:
            raise AssertionError(f"a console begins with a command behind $, not with {line!r}")
    return found


def first_missing(wanted: Sequence[str], printed: str) -> str | None:
    """The first line that was to be printed and was not; lines follow one another unless ``…`` stands between."""
    lines = [_even(line) for line in printed.splitlines() if line.strip()]
    at, anywhere = 0, False
    for line in (line for line in map(_even, wanted) if line):
        if line == ANY:
            anywhere = True
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split(ANY)))
        places = range(at, len(lines)) if anywhere else range(at, min(at + 1, len(lines)))
        hit = next((place for place in places if pattern.fullmatch(lines[place])), None)
        if hit is None:
            return line
        at, anywhere = hit + 1, False
    if not anywhere and wanted and at < len(lines):
        return f"(the end: there is more, from {lines[at]!r} on)"
    return None


def _even(line: str) -> str:
    return " ".join(line.split())


def _call(line: Sequence[str], folder: Path, environ: Mapping[str, str], where: str) -> str:
    done = subprocess.run(
        line, cwd=folder, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S
    )
    printed = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, f"{where} ended with {done.returncode}:\n{printed}"
    return printed
