"""Checks that buyers can reach the address that the API gives them, under socket activation.

There the service manager's socket decides where the proxy listens, and `proxy.host` is only the
address that buyers read. It is easily left on loopback: then buyers would dial their own machine.
Without socket activation the proxy listens on `proxy.host` itself, and loopback is intended.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from ipaddress import ip_address
from pathlib import Path

from config.settings import Settings
from proxyd.ops.processes.activation import SEVERAL, InheritedSockets, inherited

PROXY_SOCKETS = ("proxy", SEVERAL)
LISTEN = "ListenStream"


def problems(settings: Settings, inherited_sockets: InheritedSockets) -> Iterator[str]:
    """Yield a line if buyers would be given an address where no inherited socket listens.

    Args:
        settings: `proxy.host` and `proxy.public_host`, which buyers are given.
        inherited_sockets: the sockets of the service manager, by name.
    """
    hosts = (
        sock.getsockname()[0] for name in PROXY_SOCKETS for sock in inherited_sockets.get(name, ())
    )
    yield from _problems(settings, hosts)


def problems_of_unit(
    unit: Path | None, environment: MutableMapping[str, str], settings: Settings
) -> Iterator[str]:
    """Yield the same without a daemon: for this process' inherited sockets, and for a unit file.

    Args:
        unit: the file of the proxy's socket unit; the drop-ins beside it, as `systemctl edit` makes
            them, count too.
        environment: as for `inherited`.
        settings: as for `problems`.

    Raises:
        CannotListenError: as `inherited`.
    """
    sockets = inherited(environment)
    try:
        yield from problems(settings, sockets)
    finally:
        for sock in (sock for socks in sockets.values() for sock in socks):
            sock.close()
    if unit is not None:
        try:
            yield from _problems(settings, _hosts(unit))
        except OSError as error:
            yield f"--unit {unit}: {error.strerror}"


def _problems(settings: Settings, hosts: Iterable[str]) -> Iterator[str]:
    proxy = settings.proxy
    if proxy.public_host or not _is_loopback(proxy.host):
        return
    for host in hosts:
        if not _is_loopback(host):
            yield (
                "proxy.public_host: must name the host that buyers dial, because the service "
                f"manager holds the proxy's socket on {host}, and the API gives them {proxy.host} "
                "(proxy.host)"
            )
            return


def _is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address; others report one that is malformed."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(unit: Path) -> list[str]:
    """Return the addresses that a socket unit listens on (systemd.socket(5), ListenStream=)."""
    files = [unit, *sorted(unit.with_name(f"{unit.name}.d").glob("*.conf"))]
    hosts: list[str] = []
    for line in (line for file in files for line in file.read_text(errors="replace").splitlines()):
        name, _, value = line.partition("=")
        if name.strip() != LISTEN:
            continue
        where = value.strip()
        if not where:
            hosts.clear()  # an empty assignment resets the list
        elif where.isdecimal():
            hosts.append("::")  # a port without an address: all addresses
        elif not where.startswith("/"):  # a Unix socket's path, which `inherited` refuses
            hosts.append(where.rpartition(":")[0].strip("[]"))
    return hosts
