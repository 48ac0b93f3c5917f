"""Payouts as the staff decides, sends and books them.

An approval above the limit waits for a second person, and so does the return of a payout that was
paid. A member decides no payout of an account with the member's own e-mail address. An export
writes the file into the transaction that marks its payouts as sent, so the same file can be written
again at any time.
"""

import hashlib
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.states import PayoutStatus
from market.base.user_fields import email_key
from market.events.context import Context
from market.money.money import Currency
from market.payouts import files, steps
from market.payouts.details import Details, opened
from market.payouts.files import Debtor, Format, Item, Line, Sheet
from market.payouts.rules import Earnings, earnings_of
from market.payouts.terms import REASONS_OF_RETURNS, FailReason, MethodKind, RejectReason
from market.staff.base.acts import (
    BATCH,
    PAYOUT,
    USER,
    Act,
    Changes,
    act,
    permit,
    reason,
    require_name,
)
from market.staff.base.roles import Action, Author, Member
from market.staff.finding.users import find
from market.staff.money import approvals
from market.staff.money.approvals import Amount, Limits, Outcome, Posting, State
from market.staff.money.second_person_limit import do_or_ask
from storage.accounts import users
from storage.engines.store import Transaction
from storage.payouts import batches as batch_queries
from storage.payouts import methods as method_queries
from storage.payouts import payouts as queries
from storage.payouts import sources as source_queries
from storage.payouts.batches import BatchRow
from storage.payouts.methods import MethodRow
from storage.payouts.payouts import PayoutRow
from storage.payouts.sources import BuyerRow, SignsRow
from storage.staff.base import staff as staff_queries

# Bounds the transaction of an export.
BATCH_MAX = 500
SOURCES_MAX = 20
NO_DEBTOR = Debtor()
# Errors that refuse a line of an import, and leave the other lines.
_REFUSED_LINES = frozenset((Code.PAYOUT_STATE, Code.NOT_PERMITTED, Code.REFERENCE_REUSED))
BY_FORMAT = {
    Format.CSV: (MethodKind.BANK, MethodKind.PAYPAL, MethodKind.MANUAL),
    Format.PAIN_3: (MethodKind.BANK,),
    Format.PAIN_9: (MethodKind.BANK,),
}


class Source(Struct, frozen=True):
    """A buyer of a user's work, with the signs that both are one person."""

    buyer: BuyerRow
    signs: SignsRow
    has_deposited: bool


class Shown(Struct, frozen=True):
    """All that a decision about a payout is founded on.

    `sources` are the buyers who paid for the user's newest work, the largest sum first. A circular
    one may be the user, who paid with a bonus.
    """

    row: PayoutRow
    method: MethodRow
    details: Details
    earnings: dict[Currency, Earnings]
    sources: list[Source]
    is_verified: bool


class Doubt(Struct, frozen=True):
    """A doubtful batch, and its payouts."""

    batch: BatchRow
    rows: list[PayoutRow]


class Exported(Struct, frozen=True):
    """A batch and its file; no batch when no payout waits."""

    batch: BatchRow | None
    content: str


class Imported(Struct, frozen=True):
    """A line of a list of outcomes, and its result."""

    line: Line
    result: str

    @property
    def is_refused(self) -> bool:
        """Whether the line could not be used."""
        return self.result.startswith("refused")

    @property
    def waits(self) -> bool:
        """Whether the line waits for a second person."""
        return self.result.startswith("waits")


async def listed(
    context: Context, author: Author, state: PayoutStatus, *, after: str, limit: int
) -> list[PayoutRow]:
    """Return payouts in a state, the oldest first.

    Raises:
        MarketError: `not_permitted`.
    """

    async def unit(tx: Transaction) -> list[PayoutRow]:
        await permit(tx, author, Action.PAYOUT_LIST)
        return await queries.in_state(tx, state, after=after, limit=limit)

    return await context.store.read(unit)


