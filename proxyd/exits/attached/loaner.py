"""Lends exits to other nodes, and borrows theirs: the part that a single node has in its place."""

from proxyctl.protocol.frames import For, Lent
from proxyd.exits.attached.attached import Attached


class Loaner:
    """Lends exits to other nodes and borrows theirs; this class is for a single node."""

    __slots__ = ()

    def counts(self) -> tuple[int, int]:
        """Return the numbers of borrowed exits and of lent ones."""
        return 0, 0

    def find(self, attachment: int) -> Attached | None:  # noqa: ARG002 - nothing is borrowed
        """Return the exit of another node whose work connections name an attachment."""
        return None

    def agent_said(self, attached: Attached, frame: For | Lent) -> None:
        """Act on an agent's frame of a loan; raises FrameError if an agent must not send it."""

    def ended(self, attached: Attached, reason: str) -> None:
        """Note that an exit is gone, or must not carry anything."""

    def change_heartbeat(self, seconds: float) -> None:
        """Ping each borrowed exit with this many seconds between two pings."""

    def close(self) -> None:
        """Return all borrowed exits, and end all loans."""
