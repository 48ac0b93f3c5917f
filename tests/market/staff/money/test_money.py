"""Refunds of deposits and corrections: their limits, their repetition and their traces."""

import asyncio
import json

import pytest
from support.base.cases import cases
from support.market.books import available, balance, refusal
from support.market.events import said
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import (
    ASKER,
    CREDIT,
    LIMITS,
    USD,
    corrected,
    deposited,
    refunded,
)

from market.base.errors import Code, MarketError
from market.money import ledger
from market.money.money import GB, MICRO
from market.staff.audit import audit_all
from market.staff.money import money
from market.staff.money.approvals import State
from storage.engines.store import Transaction
from storage.staff.base import log


async def test_a_refund_leaves_the_service_with_a_reference(market: Market) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 20)
    outcome = await refunded(market, ROOT, user, 7, deposit=deposit, reference="r-1")
    assert (outcome.state, outcome.amount) == (State.DONE, -7 * MICRO)
    assert await available(market, user) == 13 * MICRO
    assert await balance(market, ledger.deposits(USD)) == -13 * MICRO
    [event] = await said(market, user, "wallet.refunded")
    assert event == {"amount": 7.0, "currency": "usd", "reference": "r-1", "deposit": deposit}
    found = await money.history(market.context, ROOT, user, limit=10)
    assert [(each.kind, each.amount, each.reference) for each in found.changes] == [
        ("deposit_refund", -7 * MICRO, "r-1"),
        ("deposit", 20 * MICRO, deposit),
    ]
    assert found.available == {USD: 13 * MICRO, CREDIT: 0}
    [row] = await market.store.read(log.shown, action="money.refund", limit=10)
    assert (row.user_id, row.text) == (user, "asked")
    assert json.loads(row.changes)["available_usd"] == [20 * MICRO, 13 * MICRO]
    assert (await audit_all(market.store)).passed


async def test_a_correction_adds_or_takes_money_of_the_house(market: Market) -> None:
    user = await market.person()
    await corrected(market, ROOT, user, 9, currency=CREDIT, reference="c-1")
    await corrected(market, ROOT, user, -4, currency=CREDIT, reference="c-2")
    assert await available(market, user, CREDIT) == 5 * MICRO
    assert await balance(market, ledger.corrections(CREDIT)) == -5 * MICRO
    assert [each["amount"] for each in await said(market, user, "wallet.corrected")] == [9.0, -4.0]
    assert (await audit_all(market.store)).passed


async def test_a_correction_never_takes_more_than_is_available(market: Market) -> None:
    user = await market.person(usd="3")
    with pytest.raises(MarketError, match=r"has 3\.00 usd available") as refused:
        await corrected(market, ROOT, user, -4)
    assert refused.value.code is Code.INSUFFICIENT_FUNDS
    assert await available(market, user) == 3 * MICRO


async def test_spending_takes_the_oldest_deposit_first(market: Market) -> None:
    user = await market.person()
    old, new = [await deposited(market, user, 10) for _ in range(2)]
    bought = await market.bandwidth.buy(user, quota_bytes=4 * GB, price_per_gb=MICRO)
    assert await available(market, user) == 16 * MICRO
    with pytest.raises(MarketError, match=r"^6\.00 usd of this deposit") as refused:
        await refunded(market, ROOT, user, 7, deposit=old)
    assert refused.value.code is Code.REFUND_TOO_LARGE
    await refunded(market, ROOT, user, 10, deposit=new)
    await refunded(market, ROOT, user, 6, deposit=old)
    await market.bandwidth.end(user, bought.session_id)  # nothing was used: the hold comes back
    assert await refusal(refunded(market, ROOT, user, 1, deposit=new)) is Code.REFUND_TOO_LARGE
    await refunded(market, ROOT, user, 4, deposit=old)
    assert await available(market, user) == 0
    assert (await audit_all(market.store)).passed


async def test_newer_money_that_is_no_deposit_is_not_refunded(market: Market) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 10)
    await market.bandwidth.buy(user, quota_bytes=8 * GB, price_per_gb=MICRO)
    await corrected(market, ROOT, user, 5)
    assert await available(market, user) == 7 * MICRO
    assert await refusal(refunded(market, ROOT, user, 3, deposit=deposit)) is Code.REFUND_TOO_LARGE
    await refunded(market, ROOT, user, 2, deposit=deposit)


