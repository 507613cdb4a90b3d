"""A page in the browser, and all that it says and asks for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = os.environ.get("RANKSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, _PROGRAMS)), None)
HOW = "Debian: apt-get install chromium-headless-shell. Elsewhere name a Chromium or Chrome in RANKSCOPE_CHROMIUM"

UI = Path(__file__).resolve().parents[2] / "src" / "rankscope" / "show" / "web" / "ui"
AXE = UI / "node_modules" / "axe-core" / "axe.min.js"
WAIT_MS = 240_000
"""Nothing that a page is waited for takes so long, on any machine."""

# By the page's own frames and timers, in their order: a page that gets no core makes no progress, and this waits on.
PAUSED = "(ms) => new Promise((on) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(on, ms))))"
STILL = """async (ms) => {
  for (let before = null; before !== location.href; ) {
    before = location.href;
    await new Promise((on) => setTimeout(on, ms));
  }
}"""

CLIPPED = """() => ({
  sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  clipped: [...document.querySelectorAll(
      'h1,h2,h3,h4,p,dt,dd,button,label,summary,a,li,select,.figure-value,figcaption')]
    .filter((e) => e.offsetParent && !e.closest('.scroll,.tl-gutter,.tl-pins,.unseen,.picture .view-head')
      && !e.matches('.unseen')
      && getComputedStyle(e).display !== 'inline' && e.scrollWidth > e.clientWidth + 1 && !e.querySelector('pre'))
    .map((e) => `${e.tagName} ${e.className}: ${e.textContent.slice(0, 80)}`),
  // What a field says of itself is no text of the document: it is measured.
  unread: [...document.querySelectorAll('input[placeholder]')].filter((e) => e.offsetParent).filter((e) => {
    const style = getComputedStyle(e), c = document.createElement('canvas').getContext('2d');
    c.font = style.font;
    const room = e.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const clear = e.type === 'search' ? parseFloat(style.fontSize) : 0;  // Chromium keeps room for the cross
    return c.measureText(e.placeholder).width + clear > room + 1;
  }).map((e) => e.placeholder),
})"""


class Page:
    """One tab. `check` fails on anything that it said or asked for and should not have."""

    def __init__(
        self,
        browser: Any,
        address: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        offline: bool = False,
        touch: bool = False,
    ) -> None:
        self.said: list[str] = []
        self.left: list[str] = []
        self.home = urlsplit(address)
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            offline=offline,
            has_touch=touch,
        )
        self.context.set_default_timeout(WAIT_MS)
        self.tab = self.context.new_page()
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.context.on("request", lambda request: self._asked(request.url))
        self.tab.goto(address)
        self.tab.wait_for_selector("#app[data-ready=true]", timeout=WAIT_MS)

    def _asked(self, url: str) -> None:
        if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc != self.home.netloc:
            self.left.append(url)

    def id(self, name: str) -> Any:
        return self.tab.locator(f'[data-testid="{name}"]').first

    def go(self, place: str) -> None:
        """To a place of the page: what follows the # of its address."""
        self.tab.evaluate("(to) => { location.hash = to }", f"#/{place}")

    def ready(self) -> None:
        """Until the server has done all of its work."""
        self.tab.wait_for_selector("#app[data-phase=ready]", timeout=WAIT_MS)

    def timeline(self, query: str = "") -> None:
        """The timeline, with all in sight drawn as it is."""
        self.go(f"timeline{query}")
        self.settled()

    def settled(self) -> None:
        self.tab.wait_for_selector('[data-testid="timeline-stage"][data-settled=true]', timeout=WAIT_MS)
        self.paused(150)
        self.tab.wait_for_selector('[data-testid="timeline-stage"][data-settled=true]', timeout=WAIT_MS)

    def paused(self, ms: int) -> None:
        """Until the page has drawn what it was just told, and some time more of its own."""
        self.tab.evaluate(PAUSED, ms)

    def still(self) -> None:
        """Until the address is that of what is in sight, which it follows after a pause."""
        self.tab.evaluate(STILL, 600)

    def press(self, *keys: str) -> None:
        self.id("timeline-stage").focus()
        for key in keys:
            self.tab.keyboard.press(key)

    def selected(self) -> dict[str, str]:
        """What the panel says is selected, once it is there."""
        panel = self.id("selection")
        panel.wait_for()
        found: dict[str, str] = panel.evaluate("(panel) => ({...panel.dataset})")
        return found

    def selects(self, field: str, value: str, *, other: bool = False) -> None:
        """Waits until what is selected has this value, or another one, in a field of `selected`."""
        found = f"document.querySelector('[data-testid=selection]')?.dataset.{field}"
        self.tab.wait_for_function(f"(value) => ({found} === value) === {str(not other).lower()}", arg=value)

    def columns(self, path: str, **types: str) -> list[list[float]]:
        """Columns of a binary answer, read without the page's own reader."""
        found: list[list[float]] = self.tab.evaluate(
            """async ([path, types]) => {
              const buffer = await (await fetch(`api/${path}`)).arrayBuffer();
              const length = new DataView(buffer).getUint32(4, true);
              const { columns } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
              return Object.entries(types).map(([name, type]) =>
                [...new globalThis[type](buffer, 8 + length + columns[name].offset, columns[name].length)]);
            }""",
            [path, types],
        )
        return found

    def find(self, text: str) -> str:
        self.id("search").fill(text)
        self.tab.keyboard.press("Enter")
        count = self.id("search-count")
        self.tab.wait_for_function("(e) => / of |no matches/.test(e.textContent)", arg=count.element_handle())
        return str(count.text_content())

    def ink(self) -> int:
        """How many different colors the picture has: one where nothing is drawn."""
        colors: int = self.tab.evaluate(
            """() => {
              const canvas = document.querySelector('.tl-pixels');
              const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
              return new Set(new Uint32Array(data.buffer)).size;
            }"""
        )
        return colors

    def check(self, *, axe: bool = False) -> None:
        """Nothing on the console, no request that leaves the machine, nothing clipped; with axe, no fault it knows."""
        assert not self.said, self.said
        assert not self.left, self.left
        state = self.tab.evaluate(CLIPPED)
        assert state["sideways"] <= 0, "the page scrolls sideways"
        assert not state["clipped"], state["clipped"]
        assert not state["unread"], state["unread"]
        if axe and AXE.exists():
            # Its text runs as the test's, not the page's: the page's policy allows no script but its own.
            self.tab.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
            report = self.tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
            faults = [
                f"{found['id']} ({found['impact']}): {[node['target'] for node in found['nodes'][:3]]}"
                for found in report["violations"]
            ]
            assert not faults, faults

    def close(self) -> None:
        self.context.close()
