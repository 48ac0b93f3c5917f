"""Mesh of the nodes that have exits: every node knows every exit.

Theory of operation
-------------------
The row of each node in the database has the address where devices attach to it, the address where
other nodes reach it, and the fingerprint of its certificate. Each node looks at the rows every
second, and keeps a link (`exits/nodes/link.py`) with each other node that takes exits, or that
wants to use those of others: of two that take exits the one with the smaller identifier dials, else
the one that takes none.

Over a new link each side announces all exits that are attached to it, then each change. An
announced exit is an entry of the directory (`RemoteExit`) as long as the link is there. So the
choice of an exit needs no other node.

A device that is attached to two nodes is the later one's: the other one lets go of it. `since`
decides. It is later than every `since` that the node knows: no clock has to be right for it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from market.exits.consents import Door
from proxyd.exits.attached.attached import STANDBY, Attached
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.nodes.hub import NodeHub
from proxyd.exits.nodes.known import LocalExits, RemoteExits, attached_at
from proxyd.exits.nodes.link import Link
from proxyd.exits.nodes.peers import USUAL, Cluster, MeshBounds, Peers
from proxyd.exits.nodes.remote import AnyExit, RemoteExit, announcement
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.wire.links import (
    AnnouncedExit,
    Borrow,
    Borrowed,
    Exits,
    Gone,
    Leaving,
    Loan,
    Moved,
    Recheck,
    encode_exits,
)

_logger = logging.getLogger("exits")


class Mesh:
    """The exits of all nodes: announces those of this node, and files those of others.

    Args:
        milliseconds: the wall clock, in UTC.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cluster: Cluster,
        directory: Directory[AnyExit],
        milliseconds: Callable[[], int],
        hub: NodeHub,
        bounds: MeshBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self.hub = hub
        self.peers = Peers(loop, cluster, self, bounds)
        self._directory = directory
        self._local = LocalExits(milliseconds)
        self._remote = RemoteExits(bounds)
        self._tasks = OwnedTasks(loop, _logger, "announcing exits failed")
        self._is_leaving = False

    def __len__(self) -> int:
        return len(self.peers.links)

    # --- called by other parts -----------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether there is no other node that takes exits."""
        return self.peers.is_alone

    def link(self, node_id: str) -> Link | None:
        """Return the link with a node; None without one."""
        return self.peers.links.get(node_id)

    def doors(self) -> list[Door]:
        """Return the addresses of other nodes for devices, nodes with few exits mostly first.

        Each call returns another order: devices that leave this node spread over the others.
        """
        number_of = self._remote.number_of
        doors = [
            ((number_of(link) + 1) * random.random(), door)  # noqa: S311 - it spreads load
            for link in self.peers.links.values()
            if not link.is_leaving and (door := self.peers.door_of(link.node_id))
        ]
        return [door for _, door in sorted(doors, key=lambda each: each[0])]

    def attached_here(self, device_id: str) -> Attached | None:
        """Return the exit of a device, if it is attached to this node."""
        return self._local.get(device_id)

    def find(self, device_id: str) -> RemoteExit | None:
        """Return the latest attachment of a device to another node; None without one."""
        return self._remote.find(device_id)

    def state(self, device_id: str) -> str | None:
        """Return why a device carries nothing at another node, "" if it does, None if it is away.

        In the words of `Offers.state`.
        """
        remote = self.find(device_id)
        if remote is None:
            return None
        if remote.is_spent:
            return "the bytes of the day are used up"
        if self._directory.is_standby(remote):
            return STANDBY
        return remote.paused

    def change_door(self, door: Door | None) -> None:
        """Publish the address and the certificate of this node's port to the other nodes."""
        self.peers.change_door(door)

    # --- exits of this node: see `neighbours.Neighbours` -----------------------------------------

    def since(self, device_id: str) -> int:
        """Return the time of attachment of a device that attaches now: later than any before."""
        return self._local.since(self._remote.since(device_id))

    def attached(self, attached: Attached) -> None:
        """Announce an exit that has attached here."""
        self._local.add(attached)
        self._settle(attached.device_id)
        self.changed(attached)

    def changed(self, attached: Attached) -> None:
        """Announce the change of an exit that is attached here."""
        if self.peers.links and self._local.has(attached):
            for data in encode_exits((announcement(attached),)):
                self.peers.send_encoded(data)

    def gone(self, attached: Attached) -> None:
        """Announce that an exit is no longer attached here."""
        if not self._local.has(attached):
            return
        self._local.remove(attached)
        self.peers.send(Gone(attached.device_id))
        self._settle(attached.device_id)

    def recheck(self, device_id: str) -> None:
        """Request all other nodes to check the rights of a device again."""
        self.peers.send(Recheck(device_id))

    def tell_moved(self, session_id: str, label: str) -> None:
        """Notify the other nodes that a label has another exit."""
        self.peers.send(Moved(session_id, label))

    def welcome(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Take over the connection of another node: see `Peers.welcome`."""
        return self.peers.welcome(transport, data)

    def drain(self) -> None:
        """Notify the other nodes that this one ends soon."""
        self._is_leaving = True
        self.peers.send(Leaving())

    async def run(self) -> None:
        """Read the nodes periodically, and keep a link with each, until cancelled."""
        await self.peers.run()

    async def look(self) -> None:
        """Look at the nodes now: see `Peers.look`."""
        await self.peers.look()

    async def close(self) -> None:
        """End all links."""
        await self.peers.close()
        self._tasks.cancel()
        await self._tasks.wait()

    # --- frames of the links: see `link.LinkHandler` ---------------------------------------------

    def joined(self, link: Link) -> None:
        """See `LinkHandler.joined`."""
        self.peers.add(link)
        self._remote.join(link)
        link.can_borrow = self.hub.can_borrow
        self.hub.doubt()
        if self._is_leaving:
            link.send(Leaving())
        self._tasks.spawn(self._announce(link))
        self._notify_nodes_changed()

    def announced(self, link: Link, frame: Exits | Gone | Leaving | Recheck | Moved) -> None:
        """See `LinkHandler.announced`."""
        if isinstance(frame, Exits):
            for each in frame.exits:
                self._keep(link, each)
        elif isinstance(frame, Gone):
            remote = self._remote.remove(link, frame.device_id)
            if remote is not None:
                self._forget(remote)
        elif isinstance(frame, Recheck):
            self.hub.recheck(frame.device_id)
        elif isinstance(frame, Moved):
            self.hub.moved(frame.session_id, frame.label)
        else:
            link.is_leaving = True
            self._notify_nodes_changed()

    def lending(self, link: Link, frame: Loan) -> None:
        """See `LinkHandler.lending`."""
        if self.hub.can_borrow:
            self.hub.lending(link, frame)
        elif isinstance(frame, Borrow):
            link.send(Borrowed(frame.number, "not_lent"))

    def lost(self, link: Link) -> None:
        """See `LinkHandler.lost`."""
        self.peers.remove(link)
        self.hub.lost(link)
        remotes = self._remote.leave(link)
        first = self._bounds.entries_per_turn
        for each in remotes[:first]:
            self._forget(each)
        if len(remotes) > first:  # none of them is chosen meanwhile: the link is over
            self._tasks.spawn(self._forget_all(remotes[first:]))
        self._notify_nodes_changed()

    def _notify_nodes_changed(self) -> None:
        if not self.peers.is_closed:
            self.hub.nodes_changed()

    async def _announce(self, link: Link) -> None:
        """Announce all exits of this node; each later change has its own announcement."""
        device_ids, most = self._local.devices(), self._bounds.entries_per_turn
        for begin in range(0, len(device_ids), most):
            some = device_ids[begin : begin + most]
            present = [each for device_id in some if (each := self._local.get(device_id))]
            for data in encode_exits(map(announcement, present)):
                link.send_encoded(data)
            await asyncio.sleep(0)
            await link.drained()

    def _keep(self, link: Link, announced: AnnouncedExit) -> None:
        """Keep an exit that another node has announced."""
        remote, older = self._remote.announce(link, announced)
        if remote is None:
            return
        if remote is older:
            self.hub.changed(remote)
        elif older is not None:
            self._forget(older)
        self._settle(announced.device_id)

    def _forget(self, remote: RemoteExit) -> None:
        """Forget an exit of another node that is gone."""
        remote.is_gone = True
        self._directory.remove(remote)
        self._settle(remote.device_id)
        self.hub.gone(remote)

    async def _forget_all(self, remotes: Iterable[RemoteExit]) -> None:
        for number, each in enumerate(remotes, 1):
            self._forget(each)
            if number % self._bounds.entries_per_turn == 0:
                await asyncio.sleep(0)

    def _settle(self, device_id: str) -> None:
        """File the latest attachment of a device, and no other one."""
        local, remote = self._local.get(device_id), self.find(device_id)
        if local is not None and remote is not None:
            if (local.since, self.peers.node_id) < attached_at(remote):
                self.hub.displace(device_id)  # calls `gone`, which comes back here
                return
            remote = None
        filed = self._directory.get(device_id)
        if isinstance(filed, RemoteExit) and (filed is not remote or not filed.is_open):
            self._directory.remove(filed)
        if remote is not None and remote.is_open and self._directory.get(device_id) is not remote:
            self._directory.add(remote)
