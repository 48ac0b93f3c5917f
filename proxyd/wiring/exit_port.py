"""The port where devices attach as exits, the attached exits, and notices to the marketplace."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from market.exits.consents import Coverage, Door, Whereabouts
from proxyd.acceptor import Acceptor
from proxyd.exits.attached.arrivals import prepare
from proxyd.exits.attached.certificate import fingerprint
from proxyd.exits.attached.listener import ExitListener
from proxyd.exits.dialling.tunnels import DeviceTunnels
from proxyd.exits.watching.canaries import Canaries
from proxyd.limits import ExitLimits
from proxyd.loop import cancellation
from proxyd.ops.processes.listening import CannotListenError
from storage.exits.exits import OriginRow

if TYPE_CHECKING:
    from proxyd.exits.choosing.geography import Geography
    from proxyd.exits.choosing.labels import Labels
    from proxyd.exits.choosing.own_ports import OwnPorts
    from proxyd.exits.nodes.mesh import Mesh
    from proxyd.exits.processes.answering import ExitDesk
    from proxyd.wiring.tasks import Tasks

LABEL_SWEEP_SECONDS = 60.0  # labels live for minutes to a day
CLOSE_SECONDS = 2.0  # to end questions to the marketplace, and running handshakes

_logger = logging.getLogger("exits")


class ExitPort:
    """The exits of a daemon, for the code that starts and stops it, and for the marketplace.

    Args:
        sock: listens already, and is owned from here on.
        context: speaks TLS with devices.
        geography: says where exits are; closed with the port.
        mesh: the other nodes and their exits; None where there can be none.
        labels: agree with the other nodes on the exits of labels; None where there can be none.
        desk: answers the other processes of this machine; None where there are none.
    """

    def __init__(
        self,
        listener: ExitListener,
        sock: socket.socket,
        door: Door,
        context: ssl.SSLContext,
        geography: "Geography",
        canaries: Canaries,
        tunnels: DeviceTunnels,
        own_ports: "OwnPorts",
        *,
        mesh: "Mesh | None" = None,
        labels: "Labels | None" = None,
        desk: "ExitDesk | None" = None,
    ) -> None:
        self.listener = listener
        self.tunnels = tunnels
        self.canaries = canaries
        self.mesh = mesh
        self.labels = labels
        self.desk = desk
        self._own_ports = own_ports
        self._geography = geography
        self._context = context
        self._sock = sock
        self._door = door
        self._acceptor: Acceptor[socket.SocketType] | None = None
        if mesh is not None:
            mesh.change_door(door)

    def spawn_tasks(self, tasks: "Tasks") -> None:
        """Start the tasks for links with nodes, look-ups of the service's addresses, and labels."""
        notices = self.listener.notices
        tasks.spawn("own ports", self._own_ports.run(self._all_doors, notices.deny_changed))
        if self.mesh is not None:
            tasks.spawn("links of nodes", self.mesh.run())
        if self.labels is not None:
            tasks.every(LABEL_SWEEP_SECONDS, "labels", self.labels.sweep, "labels that are over")

    def start(self) -> None:
        """Begin to accept exits."""
        loop, arrivals = asyncio.get_running_loop(), self.listener.arrivals
        self.listener.start()
        self.canaries.start()
        prepare(self._sock)  # control connections inherit the options without harm
        self._acceptor = Acceptor(
            loop, self._sock, arrivals.welcome, arrivals.shed, _logger, socket.SocketType
        )
        if self.desk is not None:
            self.desk.start()
        _logger.info("exits know this service by the certificate %s", self._door.certificate_sha256)

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply other limits."""
        self.listener.change_limits(limits)
        self.tunnels.most = limits.streams
        self.tunnels.heartbeat_seconds = limits.heartbeat_seconds
        if self.desk is not None:
            self.desk.most = limits.asks

    def change_certificate(self, certificate: str, key: str) -> None:
        """Begin to show devices another certificate (PEM files, which can be used).

        Attached devices are notified of it. Devices that are away, and were not notified before,
        know the service no more (`announce_certificate`).
        """
        self._context.load_cert_chain(certificate, key)
        known_by = fingerprint(Path(certificate))
        if known_by != self._door.certificate_sha256:
            self._door = replace(self._door, certificate_sha256=known_by)
            self.listener.notices.announce(self._door)
            _logger.info("exits know this service by the certificate %s from now on", known_by)
            if self.mesh is not None:
                self.mesh.change_door(self._door)

    def announce_certificate(self, certificate: str) -> None:
        """Notify devices of the certificate (a PEM file) that the service will show later.

        The notice uses a connection that they know by the present certificate, so they trust it.

        Raises:
            CannotListenError: there is no certificate in it.
        """
        door = replace(self._door, certificate_sha256=known_by(certificate))
        self.listener.notices.announce(door)
        _logger.info("exits are notified of the next certificate %s", door.certificate_sha256)

    def drain(self, seconds: float) -> None:
        """Notify exits that the daemon stops, and accept no more.

        Attached exits serve until the end: clients may still ask for targets.
        """
        self.listener.drain(seconds)
        if self.mesh is not None:
            self.mesh.drain()

    def recheck(self, device_id: str) -> None:
        """Check again, on every node, whether a device may be attached, and its permissions."""
        self.listener.recheck(device_id)
        if self.mesh is not None:
            self.mesh.recheck(device_id)

    async def wait_over(self, seconds: float) -> None:
        """Wait until clients of other processes use no exit, for some seconds at most."""
        if self.desk is not None:
            await self.desk.wait_over(seconds)

    async def close(self) -> None:
        """Detach every exit."""
        if self._acceptor is not None:
            self._acceptor.close()
        if self.desk is not None:
            self.desk.close()
        self.canaries.close()
        self.listener.close()
        if self.mesh is not None:
            await cancellation.within(CLOSE_SECONDS, self.mesh.close(), "closing links of nodes")
        if self.labels is not None:
            await cancellation.within(CLOSE_SECONDS, self.labels.close(), "closing labels")
        await cancellation.within(CLOSE_SECONDS, self.listener.wait_closed(), "closing exits")
        await cancellation.within(CLOSE_SECONDS, self.canaries.wait_closed(), "ending canaries")
        self._geography.close()

    def _all_doors(self) -> list[Door]:
        return [self._door, *self.doors()]

    # --- for the marketplace: see `market.exits.consents.Attached` -------------------------------

    def door(self) -> Door | None:
        """Return the address where exits attach."""
        return self._door

    def doors(self) -> Sequence[Door]:
        """Return the addresses where devices attach to the other nodes."""
        return () if self.mesh is None else self.mesh.doors()

    def state(self, device_id: str) -> str | None:
        """Return why an attached device carries nothing now, "" if it does, None if it is away.

        It may be attached to any node.
        """
        state = self.listener.offers.state(device_id)
        return state if state is not None or self.mesh is None else self.mesh.state(device_id)

    def coverage(self) -> Sequence[Coverage]:
        """Return how many exits take connections, by country."""
        return [
            Coverage(country, exits) for country, exits in self.listener.offers.by_country().items()
        ]

    def attribution(self) -> Sequence[str]:
        """Return the sources to name wherever the places of exits are shown."""
        return self._geography.attribution

    def origins(self) -> Sequence[OriginRow]:
        """Return the location of each attached device."""
        return [
            OriginRow(device_id, place.country, place.city, place.asn)
            for device_id, place in self.listener.detached.places()
        ]

    def sighted(self) -> Iterator[tuple[str, str]]:
        """Yield each device that is attached to this node, with its addresses."""
        yield from self.listener.origins.sighted()
        yield from self.tunnels.sighted()

    def locate(self, address: str) -> Whereabouts:
        """Return the place of an address."""
        place = self._geography.place(address)
        opinions = self._geography.opinions(address)
        return Whereabouts(place.country, place.state, place.city, place.asn, place.kind, opinions)

    def remark(self, device_id: str) -> str:
        """Return the remark for the owner of an attached device; "" for nothing."""
        return self.listener.offers.remark(device_id)


def known_by(certificate: str) -> str:
    """Return the fingerprint of a certificate.

    Raises:
        CannotListenError: it cannot be read.
    """
    try:
        return fingerprint(Path(certificate))
    except (OSError, ValueError) as error:
        raise CannotListenError(f"exits.next_tls_cert: {error}") from error
