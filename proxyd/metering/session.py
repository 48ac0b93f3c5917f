"""A session in memory: its budget, its counters, and its bytes that are still on their way.

Theory of operation
-------------------
A session's bytes belong to the store. Some of them are leased to this process: `granted` bytes,
which no other process may hand out meanwhile. A byte of the lease is in one of four places:

    available       it may be taken;
    in hand         taken, read from one socket, not yet written to the other;
    used            the kernel has it: it is billed, unless it is refunded;
    given up        refunded to a session that is used up: not billed, and not handed out again.

    take            available -> in hand     before a socket is read
    deliver         in hand   -> used        the kernel accepted it
    give_back       in hand   -> available   it could not be written
    refund          used      -> available   it never left this machine (or given up, see `refund`)
    regrant         changes the number of granted bytes; the difference becomes available
    shrink          available -> another node's

Everything happens on the event loop and awaits nothing, so two connections never take one byte.

Bytes that the kernel accepted may still wait in a socket's queue, and would be lost with this
process. For each socket where that may be so, the session keeps an upper bound of the bytes
(`Sinks`): a delivery raises it, a query to the kernel lowers it. `used` less these bounds is
*certain*, and only the certain bytes are reported to the store: after a crash nothing is billed
that was not delivered.

These hold between any two calls from outside, and `check` asserts them:

    0 <= available
    used + available <= granted                       the rest is in hand, or given up
    0 <= reported <= certain <= used <= granted

`certain` never falls: a refund takes at most the bytes that were not certain. So a report never
goes back, and the settled number at the end is at least the number last reported.

`used == granted` ends the budget: `on_spent` is called at the delivery of its last byte. Without
other nodes that byte is the session's last one; among nodes the store knows whether there are more.

`check` runs where a session is admitted, reported and settled, and not at every byte: these are the
places where a wrong count would become money.

A relay calls `LiveSession` directly and not through `meter.py`, because it does so for each read
and each write.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, final

from msgspec.structs import replace

from market.accounts.levels import Limited
from market.bandwidth.leases import Grant, Usage
from market.base.states import SessionStatus
from market.exits.wants import Wants, parse
from proxyd.metering.exit_share import Divisible, ExitShare, ExitShares
from proxyd.metering.in_transit import Closing, InTransit, Sinks
from proxyd.metering.lease_slices import LeaseSlice
from proxyd.metering.pace import Pace


class MeteredConnection(Protocol):
    """A connection that spends a session's bytes."""

    __slots__ = ()

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""

    def abort(self) -> None:
        """Cut it immediately, after giving back the bytes that were not delivered."""


