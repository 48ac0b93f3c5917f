"""Closing: its refusals, its effects, and the login that takes it back."""

import asyncio
import json

import pytest
from support.market.books import available, refusal
from support.market.events import said
from support.market.jobs import device_of, wanted
from support.market.leaving import tools
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import NOTHING

from market.accounts.accounts import Caller
from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.erasure import erasing
from market.erasure.closing import TAKE_BACK_SECONDS
from market.events.catalogue import timestamp
from market.money.money import GB, MICRO, Currency
from market.staff.audit import audit_all
from market.staff.base.roles import Machine
from market.staff.finding import history
from market.staff.money import approvals, deposits, second_person
from market.staff.money.approvals import State
from storage.accounts import closures

PASSWORD = "long enough"


async def logged_in(market: Market, number: int = 1) -> Caller:
    """Log a person of the market in."""
    login = await market.accounts.login(email=f"person{number}@example.com", password=PASSWORD)
    return await market.accounts.authenticate(login.token)


async def close(market: Market, caller: Caller, *, waives: bool = False) -> None:
    await market.leaving.closing.close(caller, PASSWORD, waives=waives)


async def state_of(market: Market, user: str) -> str | None:
    row = await market.store.read(closures.find, user)
    return None if row is None else row.state


async def test_closing_ends_all_and_a_login_takes_it_back(market: Market) -> None:
    user = await market.person()
    caller = await logged_in(market)
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    await market.webhooks.create(user, url="https://a.example/", types=["*"], description="")
    made = await market.devices.create(user, name="rig", device_type="server", min_price_usd=None)
    await market.devices.authenticate(made.token)
    await close(market, caller)
    assert await market.accounts.is_current(caller) is False
    assert await refusal(market.keys.authenticate(key.key, "127.0.0.1")) is Code.UNAUTHORIZED
    assert await refusal(market.devices.authenticate(made.token)) is Code.WORKER_UNAUTHORIZED
    [hook] = await market.webhooks.all_of(user)
    assert hook.disabled_reason == "closed"
    bought = market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert await refusal(bought) is Code.ACCOUNT_CLOSED
    erased_after = timestamp(market.clock.now + TAKE_BACK_SECONDS)
    assert await said(market, user, "account.closed") == [{"erased_after": erased_after}]
    market.clock.now += TAKE_BACK_SECONDS - 1
    assert await market.leaving.erasures.erase_due() == 0
    again = await logged_in(market)
    assert await state_of(market, user) == "taken_back"
    closed_at = timestamp(market.clock.now - TAKE_BACK_SECONDS + 1)
    assert await said(market, user, "account.reopened") == [{"closed_at": closed_at}]
    market.clock.now += TAKE_BACK_SECONDS
    assert await market.leaving.erasures.erase_due() == 0
    again = await logged_in(market)
    await close(market, again)
    assert await state_of(market, user) == "closed"


@pytest.mark.both_engines
async def test_closing_ends_a_deposit_that_waits_for_a_second_person(market: Market) -> None:
    user = await market.person()
    caller = await logged_in(market)
    waiting = await waiting_deposit(market, user)
    await close(market, caller)
    assert await state_of(market, user) == "closed"
    [act] = await history.read(market.context, ROOT, user=user, action="approval.refuse", limit=9)
    assert act.via == "rule"
    assert json.loads(act.changes) == {f"approval {waiting}": ["waits", "moot"]}
    approval = second_person.approve(market.context, Machine("second"), waiting)
    assert await refusal(approval) is Code.APPROVAL_OVER
    [shown] = await approvals.listed(market.context, ROOT, is_open=False, limit=9)
    assert approvals.state_of(shown.approval, market.clock.now) == "moot"
    assert (await audit_all(market.store)).passed


async def test_a_refused_closing_keeps_a_deposit_that_waits(market: Market) -> None:
    user = await market.person(usd="1")
    caller = await logged_in(market)
    waiting = await waiting_deposit(market, user)
    assert await refusal(close(market, caller)) is Code.ACCOUNT_NOT_EMPTY
    done = await second_person.approve(market.context, Machine("second"), waiting)
    assert done.state is State.DONE


async def waiting_deposit(market: Market, user: str) -> str:
    """Ask for a deposit above the limit, and return the request."""
    [asked] = await deposits.deposit(
        market.context,
        ROOT,
        user,
        NOTHING,
        amounts={Currency.USD: MICRO},
        reference="invoice-1",
        why="paid by bank",
    )
    assert asked.state is State.WAITS
    return asked.id


@pytest.mark.both_engines
async def test_the_sweep_erases_once_14_days_are_over(market: Market) -> None:
    user = await market.person(usd="2")
    caller = await logged_in(market)
    market.clock.now += 1
    await close(market, caller, waives=True)
    market.clock.now += TAKE_BACK_SECONDS
    assert await market.leaving.erasures.erase_due() == 1
    assert await state_of(market, user) == "erased"
    assert await available(market, user) == 0
    login = market.accounts.login(email="person1@example.com", password=PASSWORD)
    assert await refusal(login) is Code.INVALID_CREDENTIALS
    assert await market.leaving.erasures.erase_due() == 0
    assert (await audit_all(market.store)).passed


