"""Settings of payments that contradict each other, or cannot be used."""

import msgspec
from support.base.cases import cases

from config.payments import payment_problems
from config.settings import Settings

OF_STRIPE = {"stripe_secret_key": "sk_test_x", "stripe_webhook_secret": "whsec_x"}
OF_BTCPAY = {"btcpay_store": "s", "btcpay_key": "k", "btcpay_webhook_secret": "w"}


@cases(
    "payments, words",
    [
        ({}, ""),
        (OF_STRIPE, ""),
        ({"stripe_secret_key": "sk_test_x"}, "stripe_webhook_secret: must be set"),
        ({"stripe_api_base": "http://127.0.0.1:1"}, ""),
        ({"stripe_api_base": "http://example.com"}, "begins with https://"),
        ({"stripe_api_base": "https://[x"}, "begins with https://"),
        ({"stripe_api_base": "https://u:p@example.com"}, "begins with https://"),
        ({"btcpay_url": "https://pay.example.com"}, "must be set with it"),
        ({"btcpay_url": "ftp://x", **OF_BTCPAY}, "begins with https://"),
        ({"btcpay_url": "https://x", **OF_BTCPAY}, ""),
        ({"min_usd": 5.001}, "min_usd: expected whole cents"),
        ({"min_usd": 0}, "at least a cent"),
        ({"min_usd": 50, "max_usd": 49}, "no more than payments.max_usd"),
        ({"max_usd": 1e9}, "max_usd: expected whole cents"),
        ({"top_up_month_usd": 100.001}, "top_up_month_usd: expected whole cents"),
        ({"top_up_month_usd": 100}, "needs payments.stripe_secret_key"),
        ({"top_up_month_usd": 4, **OF_STRIPE}, "at least payments.min_usd"),
        ({"top_up_month_usd": 100, **OF_STRIPE}, ""),
        ({"tax_percent": 20}, "must name the tax"),
        ({"tax_percent": 20.005, "tax_name": "VAT"}, "two decimals"),
        ({"tax_percent": 101, "tax_name": "VAT"}, "0 to 100"),
        ({"seller": "x" * 1001}, "seller: expected lines"),
        ({"seller": "a\x07"}, "seller: expected lines"),
        ({"seller": "Example Ltd\n1 Road"}, ""),
        ({"tax_name": "x" * 41}, "tax_name: expected"),
    ],
)
def test_settings_of_payments_are_checked(payments: dict[str, object], words: str) -> None:
    settings = msgspec.convert({"payments": payments}, Settings, strict=False)
    problems = list(payment_problems(settings))
    assert (len(problems), words in "".join(problems)) == (1 if words else 0, True)
