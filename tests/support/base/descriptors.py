"""Descriptors that the daemon holds open, when it runs inside the test's own process."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.base.waiting import until
from support.daemons.service import Service


def descriptors() -> int:
    """Count the sockets and pipes that this process has open; files are the store's business."""
    return sum(_is_of_a_connection(each) for each in Path("/proc/self/fd").iterdir())


def _is_of_a_connection(each: Path) -> bool:
    try:
        return str(each.readlink()).startswith(("socket:", "pipe:"))
    except FileNotFoundError:  # closed meanwhile
        return False


async def all_gone(service: Service, before: int) -> None:
    """Wait until the gateway holds nothing more than it did."""
    await nobody_left(service)
    await until(lambda: _of_clients(service) <= before, "no descriptor is left")


async def nobody_left(service: Service) -> None:
    """Wait until the gateway has no client, and no socket of one."""
    gateway = service.daemon.gateway
    await until(lambda: gateway.connections == 0, "no connection is left")
    await until(lambda: len(gateway.closer) == 0, "no socket is left to close")


async def at_rest(service: Service) -> int:
    """Wait until no client is connected. Return the number of descriptors that are open then."""
    await nobody_left(service)
    await asyncio.sleep(0.01)  # lets the loop close the test's sockets
    return _of_clients(service)


def _of_clients(service: Service) -> int:
    """Count descriptors without the connections that wait at exits: as many as are wanted.

    Both their ends are in this process.
    """
    port = service.daemon.exit_port
    parked = port.listener.counters.parked if port is not None else 0
    # Each under TLS is joined to a pair of sockets.
    pairs = min(parked, len(port.listener.seals)) if port is not None else 0
    return descriptors() - 2 * (
        pairs + parked + sum(home.counters.parked for home in service.homes)
    )


@contextmanager
def none_left() -> Iterator[None]:
    """Use up all descriptors of this process, so that it can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        while True:
            try:
                stack.callback(os.close, os.open("/", os.O_PATH))
            except OSError:
                break
        yield
