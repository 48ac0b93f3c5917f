"""Payments in a state, and debts: a payment that was spent, and taken back by its bank."""

from functools import partial

from market.market import Market
from market.money import debts
from market.money.money import GB, MICRO
from market.payments.booking import Booking, book
from market.payments.provider import Seen, SeenReturn
from market.payments.terms import PaymentTerms
from storage.payments import payments as queries
from storage.payments.payments import PaymentRow

USD = MICRO


def payment_row(market: Market, user: str, status: str, amount: int) -> PaymentRow:
    """Return a payment in a state that is not paid."""
    payment_id, now = market.context.identifiers.new(), market.context.now()
    return PaymentRow(
        id=payment_id,
        user_id=user,
        provider="bank",
        status=status,
        amount=amount,
        provider_id=f"bank-{payment_id}",
        charge_id=None,
        url="",
        doubt="a doubt" if status == "doubtful" else "",
        looked_at=0,
        next_look_at=None,
        created_at=now,
        closed_at=None if status == "open" else now,
        deposit_id=None,
    )


async def owe(market: Market, user: str, whole: int = 8) -> str:
    """Have a user owe whole USD: they paid in, spent all of it, and lost a dispute.

    Return the payment.
    """
    store = market.context.store
    amount = whole * USD + await store.read(debts.owed, user)
    row = payment_row(market, user, "open", amount)
    await store.write(queries.insert, row)
    see = partial(book, planned=None)
    booking = Booking(market.context, PaymentTerms(), market.letters)
    paid = Seen("paid", amount, "usd", row.id, True, f"charge-{row.id}")
    await store.write(see, booking, row.id, paid)
    await market.bandwidth.buy(user, quota_bytes=whole * GB, price_per_gb=USD)
    lost = SeenReturn("dispute", "dispute", "done", amount)
    seen = Seen("paid", amount, "usd", row.id, True, f"charge-{row.id}", (lost,))
    await store.write(see, booking, row.id, seen)
    return row.id
