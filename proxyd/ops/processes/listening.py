"""Listening sockets and TLS, set up before anything else starts, so a port in use stops the start.

Each of several processes has its own listening socket on each port of the proxy, and the kernel
divides the clients among these sockets. The first socket is bound exclusively: if another program
has the port, the start fails as with one process. `SO_REUSEPORT` is set after that, on the first
socket and on the further ones (`listen_again`). A socket that systemd holds is shared by all
processes instead: further sockets would be closed at a restart, with the clients in their queues.
"""

import errno
import socket
import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from config.settings import Settings
from proxyd.ops.base.errors import CannotServeError

# Connections that may wait to be accepted: a burst while the loop is busy for some milliseconds.
# The kernel lowers it to net.core.somaxconn.
BACKLOG = 1024
PORT_MAX = 65_535

Purpose = Literal["API", "proxy", "proxy without passwords", "exits", "apps", "staff"]
SETTINGS: Final[dict[Purpose, str]] = {  # by purpose, the setting that has the port
    "API": "api.port",
    "proxy": "proxy.port",
    "proxy without passwords": "proxy.passwordless_ports",
    "exits": "exits.port",
    "apps": "apps.port",
    "staff": "staff.port",
}


class CannotListenError(CannotServeError):
    """The daemon cannot listen on an address; the message has the reason, for the operator."""


def listen(host: str, port: int, purpose: Purpose) -> socket.socket:
    """Return a socket that listens on an IP address and a port (0: any free one).

    Raises:
        CannotListenError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET if ip_address(host).version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        where = format_address(host, port)
        message = f"cannot listen on {where} for the {purpose}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            message += _remedy(purpose)
        raise CannotListenError(message) from error
    return sock


def listen_beside(host: str, port: int, purpose: Purpose) -> socket.socket:
    """Return a socket that listens on a port, or on any free port if that one is taken.

    Raises:
        CannotListenError: the address is not this machine's.
    """
    try:
        return listen(host, port if port <= PORT_MAX else 0, purpose)
    except CannotListenError:
        return listen(host, 0, purpose)


def listen_again(sock: socket.socket) -> socket.socket:
    """Return another socket on the address of a listening one; the kernel divides the clients.

    Raises:
        CannotListenError: the kernel refuses.
    """
    host, port = sock.getsockname()[:2]
    again = socket.socket(sock.family, socket.SOCK_STREAM)
    try:
        for each in (sock, again):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            only = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            again.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        again.bind((host, port))
        again.listen(BACKLOG)
        again.setblocking(False)
    except OSError as error:
        again.close()
        message = f"cannot listen on {format_address(host, port)} again: {error.strerror}"
        raise CannotListenError(message) from error
    return again


def listen_for_processes() -> socket.socket:
    """Return a Unix socket that listens for other processes of this machine; no file has its name.

    The kernel chooses the name (unix(7), autobind), and no other socket can have it meanwhile.

    Raises:
        CannotListenError: the kernel refuses.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind("")
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        message = f"cannot listen for other processes that use exits: {error.strerror}"
        raise CannotListenError(message) from error
    return sock


def _remedy(purpose: Purpose) -> str:
    setting = SETTINGS[purpose]
    section, _, key = setting.partition(".")
    return (
        "; stop the program that has it, or choose another port with "
        f"PROXYD_{section.upper()}__{key.upper()} (the setting {setting})"
    )


def format_address(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_port(sock: socket.socket) -> int:
    """Return the port that a socket listens on."""
    port: int = sock.getsockname()[1]
    return port


def bound_address(sock: socket.socket) -> str:
    """Return the address where a socket listens, as `host:port`."""
    host, port = sock.getsockname()[:2]
    return format_address(host, port)


def tls_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """Return a server's TLS context with this certificate and key (PEM files); None without them.

    Raises:
        CannotListenError: a file cannot be read, or they do not belong together.
    """
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate, key)
    return context


def exits_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the TLS context for exits: only TLS 1.3, because all agents support it.

    Raises:
        CannotListenError: a file cannot be read, or they do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # an exit attaches once in hours, and need not be remembered
    load_certificate(context, certificate, key)
    return context


def tls_problems(settings: Settings) -> Iterator[str]:
    """Yield one line for each mistake in the files of the certificates and their keys."""
    api, exits = settings.api, settings.exits
    yield from _certificate_problems("api", api.tls_cert, api.tls_key)
    yield from _certificate_problems("exits", exits.tls_cert, exits.tls_key)


def _certificate_problems(section: str, certificate: str, key: str) -> Iterator[str]:
    if not (certificate and key):
        return
    is_unreadable = False
    for name, path in (("tls_cert", certificate), ("tls_key", key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            is_unreadable = True
            yield f"{section}.{name}: cannot read {path}: {error.strerror}"
    if not is_unreadable:
        try:
            tls_context(certificate, key)
        except CannotListenError as error:
            yield f"{section}.tls_cert: {error}"


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate into a context; new connections get it.

    Raises:
        CannotListenError: a file cannot be read, or they do not belong together.
    """
    for path in (Path(certificate), Path(key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise CannotListenError(f"cannot read {path} for TLS: {error.strerror}") from error
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        message = f"cannot use the certificate {certificate} with the key {key}: {error}"
        raise CannotListenError(message) from error
