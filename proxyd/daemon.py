"""The daemon: the one place where everything is built, started, and drained, in this order."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address
from typing import Self

from api.accounts import AccountRoutes
from api.answers import Answers
from api.assistant import AssistantRoutes
from api.bandwidth import BandwidthRoutes
from api.deploys import DeployRoutes
from api.health import HealthRoutes
from api.jobs import JobRoutes
from api.referrals import ReferralRoutes
from api.server import HttpServer
from api.workers import WorkerRoutes
from config.settings import Settings
from market.accounts import Accounts, LoginLimits
from market.assistant.asking import Asking, Slots
from market.assistant.builtin import Offer, Responder
from market.assistant.chat import Chat
from market.assistant.goodness import Goodness, RewardTerms
from market.assistant.photos import PhotoLimits, Photos
from market.bandwidth import Bandwidth, Terms
from market.deploys import Deploys, Rates
from market.devices import Devices
from market.ids import Identifiers
from market.jobs import Jobs
from market.leases import Leases
from market.money import micro
from market.once import Seal
from market.passwords import Passwords
from market.recovery import Recovery
from market.referrals import Referrals, Rewards
from market.throttle import Throttle
from market.tokens import Tokens
from proxyd import clock
from proxyd.egress.policy import Policy
from proxyd.egress.resolve import DnsResolver
from proxyd.gateway import Gateway
from proxyd.limits import (
    Limits,
    api_connections_total,
    associations_total,
    connections_total,
    pipes_total,
    raise_descriptors,
)
from proxyd.listening import address_in_words, bound_port, listen, tls_context
from proxyd.mail import LogOutbox, SmtpOutbox, SmtpServer
from proxyd.meter import Meter
from proxyd.secret import signing_key
from proxyd.upstream import OpenAiModel
from proxyd.wire.events import Address
from storage.errors import StoreError
from storage.open import open_store
from storage.store import Store, probe

DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600
MINUTE_SECONDS = 60
EXPIRY_CHECK_SECONDS = 2.0
TAKE_BACK_CHECK_SECONDS = 15.0

_logger = logging.getLogger("daemon")


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets that clients reach, and what makes the API's speak TLS."""

    api: socket.socket
    proxy: socket.socket
    tls: ssl.SSLContext | None

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Bind both.

        Raises:
            CannotListenError: an address or the certificate cannot be used.
        """
        tls = tls_context(settings.api.tls_cert, settings.api.tls_key)
        api = listen(settings.api.host, settings.api.port, "API")
        try:
            proxy = listen(settings.proxy.host, settings.proxy.port, "proxy")
        except BaseException:
            api.close()
            raise
        return cls(api, proxy, tls)

    def close(self) -> None:
        """Close both; closing twice is harmless."""
        self.api.close()
        self.proxy.close()


class Daemon:
    """Everything that runs, built but not started.

    Args:
        settings: what the operator wants.
        listeners: the sockets to serve on.
        store: an open store, claimed for this daemon.
        key: signs session tokens.
    """

    def __init__(self, settings: Settings, listeners: Listeners, store: Store, key: bytes) -> None:
        self.settings = settings
        self.listeners = listeners
        self.store = store
        self.identifiers = Identifiers(clock.milliseconds)
        self.passwords = Passwords(
            time_cost=settings.auth.argon2_time_cost, memory_kib=settings.auth.argon2_memory_kib
        )
        tokens = Tokens(key, lifetime_seconds=settings.auth.token_hours * HOUR_SECONDS)
        self.referrals = Referrals(store, self.identifiers, clock.seconds, _rewards(settings))
        self.accounts = Accounts(
            store,
            self.passwords,
            tokens,
            self.identifiers,
            clock.seconds,
            _login_limits(settings),
            self.referrals.rewards,
        )
        app_url = _app_url(settings, bound_port(listeners.api))
        self.outbox = _outbox(settings)
        self.recovery = Recovery(
            store,
            self.passwords,
            self.outbox,
            app_url,
            clock.seconds,
        )
        self.leases = Leases(store, self.identifiers, clock.seconds)
        self.meter = Meter(
            self.leases,
            clock.seconds,
            connections_per_session=settings.limits.connections_per_session,
            bytes_per_second=settings.limits.session_bytes_per_second,
        )
        self.bandwidth = Bandwidth(
            store,
            self.leases,
            self.meter,
            _terms(settings, bound_port(listeners.proxy)),
            self.identifiers,
            clock.seconds,
        )
        self.devices = Devices(store, self.identifiers, clock.seconds)
        self.jobs = Jobs(
            store,
            self.devices,
            self.identifiers,
            clock.seconds,
            fee=int(settings.market.fee_percent * 100),
        )
        self.deploys = Deploys(store, self.jobs, self.identifiers, clock.seconds, _rates(settings))
        self.upstream = _upstream(settings)
        self.photos = Photos(_photo_limits(settings))
        egress = settings.egress
        self.resolver = DnsResolver(egress.nameservers, lookup_seconds=egress.lookup_seconds)
        self.gateway = Gateway(
            self.meter,
            self.resolver,
            _policy(settings),
            _limits(settings),
            _public_address(settings),
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
            ],
            authenticate=self.accounts.authenticate,
            authenticate_worker=self.devices.authenticate,
            body_max_bytes=settings.api.body_max_bytes,
            version=version("proxyd"),
            base_url=settings.api.base_url,
            seal=Seal(key),
            now=clock.seconds,
            requests_per_second=settings.limits.requests_per_second,
            connections_max=api_connections_total(raise_descriptors()),
            trusted_proxies=settings.api.trusted_proxies,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False
        self.has_failed = False

    def _assistant(self) -> AssistantRoutes:
        """Return the routes of the assistant, with a model where one is configured."""
        wanted = self.settings.assistant
        slots = Slots(wanted.concurrency)

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

    async def start(self) -> None:
        """Take up what an earlier daemon left, then serve."""
        recovered = await self.leases.recover()
        if recovered:
            _logger.info("leases that a dead daemon had left open, taken back: %d", recovered)
        await self.passwords.prepare()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.meter.run(), name="meter"),
            loop.create_task(self._expire(), name="expiry"),
            loop.create_task(self.devices.run(), name="heartbeats"),
            loop.create_task(self._take_back(), name="abandoned jobs"),
            loop.create_task(self.recovery.run(), name="recovery"),
            loop.create_task(self.outbox.run(), name="mail"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._watch)
        self.gateway.start(self.listeners.proxy)
        await self.http.start(self.listeners.api, self.listeners.tls)
        api, proxy = self.settings.api, self.settings.proxy
        scheme = "https" if self.listeners.tls else "http"
        _logger.info(
            "ready: API on %s://%s, proxy on %s",
            scheme,
            address_in_words(api.host, bound_port(self.listeners.api)),
            address_in_words(proxy.host, bound_port(self.listeners.proxy)),
        )

    async def drain(self) -> None:
        """Stop in order: no new work, live transfers to their end, the last counts, the store."""
        self._draining = True
        self.http.drain()
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

    async def close(self) -> None:
        """Cut what is left, write the last counts, close everything."""
        try:
            self.gateway.close()
            await self.http.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.meter.stop()
            await self.devices.flush()
        except StoreError as error:
            _logger.error("the last counts could not be written: %s", error)
        finally:
            await self.resolver.close()
            self.passwords.close()
            self.photos.close()
            await self.upstream.close()
            self.listeners.close()
            await self.store.close()
        _logger.info("stopped")

    async def _expire(self) -> None:
        """End sessions whose time is over, again and again."""
        while True:
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)
            try:
                await self.bandwidth.expire()
            except StoreError as error:
                _logger.warning("expired sessions wait for the store to return: %s", error)

    async def _take_back(self) -> None:
        """Take jobs back from devices that have vanished, again and again."""
        while True:
            await asyncio.sleep(TAKE_BACK_CHECK_SECONDS)
            try:
                taken = await self.jobs.take_back()
                if taken:
                    _logger.info("jobs taken back from devices that have vanished: %d", taken)
            except StoreError as error:
                _logger.warning("abandoned jobs wait for the store to return: %s", error)

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


async def serve(daemon: Daemon, on_ready: Callable[[], Awaitable[None]]) -> None:
    """Run until SIGTERM or SIGINT, then drain; a second signal cuts the draining short."""
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    try:
        await daemon.start()
        await on_ready()
        await signals.get()
        impatience = loop.create_task(_on_next(signals, daemon.gateway.close))
        await daemon.drain()
        impatience.cancel()
    except BaseException:
        await daemon.close()
        raise


async def _on_next(signals: "asyncio.Queue[None]", act: Callable[[], None]) -> None:
    await signals.get()
    act()


async def build(settings: Settings) -> Daemon:
    """Bind, open the store, and build the daemon; whatever fails leaves nothing open.

    Raises:
        CannotListenError, CannotOpenError, SigningKeyError: the message says why.
    """
    listeners = Listeners.open(settings)
    try:
        store = await open_store(settings.storage.url, pool_size=settings.storage.pool_size)
    except BaseException:
        listeners.close()
        raise
    try:
        daemon = Daemon(settings, listeners, store, signing_key(settings))
        await store.claim(lambda: daemon.stop_failed("the claim on the database is lost"))
    except BaseException:
        listeners.close()
        await store.close()
        raise
    return daemon


def _terms(settings: Settings, proxy_port: int) -> Terms:
    market, proxy = settings.market, settings.proxy
    return Terms(
        price_default=micro(market.price_per_gb_default_usd),
        price_floor=micro(market.price_per_gb_floor_usd),
        lifetime_seconds=market.session_days * DAY_SECONDS,
        public_host=proxy.public_host or proxy.host,
        public_port=proxy.public_port or proxy_port,
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
    return Rewards(micro(market.referrer_reward_credits), micro(market.referred_reward_credits))


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


def _outbox(settings: Settings) -> LogOutbox | SmtpOutbox:
    mail = settings.mail
    if not mail.host:
        return LogOutbox()
    return SmtpOutbox(
        SmtpServer(mail.host, mail.port, mail.username, mail.password, mail.tls, mail.sender)
    )


def _app_url(settings: Settings, api_port: int) -> str:
    """Return where links lead: to the web application, or to the API for want of one."""
    api = settings.api
    local = f"http://{address_in_words(api.host, api_port)}"
    return (api.app_url or api.base_url or local).rstrip("/")


def _policy(settings: Settings) -> Policy:
    egress = settings.egress
    return Policy(allow=egress.allow, deny=egress.deny, blocked_ports=egress.blocked_ports)


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
        pipes=pipes_total(descriptors),
        associations=associations_total(total),
    )


def _public_address(settings: Settings) -> Address | None:
    """Return the public host if it is an address."""
    try:
        return ip_address(settings.proxy.public_host)
    except ValueError:
        return None
