"""Loans of exits between nodes, both ways: what this node borrows, and what it lends."""

from typing import final

from proxyctl.protocol.frames import For, Lent, Pong
from proxyd.exits.attached import Attached
from proxyd.exits.borrowing import Borrowing, Lendable, NodeLink
from proxyd.exits.control import Loaner
from proxyd.exits.lending import Lending
from proxyd.wire.links import Borrow, Borrowed, Carrying, Passed, Return


@final
class Loans(Loaner):
    """Hands what is said of loans to the side that it concerns.

    Args:
        borrowing: the exits of other nodes.
        lending: the exits of this one.
    """

    __slots__ = ("borrowing", "lending")

    def __init__(self, borrowing: Borrowing, lending: Lending) -> None:
        self.borrowing = borrowing
        self.lending = lending

    def exit_of(self, entry: Lendable) -> Attached | None:
        """Return what an exit of another node is dialled by; None when it cannot be borrowed."""
        return self.borrowing.exit_of(entry)

    # --- what other nodes say ------------------------------------------------------------------

    def receive(
        self, link: NodeLink, frame: Borrow | Borrowed | Passed | Return | Carrying
    ) -> None:
        """Act on what another node says of a loan.

        Raises:
            FrameError: it does not speak the protocol.
        """
        if isinstance(frame, Passed):
            if self.borrowing.has(link, frame.number):
                self.borrowing.passed(link, frame)
            else:
                self.lending.passed(link, frame)
        elif isinstance(frame, Borrow):
            self.lending.borrow(link, frame)
        elif isinstance(frame, Borrowed):
            self.borrowing.borrowed(link, frame)
        elif isinstance(frame, Carrying):
            self.lending.carrying(link, frame)
        elif self.borrowing.has(link, frame.number):
            self.borrowing.returned(link, frame.number)
        else:
            self.lending.returned(link, frame.number)

    def lost(self, link: NodeLink) -> None:
        """A link is gone, and with it all loans over it."""
        self.borrowing.lost(link)
        self.lending.lost(link)

    # --- what the listener says: see `Loaner` --------------------------------------------------

    def find(self, attachment: int) -> Attached | None:
        """See `Loaner.find`."""
        return self.borrowing.find(attachment)

    def agent_said(self, attached: Attached, frame: For | Lent) -> None:
        """See `Loaner.agent_said`."""
        self.lending.agent_said(attached, frame)

    def ponged(self, attached: Attached, frame: Pong) -> None:
        """See `Loaner.ponged`."""
        self.lending.ponged(attached, frame)

    def ended(self, attached: Attached, reason: str) -> None:
        """See `Loaner.ended`."""
        self.lending.ended(attached, reason)

    def change_heartbeat(self, seconds: float) -> None:
        """See `Loaner.change_heartbeat`."""
        self.borrowing.change_heartbeat(seconds)

    def close(self) -> None:
        """See `Loaner.close`."""
        self.borrowing.close()
        self.lending.close()
