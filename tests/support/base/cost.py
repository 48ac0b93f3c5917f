"""How much of the processor code takes, however busy the machine is."""

from collections.abc import Callable
from time import thread_time

RUNS = 5


def seconds_of(work: Callable[[], object]) -> float:
    """Return the least processor time of this thread in which some work was done."""
    times = []
    for _ in range(RUNS):
        begin = thread_time()
        work()
        times.append(thread_time() - begin)
    return min(times)
