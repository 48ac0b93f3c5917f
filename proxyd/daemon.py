"""The daemon: the one place where everything is built, started, and drained, in this order."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Self

from api.accounts import AccountRoutes
from api.assistant import AssistantRoutes
from api.bandwidth import BandwidthRoutes
from api.deploys import DeployRoutes
from api.health import HealthRoutes
from api.jobs import JobRoutes
from api.landing import landing_pages
from api.limits import Limits as ApiLimits
from api.metrics import Exposition
from api.referrals import ReferralRoutes
from api.response_cache import Answers
from api.server import HttpServer
from api.wallet import WalletRoutes
from api.workers import WorkerRoutes
from config.load import SettingsError
from config.settings import Settings
from market.accounts import Accounts, LoginLimits
from market.assistant.asking import Asking, Slots
from market.assistant.builtin import Offer, Responder
from market.assistant.chat import Chat
from market.assistant.goodness import Goodness, RewardTerms
from market.bandwidth import Bandwidth, Terms
from market.bounds import Bounds
from market.deploys import Deploys, Rates
from market.devices import Devices
from market.idempotency import Seal
from market.ids import Identifiers
from market.jobs import Jobs
from market.leases import Leases
from market.money import micro
from market.outbox import Outbox
from market.passwords import Passwords
from market.photos.decoding import PhotoLimits, Photos
from market.proofs import Proofs
from market.recovery import Recovery
from market.referrals import Referrals, Rewards
from market.sealing import Sealing
from market.throttle import Throttle
from market.tokens import Tokens
from market.wallet import Wallet
from proxyd import __version__
from proxyd.acceptor import Acceptor
from proxyd.egress.own import OwnAddresses
from proxyd.egress.policy import Policy
from proxyd.egress.resolve import DnsResolver
from proxyd.gateway import Gateway
from proxyd.limits import (
    Limits,
    api_connections_total,
    associations_total,
    connections_total,
    pipes_total,
    racers_total,
    raise_descriptors,
)
from proxyd.loop import cancellation, clock
from proxyd.metering.lease_slices import Fence
from proxyd.metering.meter import Meter
from proxyd.metering.node import Node
from proxyd.metering.shared_meter import SharedMeter
from proxyd.ops import reachability
from proxyd.ops.access_log import AccessLog
from proxyd.ops.activation import InheritedSockets
from proxyd.ops.listening import (
    bound_address,
    bound_port,
    format_address,
    listen,
    listen_beside,
    load_certificate,
    tls_context,
)
from proxyd.ops.metrics import Metrics, Sources
from proxyd.ops.sd_notify import ServiceManager
from proxyd.ops.signing_key import exposed_files, signing_key
from proxyd.ops.timed_store import TimedStore
from proxyd.outbound.chat_model import OpenAiModel
from proxyd.outbound.mailer import LogTransport, Mailer
from proxyd.outbound.smtp import SmtpServer, SmtpTransport
from proxyd.wire.events import Address
from storage.errors import StoreError
from storage.open import open_store
from storage.place import place
from storage.store import Store, probe

DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600
MINUTE_SECONDS = 60
EXPIRY_CHECK_SECONDS = 2.0
TAKE_BACK_CHECK_SECONDS = 15.0
JOB_EXPIRY_CHECK_SECONDS = 15.0
REFERRAL_CHECK_SECONDS = 10.0
REAP_CHECK_SECONDS = 1.0
CLOSE_SECONDS = 8.0  # the API's requests in progress have 5 s of them (`api.server`)
COUNTS_SECONDS = 15.0  # to write the last counts, with a store that may be away
# 1.3 MB/s at a round trip of 100 ms, since Linux doubles it. More would stand in the kernel for so
# long that an honest client that reads slowly would look like one that does not read.
API_SEND_BUFFER_BYTES = 64 * 1024
API_RECEIVE_BUFFER_BYTES = 128 * 1024  # the loop reads no more than this at once

_logger = logging.getLogger("daemon")


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets that clients reach, and what makes the API's speak TLS.

    `passwordless` are those where a client's address stands for a password. `are_held` says that
    the service manager keeps them for the next daemon.
    """

    api: socket.socket
    proxy: socket.socket
    passwordless: tuple[socket.socket, ...]
    tls: ssl.SSLContext | None
    are_held: bool

    @classmethod
    def open(cls, settings: Settings, held: InheritedSockets) -> Self:
        """Bind all but those that the service manager holds.

        Raises:
            CannotListenError: an address or the certificate cannot be used.
            SettingsError: buyers would be told an address that leads nowhere.
        """
        host = settings.proxy.host
        with ExitStack() as opened:
            for sock in (sock for socks in held.values() for sock in socks):
                opened.enter_context(sock)
            if problems := list(reachability.problems(settings, held)):
                raise SettingsError(problems)
            tls = tls_context(settings.api.tls_cert, settings.api.tls_key)
            api, proxy = held.get("api", []), held.get("proxy", [])
            if not api:
                api = [opened.enter_context(listen(settings.api.host, settings.api.port, "API"))]
            if not proxy:
                proxy = [opened.enter_context(listen(host, settings.proxy.port, "proxy"))]
            passwordless = held.get("passwordless") or [
                opened.enter_context(sock) for sock in _passwordless(settings)
            ]
            opened.pop_all()
        return cls(api[0], proxy[0], tuple(passwordless), tls, are_held=bool(held))

    def close(self) -> None:
        """Close all; closing twice is harmless."""
        for sock in (self.api, self.proxy, *self.passwordless):
            sock.close()