async def doubtful(context: Context, author: Author, *, limit: int) -> list[Doubt]:
    """Return the batches that a provider may have sent or not, the oldest first.

    Raises:
        MarketError: `not_permitted`.
    """

    async def unit(tx: Transaction) -> list[Doubt]:
        await permit(tx, author, Action.PAYOUT_LIST)
        found = await batch_queries.doubtful(tx, limit=limit)
        return [Doubt(batch, await queries.of_batch(tx, batch.id)) for batch in found]

    return await context.store.read(unit)


async def show(context: Context, author: Author, payout_id: str, sealing: Sealing) -> Shown:
    """Return a payout with its details; the log records the look.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payout_not_found`.
    """
    row = await _find(context, payout_id)

    async def look(tx: Transaction) -> tuple[Shown, Changes]:
        method = await _method_of(tx, row)
        found = Shown(
            row=row,
            method=method,
            details=opened(sealing, method.sealed),
            earnings={each: await earnings_of(tx, row.user_id, each) for each in Currency},
            sources=await _sources(tx, row.user_id),
            is_verified=await queries.is_verified(tx, row.user_id),
        )
        return found, {}

    new = Act(author, Action.PAYOUT_VIEW, PAYOUT, row.id, row.user_id)
    return await context.store.write(act, context, new, look)


async def approve(
    context: Context, author: Author, payout_id: str, limits: Limits, why: str = ""
) -> Outcome:
    """Approve a payout, or ask a second person; again it changes nothing.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payout_not_found`, `payout_state`,
            `payout_not_permitted`.
    """
    row = await _find(context, payout_id)
    new = Amount(
        Action.PAYOUT_APPROVE,
        f"payout:{row.id}:approve",
        row.user_id,
        Currency.USD,
        row.usd,
        {"payout": row.id},
    )

    async def check() -> None:
        if row.state != PayoutStatus.REQUESTED:
            raise MarketError(Code.PAYOUT_STATE, f"The payout is {row.state}.")

    async def change(tx: Transaction) -> tuple[Outcome, Changes]:
        await _require_other(tx, author, row.user_id)
        return await do_or_ask(tx, context, author, new, limits, check=check, post=post)

    text = reason(why) if why else None
    made = Act(author, Action.PAYOUT_APPROVE, PAYOUT, row.id, row.user_id, text)
    return await context.store.write(act, context, made, change)


async def post(
    tx: Transaction, context: Context, new: Amount, posting: Posting
) -> tuple[Outcome, Changes]:
    """Approve a payout within an act, if its state and its user's rules permit it now.

    Raises:
        MarketError: `payout_state`, `payout_not_permitted`.
    """
    payout_id = str(new.payload["payout"])
    row = await queries.find(tx, payout_id)
    if row is None or row.state != PayoutStatus.REQUESTED:
        raise MarketError(Code.PAYOUT_STATE, f"The payout is {row.state if row else 'unknown'}.")
    await steps.approve(tx, context, payout_id)
    outcome = await approvals.record(
        tx, context, posting.author, new, act_id=payout_id, approval_id=posting.approval_id
    )
    return outcome, {"state": (PayoutStatus.REQUESTED, PayoutStatus.APPROVED)}


async def reject(
    context: Context, author: Author, payout_id: str, code: RejectReason, why: str = ""
) -> PayoutRow:
    """Reject a payout that was not sent; its user gets the code of the reason.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payout_not_found`, `payout_state`.
    """
    row = await _find(context, payout_id)

    async def change(tx: Transaction) -> tuple[PayoutRow, Changes]:
        await _require_other(tx, author, row.user_id)
        after = await steps.reject(tx, context, row.id, code)
        return after, {"state": (row.state, after.state), "reason": (None, code)}

    text = reason(why) if why else None
    new = Act(author, Action.PAYOUT_REJECT, PAYOUT, row.id, row.user_id, text)
    return await context.store.write(act, context, new, change)


