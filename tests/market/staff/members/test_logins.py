"""Logins of the staff: their end by time, and their proof on both engines."""

import asyncio

import pytest
from support.market.market import SECRET, Market
from support.market.staff import FACTORS, PASSWORD, ROOT, code_at, member

from market.accounts.tokens import Claims, Tokens
from market.base.errors import Code, MarketError
from market.base.sealing import derived
from market.staff.base.chain import audit_log
from market.staff.base.roles import Role, Via
from market.staff.members import accounts, attempts
from market.staff.members.accounts import Created
from market.staff.members.attempts import WINDOW_SECONDS, WRONG_MAX, WRONG_OF_ACCOUNT_MAX
from market.staff.members.logins import (
    IDLE_SECONDS,
    LIFETIME_SECONDS,
    SEEN_SECONDS,
    WRONG_OF_NETWORK_MAX,
    Proof,
    StaffLogin,
    StaffLogins,
)
from storage.engines.store import Transaction


def logins_of(market: Market) -> StaffLogins:
    return StaffLogins(market.context, market.passwords, FACTORS, SECRET)


async def log_in(
    logins: StaffLogins, created: Created, code: str, address: str = "192.0.2.7"
) -> StaffLogin:
    proof = Proof(created.email, PASSWORD, code)
    return await logins.login(proof, address=address, via=Via.API)


async def refused(logins: StaffLogins, token: str) -> bool:
    try:
        await logins.authenticate(token, Via.API)
    except MarketError as error:
        return error.code is Code.UNAUTHORIZED
    return False


async def test_a_login_ends_after_eight_hours_or_half_an_hour_of_silence(market: Market) -> None:
    logins, olga = logins_of(market), await member(market, Role.OPERATOR)
    idle = await log_in(logins, olga, olga.factor.codes[0])
    used = await log_in(logins, olga, olga.factor.codes[1])
    end = market.clock.now + LIFETIME_SECONDS
    assert (await logins.authenticate(used.token, Via.API)).expires_at == end
    market.clock.now += IDLE_SECONDS - 1
    assert not await refused(logins, used.token)
    market.clock.now += 1
    assert await refused(logins, idle.token)
    while market.clock.now < end:
        caller = await logins.authenticate(used.token, Via.API)
        assert await logins.is_current(caller)
        market.clock.now = min(market.clock.now + IDLE_SECONDS - SEEN_SECONDS, end)
    assert await refused(logins, used.token)
    assert not await logins.is_current(caller)


@pytest.mark.both_engines
async def test_one_code_at_many_nodes_logs_in_once(market: Market) -> None:
    nodes, olga = [logins_of(market) for _ in range(4)], await member(market, Role.OPERATOR)
    for code in (olga.factor.codes[0], code_at(olga, market.clock.now)):
        results = await asyncio.gather(
            *(log_in(each, olga, code, f"192.0.2.{at}") for at, each in enumerate(nodes)),
            return_exceptions=True,
        )
        wrong = [each for each in results if isinstance(each, MarketError)]
        assert [each.code for each in wrong] == [Code.INVALID_CREDENTIALS] * 3
    report = await audit_log(market.store)
    assert not [line for each in report.checks for line in each.differences]


@pytest.mark.both_engines
async def test_many_nodes_compare_five_guesses_in_a_quarter_of_an_hour(market: Market) -> None:
    nodes, olga = [logins_of(market) for _ in range(12)], await member(market, Role.OPERATOR)
    results = await asyncio.gather(
        *(log_in(each, olga, "wrong") for each in nodes), return_exceptions=True
    )
    codes = [each.code for each in results if isinstance(each, MarketError)]
    assert codes.count(Code.INVALID_CREDENTIALS) == WRONG_MAX
    assert codes.count(Code.TOO_MANY_ATTEMPTS) == len(nodes) - WRONG_MAX
    await log_in(logins_of(market), olga, olga.factor.codes[0], "192.0.2.8")  # another network
    market.clock.now += WINDOW_SECONDS
    await log_in(logins_of(market), olga, olga.factor.codes[1])


async def test_a_guesser_with_many_addresses_has_twenty_guesses(market: Market) -> None:
    """A code has six digits: without this bound, some thousand addresses guess it in a day."""
    logins, olga = logins_of(market), await member(market, Role.OPERATOR)
    await log_in(logins, olga, olga.factor.codes[0], "192.0.2.200")
    codes = []
    for each in range(WRONG_OF_ACCOUNT_MAX + 2):
        with pytest.raises(MarketError) as error:
            await log_in(logins, olga, "000000", f"2001:db8:0:{each:x}::1")
        codes.append(error.value.code)
    assert codes[:WRONG_OF_ACCOUNT_MAX] == [Code.INVALID_CREDENTIALS] * WRONG_OF_ACCOUNT_MAX
    assert set(codes[WRONG_OF_ACCOUNT_MAX:]) == {Code.TOO_MANY_ATTEMPTS}
    await log_in(logins, olga, olga.factor.codes[1], "192.0.2.200")  # the member's own network
    market.clock.now += WINDOW_SECONDS
    await log_in(logins, olga, olga.factor.codes[2], "192.0.2.8")


