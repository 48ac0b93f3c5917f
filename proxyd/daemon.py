"""The daemon's life: start, reload, drain, close. What it is made of is put together in `build`."""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.server import HttpServer
from config.settings import Settings
from market.market import Market
from market.photos.decoding import Photos
from proxyd import __version__, slices
from proxyd.acceptor import Acceptor
from proxyd.compiled import finder
from proxyd.egress.own import OwnAddresses
from proxyd.egress.resolve import DnsResolver
from proxyd.gateway import Gateway
from proxyd.limits import raise_descriptors
from proxyd.listeners import Listeners
from proxyd.loop import cancellation, clock
from proxyd.metering.meter import Meter
from proxyd.metering.node import Node
from proxyd.ops.access_log import AccessLog
from proxyd.ops.listening import load_certificate, tls_context
from proxyd.ops.metrics import Metrics
from proxyd.ops.sd_notify import ServiceManager
from proxyd.outbound.mailer import Mailer
from proxyd.tasks import Tasks, reap
from storage.errors import StoreError
from storage.place import place
from storage.store import Store

if TYPE_CHECKING:
    from proxyd.outbound.chat_model import OpenAiModel

EXPIRY_CHECK_SECONDS = 2.0  # a session outlives its time by no more than this
TAKE_BACK_CHECK_SECONDS = 15.0  # reads every running job; a device has ten minutes to be heard of
JOB_EXPIRY_CHECK_SECONDS = 15.0
REFERRAL_CHECK_SECONDS = 10.0  # how long a bonus takes once an address is confirmed, at most
CLOSE_SECONDS = 8.0  # the API's requests in progress have 5 s of them (`api.server`)
COUNTS_SECONDS = 15.0  # to write the last counts, with a store that may be away
# 1.3 MB/s at a round trip of 100 ms, since Linux doubles it. More would stand in the kernel for so
# long that an honest client that reads slowly would look like one that does not read.
API_SEND_BUFFER_BYTES = 64 * 1024
API_RECEIVE_BUFFER_BYTES = 128 * 1024  # the loop reads no more than this at once

_logger = logging.getLogger("daemon")


@dataclass(frozen=True, slots=True)
class Helpers:
    """What works for the market and the proxy, and is closed after them.

    Names and addresses of the proxy's targets; the model, photos and e-mails; what is measured and
    recorded.
    """

    resolver: DnsResolver
    own_addresses: OwnAddresses
    model: "OpenAiModel | None"
    photos: Photos
    mailer: Mailer
    metrics: Metrics
    access_log: AccessLog | None

    async def close(self) -> None:
        """Close all of them, each within a bound."""
        await cancellation.within(CLOSE_SECONDS, self.resolver.close(), "closing the resolver")
        self.own_addresses.close()
        self.photos.close()
        if self.model is not None:
            await cancellation.within(
                CLOSE_SECONDS, self.model.close(), "closing the model's client"
            )
        if self.access_log is not None:
            await asyncio.to_thread(self.access_log.close)


