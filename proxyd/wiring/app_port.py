"""Port of apps: its listener, and the streams from there into jobs."""

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING

from api.reverse.server import AppServer, UnreachedError
from proxyd.acceptor import Acceptor
from proxyd.exits.attached.secure import reset_on_close
from proxyd.exits.dialling.orders import AWAY, TunnelError
from proxyd.exits.dialling.tunnels import DeviceTunnels
from proxyd.loop import cancellation
from storage.engines.errors import StoreError, level_of

if TYPE_CHECKING:
    from proxyd.wiring.tasks import Tasks

SWEEP_SECONDS = 5.0  # longest time that a client stays after another daemon has changed the key
CLOSE_SECONDS = 4.0

_logger = logging.getLogger("apps")


class JobStreams:
    """Opens streams into jobs, through the tunnels of their devices.

    Args:
        tunnels: of the devices that are attached; None where none can be, so that no job can be
            reached.
    """

    def __init__(self, tunnels: DeviceTunnels | None) -> None:
        self._tunnels = tunnels

    async def __call__(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        """Return a stream into a job.

        Raises:
            UnreachedError: the device opened no stream.
        """
        if self._tunnels is None:
            raise UnreachedError(AWAY)
        try:
            return await self._tunnels.open(device_id, job_id, attempt, port, seconds, buyer_id)
        except TunnelError as error:
            raise UnreachedError(error.reason) from error

    def reset(self, sock: socket.socket) -> None:
        """Close a stream with a reset; harmless for a closed stream."""
        reset_on_close(sock)


class AppPort:
    """The listener of apps, for the code that starts and stops it.

    Args:
        sock: listens already, and is owned from here on.
        tls: speaks TLS on it; None for plain HTTP.
        sweep_seconds: between two sweeps of its streams.
    """

    def __init__(
        self,
        server: AppServer,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._sweep_seconds = sweep_seconds
        self.server = server
        self._sock = sock
        self._tls = tls
        self._acceptor: Acceptor[socket.socket] | None = None

    def spawn_tasks(self, tasks: "Tasks") -> None:
        """Start the tasks that end streams which are idle or not allowed any more."""
        tasks.spawn("apps", self._sweep())

    async def _sweep(self) -> None:
        """Sweep periodically; each daemon sweeps its own streams."""
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self.server.sweep()
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "streams into apps wait for the store to return: %s",
                    error,
                )
            except Exception:  # any other error: the next sweep may do
                _logger.exception("a sweep of apps failed")

    def start(self) -> None:
        """Begin to accept clients."""
        self.server.start(self._tls)
        self._acceptor = Acceptor(
            asyncio.get_running_loop(),
            self._sock,
            self.server.welcome,
            self.server.shed,
            _logger,
            socket.socket,
        )

    def drain(self) -> None:
        """Stop accepting new requests."""
        self.server.drain()

    def leave_socket(self) -> None:
        """Accept no new client; harmless before the start."""
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Close the connections of all clients, within a time limit."""
        self.leave_socket()
        await cancellation.within(CLOSE_SECONDS, self.server.stop(), "closing the listener of apps")
