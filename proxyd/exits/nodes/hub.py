"""Notifies the parts of this node that act on the words of other nodes.

The port of exits, the loans and the labels need the mesh of nodes, and the mesh notifies each of
them. So the mesh is given this hub when it is built, and they join it.
"""

from typing import Protocol

from proxyd.exits.attached.attached import Attached
from proxyd.exits.nodes.link import Link
from proxyd.exits.nodes.remote import RemoteExit
from proxyd.wire.links import Loan


class Port(Protocol):
    """The exits' port of this node."""

    def displace(self, device_id: str) -> None:
        """Release an exit that has since attached to another node."""

    def recheck(self, device_id: str) -> None:
        """Look again whether a device may be attached, and under which limits."""

    def nodes_changed(self) -> None:
        """There are other nodes than before where devices may attach."""


class Detached(Protocol):
    """The exits that are gone while connections through them go on."""

    def keep(self, attached: Attached) -> None:
        """Look after one from now on."""


class Lender(Protocol):
    """Borrows exits of other nodes, and lends those of this one."""

    def lending(self, link: Link, frame: Loan) -> None:
        """Another node says something about a loan."""

    def changed(self, remote: RemoteExit) -> None:
        """An exit of another node has changed: it may be paused."""

    def gone(self, remote: RemoteExit) -> None:
        """An exit of another node is gone, or its link is."""

    def lost(self, link: Link) -> None:
        """A link is gone, and all loans with it; `gone` is called for each exit besides."""


class Labels(Protocol):
    """Knows which exits the labels of sessions are bound to, on all nodes."""

    def moved(self, session_id: str, label: str) -> None:
        """Another node has moved a label: its exit here is doubtful."""

    def doubt(self) -> None:
        """Moves may have been missed: the exits of all labels are doubtful."""


class NodeHub:
    """Notifies every part that has joined."""

    def __init__(self) -> None:
        self._ports: list[Port] = []
        self._detached: list[Detached] = []
        self._lenders: list[Lender] = []
        self._labels: list[Labels] = []

    def join_port(self, port: Port) -> None:
        """Notify a port of exits from now on."""
        self._ports.append(port)

    def join_detached(self, detached: Detached) -> None:
        """Hand over the exits that are gone from now on."""
        self._detached.append(detached)

    def join_lender(self, lender: Lender) -> None:
        """Notify the loans of exits from now on."""
        self._lenders.append(lender)

    def join_labels(self, labels: Labels) -> None:
        """Notify the labels of sessions from now on."""
        self._labels.append(labels)

    # --- the port ------------------------------------------------------------------------------

    def displace(self, device_id: str) -> None:
        """See `Port.displace`."""
        for port in self._ports:
            port.displace(device_id)

    def recheck(self, device_id: str) -> None:
        """See `Port.recheck`."""
        for port in self._ports:
            port.recheck(device_id)

    def nodes_changed(self) -> None:
        """See `Port.nodes_changed`."""
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
        """See `Lender.lending`."""
        for lender in self._lenders:
            lender.lending(link, frame)

    def changed(self, remote: RemoteExit) -> None:
        """See `Lender.changed`."""
        for lender in self._lenders:
            lender.changed(remote)

    def gone(self, remote: RemoteExit) -> None:
        """See `Lender.gone`."""
        for lender in self._lenders:
            lender.gone(remote)

    def lost(self, link: Link) -> None:
        """See `Lender.lost`."""
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