class _NothingApprovedError(Exception):
    """No approved payout waits: the transaction is rolled back, and with it the row of the log."""


async def export(
    context: Context,
    author: Author,
    sealing: Sealing,
    form: Format,
    debtor: Debtor = NO_DEBTOR,
    *,
    but: MethodKind | None = None,
) -> Exported:
    """Send the oldest approved payouts in one batch, and return its file.

    Without such a payout nothing happens, so the log has no row. After an erasure a payout has
    no details, and is left out: the staff rejects it.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        sealing: opens the details of payout methods, and seals the stored file.
        form: the format of the file.
        debtor: the account that pays, for a message to a bank.
        but: methods that a provider pays by itself.

    Raises:
        MarketError: `not_permitted`, `invalid_field`.
    """
    files.require_rate(form, debtor.eur_rate)
    now, batch_id = context.now(), context.identifiers.new()

    async def change(tx: Transaction) -> tuple[Exported, Changes]:
        kinds = [kind for kind in BY_FORMAT[form] if kind is not but]
        found = await steps.lock_approved(tx, kinds, BATCH_MAX)
        rows = [row for row in found if (await _method_of(tx, row)).sealed]
        if not rows:
            raise _NothingApprovedError
        items = [await _item(tx, row, sealing) for row in rows]
        if form is Format.CSV:
            sheet = files.as_csv(items)
        else:
            sheet = files.as_pain(items, debtor, form, batch_id, now)
        sealed = sealing.close(msgspec.json.encode((sheet.head, sheet.tail)))
        net = sum(row.net for row in rows)
        batch = BatchRow(batch_id, form, len(rows), net, sealed, now)
        await batch_queries.insert(tx, batch)
        for row in rows:
            await steps.send(tx, context, row.id, batch_id)
            line = sealing.close(sheet.lines[row.id].encode())
            await batch_queries.add_line(tx, row.id, line)
        return Exported(batch, sheet.text), {"payouts": (None, len(rows)), "usd": (None, net)}

    new = Act(author, Action.PAYOUT_EXPORT, BATCH, batch_id)
    try:
        return await context.store.write(act, context, new, change)
    except _NothingApprovedError:
        return Exported(None, "")


async def export_again(
    context: Context, author: Author, sealing: Sealing, batch_id: str
) -> Exported:
    """Return the file of a batch as it was written first; the log records it.

    The lines of users who are erased are left out.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payout_batch_not_found`.
    """
    require_name(batch_id)

    async def look(tx: Transaction) -> tuple[Exported, Changes]:
        batch = await batch_queries.find(tx, batch_id.lower())
        content = None if batch is None else await _content(tx, batch, sealing)
        if batch is None or content is None:
            raise MarketError(Code.PAYOUT_BATCH_NOT_FOUND)
        return Exported(batch, content), {"again": (None, True)}

    new = Act(author, Action.PAYOUT_EXPORT, BATCH, batch_id.lower())
    return await context.store.write(act, context, new, look)


async def _content(tx: Transaction, batch: BatchRow, sealing: Sealing) -> str | None:
    """Return the file of a batch; None without one, or with another key.

    Batches from before migration 61 have no lines: their file is sealed in one piece. They need no
    conversion, since this returns the piece, and an erasure deletes it as a whole: the lines of
    other users are lost with it, and of the erased user nothing is left.
    """
    content = None if batch.sealed_content is None else sealing.open(batch.sealed_content)
    rows = await batch_queries.lines(tx, batch.id)
    if content is None or not rows:
        return None if content is None else content.decode()
    opened_lines = {row.payout_id: sealing.open(row.sealed) for row in rows}
    lines = {name: line.decode() for name, line in opened_lines.items() if line is not None}
    head, tail = msgspec.json.decode(content, type=tuple[str, str])
    sheet = Sheet(head, lines, tail)
    return (sheet if len(lines) == batch.payouts else files.shortened(sheet)).text


