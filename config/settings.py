"""The settings of the service: one frozen structure per section, with its defaults and bounds.

A setting that is `Reloadable` changes at SIGHUP, every other one with a restart. That mark is the
only list of them: `proxyd.wiring.reload` reads it, and a test holds that each one has an effect.
"""

from decimal import Decimal
from typing import Annotated, Literal, TypeVar, get_args

from msgspec import Meta, Struct, field, structs

_Kind = TypeVar("_Kind")
MIB = 1024 * 1024
_RELOADABLE = "changes at SIGHUP"
Reloadable = Annotated[_Kind, _RELOADABLE]

Port = Annotated[int, Meta(ge=0, le=65535)]
Ports = tuple[Port, ...]
PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
RuleMode = Literal["observe", "act"]
HaltSeconds = Annotated[int, Meta(ge=10, le=86_400)]
ApiBytes = Annotated[int, Meta(ge=1024 * 1024)]  # one body of the default `body_max_bytes` fits
# One for each core of a large machine. Each more costs memory, and a lease slice of every session
# that it serves.
PROCESSES_MAX = 64


class ApiSettings(Struct, frozen=True):
    """Addresses of the HTTP API, and its address for the outside world."""

    host: str = "127.0.0.1"
    port: Port = 8080
    base_url: str = ""
    app_url: str = ""
    console: bool = True
    trusted_proxies: tuple[str, ...] = ()
    metrics_allow: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    body_max_bytes: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 1024 * 1024


class ProxySettings(Struct, frozen=True):
    """Address of the proxy, number of its processes, and the address that buyers dial."""

    host: str = "127.0.0.1"
    port: Port = 1080
    passwordless_ports: Ports = (0,)
    public_host: str = ""
    public_port: Port = 0
    public_passwordless_ports: Ports = ()
    processes: Annotated[int, Meta(ge=1, le=PROCESSES_MAX)] = 1


class StorageSettings(Struct, frozen=True):
    """The database."""

    url: str = "sqlite:///var/proxyd.db"
    pool_size: Annotated[int, Meta(ge=1, le=100)] = 10
    pooler: Literal["none", "session"] = "none"
    direct_url: str = ""


class ClusterSettings(Struct, frozen=True):
    """The way in which several daemons or processes share one database."""

    node_timeout_seconds: Annotated[float, Meta(ge=2, le=300)] = 15.0
    exits_host: str = ""
    exits_port: Port = 0


class EgressSettings(Struct, frozen=True):
    """Targets that sessions may reach beside the built-in refusals, and the resolution of names."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    blocked_ports: tuple[Annotated[int, Meta(ge=1, le=65535)], ...] = (25, 465, 587)
    nameservers: tuple[str, ...] = ()
    lookup_seconds: Seconds = 5.0


class ExitSettings(Struct, frozen=True):  # as wide as its section
    """Address where devices attach as exits, their pay, and the limits of their use."""

    host: str = ""
    port: Port = 1090
    public_host: str = ""
    public_port: Port = 0
    tls_cert: str = ""
    tls_key: str = ""
    next_tls_cert: str = ""
    share_percent: Annotated[int, Meta(ge=0, le=100)] = 60
    payout_hold_days: Annotated[int, Meta(ge=0, le=365)] = 7
    price_per_gb_floor_usd: dict[str, Decimal] = {}
    ports: tuple[Annotated[int, Meta(ge=1, le=65535)], ...] = (80, 443, 8080, 8443)
    connections: Annotated[int, Meta(ge=1, le=1000)] = 16
    bytes_per_second: NonNegativeInt = 0
    bytes_per_day: NonNegativeInt = 5_000_000_000
    exits_total: NonNegativeInt = 0
    exits_per_network: PositiveInt = 8
    heartbeat_seconds: Annotated[float, Meta(ge=1, le=300)] = 15.0
    canaries: tuple[str, ...] = ()
    encrypt: Literal["orders", "all"] = "orders"


class AppSettings(Struct, frozen=True):
    """Address of the apps of jobs, their names, and the limits of their connections."""

    host: str = ""
    port: Port = 8081
    public_url: str = ""
    domain: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    connections: PositiveInt = 1000
    streams_per_app: PositiveInt = 128
    idle_seconds: Seconds = 3600.0


class GeoSettings(Struct, frozen=True):
    """Places of addresses: the operator's files, and networks that the operator knows."""

    country: str = ""
    city: str = ""
    asn: str = ""
    known: dict[str, str] = {}


