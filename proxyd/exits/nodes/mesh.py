"""This node among the others that have exits: every node knows every exit.

Theory of operation
-------------------
Each node says in its row of the database where devices attach to it, where other nodes reach it,
and by which certificate it is known. It looks at the rows every second, and keeps a link
(`exits/nodes/link.py`) with each other node that takes exits, or that wants to use those of others:
of two that take exits the one with the smaller identifier dials, else the one that takes none.

Over a new link each side announces all exits that are attached to it, then what changes. What was
announced is an entry of the directory (`RemoteExit`) as long as the link is there. So choosing an
exit asks nobody.

A device that is attached to two nodes is the later one's: the other one lets go of it. `since`
decides, and is later than any that the node has heard of: no clock has to be right for it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from market.exits.consents import Door
from proxyd.exits.attached.attached import STANDBY, Attached
from proxyd.exits.choosing.directory import Directory, Place
from proxyd.exits.nodes.hub import NodeHub
from proxyd.exits.nodes.link import USUAL as LINK
from proxyd.exits.nodes.link import Link, LinkTimes, client_context, greeted
from proxyd.exits.nodes.remote import AnyExit, RemoteExit, announcement
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.wire.links import (
    AnnouncedExit,
    Borrow,
    Borrowed,
    Exits,
    Gone,
    Leaving,
    LinkReader,
    Loan,
    Moved,
    Recheck,
    encode_exits,
)
from storage.engines.errors import StoreError
from storage.engines.store import Store
from storage.exits import mesh as queries
from storage.exits.mesh import DoorRow

if TYPE_CHECKING:
    import ssl

    from proxyctl.protocol.frames import Limits

LOOK_SECONDS = 1.0  # between looks at the nodes: one query of as many rows as there are nodes
RETRY_LEAST_SECONDS: Final = 0.2
RETRY_MOST_SECONDS: Final = 5.0  # a node that is back is linked soon; one that is dead is reaped

_Equal = TypeVar("_Equal")
_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class MeshBounds:
    """The bounds on the other nodes.

    Attributes:
        link_seconds: to connect, shake hands and be accepted: some round trips.
        exits_per_node_max: twice the number that the directory is measured with.
        entries_per_turn: that are announced or taken out in one turn of the loop: of 100,000 each
            takes 250 us.
        shared_max: different places, limits and lists of features that are kept once for all exits:
            10 MB of each.
        link: how often a link is looked at.
    """

    link_seconds: float = 5.0
    exits_per_node_max: int = 200_000
    entries_per_turn: int = 20
    shared_max: int = 50_000
    link: LinkTimes = LINK


USUAL: Final = MeshBounds()


class Cluster(NamedTuple):
    """This node among the others.

    `node_id` returns what it is called now, None while it is not known to the others; `link_host`
    and `link_port` are where they reach it ("" and 0: where devices do).
    """

    store: Store
    node_id: Callable[[], str | None]
    key: bytes
    link_host: str
    link_port: int


# More than 12 fields: who the others are, the links with them, and what is known by these.
class Mesh:
    """The other nodes, and their exits.

    Args:
        loop: the event loop.
        cluster: this node among the others.
        directory: is told of their exits.
        milliseconds: the wall clock, in UTC.
        hub: notified of what other nodes say.
        bounds: on them.
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
        self.links: dict[str, Link] = {}
        self.hub = hub
        self._loop = loop
        self._cluster = cluster
        self._directory = directory
        self._milliseconds = milliseconds
        self._context: ssl.SSLContext = client_context()
        self._door: Door | None = None
        self._node_id = ""  # what the links know this node by
        self._rows: dict[str, DoorRow] = {}  # the other nodes
        self._takers = 0  # those of them that take exits
        self._local: dict[str, Attached] = {}  # what is attached here
        self._remote: dict[Link, dict[str, RemoteExit]] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._tasks = OwnedTasks(loop, _logger, "keeping a link failed")
        self._last_since = 0
        # Equal ones are one object: there are few, and many exits.
        self._places: dict[Place, Place] = {}
        self._limits: dict[Limits, Limits] = {}
        self._features: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._is_leaving = self._is_closed = False

    def __len__(self) -> int:
        return len(self.links)

    # --- what others ask -----------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether there is no other node that takes exits."""
        return self._takers == 0

    def link(self, node_id: str) -> Link | None:
        """Return the link with a node; None while there is none."""
        return self.links.get(node_id)

    def doors(self) -> list[Door]:
        """Return where devices may attach instead of here: rather a node with few exits first.

        Each call returns another order: devices that leave this node spread over the others.
        """
        rows = [
            ((len(self._remote[link]) + 1) * random.random(), row)  # noqa: S311 - it spreads load
            for link in self.links.values()
            if not link.is_leaving and (row := self._rows.get(link.node_id)) and row.certificate
        ]
        return [Door(row.exits_host, row.exits_port, row.certificate) for _, row in sorted(rows)]

    def attached_here(self, device_id: str) -> Attached | None:
        """Return the exit that a device is, if it is attached to this node."""
        return self._local.get(device_id)

    def find(self, device_id: str) -> RemoteExit | None:
        """Return the exit that a device is at another node, the latest one; None if it is none."""
        return max(self._remotes(device_id), key=_attached_at, default=None)

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
        """Tell the other nodes where devices attach here, and by which certificate."""
        self._door = door

    # --- what is attached here: see `neighbours.Neighbours` --------------------------------------

    def since(self, device_id: str) -> int:
        """Return when a device attaches here that does so now: later than anywhere before."""
        known = max((each.since for each in self._remotes(device_id)), default=0)
        self._last_since = max(self._milliseconds(), self._last_since + 1, known + 1)
        return self._last_since

    def attached(self, attached: Attached) -> None:
        """An exit has attached here."""
        self._local[attached.device_id] = attached
        self._settle(attached.device_id)
        self.changed(attached)

    def changed(self, attached: Attached) -> None:
        """Something has changed of an exit that is attached here."""
        if self.links and self._local.get(attached.device_id) is attached:
            for data in encode_exits((announcement(attached),)):
                for link in self.links.values():
                    link.send_encoded(data)

    def gone(self, attached: Attached) -> None:
        """An exit is not attached here any more."""
        if self._local.get(attached.device_id) is not attached:
            return
        del self._local[attached.device_id]
        for link in self.links.values():
            link.send(Gone(attached.device_id))
        self._settle(attached.device_id)

    def recheck(self, device_id: str) -> None:
        """Have all other nodes look again at what a device may do."""
        for link in self.links.values():
            link.send(Recheck(device_id))

    def tell_moved(self, session_id: str, label: str) -> None:
        """Tell the other nodes that a label has another exit."""
        for link in self.links.values():
            link.send(Moved(session_id, label))

    def welcome(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Take the connection of another node that has begun with `data`; False if it is none."""
        door = self._door
        if self._is_closed or door is None or not self._node_id:
            return False
        reader = LinkReader()
        fingerprint = door.certificate_sha256
        greeting = greeted(
            reader, data, key=self._cluster.key, own_id=self._node_id, fingerprint=fingerprint
        )
        if greeting is None:
            return False
        link = self._link(greeting.node_id, fingerprint, is_dialler=False, reader=reader)
        transport.set_protocol(link)
        link.connection_made(transport)
        link.data_received(b"")  # what came with the greeting
        return True

    def drain(self) -> None:
        """Tell the other nodes that this one ends soon."""
        self._is_leaving = True
        for link in self.links.values():
            link.send(Leaving())

    # --- the links -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at the nodes again and again, and keep a link with each, until cancelled."""
        is_failing = False
        while True:
            try:
                await self.look()
            except StoreError as error:
                if not is_failing:
                    _logger.warning("other nodes cannot be looked for now: %s", error)
                is_failing = True
            else:
                is_failing = False
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look at the nodes, and begin and end links as they come and go.

        Raises:
            StoreError: the store did not answer.
        """
        began, own_id = self._loop.time(), self._cluster.node_id() or ""
        if own_id != self._node_id:
            self._drop("this node was registered anew")
            self._node_id = own_id
        rows = {row.node_id: row for row in await self._cluster.store.read(queries.doors)}
        own = rows.pop(own_id, None)
        if own is None or self._is_closed or own_id != self._cluster.node_id():
            return
        row = self._own_row(own_id)
        if row != own:
            await self._cluster.store.write(queries.open_door, row)
        self._rows = rows
        self._takers = sum(bool(each.certificate) for each in rows.values())
        for node_id in [each for each in self._keepers if not self._dials(each)]:
            self._keepers.pop(node_id).cancel()
        for link in [*self.links.values()]:
            if link.node_id not in rows and link.began < began:
                link.close("the node is gone")
        for node_id in rows:
            if self._dials(node_id) and node_id not in self._keepers:
                self._keepers[node_id] = self._tasks.spawn(self._keep(node_id))

    async def close(self) -> None:
        """End all links."""
        self._is_closed = True
        self._drop("this node stops")
        self._tasks.cancel()
        await self._tasks.wait()

    def _own_row(self, node_id: str) -> DoorRow:
        door, cluster = self._door, self._cluster
        if door is None:
            return DoorRow(node_id, "", 0, "", "", 0)
        return DoorRow(
            node_id,
            door.host,
            door.port,
            door.certificate_sha256,
            cluster.link_host or door.host,
            cluster.link_port or door.port,
        )

    def _dials(self, node_id: str) -> bool:
        """Say whether this node is the one that dials another one."""
        row = self._rows.get(node_id)
        return (
            row is not None
            and bool(row.certificate)
            and (self._door is None or self._node_id < node_id)
        )

    async def _keep(self, node_id: str) -> None:
        """Keep a link with a node, until cancelled."""
        failures = 0
        while (row := self._rows.get(node_id)) is not None:
            reason = await self._dial(row)
            failures = 0 if not reason else failures + 1
            if failures == 1:
                _logger.info("node %s: no link: %s", node_id, reason)
            most = min(RETRY_LEAST_SECONDS * 2 ** min(failures, 10), RETRY_MOST_SECONDS)
            # Jitter: nodes that lost the same one do not come back together.
            await asyncio.sleep(random.uniform(RETRY_LEAST_SECONDS, most))  # noqa: S311 - see there

    async def _dial(self, row: DoorRow) -> str:
        """Dial a node and wait until the link is over; return why it never was, "" if it was."""
        link = self._link(row.node_id, row.certificate, is_dialler=True)
        try:
            async with asyncio.timeout(self._bounds.link_seconds) as limit:
                await self._loop.create_connection(
                    lambda: link, row.link_host, row.link_port, ssl=self._context
                )
                await link.settled.wait()
                limit.reschedule(None)
            reason = await asyncio.shield(link.closed)
        except (OSError, ValueError, OverflowError) as error:
            # A row may name a host or a port that none can be: the others are linked all the same.
            return str(error) or type(error).__name__
        finally:
            link.close("this node dials no more")
        return "" if link.was_open else reason

    def _link(
        self, node_id: str, fingerprint: str, *, is_dialler: bool, reader: LinkReader | None = None
    ) -> Link:
        return Link(
            self._loop,
            self,
            self._cluster.key,
            own_id=self._node_id,
            node_id=node_id,
            fingerprint=fingerprint,
            is_dialler=is_dialler,
            reader=reader,
            times=self._bounds.link,
        )

    def _drop(self, reason: str) -> None:
        for task in self._keepers.values():
            task.cancel()
        self._keepers.clear()
        for link in [*self.links.values()]:
            link.close(reason)

    # --- what comes over them: see `link.LinkHandler` ------------------------------------------

    def joined(self, link: Link) -> None:
        """See `LinkHandler.joined`."""
        older = self.links.get(link.node_id)
        if older is not None:
            older.close("the node has linked again")
        self.links[link.node_id] = link
        self._remote[link] = {}
        link.can_borrow = self.hub.can_borrow
        self.hub.doubt()
        if self._is_leaving:
            link.send(Leaving())
        self._tasks.spawn(self._announce(link))
        self._tell_nodes()

    def announced(self, link: Link, frame: Exits | Gone | Leaving | Recheck | Moved) -> None:
        """See `LinkHandler.announced`."""
        if isinstance(frame, Exits):
            for each in frame.exits:
                self._heard(link, each)
        elif isinstance(frame, Gone):
            remote = self._remote[link].pop(frame.device_id, None)
            if remote is not None:
                self._forget(remote)
        elif isinstance(frame, Recheck):
            self.hub.recheck(frame.device_id)
        elif isinstance(frame, Moved):
            self.hub.moved(frame.session_id, frame.label)
        else:
            link.is_leaving = True
            self._tell_nodes()

    def lending(self, link: Link, frame: Loan) -> None:
        """See `LinkHandler.lending`."""
        if self.hub.can_borrow:
            self.hub.lending(link, frame)
        elif isinstance(frame, Borrow):
            link.send(Borrowed(frame.number, "not_lent"))

    def lost(self, link: Link) -> None:
        """See `LinkHandler.lost`."""
        if self.links.get(link.node_id) is link:
            del self.links[link.node_id]
        self.hub.lost(link)
        remotes = [*self._remote.pop(link).values()]
        first = self._bounds.entries_per_turn
        for each in remotes[:first]:
            self._forget(each)
        if len(remotes) > first:  # none of them is chosen meanwhile: the link is over
            self._tasks.spawn(self._forget_all(remotes[first:]))
        self._tell_nodes()

    def _tell_nodes(self) -> None:
        if not self._is_closed:
            self.hub.nodes_changed()

    async def _announce(self, link: Link) -> None:
        """Announce all exits of this node; each later change has its own announcement."""
        device_ids, most = [*self._local], self._bounds.entries_per_turn
        for begin in range(0, len(device_ids), most):
            some = device_ids[begin : begin + most]
            present = [each for device_id in some if (each := self._local.get(device_id))]
            for data in encode_exits(map(announcement, present)):
                link.send_encoded(data)
            await asyncio.sleep(0)
            await link.drained()

    def _heard(self, link: Link, announced: AnnouncedExit) -> None:
        """Another node tells of an exit."""
        remotes = self._remote[link]
        place = Place(
            announced.country, announced.state, announced.city, announced.asn, announced.kind
        )
        most = self._bounds.shared_max
        place = _shared(self._places, place, most)
        limits = _shared(self._limits, announced.limits, most)
        features = _shared(self._features, announced.features, most)
        announced = announced._replace(features=features)
        remote = remotes.get(announced.device_id)
        known = None if remote is None else (remote.since, remote.place, remote.network)
        if remote is not None and known == (announced.since, place, announced.network):
            remote.change(announced, limits)
            self.hub.changed(remote)
        elif remote is None and len(remotes) >= self._bounds.exits_per_node_max:
            return
        else:
            remotes[announced.device_id] = RemoteExit(link, announced, place, limits)
            if remote is not None:
                self._forget(remote)
        self._settle(announced.device_id)

    def _forget(self, remote: RemoteExit) -> None:
        """An exit of another node is gone."""
        remote.is_gone = True
        self._directory.remove(remote)
        self._settle(remote.device_id)
        self.hub.gone(remote)

    async def _forget_all(self, remotes: Iterable[RemoteExit]) -> None:
        for number, each in enumerate(remotes, 1):
            self._forget(each)
            if number % self._bounds.entries_per_turn == 0:
                await asyncio.sleep(0)

    def _remotes(self, device_id: str) -> Iterable[RemoteExit]:
        """Yield the exits that a device is at other nodes; one, but for a moment."""
        for remotes in self._remote.values():
            remote = remotes.get(device_id)
            if remote is not None:
                yield remote

    def _settle(self, device_id: str) -> None:
        """File the latest attachment of a device, and no other one."""
        local, remote = self._local.get(device_id), self.find(device_id)
        if local is not None and remote is not None:
            if (local.since, self._node_id) < _attached_at(remote):
                self.hub.displace(device_id)  # which comes back here, when it is gone
                return
            remote = None
        filed = self._directory.get(device_id)
        if isinstance(filed, RemoteExit) and (filed is not remote or not filed.is_open):
            self._directory.remove(filed)
        if remote is not None and remote.is_open and self._directory.get(device_id) is not remote:
            self._directory.add(remote)


def _shared(known: dict[_Equal, _Equal], value: _Equal, most: int) -> _Equal:
    """Return the one of equal values that is kept, of `most`."""
    if len(known) >= most:  # mostly of exits that are gone
        known.clear()
    return known.setdefault(value, value)


def _attached_at(remote: RemoteExit) -> tuple[int, str]:
    """Return what is greatest for the attachment of a device that counts."""
    return remote.since, remote.node_id
