"""Tunnels: streams into jobs that run on devices, which cannot be reached from outside.

Theory of operation
-------------------
A device that holds an attempt with ports is attached to the exits' port as a worker (`Tunnel` in
`proxyctl.protocol.frames`); it is no exit by that, and asks for no consent. For a stream into a job
(`DeviceTunnels.open`) the device gets an order with a ticket. The device connects to the port
inside the job's sandbox, and opens a work connection under TLS that shows the ticket. The daemon
joins that connection to a pair of sockets, like a connection of an exit (`secure.py`). One of the
sockets is the stream.

The device is not trusted: a ticket lets one connection in, once, and only while a caller waits for
it; the bytes that the device may send on its control connection are bounded; and so is the number
of its streams. Streams outlive a lost control connection, as the device may be back in a second.
They do not outlive the device's token.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from market.base.errors import MarketError
from market.devices.devices import Devices
from proxyctl.protocol.frames import Drain, Open, Preface, Tunnel, Tunnelled
from proxyd.exits.attached.control import AGAIN_SECONDS, OLDEST_PROTOCOL, SOON_SECONDS, Control
from proxyd.exits.attached.secure import Seal, make_pair
from proxyd.exits.dialling.orders import AWAY, BUSY, TIMEOUT, Order, TunnelError
from proxyd.exits.dialling.streams import Streams, join
from proxyd.exits.dialling.workers import Worker, WorkerTable
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.loop.reactor import Reactor
from storage.devices.devices import DeviceRow
from storage.engines.errors import StoreError, level_of

SWEEP_SECONDS: Final = 60.0  # between looks for idle streams
NO_PORTS: Final = "This device runs no job that listens on ports."

_logger = logging.getLogger("tunnels")


@dataclass(frozen=True, slots=True)
class TunnelBounds:
    """Bounds on the streams of a device, and the time between two checks of tokens.

    Attributes:
        streams_per_device: open and on their way; its agent holds fewer.
        recheck_seconds: between looks for tokens that another node has revoked. A token that this
            node has revoked comes as a call.
    """

    streams_per_device: int = 512
    recheck_seconds: float = 5.0


USUAL: Final = TunnelBounds()


@final
class TunnelCounts:
    """Counts since the start: `attached` devices, `gone` ones by reason, `opens` by outcome."""

    __slots__ = ("attached", "gone", "opens")

    def __init__(self) -> None:
        self.attached = 0
        self.gone: Counter[str] = Counter()
        self.opens: Counter[str] = Counter()


@final
class DeviceTunnels:
    """The devices that are attached as workers, and the streams into their jobs.

    Args:
        most: bound on the open streams, and bound on the attached devices.
        heartbeat_seconds: between two pings of a device.
    """

    def __init__(
        self,
        reactor: Reactor,
        authority: Devices,
        most: int,
        heartbeat_seconds: float,
        bounds: TunnelBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self.most = most
        self.heartbeat_seconds = heartbeat_seconds
        self.counts = TunnelCounts()
        self._reactor = reactor
        self._authority = authority
        self._workers = WorkerTable()
        self._streams = Streams()
        self._tasks = OwnedTasks(reactor.loop, _logger, "serving a worker failed")
        self._watch: asyncio.Task[None] | None = None
        self._is_draining = False

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that have come from jobs, and bytes that have gone to them, since the start."""
        return self._streams.moved

    # --- for the callers that open streams -------------------------------------------------------

    def is_attached(self, device_id: str) -> bool:
        """Return whether a device is attached and can open streams; an open can still fail."""
        return device_id in self._workers

    def sighted(self) -> Iterator[tuple[str, str]]:
        """Yield each attached device with its address."""
        for worker in self._workers.all():
            yield worker.device.id, worker.address

    async def open(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        """Return a stream into a job.

        Its other end is the job's own 127.0.0.1:port inside its sandbox. Each way ends by itself
        (`shutdown`), a reset is a reset, and a side that reads slowly makes the other side wait.

        Args:
            device_id: that runs the attempt.
            job_id: the identifier of the job.
            attempt: its number, from 1.
            port: that the job's payload declares.
            seconds: after which it is given up.
            buyer_id: the buyer of the job; one buyer has a part of all streams.

        Returns:
            a connected TCP socket, non-blocking; the caller's to close.

        Raises:
            TunnelError: with the reason.
        """
        has_room = self._streams.enter(buyer_id, self.most)  # until there is a stream, or none
        try:
            if not has_room:
                raise TunnelError(BUSY)
            sock = await self._open(device_id, job_id, attempt, port, seconds, buyer_id)
        except TunnelError as error:
            self.counts.opens[error.reason] += 1
            raise
        finally:
            self._streams.leave(buyer_id)
        self.counts.opens["open"] += 1
        return sock

    async def _open(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        worker, streams = self._workers.get(device_id), self._streams
        if worker is None:
            raise TunnelError(AWAY)
        own = len(worker.orders) + streams.of_device(device_id)
        is_full = streams.waiting + len(streams) >= self.most
        if is_full or own >= self._bounds.streams_per_device:
            raise TunnelError(BUSY)
        order = Order(self._reactor.loop.create_future(), buyer_id)
        number = worker.orders.add(order)
        streams.waiting += 1
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
            streams.waiting -= 1
            worker.orders.remove(number)
            order.answer.cancel()  # a connection that comes from now on has no caller

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
            # It may have been revoked during the look-up, and no watch covers it yet.
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
        elif len(self._workers) >= self.most and device_id not in self._workers:
            words = "As many devices are attached as may be."
            control.refuse("too_many_devices", words, AGAIN_SECONDS)
        elif (
            self._workers.has_many_of(device.user_id, self.most) and device_id not in self._workers
        ):
            words = "As many devices of this account are attached as may be."
            control.refuse("too_many_devices", words, AGAIN_SECONDS)
        elif not control.is_over:
            self._attach(control, device)

    def admit(self, control: Control, preface: Preface, rest: bytes) -> None:
        """See `Workers.admit`."""
        worker = self._workers.attached_as(preface.attachment)
        order = None if worker is None else worker.orders.get(preface.number)
        if worker is None or order is None or not order.takes(preface.ticket):
            control.cut("ticket")
            return
        transport = control.hand_over()
        transport.pause_reading()  # until the stream is joined
        try:
            sock, other = make_pair()
        except OSError as error:
            _logger.warning("a stream into a job is closed: %s", error)
            transport.abort()
            order.fail(BUSY)
            return
        seal = Seal(transport, other, self._reactor.poller, self._over)
        now = self._reactor.loop.time()
        self._streams.add(seal, worker.device.id, order.buyer_id, now)
        task = self._tasks.spawn(join(order, sock, seal, transport, rest, self._over))

        def joined(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # perhaps before its first step
                sock.close()
                other.close()

        task.add_done_callback(joined)

    def recheck(self, device_id: str) -> None:
        """See `Workers.recheck`."""
        if device_id in self._workers or self._streams.of_device(device_id):
            self._tasks.spawn(self._recheck([device_id]))

    def drain(self, seconds: float) -> None:
        """See `Workers.drain`."""
        self._is_draining = True
        for worker in self._workers.all():
            worker.send(Drain(max(1, round(seconds))))

    def close(self) -> None:
        """See `Workers.close`."""
        for worker in self._workers.all():
            worker.cut("stopping")
        self._streams.abort_all()
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """See `Workers.wait_closed`."""
        await self._tasks.wait()

    # --- workers ---------------------------------------------------------------------------------

    def _attach(self, control: Control, device: DeviceRow) -> None:
        older = self._workers.get(device.id)
        if older is not None:
            older.refuse("attached_again", "The same device has attached again.", AGAIN_SECONDS)
        worker = Worker(
            device,
            control.address,
            self._workers.fresh(),
            self._reactor.loop,
            lambda: self.heartbeat_seconds,
            control.bounds.waiting_max_bytes,
            self._lost,
        )
        self._workers.add(worker)
        self._authority.origins.saw(device.id, control.address)
        worker.begin(control.hand_over())
        self.counts.attached += 1
        worker.send(Tunnelled(worker.attachment, max(1, round(self.heartbeat_seconds))))
        _logger.info("worker %s: attached from %s", device.id, control.address)
        if self._watch is None:
            self._watch = self._tasks.spawn(self._keep_watch())

    def _lost(self, worker: Worker, reason: str) -> None:
        """Act on the end of a control connection."""
        self._workers.remove(worker)
        self._authority.origins.left(worker.device.id, worker.address)
        self.counts.gone[reason] += 1
        _logger.info("worker %s: gone: %s", worker.device.id, reason)
        worker.orders.fail_all(AWAY)

    async def _keep_watch(self) -> None:
        """Check tokens and idle streams periodically, from the first worker on."""
        loop = self._reactor.loop
        swept_at = loop.time()
        while True:
            await asyncio.sleep(self._bounds.recheck_seconds)
            devices = self._streams.devices() | self._workers.devices()
            await self._recheck(list(devices))
            if loop.time() - swept_at >= SWEEP_SECONDS:
                swept_at = loop.time()
                self._streams.sweep(swept_at)
                await self.dismiss()

    async def dismiss(self) -> None:
        """Release attached devices that run no job with ports any more."""
        attached = [*self._workers.devices()]
        if not attached:
            return
        needed = await _among(self._authority.listening_among(attached))
        if needed is None:
            return
        for device_id in attached:
            worker = self._workers.get(device_id)
            if worker is not None and device_id not in needed:
                worker.refuse("no_ports", NO_PORTS, SOON_SECONDS)

    async def _recheck(self, device_ids: Sequence[str]) -> None:
        """Cut the devices whose tokens were revoked, with all that goes through them."""
        if not device_ids:
            return
        for device_id in await _among(self._authority.revoked_among(device_ids)) or ():
            worker = self._workers.get(device_id)
            if worker is not None:
                words = "The token of this device was revoked."
                worker.refuse("worker_unauthorized", words, 0)
            self._streams.abort_of(device_id)

    def _over(self, seal: Seal) -> None:
        """Stop counting a stream, which is over. A second call does nothing."""
        self._streams.remove(seal)


async def _among(answer: Coroutine[Any, Any, list[str]]) -> set[str] | None:
    """Return the devices that the store names; None when it does not answer."""
    try:
        return set(await answer)
    except StoreError as error:  # the next check asks again
        _logger.log(level_of(error, logging.WARNING), "workers cannot be looked up now: %s", error)
        return None