class Daemon:
    """Everything that runs, built but not started.

    Args:
        settings: what the operator wants.
        listeners: the sockets to serve on.
        store: an open store, claimed for this daemon.
        key: signs session tokens.
        access_log: takes records of proxied connections, if they are wanted.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Listeners,
        store: Store,
        key: bytes,
        access_log: AccessLog | None = None,
    ) -> None:
        self.settings = settings
        self.listeners = listeners
        self.store = store = TimedStore(store)
        self.identifiers = Identifiers(clock.milliseconds)
        self.passwords = Passwords(
            time_cost=settings.auth.argon2_time_cost, memory_kib=settings.auth.argon2_memory_kib
        )
        tokens = Tokens(key, lifetime_seconds=settings.auth.token_hours * HOUR_SECONDS)
        self.referrals = Referrals(store, self.identifiers, clock.seconds, _rewards(settings))
        app_url = _app_url(settings, bound_port(listeners.api))
        self.outbox = self._outbox("mail", key)
        proofs = Proofs(self.outbox, app_url, clock.seconds)
        self.accounts = Accounts(
            store,
            self.passwords,
            tokens,
            self.identifiers,
            clock.seconds,
            _login_limits(settings),
            self.referrals.rewards,
            proofs,
        )
        self.recovery = Recovery(
            store,
            self.passwords,
            proofs,
            self._outbox("forgotten password", key),
            clock.seconds,
            self.accounts,
            _login_limits(settings),
        )
        # Whoever comes with a session must not wait for what the API asks.
        self.leases = Leases(store.set_aside(), self.identifiers, clock.seconds)
        self.meter, self.node = self._metering()
        self.mailer = Mailer(self.outbox, _transport(settings), is_alone=self.node is None)
        self.bandwidth = Bandwidth(
            store,
            self.leases,
            self.meter,
            _terms(settings, listeners),
            self.identifiers,
            clock.seconds,
            _bounds(settings),
        )
        self.devices = Devices(
            store,
            self.identifiers,
            clock.seconds,
            is_shared=self.node is not None,
            bounds=_bounds(settings),
        )
        self.observed_time = clock.ObservedTime(clock.boottime, 2 * TAKE_BACK_CHECK_SECONDS)
        self.jobs = Jobs(
            store,
            self.devices,
            self.identifiers,
            clock.seconds,
            self.observed_time.seconds,
            fee=int(settings.market.fee_percent * 100),
            waiting_seconds=settings.market.job_waiting_days * DAY_SECONDS,
            bounds=_bounds(settings),
        )
        self.deploys = Deploys(store, self.jobs, self.identifiers, clock.seconds, _rates(settings))
        self.upstream = _upstream(settings)
        self.photos = Photos(_photo_limits(settings))
        egress = settings.egress
        self.resolver = DnsResolver(egress.nameservers, lookup_seconds=egress.lookup_seconds)
        self.own_addresses = OwnAddresses()
        self.access_log = access_log
        self.gateway = Gateway(
            self.meter,
            self.resolver,
            _policy(settings, self.own_addresses),
            _limits(settings),
            _public_address(settings),
            self.access_log.put if self.access_log is not None else None,
        )
        self.metrics = Metrics(
            Sources(
                self.gateway,
                self.meter,
                store,
                lambda: self.outbox.waiting,
                self.access_log,
                __version__,
            )
        )
        self.http = HttpServer(
            [
                *HealthRoutes(self._ready).table(),
                *AccountRoutes(self.accounts, self.recovery).table(),
                *BandwidthRoutes(self.bandwidth).table(),
                *WorkerRoutes(self.devices, self.jobs).table(),
                *JobRoutes(self.jobs, Answers(store.version)).table(),
                *ReferralRoutes(self.referrals, app_url).table(),
                *DeployRoutes(self.deploys).table(),
                *self._assistant().table(),
                *WalletRoutes(Wallet(store)).table(),
            ],
            authenticate=self.accounts.authenticate,
            authenticate_worker=self.devices.authenticate,
            body_max_bytes=settings.api.body_max_bytes,
            version=__version__,
            base_url=settings.api.base_url,
            seal=Seal(key),
            now=clock.seconds,
            limits=_api_limits(settings),
            trusted_proxies=settings.api.trusted_proxies,
            more_pages={} if settings.api.app_url else landing_pages(),
            exposition=Exposition(self.metrics.render, settings.api.metrics_allow),
        )
        self._api_acceptor: Acceptor | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.Task[None]] = []  # of those, the ones that write counts down
        self._draining = False
        self.has_failed = False

    def _outbox(self, channel: str, key: bytes) -> Outbox:
        """Return what waits to leave by one way."""
        sealing = Sealing(key, b"outbox")
        return Outbox(self.store, sealing, self.identifiers, clock.seconds, channel)

    def _assistant(self) -> AssistantRoutes:
        """Return the routes of the assistant, with a model where one is configured."""
        wanted = self.settings.assistant
        slots = Slots(wanted.concurrency, wanted.concurrency_per_caller)

        def asking(model: str) -> Asking | None:
            if not model:
                return None
            return Asking(self.upstream, slots, seconds=wanted.timeout_seconds)

        responder = Responder(
            self.bandwidth,
            self.jobs,
            self.devices,
            self.referrals,
            Offer(micro(self.settings.market.price_per_gb_default_usd)),
        )
        goodness = Goodness(
            self.store,
            self.identifiers,
            clock.seconds,
            _reward_terms(self.settings),
            asking(wanted.vision_model),
            wanted.vision_model,
        )
        return AssistantRoutes(
            Chat(responder, asking(wanted.model), wanted.model),
            self.photos,
            goodness,
            Throttle(wanted.requests_per_minute, MINUTE_SECONDS, clock.seconds),
            photo_max_bytes=wanted.photo_max_bytes,
        )

    def _metering(self) -> tuple[Meter, Node | None]:
        """Return what counts bytes, and this daemon among others where there may be others."""
        limits, timeout = self.settings.limits, self.settings.cluster.node_timeout_seconds
        link = self.store.link(timeout)
        if link is None:
            meter = Meter(
                self.leases,
                clock.seconds,
                connections_per_session=limits.connections_per_session,
                bytes_per_second=limits.session_bytes_per_second,
            )
            return meter, None
        fence = Fence(clock.boottime)
        shared = SharedMeter(
            self.leases,
            clock.seconds,
            fence,
            connections_per_session=limits.connections_per_session,
            bytes_per_second=limits.session_bytes_per_second,
        )
        node = Node(
            link,
            self.leases,
            shared,
            fence,
            self.identifiers,
            clock.boottime,
            clock.ObservedTime(clock.boottime, 2 * REAP_CHECK_SECONDS),
            timeout_seconds=timeout,
        )
        return shared, node

    async def start(self) -> None:
        """Take up what an earlier daemon left, then serve."""
        if self.node is not None:
            await self.node.start()
        else:
            recovered = await self.leases.recover()
            if recovered:
                _logger.info("leases that a dead daemon had left open, taken back: %d", recovered)
        self.own_addresses.open()
        loop = asyncio.get_running_loop()
        self._writers = [
            loop.create_task(self.meter.run(), name="meter"),
            loop.create_task(self.devices.run(), name="heartbeats"),
        ]
        self._tasks = [
            *self._writers,
            loop.create_task(
                self._sweep(EXPIRY_CHECK_SECONDS, self.bandwidth.expire, "expired sessions"),
                name="expiry",
            ),
            loop.create_task(
                self._sweep(TAKE_BACK_CHECK_SECONDS, self.take_back, "abandoned jobs"),
                name="abandoned jobs",
            ),
            loop.create_task(
                self._sweep(JOB_EXPIRY_CHECK_SECONDS, self.jobs.expire, "jobs that nobody takes"),
                name="waiting jobs",
            ),
            loop.create_task(
                self._sweep(REFERRAL_CHECK_SECONDS, self.referrals.pay_due, "pending bonuses"),
                name="pending bonuses",
            ),
            loop.create_task(self.recovery.run(), name="recovery"),
            loop.create_task(self.mailer.run(), name="mail"),
            loop.create_task(self.metrics.watch_loop(), name="loop lag"),
            loop.create_task(self.metrics.watch_ledger(), name="ledger totals"),
            loop.create_task(self.metrics.process.watch_descriptors(), name="descriptors"),
        ]
        if self.node is not None:
            self._tasks.append(loop.create_task(self.node.run(), name="node"))
            self._tasks.append(loop.create_task(self._reap(self.node), name="dead nodes"))
        for task in self._tasks:
            task.add_done_callback(self._watch)
        self.gateway.start(self.listeners.proxy, self.listeners.passwordless)
        self._serve_api(loop)
        _logger.info("ready: %s", self.describe())

    def _serve_api(self, loop: asyncio.AbstractEventLoop) -> None:
        api = self.listeners.api
        # Its connections inherit both; what the kernel keeps for each is bounded, too.
        api.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, API_SEND_BUFFER_BYTES)
        api.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, API_RECEIVE_BUFFER_BYTES)
        self.http.start(self.listeners.tls)
        self._api_acceptor = Acceptor(
            loop, api, self.http.welcome, self.http.shed, logging.getLogger("api")
        )

    def reload(self, settings: Settings) -> None:
        """Take the certificate anew, and new limits.

        Args:
            settings: those of the start, but for limits and what concerns the log.

        Raises:
            CannotListenError: the certificate cannot be used; nothing has changed.
        """
        api, tls = settings.api, self.listeners.tls
        if tls is not None:
            tls_context(api.tls_cert, api.tls_key)
            load_certificate(tls, api.tls_cert, api.tls_key)
        self.settings = settings
        self.gateway.change_limits(_limits(settings))
        self.meter.connections_per_session = settings.limits.connections_per_session
        self.http.change_limits(_api_limits(settings))
        for each in (self.bandwidth, self.devices, self.jobs):
            each.bounds = _bounds(settings)

    async def drain(self) -> None:
        """Stop in order: no new work, live transfers to their end, the last counts, the store."""
        self._draining = True
        self.http.drain()
        if self.listeners.are_held:
            self._leave_api()
        self.gateway.stop_accepting()
        seconds = self.settings.limits.drain_seconds
        _logger.info(
            "draining: %d connections have %.0f seconds to finish",
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
        """Cut what is left, write the last counts, close everything; within a bound."""
        try:
            self.gateway.close()
            self._leave_api()
            await cancellation.within(CLOSE_SECONDS, self.http.stop(), "closing the API")
        except Exception:  # whatever it is, the counts are written all the same
            _logger.exception("closing the API failed")
        await cancellation.end(self._writers)
        try:
            await cancellation.within(
                COUNTS_SECONDS, self._write_last_counts(), "writing the last counts"
            )
        except StoreError as error:
            _logger.error("the last counts could not be written: %s", error)
        finally:
            await cancellation.end(self._tasks)
            if self.node is not None:
                await self.node.close()
            await cancellation.within(CLOSE_SECONDS, self.resolver.close(), "closing the resolver")
            self.own_addresses.close()
            self.passwords.close()
            self.photos.close()
            await cancellation.within(
                CLOSE_SECONDS, self.upstream.close(), "closing the model's client"
            )
            self.listeners.close()
            if self.access_log is not None:
                await asyncio.to_thread(self.access_log.close)
            await self.store.close()
        _logger.info("stopped")

    async def _write_last_counts(self) -> None:
        await self.meter.stop()
        await self.devices.flush()
        if self.node is not None:
            await self.node.stop()

    def describe(self) -> str:
        """Return where everything listens, and on which database."""
        listeners = self.listeners
        words = [
            f"API on {'https' if listeners.tls else 'http'}://{bound_address(listeners.api)}",
            f"proxy on {bound_address(listeners.proxy)}",
            *(f"without passwords on {bound_address(sock)}" for sock in listeners.passwordless),
            f"database {place(self.settings.storage.url)}",
        ]
        return ", ".join(words)

    async def _sweep(
        self, seconds: float, sweep: Callable[[], Awaitable[object]], what: str
    ) -> None:
        """Do what one daemon on the database should, again and again.

        Args:
            seconds: how long to wait before each time.
            sweep: does it.
            what: waits while the store fails, which is told once, as is any other failure until
                it has gone well again: nobody else is to stop working for it.
        """
        is_failing = False
        while True:
            await asyncio.sleep(seconds)
            try:
                if self._sweeps:
                    await sweep()
            except StoreError as error:
                if not is_failing:
                    _logger.warning("%s wait for the store to return: %s", what, error)
                is_failing = True
            except Exception:
                if not is_failing:
                    _logger.exception("%s wait: looking after them failed", what)
                is_failing = True
            else:
                is_failing = False

    async def take_back(self) -> None:
        """Take jobs back from devices that have vanished.

        Raises:
            StoreError: devices may not have been heard either, so that this time does not count.
        """
        taken = await self.jobs.take_back()
        self.observed_time.tick()
        if taken:
            _logger.info("jobs taken back from devices that have vanished: %d", taken)

    async def _reap(self, node: Node) -> None:
        """Take back what dead nodes had leased, again and again."""
        is_first = True
        while True:
            await asyncio.sleep(REAP_CHECK_SECONDS)
            try:
                if is_first and node.sweeps:
                    await self.leases.recover()
                    is_first = False
                reaped = await node.reap() if node.sweeps else 0
                if reaped:
                    _logger.warning("nodes that were not seen and are now dead: %d", reaped)
            except StoreError as error:
                _logger.warning("dead nodes wait for the store to return: %s", error)

    @property
    def _sweeps(self) -> bool:
        """Whether this daemon does what only one on the database should."""
        return self.node is None or self.node.sweeps

    def stop_failed(self, reason: str) -> None:
        """Drain because something that must not end has ended; the exit status will say so."""
        _logger.critical("%s; the daemon stops", reason)
        self.has_failed = True
        signal.raise_signal(signal.SIGTERM)

    def _watch(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            _logger.critical("the %s task failed", task.get_name(), exc_info=task.exception())
            self.stop_failed(f"without its {task.get_name()} task")

    async def _ready(self) -> bool:
        if self._draining or not self.gateway.is_listening:
            return False
        try:
            await self.store.read(probe)
        except StoreError:
            return False
        return True


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
        impatience = loop.create_task(_on_next(signals, daemon.gateway.close))
        await daemon.drain()
        impatience.cancel()
    except BaseException:
        await daemon.close()
        raise
    finally:
        feeding.cancel()


async def _on_next(signals: "asyncio.Queue[None]", act: Callable[[], None]) -> None:
    await signals.get()
    act()


async def build(settings: Settings, held: InheritedSockets = MappingProxyType({})) -> Daemon:
    """Bind, open the store, and build the daemon; whatever fails leaves nothing open.

    Args:
        settings: what the operator wants.
        held: sockets that the service manager has bound, by what they are for.

    Raises:
        CannotListenError, CannotOpenError, SigningKeyError, CannotRecordError, SettingsError: why,
            in its message.
    """
    listeners = Listeners.open(settings, held)
    try:
        store = await open_store(settings.storage.url, pool_size=settings.storage.pool_size)
    except BaseException:
        listeners.close()
        raise
    access_log = None
    try:
        key = signing_key(settings)
        for warning in exposed_files(settings):
            _logger.warning("%s", warning)
        access_log = _access_log(settings, key)
        daemon = Daemon(settings, listeners, store, key, access_log)
        await store.claim(lambda: daemon.stop_failed("the claim on the database is lost"))
    except BaseException:
        if access_log is not None:
            access_log.close()
        listeners.close()
        await store.close()
        raise
    return daemon


def _passwordless(settings: Settings) -> Iterator[socket.socket]:
    """Bind the ports without passwords, once the others are bound.

    Where any will do it is one of those behind the proxy's, so that it mostly is the same after a
    restart.
    """
    proxy, purpose = settings.proxy, "proxy without passwords"
    beside = (port for port in count(proxy.port + 1) if port not in proxy.passwordless_ports)
    for port in proxy.passwordless_ports:
        if port or not proxy.port:
            yield listen(proxy.host, port, purpose)
        else:
            yield listen_beside(proxy.host, next(beside), purpose)


def _terms(settings: Settings, listeners: Listeners) -> Terms:
    market, proxy = settings.market, settings.proxy
    bound = [bound_port(sock) for sock in listeners.passwordless]
    public = proxy.public_passwordless_ports or bound
    return Terms(
        price_default=micro(market.price_per_gb_default_usd),
        price_floor=micro(market.price_per_gb_floor_usd),
        lifetime_seconds=market.session_days * DAY_SECONDS,
        public_host=proxy.public_host or proxy.host,
        public_port=proxy.public_port or bound_port(listeners.proxy),
        passwordless_ports=tuple(named or port for named, port in zip(public, bound, strict=True)),
        cost_floor=micro(market.session_cost_floor_usd),
    )


def _bounds(settings: Settings) -> Bounds:
    limits = settings.limits
    return Bounds(
        sessions=limits.sessions_per_user,
        addresses=limits.addresses_per_user,
        jobs=limits.jobs_per_user,
        free_jobs=limits.free_jobs_per_user,
        free_below=micro(settings.market.free_job_below_credits),
        job_bytes=limits.job_bytes_per_user,
        devices=limits.devices_per_user,
    )


def _login_limits(settings: Settings) -> LoginLimits:
    limits = settings.limits
    return LoginLimits(
        failures_per_email=limits.login_failures_per_email,
        failures_per_client=limits.login_failures_per_client,
        registrations_per_client=limits.registrations_per_hour,
    )


def _rewards(settings: Settings) -> Rewards:
    market = settings.market
    verification = market.referral_verification
    return Rewards(
        micro(market.referrer_reward_credits),
        micro(market.referred_reward_credits),
        needs_verified=(
            bool(settings.mail.host) if verification == "auto" else verification == "required"
        ),
        per_referrer_daily=market.referrals_per_referrer_daily,
        total_daily=micro(market.referral_total_daily_credits),
    )


def _rates(settings: Settings) -> Rates:
    market = settings.market
    return Rates(
        by_model={
            model.strip().lower(): micro(rate) for model, rate in market.gpu_rates_usd.items()
        },
        default=micro(market.gpu_rate_default_usd),
        credit=micro(market.credit_usd),
    )


def _upstream(settings: Settings) -> OpenAiModel:
    assistant = settings.assistant
    return OpenAiModel(
        assistant.base_url,
        assistant.api_key,
        max_tokens=assistant.reply_max_tokens,
        connections=assistant.concurrency,
    )


def _photo_limits(settings: Settings) -> PhotoLimits:
    assistant = settings.assistant
    return PhotoLimits(assistant.photo_max_bytes, assistant.photo_max_pixels)


def _reward_terms(settings: Settings) -> RewardTerms:
    assistant = settings.assistant
    return RewardTerms(
        amounts={category: micro(amount) for category, amount in assistant.rewards.items()},
        confidence_min=assistant.confidence_min,
        user_daily=micro(assistant.reward_user_daily_credits),
        total_daily=micro(assistant.reward_total_daily_credits),
    )


def _transport(settings: Settings) -> LogTransport | SmtpTransport:
    mail = settings.mail
    if not mail.host:
        return LogTransport()
    return SmtpTransport(
        SmtpServer(mail.host, mail.port, mail.username, mail.password, mail.tls, mail.sender)
    )


def _app_url(settings: Settings, api_port: int) -> str:
    """Return where links lead: to the web application, or to the API for want of one."""
    api = settings.api
    scheme = "https" if api.tls_cert else "http"
    local = f"{scheme}://{format_address(api.host, api_port)}"
    return (api.app_url or api.base_url or local).rstrip("/")


def _access_log(settings: Settings, key: bytes) -> AccessLog | None:
    wanted = settings.access_log
    if not wanted.folder:
        return None
    return AccessLog(
        Path(wanted.folder),
        target=wanted.target,
        client=wanted.client,
        keep_days=wanted.keep_days,
        key=key,
        now=clock.seconds,
    )


def _policy(settings: Settings, own_addresses: OwnAddresses) -> Policy:
    egress = settings.egress
    return Policy(
        allow=egress.allow,
        deny=egress.deny,
        blocked_ports=egress.blocked_ports,
        is_own=own_addresses,
    )


def _limits(settings: Settings) -> Limits:
    limits = settings.limits
    descriptors = raise_descriptors()
    total = connections_total(limits.connections_total, descriptors)
    return Limits(
        handshake_seconds=limits.handshake_seconds,
        dial_seconds=limits.dial_seconds,
        idle_seconds=limits.idle_seconds,
        connections_per_address=limits.connections_per_address,
        connections_total=total,
        dials_waiting=limits.dials_waiting,
        racers=racers_total(descriptors),
        pipes=pipes_total(descriptors),
        associations=associations_total(total),
        datagrams_per_second=limits.session_datagrams_per_second,
    )


def _api_limits(settings: Settings) -> ApiLimits:
    limits = settings.limits
    affordable = api_connections_total(raise_descriptors())
    return ApiLimits(
        requests_per_second=limits.requests_per_second,
        requests_per_second_of_user=limits.requests_per_second_of_user,
        connections=min(limits.api_connections_total or affordable, affordable),
        connections_per_network=limits.api_connections_per_network,
        memory=limits.api_bytes_total,
        memory_per_network=limits.api_bytes_per_network,
        stall_seconds=limits.api_stall_seconds,
    )


def _public_address(settings: Settings) -> Address | None:
    """Return the public host if it is an address."""
    try:
        return ip_address(settings.proxy.public_host)
    except ValueError:
        return None
