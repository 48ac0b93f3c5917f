"""Workers: the devices that are attached for streams into their jobs."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from secrets import randbits, token_bytes
from typing import Final, final

from proxyctl.protocol.frames import (
    PING_BYTES,
    Dialled,
    DialOutcome,
    Frame,
    FrameError,
    FrameReader,
    Open,
    Ping,
    Pong,
    Sorry,
    encode,
)
from proxyd.exits.attached.allowance import Allowance
from proxyd.exits.attached.attached import ATTACHMENT_BITS, SILENT_BEATS
from proxyd.exits.attached.control import ANSWER_BYTES, GOODBYE_SECONDS
from proxyd.exits.dialling.orders import BUSY, GONE, PAUSED, REFUSED, TIMEOUT, Orders
from proxyd.exits.dialling.streams import count_down
from storage.devices.devices import DeviceRow

OWNERS_SHARE: Final = 2  # of all devices that may be attached, one owner's are half at most

_REASONS: Final = {
    DialOutcome.NOT_ALLOWED: GONE,
    DialOutcome.PAUSED: PAUSED,
    DialOutcome.TIMED_OUT: TIMEOUT,
    DialOutcome.AT_LIMIT: BUSY,
}
_logger = logging.getLogger("tunnels")


@final
class Worker(asyncio.Protocol):
    """The control connection of one device.

    Args:
        address: the address that the device has attached from.
        heartbeat_seconds: returns the time between two pings.
        waiting_max_bytes: the most bytes of frames for a device that does not read.
        lost: called once, with the reason, when the device is attached no more.
    """

    def __init__(
        self,
        device: DeviceRow,
        address: str,
        attachment: int,
        loop: asyncio.AbstractEventLoop,
        heartbeat_seconds: Callable[[], float],
        waiting_max_bytes: int,
        lost: Callable[["Worker", str], None],
    ) -> None:
        self.device = device
        self.address = address
        self.attachment = attachment
        self.orders = Orders()
        self._loop = loop
        self._heartbeat_seconds = heartbeat_seconds
        self._waiting_max_bytes = waiting_max_bytes
        # None once the device is attached no more.
        self._lost: Callable[[Worker, str], None] | None = lost
        self._reader = FrameReader()
        self._allowance = Allowance(loop.time())
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Take over a connection whose device has said hello."""
        self._transport = transport
        transport.set_protocol(self)
        self._timer = self._loop.call_later(self._heartbeat_seconds(), self._beat)
        if transport.is_closing():
            self.cut("lost")

    def send(self, frame: Frame) -> None:
        """Send a frame; a device that does not read is cut."""
        transport = self._transport
        if self._lost is None or transport is None:
            return
        if isinstance(frame, (Open, Ping)):
            self._allowance.grant(ANSWER_BYTES)
        transport.write(encode(frame))
        if transport.get_write_buffer_size() > self._waiting_max_bytes:
            self._loop.call_soon(self.cut, "does not read")

    def refuse(self, code: str, words: str, retry_seconds: int) -> None:
        """Send the reason of the detachment, and close."""
        self.send(Sorry(code, words, retry_seconds))
        transport = self._transport
        self._close(code)
        if transport is not None:
            transport.close()
            self._timer = self._loop.call_later(GOODBYE_SECONDS, transport.abort)

    def cut(self, reason: str) -> None:
        """Close without a last frame."""
        self._close(reason)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self._allowance.pay(len(data), self._loop.time()):
            self.cut("flood")
            return
        try:
            for frame in self._reader.receive_data(data):
                self._act(frame)
                if self._lost is None:
                    return
        except FrameError as error:
            _logger.info("worker %s: cut: it has sent %s", self.device.id, error)
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
            self.orders.fail(frame.number, _REASONS.get(frame.outcome, REFUSED))
        elif not isinstance(frame, Pong):
            raise FrameError(f"a frame of the type {type(frame).__name__}, which is no worker's")

    def _beat(self) -> None:
        seconds = self._heartbeat_seconds()
        if self._loop.time() - self._allowance.paid_at >= SILENT_BEATS * seconds:
            self.cut("silent")
            return
        self.send(Ping(token_bytes(PING_BYTES)))
        if self._lost is not None:
            self._timer = self._loop.call_later(seconds, self._beat)

    def _close(self, reason: str) -> None:
        """Release the device; only the first call counts."""
        lost, self._lost = self._lost, None
        if lost is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lost(self, reason)


@final
class WorkerTable:
    """The workers that are attached, by device, by attachment and by owner."""

    __slots__ = ("_by_attachment", "_by_device", "_per_owner")

    def __init__(self) -> None:
        self._by_device: dict[str, Worker] = {}
        self._by_attachment: dict[int, Worker] = {}
        self._per_owner: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_device)

    def __contains__(self, device_id: str) -> bool:
        return device_id in self._by_device

    def get(self, device_id: str) -> Worker | None:
        """Return the worker of a device; None when it is not attached."""
        return self._by_device.get(device_id)

    def attached_as(self, attachment: int) -> Worker | None:
        """Return the worker of an attachment; None when it is over."""
        return self._by_attachment.get(attachment)

    def all(self) -> tuple[Worker, ...]:
        """Return all workers."""
        return tuple(self._by_device.values())

    def devices(self) -> set[str]:
        """Return the devices of all workers."""
        return set(self._by_device)

    def has_many_of(self, owner_id: str, most: int) -> bool:
        """Return whether an owner has its share of `most` devices."""
        return self._per_owner[owner_id] >= max(1, most // OWNERS_SHARE)

    def fresh(self) -> int:
        """Return a number that no worker has; it is as hard to guess as a ticket."""
        while True:
            number = randbits(ATTACHMENT_BITS)
            if number and number not in self._by_attachment:
                return number

    def add(self, worker: Worker) -> None:
        """Keep a worker that attaches."""
        self._by_device[worker.device.id] = worker
        self._per_owner[worker.device.user_id] += 1
        self._by_attachment[worker.attachment] = worker

    def remove(self, worker: Worker) -> None:
        """Remove a worker that is detached."""
        del self._by_attachment[worker.attachment]
        count_down(self._per_owner, worker.device.user_id)
        if self._by_device.get(worker.device.id) is worker:
            del self._by_device[worker.device.id]
