"""Whether buyers can dial what they are told, where the service manager holds the proxy's socket.

`proxy.host` decides nothing there, so it is easily left on loopback, and buyers who are told it
dial their own machine. Without such a socket it is where the proxy listens: that is meant.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from ipaddress import ip_address
from pathlib import Path

from config.settings import Settings
from proxyd.ops.activation import SEVERAL, Held, inherited

REACHED = ("proxy", SEVERAL)
LISTEN = "ListenStream"


def problems(settings: Settings, held: Held) -> Iterator[str]:
    """Yield a line if buyers would be told an address at which they do not find a held socket.

    Args:
        settings: what buyers are told.
        held: the sockets that the service manager holds, by name.
    """
    bound = (sock.getsockname()[0] for name in REACHED for sock in held.get(name, ()))
    yield from _problems(settings, bound)


def held_problems(
    unit: Path | None, environment: MutableMapping[str, str], settings: Settings
) -> Iterator[str]:
    """Yield the same where no daemon is started: by the sockets of this process, and by a unit.

    Args:
        unit: the file of the proxy's socket unit; what `systemctl edit` has put beside it counts.
        environment: as for `inherited`.
        settings: what buyers are told.

    Raises:
        CannotListenError: as `inherited`.
    """
    held = inherited(environment)
    try:
        yield from problems(settings, held)
    finally:
        for sock in (sock for socks in held.values() for sock in socks):
            sock.close()
    if unit is not None:
        try:
            yield from _problems(settings, _hosts(unit))
        except OSError as error:
            yield f"--unit {unit}: {error.strerror}"


def _problems(settings: Settings, bound: Iterable[str]) -> Iterator[str]:
    proxy = settings.proxy
    if proxy.public_host or not _is_loopback(proxy.host):
        return
    for host in bound:
        if not _is_loopback(host):
            yield (
                "proxy.public_host: must name the host that buyers dial, because the service "
                f"manager holds the proxy's socket on {host}, and they are told {proxy.host} "
                "(proxy.host)"
            )
            return


def _is_loopback(host: str) -> bool:
    """Say whether an address is good on this machine alone; what is none is told elsewhere."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(unit: Path) -> list[str]:
    """Return the addresses at which a socket unit listens (systemd.socket(5), ListenStream=)."""
    files = [unit, *sorted(unit.with_name(f"{unit.name}.d").glob("*.conf"))]
    found: list[str] = []
    for line in (line for file in files for line in file.read_text(errors="replace").splitlines()):
        name, _, value = line.partition("=")
        if name.strip() != LISTEN:
            continue
        where = value.strip()
        if not where:
            found.clear()  # an empty one takes all before it away
        elif where.isdecimal():
            found.append("::")  # a port alone: at every address
        elif not where.startswith("/"):  # a path in the file system, which `inherited` refuses
            found.append(where.rpartition(":")[0].strip("[]"))
    return found
