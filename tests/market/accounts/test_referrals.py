"""Referral codes, their payments and their refusals, on both engines."""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from support.database.statements import counted
from support.market import books
from support.market.events import said
from support.market.leaving import tools
from support.market.market import REWARDS, Market

from market.accounts.accounts import Login
from market.accounts.referrals import CHAIN_MAX, FAILURES_MAX, Applied, Payment, Referrals, Rewards
from market.base.errors import Code, MarketError
from market.erasure import erasing
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import Currency
from storage.accounts import users as user_queries
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction
from storage.money import ledger as ledger_queries
from storage.money.ledger import EntryRow

CREDIT = Currency.CREDIT
DAY = 86_400

credits_of = partial(books.available, currency=CREDIT)
LOOK_ALIKES = set("01ILO")
MOST = 10**18
APPLIED = Applied(REWARDS.referred, Payment.NOW)


async def paid_out(market: Market) -> int:
    """Return all that was ever paid as a reward."""
    return -(await market.store.read(ledger_queries.balance, ledger.rewards(CREDIT)) or 0)


async def code_of(market: Market, user: str) -> str:
    return (await market.referrals.standing(user)).code


async def totals(market: Market, user: str) -> tuple[int, int]:
    found = (await market.referrals.standing(user)).totals
    return found.referrals, found.bonus


async def refusal(market: Market, user: str, code: str) -> tuple[Code, str | None]:
    with pytest.raises(MarketError) as caught:
        await market.referrals.apply(user, code)
    return caught.value.code, caught.value.field


async def register(market: Market, ref: str, name: str = "newcomer") -> tuple[Login, bool]:
    return await market.accounts.register(
        username=name, email=f"{name}@example.com", password="long enough", ref=ref
    )


def generate(patch: pytest.MonkeyPatch, *codes: str) -> Iterator[str]:
    """Let these be the next codes that are made; return those that are left."""
    left = iter(codes)
    patch.setattr("market.accounts.referrals._new_code", lambda: next(left))
    return left


async def verify(market: Market, *users: str) -> None:
    """Let users confirm their addresses."""
    for user in users:
        await market.store.write(user_queries.set_email_verified, user, market.clock.now)


def programme(market: Market, **changes: Any) -> Referrals:
    """Return a programme with other terms, which registrations of the market also go by."""
    rewards = replace(REWARDS, **changes)
    market.accounts._rewards = rewards
    return Referrals(market.context, rewards)


async def count(tx: Transaction, table: str) -> int:
    return await tx.one(int, f"SELECT COUNT(*) FROM {table}") or 0


async def test_a_code_has_eight_characters_none_of_which_look_alike(market: Market) -> None:
    people = [await market.person() for _ in range(12)]
    codes = [await code_of(market, person) for person in people]
    assert {len(code) for code in codes} == {8}
    characters = set("".join(codes))
    assert all(each.isascii() and (each.isdigit() or each.isupper()) for each in characters)
    assert not characters & LOOK_ALIKES
    assert len(set(codes)) == len(people)


async def test_a_code_never_changes(market: Market) -> None:
    user, other = await market.person(), await market.person()
    code = await code_of(market, user)
    await market.referrals.apply(other, code)
    market.clock.now += 400 * DAY
    assert await code_of(market, user) == code


@pytest.mark.both_engines
async def test_twenty_questions_at_once_make_one_code(market: Market) -> None:
    user = await market.person()
    answers = await asyncio.gather(*(market.referrals.standing(user) for _ in range(20)))
    assert len({answer.code for answer in answers}) == 1
    assert await code_of(market, user) == answers[0].code


