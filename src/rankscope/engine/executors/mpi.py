"""Runs tasks on the other processes of an MPI job: ``mpiexec -n 8 rankscope summary RUN --executor mpi``.

In: the processes of the job. Out: an executor in process 0; the others serve it and then end.

All processes start the same command. Process 0 continues with it, and the others run its tasks until it ends. Traces
and the cache (``RANKSCOPE_CACHE``) must be in places that every process can reach under the same path. If a process
dies, MPI ends the job.
"""

from __future__ import annotations

import atexit
import sys
from concurrent.futures import Executor
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rankscope.engine.executors.remote import RemoteExecutor
from rankscope.errors import ConfigError

_executor: RemoteExecutor | None = None


def join() -> None:
    """Divide the job's processes, once: all but process 0 run its tasks from here on, and end when it does.

    Raises:
        ConfigError: the package is not installed, or there is no other process.
    """
    global _executor
    if _executor is not None:
        return
    if find_spec("mpi4py") is None:
        raise ConfigError("--executor mpi needs the package mpi4py", hint="pip install 'rankscope[mpi]'")
    try:
        mpi: Any = import_module("mpi4py.MPI")
        futures: Any = import_module("mpi4py.futures")
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"mpi4py cannot load an MPI library: {error}",
            hint="its MPI must be mpiexec's: set MPI4PY_MPIABI=openmpi or MPI4PY_MPIABI=mpich",
        ) from error
    if mpi.COMM_WORLD.Get_size() < 2:
        raise ConfigError("--executor mpi needs two processes or more", hint="mpiexec -n 8 rankscope … --executor mpi")
    processes = futures.MPICommExecutor(mpi.COMM_WORLD, root=0)
    pool = processes.__enter__()  # in all but process 0 this returns when process 0 has ended
    if pool is None:
        sys.exit(0)
    _executor = RemoteExecutor(pool, lambda: int(mpi.COMM_WORLD.Get_size()) - 1)
    atexit.register(processes.__exit__, None, None, None)


def make(workers: int | None) -> Executor:
    """The executor of the other processes.

    Raises:
        ConfigError: as in `join`.
    """
    join()
    assert _executor is not None
    return _executor
