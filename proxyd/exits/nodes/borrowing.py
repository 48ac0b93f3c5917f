"""Exits that are attached to other nodes, borrowed for the buyers of this one.

Theory of operation
-------------------
The first dial through an exit that another node (its *home*) has announced borrows it: `Borrow`
goes over the link, and an `Attached` is made here that has everything else one has, a pool, tickets
and dials. Its frames for the agent go through the home (`Passed`); work connections come here, to
this node's own exits' port, from the agent itself. So the bytes of buyers do not go over the link,
and the bytes that a buyer pays for are counted here, as for an exit of this node.

A loan ends (`_end`) when no dial has used it for a while, when the home ends it, and with the link.
Connections that go through the exit then end with it, unless only the way to its agent was lost:
then they go on, and the listener looks after them, as it does when the control connection of its
own exit is lost.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from secrets import randbits
from typing import Final, final

from market.base.networks import Address
from proxyctl.protocol.frames import Dialled, Pong, decode_whole, encode
from proxyctl.protocol.frames import Frame as AgentFrame
from proxyd.counters import ExitCounters
from proxyd.exits.attached.attached import ATTACHMENT_BITS, HARMLESS, SILENT_BEATS, Attached
from proxyd.exits.attached.pool import ParkedBudget, Pool
from proxyd.exits.nodes.link import Link
from proxyd.exits.nodes.remote import RemoteExit
from proxyd.loop.deadlines import Deadlines
from proxyd.loop.reactor import Reactor
from proxyd.wire.links import Borrow, Borrowed, Carrying, Passed, Return

EVICTED_AMONG: Final = 32  # of the oldest loans one that is idle makes room, if there is one

_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class BorrowingBounds:
    """Most borrowed exits, and the time after which an unused one is returned.

    Attributes:
        idle_seconds: without a connection through the exit: a loan costs heartbeats, and the next
            loan a round trip.
        loans_max: 10 KB each: more exits than one node's buyers use in five minutes.
    """

    idle_seconds: float = 300.0
    loans_max: int = 8192


USUAL: Final = BorrowingBounds()


@final
class _Loan:
    """One exit that is borrowed.

    Args:
        entry: the announcement of its home.
    """

    __slots__ = ("_attached", "_reported", "device_id", "entry", "link", "number")

    def __init__(self, entry: RemoteExit) -> None:
        self.entry = entry
        self.device_id = entry.device_id
        self.link = entry.link
        self.number = entry.link.loans.take()
        self._attached: Attached | None = None
        self._reported = (0, 0)

    @property
    def attached(self) -> Attached:
        """The exit as it is dialled here."""
        assert self._attached is not None  # noqa: S101 - set as soon as both are made
        return self._attached

    @attached.setter
    def attached(self, attached: Attached) -> None:
        self._attached = attached

    def send(self, frame: AgentFrame) -> None:
        """Send a frame to the exit's agent."""
        self.link.send(Passed(self.number, encode(frame)))

    def report(self) -> None:
        """Report the use of the exit by this node to its home, if it has changed."""
        attached = self.attached
        counts = len(attached.relays), attached.load.carried
        if counts != self._reported:
            self._reported = counts
            self.link.send(Carrying(self.number, *counts))

    def is_idle(self, seconds: float) -> bool:
        """Return whether no dial uses it now, and none has for some seconds."""
        attached = self.attached
        pool = attached.pool
        is_used = attached.relays or attached.dials or pool.waiting
        return not is_used and pool.demand.used_at + seconds <= attached.load.now()