class AuthSettings(Struct, frozen=True):
    """How session tokens are signed and passwords hashed."""

    signing_key: str = ""
    signing_key_file: str = ""
    token_hours: Annotated[int, Meta(ge=1, le=720)] = 24
    argon2_time_cost: Annotated[int, Meta(ge=1, le=20)] = 3
    argon2_memory_kib: Annotated[int, Meta(ge=64, le=4 * 1024 * 1024)] = 65_536


class MarketSettings(Struct, frozen=True):  # as wide as its section: settings are flat
    """Prices and terms of the market."""

    price_per_gb_default_usd: Decimal = Decimal("1.0")
    price_per_gb_floor_usd: Decimal = Decimal("0.10")
    fee_percent: Decimal = Decimal(10)
    credit_usd: Decimal = Decimal("0.01")
    gpu_rate_default_usd: Decimal = Decimal("1.0")
    gpu_rates_usd: dict[str, Decimal] = {}
    jupyter_image: str = "jupyter/minimal-notebook:latest"
    inference_image: str = "vllm/vllm-openai:latest"
    referrer_reward_credits: Annotated[int, Meta(ge=0, le=1_000_000)] = 50
    referred_reward_credits: Annotated[int, Meta(ge=0, le=1_000_000)] = 25
    referral_verification: Literal["auto", "required", "none"] = "auto"
    referrals_per_referrer_daily: NonNegativeInt = 50
    referral_total_daily_credits: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000
    session_cost_floor_usd: Decimal = Decimal("0.000001")
    free_job_below_credits: Decimal = Decimal("0.01")
    job_waiting_days: Annotated[int, Meta(ge=1, le=3650)] = 30
    session_days: Annotated[int, Meta(ge=1, le=3650)] = 30


Slots = Annotated[int, Meta(ge=1, le=256)]  # a device names all that it holds in one request


class WorkSettings(Struct, frozen=True):  # as wide as its section
    """Storage of the files of jobs: place, number and time."""

    folder: str = ""
    artifact_max_bytes: NonNegativeInt = 5 * 1024**3
    attempt_artifacts_max_bytes: NonNegativeInt = 20 * 1024**3
    attempt_artifacts_max: NonNegativeInt = 1_000
    user_artifacts_max_bytes: NonNegativeInt = 50 * 1024**3
    user_artifacts_max: NonNegativeInt = 10_000
    artifact_days: Annotated[int, Meta(ge=1, le=3650)] = 30
    log_keep_bytes: Annotated[int, Meta(ge=MIB, le=1024 * MIB)] = 8 * MIB
    log_bytes_per_second: NonNegativeInt = MIB
    log_days: Annotated[int, Meta(ge=1, le=3650)] = 30
    user_logs_max_bytes: NonNegativeInt = 1024**3
    disk_reserve_bytes: NonNegativeInt = 256 * MIB
    s3_url: str = ""
    s3_bucket: str = ""
    s3_region: str = "us-east-1"
    s3_access_key: str = ""
    s3_secret_key: str = ""


class JobSettings(Struct, frozen=True):
    """Jobs that devices may hold, the wait for work, and the course of work."""

    device_slots: Reloadable[Slots] = 16
    new_device_slots: Reloadable[Slots] = 4
    new_owner_slots: Reloadable[Slots] = 16
    lease_seconds: Annotated[int, Meta(ge=120, le=86_400)] = 600
    start_seconds: Annotated[int, Meta(ge=30, le=86_400)] = 300
    prepare_seconds: Annotated[int, Meta(ge=30, le=86_400)] = 1800
    review_hours: Annotated[int, Meta(ge=0, le=720)] = 24
    wait_seconds: Annotated[float, Meta(gt=0, le=300)] = 300.0
    waiting_devices: Reloadable[NonNegativeInt] = 0
    sample_account: str = ""
    sample_credits_per_day: Decimal = Decimal(0)
    sample_price_credit: Decimal = Decimal("0.05")


class PayoutSettings(Struct, frozen=True):  # as wide as its section
    """Payouts of earnings to users: their ways, amounts, waiting times and limits."""

    methods: tuple[str, ...] = ()
    minimum_usd: Decimal = Decimal(5)
    fee_usd: Decimal = Decimal(0)
    automatic_usd: Decimal = Decimal(0)
    review_hours: Annotated[int, Meta(ge=1, le=720)] = 48
    method_wait_hours: Annotated[int, Meta(ge=0, le=720)] = 72
    first_wait_days: Annotated[int, Meta(ge=0, le=365)] = 7
    payouts_per_day: Annotated[int, Meta(ge=1, le=100)] = 3
    kyc_above_usd: Decimal = Decimal(600)
    debtor_name: str = ""
    debtor_iban: str = ""
    debtor_bic: str = ""
    paypal_client_id: str = ""
    paypal_secret: str = ""
    paypal_api_base: str = "https://api-m.paypal.com"


