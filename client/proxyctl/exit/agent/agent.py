"""Agent of an exit: attaches to the daemon and carries connections within the owner's limits.

Theory of operation
-------------------
One task keeps a control connection to one of the nodes of the service (`attaching.py`). Another
task watches the device (`watcher.py`). If there is a reason to rest, the agent notifies the daemon,
takes no new connections, and cuts the open ones, either immediately or after a grace period.

Relays outlive a lost control connection: each relay is a connection of its own, and the daemon
decides whether it still wants it. Relays end with the agent, with a rest, and when the daemon
refuses this exit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxyctl import __version__, files
from proxyctl.attach.relay.relays import make_relays
from proxyctl.exit.agent.attaching import Attaching
from proxyctl.exit.agent.doors import Doors
from proxyctl.exit.agent.restraints import Rest, Restraints
from proxyctl.exit.agent.watcher import WATCH_SECONDS, OwnerWishes, StateFile, Watcher
from proxyctl.exit.base import names
from proxyctl.exit.base.journal import Journal
from proxyctl.exit.base.retries import USUAL as RETRIES
from proxyctl.exit.base.retries import AttachRetries, RetryTimes
from proxyctl.exit.carrying.carrier import USUAL as CARRYING
from proxyctl.exit.carrying.carrier import Carrier, CarryingBounds
from proxyctl.protocol.frames import CALLS, DENY, SECURE, UDP, VERSION, ExitStatus, Hello, Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from proxyctl.attach.network.lan import Guard
    from proxyctl.attach.relay.relays import Relays
    from proxyctl.exit.base.record import Consent

_logger = logging.getLogger("exit")


@dataclass(frozen=True)
class AgentBounds:
    """The waits of an agent, and the bounds on its connections.

    Attributes:
        grace_seconds: for connections under way when the battery runs low, or the hour is over.
        drain_grace_seconds: for a daemon that stops, beside the time that it has said.
        watch_seconds: between two looks at the device and its owner's wishes.
    """

    grace_seconds: float = 10.0
    drain_grace_seconds: float = 5.0
    watch_seconds: float = WATCH_SECONDS
    retries: RetryTimes = RETRIES
    carrying: CarryingBounds = CARRYING


USUAL: Final = AgentBounds()


class Stop(NamedTuple):
    """Reason why the agent ends, and whether a new start is useless."""

    words: str
    in_vain: bool


class Agent:
    """Agent of one exit; create it inside a running event loop.

    Args:
        folder: where its files are.
        now: the device's own time.
        read_power: returns why the device should rest, in words; may block.
        relays: makes the relays that carry connections here.
    """

    def __init__(
        self,
        consent: Consent,
        folder: Path,
        *,
        guard: Guard,
        now: Callable[[], datetime],
        read_power: Callable[[], str],
        relays: Callable[[asyncio.AbstractEventLoop], Relays] = make_relays,
        bounds: AgentBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._consent = consent
        self._folder = folder
        self._journal = Journal(folder / names.JOURNAL, now)
        self._relays = relays(self._loop)
        self._carrier = Carrier(
            guard=guard,
            limits=consent.limits,
            journal=self._journal,
            counted=self._judge,
            relays=self._relays,
            loop=self._loop,
            bounds=bounds.carrying,
        )
        self._restraints = Restraints(consent.limits, now, self._carrier.used_up)
        self._watcher = Watcher(
            journal=self._journal,
            restraints=self._restraints,
            surroundings=guard.surroundings,
            read_power=read_power,
            changed=self._look,
            wishes=OwnerWishes(folder / names.CONTROL, self._restraints, self._revoked),
            state=StateFile(folder / names.STATE, self.describe),
            seconds=bounds.watch_seconds,
        )
        self._attaching = Attaching(
            Doors(Node(consent.host, consent.port, consent.pin), folder / names.NODES),
            retries=AttachRetries(self._loop.time, bounds.retries),
            carrier=self._carrier,
            guard=guard,
            hello=self._hello,
            refused=self._refused,
            drain_grace_seconds=bounds.drain_grace_seconds,
        )
        self._stopped: asyncio.Future[Stop] = self._loop.create_future()

    async def run(self) -> Stop:
        """Work until the owner or the daemon ends it; leaves nothing open.

        Raises:
            FileError: the last save of the journal failed.
        """
        await self._watcher.prepare()
        tasks = [
            self._loop.create_task(self._watcher.run()),
            self._loop.create_task(self._attaching.run()),
        ]
        try:
            waiting: list[asyncio.Future[Any]] = [self._stopped, *tasks]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            return self._stopped.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._carrier.cut()
            await self._carrier.closed()
            self._relays.close()
            files.remove(self._folder / names.STATE)
            self._journal.save()

    def stop(self, words: str, *, in_vain: bool = False) -> None:
        """End it; the first reason counts."""
        if not self._stopped.done():
            self._stopped.set_result(Stop(words, in_vain))

    def describe(self) -> dict[str, Any]:
        """Return the fields of the state file."""
        return {
            "pid": os.getpid(),
            "attached": self._attaching.is_attached,
            "words": self._attaching.words,
            "paused": self._carrier.paused or self._carrier.held,
            "connections": self._carrier.connections,
            "parked": self._carrier.parked,
        }

    def _revoked(self) -> None:
        self.stop("the consent of this device was withdrawn")

    def _refused(self, words: str, *, in_vain: bool) -> None:
        self._watcher.obey()  # the owner may have withdrawn the consent here a moment ago
        if in_vain:
            self.stop(words, in_vain=True)

    def _look(self) -> None:
        self._carrier.tend()
        self._judge()

    def _judge(self) -> None:
        rest = self._restraints.judge()
        if rest.reason == self._carrier.paused:
            return
        self._carrier.pause(rest.reason)
        self._attaching.send(ExitStatus(rest.reason))
        if rest.at_once:
            self._carrier.cut()
        elif rest.reason:
            self._loop.call_later(self._bounds.grace_seconds, self._cut_after, rest)
        _logger.info(*(("resting: %s", rest.reason) if rest.reason else ("working again",)))

    def _cut_after(self, rest: Rest) -> None:
        if self._carrier.paused == rest.reason:
            self._carrier.cut()

    def _hello(self) -> Hello:
        return Hello(
            protocol=VERSION,
            token=self._consent.token,
            version=__version__,
            system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
            features=(
                CALLS,
                DENY,
                "dns",
                "lend",
                "nodes",
                SECURE,
                *((UDP,) if self._consent.limits.udp else ()),
            ),
            terms=self._consent.terms,
            paused=self._carrier.paused,
            capacity=self._carrier.capacity,
        )
