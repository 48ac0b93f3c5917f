"""The other nodes that take exits: their rows of the database, and the links with them.

The theory of operation is in `mesh.py`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from market.exits.consents import Door
from proxyd.exits.nodes.link import USUAL as LINK
from proxyd.exits.nodes.link import (
    Link,
    LinkEnds,
    LinkHandler,
    LinkTimes,
    client_context,
    greeted,
)
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.wire.links import Frame, LinkReader
from storage.engines.errors import StoreError
from storage.engines.store import Store
from storage.exits import mesh as queries
from storage.exits.mesh import DoorRow

if TYPE_CHECKING:
    import ssl

LOOK_SECONDS = 1.0  # between looks at the nodes: one query, with one row for each node
RETRY_LEAST_SECONDS: Final = 0.2
RETRY_MOST_SECONDS: Final = 5.0  # a node that is back is linked soon; one that is dead is reaped

_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class MeshBounds:
    """The bounds on the other nodes.

    Attributes:
        link_seconds: the time to connect, shake hands and be accepted: some round trips.
        exits_per_node_max: twice the number that the directory is measured with.
        entries_per_turn: that are announced or taken out in one turn of the loop: of 100,000 each
            takes 250 us.
        shared_max: different places and terms that are kept once for all exits: 10 MB of each.
    """

    link_seconds: float = 5.0
    exits_per_node_max: int = 200_000
    entries_per_turn: int = 20
    shared_max: int = 50_000
    link: LinkTimes = LINK


USUAL: Final = MeshBounds()


class Cluster(NamedTuple):
    """The cluster of this node.

    `node_id` returns its present identifier, None while the others do not know it; `link_host` and
    `link_port` are where they reach it ("" and 0: where devices do).
    """

    store: Store
    node_id: Callable[[], str | None]
    key: bytes
    link_host: str
    link_port: int


class Peers:
    """The other nodes that take exits, and a link with each.

    `links` are the open ones, by node. `node_id` is this node's identifier in them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cluster: Cluster,
        handler: LinkHandler,
        bounds: MeshBounds,
    ) -> None:
        self.links: dict[str, Link] = {}
        self.node_id = ""
        self.is_closed = False
        self._loop = loop
        self._cluster = cluster
        self._handler = handler
        self._bounds = bounds
        self._context: ssl.SSLContext = client_context()
        self._door: Door | None = None
        self._rows: dict[str, DoorRow] = {}  # of the other nodes that take exits
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._tasks = OwnedTasks(loop, _logger, "keeping a link failed")

    @property
    def is_alone(self) -> bool:
        """Whether there is no other node that takes exits."""
        return not self._rows

    def change_door(self, door: Door | None) -> None:
        """Publish the address and the certificate of this node's port with the next look."""
        self._door = door

    def door_of(self, node_id: str) -> Door | None:
        """Return the address where devices may attach to another node; None when it takes none."""
        row = self._rows.get(node_id)
        return None if row is None else Door(row.exits_host, row.exits_port, row.certificate)

    def add(self, link: Link) -> None:
        """Keep a link that is open; it replaces an older one with the same node."""
        older = self.links.get(link.node_id)
        if older is not None:
            older.close("the node has linked again")
        self.links[link.node_id] = link

    def remove(self, link: Link) -> None:
        """Forget a link that is over."""
        if self.links.get(link.node_id) is link:
            del self.links[link.node_id]

    def send(self, frame: Frame) -> None:
        """Send a frame to every other node."""
        for link in self.links.values():
            link.send(frame)

    def send_encoded(self, data: bytes) -> None:
        """Send the bytes of frames to every other node."""
        for link in self.links.values():
            link.send_encoded(data)

    def welcome(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Take over the connection of another node that has begun with `data`.

        Returns:
            False for the connection of another client.
        """
        door = self._door
        if self.is_closed or door is None or not self.node_id:
            return False
        reader = LinkReader()
        fingerprint = door.certificate_sha256
        greeting = greeted(
            reader, data, key=self._cluster.key, own_id=self.node_id, fingerprint=fingerprint
        )
        if greeting is None:
            return False
        link = self._link(greeting.node_id, fingerprint, is_dialler=False, reader=reader)
        transport.set_protocol(link)
        link.connection_made(transport)
        link.data_received(b"")  # the frames that came with the greeting
        return True

    async def run(self) -> None:
        """Read the nodes periodically, and keep a link with each, until cancelled."""
        is_failing = False
        while True:
            try:
                await self.look()
            except StoreError as error:
                if not is_failing:
                    _logger.warning("other nodes cannot be read from the database now: %s", error)
                is_failing = True
            else:
                is_failing = False
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Read the nodes; begin links with new nodes, and end links with nodes that are gone.

        Raises:
            StoreError: the store did not answer.
        """
        began, own_id = self._loop.time(), self._cluster.node_id() or ""
        if own_id != self.node_id:
            self._drop("this node was registered anew")
            self.node_id = own_id
        rows = {row.node_id: row for row in await self._cluster.store.read(queries.doors)}
        own = rows.pop(own_id, None)
        if own is None or self.is_closed or own_id != self._cluster.node_id():
            return
        row = self._own_row(own_id)
        if row != own:
            await self._cluster.store.write(queries.open_door, row)
        self._rows = {node_id: each for node_id, each in rows.items() if each.certificate}
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
        self.is_closed = True
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
        """Return whether this node is the one that dials another one."""
        return node_id in self._rows and (self._door is None or self.node_id < node_id)

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
                await link.life.settled.wait()
                limit.reschedule(None)
            reason = await asyncio.shield(link.life.closed)
        except (OSError, ValueError, OverflowError) as error:
            # A row may name an impossible host or port: the other nodes are linked all the same.
            return str(error) or type(error).__name__
        finally:
            link.close("this node dials no more")
        return "" if link.life.was_open else reason

    def _link(
        self, node_id: str, fingerprint: str, *, is_dialler: bool, reader: LinkReader | None = None
    ) -> Link:
        ends = LinkEnds(
            self._cluster.key, self.node_id, node_id, fingerprint, is_dialler=is_dialler
        )
        return Link(self._loop, self._handler, ends, reader=reader, times=self._bounds.link)

    def _drop(self, reason: str) -> None:
        for task in self._keepers.values():
            task.cancel()
        self._keepers.clear()
        for link in [*self.links.values()]:
            link.close(reason)
