"""The settings of each part: pure functions, the same at the start and at a reload.

No room but this one reads settings. A part that needs one gets a slice: a value of its own type, in
its own units (money in millionths, times in seconds).
"""

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from msgspec import structs

from api.http.limits import USUAL as API_TIMES
from api.http.limits import ApiLimits, ConnectionTimes
from api.reverse.places import Places
from api.reverse.server import Terms as AppTerms
from config.settings import JobSettings, Settings, StorageSettings
from market.accounts.accounts import LoginLimits
from market.accounts.bounds import Bounds
from market.accounts.referrals import Rewards
from market.assistant.goodness import RewardTerms
from market.bandwidth.sessions import Terms
from market.deploys.deploys import Rates
from market.dispatch.asks import DispatchTerms
from market.dispatch.samples import SampleTerms
from market.erasure.exports import ExportPlace
from market.exits.consents import ExitDeviceLimits, ExitTerms
from market.files.artifacts import ArtifactTerms
from market.jobs.overdue import Leases
from market.jobs.terms import JobTerms
from market.logs.logs import LogTerms
from market.market import Rules
from market.money.money import micro
from market.notify.feed import EventFeedTerms
from market.notify.webhooks import FIRST_FREE_PORT, WebhookTerms
from market.payments.terms import PaymentTerms
from market.payouts.files import Debtor
from market.payouts.terms import MethodKind, PayoutTerms
from market.photos.decoding import PhotoLimits
from market.site.gate import SiteTerms
from proxyctl.protocol.policy import Policy
from proxyd.limits import (
    ExitLimits,
    ProxyLimits,
    api_connections_total,
    apps_connections_total,
    asks_total,
    associations_total,
    beside_api,
    beside_apps,
    connections_total,
    exits_total,
    parked_total,
    pipes_total,
    racers_total,
    streams_total,
)
from proxyd.ops.access_log.abuse_watch import Thresholds
from proxyd.ops.access_log.access_place import access_folder
from proxyd.ops.processes.listening import format_address
from proxyd.wire.events import Address
from proxyd.wiring.abuse_settings import rules_of
from storage.blobs.s3 import Bucket
from storage.engines.place import SQLITE, is_sqlite

DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600
STAFF_REQUESTS_PER_SECOND = 60
STAFF_CONNECTIONS = 64  # few enough for the descriptors that no share has


def rules(settings: Settings, session_terms: Terms, app_url: str, *, descriptors: int) -> Rules:
    """Return the operator's rules for the marketplace.

    Args:
        settings: all of them.
        session_terms: as `terms` returns them.
        app_url: as `app_url` returns it.
        descriptors: the most open descriptors.
    """
    return Rules(
        terms=session_terms,
        jobs=job_terms(settings),
        rates=rates(settings),
        rewards=rewards(settings),
        bounds=bounds(settings),
        login_limits=login_limits(settings),
        app_url=app_url,
        exits=exit_terms(settings),
        dispatch=dispatch_terms(settings, descriptors),
        artifacts=artifact_terms(settings),
        samples=sample_terms(settings),
        webhooks=webhook_terms(settings),
        logs=log_terms(settings),
        event_feed=event_feed_terms(settings, descriptors),
        site=site_terms(settings),
        exports=ExportPlace(work_folder(settings), settings.work.disk_reserve_bytes),
        payments=payment_terms(settings),
        payouts=payout_terms(settings),
        stops_to_suspend=settings.abuse.stops_to_suspend,
        origin_days=settings.access_log.keep_days if access_folder(settings) else 0,
        deploy_images={
            "Jupyter": settings.market.jupyter_image,
            "Inference": settings.market.inference_image,
        },
    )


def site_terms(settings: Settings) -> SiteTerms:
    """Return the name and the contact of the service, and the users who may open an account."""
    return SiteTerms(settings.site.name, settings.site.support, settings.site.registration)


