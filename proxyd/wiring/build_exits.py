"""Building the exits: the dials through them, and the port where devices attach.

A part is built after the parts that it needs. The mesh of nodes is built first, and gets a hub
(`exits.nodes.hub`); the parts that the mesh notifies join the hub when they are built.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from config.settings import Settings
from market.exits.consents import Door
from market.market import Market
from proxyd.counters import ExitCounters
from proxyd.egress.own import OwnAddresses
from proxyd.egress.resolve import Resolver
from proxyd.exits.attached import certificate
from proxyd.exits.attached.listener import ExitBase, ExitListener, PortServices
from proxyd.exits.attached.loaner import Loaner
from proxyd.exits.attached.neighbours import Alone
from proxyd.exits.attached.pool import ParkedBudget
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.labels import Labels
from proxyd.exits.choosing.own_ports import OwnPorts
from proxyd.exits.dialling.dial import Exits
from proxyd.exits.dialling.errand import Ways as ErrandWays
from proxyd.exits.dialling.origin import OriginCheck
from proxyd.exits.dialling.tunnels import DeviceTunnels
from proxyd.exits.nodes.borrowing import Borrowing
from proxyd.exits.nodes.hub import NodeHub
from proxyd.exits.nodes.lending import Lending
from proxyd.exits.nodes.loans import Loans
from proxyd.exits.nodes.mesh import Mesh
from proxyd.exits.nodes.peers import Cluster
from proxyd.exits.nodes.remote import AnyExit
from proxyd.exits.processes.answering import ExitDesk
from proxyd.exits.watching.canaries import Canaries
from proxyd.exits.watching.fetch import page_of
from proxyd.limits import ExitLimits, raise_descriptors
from proxyd.loop import clock
from proxyd.loop.clock import Clocks
from proxyd.loop.reactor import Reactor
from proxyd.ops.processes.listening import CannotListenError, bound_port, exits_context
from proxyd.wiring import slices
from proxyd.wiring.bounds import ExitBounds
from proxyd.wiring.exit_port import ExitPort
from proxyd.wiring.listeners import Listeners

if TYPE_CHECKING:
    from proxyd.exits.choosing.geography import Geography


@dataclass(frozen=True, slots=True)
class AmongNodes:
    """The parts of the exits that depend on other nodes; `hub` notifies parts that have joined."""

    hub: NodeHub
    mesh: Mesh
    loans: Loans
    labels: Labels


@dataclass(frozen=True, slots=True)
class WayOut:
    """The dials through exits, and the parts that the port of exits shares with them.

    Attributes:
        directory: chooses among the exits that are attached.
        own_ports: the ports of the service, which no buyer reaches through an exit.
        nodes: the parts that know of other nodes; None where there can be none.
    """

    exits: Exits
    directory: Directory[AnyExit]
    own_ports: OwnPorts
    budget: ParkedBudget
    nodes: AmongNodes | None


def way_out(
    settings: Settings,
    listeners: Listeners,
    directory: Directory[AnyExit],
    reactor: Reactor,
    resolver: Resolver,
    is_here: OwnAddresses,
    cluster: Cluster | None,
    clocks: Clocks,
    bounds: ExitBounds,
) -> WayOut:
    """Return the dials through exits.

    Args:
        settings: the operator's settings.
        listeners: the sockets to serve on.
        directory: the directory of the exits.
        reactor: shared by the sockets of the loop.
        resolver: looks names up.
        is_here: says which addresses are this machine's.
        cluster: this node among the others; None where there can be none.
        clocks: the clocks of the process.
        bounds: the bounds of the parts.
    """
    own_ports = _own_ports(settings, listeners, is_here, resolver)
    policy = slices.policy(settings, is_closed=own_ports.has)
    counters, limits = ExitCounters(), slices.exit_limits(settings, raise_descriptors())
    budget = ParkedBudget(limits.parked)
    nodes = None
    if cluster is not None:
        host, port = _reached_at(settings, listeners)
        hub = NodeHub()
        mesh = Mesh(reactor.loop, cluster, directory, clocks.milliseconds, hub, bounds.mesh)
        borrowing = Borrowing(
            reactor,
            budget,
            counters,
            lambda: (host, port),
            hub.keep_detached,
            limits.heartbeat_seconds,
            bounds.borrowing,
        )
        loans = Loans(borrowing, Lending(mesh, bounds.lending))
        labels = Labels(
            reactor.loop,
            cluster.store,
            directory,
            is_alone=lambda: mesh.is_alone,
            tell_moved=mesh.tell_moved,
            seconds=clocks.seconds,
            bounds=bounds.labels,
        )
        hub.join_lender(loans)
        hub.join_labels(labels)
        nodes = AmongNodes(hub, mesh, loans, labels)
    exits = Exits(
        reactor,
        directory,
        resolver,
        policy,
        settings.limits.dial_seconds,
        counters,
        encrypts_all=settings.exits.encrypt == "all",
        borrower=None if nodes is None else nodes.loans,
        labels=None if nodes is None else nodes.labels,
        times=bounds.dials,
    )
    return WayOut(exits, directory, own_ports, budget, nodes)


def exit_port(
    settings: Settings,
    listeners: Listeners,
    way: WayOut,
    market: Market,
    geography: "Geography",
    desk: socket.socket | None,
    clocks: Clocks,
    bounds: ExitBounds,
) -> ExitPort:
    """Return the port where devices attach, with its certificate; see `port_of`.

    Args:
        settings: the operator's settings.
        listeners: the sockets to serve on.
        way: dials through those that are attached.
        market: decides who may attach.
        geography: says where exits are.
        desk: listens for other processes of this machine; None where there are none.
        clocks: the clocks of the process.
        bounds: the bounds of the parts.

    Raises:
        CannotListenError: the certificate cannot be used.
    """
    assert listeners.exits is not None  # noqa: S101 - nobody gets here without
    cert, key = _exits_certificate(settings)
    try:
        known_by = certificate.fingerprint(Path(cert))
    except ValueError as error:
        raise CannotListenError(str(error)) from error
    door, context = Door(*_reached_at(settings, listeners), known_by), exits_context(cert, key)
    port = port_of(
        settings, listeners.exits, door, context, way, market, geography, desk, clocks, bounds
    )
    if settings.exits.next_tls_cert:
        port.announce_certificate(settings.exits.next_tls_cert)
    return port


def port_of(
    settings: Settings,
    sock: socket.socket,
    door: Door,
    context: ssl.SSLContext,
    way: WayOut,
    market: Market,
    geography: "Geography",
    desk: socket.socket | None,
    clocks: Clocks,
    bounds: ExitBounds,
) -> ExitPort:
    """Return the port where devices attach, known to the marketplace.

    Args:
        settings: the operator's settings.
        sock: listens already, and is owned from here on.
        door: where devices find this node, and its certificate.
        context: speaks TLS with devices.
        way: dials through those that are attached.
        market: decides who may attach.
        geography: says where exits are.
        desk: listens for other processes of this machine; None where there are none.
        clocks: the clocks of the process.
        bounds: the bounds of the parts.
    """
    limits = slices.exit_limits(settings, raise_descriptors())
    base = _base(way, market, geography, limits, clocks)
    canaries = _canaries(settings, way.exits, base, market, door, bounds)
    # Workers' streams go another way than exits' connections, and share only the port.
    tunnels = DeviceTunnels(
        way.exits.reactor,
        market.devices,
        limits.streams,
        limits.heartbeat_seconds,
        bounds.tunnels,
    )
    nodes = way.nodes
    loans = Loaner() if nodes is None else nodes.loans
    listener = ExitListener(base, context, loans, canaries, tunnels, bounds.port)
    if nodes is not None:
        nodes.hub.join_port(listener)
    port = ExitPort(
        listener,
        sock,
        door,
        context,
        geography,
        canaries,
        tunnels,
        way.own_ports,
        mesh=None if nodes is None else nodes.mesh,
        labels=None if nodes is None else nodes.labels,
        desk=None if desk is None else ExitDesk(way.exits, listener, desk, limits.asks),
    )
    market.exits.join(port)
    market.exits.watch(port.recheck)
    market.devices.origins.watch(port.sighted)
    return port


def _base(
    way: WayOut, market: Market, geography: "Geography", limits: ExitLimits, clocks: Clocks
) -> ExitBase:
    """Return the parts of the port that its checks and its loans need."""
    exits, nodes = way.exits, way.nodes
    services = PortServices(
        exits.reactor,
        market.exits,
        way.directory,
        geography.place,
        exits.counters,
        clocks.seconds,
        Alone(clocks.seconds) if nodes is None else nodes.mesh,
        way.budget,
        market.devices.origins,
        way.own_ports,
        exits.encrypts_all,
    )
    base = ExitBase(services, limits)
    way.directory.watch(base.offers.standby_changed)
    if nodes is not None:
        nodes.hub.join_detached(base.detached)
    return base


def _canaries(
    settings: Settings,
    exits: Exits,
    base: ExitBase,
    market: Market,
    door: Door,
    bounds: ExitBounds,
) -> Canaries:
    """Return the checks of exits."""
    # The house itself may dial its own port through exits: older agents make their calls so.
    policy = slices.policy(settings)
    ways = ErrandWays(exits.reactor, exits.resolver, policy, exits.encrypts_all)
    return Canaries(
        ways,
        [page_of(url) for url in settings.exits.canaries],
        OriginCheck(ways, base.origins, lambda: (door.host, door.port), bounds.call_seconds),
        market.exit_canaries,
        base.verdicts,
        exits.counters,
        bounds=bounds.canaries,
    )


def _reached_at(settings: Settings, listeners: Listeners) -> tuple[str, int]:
    """Return the host and the port where devices find this node."""
    assert listeners.exits is not None  # noqa: S101 - nobody gets here without
    port = slices.exits_port(settings, bound_port(listeners.exits))
    return slices.exits_host(settings), port


def _own_ports(
    settings: Settings, listeners: Listeners, is_here: OwnAddresses, resolver: Resolver
) -> OwnPorts:
    """Return the ports that no buyer reaches through an exit."""
    assert listeners.exits is not None  # noqa: S101 - nobody gets here without
    bound, proxy = bound_port(listeners.exits), settings.proxy
    ports = (
        bound,
        slices.exits_port(settings, bound),
        bound_port(listeners.proxy),
        proxy.public_port,
        *listeners.passwordless_ports,
        *proxy.public_passwordless_ports,
    )
    return OwnPorts(is_here, resolver, ports, (proxy.public_host,), settings.egress.deny)


def _exits_certificate(settings: Settings) -> tuple[str, str]:
    """Return the files of the certificate and the key: the operator's, or self-made ones.

    Raises:
        CannotListenError: none can be made.
    """
    exits = settings.exits
    if exits.tls_cert:
        return exits.tls_cert, exits.tls_key
    folder = Path(settings.storage.url.removeprefix("sqlite:///")).parent
    try:
        made = str(certificate.own_certificate(folder, clock.seconds()))
    except OSError as error:
        message = f"cannot make a certificate for exits in {folder}: {error.strerror}"
        raise CannotListenError(message) from error
    return made, made


async def geography_of(settings: Settings) -> "Geography":
    """Return the source of the places of exits; reading it takes a second.

    Raises:
        SettingsError: a file of it cannot be used.
    """
    # Here, so that a daemon without exits does not wait for it.
    from proxyd.exits.choosing.geography import Sources, open_geography  # noqa: PLC0415

    geo = settings.geo
    return await asyncio.to_thread(
        open_geography, Sources(geo.country, geo.city, geo.asn, geo.known)
    )
