"""Listening on a port, and serving there until Ctrl-C.

In: an address, and an ASGI application. Out: a socket, and responses until the user ends the program.
"""

from __future__ import annotations

import signal
import socket
import sys
from typing import Any

from starlette.types import ASGIApp

from rankscope.errors import ConfigError

# After Ctrl-C, how long pending responses may take.
GRACE_S = 2


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            # Allow a port that was just released. On Windows this would let other programs share it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="choose another --port, or 0 for any"
        ) from error
    return listener


def run_app(app: ASGIApp, listener: socket.socket, *, lifespan: bool = False) -> None:
    """Serve until Ctrl-C, also if it comes before the server handles the signal.

    Args:
        app: the application.
        listener: where it is reached.
        lifespan: whether it must be started and stopped.
    """
    servers: list[Any] = []
    interrupted: list[int] = []

    def stop(number: int, _frame: object) -> None:
        interrupted.append(number)
        for server in servers:
            server.should_exit = True

    previous_handler = signal.signal(signal.SIGINT, stop)
    try:
        import uvicorn

        config = uvicorn.Config(
            app,
            # Its warnings are about clients that request WebSockets or send no HTTP, which the user cannot change.
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on" if lifespan else "off",
            timeout_graceful_shutdown=GRACE_S,
        )
        servers.append(uvicorn.Server(config))
        if not interrupted:
            servers[0].run(sockets=[listener])
    finally:
        signal.signal(signal.SIGINT, previous_handler)
        listener.close()