async def book(
    context: Context, author: Author, lines: Sequence[Line], limits: Limits
) -> list[Imported]:
    """Book the outcomes of payouts, each in a transaction of its own.

    A line that was booked before changes nothing, so a file can be imported again, also after an
    import that ended in the middle. A line that returns a paid payout above the limit waits for a
    second person: otherwise one person could have a payout paid twice.

    Raises:
        MarketError: `not_permitted`.
    """

    async def check(tx: Transaction) -> None:
        await permit(tx, author, Action.PAYOUT_IMPORT)

    await context.store.read(check)
    return [Imported(line, await _book(context, author, line, limits)) for line in lines]


async def book_file(
    context: Context, author: Author, content: bytes, limits: Limits
) -> list[Imported]:
    """Book the outcomes in a file (`files.read_outcomes`); the log has a row for the file as well.

    Raises:
        MarketError: `not_permitted`; `payout_file_invalid`: then nothing is booked.
    """

    async def change(_: Transaction) -> tuple[list[Line], Changes]:
        lines = files.read_outcomes(content)
        digest = hashlib.sha256(content).hexdigest()
        return lines, {"file": (None, digest), "lines": (None, len(lines))}

    new = Act(author, Action.PAYOUT_IMPORT, BATCH)
    return await book(context, author, await context.store.write(act, context, new, change), limits)


async def post_return(
    tx: Transaction, context: Context, new: Amount, posting: Posting
) -> tuple[Outcome, Changes]:
    """Return the money of a paid payout within an act, if it is paid now.

    Raises:
        MarketError: `payout_state`.
    """
    payout_id, why = str(new.payload["payout"]), FailReason(str(new.payload["reason"]))
    await tx.lock("payouts", [payout_id])
    await _require_paid(tx, payout_id)
    await steps.fail(tx, context, payout_id, why)
    outcome = await approvals.record(
        tx, context, posting.author, new, act_id=payout_id, approval_id=posting.approval_id
    )
    return outcome, {"state": (PayoutStatus.PAID, PayoutStatus.FAILED), "reason": (None, why)}


async def verify(
    context: Context, author: Author, name: str, why: str, *, is_checked: bool = True
) -> bool:
    """Record that a user's identity was checked, or remove the record; False if nothing changed.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`.
    """
    text, user = reason(why), await find(context, author, name)

    async def change(tx: Transaction) -> tuple[bool, Changes]:
        await _require_other(tx, author, user.id)
        if is_checked:
            is_new = await queries.set_verified(tx, user.id, now=context.now())
        else:
            is_new = await queries.clear_verified(tx, user.id)
        return is_new, {"verified": (is_new != is_checked, is_checked)}

    new = Act(author, Action.USER_VERIFY, USER, user.id, user.id, text)
    return await context.store.write(act, context, new, change)


async def _book(context: Context, author: Author, line: Line, limits: Limits) -> str:
    row, after = await context.store.read(queries.find, line.payout_id), line.outcome
    if row is None:
        return "refused: there is no such payout"
    if row.net != line.net:
        return "refused: the payout has another amount"
    if row.state == after:
        return _again(row, line)
    if row.state == PayoutStatus.SENT and await context.store.read(_is_of_provider, row):
        return "refused: its provider reports the outcome"

    async def change(tx: Transaction) -> tuple[str, Changes]:
        await tx.lock("payouts", [row.id])
        current = await queries.find(tx, row.id)
        assert current is not None  # noqa: S101 - payouts are never deleted
        if line.reason is not None and current.state == PayoutStatus.PAID:
            return await _return(tx, context, author, current, line.reason, limits)
        await _end(tx, context, current, line)
        return str(after), {"state": (current.state, str(after)), "reason": (None, line.reason)}

    new = Act(author, Action.PAYOUT_IMPORT, PAYOUT, row.id, row.user_id)
    try:
        return await context.store.write(act, context, new, change)
    except MarketError as error:
        if error.code not in _REFUSED_LINES:
            raise
        return f"refused: {error.message}"