@final
class Borrowing:
    """The exits that are borrowed; see the theory above.

    Args:
        door: returns where work connections come in: a host, and a port.
        detached: takes an exit that is gone while connections through it go on.
        heartbeat_seconds: seconds between two pings of each.
    """

    __slots__ = (
        "_beats",
        "_bounds",
        "_budget",
        "_by_attachment",
        "_by_device",
        "_by_link",
        "_counters",
        "_detached",
        "_door",
        "_reactor",
    )

    def __init__(
        self,
        reactor: Reactor,
        budget: ParkedBudget,
        counters: ExitCounters,
        door: Callable[[], tuple[str, int]],
        detached: Callable[[Attached], None],
        heartbeat_seconds: float,
        bounds: BorrowingBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._reactor = reactor
        self._budget = budget
        self._counters = counters
        self._door = door
        self._detached = detached
        self._beats: Deadlines[Attached] = Deadlines(reactor.loop, heartbeat_seconds)
        self._by_device: dict[str, _Loan] = {}  # the oldest first
        self._by_attachment: dict[int, _Loan] = {}
        self._by_link: dict[Link, dict[int, _Loan]] = {}

    def __len__(self) -> int:
        return len(self._by_device)

    def exit_of(self, entry: RemoteExit) -> Attached | None:
        """Borrow an exit of another node for a dial; return None when it cannot be borrowed."""
        loan = self._by_device.get(entry.device_id)
        if loan is not None:
            if loan.entry is entry:
                return loan.attached
            # The exit has another home by now, or its home announces another place.
            self._return(loan, "attached_again")
        if entry.link.is_over or not self._has_room():
            return None
        return self._borrow(entry)

    def find(self, attachment: int) -> Attached | None:
        """Return the exit whose work connections name an attachment."""
        loan = self._by_attachment.get(attachment)
        return None if loan is None else loan.attached

    def has(self, link: Link, number: int) -> bool:
        """Return whether a number belongs to a loan of this side."""
        return number in self._by_link.get(link, ())

    def change_heartbeat(self, seconds: float) -> None:
        """Ping each loan with this many seconds between two pings from now on."""
        self._beats.seconds = seconds

    def close(self) -> None:
        """Return all borrowed exits."""
        for loan in tuple(self._by_device.values()):
            self._return(loan, "stopping")
        self._beats.close()

    # --- messages of homes ---------------------------------------------------------------------

    def changed(self, entry: RemoteExit) -> None:
        """Apply a home's changed announcement of an exit."""
        loan = self._by_device.get(entry.device_id)
        if loan is not None and loan.entry is entry:
            loan.attached.change(entry.limits, entry.features, entry.min_price_per_gb)

    def borrowed(self, link: Link, frame: Borrowed) -> None:
        """Handle the refusal or the end of a loan by its home."""
        loan = self._by_link.get(link, {}).get(frame.number)
        if loan is not None:  # else it was given back just now
            self._end(loan, frame.code)

    def passed(self, link: Link, frame: Passed) -> None:
        """Handle a frame that the agent of an exit has sent.

        Raises:
            FrameError: that is no frame.
        """
        loan = self._by_link.get(link, {}).get(frame.number)
        if loan is None:
            return
        attached, said = loan.attached, decode_whole(frame.frame)
        attached.pulse.hear(attached.load.now())
        if isinstance(said, Dialled):
            attached.answered(said)
        elif isinstance(said, Pong):
            attached.ponged(said.payload)

    def returned(self, link: Link, number: int) -> None:
        """Handle the notice of a home that it has lost an exit."""
        loan = self._by_link.get(link, {}).get(number)
        if loan is not None:
            self._end(loan, "lost")

    def lost(self, link: Link) -> None:
        """Handle the loss of a link."""
        for loan in tuple(self._by_link.get(link, {}).values()):
            self._end(loan, "lost")

    # --- loans ---------------------------------------------------------------------------------

    def _borrow(self, entry: RemoteExit) -> Attached:
        reactor, loan = self._reactor, _Loan(entry)
        attachment = self._fresh()
        pool = Pool(reactor, loan.send, self._budget, self._counters)
        pool.demand.add_way(entry.rtt)
        attached = Attached(
            attachment,
            entry.device_id,
            entry.owner_id,
            entry.min_price_per_gb,
            entry.place,
            entry.network,
            _address(entry.address),
            entry.limits,
            pool,
            loan.send,
            self._beat,
            reactor.loop.time,
        )
        attached.change(entry.limits, entry.features, entry.min_price_per_gb)
        loan.attached = entry.borrowed = attached
        self._by_device[entry.device_id] = loan
        self._by_attachment[attachment] = loan
        self._by_link.setdefault(entry.link, {})[loan.number] = loan
        self._beats.add(attached)
        host, port = self._door()
        entry.link.send(Borrow(loan.number, entry.device_id, host, port, attachment))
        _logger.debug("exit %s: borrowed from node %s", entry.device_id, entry.link.node_id)
        return attached

    def _fresh(self) -> int:
        """Return a number that no loan has. No exit of this node has it: it is one of 2**64."""
        while True:
            number = randbits(ATTACHMENT_BITS)
            if number and number not in self._by_attachment:
                return number

    def _has_room(self) -> bool:
        """Return whether one more exit may be borrowed; an unused one is returned for it."""
        if len(self._by_device) < self._bounds.loans_max:
            return True
        for loan in tuple(islice(self._by_device.values(), EVICTED_AMONG)):
            if loan.is_idle(0.0):
                self._return(loan, "idle")
                return True
        return False

    def _beat(self, attached: Attached) -> None:
        """Return an unused or silent exit; else report its use, and send a ping."""
        loan = self._by_attachment.get(attached.attachment)
        if loan is None:
            return
        if loan.is_idle(self._bounds.idle_seconds):
            self._return(loan, "idle")
            return
        silence = attached.load.now() - attached.pulse.heard_at
        if silence >= SILENT_BEATS * self._beats.seconds:
            self._return(loan, "lost")
            return
        loan.report()
        attached.pool.tend()
        attached.pulse.ping()
        self._beats.add(attached)

    def _return(self, loan: _Loan, reason: str) -> None:
        """Return an exit that is not needed any more."""
        loan.report()
        loan.link.send(Return(loan.number))
        self._end(loan, reason)

    def _end(self, loan: _Loan, reason: str) -> None:
        """Forget a loan, and cut the connections through the exit, unless they may continue."""
        attached = loan.attached
        loan.entry.borrowed = None
        del self._by_device[loan.device_id]
        del self._by_attachment[attached.attachment]
        numbers = self._by_link[loan.link]
        del numbers[loan.number]
        if not numbers:
            del self._by_link[loan.link]
        self._beats.discard(attached)
        _logger.debug("exit %s: loan ended: %s", loan.device_id, reason)
        attached.close()
        if reason not in HARMLESS:
            attached.cut()
        elif attached.relays:
            self._detached(attached)


def _address(text: str) -> Address:
    return ip_address(text.partition("%")[0])
