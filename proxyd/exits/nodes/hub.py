"""Notifies the parts of this node that act on the words of other nodes.

The port of exits, the loans and the labels need the mesh of nodes, and the mesh notifies each of
them. So the mesh is given this hub when it is built, and they join it.
"""

from typing import TYPE_CHECKING

from proxyd.exits.attached.attached import Attached
from proxyd.exits.nodes.link import Link
from proxyd.exits.nodes.remote import RemoteExit
from proxyd.wire.links import Loan

if TYPE_CHECKING:
    from proxyd.exits.attached.detached import Detached
    from proxyd.exits.attached.listener import ExitListener
    from proxyd.exits.choosing.labels import Labels
    from proxyd.exits.nodes.loans import Loans


class NodeHub:
    """Notifies the parts that have joined: each joins when it is built."""

    def __init__(self) -> None:
        self.port: ExitListener | None = None
        self.detached: Detached | None = None
        self.lender: Loans | None = None
        self.labels: Labels | None = None

    # --- the port ------------------------------------------------------------------------------

    def displace(self, device_id: str) -> None:
        """See `ExitListener.displace`."""
        if self.port is not None:
            self.port.displace(device_id)

    def recheck(self, device_id: str) -> None:
        """See `ExitListener.recheck`."""
        if self.port is not None:
            self.port.recheck(device_id)

    def nodes_changed(self) -> None:
        """See `ExitListener.nodes_changed`."""
        if self.port is not None:
            self.port.nodes_changed()

    def keep_detached(self, attached: Attached) -> None:
        """See `Detached.keep`."""
        if self.detached is not None:
            self.detached.keep(attached)

    # --- loans ---------------------------------------------------------------------------------

    @property
    def can_borrow(self) -> bool:
        """Whether exits of other nodes can be borrowed here."""
        return self.lender is not None

    def lending(self, link: Link, frame: Loan) -> None:
        """See `Loans.lending`."""
        if self.lender is not None:
            self.lender.lending(link, frame)

    def changed(self, remote: RemoteExit) -> None:
        """See `Loans.changed`."""
        if self.lender is not None:
            self.lender.changed(remote)

    def gone(self, remote: RemoteExit) -> None:
        """See `Loans.gone`."""
        if self.lender is not None:
            self.lender.gone(remote)

    def lost(self, link: Link) -> None:
        """See `Loans.lost`."""
        if self.lender is not None:
            self.lender.lost(link)

    # --- labels --------------------------------------------------------------------------------

    def moved(self, session_id: str, label: str) -> None:
        """See `Labels.moved`."""
        if self.labels is not None:
            self.labels.moved(session_id, label)

    def doubt(self) -> None:
        """See `Labels.doubt`."""
        if self.labels is not None:
            self.labels.doubt()