class AssistantSettings(Struct, frozen=True):  # as wide as its section
    """The model of the assistant, the bounds of photos, and the rewards of good deeds."""

    base_url: str = ""
    api_key: str = ""
    model: str = ""
    vision_model: str = ""
    timeout_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 8
    concurrency_per_caller: Annotated[int, Meta(ge=1, le=1000)] = 2
    reply_max_tokens: NonNegativeInt = 1024
    requests_per_minute: NonNegativeInt = 60
    photo_max_bytes: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 10_000_000
    photo_max_pixels: Annotated[int, Meta(ge=1024, le=80_000_000)] = 25_000_000
    rewards: dict[str, Annotated[int, Meta(ge=0, le=1_000_000)]] = field(
        default_factory=lambda: {
            "helping_people": 10,
            "giving": 10,
            "caring_for_animals": 8,
            "protecting_nature": 8,
            "volunteering": 8,
            "sharing_knowledge": 5,
        }
    )
    confidence_min: Annotated[float, Meta(ge=0, le=1)] = 0.75
    reward_user_daily_credits: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 30
    reward_total_daily_credits: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 1000


class MailSettings(Struct, frozen=True):
    """How e-mails go out; without a host they are written to the log."""

    host: str = ""
    port: Annotated[int, Meta(ge=1, le=65535)] = 587
    username: str = ""
    password: str = ""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    sender: str = "proxyd@localhost"


class LimitSettings(Struct, frozen=True):  # as wide as its section; each room gets its slice
    """Bounds on times and numbers; a client that exceeds one is refused, the others are served."""

    handshake_seconds: Reloadable[Seconds] = 15.0
    dial_seconds: Reloadable[Seconds] = 10.0
    idle_seconds: Reloadable[Seconds] = 300.0
    drain_seconds: Reloadable[Seconds] = 30.0
    connections_per_session: Reloadable[PositiveInt] = 1000
    session_bytes_per_second: NonNegativeInt = 0
    session_datagrams_per_second: Reloadable[NonNegativeInt] = 20_000
    connections_per_address: Reloadable[PositiveInt] = 2000
    connections_total: Reloadable[NonNegativeInt] = 0
    dials_waiting: Reloadable[PositiveInt] = 4096
    login_failures_per_email: NonNegativeInt = 10
    login_failures_per_client: NonNegativeInt = 100
    registrations_per_hour: NonNegativeInt = 30
    requests_per_second: Reloadable[NonNegativeInt] = 100
    requests_per_second_of_user: Reloadable[NonNegativeInt] = 400
    api_connections_per_network: Reloadable[PositiveInt] = 128
    api_connections_total: Reloadable[NonNegativeInt] = 0
    api_bytes_per_network: Reloadable[ApiBytes] = 4 * 1024 * 1024
    api_bytes_total: Reloadable[ApiBytes] = 64 * 1024 * 1024
    api_stall_seconds: Reloadable[Seconds] = 60.0
    event_streams: Reloadable[NonNegativeInt] = 0
    sessions_per_user: Reloadable[NonNegativeInt] = 1000
    addresses_per_user: Reloadable[NonNegativeInt] = 256
    jobs_per_user: Reloadable[NonNegativeInt] = 1000
    free_jobs_per_user: Reloadable[NonNegativeInt] = 200
    job_bytes_per_user: Reloadable[NonNegativeInt] = 4_000_000
    devices_per_user: Reloadable[NonNegativeInt] = 1000


class LogSettings(Struct, frozen=True):
    """Level and format of the log on standard error."""

    level: Reloadable[Literal["debug", "info", "warning", "error"]] = "info"
    format: Reloadable[Literal["text", "json"]] = "text"


class AccessLogSettings(Struct, frozen=True):
    """The record of each proxied connection; `auto` records with a folder, or with exits."""

    enabled: Literal["auto", "on", "off"] = "auto"
    folder: str = ""
    target: Literal["host", "hash", "none"] = "hash"
    client: Literal["full", "network", "none"] = "network"
    keep_days: Annotated[int, Meta(ge=1, le=3650)] = 90


class AbuseSettings(Struct, frozen=True):
    """Rules about the connections of a session in a minute; 0 switches a rule off.

    A rule in the mode `act` halts the session; `stops_to_suspend` halts in a day suspend the user.
    """

    scan_mode: Reloadable[RuleMode] = "observe"
    scan_targets: Reloadable[Annotated[int, Meta(ge=0, le=5000)]] = 200
    scan_failed_percent: Reloadable[Annotated[int, Meta(ge=0, le=100)]] = 60
    scan_halt_seconds: Reloadable[HaltSeconds] = 600
    mail_mode: Reloadable[RuleMode] = "observe"
    mail_refusals: Reloadable[NonNegativeInt] = 20
    mail_halt_seconds: Reloadable[HaltSeconds] = 3600
    login_mode: Reloadable[RuleMode] = "observe"
    login_connections: Reloadable[NonNegativeInt] = 100
    login_halt_seconds: Reloadable[HaltSeconds] = 600
    stops_to_suspend: Reloadable[NonNegativeInt] = 3


