"""The watch on an exit: the time at which it counts as silent."""

import asyncio

from proxyd.exits.dialling.watch import SILENCE_SECONDS, Watch
from proxyd.loop.alarms import EARLY_SECONDS, Alarms


async def test_an_exit_has_no_time_left_once_an_alarm_would_ring_early() -> None:
    """The alarm of the last moment rang again and again, until the clock had passed that moment."""
    loop = asyncio.get_running_loop()
    watch = Watch(loop, Alarms(loop))  # its question was at the time 0
    assert watch.silence_left(0.0) == SILENCE_SECONDS
    assert watch.silence_left(SILENCE_SECONDS - 2 * EARLY_SECONDS) > EARLY_SECONDS
    assert watch.silence_left(SILENCE_SECONDS - EARLY_SECONDS / 2) == 0
    assert watch.silence_left(SILENCE_SECONDS + 1.0) == 0
