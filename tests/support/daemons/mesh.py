"""Several daemons with exits on one PostgreSQL, inside the test's own event loop."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from proxyd.exits.attached.certificate import own_certificate
from proxyd.exits.nodes.mesh import Mesh
from proxyd.wiring.bounds import USUAL, Bounds
from support.base.waiting import until
from support.daemons.service import Service, running, settings_for
from support.exits.device import EXITS


def node_settings(url: str, folder: Path, number: int, **sections: dict[str, Any]) -> Any:
    """Return the settings of one of several daemons, with a certificate of its own."""
    certificate = str(own_certificate(folder / f"node-{number}", 1_700_000_000))
    files = {"tls_cert": certificate, "tls_key": certificate}
    merged = {name: {**values} for name, values in EXITS.items()}
    merged["exits"] |= files
    for name, values in sections.items():
        merged.setdefault(name, {}).update(values)
    return settings_for(url, **merged)


@asynccontextmanager
async def nodes(
    url: str, folder: Path, count: int = 3, bounds: Bounds = USUAL, **sections: dict[str, Any]
) -> AsyncIterator[list[Service]]:
    """Run daemons until the test is over; each is linked with each."""
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(
                running(node_settings(url, folder, number, **sections), bounds)
            )
            for number in range(count)
        ]
        await linked(services)
        yield services


def mesh_of(service: Service) -> Mesh:
    """Return the mesh of a daemon."""
    assert service.daemon.exit_port is not None
    assert service.daemon.exit_port.mesh is not None
    return service.daemon.exit_port.mesh


async def linked(services: Sequence[Service]) -> None:
    """Wait until each daemon is linked with each other one, and with no further node."""
    for each in services:
        others = {
            other.daemon.core.membership.leases.node_id for other in services if other is not each
        }
        await until(
            lambda each=each, others=others: set(mesh_of(each).peers.links) == others, "linked"
        )


def active(service: Service) -> set[str]:
    """Return the devices that a daemon may choose."""
    members = mesh_of(service)._directory._files._members
    return {name for name, each in members.items() if each.is_first}


async def all_know(services: Sequence[Service], devices: set[str]) -> None:
    """Wait until every daemon may choose these devices, and no others."""
    for each in services:
        await until(lambda each=each: active(each) == devices, "every node knows the exits")


class Choosing:
    """A lender that lends nothing: so exits of other nodes are chosen, and no more."""

    def __init__(self) -> None:
        self.gone_: list[str] = []
        self.lost_: list[str] = []

    def lending(self, link: Any, frame: Any) -> None: ...

    def changed(self, remote: Any) -> None: ...

    def gone(self, remote: Any) -> None:
        self.gone_.append(remote.device_id)

    def lost(self, link: Any) -> None:
        self.lost_.append(link.node_id)
