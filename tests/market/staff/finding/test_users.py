"""One user's page, notes, and the names that find a user."""

from collections.abc import Awaitable
from typing import Any

import pytest
from support.market.cases import failed_canary
from support.market.jobs import device_of, on, specified
from support.market.market import Market
from support.market.payment_rows import owe, payment_row
from support.market.payouts import plain_payout
from support.market.staff import ROOT, acting, member
from support.market.staff_money import LIMITS, NOTHING, corrected, newest_request

from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.jobs.postings import NewJob
from market.money.money import GB, MICRO
from market.staff.abuse import tickets
from market.staff.base.acts import Text, TextKind
from market.staff.base.roles import Role
from market.staff.finding import users
from market.staff.finding.users import COUNTED_MAX, LISTED_MAX
from market.staff.money import judging
from storage.engines.store import Transaction
from storage.money import debts as debt_queries
from storage.payments import payments as payment_queries


async def refusal(attempt: Awaitable[Any]) -> MarketError:
    with pytest.raises(MarketError) as refused:
        await attempt
    return refused.value


async def test_a_page_has_the_newest_of_all_that_a_user_has(market: Market) -> None:
    user = await market.person(usd="20", credit="10")
    await market.person(usd="7")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    job = await market.jobs.create(user, NewJob("a title", "script", MICRO, 1, "", ""))
    device = await device_of(market, user)
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    author = acting(await member(market, Role.SUPPORT))
    await users.note(market.context, author, user, "asked for a refund")
    page = await users.view(market.context, ROOT, user)
    assert (page.user.email, page.is_masked) == ("p…@e…", True)
    assert (page.profile.usd_available, page.profile.usd_held) == (19 * MICRO, MICRO)
    assert (page.profile.credit_available, page.profile.credit_held) == (9 * MICRO, MICRO)
    assert page.open == (1, 1, 1, 1)
    assert [row.id for row in page.sessions] == [bought.session_id]
    assert [row.id for row in page.jobs] == [job]
    assert [row.id for row in page.devices] == [device.id]
    assert [row.id for row in page.keys] == [key.row.id]
    assert len(page.logins) == 1
    assert {row.kind for row in page.transactions} == {"deposit", "hold"}
    [note] = page.notes
    assert (note.body, note.staff_email) == ("asked for a refund", "support@staff.example.com")
    assert [row.action for row in page.log] == ["user.note"]
    again = await users.view(market.context, ROOT, user)
    assert [row.action for row in again.log] == ["user.view", "user.note"]


async def kinds(market: Market, user: str) -> set[tuple[str, str]]:
    """Return the kinds and the subjects of a user's open problems."""
    page = await users.view(market.context, ROOT, user)
    return {(each.kind, each.id) for each in page.problems}


async def test_a_page_has_the_open_problems_of_a_user_and_no_others(market: Market) -> None:
    worker, stranger = await market.person(), await market.person()
    buyer = await market.person(credit="20")
    await owe(market, worker)
    payout = await plain_payout(market, worker)
    jobs = []
    for _ in range(2):
        job = await specified(market, buyer)
        await market.jobs.complete(await on(market, job, worker), job, "done")
        await market.reviews.dispute(buyer, job, "empty")
        jobs.append(job)
    paid = judging.Verdict(0)
    await judging.decide(market.context, ROOT, jobs[0], paid, LIMITS, "it is right")
    appeal = await market.appeals.appeal(buyer, jobs[0], "the log shows it")
    complaint = Text(TextKind.TICKET, "a scan")
    new = tickets.NewTicket(ROOT, tickets.Category.SCAN, {}, complaint, user_id=buyer)
    ticket = await market.store.write(tickets.open_in, market.context, new)
    await corrected(market, ROOT, buyer, 1, limits=NOTHING)
    doubtful = payment_row(market, buyer, "doubtful", MICRO)
    await market.store.write(payment_queries.insert, doubtful)
    exit_, _ = await failed_canary(market, worker)
    request = await newest_request(market)
    assert await kinds(market, buyer) == {
        ("complaint", str(ticket.number)),
        ("dispute of the buyer", jobs[1]),
        ("appeal", appeal.id),
        ("waits for a second person", request),
        ("doubtful payment", doubtful.id),
    }
    [debt] = await market.store.read(debt_queries.open_of, worker, "usd")
    assert await kinds(market, worker) == {
        ("dispute with the worker", jobs[1]),
        ("debt", debt.id),
        ("barred exit", exit_.id),
        ("payout", payout.id),
    }
    assert await kinds(market, stranger) == set()


async def test_a_page_is_short_and_its_counts_stop(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "COUNTED_MAX", 12)
    user = await market.person(credit="100")
    for number in range(15):
        await market.jobs.create(user, NewJob(f"job {number}", "script", MICRO, 1, "", ""))
    page = await users.view(market.context, ROOT, user)
    assert len(page.jobs) == len(page.transactions) == LISTED_MAX
    assert page.open.jobs == 13
    assert COUNTED_MAX == 1_000


async def test_a_user_without_anything_has_an_empty_page(market: Market) -> None:
    page = await users.view(market.context, ROOT, await market.person())
    assert page.sessions == page.devices == page.jobs == page.keys == page.notes == []
    assert page.open == (0, 0, 0, 0)


@pytest.mark.both_engines
async def test_a_name_of_two_users_is_refused_and_nothing_is_done(market: Market) -> None:
    first = await market.person()
    second = await market.person()
    third = await market.person()

    async def rename(tx: Transaction) -> None:
        sql = "UPDATE users SET username_key = :name WHERE id = :id"
        await tx.run(sql, name="person1@example.com", id=second)
        await tx.run(sql, name=first, id=third)

    await market.store.write(rename)
    error = await refusal(users.note(market.context, ROOT, "person1@example.com", "x"))
    assert error.code is Code.AMBIGUOUS
    assert first in error.message
    assert second in error.message
    # The identifier of an account may be the name of another one; it hides neither.
    assert (await users.view(market.context, ROOT, first)).user.id == first
    assert (await users.view(market.context, ROOT, third)).user.id == third
    for name in (second, "person2@example.com", "PERSON2@example.com", second.upper()):
        assert (await users.view(market.context, ROOT, name)).user.id == second
    assert [row.action for row in (await users.view(market.context, ROOT, second)).log] == [
        "user.view"
    ] * 4


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nobody", Code.USER_NOT_FOUND),
        ("", Code.INVALID_FIELD),
        ("a\x00b", Code.INVALID_FIELD),
        ("\ud800", Code.INVALID_FIELD),
        ("x" * 100_000, Code.INVALID_FIELD),
    ],
)
async def test_a_name_that_no_user_has_is_refused(market: Market, name: str, code: Code) -> None:
    assert (await refusal(users.view(market.context, ROOT, name))).code is code


async def test_a_note_has_a_bound(market: Market) -> None:
    user = await market.person()
    await users.note(market.context, ROOT, user, "two\nlines")
    for text in ("", "x" * 2_001, "a\x00"):
        error = await refusal(users.note(market.context, ROOT, user, text))
        assert error.code is Code.INVALID_FIELD
