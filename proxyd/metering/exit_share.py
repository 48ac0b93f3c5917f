"""Bytes of a session that one exit has carried under a lease.

Theory of operation
-------------------
The owner of an exit is paid for the bytes that left through it, by the same count as the buyer
pays: the daemon's. So a relay through an exit has two payers in one. Its bytes are taken from the
session's budget, and every one of them that is delivered or refunded is counted at the exit's share
of the session too, in the same call. Bytes that leave directly belong to no share. At any time

    sum of all shares' used + directly sent bytes = the session's used
    sum of all shares' certain                   <= the session's certain

The second holds because a share asks the kernel nothing: the session has (`Sinks`), just before,
and a share adds up the session's figures for its own sinks. A figure counts at one share at most,
because a sink belongs to one relay.

Its bytes go no faster than the owner of the exit allows, whichever sessions they are of: all shares
of an exit have its `pace`. A byte is spent of it when it is delivered, which is soon after it was
read, and nothing more is read of its stream in between.

As the session's, `certain` of a share never falls, and is reported as a count in all under the
lease: a report that is repeated, or lost, is harmless.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, final

from proxyd.metering.in_transit import Closing, InTransit, Payer, Sinks
from proxyd.metering.pace import UNLIMITED, Pace


class Divisible(Payer, Protocol):
    """The session that shares are parts of; its `sinks` are those of all shares."""

    __slots__ = ()

    sinks: Sinks

    @property
    def takes_refunds(self) -> bool:
        """Whether refunded bytes are also subtracted from its count."""

    def deliver(self, size: int, sink: InTransit | None = None) -> None:
        """Count bytes that were delivered."""


@final
class ExitShare(Payer):
    """The part of one session that one exit carries; see the theory above. Sizes in bytes.

    `used` is the delivered bytes less the refunded ones, `reported` the part of it that is in the
    store. `pace` is how fast the exit may go; None if this node knows no pace.

    Args:
        moved: a set that contains the share after `used` has changed.
    """

    __slots__ = ("_moved", "_session", "_sinks", "device_id", "pace", "reported", "used")

    def __init__(self, session: Divisible, device_id: str, moved: set["ExitShare"]) -> None:
        self.device_id = device_id
        self.used = 0
        self.reported = 0
        self.pace: Pace | None = None
        self._session = session
        self._moved = moved
        # None while nothing is on its way: most shares of a session that rotates are at rest, and
        # an empty set takes as much as all the rest of them.
        self._sinks: set[InTransit] | None = None

    def allowance(self, taker: InTransit) -> int:
        """Return the number of bytes that one connection may take from the exit now."""
        pace = self.pace
        return UNLIMITED if pace is None else pace.allowance(taker)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the exit lets its connections read again."""
        if self.pace is not None:
            self.pace.wait(resume)

    def stop_waiting(self, resume: Callable[[], None]) -> None:
        """Cancel the call of `resume`."""
        if self.pace is not None:
            self.pace.stop_waiting(resume)

    def deliver(self, size: int, sink: InTransit | None = None) -> None:
        """Count bytes that were delivered, here and at the session: see `LiveSession.deliver`."""
        if self.pace is not None:
            self.pace.spend(sink, size)
        if sink is not None:
            self._note(sink)
        self._moved.add(self)
        self.used += size
        self._session.deliver(size, sink)  # last: it may end every connection

    def refund(self, size: int) -> None:
        """Count bytes as not delivered after all, as far as the session does."""
        if self._session.takes_refunds:
            self._moved.add(self)
            self.used -= size
        self._session.refund(size)

    def may_wait(self, sink: InTransit, size: int) -> None:
        """See `Payer.may_wait`."""
        self._note(sink)
        self._session.may_wait(sink, size)

    def forget(self, sink: InTransit) -> None:
        """See `Payer.forget`."""
        if self._sinks is not None:
            self._sinks.discard(sink)
        self._session.forget(sink)

    @property
    def closings(self) -> set[Closing]:
        """The closing sinks of the session, which a cut or a settlement must find."""
        return self._session.closings

    @property
    def is_used_up(self) -> bool:
        """See `Payer.is_used_up`."""
        return self._session.is_used_up

    def certain(self) -> int:
        """Return the number of bytes that stay used even if this process ends now.

        It relies on the session's last query to the kernel: call its `certain` before.
        """
        certain = self.used - self._waiting()
        # A crash is better than payment for undelivered bytes.
        assert self.reported <= certain <= self.used  # noqa: S101
        return certain

    def _note(self, sink: InTransit) -> None:
        if self._sinks is None:
            self._sinks = set()
        self._sinks.add(sink)

    def _waiting(self) -> int:
        """Return an upper bound of the bytes in its sinks, and forget empty sinks."""
        if self._sinks is None:
            return 0
        figures = [(sink, self._session.sinks.most(sink)) for sink in self._sinks]
        self._sinks = {sink for sink, size in figures if size} or None
        return sum(size for _, size in figures)


@final
class ExitShares:
    """All shares of a session under its lease, and the set of those to report.

    There is one for each exit that the session has used, as long as the session is known: a count
    in all has to be remembered.
    """

    __slots__ = ("_by_device", "_moved", "_session")

    def __init__(self, session: Divisible) -> None:
        self._session = session
        self._by_device: dict[str, ExitShare] = {}
        self._moved: set[ExitShare] = set()

    def __iter__(self) -> Iterator[ExitShare]:
        return iter(tuple(self._by_device.values()))

    def of(self, device_id: str) -> ExitShare:
        """Return the share of an exit; create it if it does not exist."""
        share = self._by_device.get(device_id)
        if share is None:
            share = self._by_device[device_id] = ExitShare(self._session, device_id, self._moved)
        return share

    def certain(self) -> tuple[tuple[str, int], ...]:
        """Return the certain bytes of each share to report; see `ExitShare.certain`."""
        counts = [(each, each.certain()) for each in self._moved]
        for share, _ in counts:
            if share.used == share.reported:
                self._moved.discard(share)
        return _ordered((each.device_id, size) for each, size in counts if size != each.reported)

    def used(self) -> tuple[tuple[str, int], ...]:
        """Return the used bytes of each share to report when all is closed."""
        moved = [each for each in self._moved if each.used != each.reported]
        return _ordered((each.device_id, each.used) for each in moved)

    def mark_reported(self, exits: Iterable[tuple[str, int]]) -> None:
        """Note that counts of `certain` or `used` are written down."""
        for device_id, size in exits:
            share = self._by_device[device_id]
            share.reported = size
            if share.used == size:
                self._moved.discard(share)


def _ordered(counts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return counts in a fixed order, so that all transactions lock them in the same order."""
    return tuple(sorted(counts))
