"""The generated docs pages are what a rebuild gives, have their pictures, and every link leads somewhere."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import struct
from pathlib import Path
from typing import Any

from rankscope.analyses import get_analysis

DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURES = DOCS / "images" / "analyses"
# An analysis that is not listed, a new one say, has its page without a picture; what is listed keeps its own.
LISTED: dict[str, Any] = json.loads(PICTURES.with_suffix(".json").read_text(encoding="utf-8"))


def docs_build() -> Any:
    """The module `docs/build.py`."""
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built_pages() -> dict[str, str]:
    pages: dict[str, str] = docs_build().pages()
    return pages


def test_committed_pages_are_what_make_docs_writes() -> None:
    for name, text in built_pages().items():
        assert (DOCS / name).exists(), f"docs/{name} is missing: make docs"
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"docs/{name} is not current: make docs"


def test_no_page_of_an_analysis_that_is_no_more() -> None:
    assert {f"analyses/{path.name}" for path in (DOCS / "analyses").iterdir()} == {
        name for name in built_pages() if name.startswith("analyses/")
    }


def test_links_between_pages_lead_somewhere() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_picture_of_the_layers_is_that_of_the_import_contract() -> None:
    config = configparser.ConfigParser()
    config.read(DOCS.parent / ".importlinter", encoding="utf-8")
    layers = config["importlinter:contract:layers"]["layers"].strip().splitlines()
    text = (DOCS / "how_it_works.md").read_text(encoding="utf-8").partition("## Layers")[2].split("```")[1]
    shown = [re.split(r"  +", line)[0] for line in text.strip().splitlines() if line[0] != " "]
    assert shown == layers


def test_every_listed_analysis_has_its_picture_formula_and_reading() -> None:
    made = built_pages()
    assert len(LISTED["pictures"]) >= 43
    for name, taken in LISTED["pictures"].items():
        page = made[f"analyses/{get_analysis(name).page}.md"]
        assert f"](../images/analyses/{name}.png)" in page, f"no picture of {name}: docs/pictures.py --analyses {name}"
        assert LISTED["runs"][taken["run"]]["about"] in page
        assert "```text\n" in page, f"{name} has no formula"
        assert "How to read it: " in page, f"{name} does not say how to read it"


def test_pictures_of_analyses_are_listed_small_and_fit_a_page() -> None:
    files = sorted(PICTURES.iterdir())
    assert {file.name for file in files} == {f"{name}.png" for name in LISTED["pictures"]}
    for file in files:
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n"), f"{file.name} is no PNG"
        width, height = struct.unpack(">II", data[16:24])
        assert 400 <= width <= 940 and 70 <= height <= 480, f"{file.name} is {width} x {height}"
        assert len(data) <= 40_000, f"{file.name} has {len(data)} bytes"
    assert sum(file.stat().st_size for file in files) <= 1_000_000


def test_links_of_llms_txt_lead_somewhere() -> None:
    """Pages that it does not list are added where the site is built."""
    listed = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    assert {"agents.md", "analyses/README.md", "rules.md"} <= set(listed)
    assert all((DOCS / target).exists() for target in listed)
