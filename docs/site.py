"""Hooks of `make site`: the repository's own pages join those of docs/, and links to its code become plain text.

In comes what mkdocs has read from docs/. Out go the same pages, README.md, CONTRIBUTING.md and CHANGELOG.md as further
ones, a navigation that lists every analysis, links that mkdocs can check, and no script from another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
WORKER = re.compile(r'https?://[^"]*/iframe-worker/shim')
ROOTED = re.compile(r'(\b(?:href|src)=")/(?!/)')
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """List every page of an analysis in the navigation."""
    pages = sorted((ROOT / "docs" / "analyses").glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    listed = [{page.stem: f"analyses/{page.name}"} for page in pages if page.name != "README.md"]
    for section in config.nav:
        for entry in section.get("Reference", ()):
            if isinstance(entry, dict) and "Analyses" in entry:
                entry["Analyses"] = ["analyses/README.md", *listed]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are outside docs/."""
    listed = files.get_file_from_path("llms.txt")
    if listed is not None:
        files.remove(listed)
        files.append(File.generated(config, "llms.txt", content=llms_text()))
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def llms_text() -> str:
    """docs/llms.txt with links to pages of the site, and with the guides that it does not list."""
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    pages = sorted((ROOT / "docs").glob("*.md"))
    more = [page for page in pages if f"({page.name})" not in text]
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for page in more]
    listed = "".join(f"- [{title}]({page.name})\n" for page, title in zip(more, titles, strict=True))
    text += f"\n## More\n\n{listed}" if listed else ""
    return text.replace("README.md)", "index.html)").replace(".md)", ".html)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links into the site; what is not in it is named, not linked."""
    from_repository = {name: source for source, name in PAGES.items()}.get(page.file.src_uri)
    here = posixpath.dirname(from_repository or f"docs/{page.file.src_uri}")

    def replaced(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(here, target))
        name = PAGES.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(name) is None or (path not in PAGES and not path.startswith("docs/")):
            return text
        return f"{image}[{text}]({posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or '.')}{anchor or ''})"

    return LINK.sub(replaced, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take the script that lets search work from the disk from the site itself."""
    return WORKER.sub(posixpath.relpath("search_worker.js", posixpath.dirname(page.file.dest_uri) or "."), output)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for 404.html, whose links start at the host's root: they are made relative, for a site in a folder."""
    page = WORKER.sub("search_worker.js", output_content)
    return ROOTED.sub(r"\1", page).replace('"base": "/"', '"base": "."') if template_name == "404.html" else page
