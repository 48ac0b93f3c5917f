"""Lease slices: the part of a session that one node holds.

A node leases a slice of a session and asks for more before that is used up. `LeaseSlice` decides
when and how much: it asks at half of the last slice, doubles it while a slice lasts less than
`BRISK_SECONDS`, begins anew after `SLACK_SECONDS`, and asks more and more rarely where nothing is
left.
"""

from collections.abc import Callable
from typing import final

from market.bandwidth.lease_book import SLICE_FIRST_BYTES
from proxyd.metering.fence import Fence

# Greatest part that one node can keep from the others: half a second of 1 Gbit/s.
SLICE_MOST_BYTES = 64 * 1024 * 1024
# Less than this is not worth keeping half of, nor asking for early: a fast stream reads it in one
# call.
LOW_BYTES = 64 * 1024
# A slice that lasts less than two reports is too small; one that lasts ten is too large.
BRISK_SECONDS = 1.0
SLACK_SECONDS = 5.0
# Others return bytes within a few hundredths of a second; after that only their reports bring any,
# which come every half second.
RETRY_FIRST_SECONDS = 0.05
RETRY_MOST_SECONDS = 0.5


@final
class LeaseSlice:
    """Requests and reserve of a node's part of a session; the counters are the session's own.

    `retry_at` (loop time) is when it is worth asking for more again; `idle_since` (loop time) is
    when the session was first seen without connections, None while it has some.

    Args:
        granted: the number of bytes leased at first.
        on_low: called with this slice when it should request more.
    """

    __slots__ = (
        "_fence",
        "_low",
        "_on_low",
        "_pause",
        "_size",
        "_topped_at",
        "idle_since",
        "retry_at",
        "session_id",
    )

    def __init__(
        self,
        session_id: str,
        granted: int,
        fence: Fence,
        on_low: Callable[["LeaseSlice"], None],
    ) -> None:
        self.session_id = session_id
        self.retry_at = 0.0
        self.idle_since: float | None = None
        self._fence = fence
        self._on_low = on_low
        self._size = SLICE_FIRST_BYTES
        self._low = granted // 2
        self._topped_at = 0.0
        self._pause = RETRY_FIRST_SECONDS

    def may_hand_out(self, available: int) -> bool:
        """Return whether bytes may be handed out now; asks for more in time.

        Args:
            available: the number of bytes left.
        """
        if available < self._low:
            self._low = 0
            self._on_low(self)
        return not self._fence.is_up

    def ask(self) -> None:
        """Request more bytes: a connection waits for bytes, or the last granted byte was used."""
        self._on_low(self)

    def wanted(self, now: float) -> int:
        """Return the number of bytes to request: twice the last number if that was soon used up.

        Args:
            now: loop time.
        """
        if now - self._topped_at < BRISK_SECONDS:
            self._size = min(2 * self._size, SLICE_MOST_BYTES)
        elif now - self._topped_at > SLACK_SECONDS:
            self._size = SLICE_FIRST_BYTES
        return self._size

    @staticmethod
    def kept(available: int, *, is_used: bool) -> int:
        """Return the number of bytes to keep when other nodes want some.

        Args:
            available: the number of bytes left.
            is_used: whether the session has connections here; if not, nothing is kept.
        """
        return available // 2 if is_used and available > LOW_BYTES else 0

    def topped_up(self, more: int, now: float) -> None:
        """Note the reply to a request for bytes.

        Args:
            more: the number of bytes in the reply.
            now: loop time.
        """
        if more > 0:
            self._topped_at = now
            self._pause = RETRY_FIRST_SECONDS
            self._low = min(more, self._size) // 2
            self.retry_at = now
        else:
            self._low = LOW_BYTES
            self.retry_at = now + self._pause
            self._pause = min(2 * self._pause, RETRY_MOST_SECONDS)