async def test_money_and_open_work_are_listed(market: Market) -> None:
    user = await market.person(usd="3", credit="20")
    other = await market.person(credit="20")
    caller = await logged_in(market)
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    await market.jobs.create(user, wanted())
    device = await device_of(market, user)
    theirs = await market.jobs.create(other, wanted())
    await market.jobs.accept(device, theirs)
    with pytest.raises(MarketError) as refused:
        await close(market, caller)
    assert refused.value.code is Code.ACCOUNT_NOT_EMPTY
    for words in (
        "2.00 USD",
        "10.00 credits",
        "1 proxy session",
        "1 job;",
        "1 job on a device of yours",
        "held money",
    ):
        assert words in refused.value.message
    with pytest.raises(MarketError) as refused:
        await close(market, caller, waives=True)
    assert "USD" not in refused.value.message
    assert await state_of(market, user) is None
    sessions = await market.bandwidth.page(user, status=None, before="", limit=9)
    assert [each.status for each in sessions] == ["active"]


async def test_closing_ends_sessions_whose_money_is_waived(market: Market) -> None:
    user = await market.person(usd="3")
    caller = await logged_in(market)
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert await refusal(close(market, caller)) is Code.ACCOUNT_NOT_EMPTY
    await close(market, caller, waives=True)
    assert await available(market, user) == 3 * MICRO


async def test_a_wrong_password_and_a_login_that_ended_close_nothing(market: Market) -> None:
    user = await market.person()
    caller = await logged_in(market)
    wrong = market.leaving.closing.close(caller, "wrong", waives=False)
    assert await refusal(wrong) is Code.WRONG_PASSWORD
    await market.accounts.logout(caller)
    assert await refusal(close(market, caller)) is Code.UNAUTHORIZED
    assert await state_of(market, user) is None


async def test_an_account_with_new_money_waits_for_a_decision(market: Market) -> None:
    user = await market.person()
    await close(market, await logged_in(market))
    await market.deposit("person1@example.com", MICRO)
    market.clock.now += TAKE_BACK_SECONDS
    assert await market.leaving.erasures.erase_due() == 0
    assert await state_of(market, user) == "closed"


@pytest.mark.both_engines
async def test_an_erasure_meets_purchases_deposits_logins_and_another_erasure(
    market: Market,
) -> None:
    """In any order, an erased account has no money, no session and no login."""
    for round_ in range(4):
        user = await market.person()
        email = f"person{round_ + 1}@example.com"

        async def erase(user: str = user, *, waives: bool = bool(round_ % 2)) -> object:
            return await market.store.write(
                erasing.erase, market.context, tools(market), user, waives=waives
            )

        outcomes = await asyncio.gather(
            market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None),
            deposits.deposit(
                market.context,
                ROOT,
                email,
                {Currency.USD: 9 * MICRO},
                amounts={Currency.USD: 2 * MICRO},
                reference=f"round-{round_}",
            ),
            erase(),
            market.accounts.login(email=email, password=PASSWORD),
            erase(),
            return_exceptions=True,
        )
        for outcome in outcomes:
            assert not isinstance(outcome, Exception) or isinstance(outcome, MarketError), outcome
        if await state_of(market, user) != "erased":
            assert await available(market, user) > 0
            continue
        assert await available(market, user) == 0
        assert await market.bandwidth.count(user, is_active=True) == 0
    assert (await audit_all(market.store)).passed


@pytest.mark.both_engines
async def test_an_erasure_meets_the_end_of_a_job_and_of_a_session(market: Market) -> None:
    """Open work refuses the erasure; its pay and its refund are waived, or come before."""
    buyer = await market.person(usd="9", credit="90")
    for _ in range(4):
        worker = await market.person(usd="2")
        device = await device_of(market, worker)
        job = await market.jobs.create(buyer, wanted())
        await market.jobs.accept(device, job)
        bought = await market.bandwidth.buy(worker, quota_bytes=GB, price_per_gb=None)

        async def erase(user: str = worker) -> object:
            return await market.store.write(
                erasing.erase, market.context, tools(market), user, waives=True
            )

        outcomes = await asyncio.gather(
            erase(),
            market.jobs.complete(device, job, "done"),
            erase(),
            market.bandwidth.end(worker, bought.session_id),
            erase(),
            return_exceptions=True,
        )
        for outcome in outcomes:
            assert not isinstance(outcome, Exception) or isinstance(outcome, MarketError), outcome
        if await state_of(market, worker) != "erased":
            await erase()
        assert await available(market, worker) == 0
        assert await available(market, worker, Currency.CREDIT) == 0
    assert (await audit_all(market.store)).passed
