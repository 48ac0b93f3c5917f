"""Pulse of one exit: its last sign of life, and the time of a round trip to it."""

from collections.abc import Callable
from secrets import token_bytes
from typing import final

from proxyctl.protocol.frames import PING_BYTES, Frame, Ping


@final
class Pulse:
    """Sends pings to an exit, and measures their round trips.

    `heard_at` is when it last sent anything (loop time, seconds).

    Args:
        now: the loop's clock.
    """

    __slots__ = ("_now", "_ping", "_pinged_at", "_send", "heard_at")

    def __init__(self, send: Callable[[Frame], None], now: Callable[[], float]) -> None:
        self._send = send
        self._now = now
        self._ping: bytes | None = None
        self._pinged_at = 0.0
        self.heard_at = now()

    def hear(self, now: float) -> None:
        """Record the time at which the exit sent something (loop time, seconds)."""
        self.heard_at = now

    def ping(self) -> None:
        """Send it a ping, unless one is under way."""
        if self._ping is None:
            self._ping = token_bytes(PING_BYTES)
            self._pinged_at = self._now()
            self._send(Ping(self._ping))

    def ponged(self, payload: bytes) -> float | None:
        """Return the time of the round trip; None for an answer without a ping."""
        if payload != self._ping:
            return None
        self._ping = None
        return self.heard_at - self._pinged_at
