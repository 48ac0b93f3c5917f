"""Building the marketplace and its API, over the parts of the proxy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from api import console
from api.app import routes
from api.assistant.assistant import AssistantRoutes
from api.http.limits import ConnectionTimes
from api.ops.metrics import Exposition
from api.reverse.server import AppServer
from api.routing.cookies import Cookies
from api.server import Face, HttpServer
from api.site.pages import PublicPages
from api.staff.counts import StaffCounts
from config.settings import Settings
from config.site import alert_key
from market.accounts.outbox import OUTBOX_PURPOSE, Outbox
from market.accounts.passwords import Passwords
from market.accounts.tokens import Tokens
from market.assistant.asking import Asking, model_slots
from market.assistant.builtin import Offer, Responder
from market.assistant.chat import Chat
from market.assistant.goodness import Goodness
from market.base.sealing import Sealing
from market.base.throttle import Throttle
from market.events.idempotency import Seal
from market.market import Keys, Market
from market.money.money import micro
from market.payments.provider import Provider
from market.payouts.connect import Connect
from market.payouts.details import METHODS_PURPOSE
from market.payouts.providers import Provider as PayoutProvider
from market.payouts.providers import ProviderRounds
from market.payouts.terms import MethodKind
from market.photos.decoding import Photos
from market.site.status import LOOK_SECONDS as STATUS_SECONDS
from market.staff.site.alerts import HOOK_CHANNEL, Alerts
from proxyctl.protocol.policy import Policy
from proxyd import __version__
from proxyd.egress.resolve import Resolver
from proxyd.exits.dialling.tunnels import DeviceTunnels
from proxyd.limits import raise_descriptors
from proxyd.loop import clock
from proxyd.ops.access_log import exit_records
from proxyd.ops.base.books import approval_limits
from proxyd.ops.base.logo import look_of
from proxyd.ops.erasure import erasures
from proxyd.ops.metrics.metrics import Metrics
from proxyd.ops.processes.listening import bound_port
from proxyd.ops.watches.alert_watch import LOOK_SECONDS as ALERT_SECONDS
from proxyd.ops.watches.alert_watch import AlertWatch
from proxyd.ops.watches.machine import Machine
from proxyd.ops.watches.status_watch import StatusWatch
from proxyd.outbound.alert_hook import LOOK_SECONDS as HOOK_SECONDS
from proxyd.outbound.alert_hook import AlertHook, poster_of
from proxyd.outbound.mailer import LogTransport, Mailer, Transport
from proxyd.outbound.webhooks import WebhookSender
from proxyd.readiness import Readiness
from proxyd.wiring import slices
from proxyd.wiring.abuse_settings import rules_of
from proxyd.wiring.app_port import AppPort, JobStreams
from proxyd.wiring.bounds import Bounds
from proxyd.wiring.build_core import Counting
from proxyd.wiring.listeners import Listeners
from proxyd.wiring.live_uses import LiveSessions
from proxyd.wiring.market_work import TAKE_BACK_CHECK_SECONDS, CheckTimes, MarketWork
from proxyd.wiring.services import Look, Services
from proxyd.wiring.staff_port import StaffPort
from storage.blobs.base import Blobs
from storage.blobs.local import LocalBlobs
from storage.blobs.s3 import Signer
from storage.engines.place import is_sqlite

if TYPE_CHECKING:
    from proxyd.outbound.chat_model import OpenAiModel
    from proxyd.outbound.stripe_payouts import StripePayouts


HOUR_SECONDS = 3_600
MINUTE_SECONDS = 60


class Ports(NamedTuple):
    """The ports of a process with the API: the API, the proxy, and the ports without passwords."""

    api: int
    proxy: int
    passwordless: Sequence[int]


@dataclass(frozen=True, slots=True)
class Trade:
    """The marketplace, and the parts that are closed with it.

    Attributes:
        work: sweeps and checks of the marketplace.
        is_shared: whether other daemons may work on the same database.
        app_url: where the links in e-mails lead.
        is_held: whether the database was restored and no operator has confirmed it.
    """

    market: Market
    work: MarketWork
    blobs: Blobs
    is_shared: bool
    app_url: str
    is_held: bool


@dataclass(frozen=True, slots=True)
class PaymentServices:
    """The services that move money outside.

    Attributes:
        providers: of payments, by name, the preferred one first.
        connect: has accounts of users for payouts; None for no such service.
        senders: send payouts.
    """

    providers: Mapping[str, Provider]
    connect: Connect | None
    senders: Sequence[PayoutProvider]


def trade_of(
    settings: Settings,
    ports: Ports,
    key: bytes,
    counting: Counting,
    clocks: clock.Clocks,
    times: CheckTimes,
    *,
    is_held: bool = False,
    services: PaymentServices | None = None,
) -> Trade:
    """Return the marketplace.

    Args:
        settings: all of them.
        ports: of this process.
        key: signs and seals.
        counting: has the store.
        clocks: of the machine.
        times: how often the sweeps run.
        is_held: whether the database was restored and no operator has confirmed it.
        services: move money outside; None for those of the settings.
    """
    if services is None:
        services = payment_services_of(settings, counting.context.now)
    observed_time = clock.ObservedTime(clocks.boottime, 2 * TAKE_BACK_CHECK_SECONDS)
    app_url = slices.app_url(settings, ports.api)
    terms = slices.terms(settings, ports.proxy, ports.passwordless)
    # On SQLite there is one marketplace, in however many processes its sessions are served.
    is_shared = not is_sqlite(settings.storage.url)
    blobs = blobs_of(settings, is_shared=is_shared)
    market = Market(
        counting.context,
        slices.rules(settings, terms, app_url, descriptors=raise_descriptors()),
        _keys(settings, key),
        leases=counting.leases,
        traffic=counting.meter,
        observed_seconds=observed_time.seconds,
        blobs=blobs,
        live_uses=LiveSessions(counting.meter),
        # A copy of a restored database must not move the money of the living service.
        providers={} if is_held else services.providers,
        connect=None if is_held else services.connect,
        is_shared=is_shared,
        monotonic=clocks.monotonic,
    )
    sealing = market.payouts.sealing
    rounds = tuple(ProviderRounds(counting.context, sealing, each) for each in services.senders)
    work = MarketWork(market, observed_time, times, rounds, is_held=is_held)
    return Trade(market, work, blobs, is_shared, app_url, is_held)


def services_of(
    settings: Settings,
    key: bytes,
    trade: Trade,
    app_port: AppPort | None,
    metrics: Metrics,
    readiness: Readiness,
    ways_of_webhooks: tuple[Resolver, Policy],
    bounds: Bounds,
    staff_port: StaffPort | None = None,
) -> Services:
    """Return the services of the marketplace: its API, its e-mails, its webhooks, its apps."""
    market = trade.market
    model, photos = _model(settings), Photos(slices.photo_limits(settings))
    assistant = _assistant(settings, market, model, photos)
    door = None if app_port is None else app_port.server
    mailer = Mailer(market.emails, _transport(settings), is_alone=not trade.is_shared)
    status = StatusWatch(
        market.status,
        is_listening=readiness.is_listening,
        has_exits=bool(settings.exits.host),
        is_mail_away=mailer.is_server_away if settings.mail.host else None,
    )
    agent = f"proxyd/{__version__}"
    hook = _alert_hook(settings, key, market, ways_of_webhooks[0], agent)
    alerts = AlertWatch(
        Alerts(
            market.context,
            market.emails,
            settings.alerts.email,
            settings.site.name,
            settings.alerts.summary_hour,
            None if hook is None else hook.outbox,
        ),
        Machine(settings, slices.work_folder(settings)),
        metrics.upkeep,
        metrics.dropped_records,
        market.context.now,
    )
    finishing = erasures.of_settings(settings, market.context.store)

    async def erased() -> int:
        return await finishing.look(market.context.now())

    return Services(
        market,
        _http(
            settings,
            key,
            market,
            assistant,
            readiness,
            metrics,
            trade.app_url,
            door,
            bounds.api,
        ),
        mailer=mailer,
        looks=(
            Look(STATUS_SECONDS, "status", status.look, "looks at the status"),
            Look(ALERT_SECONDS, "alerts", alerts.look, "alerts to the operators"),
            Look(erasures.LOOK_SECONDS, "erasures", erased, "files of erased accounts"),
            *_looks_of(hook),
        ),
        model=model,
        photos=photos,
        blobs=trade.blobs,
        webhooks=WebhookSender(market.webhooks, *ways_of_webhooks, agent=agent),
        app_port=app_port,
        staff_port=staff_port,
        is_held=trade.is_held,
    )


def _alert_hook(
    settings: Settings, key: bytes, market: Market, resolver: Resolver, agent: str
) -> AlertHook | None:
    """Return the sender to the webhook of the alerts; None without one."""
    signing_key = alert_key(settings)
    if not settings.alerts.webhook_url or signing_key is None:
        return None
    outbox = Outbox(market.context, Sealing(key, OUTBOX_PURPOSE), HOOK_CHANNEL)
    poster = partial(poster_of, resolver, agent)
    return AlertHook(outbox, settings.alerts.webhook_url, signing_key, poster, market.context.now)


def _looks_of(hook: AlertHook | None) -> Iterator[Look]:
    if hook is not None:
        yield Look(HOOK_SECONDS, "alert hook", hook.look, "alerts to the webhook")


def app_port_of(
    settings: Settings, listeners: Listeners, market: Market, tunnels: DeviceTunnels | None
) -> AppPort | None:
    """Return the port of apps; None if the settings have no apps."""
    if listeners.apps is None:
        return None
    streams, apps = JobStreams(tunnels), market.apps
    terms = slices.app_terms(settings, bound_port(listeners.apps), raise_descriptors())
    server = AppServer(apps.find, apps.key_hashes, streams, terms, settings.api.trusted_proxies)
    apps.watch(server.forget)
    return AppPort(server, listeners.apps, listeners.apps_tls)


def staff_port_of(
    settings: Settings, listeners: Listeners, market: Market, key: bytes, counts: StaffCounts
) -> StaffPort | None:
    """Return the port of the staff, which counts its requests; None if the settings have none."""
    if listeners.staff is None:
        return None
    # Here, so that a daemon without it does not wait for its routes.
    from api.staff.app import server  # noqa: PLC0415
    from market.staff.desk import StaffDesk, StaffTerms  # noqa: PLC0415
    from market.staff.money.user_limits import PriceBounds  # noqa: PLC0415

    terms = StaffTerms(
        limits=approval_limits(settings),
        prices=PriceBounds(settings.staff.price_percent_min, settings.staff.price_percent_max),
        logs=slices.log_terms(settings),
        outcomes=market.jobs.outcomes,
        artifacts=market.artifacts,
        search=partial(exit_records.find, settings, market.context),
        rules=rules_of(settings),
        app_url=slices.app_url(settings, settings.api.port),
        exports=market.leaving.exports,
        debtor=slices.debtor(settings),
        sent_by_itself=slices.sent_by_itself(settings),
        erase_needs_second=settings.staff.second_person_erase,
    )
    desk = StaffDesk(market.context, market.passwords, key, market.letters, terms)
    http = server(
        desk,
        seal=Seal(key),
        is_secure=slices.staff_is_secure(settings),
        allow=settings.staff.allow,
        trusted_proxies=settings.api.trusted_proxies,
        limits=slices.staff_limits(settings, raise_descriptors()),
        version=__version__,
        base_url=settings.staff.public_url,
        counts=counts,
    )
    return StaffPort(http, desk, listeners.staff, listeners.staff_tls)


def blobs_of(settings: Settings, *, is_shared: bool) -> Blobs:
    """Return the store of the files of jobs: an S3 store if one is set, or a folder."""
    bucket = slices.bucket(settings)
    if bucket is None:
        return LocalBlobs(
            slices.work_folder(settings),
            reserve_bytes=settings.work.disk_reserve_bytes,
            is_shared=is_shared,
        )
    # Here, so that a daemon without a store does not wait for a client of HTTP.
    from proxyd.outbound.s3 import S3Blobs  # noqa: PLC0415

    return S3Blobs(Signer(bucket, clock.seconds))


def payment_services_of(settings: Settings, now: Callable[[], int]) -> PaymentServices:
    """Return the configured services that move money outside."""
    return PaymentServices(
        _providers(settings, now), _stripe_payouts(settings, now), _payout_senders(settings, now)
    )


def _providers(settings: Settings, now: Callable[[], int]) -> dict[str, Provider]:
    """Return the configured payment providers by name, the preferred one first."""
    payments = settings.payments
    providers: dict[str, Provider] = {}
    if payments.stripe_secret_key:
        # Here, so that a daemon without payments does not wait for a client of HTTP.
        from proxyd.outbound.stripe import StripeProvider  # noqa: PLC0415

        secrets = (payments.stripe_webhook_secret, payments.stripe_previous_webhook_secret)
        providers["stripe"] = StripeProvider(
            payments.stripe_secret_key, secrets, now, api_base=payments.stripe_api_base
        )
    if payments.btcpay_url:
        from proxyd.outbound.btcpay import BtcPayProvider  # noqa: PLC0415 - as above

        providers["btcpay"] = BtcPayProvider(
            payments.btcpay_url,
            payments.btcpay_store,
            payments.btcpay_key,
            payments.btcpay_webhook_secret,
            now,
        )
    return providers


def _stripe_payouts(settings: Settings, now: Callable[[], int]) -> "StripePayouts | None":
    """Return the accounts of users at Stripe, if payouts go there."""
    payments = settings.payments
    if MethodKind.STRIPE not in settings.payouts.methods or not payments.stripe_secret_key:
        return None
    # Here, so that a daemon without it does not wait for a client of HTTP.
    from proxyd.outbound.stripe_api import StripeApi  # noqa: PLC0415
    from proxyd.outbound.stripe_payouts import StripePayouts  # noqa: PLC0415

    api = StripeApi(payments.stripe_secret_key, now, api_base=payments.stripe_api_base)
    return StripePayouts(api)


def _payout_senders(settings: Settings, now: Callable[[], int]) -> list[PayoutProvider]:
    """Return the payment services that send payouts."""
    payouts = settings.payouts
    senders: list[PayoutProvider] = []
    if payouts.paypal_client_id and payouts.paypal_secret:
        from proxyd.outbound.paypal import PayPal  # noqa: PLC0415 - as above

        senders.append(
            PayPal(payouts.paypal_client_id, payouts.paypal_secret, now, payouts.paypal_api_base)
        )
    stripe = _stripe_payouts(settings, now)
    if stripe is not None:
        senders.append(stripe)
    return senders


def _keys(settings: Settings, key: bytes) -> Keys:
    auth = settings.auth
    return Keys(
        Passwords(time_cost=auth.argon2_time_cost, memory_kib=auth.argon2_memory_kib),
        Tokens(key, lifetime_seconds=auth.token_hours * HOUR_SECONDS),
        Sealing(key, OUTBOX_PURPOSE),
        Sealing(key, b"job secrets"),
        Sealing(key, b"app keys"),
        Sealing(key, b"webhook secrets"),
        Sealing(key, METHODS_PURPOSE),
    )


def _http(
    settings: Settings,
    key: bytes,
    market: Market,
    assistant: AssistantRoutes,
    readiness: Readiness,
    metrics: Metrics,
    app_url: str,
    door: AppServer | None,
    times: ConnectionTimes,
) -> HttpServer:
    """Return the API: its routes, and how it serves them."""
    api, context, look = settings.api, market.context, look_of(settings)
    cookies = Cookies(
        is_secure=api.base_url.startswith("https://") or bool(api.tls_cert),
        lifetime_seconds=settings.auth.token_hours * HOUR_SECONDS,
    )
    return HttpServer(
        routes(
            market,
            assistant,
            why_not_ready=readiness.why_not,
            app_url=app_url,
            cookies=cookies,
            has_mail=bool(settings.mail.host),
            logo=look.logo,
            door=door,
        ),
        authenticate=market.accounts.authenticate,
        authenticate_key=market.keys.authenticate,
        authenticate_worker=market.devices.authenticate,
        is_current=market.accounts.is_current,
        body_max_bytes=api.body_max_bytes,
        seal=Seal(key),
        now=context.now,
        limits=slices.api_limits(settings, raise_descriptors(), times),
        trusted_proxies=api.trusted_proxies,
        cookies=cookies,
        console=console.packaged(look) if api.console else None,
        exposition=Exposition(metrics.render, api.metrics_allow),
        face=Face(
            version=__version__,
            base_url=api.base_url,
            public=PublicPages(market.site, look, market.texts, market.status),
        ),
    )


def _assistant(
    settings: Settings, market: Market, client: "OpenAiModel | None", photos: Photos
) -> AssistantRoutes:
    """Return the routes of the assistant, with a model where one is configured."""
    assistant, context = settings.assistant, market.context
    slots = model_slots(assistant.concurrency, assistant.concurrency_per_caller)

    def asking(model: str) -> Asking | None:
        if not model or client is None:
            return None
        return Asking(client, slots, seconds=assistant.timeout_seconds)

    responder = Responder(
        market.bandwidth,
        market.jobs,
        market.devices,
        market.exits,
        market.referrals,
        Offer(micro(settings.market.price_per_gb_default_usd)),
    )
    goodness = Goodness(
        context,
        slices.reward_terms(settings),
        asking(assistant.vision_model),
        assistant.vision_model,
    )
    return AssistantRoutes(
        Chat(responder, asking(assistant.model), assistant.model),
        photos,
        goodness,
        Throttle(assistant.requests_per_minute, MINUTE_SECONDS, context.now),
        photo_max_bytes=assistant.photo_max_bytes,
    )


def _model(settings: Settings) -> "OpenAiModel | None":
    """Return the client of the language model; None where no model is configured."""
    assistant = settings.assistant
    if not assistant.model and not assistant.vision_model:
        return None
    # Here, so that a daemon without a model does not wait for an HTTP client.
    from proxyd.outbound.chat_model import OpenAiModel  # noqa: PLC0415

    return OpenAiModel(
        assistant.base_url,
        assistant.api_key,
        max_tokens=assistant.reply_max_tokens,
        connections=assistant.concurrency,
    )


def _transport(settings: Settings) -> Transport:
    mail = settings.mail
    if not mail.host:
        return LogTransport()
    # Here, so that a daemon without a mail server does not wait for SMTP.
    from proxyd.outbound.smtp import SmtpServer, SmtpTransport  # noqa: PLC0415

    return SmtpTransport(
        SmtpServer(mail.host, mail.port, mail.username, mail.password, mail.tls, mail.sender)
    )
