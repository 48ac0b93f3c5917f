"""The sockets that clients reach: bound here, or inherited from the service manager."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from typing import Self

from config.load import SettingsError
from config.settings import Settings
from proxyd.ops import reachability
from proxyd.ops.activation import InheritedSockets
from proxyd.ops.listening import (
    BACKLOG,
    bound_address,
    bound_port,
    listen,
    listen_again,
    listen_beside,
    tls_context,
)


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets that clients reach, and what makes the API's speak TLS.

    `passwordless` are those where a client's address stands for a password. `are_held` says that
    the service manager keeps them for the next daemon. `api` is None in a process without the API.
    """

    api: socket.socket | None
    proxy: socket.socket
    passwordless: tuple[socket.socket, ...]
    tls: ssl.SSLContext | None
    are_held: bool

    @classmethod
    def open(cls, settings: Settings, held: InheritedSockets) -> Self:
        """Bind all but those that the service manager holds.

        Raises:
            CannotListenError: an address or the certificate cannot be used.
            SettingsError: buyers would be told an address that leads nowhere.
        """
        host = settings.proxy.host
        with ExitStack() as opened:
            for sock in (sock for socks in held.values() for sock in socks):
                opened.enter_context(sock)
            if problems := list(reachability.problems(settings, held)):
                raise SettingsError(problems)
            tls = tls_context(settings.api.tls_cert, settings.api.tls_key)
            api, proxy = held.get("api", []), held.get("proxy", [])
            if not api:
                api = [opened.enter_context(listen(settings.api.host, settings.api.port, "API"))]
            if not proxy:
                proxy = [opened.enter_context(listen(host, settings.proxy.port, "proxy"))]
            passwordless = held.get("passwordless") or [
                opened.enter_context(sock) for sock in _passwordless(settings)
            ]
            opened.pop_all()
        return cls(api[0], proxy[0], tuple(passwordless), tls, are_held=bool(held))

    def beside(self) -> Self:
        """Return the sockets of another process, at the same ports of the proxy.

        Those that the service manager holds are shared. Otherwise the kernel divides the clients of
        a port among its sockets (SO_REUSEPORT, socket(7)). That is allowed from now on, to programs
        of the same user: when these sockets were bound nobody else had their ports.

        Raises:
            CannotListenError: a further socket cannot be bound.
        """
        if self.are_held:
            return replace(self, api=None, tls=None)
        with ExitStack() as opened:
            proxy, *passwordless = (
                opened.enter_context(listen_again(sock))
                for sock in (self.proxy, *self.passwordless)
            )
            opened.pop_all()
        return replace(self, api=None, proxy=proxy, passwordless=tuple(passwordless), tls=None)

    def pause(self) -> None:
        """Listen at the proxy's ports no more until `resume`: clients go to the other processes.

        Those that wait here are reset. The ports stay bound.
        """
        for sock in (self.proxy, *self.passwordless):
            sock.shutdown(
                socket.SHUT_RD
            )  # on Linux a socket that listens becomes one that is bound

    def resume(self) -> None:
        """Listen again."""
        for sock in (self.proxy, *self.passwordless):
            sock.listen(BACKLOG)

    def describe(self) -> str:
        """Return where everything listens."""
        api = []
        if self.api is not None:
            api = [f"API on {'https' if self.tls else 'http'}://{bound_address(self.api)}"]
        return ", ".join(
            (
                *api,
                f"proxy on {bound_address(self.proxy)}",
                *(f"without passwords on {bound_address(sock)}" for sock in self.passwordless),
            )
        )

    @property
    def passwordless_ports(self) -> list[int]:
        """The ports where a client's address stands for a password, in the order of the slots."""
        return [bound_port(sock) for sock in self.passwordless]

    def close(self) -> None:
        """Close all; closing twice is harmless."""
        for sock in self.sockets:
            sock.close()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """All of them."""
        api = () if self.api is None else (self.api,)
        return (*api, self.proxy, *self.passwordless)


def _passwordless(settings: Settings) -> Iterator[socket.socket]:
    """Bind the ports without passwords, once the others are bound.

    Port 0 becomes one of those behind the proxy's, so that it is mostly the same after a restart.
    """
    proxy, purpose = settings.proxy, "proxy without passwords"
    beside = (port for port in count(proxy.port + 1) if port not in proxy.passwordless_ports)
    for port in proxy.passwordless_ports:
        if port or not proxy.port:
            yield listen(proxy.host, port, purpose)
        else:
            yield listen_beside(proxy.host, next(beside), purpose)
