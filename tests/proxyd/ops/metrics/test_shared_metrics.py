"""Several processes' metrics are added up; no counter falls when one of them dies."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxyd.ops.metrics import shared_metrics
from proxyd.ops.metrics.shared_metrics import SharedMetrics
from proxyd.ops.processes.role import METRICS_MAX_BYTES, OVERVIEW_MAX_BYTES, Overview, Role
from proxyd.ops.processes.shared_record import SharedRecord


@pytest.fixture
def role() -> Iterator[Role]:
    """Process 0 of three."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        records = [SharedRecord(METRICS_MAX_BYTES) for _ in range(3)]
        yield Role(0, False, ours, 30.0, records, SharedRecord(OVERVIEW_MAX_BYTES))


class Counts:
    """Counts of one process."""

    def __init__(self, failures: dict[str, int], clients: int, started: float) -> None:
        self.failures, self.clients, self.started = failures, clients, started

    def __call__(self) -> Iterator[Metric]:
        failures = CounterMetricFamily("proxyd_failures", "Failures", labels=["reason"])
        for reason, number in self.failures.items():
            failures.add_metric([reason], number)
        yield failures
        yield GaugeMetricFamily("proxyd_clients", "Clients", self.clients)
        yield GaugeMetricFamily("process_start_time_seconds", "Started", self.started)


def process(
    role: Role, index: int, pid: int, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> SharedMetrics:
    """Return the metrics of a process that has shared them once."""
    made = SharedMetrics(replace(role, index=index), counts)
    with monkeypatch.context() as patched:
        patched.setattr(shared_metrics.os, "getpid", lambda: pid)
        made.share()
    return made


def values(metrics: SharedMetrics) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for metric in metrics.collect()
        for sample in metric.samples
    }


def test_counters_and_gauges_are_added_up_and_a_start_is_the_first(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process(role, 0, 10, Counts({"wrong": 1}, 2, 500.0), monkeypatch)
    process(role, 1, 11, Counts({"wrong": 3, "over": 5}, 7, 400.0), monkeypatch)
    role.overview.write(Overview([10, 11, 0], 4).encode())
    monkeypatch.setattr(shared_metrics.os, "getpid", lambda: 10)
    assert values(first) == {
        "proxyd_failures_totalwrong": 4,
        "proxyd_failures_totalover": 5,
        "proxyd_clients": 9,
        "process_start_time_seconds": 400.0,
        "proxyd_processes": 2,
        "proxyd_process_restarts_total": 4,
    }


def test_a_counter_of_all_processes_is_one_number(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process(role, 0, 10, Counts({"wrong": 1}, 2, 500.0), monkeypatch)
    process(role, 1, 11, Counts({"wrong": 3, "over": 5}, 7, 400.0), monkeypatch)
    role.overview.write(Overview([10, 11, 0], 4).encode())
    monkeypatch.setattr(shared_metrics.os, "getpid", lambda: 10)
    assert (first.total("proxyd_failures"), first.total("proxyd_unknown")) == (9, 0)


def test_counts_of_the_dead_stay_and_their_open_connections_do_not(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process(role, 0, 10, Counts({"wrong": 1}, 2, 500.0), monkeypatch)
    process(role, 1, 11, Counts({"wrong": 3}, 7, 400.0), monkeypatch)
    monkeypatch.setattr(shared_metrics.os, "getpid", lambda: 10)
    role.overview.write(Overview([10, 0, 0], 0).encode())
    dead = values(first)
    assert (dead["proxyd_failures_totalwrong"], dead["proxyd_clients"]) == (4, 2)
    assert dead["process_start_time_seconds"] == 500.0
    role.overview.write(Overview([10, 12, 0], 1).encode())
    process(role, 1, 12, Counts({"over": 1}, 1, 600.0), monkeypatch)
    successor = values(first)
    assert successor["proxyd_failures_totalwrong"] == 4
    assert successor["proxyd_failures_totalover"] == 1
    assert successor["proxyd_clients"] == 3


def test_metrics_that_are_too_large_are_logged_once(
    role: Role, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counts = Counts({"x" * METRICS_MAX_BYTES: 1}, 1, 1.0)
    metrics = process(role, 0, 10, counts, monkeypatch)
    metrics.share()
    assert caplog.text.count("metrics are not shared") == 1
