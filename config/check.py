"""Checks that types cannot express: contradictions between settings, and texts with a grammar."""

import ipaddress
import re
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urlsplit

from config.payments import payment_problems
from config.settings import Settings
from config.site import site_problems

SIGNING_KEY_MIN_BYTES = 32  # the size of HS256's hash, as RFC 7518, section 3.2, demands
MONEY_DIGITS = 6  # amounts are kept in millionths
PERCENT_DIGITS = 2  # fees are kept in ten-thousandths
CENT_DIGITS = 2  # after the decimal point, in USD
PAYOUT_METHODS = ("bank", "paypal", "manual", "stripe")
PORT_MAX = 65_535
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
CATEGORY = re.compile("[a-z]+(_[a-z]+)*")
BUCKET = re.compile("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
COUNTRY = re.compile("[a-z]{2}")  # ISO 3166-1, alpha-2
ANY_COUNTRY = "any"
RESERVED_CATEGORIES = frozenset(("none", "unverified"))
PASSWORDLESS_MAX_PORTS = 16  # a client's address can have one session on each
EXIT_PORTS_MAX = 256  # the welcome of an exit is one frame of 4 KiB: half of it for ports


def contradictions(settings: Settings) -> Iterator[str]:
    """Yield one line for each setting that has the right type but cannot be used."""
    yield from _networks("api.trusted_proxies", settings.api.trusted_proxies)
    yield from _networks("api.metrics_allow", settings.api.metrics_allow)
    yield from _networks("egress.allow", settings.egress.allow)
    yield from _networks("egress.deny", settings.egress.deny)
    yield from _nameservers(settings.egress.nameservers)
    yield from _listening(settings)
    yield from _exits(settings)
    yield from _apps(settings)
    yield from _staff(settings)
    yield from _known_networks(settings)
    yield from _urls(settings)
    yield from _auth(settings)
    yield from _prices(settings)
    yield from _payouts(settings)
    yield from _referrals(settings)
    yield from _assistant(settings)
    yield from _s3(settings)
    yield from site_problems(settings)
    yield from payment_problems(settings)


def _networks(name: str, values: tuple[str, ...]) -> Iterator[str]:
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            yield f"{name}: {error}"


def _nameservers(values: tuple[str, ...]) -> Iterator[str]:
    for value in values:
        if not _is_endpoint(value):
            yield (
                "egress.nameservers: expected an IP address, or 192.0.2.1:53 or [2001:db8::1]:53, "
                f"got {value!r}"
            )


def _is_endpoint(text: str) -> bool:
    """Return whether a text is an IP address, with or without a port."""
    host, port = text, "53"
    if text.startswith("["):
        host, _, port = text[1:].partition("]:")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (
        (address.version == 6 or not text.startswith("["))
        and port.isascii()
        and port.isdigit()
        and 0 < int(port) <= PORT_MAX
    )


def _listening(settings: Settings) -> Iterator[str]:
    api, proxy = settings.api, settings.proxy
    for name, host in (("api.host", api.host), ("proxy.host", proxy.host)):
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            yield f"{name}: expected an IP address to listen on, got {host!r}"
            continue
        if name == "proxy.host" and address.is_unspecified and not proxy.public_host:
            yield (
                "proxy.public_host: must name the host that buyers dial, because proxy.host "
                f"({host}) is no address to dial"
            )
    if proxy.public_host and not _is_host(proxy.public_host):
        yield (
            "proxy.public_host: expected a name or an address without scheme, port or path, got "
            f"{proxy.public_host!r}; the port goes into proxy.public_port"
        )
    if api.port and (api.host, api.port) == (proxy.host, proxy.port):
        yield f"proxy.port: {proxy.port} is already taken by api.port"
    yield from _passwordless(settings)
    if bool(api.tls_cert) != bool(api.tls_key):
        missing = "api.tls_key" if api.tls_cert else "api.tls_cert"
        yield f"{missing}: must be set too, a certificate and its key go together"


def _is_host(host: str) -> bool:
    """Return whether a text is an IP address or a host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return HOST_NAME.fullmatch(host) is not None
    return True


def _passwordless(settings: Settings) -> Iterator[str]:
    api, proxy = settings.api, settings.proxy
    setting_of_port = {proxy.port: "proxy.port"}
    if api.host == proxy.host:
        setting_of_port.setdefault(api.port, "api.port")
    for port in proxy.passwordless_ports:
        if port and port in setting_of_port:
            yield f"proxy.passwordless_ports: {port} is already taken by {setting_of_port[port]}"
        setting_of_port.setdefault(port, "proxy.passwordless_ports")
    if len(proxy.passwordless_ports) > PASSWORDLESS_MAX_PORTS:
        yield f"proxy.passwordless_ports: expected at most {PASSWORDLESS_MAX_PORTS} ports"
    public_count, count = len(proxy.public_passwordless_ports), len(proxy.passwordless_ports)
    if public_count not in (0, count):
        yield (
            f"proxy.public_passwordless_ports: expected {count} of them, one for each of "
            f"proxy.passwordless_ports, or none, got {public_count}"
        )


def _exit_ports(ports: tuple[int, ...]) -> Iterator[str]:
    if not ports:
        yield "exits.ports: must name at least one port: the terms tell it to owners"
    if len(ports) > EXIT_PORTS_MAX:
        yield f"exits.ports: at most {EXIT_PORTS_MAX} ports, got {len(ports)}"


def _exits(settings: Settings) -> Iterator[str]:
    """Yield the problems of the settings of exits; exits that listen have further checks."""
    exits = settings.exits
    if exits.public_host and not _is_host(exits.public_host):
        yield (
            "exits.public_host: expected a name or an address without scheme, port or path, got "
            f"{exits.public_host!r}; the port goes into exits.public_port"
        )
    yield from _exit_ports(exits.ports)
    if bool(exits.tls_cert) != bool(exits.tls_key):
        missing = "exits.tls_key" if exits.tls_cert else "exits.tls_cert"
        yield f"{missing}: must be set too, a certificate and its key go together"
    for url in exits.canaries:
        if not _is_page(url):
            yield f"exits.canaries: expected http://… or https://… with a host, got {url!r}"
        elif exits.ports and _port_of(url) not in exits.ports:
            yield f"exits.canaries: no exit is asked for {url!r}, its port is not among exits.ports"
    for country in exits.price_per_gb_floor_usd:
        if country != ANY_COUNTRY and not COUNTRY.fullmatch(country):
            yield (
                "exits.price_per_gb_floor_usd: expected a country's code of two small letters, or "
                f"any, got {country!r}"
            )
    if exits.host:
        yield from _exits_listening(settings)


def _exits_listening(settings: Settings) -> Iterator[str]:
    exits, proxy = settings.exits, settings.proxy
    try:
        address = ipaddress.ip_address(exits.host)
    except ValueError:
        yield f"exits.host: expected an IP address to listen on, or nothing, got {exits.host!r}"
        return
    if address.is_unspecified and not exits.public_host:
        yield (
            "exits.public_host: must name the host that devices dial, because exits.host "
            f"({exits.host}) is no address to dial"
        )
    if settings.storage.url.startswith("postgresql:") and not exits.tls_cert:
        yield (
            "exits.tls_cert: must be set, because a PostgreSQL database has no folder to keep a "
            "certificate in that is made here"
        )
    others = {
        (settings.api.host, settings.api.port): "api.port",
        (proxy.host, proxy.port): "proxy.port",
        **{(proxy.host, port): "proxy.passwordless_ports" for port in proxy.passwordless_ports},
    }
    if exits.port and (exits.host, exits.port) in others:
        yield f"exits.port: {exits.port} is already taken by {others[exits.host, exits.port]}"


def _apps(settings: Settings) -> Iterator[str]:
    """Yield the problems of the settings of apps; apps with a listener have further checks."""
    apps = settings.apps
    if apps.public_url and not _is_origin(apps.public_url):
        yield (
            "apps.public_url: expected a URL without a path, as in https://apps.example.com, got "
            f"{apps.public_url!r}"
        )
    if apps.domain and (_is_address(apps.domain) or not HOST_NAME.fullmatch(apps.domain)):
        yield f"apps.domain: expected a name such as apps.example.com, got {apps.domain!r}"
    if bool(apps.tls_cert) != bool(apps.tls_key):
        missing = "apps.tls_key" if apps.tls_cert else "apps.tls_cert"
        yield f"{missing}: must be set too, a certificate and its key go together"
    if apps.host:
        yield from _apps_listening(settings)


def _apps_listening(settings: Settings) -> Iterator[str]:
    apps, api = settings.apps, settings.api
    try:
        address = ipaddress.ip_address(apps.host)
    except ValueError:
        yield f"apps.host: expected an IP address to listen on, or nothing, got {apps.host!r}"
        return
    if address.is_unspecified and not apps.public_url:
        yield (
            "apps.public_url: must say how clients reach apps, because apps.host "
            f"({apps.host}) is no address to dial"
        )
    if not settings.exits.host:
        yield "exits.host: must be set, because apps are reached through the port of exits"
    hosts = (_host(api.base_url, api.host), _host(api.app_url or api.base_url, api.host))
    for url in (api.base_url, api.app_url):
        if url and apps.public_url and _origin_of(url) == _origin_of(apps.public_url):
            yield "apps.public_url: must be another origin than the API's and the web application's"
            break
    else:
        # Without hosts of their own, all apps get the data that a browser keeps for this one.
        if not apps.domain and _are_at_one_host(_host_of_apps(settings), *hosts):
            yield (
                "apps.public_url: must be another host than the API's and the web application's, "
                "because a browser sends cookies to all ports of a host; or set apps.domain"
            )
    others = {
        (api.host, api.port): "api.port",
        (settings.proxy.host, settings.proxy.port): "proxy.port",
        (settings.exits.host, settings.exits.port): "exits.port",
    }
    if apps.port and (apps.host, apps.port) in others:
        yield f"apps.port: {apps.port} is already taken by {others[apps.host, apps.port]}"


def _staff(settings: Settings) -> Iterator[str]:
    """Yield the problems of the settings of the staff API; one that listens has further checks."""
    staff = settings.staff
    yield from _networks("staff.allow", staff.allow)
    if staff.public_url and not _is_origin(staff.public_url):
        yield (
            "staff.public_url: expected a URL without a path, as in https://staff.example.com, got "
            f"{staff.public_url!r}"
        )
    if bool(staff.tls_cert) != bool(staff.tls_key):
        missing = "staff.tls_key" if staff.tls_cert else "staff.tls_cert"
        yield f"{missing}: must be set too, a certificate and its key go together"
    if staff.host:
        yield from _staff_listening(settings)


def _staff_listening(settings: Settings) -> Iterator[str]:
    staff, api, apps = settings.staff, settings.api, settings.apps
    try:
        address = ipaddress.ip_address(staff.host)
    except ValueError:
        yield f"staff.host: expected an IP address to listen on, or nothing, got {staff.host!r}"
        return
    if not staff.allow:
        yield "staff.allow: must name at least one network, or nobody gets an answer"
    is_secure = bool(staff.tls_cert) or staff.public_url.startswith("https://")
    if not address.is_loopback and not is_secure:
        yield (
            "staff.tls_cert: must be set, or staff.public_url must begin with https://, because "
            f"passwords and codes come to {staff.host} over a network"
        )
    # A page of a job on another port of this host would get the cookie of the staff.
    if apps.host and _are_at_one_host(_host_of_apps(settings), _host(staff.public_url, staff.host)):
        yield (
            "staff.public_url: must be another host than that of apps, because a browser sends "
            "cookies to all ports of a host"
        )
    others = {
        (api.host, api.port): "api.port",
        (settings.proxy.host, settings.proxy.port): "proxy.port",
        (settings.exits.host, settings.exits.port): "exits.port",
        (apps.host, apps.port): "apps.port",
    }
    if staff.port and (staff.host, staff.port) in others:
        yield f"staff.port: {staff.port} is already taken by {others[staff.host, staff.port]}"


def _is_origin(url: str) -> bool:
    if not _is_http(url):
        return False
    parts = urlsplit(url)
    return not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)


def _origin_of(url: str) -> tuple[str, str | None, int]:
    return urlsplit(url).scheme, urlsplit(url).hostname, _port_of(url)


def _host_of_apps(settings: Settings) -> str:
    """Return the host at which browsers reach apps; "" for one that has no cookies to share.

    On loopback without a public URL, the only browsers are those of this machine: a demonstration.
    """
    apps = settings.apps
    if not apps.public_url and _is_loopback(apps.host):
        return ""
    return _host(apps.public_url, apps.host)


def _are_at_one_host(of_apps: str, *hosts: str) -> bool:
    """Return whether apps share a host with another part; one that listens everywhere has each."""
    if not of_apps:
        return False
    return any(
        host == of_apps or (_is_address(host) and ipaddress.ip_address(host).is_unspecified)
        for host in hosts
    )


def _host(url: str, listening: str) -> str:
    """Return the host of a URL, or without one the address that is listened on."""
    return (urlsplit(url).hostname or "") if url else listening


def _is_loopback(text: str) -> bool:
    return _is_address(text) and ipaddress.ip_address(text).is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _known_networks(settings: Settings) -> Iterator[str]:
    yield from _networks("geo.known", tuple(settings.geo.known))
    for network, country in settings.geo.known.items():
        if not COUNTRY.fullmatch(country):
            yield (
                f"geo.known: expected a country's code of two small letters for {network}, got "
                f"{country!r}"
            )


def _urls(settings: Settings) -> Iterator[str]:
    for name, url in (
        ("api.base_url", settings.api.base_url),
        ("api.app_url", settings.api.app_url),
        ("assistant.base_url", settings.assistant.base_url),
    ):
        if url and not _is_http(url):
            yield f"{name}: expected a URL that starts with http:// or https://, got {url!r}"
    if not settings.api.console and not settings.api.app_url:
        yield (
            "api.app_url: must be set, because api.console is false and letters and referrals lead "
            "to pages"
        )
    url = settings.storage.url
    if url.startswith("sqlite:") and not url.startswith("sqlite:///"):
        yield (
            "storage.url: a path behind sqlite: needs three slashes, or four when it is absolute: "
            "sqlite:///var/proxyd.db, sqlite:////var/lib/proxyd/proxyd.db"
        )
    elif not url.startswith(("sqlite:///", "postgresql://")):
        yield (
            "storage.url: expected sqlite:///path/to/file.db or postgresql://user@host/database, "
            f"got a URL that starts with {url.partition(':')[0]!r}"
        )
    elif url.removeprefix("sqlite:///").strip("/") in ("", ":memory:"):
        yield "storage.url: expected a file, as in sqlite:///var/proxyd.db"


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _auth(settings: Settings) -> Iterator[str]:
    auth = settings.auth
    if auth.signing_key and len(auth.signing_key.encode()) < SIGNING_KEY_MIN_BYTES:
        yield f"auth.signing_key: must have at least {SIGNING_KEY_MIN_BYTES} bytes"
    needs_key = settings.storage.url.startswith("postgresql:")
    if needs_key and not (auth.signing_key or auth.signing_key_file):
        yield (
            "auth.signing_key_file: must be set (or auth.signing_key), because a PostgreSQL "
            "database has no folder to keep the key in"
        )


def _payouts(settings: Settings) -> Iterator[str]:
    for method in settings.payouts.methods:
        if method not in PAYOUT_METHODS:
            yield f"payouts.methods: expected {', '.join(PAYOUT_METHODS)}, got {method}"
    if "stripe" in settings.payouts.methods and not settings.payments.stripe_secret_key:
        yield "payouts.methods: stripe needs payments.stripe_secret_key"
    fee = settings.payouts.fee_usd
    if fee.is_finite() and fee != round(fee, CENT_DIGITS):
        yield f"payouts.fee_usd: expected whole cents, got {fee}"


def _prices(settings: Settings) -> Iterator[str]:
    market = settings.market
    for name, price in (
        ("market.price_per_gb_default_usd", market.price_per_gb_default_usd),
        ("market.price_per_gb_floor_usd", market.price_per_gb_floor_usd),
        ("market.session_cost_floor_usd", market.session_cost_floor_usd),
        ("market.free_job_below_credits", market.free_job_below_credits),
        ("staff.approval_usd", settings.staff.approval_usd),
        ("staff.approval_credits", settings.staff.approval_credits),
        ("market.credit_usd", market.credit_usd),
        ("payouts.minimum_usd", settings.payouts.minimum_usd),
        ("payouts.fee_usd", settings.payouts.fee_usd),
        ("payouts.automatic_usd", settings.payouts.automatic_usd),
        ("payouts.kyc_above_usd", settings.payouts.kyc_above_usd),
        ("jobs.sample_credits_per_day", settings.jobs.sample_credits_per_day),
        ("jobs.sample_price_credit", settings.jobs.sample_price_credit),
        *(
            ("exits.price_per_gb_floor_usd", price)
            for price in settings.exits.price_per_gb_floor_usd.values()
        ),
        ("market.gpu_rate_default_usd", market.gpu_rate_default_usd),
        *(("market.gpu_rates_usd", rate) for rate in market.gpu_rates_usd.values()),
    ):
        if not price.is_finite() or not 0 <= price <= 1_000_000:
            yield f"{name}: expected an amount from 0 to 1000000, got {price}"
        elif price != round(price, MONEY_DIGITS):
            yield f"{name}: has more than {MONEY_DIGITS} decimals: {price}"
    if settings.jobs.sample_credits_per_day and not settings.jobs.sample_account:
        yield "jobs.sample_account: must be set, because jobs.sample_credits_per_day is"
    if settings.jobs.sample_price_credit == 0:
        yield "jobs.sample_price_credit: expected an amount above 0"
    if market.credit_usd == 0:
        yield "market.credit_usd: expected an amount above 0"
    if not market.fee_percent.is_finite() or not 0 <= market.fee_percent <= 100:
        yield f"market.fee_percent: expected 0 to 100, got {market.fee_percent}"
    elif market.fee_percent != round(market.fee_percent, PERCENT_DIGITS):
        yield f"market.fee_percent: has more than {PERCENT_DIGITS} decimals: {market.fee_percent}"
    default, floor = market.price_per_gb_default_usd, market.price_per_gb_floor_usd
    if Decimal.is_finite(default) and Decimal.is_finite(floor) and default < floor:
        yield (
            f"market.price_per_gb_default_usd: {default} is below market.price_per_gb_floor_usd, "
            f"{floor}"
        )


def _referrals(settings: Settings) -> Iterator[str]:
    market = settings.market
    bonuses = market.referrer_reward_credits + market.referred_reward_credits
    if bonuses > market.referral_total_daily_credits > 0:
        yield (
            f"market.referral_total_daily_credits: is below {bonuses}, the sum of both bonuses of "
            "one referral, which could never be paid"
        )


def _assistant(settings: Settings) -> Iterator[str]:
    assistant = settings.assistant
    has_model = bool(assistant.model or assistant.vision_model)
    if has_model and not assistant.base_url:
        yield "assistant.base_url: must be set, because assistant.model or vision_model is"
    if assistant.base_url and not has_model:
        yield "assistant.model: must be set, or assistant.vision_model, because base_url is"
    if not all("!" <= character <= "~" for character in assistant.api_key):
        yield "assistant.api_key: has characters that are not allowed in a header"
    for category in assistant.rewards:
        if not CATEGORY.fullmatch(category) or category in RESERVED_CATEGORIES:
            yield (
                "assistant.rewards: expected categories of small letters and underscores, other "
                f"than none and unverified, got {category!r}"
            )
    highest = max(assistant.rewards.values(), default=0)
    for name, cap in (
        ("reward_user_daily_credits", assistant.reward_user_daily_credits),
        ("reward_total_daily_credits", assistant.reward_total_daily_credits),
    ):
        if highest > cap > 0:
            yield (
                f"assistant.{name}: is below {highest}, the highest of assistant.rewards, which "
                "could never be paid"
            )


def _s3(settings: Settings) -> Iterator[str]:
    work = settings.work
    if not work.s3_url:
        return
    parts = urlsplit(work.s3_url) if _is_http(work.s3_url) else None
    if parts is None or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        yield (
            "work.s3_url: expected the address of an S3 service without a path, as in "
            f"https://s3.example.com, got {work.s3_url!r}"
        )
    if not BUCKET.fullmatch(work.s3_bucket):
        yield f"work.s3_bucket: expected the name of a bucket, got {work.s3_bucket!r}"
    for name in ("s3_region", "s3_access_key", "s3_secret_key"):
        value = str(getattr(work, name))
        if not value or not all("!" <= character <= "~" for character in value):
            yield f"work.{name}: must be set, without spaces, because work.s3_url is"


def _port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or {"http": 80, "https": 443}[parts.scheme]


def _is_page(url: str) -> bool:
    """Return whether a text is the URL of a page."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port
        return False
