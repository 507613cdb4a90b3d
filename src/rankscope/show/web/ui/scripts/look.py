"""Opens the fixtures in headless Chromium, takes pictures, and fails on what a picture does not show.

    node scripts/fixtures.mjs FOLDER && python scripts/look.py FOLDER [NAME …]

Fails on a console error, any request, a page that scrolls sideways, text that is clipped without an ellipsis, and on
whatever axe-core finds. Needs playwright (Python) and a Chromium: the one of the system unless CHROMIUM says otherwise.
"""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
AXE = (HERE / "../node_modules/axe-core/axe.min.js").resolve()
VIEWS = ["overview", "ranks", "steps", "collectives", "kernels", "run"]
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}

CLIPPED = """() => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const clipped = [...document.querySelectorAll('h1,h2,h3,p,dt,dd,button,label,summary,a,li,.figure-value,figcaption')]
    .filter(e => e.offsetParent && !e.closest('.scroll') && !e.matches('.unseen') && e.scrollWidth > e.clientWidth + 1
      && getComputedStyle(e).display !== 'inline' && !e.querySelector('pre'))
    .map(e => e.tagName + ': ' + e.textContent.slice(0, 80));
  return {wide, clipped};
}"""


LOUD = ("error", "warning")
INSIDE = ("file:", "data:", "blob:")


def watch(page: Page, where: str, faults: list[str]) -> None:
    """Note what a page says on its console, and what it asks of the network."""
    page.on("console", lambda m: faults.append(f"{where}: console: {m.text}") if m.type in LOUD else None)
    page.on("pageerror", lambda e: faults.append(f"{where}: {e}"))
    page.on("request", lambda r: None if r.url.startswith(INSIDE) else faults.append(f"{where}: request {r.url[:80]}"))


def look(folder: Path, names: list[str]) -> list[str]:
    """Open every view of some pages in every size and color scheme; the faults that were found."""
    faults: list[str] = []
    shots = folder / "shots"
    shots.mkdir(exist_ok=True)
    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        for name in names:
            page_path = folder / f"{name}.html"
            for size, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    context = browser.new_context(
                        viewport={"width": width, "height": height},
                        color_scheme=scheme,
                        offline=True,
                        reduced_motion="reduce",
                    )
                    page = context.new_page()
                    where = f"{name} {size} {scheme}"
                    watch(page, where, faults)
                    page.goto(page_path.as_uri())
                    page.wait_for_selector("#app[data-ready]")
                    error = page.get_attribute("#app", "data-ready") == "error"
                    for view in ["overview"] if error else VIEWS:
                        if not error:
                            page.evaluate(f"location.hash = '#/{view}'")
                        page.wait_for_timeout(120)
                        page.screenshot(path=shots / f"{name}_{view}_{size}_{scheme}.png", full_page=True)
                        state = page.evaluate(CLIPPED)
                        if state["wide"] > 0:
                            faults.append(f"{where} {view}: the page scrolls sideways by {state['wide']} px")
                        faults += [f"{where} {view}: clipped: {text}" for text in state["clipped"]]
                        page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
                        report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
                        for found in report["violations"]:
                            targets = "; ".join(str(node["target"]) for node in found["nodes"][:3])
                            faults.append(f"{where} {view}: axe {found['id']} ({found['impact']}): {targets}")
                        if page.title() == "owned":
                            faults.append(f"{where} {view}: a name from the trace ran as code")
                    context.close()
        browser.close()
    return faults


if __name__ == "__main__":
    root = Path(sys.argv[1])
    wanted = sys.argv[2:] or ["ranks1", "ranks8", "ranks64", "ranks256", "hostile", "bare", "cpu", "future", "cut"]
    found = look(root, wanted)
    print("\n".join(found) or "nothing to fix")
    sys.exit(1 if found else 0)
