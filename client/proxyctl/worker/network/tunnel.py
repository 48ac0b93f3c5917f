"""The way into jobs that listen on ports: the daemon asks, and the device connects and dials back.

Theory of operation
-------------------
As long as an attempt with ports runs, a control connection is kept with the port where devices
attach (`protocol/frames.py`), of each daemon of the service (`doors.py`). On it that asks for one
stream after the other, each into a port of an attempt. The device compares each request with the
running attempts and with the ports that the buyer has declared: so it reaches those ports, on the
loopback of that sandbox, and nothing else of this device or its network. The socket into the job
and a connection to the daemon under TLS are then relayed as an exit relays
(`attach/relay/relay.py`): half closes, resets and slow readers go through.

Streams outlive a lost control connection, and end with their attempt and with the agent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from proxyctl import __version__
from proxyctl.attach.daemon.borrower import Borrower
from proxyctl.attach.daemon.control import (
    ATTACH_SECONDS,
    AttachError,
    keep_alive,
    open_control,
    secure_door,
)
from proxyctl.attach.relay.dial import connect as dial
from proxyctl.attach.relay.relay import AsyncioRelays
from proxyctl.protocol.frames import (
    VERSION,
    Dialled,
    DialOutcome,
    Drain,
    Frame,
    FrameError,
    Open,
    Preface,
    Sorry,
    Tunnel,
    Tunnelled,
)
from proxyctl.words import plain_line
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.network.doors import REFUSED_SECONDS, Door, Doors, doors_of
from proxyctl.worker.network.probe import connected

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from concurrent.futures import ThreadPoolExecutor
    from typing import Any

    from proxyctl.attach.daemon.control import ControlConnection
    from proxyctl.attach.daemon.secure import SecureDoor, SecureTransport
    from proxyctl.attach.network.lan import Guard
    from proxyctl.attach.relay.relay import End
    from proxyctl.attach.relay.relays import AnyRelay
    from proxyctl.worker.base.retries import Retries
    from proxyctl.worker.network.ports import Served
    from proxyctl.worker.task.allowance import Allowance

_logger = logging.getLogger("worker")

# Handshakes with the daemon at the same time; it limits those from one network.
DIALS_AT_ONCE: Final = 16
CONNECT_SECONDS: Final = 10.0  # into the sandbox, and the same time again to the daemon
_DRAIN_GRACE_SECONDS: Final = 5.0  # behind the time that a daemon takes to stop
_DRAIN_MOST_SECONDS: Final = 3600.0
_CLOSE_SECONDS: Final = 2.0  # for streams that are cut to let go of their sockets
_MISMATCH: Final = "the port for devices shows another certificate than the marketplace has named"


@dataclass(frozen=True)
class TunnelBounds:
    """Limits of streams into jobs: their number and duration.

    Attributes:
        streams_per_attempt: at once; each has two buffers and two descriptors. Most systems give a
            program 1,024 descriptors.
        streams_max: of all attempts together.
        idle_seconds: without a byte either way.
        tend_seconds: between looks at streams that are idle, or broke without a word.
        refused_seconds: until the next request to a service that has no port for this device.
    """

    streams_per_attempt: int = 256
    streams_max: int = 384
    idle_seconds: float = 3600.0
    tend_seconds: float = 30.0
    refused_seconds: float = REFUSED_SECONDS


USUAL: Final = TunnelBounds()


class JobTunnel:
    """Lets the daemon's users into jobs; a `WayIn`, and belongs to one event loop.

    Args:
        ask: returns the reply of the API to a path; blocks, and raises LinkError and RefusedError.
        guard: judges the door, if it is elsewhere than the API; None where it may not be.
        allowance: of the bytes through ports; closed with the tunnel.
        pool: of threads that may block.
    """

    def __init__(
        self,
        api: str,
        token: str,
        ask: Callable[[str], dict[str, Any]],
        guard: Guard | None,
        allowance: Allowance,
        pool: ThreadPoolExecutor,
        bounds: TunnelBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._token = token
        self._list_doors = partial(self._loop.run_in_executor, pool, ask, "/api/worker/tunnel")
        self._way = _Way(urlsplit(api).hostname or "", guard)
        self._allowance = allowance
        self._joiner = _Joiner(self._loop, allowance, pool)
        self._attempts: dict[str, _Attempt] = {}
        self._attaching: asyncio.Task[None] | None = None
        self._over: set[asyncio.Task[None]] = set()  # that were cancelled, until they have ended
        self._words = ""

    @property
    def streams(self) -> int:
        """The number of streams that are open or on their way."""
        return sum(each.streams for each in self._attempts.values())

    def serve(self, served: Served) -> None:
        """See `WayIn.serve`."""
        self._attempts[served.attempt_id] = _Attempt(served, self._allowance, self._spent)
        if self._attaching is None:
            self._attaching = self._loop.create_task(self._run())

    def forget(self, attempt_id: str) -> None:
        """See `WayIn.forget`."""
        attempt = self._attempts.pop(attempt_id, None)
        if attempt is not None:
            attempt.cut()
        if not self._attempts and self._attaching is not None:
            task, self._attaching = self._attaching, None
            task.cancel()
            self._over.add(task)
            task.add_done_callback(self._over.discard)

    async def close(self) -> None:
        """See `WayIn.close`."""
        attempts = list(self._attempts.values())
        for attempt_id in list(self._attempts):
            self.forget(attempt_id)
        tasks = {*self._over, *(each for attempt in attempts for each in attempt.opening)}
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await asyncio.sleep(0)  # sockets are closed in the next turn
        self._allowance.close()

    # --- attached --------------------------------------------------------------------------------

    async def _run(self) -> None:
        tending = self._loop.create_task(self._tend_forever())
        try:
            seconds = self._bounds.refused_seconds
            await Doors(self._doors, self._hold, self._report, refused_seconds=seconds).keep()
        finally:
            tending.cancel()
            with suppress(asyncio.CancelledError):
                await tending

    async def _hold(self, door: Door, retries: Retries) -> float:
        return await _Attachment(self, retries).hold(door, self._way.to(door))

    async def _doors(self) -> list[Door]:
        return doors_of(await self._list_doors())

    async def _tend_forever(self) -> None:
        while True:
            await asyncio.sleep(self._bounds.tend_seconds)
            before = self._loop.time() - self._bounds.idle_seconds
            for attempt in self._attempts.values():
                attempt.tend(before)

    def _is_full(self, attempt: _Attempt) -> bool:
        bounds = self._bounds
        return attempt.streams >= bounds.streams_per_attempt or self.streams >= bounds.streams_max

    def _report(self, words: str) -> None:
        if words != self._words:
            self._words = words
            _logger.info("%s", plain_line(words))

    # --- for the attachment ----------------------------------------------------------------------

    def hello(self) -> Tunnel:
        """Return the first frame."""
        return Tunnel(VERSION, self._token, __version__)

    def attached(self, host: str) -> None:
        """The daemon has taken this device in."""
        self._report(f"ports of jobs can be reached through {host}")

    def open(self, attachment: _Attachment, order: Open) -> None:
        """Begin a stream that the daemon requests, or return the reason of a refusal."""
        attempt = self._attempts.get(f"{order.job_id}-{order.attempt}")
        if attempt is None:
            outcome = DialOutcome.NOT_ALLOWED
        elif order.port not in attempt.served.ports:
            outcome = DialOutcome.REFUSED
        elif not self._allowance.left():
            outcome = DialOutcome.PAUSED
        elif self._is_full(attempt):
            outcome = DialOutcome.AT_LIMIT
        else:
            task = self._loop.create_task(self._joiner.carry(attachment, order, attempt))
            attempt.opening.add(task)

            def done(task: asyncio.Task[None]) -> None:
                attempt.opening.discard(task)
                if task.cancelled():  # the attempt has ended; perhaps before its first step
                    attachment.answer(order, DialOutcome.NOT_ALLOWED)

            task.add_done_callback(done)
            return
        attachment.answer(order, outcome)

    def _spent(self) -> None:
        """Cut everything: the limit of bytes for a day is reached."""
        self._report("the daily limit of bytes through ports of jobs is reached; no user is let in")
        for attempt in self._attempts.values():
            attempt.cut_streams()


class _Way:
    """The way to the doors that the API names.

    Args:
        api_host: the host that the owner has agreed to.
        guard: judges doors at other hosts; None where a door may be at no other host.
    """

    def __init__(self, api_host: str, guard: Guard | None) -> None:
        self._api_host = api_host
        self._guard = guard
        self._loop = asyncio.get_running_loop()

    def to(self, door: Door) -> Callable[[], Awaitable[socket.socket]] | None:
        """Return how to connect to a door; None for an ordinary connection.

        The owner has agreed to the host of the API. The guard judges any other host that the API
        names, like a host that a stranger names. Otherwise the API could make this device connect
        to programs in the owner's network.
        """
        if door.host == self._api_host:
            return None
        return partial(self._connect, door)

    async def _connect(self, door: Door) -> socket.socket:
        if self._guard is None:
            raise PermissionError("the port for devices is not at the marketplace's host")
        self._guard.surroundings.refresh()
        rows = await self._loop.getaddrinfo(self._api_host, None)
        home = ip_address(str(rows[0][4][0]).partition("%")[0])
        there = Borrower(door.host, door.port, home, self._guard, self._loop)
        return await there.connect(ATTACH_SECONDS)


class _Joiner:
    """Joins ports of jobs with work connections to the daemon.

    Args:
        pool: of threads that may block.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, allowance: Allowance, pool: ThreadPoolExecutor
    ) -> None:
        self._allowance = allowance
        self._pool = pool
        self._relays = AsyncioRelays(loop, acknowledges=True)
        self._dials = asyncio.Semaphore(DIALS_AT_ONCE)

    async def carry(self, attachment: _Attachment, order: Open, attempt: _Attempt) -> None:
        """Connect to the port of an order and to the daemon, and relay between both."""
        try:
            served = attempt.served
            target = await connected(served.connect, order.port, self._pool, CONNECT_SECONDS)
        except (OSError, TaskError) as error:
            attachment.answer(order, _outcome_of(error))
            return
        try:
            async with self._dials:
                work = await attachment.dial()
                await self._join(attachment, order, attempt, work, target)
        except OSError as error:
            target.close()
            _logger.info("job %s: a connection is lost: %s", served.attempt_id, error)
            attachment.answer(order, DialOutcome.FAILED)
        except BaseException:
            target.close()
            raise

    async def _join(
        self,
        attachment: _Attachment,
        order: Open,
        attempt: _Attempt,
        work: End,
        target: socket.socket,
    ) -> None:
        preface = attachment.preface_of(order).encode()

        def began(relay: AnyRelay) -> None:
            # Not before: the bytes of the daemon's user come right behind it, and have their way
            # now.
            attempt.relays.add(relay)
            if not self._allowance.left():  # it was on its way while the rest of the day went
                attachment.answer(order, DialOutcome.PAUSED)
                relay.abort()
                return
            cast("SecureTransport", work.transport).write_before(preface)

        try:
            await self._relays.join(
                work,
                target,
                meter=attempt,
                said=lambda _: None,
                over=attempt.relays.discard,
                began=began,
            )
        except BaseException:
            work.reset()
            raise


