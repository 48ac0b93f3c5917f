"""A suspended user: the refusals, the event, the letter, and the orders to the nodes."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest
from support.base.cases import cases
from support.market.events import said
from support.market.jobs import device_of
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.accounts.accounts import Caller
from market.accounts.keys import NewKey
from market.accounts.letters import Letters
from market.accounts.scopes import Scope
from market.accounts.suspensions import Part
from market.bandwidth import halts
from market.bandwidth.halts import Halts
from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.base.sweeping import PUT_OFF_SECONDS
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Change
from market.jobs.postings import NewJob
from market.money.money import GB, MICRO, Currency
from market.staff import rule_stops
from market.staff.abuse.rule_tickets import Found
from market.staff.audit import audit_all
from market.staff.base.roles import Author, Role
from market.staff.finding import users
from market.staff.stopping import suspending
from market.staff.stopping.suspending import ALL, Ordered
from storage.accounts import users as user_queries
from storage.bandwidth import halts as halt_queries
from storage.engines.store import Transaction
from storage.staff.stopping import suspending as stored

DAY = 86_400
JOB = NewJob("a title", "script", MICRO, 1, "", "")


def letters_of(market: Market) -> Letters:
    return Letters(market.emails, "https://app.example.com")


async def suspend(
    market: Market, user: str, *parts: Part, author: Author = ROOT, **options: Any
) -> Ordered:
    given: dict[str, Any] = {
        "parts": parts or ALL,
        "ends_at": None,
        "shown": "spam was sent",
        "why": "ticket A-17",
        **options,
    }
    return await suspending.suspend(market.context, letters_of(market), author, user, **given)


async def resume(market: Market, user: str, *parts: Part, author: Author = ROOT) -> Ordered:
    return await suspending.resume(
        market.context, letters_of(market), author, user, parts=parts or ALL, why="resolved"
    )


async def code_of(attempt: Awaitable[Any]) -> Code:
    with pytest.raises(MarketError) as refused:
        await attempt
    return refused.value.code


async def caller_of(market: Market, number: int = 1) -> tuple[str, Caller]:
    login = await market.accounts.login(email=f"person{number}@example.com", password="long enough")
    return login.token, await market.accounts.authenticate(login.token)


async def run(tx: Transaction, statement: str) -> int:
    return await tx.run(statement)


async def test_each_part_of_a_user_stops_and_resumes(market: Market) -> None:
    user = await market.person(usd="20", credit="10")
    token, caller = await caller_of(market)
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    by_key = await market.keys.authenticate(key.key, "")
    await suspend(market, user)
    # A login stays valid, so that its owner can read the reason.
    suspended = await market.accounts.authenticate(token)
    assert (caller.suspended, suspended.suspended) == (None, "spam was sent")
    assert not await market.accounts.is_current(caller)
    assert await market.accounts.is_current(suspended)  # of a new password, whose body comes later
    assert not await market.accounts.is_current(by_key)
    with pytest.raises(MarketError, match="spam was sent") as refused:
        await market.keys.authenticate(key.key, "")
    assert refused.value.code is Code.ACCOUNT_SUSPENDED
    grant = await market.lease(bought)
    assert grant is not None
    assert (grant.status, grant.lease_id) == (SessionStatus.ENDED, None)
    buying = market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert await code_of(buying) is Code.ACCOUNT_SUSPENDED
    assert await code_of(market.jobs.create(user, JOB)) is Code.ACCOUNT_SUSPENDED
    page = await users.view(market.context, ROOT, user)
    assert (page.profile.usd_available, page.profile.usd_held) == (19 * MICRO, MICRO)
    assert [row.status for row in page.sessions] == ["active"]
    assert {row.part for row in page.suspended} == set(ALL)

    await resume(market, user)
    assert (await market.accounts.authenticate(token)).suspended is None
    assert await market.accounts.is_current(caller)
    assert (await market.keys.authenticate(key.key, "")).key is not None
    grant = await market.lease(bought)
    assert grant is not None
    assert (grant.status, grant.granted_bytes) == (SessionStatus.ACTIVE, GB)
    await market.jobs.create(user, JOB)
    assert await said(market, user, "account.suspended") == [
        {"parts": [*Part], "reason": "spam was sent", "ends_at": None}
    ]
    assert await said(market, user, "account.resumed") == [{"parts": sorted(Part)}]
    report = await audit_all(market.store)
    assert report.passed, report


async def test_one_part_stops_alone(market: Market) -> None:
    user = await market.person(usd="20")
    token, _ = await caller_of(market)
    ordered = await suspend(market, user, Part.PURCHASES, Part.DEVICES)
    assert (ordered.parts, ordered.nodes) == (("devices", "purchases"), ())
    assert (await market.accounts.authenticate(token)).suspended is None
    assert await code_of(resume(market, user, Part.KEYS)) is Code.NOT_SUSPENDED
    await resume(market, user, Part.PURCHASES, Part.KEYS)
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    [row] = (await users.view(market.context, ROOT, user)).suspended
    assert (row.part, row.shown) == ("devices", "spam was sent")


async def test_devices_of_a_suspended_owner_get_no_jobs_and_carry_nothing(market: Market) -> None:
    buyer, owner = await market.person(credit="10"), await market.person()
    device = await device_of(market, owner)
    await market.exits.consent(owner, device.id, market.exits.terms_hash)
    job = await market.jobs.create(buyer, JOB)
    assert not (await market.exits.current(device.id)).paused
    await suspend(market, owner, Part.DEVICES)
    assert (await market.exits.current(device.id)).paused
    assert await code_of(market.jobs.accept(device, job)) is Code.ACCOUNT_SUSPENDED
    await resume(market, owner)
    assert not (await market.exits.current(device.id)).paused
    await market.jobs.accept(device, job)


async def test_a_suspended_buyer_gives_a_deploy_no_other_work(market: Market) -> None:
    """A revision posts new jobs, with other work, on devices of strangers."""
    user = await market.person(usd="20")
    new = NewDeploy("web", "Docker", "A100", 1, 2, 2, Currency.USD, image="web:1")
    deploy = (await market.deploys.create(user, new)).id
    rollouts = market.rollouts
    assert await rollouts.revise(user, deploy, Change(image="web:2")) == 2
    await suspend(market, user, Part.PURCHASES)
    for attempt in (
        rollouts.revise(user, deploy, Change(image="evil:1")),
        rollouts.revise(user, deploy, Change(image="evil:1"), replicas=1),
        rollouts.restart(user, deploy),
        rollouts.rollback(user, deploy, 1),
    ):
        assert await code_of(attempt) is Code.ACCOUNT_SUSPENDED
    assert len(await rollouts.revisions(user, deploy)) == 2
    await rollouts.scale(user, deploy, 1)
    await resume(market, user)
    assert await rollouts.rollback(user, deploy, 1) == 3


@pytest.mark.both_engines
async def test_a_suspension_ends_by_itself(market: Market) -> None:
    user = await market.person(usd="20")
    start = market.clock.now
    await suspend(market, user, Part.KEYS, ends_at=start + DAY)
    await suspend(market, user, Part.PURCHASES, Part.SESSIONS, ends_at=start + 2 * DAY)
    market.clock.now = start + DAY - 1
    assert await market.suspensions.end_due() == 0
    market.clock.now += 1
    assert await market.suspensions.end_due() == 1
    assert await said(market, user, "account.resumed") == [{"parts": ["keys"]}]
    market.clock.now = start + 2 * DAY
    assert await market.suspensions.end_due() == 1
    assert (await users.view(market.context, ROOT, user)).suspended == []
    kinds = [row.kind for row in await market.store.read(halt_queries.after, 0, limit=9)]
    assert kinds == ["look", "halt", "look", "go"]


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_part_or_a_halt_that_cannot_end_delays_no_other(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    users = [await market.person(usd="20") for _ in range(2)]
    end = market.clock.now + 60
    sessions = []
    for user in users:
        bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
        finding = Found("scan", bought.session_id, market.clock.now, {})
        assert await rule_stops.stop(market.context, finding, 60) is not None
        sessions.append(bought.session_id)
        await suspend(market, user, Part.KEYS, Part.LOGINS, ends_at=end)
    for table, change, column, value in (
        ("suspended_parts", "DELETE", "user_id", users[0]),
        ("bandwidth_sessions", "UPDATE", "id", sessions[0]),
    ):
        await market.store.write(
            run,
            f"CREATE TRIGGER broken_{table} BEFORE {change} ON {table} "
            f"WHEN OLD.{column} = '{value}' BEGIN SELECT RAISE(ABORT, 'broken'); END",
        )
    market.clock.now = end
    for found in (1, 0):
        assert await market.suspensions.end_due() == found
        assert await market.suspensions.release_due() == found
    expected = {
        f"the suspension of user {users[0]} cannot be ended",
        f"the halt of session {sessions[0]} cannot be ended",
    }
    assert {record.getMessage() for record in caplog.records} == expected
    for table in ("suspended_parts", "bandwidth_sessions"):
        await market.store.write(run, f"DROP TRIGGER broken_{table}")
    market.clock.now += PUT_OFF_SECONDS
    assert await market.suspensions.end_due() == 1
    assert await market.suspensions.release_due() == 1


async def test_the_letter_goes_to_a_confirmed_address(market: Market) -> None:
    user, unconfirmed = await market.person(), await market.person()
    await market.store.write(user_queries.set_email_verified, user, 1)
    await suspend(market, user, Part.LOGINS, ends_at=market.clock.now + DAY)
    await suspend(market, unconfirmed, Part.LOGINS)
    rows = await market.emails.due(again=False, limit=10)
    [row] = [each for each in rows if each.item_key.startswith("account")]
    item = await market.emails.claim(row)
    assert item is not None
    message = json.loads(item.payload)
    assert message["to"] == "person1@example.com"
    assert "logins" in message["text"]
    assert "spam was sent" in message["text"]


async def test_support_suspends_for_a_day_and_resumes_only_that(market: Market) -> None:
    user = await market.person()
    support = acting(await member(market, Role.SUPPORT))
    finance = acting(await member(market, Role.FINANCE))
    tomorrow = market.clock.now + DAY
    for author, ends_at in ((support, None), (support, tomorrow + 1), (finance, tomorrow)):
        attempt = suspend(market, user, author=author, ends_at=ends_at)
        assert await code_of(attempt) is Code.NOT_PERMITTED
    await suspend(market, user, Part.KEYS, author=support, ends_at=tomorrow)
    await resume(market, user, author=support)
    await suspend(market, user, Part.KEYS)
    again = suspend(market, user, Part.KEYS, author=support, ends_at=tomorrow)
    assert await code_of(again) is Code.NOT_PERMITTED
    assert await code_of(resume(market, user, author=support)) is Code.NOT_PERMITTED


@cases(
    "options",
    [
        {"parts": ()},
        {"shown": " "},
        {"shown": "x" * 501},
        {"why": ""},
        {"ends_at": 0},
        {"ends_at": 2**62},
    ],
)
async def test_a_wrong_suspension_changes_nothing(market: Market, options: Any) -> None:
    user = await market.person()
    assert await code_of(suspend(market, user, **options)) is Code.INVALID_FIELD
    page = await users.view(market.context, ROOT, user)
    assert (page.suspended, page.log) == ([], [])


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_changed_reason_is_found_by_the_audit(market: Market) -> None:
    await suspend(market, await market.person())
    assert (await audit_all(market.store)).passed
    await market.store.write(run, "DROP TRIGGER texts_only_erased")
    await market.store.write(run, "UPDATE texts SET body = 'none' WHERE kind = 'decision'")
    report = await audit_all(market.store)
    assert "the text that was shown was changed" in str(report)


@pytest.mark.both_engines
async def test_nodes_carry_out_each_order_and_acknowledge_it(market: Market) -> None:
    node = Halts(market.context)
    user = await market.person()
    await suspend(market, user)
    await node.begin()
    assert await node.new() == []
    ordered = await suspend(market, user)
    [order] = await node.new()
    assert (order.number, order.kind, order.user_id) == (ordered.number, "halt", user)
    names = ("a", "b")
    waiting = asyncio.create_task(
        halts.answered(market.context, ordered.number, names, seconds=0.05)
    )
    await node.done("a", [(order.number, 3)])
    await node.done("a", [(order.number, 3)])
    answer = await waiting
    assert (answer.nodes, answer.connections, answer.silent) == (2, 3, ("b",))
    assert await node.new() == []
    answer = await halts.answered(market.context, ordered.number, ("a",))
    assert (answer.silent, answer.connections) == ((), 3)


async def test_old_orders_are_deleted_but_for_the_newest_and_numbers_go_on(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "KEPT_MIN", 3)
    node, user = Halts(market.context), await market.person()

    async def numbers() -> list[int]:
        return [row.number for row in await market.store.read(halt_queries.after, 0, limit=9)]

    for _ in range(4):
        await suspend(market, user)
    await node.done("a", [(1, 0), (3, 0)])
    assert await numbers() == [1, 2, 3, 4]  # none is old
    market.clock.now += DAY + 1
    ordered = await suspend(market, user)
    assert await numbers() == [3, 4, 5]
    assert ordered.number == 5


async def test_a_clock_that_jumps_days_ahead_takes_no_order_from_a_node(market: Market) -> None:
    node, user = Halts(market.context), await market.person()
    await node.begin()
    first = await suspend(market, user)
    market.clock.now += 3 * DAY
    second = await resume(market, user)
    assert [order.number for order in await node.new()] == [first.number, second.number]


@pytest.mark.both_engines
async def test_no_purchase_passes_a_suspension(market: Market) -> None:
    """Purchases race with a suspension: the second of two transactions sees the first."""
    user = await market.person(usd="100")

    async def buy() -> str:
        try:
            return (
                await market.bandwidth.buy(user, quota_bytes=GB // 10, price_per_gb=None)
            ).session_id
        except MarketError as error:
            return "" if error.code is Code.ACCOUNT_SUSPENDED else str(error)

    buyers = [asyncio.create_task(buy()) for _ in range(30)]
    while not any(each.done() for each in buyers):
        await asyncio.sleep(0)
    await suspend(market, user)
    late = await buy()
    sessions = [each for each in await asyncio.gather(*buyers) if each]
    assert (late, bool(sessions)) == ("", True)
    for session_id in sessions:
        assert await market.store.read(halt_queries.is_halted, session_id)
        grant = await market.leases.open(session_id)
        assert grant is not None
        assert grant.lease_id is None
