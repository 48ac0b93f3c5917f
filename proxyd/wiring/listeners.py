"""The sockets that clients reach: bound here, or inherited from the service manager."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Self

from config.load import SettingsError
from config.settings import Settings
from proxyd.ops.checks import reachability
from proxyd.ops.processes.activation import SEVERAL, InheritedSockets
from proxyd.ops.processes.listening import (
    BACKLOG,
    CannotListenError,
    Purpose,
    bound_address,
    bound_port,
    listen,
    listen_again,
    listen_beside,
    tls_context,
)


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets that clients reach, and the TLS context of the API's socket.

    `passwordless` are those where a client's address stands for a password. `held` are the ones
    that the service manager keeps for the next daemon. `api` is absent in a process without the
    API, `exits` if no device may attach, `apps` if apps are not served, `staff`
    without a staff API.
    """

    api: socket.socket | None
    proxy: socket.socket
    passwordless: tuple[socket.socket, ...]
    tls: ssl.SSLContext | None
    held: frozenset[socket.socket]
    exits: socket.socket | None = None
    apps: socket.socket | None = None
    apps_tls: ssl.SSLContext | None = None
    staff: socket.socket | None = None
    staff_tls: ssl.SSLContext | None = None

    @classmethod
    def open(cls, settings: Settings, held: InheritedSockets) -> Self:
        """Bind all but those that the service manager holds.

        Raises:
            CannotListenError: an address or the certificate cannot be used.
            SettingsError: buyers would get an address that leads nowhere, or a socket is held that
                nothing serves.
        """
        host = settings.proxy.host
        with ExitStack() as opened:
            for sock in (sock for socks in held.values() for sock in socks):
                opened.enter_context(sock)
            problems = [*reachability.problems(settings, held), *_unserved(settings, held)]
            if problems:
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
            exits, apps = held.get("exits", []), held.get("apps", [])
            if settings.exits.host and not exits:
                sock = listen(settings.exits.host, settings.exits.port, "exits")
                exits = [opened.enter_context(sock)]
            apps_tls = None
            if settings.apps.host:
                apps_tls = tls_context(settings.apps.tls_cert, settings.apps.tls_key)
                if not apps:
                    sock = listen(settings.apps.host, settings.apps.port, "apps")
                    apps = [opened.enter_context(sock)]
            staff = staff_tls = None
            if settings.staff.host:
                staff_tls = tls_context(settings.staff.tls_cert, settings.staff.tls_key)
                sock = listen(settings.staff.host, settings.staff.port, "staff")
                staff = opened.enter_context(sock)
            opened.pop_all()
        return cls(
            api[0],
            proxy[0],
            tuple(passwordless),
            tls,
            frozenset(sock for socks in held.values() for sock in socks),
            exits[0] if exits else None,
            apps[0] if apps else None,
            apps_tls,
            staff,
            staff_tls,
        )

    def beside(self) -> Self:
        """Return the sockets of another process, at the same ports of the proxy.

        Sockets that the service manager holds are shared. The clients of any other port the kernel
        divides among its sockets (SO_REUSEPORT, socket(7)). That is allowed from now on, to
        programs of the same user: at the time of their binding, no other socket had their ports.

        Raises:
            CannotListenError: a further socket cannot be bound.
        """
        with ExitStack() as opened:
            proxy, *passwordless = (
                sock if sock in self.held else opened.enter_context(listen_again(sock))
                for sock in self._of_proxy
            )
            opened.pop_all()
        return replace(
            self,
            api=None,
            proxy=proxy,
            passwordless=tuple(passwordless),
            tls=None,
            exits=None,
            apps=None,
            apps_tls=None,
            staff=None,
            staff_tls=None,
        )

    def pause(self) -> None:
        """Stop listening at the proxy's ports until `resume`: clients go to the other processes.

        Clients that wait here are reset. The ports stay bound. Sockets that the service manager
        holds are left alone: the other processes accept from it. Pausing twice, or when closed, is
        harmless.
        """
        for sock in self._of_proxy:
            if sock not in self.held and _listens(sock):
                address = sock.getsockname()
                # On Linux a socket that listens becomes one that is bound, in every process.
                sock.shutdown(socket.SHUT_RD)
                with suppress(OSError):  # it keeps its port, unless the kernel had chosen that
                    sock.bind(address)

    def resume(self) -> None:
        """Listen at the proxy's ports again, if they were paused.

        Raises:
            CannotListenError: the kernel refuses.
        """
        for sock in self._of_proxy:
            if not _listens(sock):
                try:
                    sock.listen(BACKLOG)
                except OSError as error:
                    message = f"cannot listen on {bound_address(sock)} again: {error.strerror}"
                    raise CannotListenError(message) from error

    def describe(self) -> str:
        """Return the addresses of all listeners."""
        api = []
        if self.api is not None:
            api = [f"API on {'https' if self.tls else 'http'}://{bound_address(self.api)}"]
        return ", ".join(
            (
                *api,
                f"proxy on {bound_address(self.proxy)}",
                *(f"without passwords on {bound_address(sock)}" for sock in self.passwordless),
                *([f"exits on {bound_address(self.exits)}"] if self.exits is not None else []),
                *([f"apps on {bound_address(self.apps)}"] if self.apps is not None else []),
                *([f"staff on {bound_address(self.staff)}"] if self.staff is not None else []),
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
        served = (self.api, self.exits, self.apps, self.staff)
        others = (each for each in served if each is not None)
        return (*others, *self._of_proxy)

    @property
    def _of_proxy(self) -> tuple[socket.socket, ...]:
        return (self.proxy, *self.passwordless)


def _listens(sock: socket.socket) -> bool:
    is_open = sock.fileno() >= 0
    return is_open and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _unserved(settings: Settings, held: InheritedSockets) -> Iterator[str]:
    """Yield a line for each socket of a part that is off: its clients would wait for ever."""
    parts = {
        SEVERAL: ("proxy.passwordless_ports", bool(settings.proxy.passwordless_ports)),
        "exits": ("exits.host", bool(settings.exits.host)),
        "apps": ("apps.host", bool(settings.apps.host)),
    }
    for name, (setting, is_on) in parts.items():
        if held.get(name) and not is_on:
            yield (
                f"{setting}: must be set, because the service manager holds a socket "
                f"named {name}; or disable that socket unit"
            )


def _passwordless(settings: Settings) -> Iterator[socket.socket]:
    """Bind the ports without passwords, once the others are bound.

    Port 0 becomes one of those behind the proxy's, so that it is mostly the same after a restart.
    """
    proxy = settings.proxy
    purpose: Purpose = "proxy without passwords"
    beside = (port for port in count(proxy.port + 1) if port not in proxy.passwordless_ports)
    for port in proxy.passwordless_ports:
        if port or not proxy.port:
            yield listen(proxy.host, port, purpose)
        else:
            yield listen_beside(proxy.host, next(beside), purpose)