async def test_a_code_that_is_taken_is_made_anew(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await market.person(), await market.person()
    left = generate(monkeypatch, "AAAAAAAA", *["AAAAAAAA"] * 4, "BBBBBBBB", "CCCCCCCC")
    assert await code_of(market, first) == "AAAAAAAA"
    assert await code_of(market, second) == "BBBBBBBB"
    assert list(left) == ["CCCCCCCC"]


async def test_making_codes_ends_when_all_are_taken_and_nothing_is_changed(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await market.person(), await market.person()
    generate(monkeypatch, *["AAAAAAAA"] * 6, "BBBBBBBB", "CCCCCCCC")
    assert await code_of(market, first) == "AAAAAAAA"
    with pytest.raises(ConstraintError):
        await market.referrals.standing(second)
    assert await code_of(market, second) == "BBBBBBBB"
    assert await code_of(market, first) == "AAAAAAAA"


async def test_applying_pays_both_in_one_transfer(market: Market) -> None:
    referrer, referred = await market.person(), await market.person()
    code = await code_of(market, referrer)
    before = await market.store.read(ledger_queries.count_transfers)
    assert await market.referrals.apply(referred, code) == APPLIED
    assert await market.store.read(ledger_queries.count_transfers) == before + 1
    rewards = ledger.rewards(CREDIT)
    entries = await market.store.read(ledger_queries.find_entries, f"referral:{referred}")
    assert sorted(entries) == sorted(
        [
            EntryRow("credit", rewards, ledger.available(referrer, CREDIT), 50_000_000),
            EntryRow("credit", rewards, ledger.available(referred, CREDIT), 25_000_000),
        ]
    )
    assert await credits_of(market, referrer) == 50_000_000
    assert await credits_of(market, referred) == 25_000_000
    assert await paid_out(market) == 75_000_000
    assert (await audit_ledger(market.store)).passed


async def test_a_code_is_read_without_case(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    referrer = await market.person()
    generate(monkeypatch, *["ABCDEFGH"] * 3)
    assert await code_of(market, referrer) == "ABCDEFGH"
    for spelling in ("abcdefgh", "aBcDeFgH"):
        await market.referrals.apply(await market.person(), spelling)
    assert await totals(market, referrer) == (2, 100_000_000)


@pytest.mark.both_engines
async def test_fifty_applications_of_one_user_at_once_pay_once(market: Market) -> None:
    referrers = [await market.person() for _ in range(2)]
    codes = [await code_of(market, referrer) for referrer in referrers]
    user = await market.person()
    outcomes = await asyncio.gather(
        *(market.referrals.apply(user, codes[number % 2]) for number in range(50)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) == 49
    assert {getattr(each, "code", each) for each in refused} == {Code.REFERRAL_ALREADY_APPLIED}
    assert await credits_of(market, user) == 25_000_000
    paid = [await credits_of(market, referrer) for referrer in referrers]
    assert sorted(paid) == [0, 50_000_000]
    assert await paid_out(market) == 75_000_000


@pytest.mark.both_engines
async def test_fifteen_users_of_one_code_at_once_are_all_paid(market: Market) -> None:
    referrer = await market.person()
    code = await code_of(market, referrer)
    users = [await market.person() for _ in range(15)]
    await asyncio.gather(*(market.referrals.apply(user, code) for user in users))
    assert await totals(market, referrer) == (15, 15 * 50_000_000)
    assert await credits_of(market, referrer) == 15 * 50_000_000
    assert {await credits_of(market, user) for user in users} == {25_000_000}


async def test_ones_own_code_is_refused(market: Market) -> None:
    user = await market.person()
    code = await code_of(market, user)
    assert await refusal(market, user, code) == (Code.OWN_REFERRAL_CODE, "referral_code")
    assert await refusal(market, user, code.lower()) == (Code.OWN_REFERRAL_CODE, "referral_code")
    assert await paid_out(market) == 0


async def test_an_unknown_code_is_not_found(market: Market) -> None:
    user, other = await market.person(), await market.person()
    await code_of(market, other)
    for code in ("AAAAAAAA", "00000000", "        ", "ABC'DEF\\", "ÄÖÜÄÖÜÄÖ"):
        refused = await refusal(market, user, code)
        assert refused == (Code.REFERRAL_CODE_NOT_FOUND, "referral_code"), code
    assert await paid_out(market) == 0


async def test_a_code_of_another_length_is_refused(market: Market) -> None:
    user, other = await market.person(), await market.person()
    code = await code_of(market, other)
    for text in ("", code[:7], f"{code}A", f" {code}", code * 100):
        assert await refusal(market, user, text) == (Code.INVALID_FIELD, "referral_code"), text
    assert await paid_out(market) == 0


async def test_a_letter_that_grows_in_upper_case_counts_as_the_one_it_is(market: Market) -> None:
    user = await market.person()
    assert await refusal(market, user, "ßßßß") == (Code.INVALID_FIELD, "referral_code")
    refused = await refusal(market, user, "ßAAAAAAA")
    assert refused == (Code.REFERRAL_CODE_NOT_FOUND, "referral_code")


async def test_a_second_code_is_refused_whosever_it_is(market: Market) -> None:
    first, second, user = [await market.person() for _ in range(3)]
    await market.referrals.apply(user, await code_of(market, first))
    for referrer in (first, second):
        refused = await refusal(market, user, await code_of(market, referrer))
        assert refused == (Code.REFERRAL_ALREADY_APPLIED, None)
    assert await credits_of(market, user) == 25_000_000
    assert await totals(market, first) == (1, 50_000_000)
    assert await totals(market, second) == (0, 0)


async def test_a_code_may_be_applied_for_thirty_days_to_the_second(market: Market) -> None:
    referrer, punctual, late = [await market.person() for _ in range(3)]
    code = await code_of(market, referrer)
    market.clock.now += 30 * DAY
    await market.referrals.apply(punctual, code)
    market.clock.now += 1
    assert await refusal(market, late, code) == (Code.REFERRAL_TOO_LATE, None)
    assert await totals(market, referrer) == (1, 50_000_000)
    assert await credits_of(market, late) == 0


async def test_the_age_of_the_referrer_does_not_matter(market: Market) -> None:
    referrer = await market.person()
    code = await code_of(market, referrer)
    market.clock.now += 1_000 * DAY
    await market.referrals.apply(await market.person(), code)
    assert await totals(market, referrer) == (1, 50_000_000)


async def test_two_do_not_refer_each_other(market: Market) -> None:
    first, second = await market.person(), await market.person()
    await market.referrals.apply(second, await code_of(market, first))
    refused = await refusal(market, first, await code_of(market, second))
    assert refused == (Code.REFERRAL_CIRCLE, "referral_code")
    assert await paid_out(market) == 75_000_000


async def test_a_circle_over_five_others_is_refused_and_a_line_is_not(market: Market) -> None:
    line = [await market.person() for _ in range(7)]
    for referrer, referred in pairwise(line):
        await market.referrals.apply(referred, await code_of(market, referrer))
    refused = await refusal(market, line[0], await code_of(market, line[-1]))
    assert refused == (Code.REFERRAL_CIRCLE, "referral_code")
    assert await paid_out(market) == 6 * 75_000_000
    head = await market.person()
    await market.referrals.apply(line[0], await code_of(market, head))
    assert await paid_out(market) == 7 * 75_000_000


@pytest.mark.both_engines
async def test_of_two_users_that_apply_each_others_codes_at_once_one_may(market: Market) -> None:
    people = [await market.person() for _ in range(10)]
    codes = [await code_of(market, person) for person in people]
    pairs = [(number, number ^ 1) for number in range(len(people))]
    outcomes = await asyncio.gather(
        *(market.referrals.apply(people[own], codes[other]) for own, other in pairs),
        return_exceptions=True,
    )
    for first, second in zip(outcomes[::2], outcomes[1::2], strict=True):
        refused = [each for each in (first, second) if each != APPLIED]
        assert [getattr(each, "code", each) for each in refused] == [Code.REFERRAL_CIRCLE]
    assert await paid_out(market) == 5 * 75_000_000


@pytest.mark.both_engines
async def test_of_three_users_that_apply_in_a_circle_at_once_two_may(market: Market) -> None:
    people = [await market.person() for _ in range(3)]
    codes = [await code_of(market, person) for person in people]
    outcomes = await asyncio.gather(
        *(market.referrals.apply(people[number], codes[number - 1]) for number in range(3)),
        return_exceptions=True,
    )
    refused = [getattr(each, "code", each) for each in outcomes if each != APPLIED]
    assert refused == [Code.REFERRAL_CIRCLE]
    assert await paid_out(market) == 2 * 75_000_000


async def test_registering_with_a_code_pays_both(market: Market) -> None:
    referrer = await market.person()
    login, applied = await register(market, (await code_of(market, referrer)).lower())
    assert applied is True
    assert login.profile.credit_available == 25_000_000
    assert await totals(market, referrer) == (1, 50_000_000)
    other = await code_of(market, await market.person())
    refused = await refusal(market, login.profile.user_id, other)
    assert refused == (Code.REFERRAL_ALREADY_APPLIED, None)


async def test_registering_with_a_code_that_is_no_good_succeeds_without(market: Market) -> None:
    referrer = await market.person()
    code = await code_of(market, referrer)
    for number, ref in enumerate(("", "AAAAAAAA", "AAAA", "A" * 9)):
        login, applied = await register(market, ref, f"newcomer{number}")
        assert applied is False
        assert login.profile.credit_available == 0
        assert await totals(market, referrer) == (number, number * 50_000_000)
        assert await market.referrals.apply(login.profile.user_id, code) == APPLIED


async def test_a_registration_that_is_refused_pays_no_referrer(market: Market) -> None:
    referrer = await market.person()
    code = await code_of(market, referrer)
    with pytest.raises(MarketError) as caught:
        await market.accounts.register(
            username="other", email="person1@example.com", password="long enough", ref=code
        )
    assert caught.value.code is Code.EMAIL_TAKEN
    assert await totals(market, referrer) == (0, 0)
    assert await paid_out(market) == 0


async def test_a_referrer_that_can_hold_no_more_is_not_half_referred_to(market: Market) -> None:
    referrer, user = await market.person(), await market.person()
    code = await code_of(market, referrer)
    await market.deposit("person1@example.com", MOST - 1, currency=CREDIT)
    before = await market.store.read(ledger_queries.count_transfers)
    assert (await refusal(market, user, code))[0] is Code.AMOUNT_TOO_LARGE
    assert await totals(market, referrer) == (0, 0)
    assert await market.store.read(ledger_queries.count_transfers) == before


@pytest.mark.both_engines
async def test_a_bonus_that_can_not_be_paid_stops_no_registration(market: Market) -> None:
    referrer = await market.person()
    code = await code_of(market, referrer)
    await market.deposit("person1@example.com", MOST - 1, currency=CREDIT)
    before = await market.store.read(ledger_queries.count_transfers)
    login, applied = await register(market, code)
    assert applied is False
    assert login.profile.credit_available == 0
    assert await totals(market, referrer) == (0, 0)
    assert await market.store.read(count, "referrals") == 0
    assert await market.store.read(ledger_queries.count_transfers) == before


async def test_the_totals_are_only_of_ones_own_referrals(market: Market) -> None:
    first, second = await market.person(), await market.person()
    assert await totals(market, first) == (0, 0)
    for referrer, number in ((first, 3), (second, 1)):
        for _ in range(number):
            await market.referrals.apply(await market.person(), await code_of(market, referrer))
    await market.referrals.apply(first, await code_of(market, second))
    assert await totals(market, first) == (3, 150_000_000)
    assert await totals(market, second) == (2, 100_000_000)
    assert await credits_of(market, first) == 175_000_000
    assert (await audit_ledger(market.store)).passed


# --- bonuses that wait ---------------------------------------------------------------------------


async def test_an_invented_address_earns_nothing(market: Market) -> None:
    referrals = programme(market, needs_verified=True)
    referrer, invented, real = [await market.person() for _ in range(3)]
    code = await code_of(market, referrer)
    for user in (invented, real):
        applied = await referrals.apply(user, code)
        assert applied == Applied(REWARDS.referred, Payment.ONCE_VERIFIED)
    assert await totals(market, referrer) == (2, 0)
    assert await referrals.pay_due() == 0
    await verify(market, real)
    assert [await referrals.pay_due() for _ in range(2)] == [1, 0]
    assert await totals(market, referrer) == (2, 50_000_000)
    balances = [await credits_of(market, each) for each in (referrer, real, invented)]
    assert balances == [50_000_000, 25_000_000, 0]


async def test_a_registration_with_a_code_is_paid_once_its_address_is_confirmed(
    market: Market,
) -> None:
    referrals = programme(market, needs_verified=True)
    referrer = await market.person()
    login, applied = await register(market, await code_of(market, referrer))
    assert (applied, login.profile.credit_available) == (True, 0)
    assert await paid_out(market) == 0
    user = login.profile.user_id
    other = await code_of(market, await market.person())
    with pytest.raises(MarketError) as caught:
        await referrals.apply(user, other)
    assert caught.value.code is Code.REFERRAL_ALREADY_APPLIED
    await verify(market, user)
    assert await referrals.pay_due() == 1
    assert await credits_of(market, user) == 25_000_000
    assert await credits_of(market, referrer) == 50_000_000


async def test_an_erased_user_gets_no_bonus_and_the_other_one_does(market: Market) -> None:
    referrals = programme(market, needs_verified=True)
    erased, user = await market.person(), await market.person()
    await referrals.apply(user, await code_of(market, erased))
    await market.store.write(erasing.erase, market.context, tools(market), erased, waives=False)
    await verify(market, user)
    assert [await referrals.pay_due() for _ in range(2)] == [1, 0]
    assert [await credits_of(market, each) for each in (user, erased)] == [REWARDS.referred, 0]
    assert (await audit_ledger(market.store)).passed


@pytest.mark.both_engines
async def test_a_user_with_a_confirmed_address_is_paid_at_once(market: Market) -> None:
    referrals = programme(market, needs_verified=True)
    referrer, user = await market.person(), await market.person()
    await verify(market, user)
    assert await referrals.apply(user, await code_of(market, referrer)) == APPLIED
    assert await credits_of(market, user) == 25_000_000


@pytest.mark.both_engines
async def test_the_paid_referrals_of_a_day_are_bounded_and_the_rest_paid_on_the_next(
    market: Market,
) -> None:
    referrals = programme(market, per_referrer_daily=2)
    referrer, other = await market.person(), await market.person()
    code = await code_of(market, referrer)
    users = [await market.person() for _ in range(5)]
    payments = [(await referrals.apply(user, code)).payment for user in users]
    assert payments == [Payment.NOW] * 2 + [Payment.LATER] * 3
    assert await referrals.pay_due() == 0
    fresh = await market.person()
    assert await referrals.apply(fresh, await code_of(market, other)) == APPLIED
    assert await totals(market, referrer) == (5, 2 * 50_000_000)
    market.clock.now += DAY
    assert [await referrals.pay_due() for _ in range(2)] == [2, 0]
    market.clock.now += DAY
    assert [await referrals.pay_due() for _ in range(2)] == [1, 0]
    assert await totals(market, referrer) == (5, 5 * 50_000_000)
    assert {await credits_of(market, user) for user in users} == {25_000_000}


@pytest.mark.both_engines
async def test_the_sum_of_all_referrals_in_a_day_is_bounded(market: Market) -> None:
    referrals = programme(market, total_daily=3 * 75_000_000 - 1)
    users = [await market.person() for _ in range(4)]
    codes = [await code_of(market, await market.person()) for _ in users]
    await asyncio.gather(*map(referrals.apply, users, codes))
    assert await paid_out(market) == 2 * 75_000_000
    assert await referrals.pay_due() == 0
    market.clock.now += DAY
    assert await referrals.pay_due() == 2
    assert await paid_out(market) == 4 * 75_000_000


@pytest.mark.both_engines
async def test_bonuses_larger_than_the_room_of_a_day_delay_no_smaller_ones(market: Market) -> None:
    """The operator lowers the bonuses and the total, while larger bonuses wait."""
    before = programme(market, total_daily=1)
    lowered = Rewards(referrer=5_000_000, referred=2_000_000, total_daily=1)
    after = Referrals(market.context, lowered, pay_max=2)
    users = [await market.person() for _ in range(5)]
    for user, referrals in zip(users, (before, before, before, after, after), strict=True):
        await referrals.apply(user, await code_of(market, await market.person()))
        market.clock.now += 1
    market.clock.now += DAY
    after.rewards = replace(lowered, total_daily=7_000_000)
    assert [await after.pay_due() for _ in range(2)] == [1, 0]
    market.clock.now += DAY
    assert [await after.pay_due() for _ in range(2)] == [1, 0]
    paid = [await credits_of(market, user) for user in users]
    assert paid == [0, 0, 0, 2_000_000, 2_000_000]
    # A total that has room for the larger ones pays them, however small the bonuses are now.
    after.rewards = replace(lowered, total_daily=200_000_000)
    assert await after.pay_due() == 2


async def test_pending_bonuses_are_paid_in_turns_of_their_referrers(market: Market) -> None:
    referrals = programme(market, needs_verified=True)
    referrals.pay_max = 2
    flood, honest = await market.person(), await market.person()
    users = [await market.person() for _ in range(4)]
    for user, referrer in zip(users, (flood, flood, flood, honest), strict=True):
        await referrals.apply(user, await code_of(market, referrer))
        market.clock.now += 1
    await verify(market, *users)
    assert await referrals.pay_due() == 2
    assert await credits_of(market, honest) == await credits_of(market, flood) == 50_000_000


async def test_a_bonus_that_can_not_be_paid_holds_up_no_other(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    referrals = programme(market, needs_verified=True)
    referrals.pay_max = 1
    rich, poor, first, second = [await market.person() for _ in range(4)]
    await referrals.apply(first, await code_of(market, rich))
    market.clock.now += 1
    await referrals.apply(second, await code_of(market, poor))
    await market.deposit("person1@example.com", MOST - 1, currency=CREDIT)
    await verify(market, first, second)
    assert [await referrals.pay_due() for _ in range(2)] == [0, 1]
    assert await credits_of(market, second) == 25_000_000
    assert await credits_of(market, first) == 0
    assert f"the referral of {first} is not paid" in caplog.text


@pytest.mark.both_engines
async def test_of_ten_concurrent_payments_one_succeeds(market: Market) -> None:
    referrals = programme(market, needs_verified=True)
    referrer, user = await market.person(), await market.person()
    await referrals.apply(user, await code_of(market, referrer))
    await verify(market, user)
    paid = await asyncio.gather(*(referrals.pay_due() for _ in range(10)))
    assert sum(paid) == 1
    assert await paid_out(market) == 75_000_000


async def test_a_bonus_that_waited_for_too_long_lapses(market: Market) -> None:
    referrals = programme(market, needs_verified=True)
    referrer, user = await market.person(), await market.person()
    await referrals.apply(user, await code_of(market, referrer))
    market.clock.now += 30 * DAY + 1
    await verify(market, user)
    assert await referrals.pay_due() == 0


# --- cost of an application ----------------------------------------------------------------------


async def test_a_long_line_is_looked_through_in_one_statement(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [await market.person() for _ in range(20)]
    for referrer, referred in pairwise(line):
        await market.referrals.apply(referred, await code_of(market, referrer))
    long, head = await code_of(market, line[-1]), await market.person()
    short, users = await code_of(market, head), [await market.person() for _ in range(2)]
    asked = counted(market.store, "write", monkeypatch)
    await market.referrals.apply(users[0], long)
    await market.referrals.apply(users[1], short)
    assert asked[0] == asked[1]


async def test_a_registration_looks_for_no_circle(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = await code_of(market, await market.person())

    async def fail(*args: Any, **kwargs: Any) -> bool:
        raise AssertionError("no user can have come by the code of a new user")

    monkeypatch.setattr("storage.accounts.referrals.is_among", fail)
    assert (await register(market, code))[1] is True


async def test_a_line_is_followed_up_to_a_bound(market: Market) -> None:
    market.referrals.chain_max = 3
    line = [await market.person() for _ in range(5)]
    for referrer, referred in pairwise(line):
        await market.referrals.apply(referred, await code_of(market, referrer))
    refused = await refusal(market, line[0], await code_of(market, line[3]))
    assert refused == (Code.REFERRAL_CIRCLE, "referral_code")
    await market.referrals.apply(line[0], await code_of(market, line[4]))
    assert CHAIN_MAX == 100


async def test_a_user_that_tries_code_after_code_has_to_wait(market: Market) -> None:
    user, other = await market.person(), await market.person()
    code = await code_of(market, other)
    for _ in range(FAILURES_MAX):
        assert (await refusal(market, user, "AAAAAAAA"))[0] is Code.REFERRAL_CODE_NOT_FOUND
    assert (await refusal(market, user, code))[0] is Code.TOO_MANY_ATTEMPTS
    market.clock.now += 15 * 60
    assert await market.referrals.apply(user, code) == APPLIED


async def test_both_users_are_notified_once_of_the_reward_of_a_referral(market: Market) -> None:
    owner, newcomer = await market.person(), await market.person()
    await market.referrals.apply(newcomer, await code_of(market, owner))
    with pytest.raises(MarketError):
        await market.referrals.apply(newcomer, await code_of(market, owner))
    await market.referrals.pay_due()
    assert await said(market, owner, "referral.earned") == [
        {"amount_credit": 50, "role": "referrer"}
    ]
    assert await said(market, newcomer, "referral.earned") == [
        {"amount_credit": 25, "role": "referred"}
    ]