def payment_terms(settings: Settings) -> PaymentTerms:
    """Return the operator's terms of payments."""
    payments = settings.payments
    return PaymentTerms(
        least=micro(payments.min_usd),
        most=micro(payments.max_usd),
        new_account_day=micro(payments.new_account_day_usd),
        new_account_seconds=payments.new_account_days * DAY_SECONDS,
        refund_seconds=payments.refund_days * DAY_SECONDS,
        seller=payments.seller,
        tax_name=payments.tax_name,
        tax_basis_points=int(payments.tax_percent * 100),
        site_name=settings.site.name,
        top_up_month=micro(payments.top_up_month_usd),
    )


def terms(settings: Settings, proxy_port: int, passwordless_ports: Sequence[int]) -> Terms:
    """Return the price of sessions, and the address that their buyers dial.

    Args:
        settings: all of them.
        proxy_port: the port that the proxy is bound to.
        passwordless_ports: the ports it is bound to where addresses stand for passwords.
    """
    market, proxy = settings.market, settings.proxy
    public_ports = proxy.public_passwordless_ports or passwordless_ports
    return Terms(
        price_default=micro(market.price_per_gb_default_usd),
        price_floor=micro(market.price_per_gb_floor_usd),
        lifetime_seconds=market.session_days * DAY_SECONDS,
        public_host=proxy.public_host or proxy.host,
        public_port=proxy.public_port or proxy_port,
        passwordless_ports=tuple(
            public or bound for public, bound in zip(public_ports, passwordless_ports, strict=True)
        ),
        cost_floor=micro(market.session_cost_floor_usd),
    )


def job_terms(settings: Settings) -> JobTerms:
    """Return the operator's terms of jobs."""
    market, jobs = settings.market, settings.jobs
    return JobTerms(
        fee=int(market.fee_percent * 100),
        waiting_seconds=market.job_waiting_days * DAY_SECONDS,
        leases=_leases(jobs),
        review_hours=jobs.review_hours,
        has_samples=sample_terms(settings).is_on,
    )


def _leases(jobs: JobSettings) -> Leases:
    return Leases(
        lease_seconds=jobs.lease_seconds,
        start_seconds=jobs.start_seconds,
        prepare_seconds=jobs.prepare_seconds,
    )


def sample_terms(settings: Settings) -> SampleTerms:
    """Return the operator's terms of samples."""
    jobs = settings.jobs
    return SampleTerms(
        account=jobs.sample_account,
        credits_per_day=micro(jobs.sample_credits_per_day),
        price=micro(jobs.sample_price_credit),
        credit=rates(settings).credit,
    )


