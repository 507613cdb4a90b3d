"""Access control of the server.

In: a request's token, cookie and headers. Out: permission, or the reason for a refusal.

The server shows one person's traces on a machine that others may share, so:

- it listens on 127.0.0.1 unless configured otherwise;
- its address has a token, which the first visit turns into a cookie that scripts cannot read (`HttpOnly`) and other
  sites cannot send (`SameSite=Strict`); the cookie's value is a different secret from the token. A token works once:
  found later in a history, a process list or a chat it is worthless. The terminal of the server prints the next one;
- `Host` must be a name of this machine: not one that an attacker's DNS points at 127.0.0.1 (DNS rebinding);
- `Origin`, and `Sec-Fetch-Site` if the browser sends them, must be the page's own;
- no request changes anything, and none contains a path or a URL. The only one with a body is a query, as JSON, which
  other sites cannot send without asking; it is one `SELECT` over the run's tables (`engine/query/`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from rankscope.show.web.responses import RefusedError

LOCAL_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


def _new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass
class Gate:
    """The server's secrets, and the names under which it may be addressed.

    Attributes:
        names: host names other than this machine's own that are allowed explicitly: a proxy's.
        here: the address that is listened on, if it is not a local one, or the name that stands for it.
        token: the token in the address to open; valid once.
        session: the cookie's value.
        renewed: called after a token was used, when there is the next.
    """

    names: frozenset[str] = frozenset()
    here: frozenset[str] = frozenset()
    token: str = field(default_factory=_new_token)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    renewed: Callable[[], None] = lambda: None
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, names: Iterable[str], here: Iterable[str] = ()) -> Gate:
        """A gate with new secrets."""
        return cls(frozenset(name.lower() for name in names), frozenset(name.lower() for name in here))

    @property
    def cookie(self) -> str:
        """The cookie's name: servers on one machine share their cookies whatever their port, so each has its own."""
        return f"rankscope-{hashlib.sha256(self.session.encode()).hexdigest()[:8]}"

    def set_cookie(self) -> str:
        """The header that sets it. Without a path it applies to the page's own path, including `/proxy/PORT/`."""
        return f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict"

    def redeem(self, given: str) -> bool:
        """Whether it is the token, which is then used up. The comparison takes constant time."""
        with self._turn:
            if not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
                return False
            self.token = _new_token()
        self.renewed()
        return True

    def refuse_address(self, headers: Headers) -> RefusedError | None:
        """Why this request is not accepted as the page's own; None if it is."""
        hosts = headers.getlist("host")
        host = _name_of(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_ours(host):
            return RefusedError(
                403,
                "this server does not accept that host name",
                "use 127.0.0.1 or localhost, or start it with --public-host NAME, or --allow-host NAME behind a proxy",
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_own_origin(origin, hosts[0]):
            return RefusedError(403, "the request comes from another site", "open the page at its own address")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return RefusedError(403, "the request comes from another site", "open the page at its own address")
        return None

    def knows(self, cookie_header: Iterable[str]) -> bool:
        """Whether the request has the cookie."""
        for line in cookie_header:
            for pair in line.split(";"):
                name, _, value = pair.strip().partition("=")
                if name == self.cookie and hmac.compare_digest(value.encode("utf-8", "replace"), self.session.encode()):
                    return True
        return False

    def _is_ours(self, name: str) -> bool:
        return name in LOCAL_NAMES or name in self.names or name in self.here

    def _is_own_origin(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.netloc:
            return False
        name = _name_of(parts.netloc)
        # Through a proxy the origin is the proxy's: only an explicitly allowed name. Otherwise the same origin:
        # another port of this machine is another server.
        return name is not None and (
            (name in self.names and name not in LOCAL_NAMES)
            or (parts.scheme == "http" and parts.netloc.lower() == host.lower())
        )


def is_host_name(text: str) -> bool:
    """Whether it is the name or the address of a host, without a port."""
    return _NAME.fullmatch(text) is not None


def _name_of(netloc: str) -> str | None:
    """The host in `host:port`, lower case, without an IPv6 address's brackets; None if it is not of this form."""
    found = re.fullmatch(rf"({_NAME.pattern})(:\d{{1,5}})?", netloc)
    return found.group(1).strip("[]").lower() if found else None
