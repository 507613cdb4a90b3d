"""The page as it is served.

In: the built page. Out: its bytes, marked to fetch its data from the server, and its policy as a header.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rankscope.errors import RankscopeError
from rankscope.show.report.page import MARKER, page_template

_POLICY = re.compile(r'<meta\s+http-equiv="Content-Security-Policy"\s+content="([^"]*)"\s*/?>', re.IGNORECASE)
_FETCHED = '{"served": 1}'
# No other address may appear in the policy: the page's scripts are allowed by their hashes.
_FORBIDDEN = re.compile(r"https?:|\*|'unsafe-eval'|ws:|wss:")


def served_page() -> tuple[bytes, str]:
    """The page's bytes, and its content security policy.

    Raises:
        RankscopeError: the built page is missing or is not a complete build.
    """
    return _served(page_template())


@lru_cache(maxsize=1)
def _served(text: str) -> tuple[bytes, str]:
    policy = _POLICY.search(text)
    if policy is None:
        raise RankscopeError("the built page has no content security policy", hint="rebuild it: make ui")
    page = _POLICY.sub("", text.replace(MARKER, _FETCHED, 1), count=1)
    return page.encode(), served_policy(policy.group(1).replace("&#39;", "'").replace("&quot;", '"'))


def served_policy(written: str) -> str:
    """The report's policy, extended for a page that may contact its own server and may not be framed.

    Raises:
        RankscopeError: it would let the page contact another address.
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
