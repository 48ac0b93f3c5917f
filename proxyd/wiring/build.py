"""Building the daemon from settings: the one place that knows every class.

The settings of a part are made in `slices`; `daemon` decides when it runs.

Process 0 of several has the services (`services.py`). Only this module decides that, by the role of
the process; the rooms below see a node among nodes.
"""

import asyncio
import gc
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING

from api.staff.counts import StaffCounts
from config.settings import Settings
from market.accounts.tokens import Tokens
from market.base.ids import Identifiers
from market.events.context import Context
from proxyctl.protocol.policy import Policy
from proxyd import __version__
from proxyd.access import Hour
from proxyd.compiled import finder
from proxyd.egress.direct import DirectExit
from proxyd.egress.own import OwnAddresses
from proxyd.egress.resolve import DnsResolver
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.nodes.peers import Cluster
from proxyd.exits.nodes.remote import AnyExit
from proxyd.exits.processes.asking import AskedExits
from proxyd.gateway import Gateway
from proxyd.limits import ProxyLimits, raise_descriptors
from proxyd.loop import clock
from proxyd.loop.reactor import Reactor
from proxyd.metering.meter import Meter
from proxyd.ops.access_log.abuse_watch import AbuseWatch
from proxyd.ops.access_log.access_log import AccessLog
from proxyd.ops.access_log.access_place import access_folder, access_key
from proxyd.ops.base.signing_key import signing_key
from proxyd.ops.metrics.metrics import Metrics, Sources
from proxyd.ops.metrics.timed_store import TimedStore
from proxyd.ops.processes.listening import bound_port
from proxyd.ops.processes.role import Role
from proxyd.readiness import Readiness
from proxyd.wire.links import link_key
from proxyd.wiring import slices
from proxyd.wiring.abuse_stops import Stops
from proxyd.wiring.app_port import AppPort
from proxyd.wiring.bounds import USUAL, Bounds
from proxyd.wiring.build_core import Counting, core_of, counting_of
from proxyd.wiring.build_exits import WayOut, exit_port, geography_of, way_out
from proxyd.wiring.build_services import (
    Ports,
    Trade,
    app_port_of,
    services_of,
    staff_port_of,
    trade_of,
)
from proxyd.wiring.daemon import Daemon, Helpers
from proxyd.wiring.exit_port import ExitPort
from proxyd.wiring.listeners import Listeners
from storage.backups import restorations
from storage.engines.open import load, open_store
from storage.engines.place import is_sqlite
from storage.engines.store import Store

if TYPE_CHECKING:
    from proxyd.exits.choosing.geography import Geography
    from proxyd.exits.dialling.dial import Exits

_logger = logging.getLogger("daemon")