class _Attempt:
    """The streams into one attempt; counts their bytes.

    Args:
        spent: called when nothing may go through any more.
    """

    def __init__(self, served: Served, allowance: Allowance, spent: Callable[[], None]) -> None:
        self.served = served
        self._allowance = allowance
        self._spent = spent
        self.opening: set[asyncio.Task[None]] = set()
        self.relays: set[AnyRelay] = set()
        self.moved = 0

    @property
    def streams(self) -> int:
        """Number of streams that are open or on their way."""
        return len(self.opening) + len(self.relays)

    def count(self, size: int) -> float:
        """See `Meter.count`."""
        self.moved += size
        seconds = self._allowance.take(size)
        if not self._allowance.left():
            self._spent()
        return seconds

    def most(self) -> int:
        """See `Meter.most`."""
        return self._allowance.left()

    def tend(self, before: float) -> None:
        """Cut the streams that are broken, or idle since some time of the loop."""
        for relay in tuple(self.relays):
            if relay.moved_at < before:
                relay.abort()
            else:
                relay.tend()

    def cut(self) -> None:
        """End all of them immediately."""
        for task in tuple(self.opening):
            task.cancel()
        self.cut_streams()
        if self.moved:
            _logger.info("job %s: %d bytes through its ports", self.served.attempt_id, self.moved)

    def cut_streams(self) -> None:
        """End those that are open."""
        for relay in tuple(self.relays):
            relay.abort()


