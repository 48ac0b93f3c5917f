"""A daemon of two processes in the test's own event loop: the second asks the first for exits.

Each is built as `proxy.processes` builds it, with the socket between them; but both are in the
test's own process, so that it sees both. Clients come to the second one.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from proxyd.exits.processes.answering import ExitDesk
from proxyd.exits.processes.asking import AskedExits
from proxyd.gateway import Gateway
from proxyd.ops.processes.listening import bound_port, listen, listen_for_processes
from proxyd.ops.processes.role import METRICS_MAX_BYTES, OVERVIEW_MAX_BYTES, Overview, Role
from proxyd.ops.processes.shared_record import SharedRecord
from proxyd.wiring.bounds import USUAL, Bounds
from proxyd.wiring.build import build
from proxyd.wiring.daemon import Daemon
from proxyd.wiring.listeners import Listeners
from support.base.waiting import until
from support.daemons.service import Service, settings_for
from support.database import sqlite
from support.exits.device import EXITS, agent_at, all_is_shared, consented, listener_of


class TwoProcesses:
    """Both as one daemon: the first one, except for the parts that serve clients."""

    def __init__(self, first: Daemon, second: Daemon) -> None:
        self.first = first
        self.second = second

    @property
    def gateway(self) -> Gateway:
        return self.second.gateway

    @property
    def desk(self) -> ExitDesk:
        """Desk at which the first process answers."""
        assert self.first.exit_port is not None
        desk = self.first.exit_port.desk
        assert desk is not None
        return desk

    @property
    def asked(self) -> AskedExits:
        """How the second one asks."""
        exits = self.second.gateway._for_connections.exits
        assert isinstance(exits, AskedExits)
        return exits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)


def daemon_of(service: Service) -> TwoProcesses:
    """Return both processes of a service."""
    assert isinstance(service.daemon, TwoProcesses)
    return service.daemon


@asynccontextmanager
async def two_processes(
    url: str, *, bounds: Bounds = USUAL, **sections: dict[str, Any]
) -> AsyncIterator[Service]:
    """Run a daemon of two processes where devices may attach."""
    settings = settings_for(url, **{**EXITS, **sections, "proxy": {"port": 0, "processes": 2}})
    records = [SharedRecord(METRICS_MAX_BYTES) for _ in range(2)]
    overview = SharedRecord(OVERVIEW_MAX_BYTES)
    overview.write(Overview([0, 0], 0).encode())
    with ExitStack() as channels:
        ours, theirs = map(channels.enter_context, socket.socketpair())
        supervisors = channels.enter_context(listen_for_processes())
        first = Role(
            0, False, ours, 30.0, records, overview, supervisors.dup(), supervisors.getsockname()
        )
        second = replace(
            first, index=1, channel=theirs, exits_desk=None, exits_address=first.exits_address
        )
        async with AsyncExitStack() as closing:
            listeners = Listeners.open(settings, {})
            port = listen("127.0.0.1", 0, "proxy")
            beside = Listeners(None, port, (), None, frozenset())
            built = []
            for role, sockets in ((first, listeners), (second, beside)):
                daemon = await build(settings, sockets, role, bounds)
                closing.push_async_callback(daemon.close)
                await daemon.start()
                built.append(daemon)
            http = await closing.enter_async_context(aiohttp.ClientSession())
            service = Service(built[0], http)
            service.proxy_port = bound_port(port)
            service.daemon = TwoProcesses(*built)  # type: ignore[assignment]
            yield service


@asynccontextmanager
async def two_with_exit(
    folder: Path, *, bounds: Bounds = USUAL, **sections: dict[str, Any]
) -> AsyncIterator[Service]:
    """Run a daemon of two processes with an exit; every session leaves through it."""
    async with two_processes(sqlite.database(folder), bounds=bounds, **sections) as service:
        device = await (await consented(service)).attach(service)
        service.wishes = "-country-xx"
        try:
            await until(lambda: listener_of(service).counters.parked > 0, "a connection waits")
            yield service
            await all_is_shared(service)
        finally:
            await device.kill()


@asynccontextmanager
async def two_with_agent(folder: Path, wishes: str = "-secure") -> AsyncIterator[Service]:
    """Run a daemon of two processes with the agent of devices as its exit."""
    async with (
        two_processes(sqlite.database(folder)) as service,
        agent_at(service, folder),
    ):
        service.wishes = wishes
        yield service
        await all_is_shared(service)
