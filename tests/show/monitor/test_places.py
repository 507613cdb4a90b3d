"""Where the numbers go: Prometheus, OpenTelemetry and standard output, each read by a reader that is not ours."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.answers.watch.jobs import SimulatedJob
from tests.environment import without_launcher
from typer.testing import CliRunner

from rankscope.cli import make_app
from rankscope.errors import ConfigError
from rankscope.show.monitor.job import WatchedJob
from rankscope.show.monitor.numbers import METRICS, PREFIX, numbers_of
from rankscope.show.monitor.otlp import OtlpSink
from rankscope.show.monitor.prometheus import PrometheusSink


@pytest.fixture
def run(tmp_path):
    """The logs of a job that has ended, by its manifests."""
    folder = tmp_path / "run"
    SimulatedJob(ranks=2).write(folder)
    (folder / "ranks").mkdir()
    for rank in range(2):
        manifest = {"run_id": "one", "rank": rank, "pid": rank + 1, "state": "finished"}
        (folder / "ranks" / f"rank{rank}.json").write_text(json.dumps(manifest))
    return folder


def expected(run):
    found = numbers_of(WatchedJob(run).read())
    assert len(found) > 15
    return {(PREFIX + each.name, tuple(sorted(each.labels.items()))): each.value for each in found}


def parsed(text):
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert [family.name for family in families] == [PREFIX + each.name for each in METRICS]
    assert [family.documentation for family in families] == [each.help for each in METRICS]
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def command(*arguments):
    return CliRunner().invoke(make_app(["monitor"]), ["monitor", *map(str, arguments)])


def test_the_textfile(run, tmp_path):
    pytest.importorskip("prometheus_client")
    done = command(run, "--prometheus-file", tmp_path / "rankscope.prom")
    assert done.exit_code == 0, done.output
    assert parsed((tmp_path / "rankscope.prom").read_text()) == expected(run)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["rankscope.prom"]


def test_the_endpoint_is_on_this_host_only(run):
    pytest.importorskip("prometheus_client")
    sink = PrometheusSink(port=0)
    try:
        assert sink.address.startswith("http://127.0.0.1:")
        sink.update(numbers_of(WatchedJob(run).read()))
        with urllib.request.urlopen(sink.address) as answer:
            assert parsed(answer.read().decode()) == expected(run)
        port = int(sink.address.rpartition(":")[2].partition("/")[0])
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1"):
            PrometheusSink(port=port)
    finally:
        sink.close()


@contextmanager
def collector(status=200):
    """An OTLP receiver over HTTP: the requests that arrive."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_otlp(run):
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collector() as (url, received):
        sink = OtlpSink(url, "one")
        try:
            sink.update(numbers_of(WatchedJob(run).read()))
        finally:
            count = len(received)
            sink.close()
    assert count == 1
    path, body = received[0]
    assert path == "/v1/metrics"
    (resource,) = service.ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert ("rankscope.run_id", "one") in {(each.key, each.value.string_value) for each in resource.resource.attributes}
    (scope,) = resource.scope_metrics
    found = {
        (metric.name, tuple(sorted((each.key, each.value.string_value) for each in point.attributes))): point.as_double
        for metric in scope.metrics
        for point in metric.gauge.data_points
    }
    assert found == expected(run)
    assert all(metric.unit == ("s" if metric.name.endswith("_seconds") else "1") for metric in scope.metrics)


def test_a_place_that_fails_is_named_once_and_costs_the_others_nothing(run, tmp_path, monkeypatch):
    pytest.importorskip("prometheus_client")
    done = command(run, "--prometheus-file", tmp_path / "no such folder" / "x.prom", "--interval", 0.2)
    assert done.exit_code == 0
    assert done.output.count("warning: PrometheusSink: FileNotFoundError") == 1


def test_a_collector_that_does_not_answer_is_an_error_and_the_sdk_is_silent(run, caplog):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with collector(status=404) as (url, _):
        sink = OtlpSink(url, "one")
        for _ in range(2):
            with pytest.raises(OSError, match=r"v1/metrics: .*404"):
                sink.update(numbers_of(WatchedJob(run).read()))
        sink.close()
    assert caplog.text == ""


@pytest.mark.parametrize(
    "url",
    ["nowhere", "localhost:4318", "grpc://host:4317", "http://", "http://host:99999", "http://a b/v1/metrics", ""],
)
def test_what_is_no_url_is_refused_at_the_start(tmp_path, url):
    with pytest.raises(ConfigError, match=r"--otlp http://127\.0\.0\.1:4318/v1/metrics"):
        CliRunner().invoke(
            make_app(["monitor"]), ["monitor", str(tmp_path / "none yet"), "--otlp", url], catch_exceptions=False
        )


@pytest.mark.parametrize("package", ["prometheus_client", "opentelemetry"])
def test_a_missing_package_is_named(run, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigError, match="pip install 'rankscope"):
        PrometheusSink() if package == "prometheus_client" else OtlpSink("http://127.0.0.1:1/v1/metrics", "one")


def test_without_a_place_it_prints_json_lines(run):
    done = command(run)
    assert done.exit_code == 0
    (line,) = done.stdout.splitlines()
    found = json.loads(line)["numbers"]
    assert {(PREFIX + e["name"], tuple(sorted(e["labels"].items()))): e["value"] for e in found} == expected(run)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_it_waits_for_the_log_and_looks_once_more_at_sigterm(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", "monitor", "run", "--interval", "600"],
        cwd=tmp_path,
        env=without_launcher(__import__("os").environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "waiting for the log" in process.stderr.readline()
        SimulatedJob(ranks=2).write(tmp_path / "run")
        assert json.loads(process.stdout.readline())["numbers"]
        with (tmp_path / "run" / "watch" / "rank0.jsonl").open("a") as file:
            file.write(f'{{"step":60,"start_ns":{time.time_ns()},"ns":1000}}\n')
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
        steps = [each["value"] for each in json.loads(output)["numbers"] if each["name"] == "job_step"]
        assert steps == [60]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
