"""Queries on payments and on the receipts of them."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row


class PaymentRow(NamedTuple):  # as wide as its table
    """A payment: `amount` in micro-USD, times in UTC seconds.

    `provider_id` is missing until the provider answers. `deposit_id` is the transfer of the money.
    `doubt` is the difference that the operator has to look at. An automatic payment has the saved
    card that it is taken from. `accepted` is what the operator accepts of a doubtful one, and
    `doubts` counts the changes of its doubt. `title` names it to its payer.
    """

    id: str
    user_id: str
    provider: str
    status: str
    amount: int
    provider_id: str | None
    charge_id: str | None
    url: str
    doubt: str
    looked_at: int
    next_look_at: int | None
    created_at: int
    closed_at: int | None
    deposit_id: str | None
    customer_id: str | None = None
    card_id: str | None = None
    accepted: int | None = None
    doubts: int = 0
    title: str = ""

    @property
    def is_automatic(self) -> bool:
        """Whether the payment is taken from a saved card."""
        return self.card_id is not None


class RecentRow(NamedTuple):
    """The payments that a user has begun in some time: their number, and their sum."""

    payments: int
    amount: int


class ReceiptRow(NamedTuple):
    """The receipt of a payment; the texts are those of its day.

    With particulars of the buyer it is an invoice.
    """

    number: int
    payment_id: str
    issued_at: int
    seller: str
    tax_name: str
    tax_basis_points: int
    buyer_name: str = ""
    buyer_address: str = ""
    buyer_country: str = ""
    buyer_tax_number: str = ""

    @property
    def is_invoice(self) -> bool:
        """Whether it has particulars of the buyer."""
        return bool(self.buyer_name)


_COLUMNS = ", ".join(PaymentRow._fields)
_SELECT = f"SELECT {_COLUMNS} FROM payments"
_RECEIPT = ", ".join(ReceiptRow._fields)


async def insert(tx: Transaction, row: PaymentRow) -> None:
    """Add a payment."""
    await insert_row(tx, "payments", **row._asdict())


async def lock(tx: Transaction, payment_id: str) -> None:
    """Serialise the transactions that change a payment or its returns."""
    await tx.lock("payments", [payment_id])


async def find(tx: Transaction, payment_id: str) -> PaymentRow | None:
    """Return a payment."""
    return await tx.one(PaymentRow, f"{_SELECT} WHERE id = :id", id=payment_id)


async def find_by_provider_id(tx: Transaction, provider: str, provider_id: str) -> str | None:
    """Return the identifier of the payment with a provider's identifier."""
    return await tx.one(
        str,
        "SELECT id FROM payments WHERE provider = :provider AND provider_id = :provider_id",
        provider=provider,
        provider_id=provider_id,
    )


async def find_by_charge(tx: Transaction, provider: str, charge_id: str) -> str | None:
    """Return the identifier of the payment with a charge."""
    return await tx.one(
        str,
        "SELECT id FROM payments WHERE provider = :provider AND charge_id = :charge_id",
        provider=provider,
        charge_id=charge_id,
    )


