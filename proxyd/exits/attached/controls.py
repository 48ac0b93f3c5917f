"""Connections under TLS at the exits' port, from the handshake on, attached or not."""

import asyncio
import logging
import socket
import ssl
from typing import Final, cast, final

from market.base.networks import NetworkCounts
from proxyd.counters import ExitCounters
from proxyd.exits.attached.control import Control, ControlServices
from proxyd.exits.attached.tls import TlsConnection, TlsPort
from proxyd.loop.reactor import Reactor

TLS_SECONDS: Final = 10.0  # for a handshake of one round trip
TLS_END_SECONDS: Final = 10.0

_logger = logging.getLogger("exits")


@final
class Controls:
    """Shakes hands with clients, and knows their connections, attached or not.

    One that has not attached is a stranger: it counts as arriving, and makes room for others.

    Args:
        end_seconds: for the end of TLS. The last words go out first, some records; then the exit
            has to say that it has read the end.
    """

    def __init__(
        self,
        reactor: Reactor,
        context: ssl.SSLContext,
        services: ControlServices,
        counters: ExitCounters,
        arriving: NetworkCounts,
        end_seconds: float = TLS_END_SECONDS,
    ) -> None:
        self._loop = reactor.loop
        self._port = TlsPort(reactor.loop, context, reactor.view, TLS_SECONDS, end_seconds)
        self._services = services
        self._counters = counters
        self._arriving = arriving
        self._all: set[Control] = set()
        # The oldest first, with the network that each is counted by.
        self._strangers: dict[Control, str] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def strangers(self) -> int:
        """The number of connections that have not attached."""
        return len(self._strangers)

    async def shake_hands(self, sock: socket.socket, address: str, network: str) -> None:
        """Start TLS on the event loop over a socket, which the loop then owns."""
        control = Control(self._services, address, self)
        tls = TlsConnection(self._port, cast(asyncio.Protocol, control))  # see `Control`
        try:
            await self._loop.connect_accepted_socket(  # type: ignore[type-var]  # see there
                lambda: tls, sock
            )
            await tls.shaken()
        except asyncio.CancelledError:
            tls.abort()
            raise
        except (OSError, ssl.SSLError) as error:  # or a timeout, or an abort
            self._counters.arrivals_refused["tls"] += 1
            _logger.debug("exit at %s: no TLS: %s", address, error)
        else:
            if not control.is_over:  # the exit may have left already
                self._all.add(control)
                if control.attached is None:
                    self._strangers[control] = network
                    self._arriving.add(network)
            if self._is_closed:
                control.cut("stopping")

    def cut_oldest(self, before: float) -> bool:
        """Cut the oldest stranger if it came before a time of the loop. Return whether it did."""
        stranger = next(iter(self._strangers), None)
        if stranger is None or stranger.began > before:
            return False
        self.known(stranger)  # here, because its end is noticed later
        stranger.abort("slow")
        return True

    def close(self) -> None:
        """Cut all connections, and later ones as they come."""
        self._is_closed = True
        for control in tuple(self._all):
            control.cut("stopping")

    # --- calls of control connections: see `control.Holder` ------------------------------------

    def known(self, control: Control) -> None:
        """See `Holder.known`."""
        network = self._strangers.pop(control, None)
        if network is not None:
            self._arriving.add(network, -1)

    def over(self, control: Control) -> None:
        """See `Holder.over`."""
        self._all.discard(control)
        self.known(control)
