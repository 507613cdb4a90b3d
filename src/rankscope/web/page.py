"""The page as it is served: the report's file, told that its data come from the server, and its policy as a header."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources

from rankscope.errors import RankscopeError
from rankscope.report.html_report import MARKER, TEMPLATE

_POLICY = re.compile(r'<meta\s+http-equiv="Content-Security-Policy"\s+content="([^"]*)"\s*/?>', re.IGNORECASE)
_SERVED = '{"served": 1}'
# What a policy must hold by itself: the page's own scripts by their hashes, and no address but ours.
_FORBIDDEN = re.compile(r"https?:|\*|'unsafe-eval'|ws:|wss:")


def served_page() -> tuple[bytes, str]:
    """The page's bytes, and the policy that goes with it.

    Raises:
        RankscopeError: the built page is missing, or is not as a build leaves it.
    """
    try:
        text = (resources.files("rankscope.web") / "static" / TEMPLATE).read_text(encoding="utf-8")
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise RankscopeError(
            "the built page is missing from this installation", hint="in a checkout, build it: make ui"
        ) from error
    return _made(text)


@lru_cache(maxsize=1)
def _made(text: str) -> tuple[bytes, str]:
    head, found, tail = text.partition(MARKER)
    policy = _POLICY.search(head + tail)
    if not found or policy is None:
        raise RankscopeError("the built page has no place for the data, or no policy", hint="rebuild it: make ui")
    page = _POLICY.sub("", head + _SERVED + tail, count=1)
    return page.encode(), served_policy(policy.group(1).replace("&#39;", "'").replace("&quot;", '"'))


def served_policy(written: str) -> str:
    """The report's policy for a page that may ask its own server, and that nobody frames.

    Raises:
        RankscopeError: it would let the page reach another address.
    """
    rules: dict[str, str] = {}
    for rule in written.split(";"):
        name, _, value = rule.strip().partition(" ")
        if name:
            rules[name.lower()] = value.strip()
    rules |= {"connect-src": "'self'", "frame-ancestors": "'none'", "form-action": "'none'", "base-uri": "'none'"}
    rules.setdefault("default-src", "'none'")
    if any(_FORBIDDEN.search(value) for value in rules.values()):
        raise RankscopeError("the built page's policy allows other addresses", hint="rebuild it: make ui")
    return "; ".join(f"{name} {value}" for name, value in rules.items())
