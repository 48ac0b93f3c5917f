"""Keeps the exit attached to one node of the service at a time.

When a node is gone or drains, each of the other nodes that the exit knows (`doors.py`) is tried
once without delay. After that all of them are tried, with growing pauses (`retries.py`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from proxyctl.attach.daemon.borrower import Borrower
from proxyctl.attach.daemon.control import (
    ATTACH_SECONDS,
    AttachError,
    ControlConnection,
    keep_alive,
    open_control,
    secure_door,
)
from proxyctl.exit.base.record import AGREE
from proxyctl.protocol.frames import Drain, ExitStatus, Frame, Hello, Node, Nodes, Sorry, Welcome
from proxyctl.words import plain_line

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from typing import Protocol

    from proxyctl.attach.network.lan import Guard
    from proxyctl.exit.agent.doors import Doors
    from proxyctl.exit.base.retries import AttachRetries
    from proxyctl.exit.carrying.carrier import Carrier
    from proxyctl.protocol.addresses import Address

    class Refused(Protocol):
        """Callback for a daemon that refuses this exit."""

        def __call__(self, words: str, *, in_vain: bool) -> None:
            """Act on a refusal; `in_vain` means that this exit should not attach again."""


OBEYED_MAX_SECONDS: Final = 86_400  # longest pause that the exit accepts from a daemon: one day
# Codes of refusals that another node may not share at this moment.
_ELSEWHERE: Final = ("stopping", "too_many_exits", "too_many_on_network", "unavailable")

# The remedies of the owner for a refusal. The words of the daemon come before them.
_HINTS: Final = {
    "terms_changed": f"the terms have changed and need your consent again; {AGREE}",
    "consent_needed": "log in to your account and accept the terms for this device there as well",
    "worker_unauthorized": f"the token of this device is no longer valid; {AGREE}",
}

_logger = logging.getLogger("exit")


class Attaching:
    """Attaches to the nodes of the service, and again after each end, until its task is cancelled.

    Attributes:
        words: the state of the attachment, for the owner.

    Args:
        guard: judges the addresses of nodes that a daemon named.
        refused: called when a daemon refuses this exit.
        drain_grace_seconds: added to the time that a stopping daemon names.
    """

    def __init__(
        self,
        doors: Doors,
        *,
        retries: AttachRetries,
        carrier: Carrier,
        guard: Guard,
        hello: Callable[[], Hello],
        refused: Refused,
        drain_grace_seconds: float,
    ) -> None:
        self.words = "starting"
        self._doors = doors
        self._retries = retries
        self._carrier = carrier
        self._dialer = _NodeDialer(guard)
        self._hello = hello
        self._refused = refused
        self._drain_grace_seconds = drain_grace_seconds
        self._loop = asyncio.get_running_loop()
        self._attachment: _Attachment | None = None

    @property
    def is_attached(self) -> bool:
        """Whether a daemon has welcomed this exit and the connection is still open."""
        return self._attachment is not None and self._attachment.control is not None

    def send(self, frame: Frame) -> None:
        """Send a frame to the daemon that has welcomed this exit, if there is one."""
        if self._attachment is not None and self._attachment.control is not None:
            self._attachment.control.send(frame)

    async def run(self) -> None:
        """Attach again whenever the connection is lost, until this task is cancelled."""
        while True:
            seconds = 0.0
            attachment = self._attachment = _Attachment(self._loop)
            try:
                seconds += await self._attach(attachment)
            except AttachError as error:
                self._report(f"not attached: {error}")
            finally:
                attachment.end_timer()
                self._attachment = None
            if seconds or not self._doors.is_untried:
                seconds += self._retries.delay(is_exhausted=self._doors.is_exhausted)
            elif attachment.moves_at is None:
                seconds = self._retries.short_delay()
            else:
                seconds = max(attachment.moves_at - self._loop.time(), 0)
            await asyncio.sleep(seconds)

    async def _attach(self, attachment: _Attachment) -> int:
        """Attach, and return when the connection is lost.

        Returns:
            the seconds until the next attempt is allowed.

        Raises:
            AttachError: there was no connection, or it was lost.
        """
        welcomed = attachment.welcomed
        node = self._doors.current
        try:
            control = await open_control(
                node.host,
                node.port,
                self._hello(),
                pin=node.certificate,
                receive=partial(self._receive, attachment),
                connect=None if self._doors.is_agreed else self._dialer.connector(node),
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
                if attachment.sorry is None or attachment.sorry.code in _ELSEWHERE:
                    is_rare = self._retries.lose(self._loop.time() - began)
                    self._doors.leave(in_a_hurry=is_rare)
            else:
                control.close("the daemon did not answer")
                if attachment.sorry is None:
                    self._doors.fail()
            words = plain_line(await control.closed)
            if attachment.sorry is not None:
                return self._heed(attachment.sorry, was_welcome=welcomed.done())
            raise AttachError(words)
        finally:
            attachment.control = None
            attachment.end_timer()
            self._carrier.detach()
            control.close("the exit has ended")

    def _receive(self, attachment: _Attachment, control: ControlConnection, frame: Frame) -> None:
        if isinstance(frame, Sorry):  # the first frame, or later after a withdrawal
            attachment.sorry = frame
            control.close("the daemon refuses this exit")
        elif isinstance(frame, Welcome):
            if attachment.welcomed.done():
                control.close("the daemon does not speak the protocol: it welcomes twice")
                return
            attachment.welcomed.set_result(frame)
            attachment.control = control
            self._welcome(control, frame)
        elif isinstance(frame, Drain):
            self._drain(attachment, control, frame.seconds)
        elif isinstance(frame, Nodes):
            self._doors.learn(frame.nodes)
        else:
            self._carrier.receive(frame)

    def _drain(self, attachment: _Attachment, control: ControlConnection, seconds: int) -> None:
        """Leave a daemon that stops: soon for another node, otherwise after it has stopped.

        Relays continue. A second Drain frame changes nothing.
        """
        if attachment.is_leaving:
            return
        words = "the daemon is stopping"
        if self._doors.has_others:
            _logger.info("the daemon stops within %d s; attaching to another node", seconds)
            # If the daemon stops before this time, the exit moves to another node at the same time.
            attachment.moves_at = self._loop.time() + self._retries.short_delay()
            attachment.close_at(control, attachment.moves_at, words)
            return
        _logger.info("the daemon stops within %d s; attaching again after that", seconds)
        delay = seconds + self._drain_grace_seconds
        attachment.close_at(control, self._loop.time() + delay, words)

    def _welcome(self, control: ControlConnection, welcome: Welcome) -> None:
        host, port = control.endpoint
        if self._doors.is_agreed:
            self._dialer.home = ip_address(host)
        self._doors.attached()
        self._carrier.attach(
            welcome,
            ip_address(host),
            port,
            control.send,
            secure_door(self._doors.current.host, self._doors.current.certificate),
        )
        control.send(ExitStatus(self._carrier.paused))  # the state may have changed since the Hello
        place = ", ".join(filter(None, (welcome.city, welcome.country.upper())))
        self._report(
            plain_line(
                f"attached to {self._doors.current.host}, which sees {welcome.address}"
                f" ({place or 'place unknown'})"
            )
        )

    def _heed(self, sorry: Sorry, *, was_welcome: bool) -> int:
        """Act on a refusal; return the seconds until the next attempt is allowed."""
        hint = _HINTS.get(sorry.code)
        words = plain_line(f"the daemon refuses this exit: {sorry.words}")
        words = f"{words.rstrip('.')}; {hint}" if hint else words
        if sorry.code in _ELSEWHERE and self._doors.has_others:
            if not was_welcome:  # after a welcome, `leave` has moved to the next node already
                self._doors.fail()
            self._report(words)
            return 0
        self._carrier.cut()
        self._report(words)
        self._refused(words, in_vain=not sorry.retry_seconds or sorry.code == "terms_changed")
        return min(sorry.retry_seconds, OBEYED_MAX_SECONDS)

    def _report(self, words: str) -> None:
        """Log a new state of the attachment once, and keep it for the state file."""
        if words != self.words:
            _logger.info("%s", words)
        self.words = words


class _Attachment:
    """One control connection: its welcome, its refusal, and the timer that closes it.

    Attributes:
        control: the connection, from the welcome to its end.
        welcomed: set to the Welcome frame.
        sorry: the refusal of the daemon, if it sent one.
        moves_at: the time of the loop's clock to attach to another node.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.control: ControlConnection | None = None
        self.welcomed: asyncio.Future[Welcome] = loop.create_future()
        self.sorry: Sorry | None = None
        self.moves_at: float | None = None
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether the connection will be closed because the daemon stops."""
        return self._timer is not None

    def close_at(self, control: ControlConnection, when: float, words: str) -> None:
        """Close the connection at a time of the loop's clock."""
        self._timer = self._loop.call_at(when, control.close, words)

    def end_timer(self) -> None:
        """Cancel the timer that closes the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _NodeDialer:
    """Connects to nodes that a daemon has named, because a daemon may lie about their addresses.

    Attributes:
        home: the address at which the exit reached the place that its owner agreed to.
    """

    def __init__(self, guard: Guard) -> None:
        self.home: Address | None = None
        self._guard = guard

    def connector(self, node: Node) -> Callable[[], Awaitable[socket.socket]]:
        """Return a function that connects to a node, if the guard permits its address."""
        self._guard.surroundings.refresh()  # the device may be on another network by now
        loop = asyncio.get_running_loop()
        there = Borrower(node.host, node.port, self.home, self._guard, loop)
        return partial(there.connect, ATTACH_SECONDS)