class Daemon:
    """Everything that runs, built but not started.

    Args:
        settings: what the operator wants.
        listeners: the sockets to serve on.
        store: an open store, claimed for this daemon.
        market: the marketplace, over that store.
        meter: counts the bytes of live sessions.
        node: this daemon among others; None where there can be no others.
        gateway: the proxy.
        http: the API.
        helpers: what works for the market and the proxy.
        observed_time: for how long this daemon has been there to hear devices.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Listeners,
        *,
        store: Store,
        market: Market,
        meter: Meter,
        node: Node | None,
        gateway: Gateway,
        http: HttpServer,
        helpers: Helpers,
        observed_time: clock.ObservedTime,
    ) -> None:
        self.settings = settings
        self.listeners = listeners
        self.store = store
        self.market = market
        self.meter = meter
        self.node = node
        self.gateway = gateway
        self.http = http
        self.helpers = helpers
        self.observed_time = observed_time
        self.tasks = Tasks(lambda: node is None or node.sweeps)
        self._api_acceptor: Acceptor[socket.socket] | None = None

    async def start(self) -> None:
        """Take up what an earlier daemon left, then serve."""
        if self.node is not None:
            await self.node.start()
        else:
            recovered = await self.market.leases.recover()
            if recovered:
                _logger.info("leases that a dead daemon had left open, taken back: %d", recovered)
        self.helpers.own_addresses.open()
        self._spawn_tasks()
        self.gateway.start(self.listeners.proxy, self.listeners.passwordless)
        self._serve_api()
        _logger.info("this is proxyd %s, %s", __version__, finder.description())
        _logger.info("ready: %s", self.describe())

    def _spawn_tasks(self) -> None:
        market, metrics, tasks = self.market, self.helpers.metrics, self.tasks
        tasks.spawn("meter", self.meter.run(), is_writer=True)
        tasks.spawn("heartbeats", market.devices.run(), is_writer=True)
        tasks.every(EXPIRY_CHECK_SECONDS, "expiry", market.bandwidth.expire, "expired sessions")
        tasks.every(TAKE_BACK_CHECK_SECONDS, "abandoned jobs", self.take_back, "abandoned jobs")
        tasks.every(
            JOB_EXPIRY_CHECK_SECONDS, "waiting jobs", market.jobs.expire, "jobs that nobody takes"
        )
        tasks.every(
            REFERRAL_CHECK_SECONDS, "pending bonuses", market.referrals.pay_due, "pending bonuses"
        )
        tasks.spawn("recovery", market.recovery.run())
        tasks.spawn("mail", self.helpers.mailer.run())
        tasks.spawn("loop lag", metrics.watch_loop())
        tasks.spawn("ledger totals", metrics.watch_ledger())
        tasks.spawn("descriptors", metrics.process.watch_descriptors())
        if self.node is not None:
            tasks.spawn("node", self.node.run())
            tasks.spawn("dead nodes", reap(market.leases, self.node))

    def _serve_api(self) -> None:
        api = self.listeners.api
        # Its connections inherit both; what the kernel keeps for each is bounded, too.
        api.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, API_SEND_BUFFER_BYTES)
        api.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, API_RECEIVE_BUFFER_BYTES)
        self.http.start(self.listeners.tls)
        loop, logger = asyncio.get_running_loop(), logging.getLogger("api")
        shed = self.http.shed
        self._api_acceptor = Acceptor(loop, api, self.http.welcome, shed, logger, socket.socket)

    def reload(self, settings: Settings) -> None:
        """Take the certificate anew, and new limits.

        Args:
            settings: those of the start, but for the ones that are `config.settings.Reloadable`;
                each of these is handed on here, or is the log's.

        Raises:
            CannotListenError: the certificate cannot be used; nothing has changed.
        """
        api, tls = settings.api, self.listeners.tls
        if tls is not None:
            tls_context(api.tls_cert, api.tls_key)
            load_certificate(tls, api.tls_cert, api.tls_key)
        self.settings = settings
        descriptors = raise_descriptors()
        self.gateway.change_limits(slices.limits(settings, descriptors))
        self.meter.connections_per_session = settings.limits.connections_per_session
        self.http.change_limits(slices.api_limits(settings, descriptors))
        self.market.change_bounds(slices.bounds(settings))

    async def drain(self) -> None:
        """Stop in order: no new work, live transfers to their end, the last counts, the store."""
        self.http.drain()
        if self.listeners.are_held:
            self._leave_api()
        self.gateway.stop_accepting()
        seconds = self.settings.limits.drain_seconds
        _logger.info(
            "draining: %d connections have %.0f seconds to finish; a second signal cuts them",
            self.gateway.connections,
            seconds,
        )
        left = await self.gateway.drain(seconds)
        if left:
            _logger.warning("cutting %d connections that did not finish", left)
        await self.close()

    def _leave_api(self) -> None:
        """Accept no new client of the API; whoever holds the socket has it for the next daemon."""
        if self._api_acceptor is not None:
            self._api_acceptor.close()

    async def close(self) -> None:
        """Cut what is left, write the last counts, close everything; within a bound.

        Nothing may keep the counts from being written, and nothing after that the store from being
        closed: a client or a peer that hangs costs its bound and no more.
        """
        try:
            self.gateway.close()
            self._leave_api()
            await cancellation.within(CLOSE_SECONDS, self.http.stop(), "closing the API")
        except Exception:  # whatever it is, the counts are written all the same
            _logger.exception("closing the API failed")
        await self.tasks.end_writers()
        try:
            await cancellation.within(
                COUNTS_SECONDS, self._write_last_counts(), "writing the last counts"
            )
        except StoreError as error:
            _logger.error("the last counts could not be written: %s", error)
        finally:
            await self.tasks.end()
            if self.node is not None:
                await self.node.close()
            self.market.passwords.close()
            self.listeners.close()
            try:
                await self.helpers.close()
            finally:
                await self.store.close()
        _logger.info("stopped")

    async def _write_last_counts(self) -> None:
        await self.meter.stop()
        await self.market.devices.flush()
        if self.node is not None:
            await self.node.stop()

    def describe(self) -> str:
        """Return where everything listens, and on which database."""
        return f"{self.listeners.describe()}, database {place(self.settings.storage.url)}"

    async def take_back(self) -> None:
        """Take jobs back from devices that have vanished.

        Raises:
            StoreError: devices may not have been heard either, so that this time does not count.
        """
        taken = await self.market.jobs.take_back()
        self.observed_time.tick()
        if taken:
            _logger.info("jobs taken back from devices that have vanished: %d", taken)


async def serve(
    daemon: Daemon,
    on_ready: Callable[[], Awaitable[None]],
    reload: Callable[[], None],
    manager: ServiceManager,
) -> None:
    """Run until SIGTERM or SIGINT, then drain; a second signal cuts the draining short.

    Args:
        daemon: built, not started.
        on_ready: called once it serves.
        reload: called on SIGHUP.
        manager: is told how it goes.
    """

    def reload_and_tell() -> None:
        manager.reloading()
        reload()
        manager.ready(daemon.describe())

    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    feeding = loop.create_task(manager.feed(), name="watchdog")
    try:
        await daemon.start()
        loop.add_signal_handler(signal.SIGHUP, reload_and_tell)
        await on_ready()
        manager.ready(daemon.describe())
        await signals.get()
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        manager.stopping(f"draining {daemon.gateway.connections} connections")
        cutting_short = loop.create_task(_cut_on_next(signals, daemon.gateway))
        await daemon.drain()
        cutting_short.cancel()
    except BaseException:
        await daemon.close()
        raise
    finally:
        feeding.cancel()


async def _cut_on_next(signals: "asyncio.Queue[None]", gateway: Gateway) -> None:
    await signals.get()
    _logger.warning("draining cut short by a second signal: %d connections", gateway.connections)
    gateway.close()
