"""The metrics of several processes as those of one daemon.

Each process writes its own into a record that all share, every `SHARE_SECONDS`; the process that
serves `/metrics` adds them up. A counter must not fall, so the successor of a process continues
from its last record, and the counts of dead processes stay in the sum. A gauge describes the
present: the gauges of dead processes are left out.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.ops.processes.role import Overview, Role
from proxyd.ops.processes.shared_record import TooLargeError

SHARE_SECONDS = 1.0  # how old a number may be; a process spends less than a thousandth on it

STARTED = "process_start_time_seconds"  # of all processes it is the first one's
INFO_SUFFIX = "_info"  # of metrics that are 1, and say something by their labels

_logger = logging.getLogger("metrics")

Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct):
    """A metric: its values by the name of the sample and its labels."""

    type: str
    description: str
    values: dict[tuple[str, Labels], float]

    @property
    def is_gauge(self) -> bool:
        """Whether the metric describes the present, and may fall."""
        return self.type == "gauge"


class _Family(msgspec.Struct, array_like=True):
    """A `Family` in a record, where the keys of a table are texts."""

    name: str
    type: str
    description: str
    samples: list[tuple[str, Labels, float]]


class _Record(msgspec.Struct, array_like=True):
    """Record of a process: its pid and its metrics."""

    pid: int
    families: list[_Family]


class SharedMetrics(Collector):
    """The sum of the metrics of this process and the others.

    Args:
        collect: returns the metrics of only this process.
    """

    def __init__(self, role: Role, collect: Callable[[], Iterable[Metric]]) -> None:
        self._role = role
        self._collect = collect
        self._is_failing = False
        # The counts of earlier processes of this number.
        self._earlier = {
            name: family
            for name, family in _families(_decoded(role.metrics[role.index].read())).items()
            if not family.is_gauge
        }

    def describe(self) -> list[Metric]:
        """Empty: the metric set is only known at collection time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Write this process's metrics, and return the sum of all."""
        self.share()
        overview = Overview.decode(self._role.overview.read())
        total: dict[str, Family] = {}
        for pid, shared in zip(overview.pids, self._role.metrics, strict=True):
            record = _decoded(shared.read())
            for name, family in _families(record).items():
                if record.pid == pid or not family.is_gauge:
                    _add(total, name, family)
        for name, family in total.items():
            metric = Metric(name, family.description, family.type)
            for (sample, labels), value in family.values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
        living = sum(pid > 0 for pid in overview.pids)
        yield GaugeMetricFamily("proxyd_processes", "Processes that run", living)
        yield CounterMetricFamily(
            "proxyd_process_restarts", "Processes started again", overview.restarts
        )

    def total(self, name: str) -> int:
        """Return a counter of all processes, over all its labels."""
        found = (each.samples for each in self.collect() if each.name == name)
        return int(sum(sample.value for samples in found for sample in samples))

    async def run(self) -> NoReturn:
        """Write this process's metrics periodically, until cancelled."""
        while True:
            self.share()
            await asyncio.sleep(SHARE_SECONDS)

    def share(self) -> None:
        """Write the metrics of this process, with the counts of its predecessors."""
        total: dict[str, Family] = {}
        for families in (self._earlier, {each.name: _family(each) for each in self._collect()}):
            for name, family in families.items():
                _add(total, name, family)
        families_of_record = [
            _Family(
                name,
                family.type,
                family.description,
                [(*sample, value) for sample, value in family.values.items()],
            )
            for name, family in total.items()
        ]
        try:
            self._role.metrics[self._role.index].write(
                msgspec.msgpack.encode(_Record(os.getpid(), families_of_record))
            )
        except TooLargeError as error:
            if not self._is_failing:
                _logger.error("metrics are not shared with the other processes: %s", error)
            self._is_failing = True


def _add(total: dict[str, Family], name: str, family: Family) -> None:
    """Add a family's values to those of the same name."""
    known = total.get(name)
    if known is None:
        total[name] = Family(family.type, family.description, dict(family.values))
        return
    for key, value in family.values.items():
        if key not in known.values:
            known.values[key] = value
        elif name == STARTED:
            known.values[key] = min(known.values[key], value)
        elif not name.endswith(INFO_SUFFIX):
            known.values[key] += value


def _family(metric: Metric) -> Family:
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for sample in metric.samples
    }
    return Family(metric.type, metric.documentation, values)


def _decoded(record: bytes) -> _Record:
    return msgspec.msgpack.decode(record, type=_Record) if record else _Record(0, [])


def _families(record: _Record) -> dict[str, Family]:
    return {
        family.name: Family(
            family.type,
            family.description,
            {(sample, labels): value for sample, labels, value in family.samples},
        )
        for family in record.families
    }
