"""Earnings and payouts of users in a marketplace without a network."""

from msgspec.structs import replace

from market.base.states import PayoutStatus
from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import MICRO, Currency
from market.payouts import lines, steps
from market.payouts.details import Details
from market.payouts.files import Format, Line, Outcome
from market.payouts.lines import Lines, Term
from market.payouts.payouts import Request
from market.payouts.rules import Earnings, earnings_of, quote
from market.payouts.terms import MethodKind, RejectReason
from market.staff.base.roles import Action, Author
from market.staff.money import paying
from storage.accounts import users
from storage.engines.store import Transaction, insert_row
from storage.money import ledger as ledger_queries
from storage.payouts import batches
from storage.payouts import payouts as queries
from storage.payouts.batches import BatchRow
from storage.payouts.methods import MethodRow
from storage.payouts.payouts import PayoutRow
from support.market.exits import exit_device, through
from support.market.jobs import running
from support.market.market import PAYOUT_METHODS, Market

WEEK = 7 * 86_400
IBAN = "DE89 3704 0044 0532 0130 00"
BANK = Details(holder="Ada Lovelace", iban=IBAN)
GB = 1_000_000_000


async def earn(market: Market, user: str, credit: int, buyer: str | None = None) -> str:
    """Let a user's device earn credits, less the fee of a tenth; return the buyer."""
    buyer = buyer or await market.person(credit=str(credit))
    job_id, device = await running(market, buyer, user, price=credit * MICRO)
    await market.jobs.complete(device, job_id, "done")
    return buyer


async def reward(market: Market, user: str, credit: int) -> None:
    """Reward a photo of a user."""
    new_id, now = market.identifiers.new, market.clock.seconds()

    async def unit(tx: Transaction) -> None:
        movement = Movement(
            ledger.rewards(Currency.CREDIT), ledger.available(user, Currency.CREDIT), credit * MICRO
        )
        reward_id = new_id()
        key, kind = f"goodness:{reward_id}", TransferKind.REWARD
        transfer = Transfer(new_id(), key, kind, "goodness", Currency.CREDIT, (movement,), now)
        await ledger.post(tx, transfer)
        await insert_row(
            tx, "goodness_rewards", id=reward_id, user_id=user, day=1, category="help",
            confidence=1.0, model="m", amount=credit * MICRO, file_hash=reward_id, created_at=now,
        )  # fmt: skip

    await market.store.write(unit)


async def earn_usd(market: Market, user: str, buyer: str | None = None) -> None:
    """Let a user's exit earn 0.60 USD by a gigabyte, and wait until it is available."""
    made, session = await exit_device(market, user), await through(market, buyer=buyer)
    await session.report(GB, (made, GB))
    await session.end()
    market.clock.now += WEEK
    await market.exit_payouts.pay_due()


async def earned_part(market: Market, user: str, currency: Currency = Currency.CREDIT) -> int:
    """Return the earned part of a user's available balance, in micro-units."""
    account = ledger.available(user, currency)
    return (await market.store.read(ledger_queries.balances, account)).earned


async def earnings(market: Market, user: str, currency: Currency = Currency.CREDIT) -> Earnings:
    """Return the terms of a user's earnings."""
    return await market.store.read(earnings_of, user, currency)


async def check_lines(market: Market, user: str, limit: int = 1_000) -> None:
    """Add the lines of each term up, in parts of `limit`, and compare them with the term."""

    async def unit(tx: Transaction) -> None:
        for currency in Currency:
            found = await earnings_of(tx, user, currency)
            for term in Term:
                total, before, seen = 0, "", set[str]()
                while part := await lines.page(tx, user, Lines(currency, term, before, limit)):
                    ids = [line.id for line in part]
                    assert ids == sorted({*ids} - seen, reverse=True)
                    seen |= {*ids}
                    total += sum(line.amount for line in part)
                    before = ids[-1]
                assert total == getattr(found, term), (currency, term)

    await market.store.read(unit)


async def confirm(market: Market, user: str) -> None:
    """Confirm a user's e-mail address."""
    await market.store.write(users.set_email_verified, user, market.clock.seconds())


async def add_method(market: Market, user: str, details: Details = BANK) -> MethodRow:
    """Add a bank account that can be used now."""
    row = await market.payouts.add_method(user, MethodKind.BANK, details)
    market.clock.now += market.payouts.terms.method_wait_seconds
    return row


