"""Open streams into jobs: their number, their bounds and their bytes."""

import asyncio
import logging
import socket
from collections import Counter
from typing import Final, Protocol, final

from proxyd.exits.attached.secure import Seal
from proxyd.exits.dialling.orders import REFUSED, Order

BUYERS_SHARE: Final = 4  # of all streams, one buyer's are a quarter at most
IDLE_SECONDS = 3600.0  # without a byte either way; a notebook whose reader is at lunch is not over

_logger = logging.getLogger("tunnels")


@final
class _Stream:
    """Open stream: its device, its buyer, and the time of the last change of its byte count."""

    __slots__ = ("buyer_id", "device_id", "moved", "moved_at")

    def __init__(self, device_id: str, buyer_id: str, now: float) -> None:
        self.device_id = device_id
        self.buyer_id = buyer_id
        self.moved = 0
        self.moved_at = now


@final
class Streams:
    """The streams that are open, and the orders of streams that have no answer yet.

    `waiting` counts those orders.
    """

    __slots__ = ("_open", "_per_buyer", "_per_device", "_received", "_sent", "waiting")

    def __init__(self) -> None:
        self._open: dict[Seal, _Stream] = {}
        self._per_device: Counter[str] = Counter()  # open streams
        self._per_buyer: Counter[str] = Counter()  # open streams, and orders without an answer
        self._received = self._sent = 0  # bytes of streams that are over
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that have come from jobs, and bytes that have gone to them, since the start."""
        received = sum(each.received for each in self._open)
        sent = sum(each.sent for each in self._open)
        return self._received + received, self._sent + sent

    def devices(self) -> set[str]:
        """Return the devices that have open streams."""
        return set(self._per_device)

    def of_device(self, device_id: str) -> int:
        """Return the number of open streams of a device."""
        return self._per_device[device_id]

    def enter(self, buyer_id: str, most: int) -> bool:
        """Count an order of a buyer; return False for one beyond the buyer's share.

        Call `leave` in either case, when the order has a stream or has failed.

        Args:
            buyer_id: the account of the buyer.
            most: the bound on the streams of all buyers.
        """
        self._per_buyer[buyer_id] += 1
        return self._per_buyer[buyer_id] <= max(1, most // BUYERS_SHARE)

    def leave(self, buyer_id: str) -> None:
        """Stop counting an order of a buyer."""
        count_down(self._per_buyer, buyer_id)

    def add(self, seal: Seal, device_id: str, buyer_id: str, now: float) -> None:
        """Count a stream that begins; `now` is the loop's time."""
        self._open[seal] = _Stream(device_id, buyer_id, now)
        self._per_device[device_id] += 1
        self._per_buyer[buyer_id] += 1

    def remove(self, seal: Seal) -> None:
        """Stop counting a stream, which is over. A second call does nothing."""
        stream = self._open.pop(seal, None)
        if stream is not None:
            count_down(self._per_device, stream.device_id)
            count_down(self._per_buyer, stream.buyer_id)
            self._received += seal.received
            self._sent += seal.sent
            _logger.debug(
                "stream into %s: %d bytes in, %d out", stream.device_id, seal.received, seal.sent
            )

    def abort_all(self) -> None:
        """Cut every stream."""
        for seal in tuple(self._open):
            seal.abort()

    def abort_of(self, device_id: str) -> None:
        """Cut every stream of a device."""
        for seal, stream in tuple(self._open.items()):
            if stream.device_id == device_id:
                seal.abort()

    def sweep(self, now: float) -> None:
        """Cut streams that have moved no byte for long; `now` is the loop's time."""
        for seal, stream in tuple(self._open.items()):
            moved = seal.received + seal.sent
            if moved != stream.moved:
                stream.moved, stream.moved_at = moved, now
            elif now - stream.moved_at >= IDLE_SECONDS:
                seal.abort()


class _Over(Protocol):
    def __call__(self, seal: Seal, /) -> None: ...


async def join(
    order: Order,
    sock: socket.socket,
    seal: Seal,
    transport: asyncio.Transport,
    rest: bytes,
    over: _Over,
) -> None:
    """Join a work connection to the stream of an order.

    Args:
        order: its caller waits for the stream.
        sock: the stream.
        seal: joins the work connection to the other end of `sock`.
        transport: the work connection.
        rest: bytes that came behind its preface.
        over: called when the stream is over.
    """
    try:
        await seal.start()
    except OSError:
        sock.close()
        over(seal)
        order.fail(REFUSED)
    except BaseException:
        sock.close()
        seal.abort()
        over(seal)
        raise
    else:
        if rest:
            seal.data_received(rest)
        transport.resume_reading()
        order.give(sock)


def count_down(counts: Counter[str], key: str) -> None:
    """Subtract one from a count, and remove the count at zero."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
