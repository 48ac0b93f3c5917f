"""Loans of exits between nodes: borrowed exits of other nodes, and lent ones of this node."""

from typing import final

from proxyctl.protocol.frames import For, Lent
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.loaner import Loaner
from proxyd.exits.nodes.borrowing import Borrowing
from proxyd.exits.nodes.lending import Lending
from proxyd.exits.nodes.link import Link
from proxyd.exits.nodes.remote import RemoteExit
from proxyd.wire.links import Borrow, Borrowed, Carrying, Loan, Passed


@final
class Loans(Loaner):
    """Hands the frames of loans to the side that they concern."""

    __slots__ = ("_borrowing", "_lending")

    def __init__(self, borrowing: Borrowing, lending: Lending) -> None:
        self._borrowing = borrowing
        self._lending = lending

    def exit_of(self, entry: RemoteExit) -> Attached | None:
        """Borrow an exit of another node for a dial; return None when it cannot be borrowed."""
        return self._borrowing.exit_of(entry)

    # --- messages of other nodes ---------------------------------------------------------------

    def lending(self, link: Link, frame: Loan) -> None:
        """Act on another node's frame about a loan.

        Raises:
            FrameError: it does not speak the protocol.
        """
        if isinstance(frame, Passed):
            if self._borrowing.has(link, frame.number):
                self._borrowing.passed(link, frame)
            else:
                self._lending.passed(link, frame)
        elif isinstance(frame, Borrow):
            self._lending.borrow(link, frame)
        elif isinstance(frame, Borrowed):
            self._borrowing.borrowed(link, frame)
        elif isinstance(frame, Carrying):
            self._lending.carrying(link, frame)
        elif self._borrowing.has(link, frame.number):
            self._borrowing.returned(link, frame.number)
        else:
            self._lending.returned(link, frame.number)

    def changed(self, remote: RemoteExit) -> None:
        """Apply another node's changed announcement of an exit."""
        self._borrowing.changed(remote)

    def gone(self, remote: RemoteExit) -> None:
        """Handle the end of an exit, whose node sends the reason over its loan, if any."""

    def lost(self, link: Link) -> None:
        """Handle the loss of a link, which ends all loans over it."""
        self._borrowing.lost(link)
        self._lending.lost(link)

    # --- calls of the listener: see `Loaner` ---------------------------------------------------

    def counts(self) -> tuple[int, int]:
        """See `Loaner.counts`."""
        return len(self._borrowing), len(self._lending)

    def find(self, attachment: int) -> Attached | None:
        """See `Loaner.find`."""
        return self._borrowing.find(attachment)

    def agent_said(self, attached: Attached, frame: For | Lent) -> None:
        """See `Loaner.agent_said`."""
        self._lending.agent_said(attached, frame)

    def ended(self, attached: Attached, reason: str) -> None:
        """See `Loaner.ended`."""
        self._lending.ended(attached, reason)

    def change_heartbeat(self, seconds: float) -> None:
        """See `Loaner.change_heartbeat`."""
        self._borrowing.change_heartbeat(seconds)

    def close(self) -> None:
        """See `Loaner.close`."""
        self._borrowing.close()
        self._lending.close()
