"""The daemon's life: start, reload, drain, close. `build` puts its parts together.

The parts start, drain and close in order: the proxy, and the services if this process has them.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from api.server import HttpServer
from config.settings import Settings
from market.market import Market
from proxyd import __version__
from proxyd.compiled import finder
from proxyd.egress.own import OwnAddresses
from proxyd.egress.resolve import DnsResolver
from proxyd.gateway import Gateway
from proxyd.limits import raise_descriptors
from proxyd.loop import cancellation
from proxyd.ops.access_log.access_log import AccessLog
from proxyd.ops.metrics.metrics import Metrics
from proxyd.ops.processes.listening import exits_context, load_certificate, tls_context
from proxyd.ops.processes.role import Role
from proxyd.ops.processes.sd_notify import ServiceManager
from proxyd.wiring import slices
from proxyd.wiring.abuse_stops import Stops
from proxyd.wiring.core import Core
from proxyd.wiring.exit_port import ExitPort, known_by
from proxyd.wiring.listeners import Listeners
from proxyd.wiring.new_accounts import new_accounts
from proxyd.wiring.services import CLOSE_SECONDS, Services
from proxyd.wiring.tasks import Tasks
from storage.engines.place import place
from storage.engines.store import Store

_logger = logging.getLogger("daemon")


@dataclass(frozen=True, slots=True)
class Helpers:
    """Helpers of the proxy, which are closed after it.

    Names and addresses of its targets; measurements and records.
    """

    resolver: DnsResolver
    own_addresses: OwnAddresses
    metrics: Metrics
    access_log: AccessLog | None
    stops: Stops

    def change_rules(self, settings: Settings) -> None:
        """Apply other figures and modes of the rules against abuse from now on."""
        self.stops.halt_seconds = slices.abuse_halt_seconds(settings)
        if self.access_log is not None:
            self.access_log.change_thresholds(slices.abuse_thresholds(settings))

    async def close(self) -> None:
        """Close all of them, each within a bound."""
        await cancellation.within(CLOSE_SECONDS, self.resolver.close(), "closing the resolver")
        self.own_addresses.close()
        if self.access_log is not None:
            await asyncio.to_thread(self.access_log.close)
        if self.metrics.shared is not None:
            self.metrics.shared.share()  # the last counts


class Daemon:
    """Everything that runs, built but not started.

    Args:
        core: counts bytes, and runs the sweeps of the marketplace.
        helpers: closed after the proxy.
        services: the marketplace's API; None in a process that has only the proxy.
        role: the role of this process among several; None for a single process.
        exit_port: the port where devices attach; None without one.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Listeners,
        *,
        core: Core,
        gateway: Gateway,
        helpers: Helpers,
        services: Services | None,
        role: Role | None,
        exit_port: ExitPort | None = None,
    ) -> None:
        self.settings = settings
        self.listeners = listeners
        self.core = core
        self.gateway = gateway
        self.helpers = helpers
        self.services = services
        self.role = role
        self.exit_port = exit_port
        self._is_closed = False

    @property
    def store(self) -> Store:
        """The store."""
        return self.core.store

    @property
    def tasks(self) -> Tasks:
        """The background tasks."""
        return self.core.tasks

    @property
    def market(self) -> Market:
        """The marketplace, of the process that has it."""
        assert self.services is not None  # noqa: S101 - whoever asks knows that it is here
        return self.services.market

    @property
    def http(self) -> HttpServer:
        """The API, of the process that has it."""
        assert self.services is not None  # noqa: S101 - as above
        return self.services.http

    @property
    def process(self) -> int | None:
        """The number of this process among several; None for a single process."""
        return self.role.index if self.role is not None else None

    @property
    def _shared_level(self) -> int:
        """Level of the log lines that the supervisor, if it exists, writes for all processes."""
        return logging.INFO if self.role is None else logging.DEBUG

    async def start(self) -> None:
        """Register as a node or take back the leases of an earlier daemon, then serve."""
        await self.core.start(self._shared_level)
        self.helpers.own_addresses.open()
        self._spawn_tasks()
        self.listeners.resume()
        self.gateway.start(self.listeners.proxy, self.listeners.passwordless)
        if self.exit_port is not None:
            self.exit_port.start()
        if self.services is not None and self.listeners.api is not None:
            self.services.serve(self.listeners.api, self.listeners.tls)
        level = self._shared_level
        _logger.log(level, "this is proxyd %s, %s", __version__, finder.description())
        _logger.log(level, "ready: %s", self.describe())

    def _spawn_tasks(self) -> None:
        metrics, tasks = self.helpers.metrics, self.tasks
        tasks.spawn("loop lag", metrics.watch_loop())
        if self.helpers.access_log is not None:
            tasks.spawn("abuse", self.helpers.stops.run())
        tasks.spawn("descriptors", metrics.process.watch_descriptors())
        if metrics.shared is not None:
            tasks.spawn("shared metrics", metrics.shared.run())
        if self.exit_port is not None:
            self.exit_port.spawn_tasks(tasks)
        if self.services is not None:
            self.services.spawn_tasks(tasks)
            tasks.spawn("ledger totals", metrics.watch_ledger())

    def reload(self, settings: Settings) -> None:
        """Load the certificate again, and apply new limits.

        Args:
            settings: equal to the settings of the start, except in the settings of
                `config.settings.Reloadable`; each of these is handed on here, or is the log's.

        Raises:
            CannotListenError: the certificate cannot be used; nothing has changed.
        """
        api, tls = settings.api, self.listeners.tls
        if self.exit_port is not None and settings.exits.tls_cert:
            exits_context(settings.exits.tls_cert, settings.exits.tls_key)
        if self.exit_port is not None and settings.exits.next_tls_cert:
            known_by(settings.exits.next_tls_cert)
        if tls is not None:
            tls_context(api.tls_cert, api.tls_key)
            load_certificate(tls, api.tls_cert, api.tls_key)
        apps, apps_tls = settings.apps, self.listeners.apps_tls
        if apps_tls is not None:
            tls_context(apps.tls_cert, apps.tls_key)
            load_certificate(apps_tls, apps.tls_cert, apps.tls_key)
        staff, staff_tls = settings.staff, self.listeners.staff_tls
        if staff_tls is not None:
            tls_context(staff.tls_cert, staff.tls_key)
            load_certificate(staff_tls, staff.tls_cert, staff.tls_key)
        exits = settings.exits
        if self.exit_port is not None and exits.tls_cert:
            self.exit_port.change_certificate(exits.tls_cert, exits.tls_key)
        if self.exit_port is not None and exits.next_tls_cert:
            self.exit_port.announce_certificate(exits.next_tls_cert)
        self.settings = settings
        descriptors = raise_descriptors()
        is_first = self.role is None or self.role.has_services
        self.gateway.change_limits(slices.limits(settings, descriptors, is_first=is_first))
        if self.exit_port is not None:
            self.exit_port.change_limits(slices.exit_limits(settings, descriptors))
        self.helpers.change_rules(settings)
        self.core.meter.new_accounts = new_accounts(settings)
        self.core.meter.connections_per_session = settings.limits.connections_per_session
        if self.services is not None:
            self.services.reload(settings, descriptors)

    async def drain(self, *, is_cut: bool = False) -> None:
        """Stop in order: no new work, live transfers to their end, the last counts, the store.

        Args:
            is_cut: whether to skip the wait for the transfers, because they are about to be cut.
        """
        if self.services is not None:
            self.services.drain()
            if self.listeners.api in self.listeners.held:
                self.services.leave_socket()
            if self.listeners.apps in self.listeners.held:
                self.services.leave_app_socket()
        self.gateway.stop_accepting()
        seconds = self.settings.limits.drain_seconds
        if self.exit_port is not None:
            self.exit_port.drain(seconds)
        if not is_cut:
            self._log_drain(self.gateway.connections, seconds)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        left = await self.gateway.drain(seconds)
        if self.exit_port is not None and not is_cut:
            await self.exit_port.wait_over(max(0.0, until - loop.time()))
        if left:
            _logger.warning("cutting %d connections that did not finish", left)
        await self.close()

    def _log_drain(self, connections: int, seconds: float) -> None:
        if not connections:
            _logger.log(self._shared_level, "stopping: the proxy has no open connections")
            return
        line = "draining: %d connections have %.0f seconds to finish"
        if self.role is None:  # the supervisor says this for all processes
            line += "; a second signal cuts them"
        _logger.info(line, connections, seconds)

    async def close(self) -> None:
        """Cut the remaining connections, write the last counts, close everything; within a bound.

        Nothing may keep the counts from being written, and nothing after that the store from being
        closed: a client or a peer that hangs costs its bound and no more. Closing twice is
        harmless, also after a failure: everything is closed once.
        """
        if self._is_closed:
            return
        self._is_closed = True
        async with AsyncExitStack() as last:  # each is closed, even if another one fails
            last.push_async_callback(self.store.close)
            last.push_async_callback(self.helpers.close)
            if self.services is not None:
                last.push_async_callback(self.services.close)
            last.callback(self.listeners.close)
            last.push_async_callback(self.core.stop)  # the counts are written after any failure
            if self.services is not None:
                last.push_async_callback(_attempt, self.services.stop_serving)
            if self.exit_port is not None:
                last.push_async_callback(_attempt, self.exit_port.close)
            self.gateway.close()
        _logger.log(self._shared_level, "stopped")

    def describe(self) -> str:
        """Return the addresses that it listens on, and its database."""
        return f"{self.listeners.describe()}, database {place(self.settings.storage.url)}"


