"""Deposits by the staff: posted once, counted, and above the limit approved by another."""

import asyncio

import pytest
from support.base.cases import cases
from support.market.events import said
from support.market.market import Market
from support.market.staff import acting, member
from support.market.staff_money import ASKER, CREDIT, LIMITS, SECOND, USD, corrected

from market.base.errors import Code, MarketError
from market.money.money import MICRO
from market.staff.audit import audit_all
from market.staff.base.roles import Author, Role, Rule
from market.staff.finding import history
from market.staff.money import deposits, second_person
from market.staff.money.approvals import Outcome, State
from storage.engines.store import Transaction


async def pay(
    market: Market, author: Author, user: str, whole: int, reference: str = "", credit: int = 0
) -> list[Outcome]:
    """Pay whole units into a user's wallet."""
    return await deposits.deposit(
        market.context,
        author,
        user,
        LIMITS,
        amounts={USD: whole * MICRO, CREDIT: credit * MICRO},
        reference=reference or market.identifiers.new(),
        why="paid by bank",
    )


async def has(market: Market, user: str) -> tuple[int, int]:
    [balances] = [each for each in [await market.store.read(_balances, user)] if each]
    return balances


async def _balances(tx: Transaction, user: str) -> tuple[int, int]:
    rows = dict(
        await tx.all(
            lambda *row: row,
            "SELECT currency, balance FROM accounts WHERE user_id = :user AND kind = 'available'",
            user=user,
        )
    )
    return rows["usd"] // MICRO, rows["credit"] // MICRO


@pytest.mark.both_engines
async def test_a_deposit_is_one_act_for_each_currency_and_posted_once(market: Market) -> None:
    user = await market.person()
    for name in (user, "PERSON1@example.com", "person1"):
        done = await pay(market, ASKER, name, 20, "invoice-1", credit=7)
        assert {each.user_id for each in done} == {user}
    assert [each.state for each in done] == [State.DONE_BEFORE] * 2
    assert await has(market, user) == (20, 7)
    assert await said(market, user, "wallet.deposited") == [
        {"amount": 20.0, "currency": "usd", "reference": "invoice-1"},
        {"amount": 7.0, "currency": "credit", "reference": "invoice-1"},
    ]
    rows = await history.read(market.context, ASKER, action="money.deposit", limit=10)
    assert len(rows) == 6
    assert rows[-1].text == "paid by bank"
    with pytest.raises(MarketError) as refused:
        await pay(market, ASKER, user, 21, "invoice-1")
    assert refused.value.code is Code.REFERENCE_REUSED
    assert (await audit_all(market.store)).passed


async def test_deposits_count_with_corrections_and_wait_above_the_limit(market: Market) -> None:
    first, second = await market.person(), await market.person()
    await pay(market, ASKER, first, 30)
    [waits] = await pay(market, ASKER, second, 21, "large")
    assert waits.state is State.WAITS  # of its author
    assert (await corrected(market, ASKER, second, 21)).state is State.WAITS
    [waits] = await pay(market, SECOND, first, 21, "of-the-receiver")
    assert waits.state is State.WAITS
    assert await has(market, second) == (0, 0)
    with pytest.raises(MarketError, match="yourself"):
        await second_person.approve(market.context, SECOND, waits.id)
    approved = await second_person.approve(market.context, ASKER, waits.id)
    assert (approved.state, await has(market, first)) == (State.DONE, (51, 0))
    [again] = await pay(market, SECOND, first, 21, "of-the-receiver")
    assert again.state is State.DONE_BEFORE
    assert (await audit_all(market.store)).passed


@pytest.mark.both_engines
async def test_one_reference_at_many_nodes_is_one_deposit(market: Market) -> None:
    user = await market.person()
    done = await asyncio.gather(*(pay(market, ASKER, user, 5, "one") for _ in range(8)))
    states = sorted(each.state for [each] in done)
    assert states == sorted([State.DONE, *[State.DONE_BEFORE] * 7])
    assert await has(market, user) == (5, 0)


async def test_a_rule_of_the_daemon_has_no_limit_and_uses_up_none(market: Market) -> None:
    user = await market.person()
    await pay(market, Rule("demonstration"), user, 1_000)
    [done] = await pay(market, ASKER, user, 50)
    assert done.state is State.DONE
    assert (await audit_all(market.store)).passed


@cases(
    ("whole", "reference", "name", "code"),
    [
        (0, "r", "person1", Code.INVALID_FIELD),
        (-1, "r", "person1", Code.INVALID_FIELD),
        (1, "a b", "person1", Code.INVALID_FIELD),
        (1, "eve@example.com", "person1", Code.INVALID_FIELD),
        (1, "r", "nobody", Code.USER_NOT_FOUND),
        (10**12 + 1, "r", "person1", Code.AMOUNT_TOO_LARGE),
        (10**30, "r", "person1", Code.AMOUNT_TOO_LARGE),
    ],
)
async def test_a_refused_deposit_leaves_nothing(
    market: Market, whole: int, reference: str, name: str, code: Code
) -> None:
    await market.person()
    with pytest.raises(MarketError) as refused:
        await pay(market, ASKER, name, whole, reference)
    assert refused.value.code is code
    if code is Code.AMOUNT_TOO_LARGE:
        assert "an account holds 1000000000000 USD or credits at most" in refused.value.message
    assert await history.read(market.context, ASKER, limit=1) == []


async def test_a_deposit_of_an_earlier_version_is_no_act_and_can_be_repeated(
    market: Market,
) -> None:
    user = await market.person()
    assert await market.deposit("person1@example.com", 5 * MICRO, "old")
    [again] = await pay(market, ASKER, user, 5, "old")
    assert again.state is State.DONE_BEFORE
    await pay(market, ASKER, user, 5, "new")
    assert (await audit_all(market.store)).passed
    await market.deposit("person1@example.com", 5 * MICRO, "past-the-staff")
    [found] = [check for check in (await audit_all(market.store)).checks if check.differences]
    assert found.promise.startswith("every deposit, refund and correction is one act")
    assert "past-the-staff" in str(found.differences)


async def test_a_member_pays_no_account_of_their_own(market: Market) -> None:
    finance = await member(market, Role.FINANCE)
    own, _ = await market.accounts.register(
        username="me", email=finance.email, password="long enough"
    )
    with pytest.raises(MarketError, match="account of your own"):
        await pay(market, acting(finance), own.profile.user_id, 1)
