"""The tutorials, run as they stand on the page; and the runner, which must not let anything pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capture.conftest import clean_environ
from tests.tutorials.blocks import Block, commands, first_missing, read, run

PAGES = sorted(p for p in (Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md") if p.name != "README.md")


@pytest.fixture
def environ(tmp_path):
    """As a reader's shell: this Python first on PATH, `rankscope` beside it, and a cache of its own."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "rankscope").write_text(f'#!/bin/sh\nexec {sys.executable} -m rankscope "$@"\n')
    (programs / "rankscope").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**clean_environ(), "PATH": path, "RANKSCOPE_CACHE": str(tmp_path / "cache")}


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the tutorials speak bash")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tutorial_does_what_it_says(page, tmp_path, environ):
    blocks, needs = read(page.read_text(encoding="utf-8"))
    for need in needs:
        program, *words = need.split()
        found = shutil.which(program, path=environ["PATH"])
        if found is None:
            pytest.skip(f"no {program} here: Debian has it")
        if words and subprocess.run([found, *words], env=environ, capture_output=True, timeout=300).returncode:
            pytest.skip(f"`{need}` does not work here")
    folder = tmp_path / "work"
    folder.mkdir()
    assert any(block.language in ("console", "bash", "python") and not block.file for block in blocks)
    for block in blocks:
        run(block, folder, environ)


def test_the_list_of_tutorials_is_whole():
    listed = (PAGES[0].parent / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"({page.name})" not in listed] == []


# --- the runner -----------------------------------------------------------------------------------------------

PAGE = """
<!-- needs: bash, sh -c true -->
```python hello.py
print("hello", 3)
```
```console
$ python hello.py
hello …
$ echo a \\
  b; echo c
a b
…
```
<!-- not run: it needs a cluster -->
```bash
exit 3
```
```text
$ nothing
```
"""


def test_a_page_is_read():
    blocks, needs = read(PAGE)
    assert needs == ["bash", "sh -c true"]
    assert [(b.language, b.file, b.line) for b in blocks] == [
        ("python", "hello.py", 3),
        ("console", "", 6),
        ("text", "", 18),
    ]
    assert commands(blocks[1].text) == [
        ("python hello.py", ["hello …"]),
        ("echo a \\\n  b; echo c", ["a b", "…"]),
    ]


def test_a_page_is_run(tmp_path, environ):
    for block in read(PAGE)[0]:
        run(block, tmp_path, environ)
    assert (tmp_path / "hello.py").exists()


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("bash", "false\ntrue\n"),
        ("bash", "false | true\n"),
        ("bash", "echo $unset\n"),
        ("python", "raise SystemExit(1)\n"),
        ("console", "$ exit 2\n"),
        ("console", "$ echo a\nb\n"),
        ("console", "$ echo a; echo b\na\n"),
        ("console", "$ echo a\na\nb\n"),
        ("console", "a\n"),
    ],
)
def test_what_is_not_as_the_page_says_fails(tmp_path, environ, language, text):
    with pytest.raises(AssertionError):
        run(Block(language, "", text, 1), tmp_path, environ)


@pytest.mark.parametrize(
    ("wanted", "printed", "missing"),
    [
        (["a …", "b"], "a 1\n\nb\n", None),
        (["a", "…", "d"], "a\nb\nc\nd\n", None),
        (["…", "c", "…"], "a\nb\nc\nd\n", None),
        (["a", "c"], "a\nb\nc\n", "c"),
        (["…", "b", "…", "a", "…"], "a\nb\n", "a"),
        (["a (x)"], "a  (x)\n", None),
        (["a.c"], "abc\n", "a.c"),
        ([], "whatever\n", None),
    ],
)
def test_lines_are_compared(wanted, printed, missing):
    assert first_missing(wanted, printed) == missing
