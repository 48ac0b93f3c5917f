"""Tunnels: streams into jobs that run on devices, which nobody can reach from outside.

Theory of operation
-------------------
A device that holds an attempt with ports is attached to the exits' port as a worker (`Tunnel` in
`proxyctl.protocol.frames`); it is no exit by that, and asks for no consent. Whoever wants a stream
into a job (`Tunnels.open`) has the device asked for one, with a ticket. The device connects to the
port inside the job's sandbox, and opens a work connection under TLS that shows the ticket. That is
joined to a pair of sockets, as the exits' are (`secure.py`), one of which is the stream.

The device is not trusted: a ticket lets one connection in, once, and only while somebody waits for
it; what it may send on its control connection is bounded; and it may have so many streams and no
more. Streams outlive a lost control connection, as the device may be back in a second. They do not
outlive the device's token.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from secrets import randbits, token_bytes
from typing import Final, Protocol, final

from market.base.errors import MarketError
from proxyctl.protocol.frames import (
    PING_BYTES,
    TICKET_BYTES,
    Dialled,
    Drain,
    Frame,
    FrameError,
    FrameReader,
    Open,
    Outcome,
    Ping,
    Pong,
    Preface,
    Sorry,
    Tunnel,
    Tunnelled,
    encode,
)
from proxyd.exits.attached.attached import ATTACHMENT_BITS, SILENT_BEATS
from proxyd.exits.attached.control import (
    AGAIN_SECONDS,
    ANSWER_BYTES,
    BURST_BYTES,
    BYTES_PER_SECOND,
    GOODBYE_SECONDS,
    OLDEST_PROTOCOL,
    SOON_SECONDS,
    Control,
)
from proxyd.exits.attached.control import USUAL as CONTROL
from proxyd.exits.attached.secure import Seal, make_pair
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.loop.reactor import Reactor
from storage.engines.errors import StoreError, level_of

AWAY: Final = "away"  # the device has no tunnel here
REFUSED: Final = "refused"  # nobody listens on the port, or the job has not declared it
GONE: Final = "gone"  # the device does not run this attempt
TIMEOUT: Final = "timeout"  # the device did not answer in time
BUSY: Final = "busy"  # as many streams are open as may be
PAUSED: Final = "paused"  # as much has gone through as the device's owner allows in a day

BUYERS_SHARE: Final = 4  # of all streams, one buyer's are a quarter at most
OWNERS_SHARE: Final = 2  # of all devices that may be attached, one owner's are half at most
IDLE_SECONDS = 3600.0  # without a byte either way; a notebook whose reader is at lunch is not over
SWEEP_SECONDS: Final = 60.0  # between looks for idle streams

NO_PORTS: Final = "This device runs no job that listens on ports."
_REASONS: Final = {
    Outcome.NOT_ALLOWED: GONE,
    Outcome.PAUSED: PAUSED,
    Outcome.TIMED_OUT: TIMEOUT,
    Outcome.AT_LIMIT: BUSY,
}
_logger = logging.getLogger("tunnels")


@dataclass(frozen=True, slots=True)
class TunnelBounds:
    """How many streams a device has, and how often tokens are looked at.

    Attributes:
        streams_per_device: open and on their way; its agent holds fewer.
        recheck_seconds: between looks for tokens that another node has revoked. A token that this
            node has revoked comes as a call.
    """

    streams_per_device: int = 512
    recheck_seconds: float = 5.0


USUAL: Final = TunnelBounds()


class TunnelError(Exception):
    """There is no stream into a job.

    Args:
        reason: `AWAY`, `REFUSED`, `GONE`, `TIMEOUT`, `BUSY` or `PAUSED`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tunnels(Protocol):
    """Opens streams into jobs; belongs to one event loop."""

    async def open(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        """Return a stream into a job.

        Its other end is the job's own 127.0.0.1:port inside its sandbox. Each way ends by itself
        (`shutdown`), a reset is a reset, and who reads slowly makes the other side wait.

        Args:
            device_id: that runs the attempt.
            job_id: of the job.
            attempt: its number, from 1.
            port: that the job's payload declares.
            seconds: after which it is given up.
            buyer_id: whose job it is; one buyer has a part of all streams.

        Returns:
            a connected TCP socket, non-blocking; the caller's to close.

        Raises:
            TunnelError: why there is none.
        """

    def is_attached(self, device_id: str) -> bool:
        """Say whether a device can be asked for streams now; any open may fail all the same."""


class WorkerId(Protocol):
    """What is known of a device that has shown its token."""

    @property
    def id(self) -> str:
        """Which device it is."""

    @property
    def user_id(self) -> str:
        """Whose it is."""


class WorkerAuthority(Protocol):
    """Knows worker tokens."""

    async def authenticate(self, token: str) -> WorkerId:
        """Return the device that a token belongs to.

        Raises:
            MarketError: it is nobody's, or was revoked; in words for its owner.
            StoreError: that cannot be said now.
        """

    async def revoked_among(self, device_ids: Sequence[str]) -> list[str]:
        """Return those of some devices whose tokens were revoked; raises StoreError."""

    async def listening_among(self, device_ids: Sequence[str]) -> list[str]:
        """Return those that hold an open attempt at a job with ports; raises StoreError."""


# More than 12 fields: what it was given, who is attached, the streams, and what was counted.
@final
class DeviceTunnels(Tunnels):
    """The devices that are attached as workers, and the streams into their jobs.

    `attached` and `gone` (by reason) count devices, `opens` what became of opens (by outcome).

    Args:
        reactor: what the sockets of the loop share.
        authority: knows worker tokens.
        most: how many streams may be open in all, and how many devices may be attached.
        heartbeat_seconds: how often a device is asked whether it is there.
        bounds: how many streams a device has, and how often tokens are looked at.
    """

    def __init__(
        self,
        reactor: Reactor,
        authority: WorkerAuthority,
        most: int,
        heartbeat_seconds: float,
        bounds: TunnelBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self.most = most
        self.heartbeat_seconds = heartbeat_seconds
        self.attached = 0
        self.gone: Counter[str] = Counter()
        self.opens: Counter[str] = Counter()
        self._reactor = reactor
        self._authority = authority
        self._by_device: dict[str, _Worker] = {}
        self._by_attachment: dict[int, _Worker] = {}
        self._streams: dict[Seal, _Stream] = {}
        self._per_device: Counter[str] = Counter()  # of streams
        self._per_buyer: Counter[str] = Counter()  # of streams, and of opens without an answer
        self._per_owner: Counter[str] = Counter()  # of devices that are attached
        self._waiting = 0  # opens without an answer
        self._received = self._sent = 0  # bytes of streams that are over
        self._tasks = OwnedTasks(reactor.loop, _logger, "serving a worker failed")
        self._watch: asyncio.Task[None] | None = None
        self._is_draining = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._by_device)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    @property
    def moved(self) -> tuple[int, int]:
        """How many bytes have come from jobs, and gone to them, since the start."""
        received = sum(each.received for each in self._streams)
        sent = sum(each.sent for each in self._streams)
        return self._received + received, self._sent + sent

    # --- for those who want streams --------------------------------------------------------------

    def is_attached(self, device_id: str) -> bool:
        """See `Tunnels.is_attached`."""
        return device_id in self._by_device

    async def open(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        """See `Tunnels.open`."""
        self._per_buyer[buyer_id] += 1  # until there is a stream, or none
        try:
            if self._per_buyer[buyer_id] > max(1, self.most // BUYERS_SHARE):
                raise TunnelError(BUSY)
            sock = await self._open(device_id, job_id, attempt, port, seconds, buyer_id)
        except TunnelError as error:
            self.opens[error.reason] += 1
            raise
        finally:
            _count_down(self._per_buyer, buyer_id)
        self.opens["open"] += 1
        return sock

    async def _open(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        worker = self._by_device.get(device_id)
        if worker is None:
            raise TunnelError(AWAY)
        own = len(worker.orders) + self._per_device[device_id]
        is_full = self._waiting + len(self._streams) >= self.most
        if is_full or own >= self._bounds.streams_per_device:
            raise TunnelError(BUSY)
        order = _Order(self._reactor.loop.create_future(), buyer_id)
        number = worker.add(order)
        self._waiting += 1
        try:
            worker.send(Open(number, order.ticket, job_id, attempt, port))
            await asyncio.wait({order.answer}, timeout=seconds)
            if not order.answer.done():
                raise TunnelError(TIMEOUT)
            return order.answer.result()
        except asyncio.CancelledError:
            order.give_up()
            raise
        finally:
            self._waiting -= 1
            worker.orders.pop(number, None)
            order.answer.cancel()  # who comes from now on, comes for nobody

    # --- for the port ----------------------------------------------------------------------------

    async def welcome(self, control: Control, hello: Tunnel) -> None:
        """See `Workers.welcome`."""
        if hello.protocol < OLDEST_PROTOCOL:
            words = "This program is too old for the service; update it."
            control.refuse("version_too_old", words, 0)
            return
        if self._is_draining:
            control.refuse("stopping", "The service stops here; come again.", SOON_SECONDS)
            return
        try:
            device = await self._authority.authenticate(hello.token)
            device_id = device.id
            # It may have been revoked while it was looked up, and nobody watches it yet.
            is_revoked = bool(await self._authority.revoked_among([device_id]))
            has_ports = bool(await self._authority.listening_among([device_id]))
        except MarketError as error:
            control.refuse(error.code.word, error.message, 0)
            return
        except StoreError as error:
            _logger.log(
                level_of(error, logging.WARNING),
                "worker at %s: cannot be looked up now: %s",
                control.address,
                error,
            )
            words = "The service cannot look this device up right now."
            control.refuse("unavailable", words, SOON_SECONDS)
            return
        if is_revoked:
            control.refuse("worker_unauthorized", "The token of this device was revoked.", 0)
        elif not has_ports:
            control.refuse("no_ports", NO_PORTS, SOON_SECONDS)
        elif len(self._by_device) >= self.most and device_id not in self._by_device:
            words = "As many devices are attached as may be."
            control.refuse("too_many_devices", words, AGAIN_SECONDS)
        elif self._has_many(device.user_id) and device_id not in self._by_device:
            words = "As many devices of this account are attached as may be."
            control.refuse("too_many_devices", words, AGAIN_SECONDS)
        elif not control.is_over:
            self._attach(control, device)

    def admit(self, control: Control, preface: Preface, rest: bytes) -> None:
        """See `Workers.admit`."""
        worker = self._by_attachment.get(preface.attachment)
        order = None if worker is None else worker.orders.get(preface.number)
        if worker is None or order is None or not order.takes(preface.ticket):
            control.cut("ticket")
            return
        transport = control.hand_over()
        transport.pause_reading()  # until there is somebody to hand it on to
        try:
            sock, other = make_pair()
        except OSError as error:
            _logger.warning("a stream into a job is closed: %s", error)
            transport.abort()
            order.fail(BUSY)
            return
        seal = Seal(transport, other, self._reactor.poller, self._over)
        self._streams[seal] = _Stream(worker.device_id, order.buyer_id, self._reactor.loop.time())
        self._per_device[worker.device_id] += 1
        self._per_buyer[order.buyer_id] += 1
        join = self._tasks.spawn(_join(order, sock, seal, transport, rest, self._over))

        def joined(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # perhaps before its first step
                sock.close()
                other.close()

        join.add_done_callback(joined)

    def recheck(self, device_id: str) -> None:
        """See `Workers.recheck`."""
        if device_id in self._by_device or self._per_device[device_id]:
            self._tasks.spawn(self._recheck([device_id]))

    def drain(self, seconds: float) -> None:
        """See `Workers.drain`."""
        self._is_draining = True
        for worker in tuple(self._by_device.values()):
            worker.send(Drain(max(1, round(seconds))))

    def close(self) -> None:
        """See `Workers.close`."""
        self._is_closed = True
        for worker in tuple(self._by_device.values()):
            worker.cut("stopping")
        for seal in tuple(self._streams):
            seal.abort()
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """See `Workers.wait_closed`."""
        await self._tasks.wait()

    # --- workers ---------------------------------------------------------------------------------

    def _has_many(self, owner_id: str) -> bool:
        return self._per_owner[owner_id] >= max(1, self.most // OWNERS_SHARE)

    def _attach(self, control: Control, device: WorkerId) -> None:
        device_id = device.id
        older = self._by_device.get(device_id)
        if older is not None:
            older.refuse("attached_again", "The same device has attached again.", AGAIN_SECONDS)
        attachment = self._fresh()
        worker = _Worker(self, device, attachment, self._reactor.loop)
        self._by_device[device_id] = worker
        self._per_owner[device.user_id] += 1
        self._by_attachment[attachment] = worker
        worker.begin(control.hand_over())
        self.attached += 1
        worker.send(Tunnelled(attachment, max(1, round(self.heartbeat_seconds))))
        _logger.info("worker %s: attached from %s", device_id, control.address)
        if self._watch is None:
            self._watch = self._tasks.spawn(self._keep_watch())

    def lost(self, worker: "_Worker", reason: str) -> None:
        """One is attached no more."""
        del self._by_attachment[worker.attachment]
        _count_down(self._per_owner, worker.owner_id)
        if self._by_device.get(worker.device_id) is worker:
            del self._by_device[worker.device_id]
        self.gone[reason] += 1
        _logger.info("worker %s: gone: %s", worker.device_id, reason)
        for order in tuple(worker.orders.values()):
            if not order.is_taken:
                order.fail(AWAY)

    def _fresh(self) -> int:
        """Return a number that no worker has, and that is guessed no more easily than a ticket."""
        while True:
            number = randbits(ATTACHMENT_BITS)
            if number and number not in self._by_attachment:
                return number

    async def _keep_watch(self) -> None:
        """Look after tokens and idle streams, from the first worker on."""
        loop = self._reactor.loop
        swept_at = loop.time()
        while True:
            await asyncio.sleep(self._bounds.recheck_seconds)
            devices = set(self._per_device) | set(self._by_device)
            await self._recheck(list(devices))
            if loop.time() - swept_at >= SWEEP_SECONDS:
                swept_at = loop.time()
                self.sweep(swept_at)
                await self.dismiss()

    def sweep(self, now: float) -> None:
        """Cut streams through which nothing has gone for long; `now` is the loop's time."""
        for seal, stream in tuple(self._streams.items()):
            moved = seal.received + seal.sent
            if moved != stream.moved:
                stream.moved, stream.moved_at = moved, now
            elif now - stream.moved_at >= IDLE_SECONDS:
                seal.abort()

    async def dismiss(self) -> None:
        """Let go of devices that run no job with ports any more, and have not left."""
        attached = list(self._by_device)
        if not attached:
            return
        try:
            needed = set(await self._authority.listening_among(attached))
        except StoreError as error:  # it is asked again
            _logger.log(
                level_of(error, logging.WARNING), "workers cannot be looked up now: %s", error
            )
            return
        for device_id in attached:
            worker = self._by_device.get(device_id)
            if worker is not None and device_id not in needed:
                worker.refuse("no_ports", NO_PORTS, SOON_SECONDS)

    async def _recheck(self, device_ids: Sequence[str]) -> None:
        """Cut the devices whose tokens were revoked, with all that goes through them."""
        if not device_ids:
            return
        try:
            revoked = set(await self._authority.revoked_among(device_ids))
        except StoreError as error:  # it is asked again
            _logger.log(
                level_of(error, logging.WARNING), "workers cannot be looked up now: %s", error
            )
            return
        for device_id in revoked:
            worker = self._by_device.get(device_id)
            if worker is not None:
                words = "The token of this device was revoked."
                worker.refuse("worker_unauthorized", words, 0)
            for seal, stream in tuple(self._streams.items()):
                if stream.device_id == device_id:
                    seal.abort()

    def _over(self, seal: Seal) -> None:
        """A stream is over; hearing of it twice is harmless."""
        stream = self._streams.pop(seal, None)
        if stream is not None:
            _count_down(self._per_device, stream.device_id)
            _count_down(self._per_buyer, stream.buyer_id)
            self._received += seal.received
            self._sent += seal.sent
            _logger.debug(
                "stream into %s: %d bytes in, %d out", stream.device_id, seal.received, seal.sent
            )


class _Stream:
    """What is kept of a stream: whose it is, and when a byte was last seen to have moved."""

    __slots__ = ("buyer_id", "device_id", "moved", "moved_at")

    def __init__(self, device_id: str, buyer_id: str, now: float) -> None:
        self.device_id = device_id
        self.buyer_id = buyer_id
        self.moved = 0
        self.moved_at = now


def _count_down(counts: Counter[str], key: str) -> None:
    """Count one less, and keep no zeroes."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class _Order:
    """Somebody waits for a stream; the ticket lets one connection in, once."""

    __slots__ = ("answer", "buyer_id", "is_taken", "ticket")

    def __init__(self, answer: asyncio.Future[socket.socket], buyer_id: str) -> None:
        self.answer = answer
        self.buyer_id = buyer_id
        self.ticket = token_bytes(TICKET_BYTES)
        self.is_taken = False

    def takes(self, ticket: bytes) -> bool:
        """Take a ticket; say whether it is the one, for the first time, and somebody waits."""
        if self.is_taken or self.answer.done() or not compare_digest(ticket, self.ticket):
            return False
        self.is_taken = True
        return True

    def give(self, sock: socket.socket) -> None:
        """Hand the stream to whoever waits, or close it."""
        if self.answer.done():
            sock.close()
        else:
            self.answer.set_result(sock)

    def fail(self, reason: str) -> None:
        """Tell whoever waits why there is none."""
        if not self.answer.done():
            self.answer.set_exception(TunnelError(reason))

    def give_up(self) -> None:
        """Close what was given in the moment in which nobody waited any more."""
        answer = self.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            answer.result().close()


async def _join(  # what was accepted, piece by piece
    order: _Order,
    sock: socket.socket,
    seal: Seal,
    transport: asyncio.Transport,
    rest: bytes,
    over: "_Over",
) -> None:
    """Have what stands for a work connection be the stream that somebody waits for."""
    try:
        await seal.start()
    except OSError:
        sock.close()
        over(seal)
        order.fail(REFUSED)
    except BaseException:
        sock.close()
        seal.abort()
        over(seal)
        raise
    else:
        if rest:
            seal.data_received(rest)
        transport.resume_reading()
        order.give(sock)


class _Over(Protocol):
    def __call__(self, seal: Seal, /) -> None: ...


# More than 12 fields: the connection, what it may still send, and what it was asked for.
@final
class _Worker(asyncio.Protocol):
    """The control connection of one device.

    Args:
        tunnels: that it belongs to.
        device: whose connection it is.
        attachment: its number.
        loop: the event loop.
    """

    def __init__(
        self,
        tunnels: DeviceTunnels,
        device: WorkerId,
        attachment: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.device_id = device.id
        self.owner_id = device.user_id
        self.attachment = attachment
        self.orders: dict[int, _Order] = {}
        self._tunnels = tunnels
        self._loop = loop
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = 0
        self._allowance = float(BURST_BYTES)
        self._allowed_at = self._heard_at = loop.time()
        self._is_closed = False

    def begin(self, transport: asyncio.Transport) -> None:
        """Take a connection over that has said hello."""
        self._transport = transport
        transport.set_protocol(self)
        self._timer = self._loop.call_later(self._tunnels.heartbeat_seconds, self._beat)
        if transport.is_closing():
            self.cut("lost")

    def add(self, order: _Order) -> int:
        """Note what the device will be asked for; return its number."""
        self._numbers += 1
        self.orders[self._numbers] = order
        return self._numbers

    def send(self, frame: Frame) -> None:
        """Send a frame; a device that does not read is cut."""
        transport = self._transport
        if self._is_closed or transport is None:
            return
        if isinstance(frame, (Open, Ping)):
            self._allowance += ANSWER_BYTES
        transport.write(encode(frame))
        if transport.get_write_buffer_size() > CONTROL.waiting_max_bytes:
            self._loop.call_soon(self.cut, "does not read")

    def refuse(self, code: str, words: str, retry_seconds: int) -> None:
        """Tell why it is attached no more, and close."""
        self.send(Sorry(code, words, retry_seconds))
        transport = self._transport
        self._close(code)
        if transport is not None:
            transport.close()
            self._timer = self._loop.call_later(GOODBYE_SECONDS, transport.abort)

    def cut(self, reason: str) -> None:
        """Close at once."""
        self._close(reason)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        now = self._loop.time()
        more = (now - self._allowed_at) * BYTES_PER_SECOND
        self._allowance = min(self._allowance + more, max(self._allowance, BURST_BYTES)) - len(data)
        self._allowed_at = self._heard_at = now
        if self._allowance < 0:
            self.cut("flood")
            return
        try:
            for frame in self._reader.receive_data(data):
                self._act(frame)
                if self._is_closed:
                    return
        except FrameError as error:
            _logger.info("worker %s: cut: it has sent %s", self.device_id, error)
            self.cut("violation")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the loop
        """See `asyncio.Protocol`."""
        self._close("lost")
        if self._timer is not None:
            self._timer.cancel()

    def _act(self, frame: Frame) -> None:
        if isinstance(frame, Ping):
            self.send(Pong(frame.payload))
        elif isinstance(frame, Dialled):
            order = self.orders.get(frame.number)  # None: nobody waits any more
            if order is not None and not order.is_taken:
                order.fail(_REASONS.get(frame.outcome, REFUSED))
        elif not isinstance(frame, Pong):
            raise FrameError(f"a frame of the type {type(frame).__name__}, which is no worker's")

    def _beat(self) -> None:
        seconds = self._tunnels.heartbeat_seconds
        if self._loop.time() - self._heard_at >= SILENT_BEATS * seconds:
            self.cut("silent")
            return
        self.send(Ping(token_bytes(PING_BYTES)))
        if not self._is_closed:
            self._timer = self._loop.call_later(seconds, self._beat)

    def _close(self, reason: str) -> None:
        """Let go of the device; only the first call counts."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tunnels.lost(self, reason)
