"""The client for Stripe against its real test mode; `make stripe` runs it with a key."""

import os
import time
import uuid

import pytest
from support.payments.stripe_server import SECRET

from market.payments.provider import NewPayment
from proxyd.outbound.stripe import StripeProvider

KEY = os.environ.get("PROXYD_TEST_STRIPE_KEY", "")


def now() -> int:
    return int(time.time())


@pytest.mark.skipif(not KEY.startswith("sk_test_"), reason="PROXYD_TEST_STRIPE_KEY is not set")
async def test_the_real_provider_opens_a_payment_once() -> None:
    provider = StripeProvider(KEY, (SECRET,), now)
    payment = NewPayment(
        str(uuid.uuid4()), 20_000_000, "proxyd: 20.00 USD", "https://example.com/", now() + 3_600
    )
    try:
        opened = await provider.create(payment)
        assert await provider.create(payment) == opened
        seen = await provider.look(opened.provider_id)
    finally:
        await provider.close()
    assert (seen.state, seen.amount, seen.currency) == ("open", payment.amount, "usd")
    assert (seen.payment_id, seen.has_mode) == (payment.id, True)