async def earner(market: Market, credit: int = 2_000) -> tuple[str, MethodRow]:
    """Return a user who meets all rules, with earned credits, and the user's bank account."""
    user = await market.person()
    await confirm(market, user)
    await earn(market, user, credit)
    market.clock.now += WEEK
    return user, await add_method(market, user)


async def request(market: Market, user: str, method: MethodRow, credit: int = 1_000) -> PayoutRow:
    """Request a payout of credits."""
    new = Request(Currency.CREDIT, credit * MICRO, method.id)
    return await market.payouts.request(user, new)


async def state_of(market: Market, payout_id: str) -> str:
    """Return the state of a payout."""
    row = await market.store.read(queries.find, payout_id)
    assert row is not None
    return row.state


async def plain_payout(market: Market, user: str, credit: int = 1_000) -> PayoutRow:
    """Begin a payout of a user, without a look at the rules."""
    await earn(market, user, credit * 2)
    methods = await market.payouts.methods(user)
    method = methods[0] if methods else await add_method(market, user)
    terms = market.payouts.terms
    price = quote(terms, Currency.CREDIT, credit * MICRO)
    row = steps.drafted(market.context, user, method.id, price, terms)
    await market.store.write(steps.begin, market.context, row)
    return row


async def approved(market: Market, user: str, credit: int = 1_000) -> PayoutRow:
    """Begin a payout, and approve it."""
    row = await plain_payout(market, user, credit)
    return await market.store.write(steps.approve, market.context, row.id)


async def send(market: Market, row: PayoutRow) -> None:
    """Send a payout in a batch of its own, without an act of the staff."""
    new = BatchRow(market.identifiers.new(), "csv", 1, row.net, "", market.clock.now)

    async def unit(tx: Transaction) -> None:
        await batches.insert(tx, new)
        await steps.send(tx, market.context, row.id, new.id)

    await market.store.write(unit)


async def payouts_in_each_state(market: Market, user: str) -> dict[str, str]:
    """Make payouts of a user that are open, and two payout methods; return all by their state.

    The clock stays. Earned money is left.
    """
    terms = market.payouts.terms
    market.payouts.terms = replace(terms, method_wait_seconds=0)
    await confirm(market, user)
    methods = [await market.payouts.add_method(user, MethodKind.BANK, BANK) for _ in range(2)]
    market.payouts.terms = terms
    rows = [await plain_payout(market, user) for _ in range(3)]
    for row in rows[1:]:
        await market.store.write(steps.approve, market.context, row.id)
    await send(market, rows[2])
    states = {"requested": rows[0].id, "approved": rows[1].id, "sent": rows[2].id}
    return {**states, "method": methods[0].id, "other method": methods[1].id}


async def _list(market: Market, author: Author, user: str) -> None:
    await paying.listed(market.context, author, PayoutStatus.REQUESTED, after="", limit=1)


async def _show(market: Market, author: Author, user: str) -> None:
    row = await plain_payout(market, user)
    await paying.show(market.context, author, row.id, PAYOUT_METHODS)


async def _approve(market: Market, author: Author, user: str) -> None:
    row = await plain_payout(market, user)
    limits = dict.fromkeys(Currency, 10**12)
    await paying.approve(market.context, author, row.id, limits)


async def _reject(market: Market, author: Author, user: str) -> None:
    row = await plain_payout(market, user)
    await paying.reject(market.context, author, row.id, RejectReason.TERMS_BROKEN)


async def _export(market: Market, author: Author, user: str) -> None:
    await approved(market, user)
    await paying.export(market.context, author, PAYOUT_METHODS, Format.CSV)


async def _import(market: Market, author: Author, user: str) -> None:
    row = await approved(market, user)
    await send(market, row)
    line = Line(2, row.id, row.net, Outcome.PAID, None)
    await paying.book(market.context, author, [line], dict.fromkeys(Currency, 10**12))


async def _verify(market: Market, author: Author, user: str) -> None:
    await paying.verify(market.context, author, user, "saw the passport")


# Each operation on payouts, as a member of the staff tries it on a user.
PAYOUT_ACTS = {
    Action.PAYOUT_LIST: _list,
    Action.PAYOUT_VIEW: _show,
    Action.PAYOUT_APPROVE: _approve,
    Action.PAYOUT_REJECT: _reject,
    Action.PAYOUT_EXPORT: _export,
    Action.PAYOUT_IMPORT: _import,
    Action.USER_VERIFY: _verify,
}
