"""Runs tasks on a Dask cluster: ``dask:ADDRESS``, ``dask:SCHEDULER_FILE``, or ``dask`` for one on this machine.

In: an address or a scheduler file. Out: an executor.

The workers read the traces and write their tables themselves, so both the traces and the cache (``RANKSCOPE_CACHE``)
must be in places that every worker can reach under the same path. Only small frames are sent back. Dask moves the tasks
of a lost worker to others; a task that loses several workers is reported as failed.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from concurrent.futures import Executor
from importlib import import_module
from pathlib import Path
from typing import Any

from rankscope.engine.executors.remote import RemoteExecutor, version_differences, versions
from rankscope.errors import ConfigError

_CONNECT_LIMIT_S = 30
_WORKERS_LIMIT_S = 60


class DaskExecutor(RemoteExecutor):
    """Tasks on the workers of a cluster.

    Args:
        client: the connection.
        cluster: the cluster that was started for it; None if it was there before.
    """

    def __init__(self, client: Any, cluster: Any = None) -> None:
        # Equal arguments do not mean equal results: a file may have changed.
        super().__init__(client.get_executor(pure=False), lambda: sum(client.nthreads().values()))
        self._client, self._cluster = client, cluster

    def close(self) -> None:
        """End the connection, and the cluster if it was started for it."""
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


_connected: dict[str, DaskExecutor] = {}


def make(workers: int | None, address: str = "") -> Executor:
    """The executor of a cluster.

    Args:
        workers: how many workers a cluster on this machine has; None for one per core.
        address: ``tcp://host:port``, or the path of a scheduler file; empty to start a cluster on this machine.

    Raises:
        ConfigError: the package is not installed, the cluster cannot be reached, or its versions differ.
    """
    if address not in _connected:
        executor = _connected[address] = _connect(address, workers)
        atexit.register(executor.close)
    return _connected[address]


def _connect(address: str, workers: int | None) -> DaskExecutor:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise ConfigError(
            "--executor dask needs the package distributed", hint="pip install 'rankscope[dask]'"
        ) from error
    if not address:
        print("rankscope: starting a Dask cluster on this machine", file=sys.stderr)
        cluster = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        )
        return DaskExecutor(distributed.Client(cluster, set_as_default=False), cluster)
    where: dict[str, str] = {"address": address} if "://" in address else {"scheduler_file": address}
    if "scheduler_file" in where and not Path(address).is_file():
        raise ConfigError(
            f"there is no Dask scheduler file {address}",
            hint="start `dask scheduler --scheduler-file FILE` first, or give an address such as dask:tcp://HOST:8786",
        )
    try:
        client = distributed.Client(**where, timeout=_CONNECT_LIMIT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the Dask scheduler {address} cannot be reached: {error}", hint="check that it runs, and its address"
        ) from error
    try:
        client.wait_for_workers(1, timeout=_WORKERS_LIMIT_S)
        _check_versions(client.run(versions), address)
    except TimeoutError as error:
        client.close()
        raise ConfigError(
            f"the Dask scheduler {address} has no worker", hint="start `dask worker --nthreads 1` on the nodes"
        ) from error
    except OSError as error:
        client.close()
        raise ConfigError(
            f"the Dask scheduler {address} lost a worker at the start: {error}", hint="see the logs of its workers"
        ) from error
    except BaseException:
        client.close()
        raise
    return DaskExecutor(client)


def _check_versions(by_worker: Mapping[str, Mapping[str, str]], address: str) -> None:
    """Refuse workers with other versions, whose results could differ, or could not be read here.

    Raises:
        ConfigError: any worker's versions differ.
    """
    for worker, theirs in by_worker.items():
        if differences := version_differences(theirs):
            raise ConfigError(
                f"the Dask worker {worker} of {address} has other versions: {', '.join(differences)}",
                hint="start the workers in the same environment as this command",
            )
