"""Accounts of the staff: roles, locks, passwords and second factors."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from support.market.market import Market
from support.market.staff import FACTORS, PASSWORD, ROOT, code_at, member

from market.base.errors import Code, MarketError
from market.staff.base.roles import Machine, Role
from market.staff.members import accounts
from market.staff.members.accounts import Created, Credentials
from market.staff.members.factors import STEP_SECONDS


async def refusal(attempt: Awaitable[Any]) -> Code:
    with pytest.raises(MarketError) as refused:
        await attempt
    return refused.value.code


def check(market: Market, created: Created, code: str, password: str = PASSWORD) -> Awaitable[Any]:
    return accounts.check(
        market.context,
        market.passwords,
        FACTORS,
        Machine("root"),
        created.email,
        Credentials(password, code),
    )


async def test_a_member_has_one_role_and_an_address_of_their_own(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    [row] = await accounts.listed(market.context, ROOT)
    assert (row.id, row.email, row.role) == (created.id, created.email, "support")
    assert (row.locked_at, row.codes_left) == (None, 10)
    assert await refusal(member(market, Role.OPERATOR, "SUPPORT")) is Code.EMAIL_TAKEN
    before = await accounts.set_role(market.context, ROOT, created.id, Role.FINANCE, "moved")
    assert before.role == "support"
    [row] = await accounts.listed(market.context, ROOT)
    assert row.role == "finance"
    again = accounts.set_role(market.context, ROOT, created.id, Role.FINANCE, "moved")
    assert await refusal(again) is Code.STAFF_UNCHANGED


@pytest.mark.both_engines
async def test_the_last_operator_is_neither_locked_nor_demoted(market: Market) -> None:
    first = await member(market, Role.OPERATOR, "first")
    second = await member(market, Role.OPERATOR, "second")
    await accounts.lock(market.context, ROOT, second.id, "left")
    for attempt in (
        accounts.lock(market.context, ROOT, first.id, "left"),
        accounts.set_role(market.context, ROOT, first.id, Role.SUPPORT, "moved"),
    ):
        assert await refusal(attempt) is Code.LAST_OPERATOR
    await accounts.set_role(market.context, ROOT, second.id, Role.SUPPORT, "it was a mistake")
    await accounts.unlock(market.context, ROOT, second.id, "came back")
    assert await refusal(accounts.lock(market.context, ROOT, first.id, "x")) is Code.LAST_OPERATOR
    await accounts.set_role(market.context, ROOT, second.id, Role.OPERATOR, "promoted")
    await accounts.lock(market.context, ROOT, first.id, "left")


async def test_a_lock_is_set_once(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    unlock = accounts.unlock(market.context, ROOT, created.id, "x")
    assert await refusal(unlock) is Code.STAFF_UNCHANGED
    await accounts.lock(market.context, ROOT, created.email.upper(), "left")
    lock = accounts.lock(market.context, ROOT, created.id, "x")
    assert await refusal(lock) is Code.STAFF_UNCHANGED


@pytest.mark.both_engines
async def test_a_time_step_counts_once(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    code = code_at(created, market.clock.now)
    results = await asyncio.gather(
        *(check(market, created, code) for _ in range(5)), return_exceptions=True
    )
    refused = [each for each in results if isinstance(each, MarketError)]
    assert [each.code for each in refused] == [Code.SECOND_FACTOR_WRONG] * 4
    earlier = code_at(created, market.clock.now - STEP_SECONDS)
    assert await refusal(check(market, created, earlier)) is Code.SECOND_FACTOR_WRONG
    market.clock.now += STEP_SECONDS
    proved = await check(market, created, code_at(created, market.clock.now))
    assert (proved.staff_id, proved.role) == (created.id, Role.SUPPORT)


@pytest.mark.both_engines
async def test_a_recovery_code_counts_once(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    other = await member(market, Role.FINANCE)
    code = created.factor.codes[0]
    assert await refusal(check(market, other, code)) is Code.SECOND_FACTOR_WRONG
    results = await asyncio.gather(
        *(check(market, created, code) for _ in range(5)), return_exceptions=True
    )
    refused = [each for each in results if isinstance(each, MarketError)]
    assert [each.code for each in refused] == [Code.SECOND_FACTOR_WRONG] * 4
    rows = {row.id: row for row in await accounts.listed(market.context, ROOT)}
    assert (rows[created.id].codes_left, rows[other.id].codes_left) == (9, 10)


@pytest.mark.parametrize(
    "code",
    ["", "000000", "abc", "x" * 10_000, "\x00", "\uff11\uff12\uff13\uff14\uff15\uff16", "\ud800"],
)
async def test_a_wrong_code_is_refused(market: Market, code: str) -> None:
    created = await member(market, Role.SUPPORT)
    assert await refusal(check(market, created, code)) is Code.SECOND_FACTOR_WRONG


async def test_a_wrong_password_uses_up_no_code(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    code = code_at(created, market.clock.now)
    assert await refusal(check(market, created, code, "wrong")) is Code.INVALID_CREDENTIALS
    await check(market, created, code)


async def test_a_locked_member_proves_nothing(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    await accounts.lock(market.context, ROOT, created.id, "left")
    code = code_at(created, market.clock.now)
    assert await refusal(check(market, created, code)) is Code.NOT_PERMITTED


async def test_a_new_factor_makes_the_old_one_void(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    await check(market, created, code_at(created, market.clock.now))
    changed = await accounts.reset_factor(market.context, FACTORS, ROOT, created.id, "lost it")
    market.clock.now += STEP_SECONDS
    for code in (code_at(created, market.clock.now), created.factor.codes[0]):
        assert await refusal(check(market, created, code)) is Code.SECOND_FACTOR_WRONG
    await check(market, created, code_at(changed, market.clock.now))
    await check(market, created, changed.factor.codes[0])


@pytest.mark.parametrize(
    ("email", "password", "code"),
    [
        ("no address", PASSWORD, Code.INVALID_FIELD),
        ("a\x00@example.com", PASSWORD, Code.INVALID_FIELD),
        ("x" * 300 + "@example.com", PASSWORD, Code.INVALID_FIELD),
        ("new@example.com", "short", Code.INVALID_FIELD),
    ],
)
async def test_data_that_cannot_be_an_account_is_refused(
    market: Market, email: str, password: str, code: Code
) -> None:
    attempt = accounts.create(
        market.context,
        market.passwords,
        FACTORS,
        ROOT,
        email=email,
        password=password,
        role=Role.SUPPORT,
        why="hired",
    )
    assert await refusal(attempt) is code
    assert await accounts.listed(market.context, ROOT) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nobody@example.com", Code.STAFF_NOT_FOUND),
        ("", Code.INVALID_FIELD),
        ("a\x00", Code.INVALID_FIELD),
        ("x" * 100_000, Code.INVALID_FIELD),
        ("\ud800", Code.INVALID_FIELD),
    ],
)
async def test_a_name_that_no_member_has_is_refused(market: Market, name: str, code: Code) -> None:
    assert await refusal(accounts.lock(market.context, ROOT, name, "left")) is code
