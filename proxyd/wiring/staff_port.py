"""Port of the staff: its listener, with the staff API and its pages."""

import asyncio
import logging
import socket
import ssl

from api.server import HttpServer
from market.staff.desk import StaffDesk
from proxyd.acceptor import Acceptor
from proxyd.loop import cancellation

CLOSE_SECONDS = 8.0  # requests in progress have 5 s of them (`api.server`)

_logger = logging.getLogger("staff")


class StaffPort:
    """The listener of the staff, for the code that starts and stops it.

    Args:
        http: the server of the staff API.
        desk: the services of the staff.
        sock: listens already, and is owned from here on.
        tls: speaks TLS on it; None for plain HTTP.
    """

    def __init__(
        self, http: HttpServer, desk: StaffDesk, sock: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        self.http = http
        self.desk = desk
        self._sock = sock
        self._tls = tls
        self._acceptor: Acceptor[socket.socket] | None = None

    def start(self) -> None:
        """Begin to accept clients."""
        self.http.start(self._tls)
        self._acceptor = Acceptor(
            asyncio.get_running_loop(),
            self._sock,
            self.http.welcome,
            self.http.shed,
            _logger,
            socket.socket,
        )

    def drain(self) -> None:
        """Begin to answer every new request with `draining`."""
        self.http.drain()

    async def close(self) -> None:
        """Close the connections of all clients, within a time limit."""
        if self._acceptor is not None:
            self._acceptor.close()
        await cancellation.within(CLOSE_SECONDS, self.http.stop(), "closing the port of the staff")