async def _attempt(close: Callable[[], Awaitable[None]]) -> None:
    """Close a part; log its failure."""
    try:
        await close()
    except Exception:
        _logger.exception("closing a part of the daemon failed")


class Stop:
    """Signals to the daemon: to drain, and then to cut the remaining connections.

    Args:
        is_cut_by_second: whether a second signal to drain cuts. Not in one of several processes: a
            service manager may signal the supervisor and each process, and the supervisor forwards.
    """

    def __init__(self, *, is_cut_by_second: bool) -> None:
        self._is_cut_by_second = is_cut_by_second
        self.draining = asyncio.Event()
        self.cutting = asyncio.Event()
        self.is_orphan = False  # whether the supervisor is gone

    def drain(self) -> None:
        """Begin to drain; cut if the draining has begun and a second signal cuts."""
        if self._is_cut_by_second and self.draining.is_set():
            self.cutting.set()
        self.draining.set()

    def cut(self) -> None:
        """Cut the remaining connections as soon as the draining has begun."""
        self.draining.set()
        self.cutting.set()

    def orphan(self) -> None:
        """Cut because the supervisor is gone: nothing starts this process again, or ends it."""
        self.is_orphan = True
        self.cut()


async def serve(
    daemon: Daemon,
    on_ready: Callable[[], Awaitable[None]],
    reload: Callable[[], None],
    manager: ServiceManager,
) -> None:
    """Run until SIGTERM or SIGINT, then drain; a second signal cuts the draining short.

    One of several processes drains at SIGTERM, however often it comes, and cuts at SIGINT, which
    the supervisor sends it; without the supervisor it ends immediately.

    Args:
        daemon: built, not started.
        on_ready: called once it serves.
        reload: called on SIGHUP.
        manager: receives the state of the daemon.
    """

    def reload_and_tell() -> None:
        manager.reloading()
        try:
            reload()
        finally:  # ends the manager's wait, also when the reload has failed
            manager.ready(daemon.describe())

    stop = Stop(is_cut_by_second=daemon.role is None)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.drain)
    loop.add_signal_handler(signal.SIGINT, stop.drain if daemon.role is None else stop.cut)
    if daemon.role is not None:
        _watch_supervisor(daemon.role.channel, stop)
    feeding = loop.create_task(manager.feed(), name="watchdog")
    try:
        await daemon.start()
        loop.add_signal_handler(signal.SIGHUP, reload_and_tell)
        await on_ready()
        manager.ready(daemon.describe())
        await stop.draining.wait()
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        manager.stopping(f"draining {daemon.gateway.connections} connections")
        cutting_short = loop.create_task(_cut(stop, daemon.gateway))
        await daemon.drain(is_cut=stop.cutting.is_set())
        cutting_short.cancel()
    except BaseException:
        await daemon.close()
        raise
    finally:
        feeding.cancel()


def _watch_supervisor(channel: socket.socket, stop: Stop) -> None:
    """Stop immediately when the supervisor is gone."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(channel.fileno())
        stop.orphan()

    loop.add_reader(channel.fileno(), gone)  # it never sends anything


async def _cut(stop: Stop, gateway: Gateway) -> None:
    await stop.cutting.wait()
    if stop.is_orphan:
        words = "the supervisor is gone; this process cuts %d connections and stops"
        _logger.error(words, gateway.connections)
    else:
        _logger.warning(
            "draining cut short by a second signal: %d connections", gateway.connections
        )
    gateway.close()