class NewAccountSettings(Struct, frozen=True):
    """Limits of new accounts; with 0 days only accounts of the level `new` have them."""

    days: Reloadable[Annotated[int, Meta(ge=0, le=365)]] = 0
    connections: Reloadable[PositiveInt] = 50
    ports: Ports = (80, 443)
    gb_per_day: Reloadable[Annotated[int, Meta(ge=1, le=1_000_000)]] = 2
    confirmed_email: Reloadable[bool] = True


class SiteSettings(Struct, frozen=True):
    """Name, look and contact of the service, and the users who may open an account."""

    name: str = "proxyd"
    logo: str = ""
    colour: str = ""
    dark_colour: str = ""
    support: str = ""
    registration: Literal["open", "invited", "closed"] = "open"


class PaymentSettings(Struct, frozen=True):  # as wide as its section
    """Payment providers, limits of payments, and the lines of receipts."""

    min_usd: Decimal = Decimal(5)
    max_usd: Decimal = Decimal(1000)
    new_account_day_usd: Decimal = Decimal(100)
    new_account_days: Annotated[int, Meta(ge=0, le=3650)] = 30
    refund_days: Annotated[int, Meta(ge=0, le=365)] = 60
    top_up_month_usd: Decimal = Decimal(0)
    seller: str = ""
    tax_name: str = ""
    tax_percent: Decimal = Decimal(0)
    stripe_secret_key: str = ""
    stripe_webhook_secret: str = ""
    stripe_previous_webhook_secret: str = ""
    stripe_api_base: str = "https://api.stripe.com"
    btcpay_url: str = ""
    btcpay_store: str = ""
    btcpay_key: str = ""
    btcpay_webhook_secret: str = ""


class AlertSettings(Struct, frozen=True):
    """Receivers of the messages to operators, and the hour of the daily summary."""

    email: tuple[str, ...] = ()
    webhook_url: str = ""
    webhook_secret: str = ""
    summary_hour: Annotated[int, Meta(ge=0, le=23)] = 6


class StaffSettings(Struct, frozen=True):
    """Acts that need a second person, and the address and the clients of the staff API."""

    approval_usd: Decimal = Decimal(50)
    approval_credits: Decimal = Decimal(5000)
    second_person_erase: bool = True
    price_percent_min: Annotated[int, Meta(ge=1, le=100)] = 50
    price_percent_max: Annotated[int, Meta(ge=100, le=1_000)] = 200
    host: str = ""
    port: Port = 8082
    allow: tuple[str, ...] = (
        "127.0.0.0/8",
        "::1/128",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
        "fe80::/10",
    )
    public_url: str = ""
    tls_cert: str = ""
    tls_key: str = ""


class Settings(Struct, frozen=True):
    """Everything an operator can set."""

    api: ApiSettings = ApiSettings()
    proxy: ProxySettings = ProxySettings()
    storage: StorageSettings = StorageSettings()
    cluster: ClusterSettings = ClusterSettings()
    egress: EgressSettings = EgressSettings()
    exits: ExitSettings = ExitSettings()
    geo: GeoSettings = GeoSettings()
    apps: AppSettings = AppSettings()
    auth: AuthSettings = AuthSettings()
    market: MarketSettings = MarketSettings()
    work: WorkSettings = WorkSettings()
    jobs: JobSettings = JobSettings()
    assistant: AssistantSettings = AssistantSettings()
    mail: MailSettings = MailSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    access_log: AccessLogSettings = AccessLogSettings()
    abuse: AbuseSettings = AbuseSettings()
    new_accounts: NewAccountSettings = NewAccountSettings()
    site: SiteSettings = SiteSettings()
    payments: PaymentSettings = PaymentSettings()
    alerts: AlertSettings = AlertSettings()
    payouts: PayoutSettings = PayoutSettings()
    staff: StaffSettings = StaffSettings()


def reloadable() -> frozenset[str]:
    """Return the settings that change at SIGHUP, each as `section.key`."""
    return frozenset(
        f"{section.name}.{each.name}"
        for section in structs.fields(Settings)
        for each in structs.fields(section.type)
        if _RELOADABLE in get_args(each.type)
    )
