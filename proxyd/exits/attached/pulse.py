"""Whether one exit is there, and how long a round trip to it takes."""

from collections.abc import Callable
from secrets import token_bytes
from typing import final

from proxyctl.protocol.frames import PING_BYTES, Frame, Ping


@final
class Pulse:
    """Asks an exit whether it is there.

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
        """Note that it has sent something (loop time, seconds)."""
        self.heard_at = now

    def ping(self) -> None:
        """Send it a ping, unless one is under way."""
        if self._ping is None:
            self._ping = token_bytes(PING_BYTES)
            self._pinged_at = self._now()
            self._send(Ping(self._ping))

    def ponged(self, payload: bytes) -> float | None:
        """Return how long an answer took; None for an answer to no question."""
        if payload != self._ping:
            return None
        self._ping = None
        return self.heard_at - self._pinged_at
