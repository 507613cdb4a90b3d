"""The generated docs pages are what a rebuild gives, and every link between pages leads somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def built_pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
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