class _Attachment:
    """One control connection, as long as it lasts."""

    def __init__(self, tunnel: JobTunnel, retries: Retries) -> None:
        self._loop = asyncio.get_running_loop()
        self._tunnel = tunnel
        self._retries = retries
        self._control: ControlConnection | None = None
        self._welcomed: asyncio.Future[Tunnelled] = self._loop.create_future()
        self._sorry: Sorry | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._door: SecureDoor | None = None
        self._endpoint = ("", 0)

    async def hold(self, door: Door, way: Callable[[], Awaitable[socket.socket]] | None) -> float:
        """Attach, and stay; return for how many seconds not to come again.

        Raises:
            AttachError: there was no connection, or it was lost.
        """
        self._door = secure_door(door.host, door.certificate)
        control = await open_control(
            door.host,
            door.port,
            self._tunnel.hello(),
            pin=door.certificate,
            receive=self._receive,
            connect=way,
            mismatch=_MISMATCH,
        )
        try:
            waiting: set[asyncio.Future[Any]] = {self._welcomed, control.closed}
            await asyncio.wait(waiting, timeout=ATTACH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._welcomed.done():
                self._retries.succeeded()
                self._tunnel.attached(door.host)
                await keep_alive(control, self._welcomed.result().heartbeat_seconds)
            else:
                control.close("the daemon did not answer")
            words = await control.closed
            if self._sorry is not None:
                return self._refused(self._sorry)
            raise AttachError(words)
        finally:
            self._control = None
            if self._leaving is not None:
                self._leaving.cancel()
            control.close("nobody has to be let in any more")

    def answer(self, order: Open, outcome: DialOutcome) -> None:
        """Send the daemon the reason for a missing stream."""
        if self._control is not None:
            self._control.send(Dialled(order.number, outcome, 0, None, 0))

    def preface_of(self, order: Open) -> Preface:
        """Return the preface of the work connection for an order."""
        return Preface(self._welcomed.result().attachment, order.number, order.ticket)

    async def dial(self) -> End:
        """Open a work connection, without a byte on it yet.

        Raises:
            OSError: it cannot be opened.
        """
        assert self._door is not None  # noqa: S101 - orders come over a connection through it
        host, port = self._endpoint
        sock = await dial(ip_address(host), port, CONNECT_SECONDS)
        return await self._door.park(sock, b"", lambda: None)

    def _receive(self, control: ControlConnection, frame: Frame) -> None:
        if isinstance(frame, Sorry):
            self._sorry = frame
            control.close("the daemon refuses this device")
        elif isinstance(frame, Tunnelled):
            if self._welcomed.done():
                raise FrameError("a second welcome")
            self._endpoint = control.endpoint
            self._control = control  # orders may come before `hold` goes on
            self._welcomed.set_result(frame)
        elif isinstance(frame, Drain):
            self._drain(control, frame.seconds)
        elif isinstance(frame, Open) and self._welcomed.done():
            self._tunnel.open(self, frame)

    def _drain(self, control: ControlConnection, seconds: int) -> None:
        """Detach from a draining daemon when it has stopped; open streams continue until then."""
        if self._leaving is None:
            delay = min(seconds, _DRAIN_MOST_SECONDS) + _DRAIN_GRACE_SECONDS
            words = "the daemon is stopping"
            self._leaving = self._loop.call_later(delay, control.close, words)

    def _refused(self, sorry: Sorry) -> float:
        words = plain_line(sorry.words)
        _logger.info("ports of jobs cannot be reached: %s", words)
        if not sorry.retry_seconds:
            return REFUSED_SECONDS
        return self._retries.failed(min(sorry.retry_seconds, REFUSED_SECONDS))


def job_tunnel(
    api: str,
    token: str,
    ask: Callable[[str], dict[str, Any]],
    guard: Guard | None,
    allowance: Allowance,
) -> Callable[[ThreadPoolExecutor], JobTunnel]:
    """Return a function that makes the way in, once there is a loop; see `JobTunnel`."""
    return partial(JobTunnel, api, token, ask, guard, allowance)


def _outcome_of(error: OSError | TaskError) -> DialOutcome:
    """Return the outcome for the daemon when a job cannot be connected."""
    if isinstance(error, TaskError):
        return DialOutcome.REFUSED
    if isinstance(error, TimeoutError):
        return DialOutcome.TIMED_OUT
    if error.errno == errno.ESRCH:
        return DialOutcome.NOT_ALLOWED
    return DialOutcome.REFUSED if error.errno == errno.ECONNREFUSED else DialOutcome.FAILED
