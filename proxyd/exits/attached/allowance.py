"""Allowance of a device: the bytes that it may still send on its control connection."""

from typing import Final, final

# A device may send a ping and a change of its state now and then. More than that is kept for a
# burst of them.
BYTES_PER_SECOND: Final = 2048
BURST_BYTES: Final = 64 * 1024


@final
class Allowance:
    """Bytes that a device may send; they grow with time, and with each frame that it must answer.

    `paid_at` is when the device sent something last (loop time, seconds).

    Args:
        now: the loop's time.
    """

    __slots__ = ("_bytes", "paid_at")

    def __init__(self, now: float) -> None:
        self._bytes = float(BURST_BYTES)
        self.paid_at = now

    def grant(self, size: int) -> None:
        """Allow more bytes: the device has to answer a frame."""
        self._bytes += size

    def pay(self, size: int, now: float) -> bool:
        """Subtract received bytes; return False for bytes beyond the allowance."""
        if self._bytes < BURST_BYTES:
            more = (now - self.paid_at) * BYTES_PER_SECOND
            self._bytes = min(self._bytes + more, BURST_BYTES)
        self.paid_at = now
        return self.charge(size)

    def charge(self, size: int) -> bool:
        """Subtract the cost of a frame; return False for one beyond the allowance."""
        self._bytes -= size
        return self._bytes >= 0
