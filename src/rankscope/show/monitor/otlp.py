"""The numbers of a watched job for OpenTelemetry: gauges, pushed by OTLP over HTTP.

Needs the extra ``otlp``. The names are those of Prometheus; the resource has the run's id.

In: numbers. Out: requests to a collector.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from rankscope.errors import ConfigError
from rankscope.show.monitor.numbers import METRICS, PREFIX, Number

_TIMEOUT_S = 10


class _Failures(logging.Filter):
    """Keeps the latest error that the SDK logs, instead of several lines for each push."""

    latest = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            self.latest = record.getMessage()
        return False


def check_otlp(endpoint: str) -> None:
    """Refuse what cannot be the address of a collector, before the job is waited for.

    Raises:
        ConfigError: it is no URL of HTTP.
    """
    hint = "give the collector's metrics URL, such as --otlp http://127.0.0.1:4318/v1/metrics"
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{endpoint!r} is not a URL: {error}", hint=hint) from error
    if parts.scheme not in ("http", "https") or not host or port == 0 or any(c.isspace() for c in endpoint):
        raise ConfigError(f"{endpoint!r} is not the http or https URL of an OTLP endpoint", hint=hint)


class OtlpSink:
    """Pushes numbers.

    Args:
        endpoint: of the collector, such as ``http://127.0.0.1:4318/v1/metrics``.
        run_id: names the job.

    Raises:
        ConfigError: that is no URL of HTTP, or the packages are not installed.
    """

    def __init__(self, endpoint: str, run_id: str) -> None:
        check_otlp(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.metrics import Observation
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise ConfigError("the OpenTelemetry SDK is not installed", hint="pip install 'rankscope[otlp]'") from error
        self._observation: Any = Observation
        self._numbers: list[Number] = []
        self._endpoint, self._failures = endpoint, _Failures()
        self._logger = logging.getLogger(OTLPMetricExporter.__module__)
        self._logger.addFilter(self._failures)
        exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
        # Its own interval is never reached: an update pushes.
        self._reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
        resource = Resource.create({"service.name": "rankscope", "rankscope.run_id": run_id})
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("rankscope")
        for metric in METRICS:
            unit = "s" if metric.name.endswith("_seconds") else "1"
            meter.create_observable_gauge(PREFIX + metric.name, [self._observe(metric.name)], unit, metric.help)

    def _observe(self, name: str) -> Callable[[object], Iterable[Any]]:
        return lambda _options: [
            self._observation(each.value, each.labels) for each in self._numbers if each.name == name
        ]

    def update(self, numbers: list[Number]) -> None:
        """Push the numbers.

        Raises:
            OSError: the collector does not take them.
        """
        self._numbers, self._failures.latest = numbers, ""
        self._reader.force_flush(_TIMEOUT_S * 1000)
        if self._failures.latest:
            raise OSError(f"{self._endpoint}: {self._failures.latest}")

    def close(self) -> None:
        """End."""
        self._numbers = []
        self._provider.shutdown()
        self._logger.removeFilter(self._failures)