async def test_a_deposit_of_another_user_or_currency_is_not_found(market: Market) -> None:
    user, other = await market.person(), await market.person(usd="100")
    deposit = await deposited(market, user, 10)
    for attempt in (
        refunded(market, ROOT, other, 1, deposit=deposit),
        refunded(market, ROOT, user, 1, deposit=deposit, currency=CREDIT),
        refunded(market, ROOT, user, 1, deposit="none"),
        refunded(market, ROOT, user, 1, deposit="é" * 500),
    ):
        assert await refusal(attempt) is Code.DEPOSIT_NOT_FOUND


@pytest.mark.both_engines
async def test_a_repetition_posts_once_also_at_the_same_time(market: Market) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 20)
    outcomes = await asyncio.gather(
        *(refunded(market, ROOT, user, 5, deposit=deposit, reference="r") for _ in range(6)),
        *(corrected(market, ROOT, user, 2, reference="r") for _ in range(6)),
    )
    states = [each.state for each in outcomes]
    assert states.count(State.DONE) == 2
    assert states.count(State.DONE_BEFORE) == 10
    assert await available(market, user) == 17 * MICRO
    assert len({each.id for each in outcomes}) == 2


async def test_a_reference_of_another_act_is_refused(market: Market) -> None:
    user, other = await market.person(), await market.person()
    one, two = [await deposited(market, user, 20) for _ in range(2)]
    await corrected(market, ROOT, user, 2, reference="c")
    await refunded(market, ROOT, user, 2, deposit=one, reference="r")
    for attempt in (
        corrected(market, ROOT, other, 2, reference="c"),
        corrected(market, ROOT, user, 3, reference="c"),
        refunded(market, ROOT, user, 2, deposit=two, reference="r"),
    ):
        assert await refusal(attempt) is Code.REFERENCE_REUSED
    await corrected(market, ROOT, user, 2, reference="c", currency=CREDIT)


@cases("reference", ["", "a b", "eve@example.com", "x" * 65])
async def test_a_reference_that_could_name_a_person_is_refused(
    market: Market, reference: str
) -> None:
    user = await market.person()
    with pytest.raises(MarketError) as refused:
        await money.correct(
            market.context,
            ROOT,
            user,
            LIMITS,
            amount=1,
            currency=USD,
            reference=reference,
            why="x",
        )
    assert refused.value.field == "reference"


async def test_an_amount_is_not_zero_and_a_refund_not_below(market: Market) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 1)
    for attempt in (
        corrected(market, ROOT, user, 0),
        refunded(market, ROOT, user, 0, deposit=deposit),
        refunded(market, ROOT, user, -1, deposit=deposit),
    ):
        assert await refusal(attempt) is Code.INVALID_FIELD


@pytest.mark.both_engines
@pytest.mark.parametrize("race", ["refunds", "purchases"])
async def test_money_that_is_spent_meanwhile_is_not_refunded(market: Market, race: str) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 10)

    async def purchase() -> None:
        await market.bandwidth.buy(user, quota_bytes=3 * GB, price_per_gb=MICRO)

    rivals = [refunded(market, ASKER, user, 3, deposit=deposit) for _ in range(4)]
    if race == "purchases":
        rivals += [purchase() for _ in range(4)]  # type: ignore[misc]
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)
    refusals = [each for each in outcomes if isinstance(each, BaseException)]
    allowed = (Code.REFUND_TOO_LARGE, Code.INSUFFICIENT_FUNDS)
    assert all(isinstance(each, MarketError) and each.code in allowed for each in refusals)
    assert len(outcomes) - len(refusals) == 3
    assert await available(market, user) == 1 * MICRO
    assert (await audit_all(market.store)).passed


@pytest.mark.both_engines
@cases(
    "statement",
    [
        "UPDATE staff_money SET amount = 1",
        "DELETE FROM staff_money",
        "UPDATE approvals SET amount = 1",
        "UPDATE approvals SET payload = '', decision = 'refused', decided_by = 'x', decided_at = 1",
        "UPDATE approvals SET decision = 'approved', decided_by = 'unix:asker', decided_at = 1",
        "UPDATE approvals SET decision = 'approved', decided_at = 1",
        "UPDATE approvals SET decision = 'gone', decided_by = 'unix:x', decided_at = 1",
        "DELETE FROM approvals",
    ],
)
async def test_the_database_refuses_to_rewrite_amounts_and_requests(
    market: Market, statement: str
) -> None:
    user = await market.person()
    await corrected(market, ASKER, user, 5)
    await corrected(market, ASKER, user, 500)

    async def rewrite(tx: Transaction) -> None:
        await tx.run(statement)

    with pytest.raises(
        Exception,
        match=r"append_only|decided_once|by_another|decided_whole|known_decision",
    ):
        await market.store.write(rewrite)