@final
class LiveSession(Divisible):
    """A session in memory; see the theory above. Sizes in bytes.

    `connections` are those that spend it; added when admitted, removed at their end. `wants`
    selects the exits of a client that requests none itself; None for directly.

    Args:
        on_spent: called with the session at the delivery of the last byte granted.
        pace: the limit of its speed; None for no limit.
        changed: a set that contains the session after `used` has changed.
        lease_slice: this node's part of the session: it requests and keeps bytes; None where there
            are no other nodes.

    Raises:
        WantsError: it was sold with wishes that this version does not understand.
    """

    # More than 12 fields: the four counters are no part of their own, because `allowance`, `take`
    # and `deliver` run for each read of every relay.
    __slots__ = (
        "_changed",
        "_grant",
        "_on_spent",
        "_pace",
        "_shares",
        "_waiting",
        "available",
        "connections",
        "granted",
        "lease_slice",
        "reported",
        "sinks",
        "status",
        "used",
        "wants",
    )

    def __init__(
        self,
        grant: Grant,
        on_spent: Callable[["LiveSession"], None],
        *,
        pace: Pace | None = None,
        changed: set["LiveSession"] | None = None,
        lease_slice: LeaseSlice | None = None,
    ) -> None:
        self.status = grant.status
        self.granted = grant.granted_bytes
        self.available = grant.granted_bytes
        self.used = 0
        self.reported = 0
        self.connections: set[MeteredConnection] = set()
        self.sinks = Sinks()
        self.wants: Wants | None = parse(grant.exit) if grant.exit else None
        self.lease_slice = lease_slice
        self._grant = grant
        self._pace = pace
        self._shares: ExitShares | None = None  # until it leaves through an exit
        self._waiting: set[Callable[[], None]] = set()
        self._on_spent = on_spent
        self._changed: set[LiveSession] = changed if changed is not None else set()

    @property
    def id(self) -> str:
        """Its identifier."""
        return self._grant.session_id

    @property
    def user_id(self) -> str:
        """Identifier of its buyer."""
        return self._grant.user_id

    @property
    def limited(self) -> Limited | None:
        """The limits of a new account; None for a known one."""
        return self._grant.limited

    def limit(self, limited: Limited | None) -> None:
        """Apply other limits to new connections."""
        self._grant = replace(self._grant, limited=limited)

    @property
    def price_per_gb(self) -> int:
        """Its price, in micro-USD."""
        return self._grant.price_per_gb

    @property
    def username(self) -> str:
        """The user name of its credentials."""
        return self._grant.username

    @property
    def password_hash(self) -> str:
        """Hash for the comparison with a client's password."""
        return self._grant.password_hash

    @property
    def expires_at(self) -> int:
        """End of its validity, in UTC seconds."""
        return self._grant.expires_at

    @property
    def lease_id(self) -> str | None:
        """The lease of its bytes; None when it was over before."""
        return self._grant.lease_id

    @property
    def is_leased(self) -> bool:
        """Whether its counts must be reported: it is active, and bytes of it were leased."""
        return self.lease_id is not None and self.status is SessionStatus.ACTIVE

    # --- its bytes -----------------------------------------------------------------------------

    def allowance(self, taker: object) -> int:
        """Return the number of bytes that one connection may take now."""
        if self.lease_slice is not None and not self.lease_slice.may_hand_out(self.available):
            return 0
        if self._pace is None:
            return self.available
        return min(self.available, self._pace.allowance(taker))

    def affords(self, size: int, taker: object) -> bool:
        """Return whether the budget allows bytes that are only sent together: a datagram.

        The budget must have them all. The pace need not, or a datagram larger than its burst would
        never go: a taker that may have a part may have the rest in advance, and waits longer then.
        One without a payload costs nothing, and goes only where a byte would.
        """
        return self.allowance(taker) > 0 and size <= self.available

    def take(self, size: int, taker: object) -> None:
        """Take bytes out of the budget; at most the `allowance`, or the bytes that it `affords`."""
        self.available -= size
        if self._pace is not None:
            self._pace.spend(taker, size)

    def give_back(self, size: int) -> None:
        """Return bytes that were taken and not delivered; waiting connections may continue."""
        if size == 0:
            return
        self.available += size
        self.wake()

    def deliver(self, size: int, sink: InTransit | None = None) -> None:
        """Count bytes that were delivered; the last one granted calls `on_spent`.

        Args:
            size: the number of bytes.
            sink: where some of them may still wait to leave this machine; None if none do.
        """
        if sink is not None:
            self.sinks.add(sink, size)
        self._changed.add(self)
        self.used += size
        if self.used == self.granted:
            self._on_spent(self)

    def refund(self, size: int) -> None:
        """Count bytes as not delivered after all; nothing once the session has left `active`.

        Refunded bytes of an exhausted session are not billed, and not handed out again: it is over.
        """
        self._changed.add(self)
        if not self.takes_refunds:
            return
        self.used -= size
        if self.status is SessionStatus.ACTIVE:
            self.give_back(size)

    @property
    def takes_refunds(self) -> bool:
        """See `Divisible.takes_refunds`: the end of a session settles the bytes used by then."""
        return self.status is SessionStatus.ACTIVE or self.status is SessionStatus.EXHAUSTED

    def regrant(self, granted: int) -> None:
        """Set the number of bytes granted in all, which never falls."""
        assert granted >= self.granted  # noqa: S101 - what is returned is taken out here first
        more = granted - self.granted
        self.granted = granted
        self.give_back(more)

    def shrink(self, available: int) -> None:
        """Keep at most `available` bytes, and release the others to other nodes."""
        excess = max(0, self.available - available)
        self.available -= excess
        self.granted -= excess

    # --- connections that wait for bytes -------------------------------------------------------

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the budget has bytes again, or the pace allows some again."""
        if self.lease_slice is not None and self.available <= 0:
            self.lease_slice.ask()
        if self._pace is not None and self.available > 0:
            self._pace.wait(resume)
        else:
            self._waiting.add(resume)

    def stop_waiting(self, resume: Callable[[], None]) -> None:
        """Cancel the call of `resume`."""
        self._waiting.discard(resume)
        if self._pace is not None:
            self._pace.stop_waiting(resume)

    def wake(self) -> None:
        """Wake every connection that waits for bytes."""
        waiting, self._waiting = self._waiting, set()
        for resume in waiting:
            resume()

    @property
    def is_waited_for(self) -> bool:
        """Whether connections wait for bytes, or the last ones granted are still to be reported."""
        return bool(self._waiting) or (self.is_spent and self.used != self.reported)

    # --- delivered bytes -----------------------------------------------------------------------

    @property
    def is_spent(self) -> bool:
        """Whether every byte that was granted is used."""
        return self.used == self.granted

    def mark_changed(self) -> None:
        """Mark the session for the writer's next report."""
        self._changed.add(self)

    @property
    def closings(self) -> set[Closing]:
        """See `Payer.closings`."""
        return self.sinks.closings

    def may_wait(self, sink: InTransit, size: int) -> None:
        """See `Payer.may_wait`."""
        self.sinks.add(sink, size)

    def forget(self, sink: InTransit) -> None:
        """See `Payer.forget`: its bytes are refunded, or another sink counts them."""
        self.sinks.forget(sink)

    @property
    def is_used_up(self) -> bool:
        """See `Payer.is_used_up`."""
        return self.status is SessionStatus.EXHAUSTED

    # --- bytes through exits ---------------------------------------------------------------------

    def share_of(self, device_id: str) -> ExitShare:
        """Return the share that counts the bytes through an exit; it is made at the first call."""
        if self._shares is None:
            self._shares = ExitShares(self)
        return self._shares.of(device_id)

    @property
    def shares(self) -> Iterable[ExitShare]:
        """The shares of all exits that it has left through."""
        return self._shares if self._shares is not None else ()

    # --- reports ---------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage | None:
        """The usage of the lease to report when its connections are closed."""
        if self.lease_id is None:
            return None
        exits = self._shares.used() if self._shares is not None else ()
        return Usage(self.id, self.lease_id, self.used, exits)

    def certain_usage(self) -> Usage:
        """Return the usage of the lease to report while it is used."""
        certain = self.certain()
        exits = self._shares.certain() if self._shares is not None else ()
        assert sum(size for _, size in exits) <= certain  # noqa: S101 - as in `certain`
        return Usage(self.id, self.lease_id or "", certain, exits)

    def mark_reported(self, usage: Usage) -> None:
        """Note that a usage is stored."""
        self.reported = usage.used_bytes
        if self._shares is not None:
            self._shares.mark_reported(usage.exits)

    def certain(self) -> int:
        """Return the number of bytes that stay used even if this process dies now."""
        certain = self.used - self.sinks.waiting()
        self.check()
        # A daemon that bills undelivered bytes must stop.
        assert self.reported <= certain <= self.used  # noqa: S101
        return certain

    def check(self) -> None:
        """Assert the invariants of the budget."""
        # A daemon that bills undelivered bytes must stop.
        assert self.available >= 0  # noqa: S101
        assert self.used + self.available <= self.granted  # noqa: S101
        assert 0 <= self.reported <= self.used  # noqa: S101
