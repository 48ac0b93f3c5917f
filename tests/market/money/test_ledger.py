"""The double-entry ledger, on both engines: balanced, append-only, never below zero."""

import asyncio

import pytest
from support.market.market import Market

from market.base.errors import Code, MarketError
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.ledger import Movement, Payment, Transfer, TransferKind
from market.money.money import Currency
from storage.engines.errors import ConstraintError
from storage.engines.store import Store, Transaction
from storage.money import ledger as queries
from storage.money.ledger import HoldRow

USD = Currency.USD
RESOLUTION = ledger.TransferIds("c", "r")


async def balance(store: Store, account: str) -> int:
    found = await store.read(queries.balance, account)
    assert found is not None
    return found


def hold_request(user: str, amount: int, name: str = "work:1") -> HoldRow:
    return HoldRow(name, user, USD, amount, None)


def posting(market: Market, key: str, movement: Movement) -> Transfer:
    return Transfer(
        market.identifiers.new(), key, TransferKind.DEPOSIT, key, USD, (movement,), market.clock.now
    )


def transfer(market: Market, user: str, amount: int, key: str) -> Transfer:
    movement = Movement(ledger.deposits(USD), ledger.available(user, USD), amount)
    return posting(market, key, movement)


async def resolve_without_work(store: Store) -> None:
    """Keep the audit of the fixture apart from holds that stand for no session here."""
    report = await audit_ledger(store)
    assert [check.promise for check in report.checks if check.differences] in (
        [],
        ["open holds are open work"],
    )


async def test_a_deposit_moves_money_and_the_sum_stays_zero(market: Market) -> None:
    user = await market.person("12.345678")
    assert await balance(market.store, ledger.available(user, USD)) == 12_345_678
    assert await balance(market.store, ledger.deposits(USD)) == -12_345_678


@pytest.mark.both_engines
async def test_a_business_key_is_posted_once(market: Market) -> None:
    user = await market.person()
    outcomes = await asyncio.gather(
        *(market.store.write(ledger.post, transfer(market, user, 5, "gift:1")) for _ in range(20))
    )
    assert sorted(outcomes) == [False] * 19 + [True]
    assert await balance(market.store, ledger.available(user, USD)) == 5


@pytest.mark.both_engines
async def test_no_account_falls_below_zero_by_any_number_of_concurrent_payments(
    market: Market,
) -> None:
    user, other = await market.person("0.000010"), await market.person()

    async def spend(number: int) -> bool:
        movement = Movement(ledger.available(user, USD), ledger.available(other, USD), 3)
        return await market.store.write(ledger.post, posting(market, f"spend:{number}", movement))

    outcomes = await asyncio.gather(
        *(spend(number) for number in range(20)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, MarketError)]
    assert {refusal.code for refusal in refused} == {Code.INSUFFICIENT_FUNDS}
    assert outcomes.count(True) == 3
    assert len(refused) == 17
    assert await balance(market.store, ledger.available(user, USD)) == 1
    assert await balance(market.store, ledger.available(other, USD)) == 9


@pytest.mark.both_engines
async def test_transfers_in_both_directions_at_once_do_not_lock_each_other_out(
    market: Market,
) -> None:
    one, two = await market.person("1"), await market.person("1")

    async def swap(number: int) -> bool:
        source, sink = (one, two) if number % 2 else (two, one)
        movement = Movement(ledger.available(source, USD), ledger.available(sink, USD), 10)
        return await market.store.write(ledger.post, posting(market, f"s:{number}", movement))

    assert all(await asyncio.gather(*(swap(number) for number in range(60))))
    assert await balance(market.store, ledger.available(one, USD)) == 1_000_000