def event_feed_terms(settings: Settings, descriptors: int) -> EventFeedTerms:
    """Return the limits on followers of events; `descriptors` may be open in all.

    At most half of the connections of the API, so that the others can always call it.
    """
    wanted = settings.limits.event_streams
    most = max(api_limits(settings, descriptors).connections // 2, 1)
    return EventFeedTerms(min(wanted, most) if wanted else most)


def dispatch_terms(settings: Settings, descriptors: int) -> DispatchTerms:
    """Return the operator's terms of requests for work; `descriptors` is how many may be open."""
    jobs, connections = settings.jobs, api_limits(settings, descriptors).connections
    # The others stay for buyers, and for data that devices send.
    return DispatchTerms(
        credit=rates(settings).credit,
        lease_seconds=jobs.lease_seconds,
        prepare_seconds=_leases(jobs).device_prepare_seconds,
        wait_seconds=jobs.wait_seconds,
        held_max=min(jobs.waiting_devices or connections, connections * 4 // 5),
    )


def artifact_terms(settings: Settings) -> ArtifactTerms:
    """Return the limits of jobs' files: their size and lifetime."""
    work = settings.work
    return ArtifactTerms(
        file_bytes=work.artifact_max_bytes,
        job_bytes=work.attempt_artifacts_max_bytes,
        job_files=work.attempt_artifacts_max,
        user_bytes=work.user_artifacts_max_bytes,
        user_files=work.user_artifacts_max,
        keep_seconds=work.artifact_days * DAY_SECONDS,
    )


def bucket(settings: Settings) -> Bucket | None:
    """Return where in an S3 store files of jobs are kept; None where there is no such store."""
    work = settings.work
    if not work.s3_url:
        return None
    return Bucket(
        work.s3_url, work.s3_bucket, work.s3_region, work.s3_access_key, work.s3_secret_key
    )


def log_terms(settings: Settings) -> LogTerms:
    """Return the limits of logs: the kept bytes, and their rate."""
    work = settings.work
    return LogTerms(
        folder=work_folder(settings) / "logs",
        keep_bytes=work.log_keep_bytes,
        bytes_per_second=work.log_bytes_per_second,
        keep_seconds=work.log_days * DAY_SECONDS,
        bytes_per_user=work.user_logs_max_bytes,
        reserve_bytes=work.disk_reserve_bytes,
    )


def work_folder(settings: Settings) -> Path:
    """Return the folder of files of jobs: beside the database, unless the operator has set one."""
    if settings.work.folder:
        return Path(settings.work.folder)
    url = settings.storage.url if is_sqlite(settings.storage.url) else StorageSettings().url
    return Path(url.removeprefix(SQLITE)).parent / "work"


def abuse_thresholds(settings: Settings) -> Thresholds:
    """Return the figures of the rules against scans and spam."""
    abuse = settings.abuse
    return Thresholds(
        scan_targets=abuse.scan_targets,
        scan_failed_percent=abuse.scan_failed_percent,
        mail_refusals=abuse.mail_refusals,
        login_connections=abuse.login_connections,
        acting=frozenset(abuse_halt_seconds(settings)),
    )


def abuse_halt_seconds(settings: Settings) -> dict[str, int]:
    """Return the time of a halt for each rule that acts."""
    rules = rules_of(settings)
    return {each.name: each.halt_seconds for each in rules if each.halt_seconds is not None}


def bounds(settings: Settings) -> Bounds:
    """Return the limits of the things that one user may have open."""
    limits = settings.limits
    return Bounds(
        sessions=limits.sessions_per_user,
        addresses=limits.addresses_per_user,
        jobs=limits.jobs_per_user,
        free_jobs=limits.free_jobs_per_user,
        free_below=micro(settings.market.free_job_below_credits),
        job_bytes=limits.job_bytes_per_user,
        devices=limits.devices_per_user,
        device_slots=settings.jobs.device_slots,
        new_device_slots=settings.jobs.new_device_slots,
        new_owner_slots=settings.jobs.new_owner_slots,
    )


def login_limits(settings: Settings) -> LoginLimits:
    """Return the limits of failed logins, and of registrations."""
    limits = settings.limits
    return LoginLimits(
        failures_per_email=limits.login_failures_per_email,
        failures_per_client=limits.login_failures_per_client,
        registrations_per_client=limits.registrations_per_hour,
    )


def rewards(settings: Settings) -> Rewards:
    """Return the rewards for referrals; `auto` wants confirmed addresses where e-mails go out."""
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


def rates(settings: Settings) -> Rates:
    """Return the rates of GPUs and credits."""
    market = settings.market
    return Rates(
        by_model={
            model.strip().lower(): micro(rate) for model, rate in market.gpu_rates_usd.items()
        },
        default=micro(market.gpu_rate_default_usd),
        credit=micro(market.credit_usd),
    )


def photo_limits(settings: Settings) -> PhotoLimits:
    """Return the largest size of a photo."""
    assistant = settings.assistant
    return PhotoLimits(assistant.photo_max_bytes, assistant.photo_max_pixels)


def reward_terms(settings: Settings) -> RewardTerms:
    """Return the rewards for good deeds."""
    assistant = settings.assistant
    return RewardTerms(
        amounts={category: micro(amount) for category, amount in assistant.rewards.items()},
        confidence_min=assistant.confidence_min,
        user_daily=micro(assistant.reward_user_daily_credits),
        total_daily=micro(assistant.reward_total_daily_credits),
    )


def app_url(settings: Settings, api_port: int) -> str:
    """Return the base address of links: the web application, or the API without one."""
    api = settings.api
    scheme = "https" if api.tls_cert else "http"
    local = f"{scheme}://{format_address(api.host, api_port)}"
    return (api.app_url or api.base_url or local).rstrip("/")


def debtor(settings: Settings) -> Debtor:
    """Return the account that pays, in files of payouts for a bank; without a rate."""
    payouts = settings.payouts
    return Debtor(payouts.debtor_name, payouts.debtor_iban, payouts.debtor_bic)


def sent_by_itself(settings: Settings) -> MethodKind | None:
    """Return the payout method that a payment service sends, so that no file has it."""
    return MethodKind.PAYPAL if settings.payouts.paypal_client_id else None


def webhook_terms(settings: Settings) -> WebhookTerms:
    """Return the permitted targets of webhooks, beside the policy for each address.

    They may go to this machine, and without TLS, where sessions may: in a demonstration.
    """
    loopback = ip_address("127.0.0.1")
    return WebhookTerms(
        blocked_ports=frozenset(settings.egress.blocked_ports),
        allows_loopback=policy(settings).permits(loopback, FIRST_FREE_PORT),
    )


def payout_terms(settings: Settings) -> PayoutTerms:
    """Return the operator's terms for payouts of earnings."""
    payouts = settings.payouts
    return PayoutTerms(
        methods=frozenset(payouts.methods),
        credit_rate=micro(settings.market.credit_usd),
        minimum=micro(payouts.minimum_usd),
        fee=micro(payouts.fee_usd),
        automatic=micro(payouts.automatic_usd),
        review_seconds=payouts.review_hours * HOUR_SECONDS,
        method_wait_seconds=payouts.method_wait_hours * HOUR_SECONDS,
        first_wait_seconds=payouts.first_wait_days * DAY_SECONDS,
        a_day=payouts.payouts_per_day,
        verified_above=micro(payouts.kyc_above_usd),
    )


def policy(
    settings: Settings,
    is_own: Callable[[Address], bool] = lambda _: False,
    is_closed: Callable[[Address, int], bool] | None = None,
) -> Policy:
    """Return which targets may be dialled.

    An exit may dial this machine: it gets there like any other client from there.

    Args:
        settings: all of them.
        is_own: says which addresses are this machine's.
        is_closed: returns whether a port of an address is refused besides.
    """
    egress = settings.egress
    return Policy(
        allow=egress.allow,
        deny=egress.deny,
        blocked_ports=egress.blocked_ports,
        is_own=is_own,
        is_closed=is_closed,
    )


def limits(settings: Settings, descriptors: int, *, is_first: bool = True) -> ProxyLimits:
    """Return the bounds on clients of the proxy.

    Args:
        settings: all of them.
        descriptors: the most open descriptors.
        is_first: whether the process has the exits' port, if there are several processes.
    """
    limits = settings.limits
    descriptors = _beside(settings, descriptors)
    with_exits = bool(settings.exits.host) and is_first
    total = connections_total(
        limits.connections_total,
        descriptors,
        with_exits=with_exits,
        with_asks=with_exits and settings.proxy.processes > 1,
    )
    return ProxyLimits(
        handshake_seconds=limits.handshake_seconds,
        dial_seconds=limits.dial_seconds,
        idle_seconds=limits.idle_seconds,
        connections_per_address=limits.connections_per_address,
        connections_total=total,
        dials_waiting=limits.dials_waiting,
        racers=racers_total(descriptors),
        pipes=pipes_total(descriptors),
        # The ports that they take are the machine's, however many processes there are.
        associations=max(1, associations_total(total) // settings.proxy.processes),
        datagrams_per_second=limits.session_datagrams_per_second,
    )


def exit_terms(settings: Settings) -> ExitTerms:
    """Return the operator's terms for the owners of exits and for buyers."""
    exits, floors = settings.exits, settings.exits.price_per_gb_floor_usd
    return ExitTerms(
        is_offered=bool(exits.host),
        share_percent=exits.share_percent,
        hold_seconds=exits.payout_hold_days * DAY_SECONDS,
        price_floors={country: micro(price) for country, price in floors.items()},
        session_price_floor=micro(settings.market.price_per_gb_floor_usd),
        limits=ExitDeviceLimits(
            exits.connections, exits.bytes_per_second, exits.bytes_per_day, exits.ports
        ),
    )


def exit_limits(settings: Settings, descriptors: int) -> ExitLimits:
    """Return the bounds on exits; `descriptors` is how many may be open."""
    descriptors = _beside(settings, descriptors)
    exits, parked = settings.exits, parked_total(descriptors)
    return ExitLimits(
        exits_total=exits_total(exits.exits_total, descriptors),
        exits_per_network=exits.exits_per_network,
        parked=parked,
        arrivals=max(1, parked // 2),
        heartbeat_seconds=exits.heartbeat_seconds,
        asks=asks_total(descriptors, settings.proxy.processes),
        streams=streams_total(descriptors),
    )


def exits_port(settings: Settings, bound: int) -> int:
    """Return the port that devices dial; `bound` is the port of the listener."""
    return settings.exits.public_port or bound


def exits_host(settings: Settings) -> str:
    """Return the host that devices dial."""
    return settings.exits.public_host or settings.exits.host


def api_limits(
    settings: Settings, descriptors: int, times: ConnectionTimes = API_TIMES
) -> ApiLimits:
    """Return the bounds on clients of the API.

    Args:
        settings: all of them.
        descriptors: the most open descriptors.
        times: the time limits of connections and requests.
    """
    limits = settings.limits
    return ApiLimits(
        requests_per_second=limits.requests_per_second,
        requests_per_second_of_user=limits.requests_per_second_of_user,
        connections=api_connections_total(descriptors, limits.api_connections_total),
        connections_per_network=limits.api_connections_per_network,
        memory=limits.api_bytes_total,
        memory_per_network=limits.api_bytes_per_network,
        stall_seconds=limits.api_stall_seconds,
        times=times,
    )


def staff_limits(settings: Settings, descriptors: int) -> ApiLimits:
    """Return the bounds on clients of the staff API; `descriptors` is how many may be open."""
    return structs.replace(
        api_limits(settings, descriptors),
        requests_per_second=STAFF_REQUESTS_PER_SECOND,
        requests_per_second_of_user=STAFF_REQUESTS_PER_SECOND,
        connections=STAFF_CONNECTIONS,
    )


def staff_is_secure(settings: Settings) -> bool:
    """Return whether browsers come to the staff API over https."""
    return bool(settings.staff.tls_cert) or settings.staff.public_url.startswith("https://")


def app_terms(settings: Settings, bound: int, descriptors: int) -> AppTerms:
    """Return the operator's terms of the server of apps.

    Args:
        settings: all of them.
        bound: the port that is listened on.
        descriptors: the most open descriptors.
    """
    apps = settings.apps
    scheme = "https" if apps.tls_cert else "http"
    url = apps.public_url or f"{scheme}://{format_address(apps.host, bound)}"
    limits = api_limits(settings, descriptors)
    connections = apps_connections_total(descriptors, apps.connections)
    return AppTerms(
        Places(url, apps.domain),
        structs.replace(limits, connections=connections),
        apps.streams_per_app,
        apps.idle_seconds,
    )


def _beside(settings: Settings, descriptors: int) -> int:
    """Return the descriptors that are left for the proxy and exits."""
    wanted = settings.apps.connections if settings.apps.host else 0
    return beside_apps(beside_api(descriptors, settings.limits.api_connections_total), wanted)


def public_address(settings: Settings) -> Address | None:
    """Return the public host if it is an address."""
    try:
        return ip_address(settings.proxy.public_host)
    except ValueError:
        return None