def _again(row: PayoutRow, line: Line) -> str:
    """Return the result of a line about an outcome that is booked."""
    if row.reason != line.reason:
        return f"refused: the payout failed before, as {row.reason}"
    return f"{line.outcome} before"


async def _end(tx: Transaction, context: Context, row: PayoutRow, line: Line) -> None:
    """Book the outcome of a payout that was sent."""
    if line.reason is None:
        await steps.pay(tx, context, row.id)
    else:
        await steps.fail(tx, context, row.id, line.reason)
    if row.batch_id is not None:
        await batch_queries.settle_decided(tx, row.batch_id, now=context.now())


async def _return(
    tx: Transaction,
    context: Context,
    author: Author,
    row: PayoutRow,
    why: FailReason,
    limits: Limits,
) -> tuple[str, Changes]:
    """Return a paid payout, or ask a second person; return the result of the line.

    Raises:
        MarketError: `payout_state`, for a reason that a paid payout cannot have.
    """
    if why not in REASONS_OF_RETURNS:
        names = " or ".join(REASONS_OF_RETURNS)
        raise MarketError(Code.PAYOUT_STATE, f"A paid payout comes back as {names}, not as {why}.")
    new = Amount(
        Action.PAYOUT_IMPORT,
        f"payout:{row.id}:return",
        row.user_id,
        Currency.USD,
        row.usd,
        {"payout": row.id, "reason": why},
    )
    check = partial(_require_paid, tx, row.id)
    outcome, changes = await do_or_ask(
        tx, context, author, new, limits, check=check, post=post_return
    )
    if outcome.state is State.WAITS:
        return f"waits for a second person: approval {outcome.id}", changes
    return str(PayoutStatus.FAILED), changes


async def _require_paid(tx: Transaction, payout_id: str) -> None:
    row = await queries.find(tx, payout_id)
    if row is None or row.state != PayoutStatus.PAID:
        raise MarketError(Code.PAYOUT_STATE, f"The payout is {row.state if row else 'unknown'}.")


async def _is_of_provider(tx: Transaction, row: PayoutRow) -> bool:
    """Return whether a provider sends a payout; a person's word beside it could pay it twice.

    A doubtful batch is left to persons.
    """
    batch = None if row.batch_id is None else await batch_queries.find(tx, row.batch_id)
    if batch is None or batch.format in set(Format):
        return False
    return batch.doubtful_at is None


async def _find(context: Context, payout_id: str) -> PayoutRow:
    require_name(payout_id)
    row = await context.store.read(queries.find, payout_id.lower())
    if row is None:
        raise MarketError(Code.PAYOUT_NOT_FOUND, "There is no such payout.")
    return row


async def _sources(tx: Transaction, user_id: str) -> list[Source]:
    return [
        Source(
            buyer,
            await source_queries.signs(tx, user_id, buyer.buyer_id),
            await source_queries.has_deposited(tx, buyer.buyer_id),
        )
        for buyer in await source_queries.buyers(tx, user_id, limit=SOURCES_MAX)
    ]


async def _method_of(tx: Transaction, row: PayoutRow) -> MethodRow:
    method = await method_queries.find(tx, row.method_id)
    assert method is not None  # noqa: S101 - a key of the schema
    return method


async def _item(tx: Transaction, row: PayoutRow, sealing: Sealing) -> Item:
    method = await _method_of(tx, row)
    details = opened(sealing, method.sealed)
    return Item(row.id, MethodKind(method.kind), details, row.net)


async def _require_other(tx: Transaction, author: Author, user_id: str) -> None:
    """Refuse a member whose own account it is, by the e-mail address."""
    if not isinstance(author, Member):
        return
    member = await staff_queries.find(tx, author.staff_id)
    user = await users.find(tx, user_id)
    if member and user and email_key(member.email) == email_key(user.email):
        raise MarketError(Code.NOT_PERMITTED, "This is your own account: another member decides.")
