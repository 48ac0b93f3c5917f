"""Orders of streams into jobs: a device gets a ticket, and a caller waits for the stream."""

import asyncio
import socket
from hmac import compare_digest
from secrets import token_bytes
from typing import Final, final

from proxyctl.protocol.frames import TICKET_BYTES

AWAY: Final = "away"  # the device has no tunnel here
REFUSED: Final = "refused"  # the job does not listen on the port, or has not declared it
GONE: Final = "gone"  # the device does not run this attempt
TIMEOUT: Final = "timeout"  # the device did not answer in time
BUSY: Final = "busy"  # the bound on open streams is reached
PAUSED: Final = "paused"  # the bytes that the device's owner allows in a day are used up


class TunnelError(Exception):
    """There is no stream into a job.

    Args:
        reason: `AWAY`, `REFUSED`, `GONE`, `TIMEOUT`, `BUSY` or `PAUSED`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@final
class Order:
    """Order of one stream; its ticket lets one connection in, once.

    Args:
        answer: the caller waits for it.
        buyer_id: the account that pays for the job.
    """

    __slots__ = ("answer", "buyer_id", "is_taken", "ticket")

    def __init__(self, answer: asyncio.Future[socket.socket], buyer_id: str) -> None:
        self.answer = answer
        self.buyer_id = buyer_id
        self.ticket = token_bytes(TICKET_BYTES)
        self.is_taken = False

    def takes(self, ticket: bytes) -> bool:
        """Return whether a ticket is the right one, is new, and the caller still waits; take it."""
        if self.is_taken or self.answer.done() or not compare_digest(ticket, self.ticket):
            return False
        self.is_taken = True
        return True

    def give(self, sock: socket.socket) -> None:
        """Hand the stream to the caller, or close it if the caller does not wait any more."""
        if self.answer.done():
            sock.close()
        else:
            self.answer.set_result(sock)

    def fail(self, reason: str) -> None:
        """Raise `TunnelError` at the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_exception(TunnelError(reason))

    def give_up(self) -> None:
        """Close a stream that arrived just when the caller stopped waiting."""
        answer = self.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            answer.result().close()


@final
class Orders:
    """The orders of one device that have no stream yet, by number."""

    __slots__ = ("_by_number", "_last")

    def __init__(self) -> None:
        self._by_number: dict[int, Order] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, order: Order) -> int:
        """Keep an order; return its number."""
        self._last += 1
        self._by_number[self._last] = order
        return self._last

    def get(self, number: int) -> Order | None:
        """Return an order; None when its caller does not wait any more."""
        return self._by_number.get(number)

    def remove(self, number: int) -> None:
        """Forget an order: its caller has the stream, or does not wait any more."""
        self._by_number.pop(number, None)

    def fail(self, number: int, reason: str) -> None:
        """Fail an order that has no connection yet."""
        order = self._by_number.get(number)
        if order is not None and not order.is_taken:
            order.fail(reason)

    def fail_all(self, reason: str) -> None:
        """Fail every order that has no connection yet."""
        for number in tuple(self._by_number):
            self.fail(number, reason)
