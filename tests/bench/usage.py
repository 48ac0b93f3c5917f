"""The cost of a server: the CPU time and the memory of a process and its descendants."""

import time
from pathlib import Path

import psutil

TICKS_PER_SECOND = 100
_OF_PROCESS = 2  # linux/posix-timers: the clock of a whole process, its ended threads included


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of processes, to the nanosecond, and of their children that are over."""
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime(~pid << 3 | _OF_PROCESS)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[13]) + int(fields[14])) / TICKS_PER_SECOND
    return total


def memory_bytes(pids: list[int]) -> int:
    """Return the memory of processes: private pages, and a share of common ones (Pss)."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return total * 1024
