"""Checks of the settings of payments: keys that go together, whole cents, and addresses."""

from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urlsplit

from config.settings import PaymentSettings, Settings

SELLER_MAX_CHARACTERS = 1_000
TAX_NAME_MAX_CHARACTERS = 40
MONEY_MAX = Decimal(1_000_000)
CENT = Decimal("0.01")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def payment_problems(settings: Settings) -> Iterator[str]:
    """Yield one line for each setting of payments that cannot be used."""
    payments = settings.payments
    yield from _amounts(payments)
    yield from _receipts(payments)
    yield from _providers(payments)


def _amounts(payments: PaymentSettings) -> Iterator[str]:
    for name in ("min_usd", "max_usd", "new_account_day_usd", "top_up_month_usd"):
        value = getattr(payments, name)
        if not value.is_finite() or not 0 <= value <= MONEY_MAX or value % CENT:
            yield f"payments.{name}: expected whole cents from 0 to {MONEY_MAX}, got {value}"
            return
    if not CENT <= payments.min_usd <= payments.max_usd:
        yield "payments.min_usd: expected at least a cent, and no more than payments.max_usd"
    if payments.top_up_month_usd and payments.top_up_month_usd < payments.min_usd:
        yield "payments.top_up_month_usd: expected 0, or at least payments.min_usd"
    if payments.top_up_month_usd and not payments.stripe_secret_key:
        yield "payments.top_up_month_usd: needs payments.stripe_secret_key, which saves cards"


def _receipts(payments: PaymentSettings) -> Iterator[str]:
    percent = payments.tax_percent
    if not percent.is_finite() or not 0 <= percent <= 100 or percent % CENT:
        yield f"payments.tax_percent: expected 0 to 100 with two decimals, got {percent}"
    elif percent and not payments.tax_name:
        yield "payments.tax_name: must name the tax of payments.tax_percent"
    lines = payments.seller.splitlines()
    if len(payments.seller) > SELLER_MAX_CHARACTERS or not all(map(str.isprintable, lines)):
        yield (
            f"payments.seller: expected lines of at most {SELLER_MAX_CHARACTERS} characters in all"
        )
    name = payments.tax_name
    if len(name) > TAX_NAME_MAX_CHARACTERS or not name.isprintable():
        yield f"payments.tax_name: expected at most {TAX_NAME_MAX_CHARACTERS} characters"


def _providers(payments: PaymentSettings) -> Iterator[str]:
    if payments.stripe_secret_key and not payments.stripe_webhook_secret:
        yield "payments.stripe_webhook_secret: must be set too, notices are checked with it"
    of_btcpay = (
        payments.btcpay_url,
        payments.btcpay_store,
        payments.btcpay_key,
        payments.btcpay_webhook_secret,
    )
    if any(of_btcpay) and not all(of_btcpay):
        yield "payments.btcpay_url: its store, key and webhook secret must be set with it"
    elif payments.btcpay_url and not _is_safe(payments.btcpay_url):
        yield "payments.btcpay_url: expected an address that begins with https://"
    if not _is_safe(payments.stripe_api_base):
        yield "payments.stripe_api_base: expected an address that begins with https://"


def _is_safe(url: str) -> bool:
    """Return whether a key may be sent to an address: by TLS, or to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    is_plain = not (parts.query or parts.fragment or parts.username)
    return (
        is_plain
        and bool(host)
        and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))
    )
