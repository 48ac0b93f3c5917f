"""Exits that are attached here, lent to other nodes whose buyers want to leave through them.

Theory of operation
-------------------
A borrower sends its frames for an exit's agent over its link (`Passed`). This node, the exit's
*home*, passes them on over the control connection (`For`), and the answers back. It only checks
that a borrower may send the frame: tickets, orders and pings.

An agent that cannot reach the borrower says so (`Lent` with a code): the loan ends, and the
borrower's dials go on with other exits. For a while that borrower gets the same answer without a
question to the agent.

Other nodes report the connections and bytes that they have through an exit (`Carrying`, with each
heartbeat). These count towards its limits: its connections at once, and the bytes of its day.
"""

import logging
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, final

from proxyctl.protocol.frames import (
    Associate,
    Dial,
    Dialled,
    ExitStatus,
    For,
    FrameError,
    Lend,
    Lent,
    Park,
    Ping,
    Pong,
    Tickets,
    decode_whole,
)
from proxyctl.protocol.frames import Return as ReturnToHome
from proxyd.exits.attached.attached import Attached
from proxyd.exits.nodes.link import Link
from proxyd.wire.links import Borrow, Borrowed, Carrying, Passed

FEATURE: Final = "lend"  # of an agent that can carry for other daemons than its own
UNREACHABLE: Final = "unreachable"  # why an exit is not lent to a node
UNREACHED_MAX: Final = 4096  # pairs of an exit and a node that it cannot reach
UNREACHED_SECONDS: Final = 60.0  # each is remembered; a lost packet alone is enough for a pair

_Key = TypeVar("_Key")
_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class LendingBounds:
    """Limits on loans.

    Attributes:
        per_exit: an agent takes no more, and a service has no more nodes.
        loans_max: the most loans of all exits; 1 KB each.
    """

    per_exit: int = 64
    loans_max: int = 32_768


USUAL: Final = LendingBounds()


class Lenders(Protocol):
    """The exits that are attached here, as loans need them."""

    def attached_here(self, device_id: str) -> Attached | None:
        """Return the exit of a device, if it is attached to this node."""


@final
class _Loan:
    """One exit that is lent to one node.

    Args:
        number: the agent's number of the loan.
    """

    __slots__ = (
        "attached",
        "connections",
        "frame",
        "link",
        "number",
        "size",
    )

    def __init__(self, link: Link, frame: Borrow, number: int, attached: Attached) -> None:
        self.link = link
        self.frame = frame
        self.number = number
        self.attached = attached
        self.connections = 0
        self.size = 0

    @property
    def borrower(self) -> tuple[int, str, int]:
        """The number of the exit's attachment, and the address for its work connections."""
        return self.attached.attachment, self.frame.host, self.frame.port

    def carrying(self, connections: int, size: int) -> None:
        """Note the connections and bytes of the borrower through the exit."""
        self.attached.load.carried_elsewhere(connections - self.connections, size - self.size)
        self.connections, self.size = connections, size


