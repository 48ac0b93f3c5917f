"""The exit itself: attaches to the daemon, again and again, and carries what its owner lets it.

Theory of operation
-------------------
One task holds the control connection, one at a time (`_attach_forever`), with one of the nodes that
it knows (`doors.py`): when one is gone or drains, each of the others is tried once without delay,
and after that all of them, further and further apart (`retries.py`). Another task watches the
device (`watcher.py`). If there is a reason to rest, the daemon is told, nothing new is taken, and
what is under way is cut, at once or after a grace.

Relays outlive a lost control connection: each is a connection of its own, and the daemon decides
whether it still wants it. They end with the agent, with a rest, and when the daemon says that this
exit may not attach.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxyctl import __version__, files
from proxyctl.attach.daemon.borrower import Borrower
from proxyctl.attach.daemon.control import (
    ATTACH_SECONDS,
    AttachError,
    ControlConnection,
    keep_alive,
    open_control,
    secure_door,
)
from proxyctl.attach.relay.relays import make_relays
from proxyctl.exit.agent.doors import Doors
from proxyctl.exit.agent.restraints import Rest, Restraints
from proxyctl.exit.agent.watcher import WATCH_SECONDS, Watcher
from proxyctl.exit.base import names
from proxyctl.exit.base.journal import Journal
from proxyctl.exit.base.record import AGREE
from proxyctl.exit.base.retries import USUAL as RETRIES
from proxyctl.exit.base.retries import AttachRetries, RetryTimes
from proxyctl.exit.carrying.carrier import USUAL as CARRYING
from proxyctl.exit.carrying.carrier import Carrier, CarryingBounds
from proxyctl.protocol.frames import (
    CALLS,
    DENY,
    SECURE,
    UDP,
    VERSION,
    Drain,
    Frame,
    Hello,
    Node,
    Nodes,
    Sorry,
    State,
    Welcome,
)
from proxyctl.words import plain_line

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from datetime import datetime
    from pathlib import Path

    from proxyctl.attach.network.lan import Guard
    from proxyctl.attach.relay.relays import Relays
    from proxyctl.exit.base.record import Consent
    from proxyctl.protocol.addresses import Address

OBEYED_MAX_SECONDS: Final = 86_400  # a daemon that says "in a year" is asked again tomorrow
# Another node may let in what this one does not, now.
_ELSEWHERE: Final = ("stopping", "too_many_exits", "too_many_on_network", "unavailable")

# What an owner can do about a refusal; the daemon's own words come first.
_HINTS: Final = {
    "terms_changed": f"the terms have changed and need your consent again; {AGREE}",
    "consent_needed": "log in to your account and accept the terms for this device there, too",
    "worker_unauthorized": f"the token of this device is no longer valid; {AGREE}",
}

_logger = logging.getLogger("exit")


@dataclass(frozen=True)
class AgentBounds:
    """The waits of an agent, and the bounds on its connections.

    Attributes:
        grace_seconds: for connections under way when the battery runs low, or the hour is over.
        drain_grace_seconds: for a daemon that stops, beside the time that it has said.
        watch_seconds: between two looks at the device and its owner's wishes.
        retries: between attempts to attach.
        carrying: the bounds on connections.
    """

    grace_seconds: float = 10.0
    drain_grace_seconds: float = 5.0
    watch_seconds: float = WATCH_SECONDS
    retries: RetryTimes = RETRIES
    carrying: CarryingBounds = CARRYING


USUAL: Final = AgentBounds()


class Stop(NamedTuple):
    """Why the agent ends: in words, and whether to start it again is in vain."""

    words: str
    in_vain: bool


class Agent:
    """One exit; made inside of a running event loop.

    Args:
        consent: what its owner agreed to.
        folder: where its files are.
        guard: judges where connections may go.
        now: the device's own time.
        read_power: returns why the device should rest, in words; may block.
        relays: makes what carries connections here.
        bounds: its waits, and the bounds on its connections.
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
        self._guard = guard
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
            folder=folder,
            journal=self._journal,
            restraints=self._restraints,
            surroundings=guard.surroundings,
            read_power=read_power,
            changed=self._look,
            revoked=lambda: self.stop("the consent of this device was withdrawn"),
            describe=self.describe,
            seconds=bounds.watch_seconds,
        )
        self._control: ControlConnection | None = None
        self._welcomed: asyncio.Future[Welcome] | None = None
        self._sorry: Sorry | None = None
        self._words = "starting"
        home = Node(consent.host, consent.port, consent.pin)
        self._doors = Doors(home, folder / names.NODES)
        self._retries = AttachRetries(self._loop.time, bounds.retries)
        self._home_address: Address | None = None  # where that was reached
        self._leaving: asyncio.TimerHandle | None = None  # a daemon that stops
        self._moves_at: float | None = None  # from it to another one, by the loop's clock
        self._stopped: asyncio.Future[Stop] = self._loop.create_future()

    async def run(self) -> Stop:
        """Work until the owner or the daemon ends it; leaves nothing open.

        Raises:
            FileError: the journal cannot be written in the end.
        """
        await self._watcher.prepare()
        tasks = [
            self._loop.create_task(self._watcher.run()),
            self._loop.create_task(self._attach_forever()),
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
        """Return what the state file says."""
        return {
            "pid": os.getpid(),
            "attached": self._control is not None,
            "words": self._words,
            "paused": self._carrier.paused or self._carrier.held,
            "connections": self._carrier.connections,
            "parked": self._carrier.parked,
        }

    async def _attach_forever(self) -> None:
        while True:
            seconds = 0.0
            try:
                seconds += await self._attach_once()
            except AttachError as error:
                self._say(f"not attached: {error}")
            if seconds or not self._doors.is_untried:
                seconds += self._retries.delay(is_exhausted=self._doors.is_exhausted)
            elif self._moves_at is None:
                seconds = self._retries.short_delay()
            else:
                seconds = max(self._moves_at - self._loop.time(), 0)
            self._moves_at = None
            await asyncio.sleep(seconds)

    async def _attach_once(self) -> int:
        """Attach, and stay until the connection is lost.

        Returns:
            for how many seconds not to come again.

        Raises:
            AttachError: there was no connection, or it was lost.
        """
        welcomed = self._welcomed = self._loop.create_future()
        node = self._doors.current
        try:
            control = await open_control(
                node.host,
                node.port,
                self._hello(),
                pin=node.certificate,
                receive=self._receive,
                connect=None if self._doors.is_agreed else self._judged(node),
            )
        except AttachError:
            self._doors.fail()
            raise
        try:
            waiting: list[asyncio.Future[Any]] = [welcomed, control.closed]
            await asyncio.wait(waiting, timeout=ATTACH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if welcomed.done():
                began = self._loop.time()
                await keep_alive(control, welcomed.result().heartbeat_seconds)
                if self._sorry is None or self._sorry.code in _ELSEWHERE:
                    is_rare = self._retries.lose(self._loop.time() - began)
                    self._doors.leave(in_a_hurry=is_rare)
            else:
                control.close("the daemon did not answer")
                if self._sorry is None:
                    self._doors.fail()
            words = plain_line(await control.closed)
            if self._sorry is not None:
                return self._refused(self._sorry, was_welcome=welcomed.done())
            raise AttachError(words)
        finally:
            self._control = self._sorry = None
            if self._leaving is not None:
                self._leaving.cancel()
                self._leaving = None
            self._carrier.detach()
            control.close("the exit has ended")

    def _judged(self, node: Node) -> Callable[[], Awaitable[socket.socket]]:
        """Return how to connect to a node that a daemon has named: it may lie about where it is."""
        home, guard = self._home_address, self._guard
        guard.surroundings.refresh()  # the device may be elsewhere by now
        there = Borrower(node.host, node.port, home, guard, self._loop)
        return partial(there.connect, ATTACH_SECONDS)

    def _receive(self, control: ControlConnection, frame: Frame) -> None:
        if isinstance(frame, Sorry):  # at first, or whenever something was withdrawn
            self._sorry = frame
            control.close("the daemon refuses this exit")
        elif isinstance(frame, Welcome):
            if self._welcomed is None or self._welcomed.done():
                control.close("the daemon does not speak the protocol: it welcomes twice")
                return
            self._welcomed.set_result(frame)
            self._welcome(control, frame)
        elif isinstance(frame, Drain):
            self._drain(control, frame.seconds)
        elif isinstance(frame, Nodes):
            self._doors.learn(frame.nodes)
        else:
            self._carrier.receive(frame)

    def _drain(self, control: ControlConnection, seconds: int) -> None:
        """Leave a daemon that stops: at once for another node, else when it has stopped.

        What is carried goes on. That it says so again changes nothing.
        """
        if self._leaving is not None:
            return
        if self._doors.has_others:
            _logger.info("the daemon stops within %d s; attaching to another node", seconds)
            # It may stop before that, and is left for another node all the same.
            self._moves_at = self._loop.time() + self._retries.short_delay()
            words = "the daemon is stopping"
            self._leaving = self._loop.call_at(self._moves_at, control.close, words)
            return
        _logger.info("the daemon stops within %d s; attaching anew after that", seconds)
        delay = seconds + self._bounds.drain_grace_seconds
        self._leaving = self._loop.call_later(delay, control.close, "the daemon is stopping")

    def _welcome(self, control: ControlConnection, welcome: Welcome) -> None:
        host, port = control.endpoint
        self._control = control
        if self._doors.is_agreed:
            self._home_address = ip_address(host)
        self._doors.attached()
        self._carrier.attach(
            welcome,
            ip_address(host),
            port,
            control.send,
            secure_door(self._doors.current.host, self._doors.current.certificate),
        )
        control.send(State(self._carrier.paused))  # it may have changed since the Hello
        place = ", ".join(filter(None, (welcome.city, welcome.country.upper())))
        self._say(
            plain_line(
                f"attached to {self._doors.current.host}, which sees {welcome.address}"
                f" ({place or 'place unknown'})"
            )
        )

    def _refused(self, sorry: Sorry, *, was_welcome: bool) -> int:
        hint = _HINTS.get(sorry.code)
        words = plain_line(f"the daemon refuses this exit: {sorry.words}")
        words = f"{words.rstrip('.')}; {hint}" if hint else words
        if sorry.code in _ELSEWHERE and self._doors.has_others:
            if not was_welcome:  # else it has left it already
                self._doors.fail()
            self._say(words)
            return 0
        self._carrier.cut()
        self._say(words)
        self._watcher.obey()  # it may be refused because its owner has just withdrawn it here
        if not sorry.retry_seconds or sorry.code == "terms_changed":
            self.stop(words, in_vain=True)
        return min(sorry.retry_seconds, OBEYED_MAX_SECONDS)

    def _look(self) -> None:
        self._carrier.tend()
        self._judge()

    def _judge(self) -> None:
        rest = self._restraints.judge()
        if rest.reason == self._carrier.paused:
            return
        self._carrier.pause(rest.reason)
        if self._control is not None:
            self._control.send(State(rest.reason))
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

    def _say(self, words: str) -> None:
        if words != self._words:
            _logger.info("%s", words)
        self._words = words