async def page(
    tx: Transaction, user_id: str, *, status: str = "", before: str, limit: int
) -> list[PaymentRow]:
    """Return the payments of a user that are older than one ("": all), the newest first.

    With a `status` only those in this state.
    """
    # The CAST leaves SQLite no index of states, in which the payments of everybody else stand.
    only, named = _in_state(status, "CAST(status AS TEXT)")
    return await tx.all(
        PaymentRow,
        f"""
        {_SELECT} WHERE user_id = :user_id AND id < :before {only}
        ORDER BY id {NEWEST_FIRST} LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
        **named,
    )


async def all_of(tx: Transaction, status: str, *, before: str, limit: int) -> list[PaymentRow]:
    """Return the payments of all users in a state ("": any) before one, the newest first."""
    only, named = _in_state(status)
    return await tx.all(
        PaymentRow,
        f"{_SELECT} WHERE id < :before {only} ORDER BY id DESC LIMIT :limit",
        before=behind(before),
        limit=limit,
        **named,
    )


def _in_state(status: str, column: str = "status") -> tuple[str, dict[str, str]]:
    """Return SQL for the filter by a state ("": any), and its value."""
    return (f"AND {column} = :status", {"status": status}) if status else ("", {})


async def recent(tx: Transaction, user_id: str, since: int) -> RecentRow:
    """Return the payments that a user has begun after a time.

    Expired and failed ones count for the number only.
    """
    row = await tx.one(
        RecentRow,
        """
        SELECT COUNT(*), CAST(COALESCE(SUM(
            CASE WHEN status IN ('open', 'paid', 'doubtful') THEN amount ELSE 0 END
        ), 0) AS BIGINT)
        FROM payments WHERE user_id = :user_id AND created_at > :since
        """,
        user_id=user_id,
        since=since,
    )
    return row or RecentRow(0, 0)


async def set_opened(
    tx: Transaction, payment_id: str, *, provider_id: str, url: str, charge_id: str | None = None
) -> bool:
    """Record the identifier that the provider gave to a payment; False if it has another one."""
    count = await tx.run(
        """
        UPDATE payments SET provider_id = :provider_id, url = :url,
            charge_id = COALESCE(charge_id, :charge_id)
        WHERE id = :id AND provider_id IS NULL
        """,
        id=payment_id,
        provider_id=provider_id,
        url=url,
        charge_id=charge_id,
    )
    return count == 1


async def claim_look(
    tx: Transaction, payment_id: str, *, before: int, now: int, next_look_at: int | None
) -> bool:
    """Claim a look at a payment; False if another one began after `before`.

    A look in the future was made with a clock that was ahead, and does not count.
    """
    count = await tx.run(
        """
        UPDATE payments SET looked_at = :now, next_look_at = :next_look_at
        WHERE id = :id AND (looked_at <= :before OR looked_at > :now)
        """,
        id=payment_id,
        now=now,
        before=before,
        next_look_at=next_look_at,
    )
    return count == 1


async def hasten(tx: Transaction, payment_id: str, at: int) -> None:
    """Plan the next look at a payment not later than at a time."""
    await tx.run(
        """
        UPDATE payments SET next_look_at = :at
        WHERE id = :id AND (next_look_at IS NULL OR next_look_at > :at)
        """,
        id=payment_id,
        at=at,
    )


async def plan(
    tx: Transaction, payment_id: str, *, planned: int | None, next_look_at: int | None
) -> None:
    """Change the time of the next look, if it is still `planned`."""
    await tx.run(
        """
        UPDATE payments SET next_look_at = :next_look_at
        WHERE id = :id AND next_look_at = CAST(:planned AS BIGINT)
        """,
        id=payment_id,
        planned=planned,
        next_look_at=next_look_at,
    )


async def move(
    tx: Transaction,
    payment_id: str,
    *,
    before: str,
    after: str,
    now: int,
    deposit_id: str | None = None,
    charge_id: str | None = None,
    doubt: str = "",
) -> bool:
    """Move a payment from one state to another; False if it was in another state."""
    count = await tx.run(
        """
        UPDATE payments SET status = :after, closed_at = :now, deposit_id = :deposit_id,
            charge_id = COALESCE(:charge_id, charge_id), doubt = :doubt
        WHERE id = :id AND status = :before
        """,
        id=payment_id,
        before=before,
        after=after,
        now=now,
        deposit_id=deposit_id,
        charge_id=charge_id,
        doubt=doubt,
    )
    return count == 1


async def accept(tx: Transaction, payment_id: str, amount: int) -> bool:
    """Accept micro-USD of a doubtful payment; False if it is not doubtful, or was accepted."""
    count = await tx.run(
        """
        UPDATE payments SET accepted = :amount
        WHERE id = :id AND status = 'doubtful' AND accepted IS NULL
        """,
        id=payment_id,
        amount=amount,
    )
    return count == 1


async def doubt_again(tx: Transaction, payment_id: str, *, before: str, after: str) -> bool:
    """Change the doubt of a doubtful payment, and take its acceptance back.

    Returns:
        False, without a change, if the payment is not doubtful, or has not the doubt `before`.
    """
    count = await tx.run(
        """
        UPDATE payments SET doubt = :after, accepted = NULL, doubts = doubts + 1
        WHERE id = :id AND status = 'doubtful' AND doubt = :before
        """,
        id=payment_id,
        before=before,
        after=after,
    )
    return count == 1


async def set_amount(tx: Transaction, payment_id: str, amount: int) -> None:
    """Change the amount of a payment that is not credited yet to the accepted one."""
    await tx.run(
        "UPDATE payments SET amount = :amount WHERE id = :id AND deposit_id IS NULL",
        id=payment_id,
        amount=amount,
    )


async def due(tx: Transaction, now: int, limit: int) -> list[str]:
    """Return the payments that are to be looked at, the longest due first."""
    return await tx.all(
        str,
        """
        SELECT id FROM payments WHERE next_look_at <= :now ORDER BY next_look_at LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def next_number(tx: Transaction) -> int:
    """Return the next number of a receipt; the numbers have no gaps.

    The counter is locked until the end of the transaction, so this is its last statement that
    locks.
    """
    number = await tx.one(
        int,
        "UPDATE receipt_numbers SET latest = latest + 1 WHERE id = 'receipts' RETURNING latest",
    )
    if number is None:
        raise LookupError("the counter of receipts is missing")
    return number


async def insert_receipt(tx: Transaction, row: ReceiptRow) -> None:
    """Add a receipt."""
    await insert_row(tx, "receipts", **row._asdict())


async def find_receipt(tx: Transaction, payment_id: str) -> ReceiptRow | None:
    """Return the receipt of a payment."""
    return await tx.one(
        ReceiptRow,
        f"SELECT {_RECEIPT} FROM receipts WHERE payment_id = :payment_id",
        payment_id=payment_id,
    )
