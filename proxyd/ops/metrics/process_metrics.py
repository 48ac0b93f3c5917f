"""The process' own metrics, under the names that Prometheus' client libraries use.

prometheus-client's collector lists the descriptors at each scrape: with 10,000 of them that blocks
the event loop for milliseconds. Linux 6.2 and later report their number as the size of the folder
(proc_pid_fd(5)); on older kernels a thread counts them from time to time.
"""

import asyncio
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.loop import clock

COUNT_PAUSE_SECONDS = 15.0  # a usual interval of scrapes

_DESCRIPTORS = Path("/proc/self/fd")
_PAGES = Path("/proc/self/statm")
_STAT = Path("/proc/self/stat")
# starttime, counted behind the program's name, which ends with the last bracket (proc_pid_stat(5)).
_STARTED_FIELD = 19


class ProcessMetrics(Collector):
    """Descriptors, memory and processor time of this process."""

    def __init__(self) -> None:
        self._page_bytes = resource.getpagesize()
        self._started_at = _started_at()
        self._counted = 0

    def describe(self) -> list[Metric]:
        """Empty: the metric set is only known at collection time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the kernel's counters."""
        total, resident = map(int, _PAGES.read_bytes().split()[:2])
        used = resource.getrusage(resource.RUSAGE_SELF)
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        for name, description, value in (
            ("virtual_memory_bytes", "Virtual memory", total * self._page_bytes),
            ("resident_memory_bytes", "Resident memory", resident * self._page_bytes),
            ("start_time_seconds", "When the process was started, UTC", self._started_at),
            ("open_fds", "Open descriptors", self.descriptors()),
            ("max_fds", "How many descriptors may be open", most),
        ):
            yield GaugeMetricFamily(f"process_{name}", description, value)
        yield CounterMetricFamily(
            "process_cpu_seconds", "Processor time", used.ru_utime + used.ru_stime
        )

    def descriptors(self) -> int:
        """Return the number of open descriptors: now, or at the last count."""
        return _descriptors_by_kernel() or self._counted

    async def watch_descriptors(self) -> NoReturn:
        """Count the descriptors from time to time if the kernel does not, until cancelled."""
        while True:
            if not _descriptors_by_kernel():
                self._counted = len(await asyncio.to_thread(os.listdir, _DESCRIPTORS))
            await asyncio.sleep(COUNT_PAUSE_SECONDS)


def _descriptors_by_kernel() -> int:
    """Return the kernel's number of descriptors; 0 when it has none (before Linux 6.2)."""
    return _DESCRIPTORS.stat().st_size


def _started_at() -> float:
    """Return the start time of this process, in UTC seconds."""
    ticks = float(_STAT.read_bytes().rpartition(b")")[2].split()[_STARTED_FIELD])
    return clock.seconds() - (clock.boottime() - ticks / os.sysconf("SC_CLK_TCK"))
