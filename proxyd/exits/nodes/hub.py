"""Notifies the parts of this node that act on messages of other nodes.

The port of exits, the loans and the labels need the mesh of nodes, and the mesh notifies each of
them. So the mesh is given this hub when it is built, and they join it.
"""

from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.detached import Detached
from proxyd.exits.attached.listener import ExitListener
from proxyd.exits.choosing.labels import Labels
from proxyd.exits.nodes.link import Link
from proxyd.exits.nodes.loans import Loans
from proxyd.exits.nodes.remote import RemoteExit
from proxyd.wire.links import Loan


class NodeHub:
    """Notifies every part that has joined."""

    def __init__(self) -> None:
        self._ports: list[ExitListener] = []
        self._detached: list[Detached] = []
        self._lenders: list[Loans] = []
        self._labels: list[Labels] = []

    def join_port(self, port: ExitListener) -> None:
        """Notify a port of exits from now on."""
        self._ports.append(port)

    def join_detached(self, detached: Detached) -> None:
        """Hand over the exits that are gone from now on."""
        self._detached.append(detached)

    def join_lender(self, lender: Loans) -> None:
        """Notify the loans of exits from now on."""
        self._lenders.append(lender)

    def join_labels(self, labels: Labels) -> None:
        """Notify the labels of sessions from now on."""
        self._labels.append(labels)

    # --- the port ------------------------------------------------------------------------------

    def displace(self, device_id: str) -> None:
        """See `ExitListener.displace`."""
        for port in self._ports:
            port.displace(device_id)

    def recheck(self, device_id: str) -> None:
        """See `ExitListener.recheck`."""
        for port in self._ports:
            port.recheck(device_id)

    def nodes_changed(self) -> None:
        """See `ExitListener.nodes_changed`."""
        for port in self._ports:
            port.nodes_changed()

    def keep_detached(self, attached: Attached) -> None:
        """See `Detached.keep`."""
        for detached in self._detached:
            detached.keep(attached)

    # --- loans ---------------------------------------------------------------------------------

    @property
    def can_borrow(self) -> bool:
        """Whether exits of other nodes can be borrowed here."""
        return bool(self._lenders)

    def lending(self, link: Link, frame: Loan) -> None:
        """See `Loans.lending`."""
        for lender in self._lenders:
            lender.lending(link, frame)

    def changed(self, remote: RemoteExit) -> None:
        """See `Loans.changed`."""
        for lender in self._lenders:
            lender.changed(remote)

    def gone(self, remote: RemoteExit) -> None:
        """See `Loans.gone`."""
        for lender in self._lenders:
            lender.gone(remote)

    def lost(self, link: Link) -> None:
        """See `Loans.lost`."""
        for lender in self._lenders:
            lender.lost(link)

    # --- labels --------------------------------------------------------------------------------

    def moved(self, session_id: str, label: str) -> None:
        """See `Labels.moved`."""
        for labels in self._labels:
            labels.moved(session_id, label)

    def doubt(self) -> None:
        """See `Labels.doubt`."""
        for labels in self._labels:
            labels.doubt()
