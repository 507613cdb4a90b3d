"""Run a query in a process of its own, which can be ended.

Neither engine can be interrupted in the middle of every operation, and a query may need more memory than there is.
Therefore it runs in another process, which is killed at its time limit, when nobody waits for it any more, or by the
kernel before any other process if memory runs out. That process ends when this one does.

In: a `Request`. Out: its rows, or an error.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from rankscope.query.engines import Request, Rows
from rankscope.query.statement import QueryError

_START = "import sys; sys.path[:] = sys.argv[1:]; from rankscope.query.process import serve_one; serve_one()"
_SIZE = struct.Struct("<Q")
_POLL_S = 0.05


def run_apart(request: Request, timeout_s: float | None, stopped: Callable[[], bool] = lambda: False) -> Rows:
    """Run a query in another process.

    Args:
        timeout_s: how long it may take; None for no limit.
        stopped: asked again and again; once it returns true, the query is ended.

    Raises:
        QueryError: it failed, took too long, or was ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _START, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process, which ends that one
    )
    answers: list[bytes] = []

    def exchange() -> None:
        if process.stdin is None or process.stdout is None:
            return
        with suppress(OSError, ValueError):  # it was ended
            _send(process.stdin, pickle.dumps(request))
            answers.append(process.stdout.read())

    thread = threading.Thread(target=exchange, name="rankscope-query", daemon=True)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
            if stopped():
                raise QueryError("the query was ended")
            if until is not None and time.monotonic() > until and thread.is_alive():
                raise QueryError(
                    f"the query took longer than {timeout_s:g} s and was ended",
                    hint="ask for fewer ranks or rows, or allow more time (--timeout on the command line)",
                )
    finally:
        process.kill()
        process.wait()
        thread.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
    if not answers or not answers[0]:
        raise QueryError(
            "the query's process ended without a result", hint="it probably needed more memory than there is"
        )
    answer = pickle.loads(answers[0])
    if isinstance(answer, BaseException):
        raise answer
    rows: Rows = answer
    return rows


def serve_one() -> None:
    """The other process: answer one request from standard input on standard output."""
    from rankscope.query.answer import answer

    _die_first()
    given, taken = sys.stdin.buffer, sys.stdout.buffer
    # What an engine prints must not become a part of the answer.
    sys.stdout = io.StringIO()
    request: Request = pickle.loads(_receive(given))
    threading.Thread(target=_end_with, args=(given,), daemon=True).start()
    taken.write(pickle.dumps(answer(request)))
    taken.flush()
    os._exit(0)  # threads of an engine may still be at work


def _end_with(given: IO[bytes]) -> None:
    """End this process when the one that asked has ended: then its pipe does."""
    with suppress(OSError):
        given.read(1)
    os._exit(1)


def _die_first() -> None:
    """If memory runs out, Linux ends this process and not the one that asked."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_SIZE.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    (size,) = _SIZE.unpack(pipe.read(_SIZE.size))
    return pipe.read(size)
