"""Where devices attach as exits: the port, who is attached, and what the marketplace is told."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from market.exits import Coverage, Door
from proxyd.acceptor import Acceptor
from proxyd.exits.answering import ExitDesk
from proxyd.exits.certificate import fingerprint
from proxyd.exits.listener import ExitListener
from proxyd.limits import ExitLimits
from proxyd.loop import cancellation
from storage.exits import OriginRow

if TYPE_CHECKING:
    from proxyd.exits.geography import Geography

CLOSE_SECONDS = 2.0  # to end what was asked of the marketplace, and handshakes under way

_logger = logging.getLogger("exits")


class ExitPort:
    """The exits of a daemon, for those who start and stop it, and for the marketplace.

    Args:
        listener: takes exits in.
        sock: listens already, and is owned from here on.
        door: where devices find it.
        context: speaks TLS for it.
        geography: says where exits are; closed with the port.
        desk: answers the other processes of this machine, where there are any.
    """

    def __init__(
        self,
        listener: ExitListener,
        sock: socket.socket,
        door: Door,
        context: ssl.SSLContext,
        geography: "Geography",
        desk: ExitDesk | None = None,
    ) -> None:
        self.listener = listener
        self._desk = desk
        self._geography = geography
        self._context = context
        self._sock = sock
        self._door = door
        self._acceptor: Acceptor[socket.socket] | None = None

    def start(self) -> None:
        """Begin to take exits in."""
        loop, listener = asyncio.get_running_loop(), self.listener
        listener.start()
        self._acceptor = Acceptor(
            loop, self._sock, listener.welcome, listener.shed, _logger, socket.socket
        )
        if self._desk is not None:
            self._desk.start()
        _logger.info("exits know this service by the certificate %s", self._door.certificate_sha256)

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply other limits from now on."""
        self.listener.change_limits(limits)
        if self._desk is not None:
            self._desk.most = limits.asks

    def change_certificate(self, certificate: str, key: str) -> None:
        """Show devices another certificate (PEM files, which can be used) from now on.

        Those that know the service by the fingerprint of the one before have to be told.
        """
        self._context.load_cert_chain(certificate, key)
        known_by = fingerprint(Path(certificate))
        if known_by != self._door.certificate_sha256:
            self._door = replace(self._door, certificate_sha256=known_by)
            _logger.info("exits know this service by the certificate %s from now on", known_by)

    def drain(self, seconds: float) -> None:
        """Tell exits that the daemon stops, and take no further ones.

        Those that are attached serve until the end: clients may still ask for targets.
        """
        self.listener.drain(seconds)

    async def wait_over(self, seconds: float) -> None:
        """Wait until clients of other processes use no exit, for some seconds at most."""
        if self._desk is not None:
            await self._desk.wait_over(seconds)

    async def close(self) -> None:
        """Let every exit go."""
        if self._acceptor is not None:
            self._acceptor.close()
        if self._desk is not None:
            self._desk.close()
        self.listener.close()
        await cancellation.within(CLOSE_SECONDS, self.listener.wait_closed(), "closing exits")
        self._geography.close()

    # --- what the marketplace asks: see `market.exits.Attached` --------------------------------

    def door(self) -> Door | None:
        """Return where exits attach."""
        return self._door

    def state(self, device_id: str) -> str | None:
        """Return why an attached device carries nothing now, "" if it does, None if it is away."""
        return self.listener.state(device_id)

    def coverage(self) -> Sequence[Coverage]:
        """Return how many exits take connections, by country."""
        return [Coverage(country, exits) for country, exits in self.listener.by_country().items()]

    def attribution(self) -> Sequence[str]:
        """Return whom to name wherever it is shown where exits are."""
        return self._geography.attribution

    def origins(self) -> Sequence[OriginRow]:
        """Return where each attached device comes from."""
        return [
            OriginRow(device_id, place.country, place.city, place.asn)
            for device_id, place in self.listener.places()
        ]