@pytest.mark.both_engines
async def test_a_hold_sets_aside_and_its_capture_pays_once(market: Market) -> None:
    user = await market.person("1")
    store = market.store
    await store.write(ledger.hold, hold_request(user, 600_000), transfer_id="t1", now=1)
    assert await balance(store, ledger.available(user, USD)) == 400_000
    assert await balance(store, ledger.held(user, USD)) == 600_000

    async def capture(number: int) -> HoldRow | None:
        payments = [Payment(ledger.revenue(USD), 250_000)]
        return await store.write(
            ledger.capture,
            "work:1",
            payments,
            transfer_ids=ledger.TransferIds(f"c{number}", f"r{number}"),
            now=2,
        )

    outcomes = await asyncio.gather(*(capture(number) for number in range(10)))
    assert sum(outcome is not None for outcome in outcomes) == 1
    assert await balance(store, ledger.available(user, USD)) == 750_000
    assert await balance(store, ledger.held(user, USD)) == 0
    assert await balance(store, ledger.revenue(USD)) == 250_000


async def test_a_capture_above_the_hold_is_refused_by_the_database(market: Market) -> None:
    user = await market.person("1")
    store = market.store
    await store.write(ledger.hold, hold_request(user, 100), transfer_id="t1", now=1)
    with pytest.raises(ConstraintError) as caught:
        await store.write(
            ledger.capture,
            "work:1",
            [Payment(ledger.revenue(USD), 101)],
            transfer_ids=RESOLUTION,
            now=2,
        )
    assert caught.value.constraint == "holds_captured_within"
    await store.write(ledger.capture, "work:1", [], transfer_ids=RESOLUTION, now=2)
    assert await balance(store, ledger.available(user, USD)) == 1_000_000


async def test_a_hold_of_nothing_is_a_hold(market: Market) -> None:
    user = await market.person()
    await market.store.write(ledger.hold, hold_request(user, 0), transfer_id="t1", now=1)
    resolved = await market.store.write(
        ledger.capture, "work:1", [], transfer_ids=RESOLUTION, now=2
    )
    assert resolved == HoldRow("work:1", user, USD, 0, 0)


@pytest.mark.both_engines
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET amount = amount + 1",
        "DELETE FROM entries",
        "UPDATE transfers SET business_key = 'x'",
        "DELETE FROM transfers",
        "UPDATE holds SET captured = 0 WHERE resolved_at IS NOT NULL",
    ],
)
async def test_the_database_refuses_to_change_the_past(market: Market, statement: str) -> None:
    user = await market.person("1")
    await market.store.write(ledger.hold, hold_request(user, 100), transfer_id="t1", now=1)
    payments = [Payment(ledger.revenue(USD), 50)]
    await market.store.write(ledger.capture, "work:1", payments, transfer_ids=RESOLUTION, now=2)

    async def tamper(tx: Transaction) -> None:
        await tx.run(statement)

    with pytest.raises(ConstraintError) as caught:
        await market.store.write(tamper)
    assert caught.value.constraint == "ledger_is_append_only"


@pytest.mark.parametrize("amount", [0, -5])
async def test_the_database_refuses_an_entry_that_moves_nothing_or_backwards(
    market: Market, amount: int
) -> None:
    user = await market.person("1")

    async def tamper(tx: Transaction) -> None:
        await queries.insert_transfer(
            tx, transfer_id="x", business_key="x", kind="deposit", reference="x", created_at=1
        )
        entry = queries.EntryRow(USD, ledger.available(user, USD), ledger.held(user, USD), amount)
        await queries.insert_entry(tx, "x", 0, entry)

    with pytest.raises(ConstraintError):
        await market.store.write(tamper)


async def test_the_database_refuses_to_mix_currencies(market: Market) -> None:
    user = await market.person("1")

    async def tamper(tx: Transaction) -> None:
        await queries.insert_transfer(
            tx, transfer_id="x", business_key="x", kind="deposit", reference="x", created_at=1
        )
        entry = queries.EntryRow(
            USD, ledger.available(user, USD), ledger.available(user, Currency.CREDIT), 5
        )
        await queries.insert_entry(tx, "x", 0, entry)

    with pytest.raises(ConstraintError):
        await market.store.write(tamper)
