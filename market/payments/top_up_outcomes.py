"""The outcome of an automatic payment for the automatic top-up of its user.

The transaction that books the payment calls these functions, with the accounts of the user locked.
"""

from typing import Literal

from market.accounts.letters import Letters
from market.base.states import TopUpStatus
from market.events.catalogue import TopUpChanged, TopUpRefused
from market.events.catalogue import amount as shown
from market.events.context import Context
from market.events.recording import record
from market.money.money import as_decimal
from market.payments import mail
from storage.engines.store import Transaction
from storage.payments import top_ups as queries
from storage.payments.payments import PaymentRow

REFUSALS_MAX = 3
# The pause after each refusal but the last. Most cards that refuse today also refuse in a minute.
BACK_OFF_SECONDS = (6 * 3_600, 24 * 3_600)

Reason = Literal["", "refused", "authentication", "doubtful"]

_AUTHENTICATION = (
    "Your bank requires your consent",
    (
        "Your bank requires your consent to the automatic top-up of {amount} USD, and nothing was "
        "paid. The automatic top-up is paused. Pay in by hand on this page, and switch the "
        "automatic top-up on again:"
    ),
)
_DOUBTFUL = (
    "Your automatic top-up is paused",
    (
        "The provider reports other facts about an automatic payment of {amount} USD than "
        "expected. The operator looks at them. Until you switch it on again, the automatic top-up "
        "is paused:"
    ),
)
_DISABLED = (
    "Your automatic top-up is off",
    (
        "Your card refused {amount} USD for the third time, and nothing was paid. The automatic "
        "top-up was switched off. Save another card, and switch it on again:"
    ),
)
_REFUSED = (
    "Your automatic top-up was refused",
    (
        "Your card refused {amount} USD, and nothing was paid. The next attempt comes in {hours} "
        "hours. You can pay in by hand, or save another card:"
    ),
)


def letter_name(user_id: str) -> str:
    """Return the name of the e-mail about the automatic top-up of a user."""
    return f"top-up:{user_id}"


async def succeed(tx: Transaction, payment: PaymentRow) -> None:
    """Forget the refusals: an automatic payment was paid."""
    await queries.set_refusals(tx, payment.user_id, 0)


async def fail(
    tx: Transaction, context: Context, letters: Letters, payment: PaymentRow, reason: Reason
) -> None:
    """Put off the next attempt, or end the top-up, after a payment that was not made.

    Args:
        tx: the transaction that books the payment.
        context: identifiers and the time.
        letters: the e-mails to users.
        payment: the automatic payment.
        reason: why it was not made.
    """
    row = await queries.find(tx, payment.user_id)
    if row is None or row.state != TopUpStatus.ON:
        return
    if reason == "authentication":
        event = TopUpChanged("paused", "authentication")
        await _end(tx, context, payment, TopUpStatus.PAUSED, event)
        words = _AUTHENTICATION
    elif reason == "doubtful":
        event = TopUpChanged("paused", "doubtful")
        await _end(tx, context, payment, TopUpStatus.PAUSED, event)
        words = _DOUBTFUL
    else:
        refused = TopUpRefused(payment.id, shown(payment.amount))
        await record(tx, context, payment.user_id, refused, subject_id=payment.id)
        refusals = row.refusals + 1
        await queries.set_refusals(tx, payment.user_id, refusals)
        if refusals >= REFUSALS_MAX:
            event = TopUpChanged("disabled", "refusals")
            await _end(tx, context, payment, TopUpStatus.DISABLED, event)
            words = _DISABLED
        else:
            wait = BACK_OFF_SECONDS[refusals - 1]
            await queries.plan(tx, payment.user_id, context.now() + wait)
            subject, text = _REFUSED
            words = subject, text.replace("{hours}", str(wait // 3_600))
    subject, text = words
    amount = as_decimal(payment.amount)
    await letters.put(
        tx,
        payment.user_id,
        letter_name(payment.user_id),
        lambda to, url: mail.top_up(to, url, subject, text.format(amount=amount)),
    )


async def _end(
    tx: Transaction,
    context: Context,
    payment: PaymentRow,
    after: TopUpStatus,
    event: TopUpChanged,
) -> None:
    """Move a top-up that is on to a state in which it pays nothing."""
    TopUpStatus.ON.require_before(after)
    is_moved = await queries.move(
        tx, payment.user_id, before=TopUpStatus.ON, after=after, now=context.now()
    )
    assert is_moved  # noqa: S101 - the user is locked
    await record(tx, context, payment.user_id, event)