@final
class Lending:
    """The exits that are lent; see the theory above."""

    __slots__ = (
        "_bounds",
        "_by_device",
        "_by_link",
        "_by_number",
        "_lenders",
        "_next",
        "_unreached",
    )

    def __init__(self, lenders: Lenders, bounds: LendingBounds = USUAL) -> None:
        self._bounds = bounds
        self._lenders = lenders
        self._next = 1
        self._by_number: dict[int, _Loan] = {}
        self._by_link: dict[Link, dict[int, _Loan]] = {}
        self._by_device: dict[str, dict[int, _Loan]] = {}
        # Until when, in seconds of the loop's clock; the oldest first.
        self._unreached: dict[tuple[int, str, int], float] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def close(self) -> None:
        """End all loans."""
        for loan in tuple(self._by_number.values()):
            self._end(loan)

    # --- messages of borrowers -----------------------------------------------------------------

    def borrow(self, link: Link, frame: Borrow) -> None:
        """Lend an exit to a node, or refuse.

        Raises:
            FrameError: the number is taken.
        """
        if frame.number in self._by_link.get(link, ()):
            raise FrameError("a loan with a number that is taken")
        attached = self._lenders.attached_here(frame.device_id)
        code = ""
        if attached is None:
            code = "gone"
        elif not attached.is_open:
            code = "paused"
        elif FEATURE not in attached.features or self._is_unreached(attached, frame):
            code = UNREACHABLE
        elif (
            len(self._by_number) >= self._bounds.loans_max
            or len(self._by_device.get(frame.device_id, ())) >= self._bounds.per_exit
        ):
            code = "too_many"
        if attached is None or code:
            link.send(Borrowed(frame.number, code))
            return
        loan = _Loan(link, frame, self._next, attached)
        self._next += 1
        self._by_number[loan.number] = loan
        self._by_link.setdefault(link, {})[frame.number] = loan
        self._by_device.setdefault(frame.device_id, {})[loan.number] = loan
        attached.say(Lend(loan.number, frame.host, frame.port, frame.attachment))

    def passed(self, link: Link, frame: Passed) -> None:
        """Pass a frame of a borrower on to an agent.

        Raises:
            FrameError: that is nothing that a borrower may say.
        """
        loan = self._by_link.get(link, {}).get(frame.number)
        if loan is None:  # it has ended just now
            return
        said = decode_whole(frame.frame)
        if said is None:  # of a later version: the agent would also ignore it
            return
        if not isinstance(said, (Tickets, Park, Dial, Associate, Ping)):
            raise FrameError(f"a frame of the type {type(said).__name__}, which no borrower says")
        loan.attached.say(For(loan.number, frame.frame))

    def carrying(self, link: Link, frame: Carrying) -> None:
        """Note a borrower's report of the connections and bytes through an exit."""
        loan = self._by_link.get(link, {}).get(frame.number)
        if loan is not None:
            loan.carrying(frame.connections, frame.size)

    def returned(self, link: Link, number: int) -> None:
        """End a loan that the borrower has returned."""
        loan = self._by_link.get(link, {}).get(number)
        if loan is not None:
            self._end(loan)
            if not loan.attached.is_gone:
                loan.attached.say(ReturnToHome(loan.number))

    def lost(self, link: Link) -> None:
        """Handle the loss of a link."""
        for number in tuple(self._by_link.get(link, ())):
            self.returned(link, number)

    # --- messages of agents --------------------------------------------------------------------

    def agent_said(self, attached: Attached, frame: For | Lent) -> None:
        """Handle a frame of an agent about a loan.

        Raises:
            FrameError: that is nothing that an agent says.
        """
        loan = self._by_number.get(frame.number)
        if loan is None or loan.attached is not attached:  # it has ended just now
            return
        if isinstance(frame, Lent):
            if frame.code:
                node_id, code = loan.link.node_id, frame.code
                _logger.info(
                    "exit %s: does not reach node %s (%s)", attached.device_id, node_id, code
                )
                self._remember(loan)
                loan.link.send(Borrowed(loan.frame.number, UNREACHABLE))
                self._end(loan)
            return
        said = decode_whole(frame.frame)
        if not isinstance(said, (Dialled, Pong, ExitStatus)):
            raise FrameError("a frame for a borrower that no agent may send")
        loan.link.send(Passed(loan.frame.number, frame.frame))

    def ended(self, attached: Attached, reason: str) -> None:
        """Send borrowers the reason why an exit is gone, or must not carry anything."""
        for loan in tuple(self._by_device.get(attached.device_id, {}).values()):
            if loan.attached is attached:
                loan.link.send(Borrowed(loan.frame.number, reason))
                self._end(loan)
                if not attached.is_gone:
                    attached.say(ReturnToHome(loan.number))

    # --- inside --------------------------------------------------------------------------------

    def _remember(self, loan: _Loan) -> None:
        """Remember for a while that an exit does not reach a borrower."""
        self._unreached.pop(loan.borrower, None)
        while len(self._unreached) >= UNREACHED_MAX:
            del self._unreached[next(iter(self._unreached))]
        self._unreached[loan.borrower] = loan.attached.load.now() + UNREACHED_SECONDS

    def _is_unreached(self, attached: Attached, frame: Borrow) -> bool:
        """Return whether an exit failed to reach a borrower lately."""
        until = self._unreached.get((attached.attachment, frame.host, frame.port), 0.0)
        return attached.load.now() < until

    def _end(self, loan: _Loan) -> None:
        link, device_id = loan.link, loan.frame.device_id
        del self._by_number[loan.number]
        _remove(self._by_link, link, loan.frame.number)
        _remove(self._by_device, device_id, loan.number)
        loan.carrying(0, loan.size)


def _remove(table: dict[_Key, dict[int, _Loan]], key: _Key, number: int) -> None:
    """Take a loan out of a table of tables, which keeps no empty ones."""
    del table[key][number]
    if not table[key]:
        del table[key]
