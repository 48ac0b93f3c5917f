"""Bytes that were delivered to the kernel and may not have left this machine.

They are counted, and would be lost with this process or with a reset. The session that paid for
them gets them back then (`Payer`); until they have left they are not certain (`Sinks`).

The kernel reports the bytes that were not sent (`SIOCOUTQNSD`), and only these are given back.
Bytes that were sent and not acknowledged stay counted, because a client could withhold
acknowledgements.
"""

from itertools import islice
from typing import Final, Protocol, final

# Sinks of a session that have taken nothing since the last query are queried again in turn, this
# number at a time: a thousand clients that never read cost as little as a few do. That one of them
# takes more is noticed all the same, since more is written to it then.
STALLED_ASKED: Final = 32


class InTransit(Protocol):
    """A sink that may hold bytes which are counted and may still be lost."""

    __slots__ = ()

    def unsent(self) -> int:
        """Return the number of counted bytes that have not left this machine.

        It grows only by the bytes written to the sink.
        """


class Closing(InTransit, Protocol):
    """A sink that is being closed."""

    __slots__ = ()

    def abort(self) -> None:
        """Cut it without delay; bytes that have not left this machine are given back."""


class Payer(Protocol):
    """Payer of bytes on their way, which gets back the lost ones: a session."""

    __slots__ = ()

    @property
    def closings(self) -> set[Closing]:
        """The sinks with such bytes that are being closed; they add and remove themselves."""

    @property
    def is_used_up(self) -> bool:
        """Whether it is settled as soon as no byte is on its way."""

    def may_wait(self, sink: InTransit, size: int) -> None:
        """Note that at most `size` of the paid bytes may not have left through a sink."""

    def forget(self, sink: InTransit) -> None:
        """Forget a sink, which is queried no more."""

    def refund(self, size: int) -> None:
        """Take back bytes that were counted as delivered."""


@final
class Sinks:
    """The sinks that may hold delivered bytes of a session which have not left this machine.

    For each sink it keeps at most how many bytes those are: a delivery raises that, asking the
    kernel lowers it, and a sink with nothing left is dropped. So a count costs a query for each
    sink that has moved, and nothing for idle sinks.
    """

    __slots__ = ("_most", "_moved", "closings")

    def __init__(self) -> None:
        self.closings: set[Closing] = set()
        self._most: dict[InTransit, int] = {}
        self._moved: set[InTransit] = set()

    def __len__(self) -> int:
        return len(self._most)

    def add(self, sink: InTransit, size: int) -> None:
        """Note that `size` more bytes may wait in a sink."""
        self._most[sink] = self._most.get(sink, 0) + size
        self._moved.add(sink)

    def most(self, sink: InTransit) -> int:
        """Return the most bytes that can wait in a sink, by the last query to the kernel."""
        return self._most.get(sink, 0)

    def forget(self, sink: InTransit) -> None:
        """Drop a sink."""
        self._most.pop(sink, None)
        self._moved.discard(sink)

    def waiting(self) -> int:
        """Return an upper bound of the bytes that have not left this machine.

        The function queries the sinks that moved since the last call, and `STALLED_ASKED` of the
        others.
        """
        most = self._most
        moved, self._moved = self._moved, set()
        stalled = (each for each in most if each not in moved)
        for sink in (*islice(stalled, STALLED_ASKED), *moved):
            before = most.pop(sink)
            if waiting := min(before, sink.unsent()):
                most[sink] = waiting  # behind all others, whose turn comes first then
        return sum(most.values())
