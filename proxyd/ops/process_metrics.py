"""What the process itself costs, in the words of Prometheus' client libraries, cheaply.

The collector of prometheus-client lists the descriptors for each scrape: with 10,000 of them that
holds the event loop up for milliseconds. Linux 6.2 and later say their number (proc_pid_fd(5)); on
an older one a thread counts them now and then.
"""

import asyncio
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.loop import clock

COUNT_PAUSE_SECONDS = 15.0

_DESCRIPTORS = Path("/proc/self/fd")
_PAGES = Path("/proc/self/statm")
_STAT = Path("/proc/self/stat")
_STARTED_FIELD = 19  # behind the name of the program, which ends with the last bracket


class ProcessMetrics(Collector):
    """Descriptors, memory and processor time of this process."""

    def __init__(self) -> None:
        self._page_bytes = resource.getpagesize()
        self._started_at = _started_at()
        self._counted = 0

    def describe(self) -> list[Metric]:
        """Say nothing ahead: what there is, is known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Ask the kernel."""
        total, resident = map(int, _PAGES.read_bytes().split()[:2])
        used = resource.getrusage(resource.RUSAGE_SELF)
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        for name, words, value in (
            ("virtual_memory_bytes", "Virtual memory", total * self._page_bytes),
            ("resident_memory_bytes", "Resident memory", resident * self._page_bytes),
            ("start_time_seconds", "When the process was started, UTC", self._started_at),
            ("open_fds", "Open descriptors", self.descriptors()),
            ("max_fds", "How many descriptors may be open", most),
        ):
            yield GaugeMetricFamily(f"process_{name}", words, value)
        yield CounterMetricFamily(
            "process_cpu_seconds", "Processor time", used.ru_utime + used.ru_stime
        )

    def descriptors(self) -> int:
        """Return how many descriptors are open, as of now or as they were last counted."""
        return _known() or self._counted

    async def watch_descriptors(self) -> NoReturn:
        """Count the descriptors now and then where the kernel does not, until cancelled."""
        while True:
            if not _known():
                self._counted = len(await asyncio.to_thread(os.listdir, _DESCRIPTORS))
            await asyncio.sleep(COUNT_PAUSE_SECONDS)


def _known() -> int:
    """Return how many descriptors the kernel says are open; 0 when it does not say."""
    return _DESCRIPTORS.stat().st_size


def _started_at() -> float:
    """Return when this process was started, in UTC seconds."""
    ticks = float(_STAT.read_bytes().rpartition(b")")[2].split()[_STARTED_FIELD])
    return clock.seconds() - (clock.boottime() - ticks / os.sysconf("SC_CLK_TCK"))