# Modules that are otherwise imported at their first use, if ever.
USED_LATER = (
    "cryptography.fernet",
    "cryptography.hazmat.primitives.kdf.hkdf",
    "jwt",
    "market.photos.picture",
    "prometheus_client.exposition",
)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The settings of a daemon, and the parts that `build` has opened for it.

    Attributes:
        settings: the operator's settings.
        listeners: the sockets to serve on.
        store: an open store.
        key: signs session tokens; other keys are derived from it.
        access_log: takes records of proxied connections, if they are wanted.
        stops: opens tickets for the findings of its thread.
        role: the role of this process among several; None for a single process.
        geography: says where exits are; None where they cannot attach.
        bounds: the bounds of its parts.
        is_held: whether it sends, pays and sweeps nothing.
    """

    settings: Settings
    listeners: Listeners
    store: TimedStore
    key: bytes
    access_log: AccessLog | None
    stops: Stops
    role: Role | None
    geography: "Geography | None"
    bounds: Bounds
    is_held: bool

    @property
    def has_services(self) -> bool:
        """Whether this process has the marketplace, its API and the port of exits."""
        return self.role is None or self.role.has_services


@dataclass(frozen=True, slots=True)
class _Outward:
    """The parts that every way out of the proxy uses."""

    reactor: Reactor
    resolver: DnsResolver
    own_addresses: OwnAddresses
    policy: Policy
    limits: ProxyLimits


def import_the_rest(settings: Settings) -> None:
    """Import modules before the fork, which a single process would import at their first use.

    So processes that are forked afterwards, at any time, run the same code. The garbage collector
    of a process skips these modules, because it would write to each of their objects, and a page
    that a process writes to is no longer shared. Of four processes' 91 MB that saves 5.
    """
    load(settings.storage.url)
    names = list(USED_LATER)
    if settings.mail.host:
        names.append("proxyd.outbound.smtp")
    if settings.assistant.model or settings.assistant.vision_model:
        names.append("proxyd.outbound.chat_model")
    for name in names:
        import_module(name)
    gc.collect()
    gc.freeze()


async def import_for_tokens(tokens: Tokens) -> None:
    """Import the modules for tokens in a single serving process, without a stop of its loop."""
    await asyncio.to_thread(tokens.load)
    gc.freeze()  # as the modules imported before (`commands`); of clients there is little so early


async def build(
    settings: Settings,
    listeners: Listeners | None = None,
    role: Role | None = None,
    bounds: Bounds = USUAL,
) -> Daemon:
    """Bind, open the store, and build the daemon; a failure leaves nothing open.

    Args:
        settings: the operator's settings.
        listeners: the sockets to serve on, which are owned from here on; bound here if None.
        role: the role among several processes; None where there is one.
        bounds: the bounds of its parts.

    Raises:
        CannotListenError, CannotOpenError, SigningKeyError, CannotRecordError, SettingsError: why,
            in its message.
    """
    if listeners is None:
        listeners = Listeners.open(settings, {})
    storage = settings.storage
    try:
        store = await open_store(
            storage.url,
            pool_size=storage.pool_size,
            is_shared=role is not None,
            pooler=storage.pooler,
            direct_url=storage.direct_url,
            readers=bounds.sqlite_readers,
        )
    except BaseException:
        listeners.close()
        raise
    access_log = geography = None
    try:
        key = signing_key(settings)
        if listeners.exits is not None:
            geography = await geography_of(settings)
        stops = Stops(
            Context(store, Identifiers(clock.milliseconds), clock.seconds),
            slices.abuse_halt_seconds(settings),
        )
        access_log = _access_log(settings, role, stops)
        is_held = await _is_held(store)
        timed = TimedStore(store)
        daemon = _daemon(
            _Opened(
                settings,
                listeners,
                timed,
                key,
                access_log,
                stops,
                role,
                geography,
                bounds,
                is_held,
            )
        )
        await store.claim(lambda: daemon.tasks.stop_daemon("the claim on the database is lost"))
    except BaseException:
        if access_log is not None:
            access_log.close()
        if geography is not None:
            geography.close()
        listeners.close()
        await store.close()
        raise
    return daemon


def _daemon(opened: _Opened) -> Daemon:
    """Return the daemon.

    Each part is built when all that it needs is there: leases, the meter that spends them, the ways
    out, the gateway, the marketplace, the port of exits, the port of apps, the metrics of these,
    and the API.
    """
    settings, listeners, role = opened.settings, opened.listeners, opened.role
    directory = Directory[AnyExit](bounds=opened.bounds.exits.directory)
    counting = counting_of(
        settings,
        opened.store,
        clock.MACHINE,
        directory.forget,
        opened.bounds.metering,
        has_services=opened.has_services,
    )
    outward = _outward(opened)
    way = None
    if listeners.exits is not None:
        way = way_out(
            settings,
            listeners,
            directory,
            outward.reactor,
            outward.resolver,
            outward.own_addresses,
            _cluster(opened, counting),
            clock.MACHINE,
            opened.bounds.exits,
        )
    gateway = _gateway(opened, outward, counting.meter, way)
    trade = port = app_port = services = None
    if opened.has_services:
        trade = trade_of(
            settings,
            _ports(listeners),
            opened.key,
            counting,
            clock.MACHINE,
            opened.bounds.checks,
            is_held=opened.is_held,
        )
        if way is not None and opened.geography is not None:
            port = exit_port(
                settings,
                listeners,
                way,
                trade.market,
                opened.geography,
                None if role is None else role.exits_desk,
                clock.MACHINE,
                opened.bounds.exits,
            )
        tunnels = None if port is None else port.tunnels
        app_port = app_port_of(settings, listeners, trade.market, tunnels)
    staff_counts = StaffCounts()
    metrics = Metrics(
        _sources(opened, gateway, counting, trade, port, app_port, staff_counts), role
    )
    if trade is not None:
        services = services_of(
            settings,
            opened.key,
            trade,
            app_port,
            metrics,
            Readiness(gateway, opened.store, counting.node),
            (outward.resolver, outward.policy),
            opened.bounds,
            staff_port_of(settings, listeners, trade.market, opened.key, staff_counts),
        )
    return Daemon(
        settings,
        listeners,
        core=core_of(counting, None if trade is None else trade.work),
        gateway=gateway,
        helpers=Helpers(
            outward.resolver, outward.own_addresses, metrics, opened.access_log, opened.stops
        ),
        services=services,
        role=role,
        exit_port=port,
    )


def _outward(opened: _Opened) -> _Outward:
    """Return the parts of every way out."""
    settings, own_addresses = opened.settings, OwnAddresses()
    limits = slices.limits(settings, raise_descriptors(), is_first=opened.has_services)
    return _Outward(
        Reactor(asyncio.get_running_loop(), limits.pipes),
        DnsResolver(settings.egress.nameservers, lookup_seconds=settings.egress.lookup_seconds),
        own_addresses,
        slices.policy(settings, own_addresses),
        limits,
    )


def _gateway(opened: _Opened, outward: _Outward, meter: Meter, way: WayOut | None) -> Gateway:
    """Return the gateway; its exits are those of `way`, or of the process that has them."""
    role, log = opened.role, opened.access_log
    reactor, limits = outward.reactor, outward.limits
    ways: Exits | AskedExits | None = None if way is None else way.exits
    if way is None and role is not None and role.exits_address:
        asking = opened.bounds.exits.asking
        ways = AskedExits(reactor, role.exits_address, limits.dial_seconds, asking)
    return Gateway(
        reactor,
        meter,
        DirectExit(reactor, outward.resolver, outward.policy, limits.dial_seconds, limits.racers),
        outward.resolver,
        outward.policy,
        limits,
        slices.public_address(opened.settings),
        log.put if log is not None else None,
        ways,
        opened.bounds.clients,
        Hour() if log is None else log.hour,
    )


def _sources(
    opened: _Opened,
    gateway: Gateway,
    counting: Counting,
    trade: Trade | None,
    port: ExitPort | None,
    app_port: AppPort | None,
    staff_counts: StaffCounts,
) -> Sources:
    """Return the sources of the metrics."""
    return Sources(
        gateway,
        counting.meter,
        opened.store,
        opened.access_log,
        opened.stops.counters,
        __version__,
        finder.way(),
        market=None if trade is None else trade.market,
        apps=None if app_port is None else app_port.server,
        exits=None if port is None else port.listener,
        tunnels=None if port is None else port.tunnels,
        staff=None if opened.listeners.staff is None else staff_counts,
    )


async def _is_held(store: Store) -> bool:
    """Return whether the database was restored and not confirmed; log it."""
    held = await store.read(restorations.held)
    if held is not None:
        _logger.warning(
            "the database was restored from a backup of %s and is held: no e-mail, webhook, payout "
            "or sweep until proxyd restore --confirm, and a restart",
            datetime.fromtimestamp(held.copied_at, UTC).isoformat(),
        )
    return held is not None


def _ports(listeners: Listeners) -> Ports:
    """Return the ports of a process with the API."""
    assert listeners.api is not None  # noqa: S101 - only a process with the API gets here
    return Ports(
        bound_port(listeners.api), bound_port(listeners.proxy), listeners.passwordless_ports
    )


def _cluster(opened: _Opened, counting: Counting) -> Cluster | None:
    """Return this node of the cluster; None where there can be no other."""
    settings, leases = opened.settings, counting.leases
    if counting.node is None or is_sqlite(settings.storage.url):
        return None
    host, port = settings.cluster.exits_host, settings.cluster.exits_port
    return Cluster(opened.store, lambda: leases.node_id, link_key(opened.key), host, port)


def _access_log(settings: Settings, role: Role | None, stops: Stops) -> AccessLog | None:
    access_log, folder = settings.access_log, access_folder(settings)
    if folder is None:
        return None
    return AccessLog(
        folder,
        target=access_log.target,
        client=access_log.client,
        keep_days=access_log.keep_days,
        key=access_key(settings),
        now=clock.seconds,
        watch=AbuseWatch(slices.abuse_thresholds(settings), stops.add, stops.note),
        process=role.index if role is not None else None,
    )
