"""The numbers of a watched job for Prometheus: a file for the node exporter's textfile collector, or an endpoint.

Needs the extra ``prometheus``.

In: numbers. Out: the text format, in a file or at ``/metrics``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rankscope.errors import ConfigError
from rankscope.show.monitor.numbers import PREFIX, Number, by_metric


class PrometheusSink:
    """Serves the latest numbers.

    Args:
        textfile: written after each update, at once complete.
        port: of the endpoint; 0 for a free one. None for no endpoint.
        host: the address that the endpoint listens on.

    Raises:
        ConfigError: the package is not installed, or the port is taken.
    """

    def __init__(self, textfile: Path | None = None, port: int | None = None, host: str = "127.0.0.1") -> None:
        self._client = _client()
        self._textfile = textfile
        self._numbers: list[Number] = []
        self._registry: Any = self._client.CollectorRegistry()
        self._registry.register(self)
        self._server: Any = None
        self.address = ""
        """Of the endpoint."""
        if port is not None:
            try:
                self._server, self._thread = self._client.start_http_server(port, host, self._registry)
            except OSError as error:
                raise ConfigError(f"port {port} of {host}: {error.strerror or error}") from error
            self.address = f"http://{host}:{self._server.server_port}/metrics"

    def collect(self) -> Iterator[Any]:
        """What the package asks a collector for."""
        for metric, numbers in by_metric(self._numbers):
            family = self._client.core.GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            for each in numbers:
                family.add_metric([each.labels[name] for name in metric.labels], each.value)
            yield family

    def update(self, numbers: list[Number]) -> None:
        """Replace the numbers.

        Raises:
            OSError: the file cannot be written.
        """
        self._numbers = numbers
        if self._textfile is not None:
            # Next to it, so that it is replaced at once; the collector reads only *.prom.
            part = self._textfile.with_name(f".{self._textfile.name}.{os.getpid()}")
            try:
                part.write_bytes(self._client.generate_latest(self._registry))
                part.replace(self._textfile)
            finally:
                part.unlink(missing_ok=True)

    def close(self) -> None:
        """End the endpoint; the file remains."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def _client() -> ModuleType:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise ConfigError("prometheus_client is not installed", hint="pip install 'rankscope[prometheus]'") from error
    client: ModuleType = prometheus_client
    return client
