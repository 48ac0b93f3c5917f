"""Notices to all agents: other nodes where they may attach, and targets that they must deny."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from market.exits.consents import Door
from proxyctl.protocol.frames import DENY, NODES_MAX, Node, Nodes
from proxyd.exits.attached.control import Control
from proxyd.exits.attached.neighbours import Neighbours
from proxyd.exits.attached.roster import Roster
from proxyd.exits.attached.work import Work

if TYPE_CHECKING:
    from proxyd.exits.choosing.own_ports import OwnPorts

NODES_FEATURE: Final = "nodes"  # of an agent that attaches elsewhere when its daemon is gone
NODES_SECONDS: Final = 0.2  # for links that come and go together
CONTROLS_PER_TURN: Final = 100  # that are notified in one turn of the loop: a millisecond


@final
class Notices:
    """Notifies the agents that are attached.

    Args:
        own_ports: addresses and ports that are closed to buyers; None where all are open.
        nodes_seconds: how long a change among the nodes waits for others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        roster: Roster,
        neighbours: Neighbours,
        own_ports: "OwnPorts | None",
        work: Work,
        nodes_seconds: float = NODES_SECONDS,
    ) -> None:
        self._nodes_seconds = nodes_seconds
        self._loop = loop
        self._roster = roster
        self._neighbours = neighbours
        self._own_ports = own_ports
        self._work = work
        self._next_door: Door | None = None  # with the next certificate of this daemon
        self._timer: asyncio.TimerHandle | None = None

    def greet(self, control: Control) -> None:
        """Notify an agent that has attached."""
        self._send_denied(control)
        self._send_nodes(control)

    def announce(self, door: Door) -> None:
        """Send devices the next certificate of this daemon."""
        if door != self._next_door:
            self._next_door = door
            self.nodes_changed()

    def nodes_changed(self) -> None:
        """Send the changed addresses of nodes to all agents that use them.

        Later and together, because a node that ends or starts changes more than once.
        """
        if self._timer is None and not self._work.is_stopping:
            self._timer = self._loop.call_later(self._nodes_seconds, self._spawn_nodes)

    def deny_changed(self) -> None:
        """Send agents the addresses that are closed now."""
        self._work.spawn(self._to_all(self._send_denied))

    def close(self) -> None:
        """Send no more notices."""
        if self._timer is not None:
            self._timer.cancel()

    def _spawn_nodes(self) -> None:
        self._timer = None
        self._work.spawn(self._to_all(self._send_nodes))

    async def _to_all(self, send: Callable[[Control], None]) -> None:
        for number, control in enumerate(self._roster.controls()):
            send(control)
            if number % CONTROLS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _send_denied(self, control: Control) -> None:
        attached = control.attached
        if attached is None or self._own_ports is None or DENY not in attached.features:
            return
        for frame in self._own_ports.frames():
            control.send(frame)

    def _send_nodes(self, control: Control) -> None:
        attached = control.attached
        if attached is None or NODES_FEATURE not in attached.features:
            return
        doors = self._neighbours.doors()
        if self._next_door is not None:
            doors.insert(0, self._next_door)
        doors = doors[:NODES_MAX]
        nodes = tuple(Node(each.host, each.port, each.certificate_sha256) for each in doors)
        if nodes or attached.agent.knows_nodes:
            attached.agent.told_nodes()
            control.send(Nodes(nodes))