async def test_guesses_at_an_address_without_a_member_are_bounded(market: Market) -> None:
    logins = logins_of(market)
    await member(market, Role.OPERATOR)
    codes, proof = [], Proof("nobody@example.com", "x", "000000")
    for _ in range(WRONG_MAX + 1):
        with pytest.raises(MarketError) as error:
            await logins.login(proof, address="192.0.2.7", via=Via.API)
        codes.append(error.value.code)
    assert codes == [Code.INVALID_CREDENTIALS] * WRONG_MAX + [Code.TOO_MANY_ATTEMPTS]
    rows = await attempts.listed(market.context, ROOT, limit=10)
    assert {(row.staff_email, row.right_at) for row in rows} == {(None, None)}


async def test_a_network_has_a_bound_over_all_accounts(market: Market) -> None:
    logins = logins_of(market)
    codes = []
    for each in range(WRONG_OF_NETWORK_MAX + 1):
        proof = Proof(f"nobody{each}@example.com", "x", "000000")
        with pytest.raises(MarketError) as error:
            await logins.login(proof, address="192.0.2.7", via=Via.API)
        codes.append(error.value.code)
    assert codes == [Code.INVALID_CREDENTIALS] * WRONG_OF_NETWORK_MAX + [Code.TOO_MANY_ATTEMPTS]
    rows = await attempts.listed(market.context, ROOT, limit=WRONG_OF_NETWORK_MAX + 1)
    assert len(rows) == WRONG_OF_NETWORK_MAX


async def test_a_check_on_the_machine_is_an_attempt(market: Market) -> None:
    olga = await member(market, Role.OPERATOR)
    given = accounts.Credentials(PASSWORD, olga.factor.codes[0])
    for _ in range(2):
        check = accounts.check(market.context, market.passwords, FACTORS, ROOT, olga.email, given)
        if not await attempts.listed(market.context, ROOT, limit=2):
            await check
            continue
        with pytest.raises(MarketError):
            await check
    rows = await attempts.listed(market.context, ROOT, limit=3)
    assert [(row.via, row.unix_user, row.right_at is None) for row in rows] == [
        ("machine", "root", True),
        ("machine", "root", False),
    ]


@pytest.mark.both_engines
async def test_old_attempts_and_logins_are_deleted(market: Market) -> None:
    logins, olga = logins_of(market), await member(market, Role.OPERATOR)
    await log_in(logins, olga, olga.factor.codes[0])
    market.clock.now += attempts.KEPT_SECONDS + LIFETIME_SECONDS
    await log_in(logins, olga, olga.factor.codes[1])

    async def count(tx: Transaction) -> list[int]:
        tables = ("staff_attempts", "staff_logins")
        return [(await tx.one(int, f"SELECT COUNT(*) FROM {each}")) or 0 for each in tables]

    assert await market.store.read(count) == [1, 1]


async def test_a_token_has_an_audience_and_a_key_of_its_own(market: Market) -> None:
    logins, olga = logins_of(market), await member(market, Role.OPERATOR)
    login = await log_in(logins, olga, olga.factor.codes[0])
    claims = Claims(olga.id, (await logins.authenticate(login.token, Via.API)).session_id, 0)
    for key, audience in (
        (SECRET, ""),
        (SECRET, "staff"),
        (derived(SECRET, b"staff signing"), ""),
        (derived(SECRET, b"staff signing"), "users"),
    ):
        forged = Tokens(key, lifetime_seconds=10**10, audience=audience)
        assert await refused(logins, forged.sign(claims, token_id="x"))
    for key in (SECRET, derived(SECRET, b"staff signing")):
        with pytest.raises(MarketError):
            Tokens(key, lifetime_seconds=60).verify(login.token, now=market.clock.now)


async def test_a_lock_in_the_middle_of_a_login_wins(market: Market) -> None:
    logins, olga = logins_of(market), await member(market, Role.SUPPORT)
    await accounts.lock(market.context, ROOT, olga.id, "left")
    with pytest.raises(MarketError) as error:
        await log_in(logins, olga, olga.factor.codes[0])
    assert error.value.code is Code.INVALID_CREDENTIALS
    await accounts.unlock(market.context, ROOT, olga.id, "came back")
    await log_in(logins, olga, olga.factor.codes[0])  # the code was not used up
