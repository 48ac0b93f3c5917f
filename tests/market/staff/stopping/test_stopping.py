"""Acts of the staff on one session, key, device or job: effective at once, and in the log."""

from collections.abc import Awaitable
from typing import Any

import pytest
from support.market.cases import letters_named, verify
from support.market.events import types_of
from support.market.exits import exit_device
from support.market.jobs import device_of
from support.market.market import RULES, Market
from support.market.staff import ROOT, acting, member

from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.bandwidth.halts import Halts
from market.bandwidth.leases import Usage
from market.base.errors import Code, MarketError
from market.base.states import JobStatus, SessionStatus
from market.jobs.outcomes import Outcomes
from market.jobs.postings import NewJob
from market.money.money import GB, MICRO
from market.staff.audit import audit_all
from market.staff.base.roles import Role
from market.staff.finding import history
from market.staff.stopping import stopping
from storage.bandwidth import sessions as session_queries
from storage.jobs import jobs as job_queries

WHY = "ticket A-17"


async def code_of(attempt: Awaitable[Any]) -> Code:
    with pytest.raises(MarketError) as refused:
        await attempt
    return refused.value.code


async def actions(market: Market, user: str) -> list[str]:
    rows = await history.read(market.context, ROOT, user=user, limit=50)
    return [row.action for row in reversed(rows)]


async def test_a_session_is_halted_goes_on_and_is_ended_with_its_bytes(market: Market) -> None:
    user = await market.person(usd="20")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    session_id, context = bought.session_id, market.context
    node = Halts(context)
    assert await code_of(stopping.let_session_go(context, ROOT, session_id, WHY)) is (
        Code.SESSION_NOT_HALTED
    )
    await stopping.halt_session(context, ROOT, bought.username, WHY)  # by its proxy user name
    grant = await market.lease(bought)
    assert grant is not None
    assert (grant.status, grant.lease_id) == (SessionStatus.ENDED, None)
    shown = await stopping.show_session(context, ROOT, session_id)
    assert (shown.row.status, shown.halted_at, shown.is_suspended) == (
        "active",
        market.clock.now,
        False,
    )
    await stopping.let_session_go(context, ROOT, session_id, WHY)
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.lease_id is not None

    ordered = await stopping.begin_end(context, ROOT, session_id, WHY)
    assert ordered.session_id == session_id
    # As a node does, once it has cut the connections.
    await market.leases.release([Usage(session_id, grant.lease_id, GB // 4)])
    assert await stopping.finish_end(context, session_id)
    assert not await stopping.finish_end(context, session_id)
    row = await market.store.read(session_queries.find, session_id)
    assert row is not None
    assert (row.status, row.bytes_used) == ("ended", GB // 4)
    for act in (stopping.begin_end, stopping.halt_session, stopping.let_session_go):
        assert await code_of(act(context, ROOT, session_id, WHY)) is Code.SESSION_NOT_FOUND
    assert [each.kind for each in await node.new()] == ["halt", "go", "halt"]
    assert await actions(market, user) == [
        "session.halt",
        "session.view",
        "session.go",
        "session.end",
    ]
    report = await audit_all(market.store)
    assert report.passed, report


@pytest.mark.both_engines
async def test_a_key_is_revoked(market: Market) -> None:
    context, letters = market.context, market.letters
    user = await market.person()
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    support = acting(await member(market, Role.SUPPORT))
    assert await stopping.revoke_key(context, letters, support, key.row.id, WHY) == "k"
    # The address is not confirmed.
    assert await letters_named(market, f"key revoked:{key.row.id}") == 0
    assert await code_of(market.keys.authenticate(key.key, "")) is Code.UNAUTHORIZED
    again = stopping.revoke_key(context, letters, support, key.row.id, WHY)
    assert await code_of(again) is Code.KEY_NOT_FOUND
    assert (await types_of(market, user))[-1] == "key.revoked"
    await verify(market, user)
    for length in (len(key.key), 10):  # by its text, and by the beginning of it
        key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
        wrong = stopping.revoke_key(context, letters, support, key.key[:-1] + "!", WHY)
        assert await code_of(wrong) is Code.KEY_NOT_FOUND
        assert await stopping.revoke_key(context, letters, support, key.key[:length], WHY) == "k"
        assert await letters_named(market, f"key revoked:{key.row.id}") == 1
    assert await actions(market, user) == ["key.revoke"] * 3


async def test_a_device_is_barred_and_pardoned(market: Market) -> None:
    device, context = await exit_device(market), market.context
    support = acting(await member(market, Role.SUPPORT))
    assert await code_of(stopping.bar_device(context, support, device.id, WHY)) is (
        Code.NOT_PERMITTED
    )
    assert not (await market.exits.current(device.id)).paused
    await stopping.bar_device(context, ROOT, device.id, WHY)
    assert await code_of(market.exits.current(device.id)) is Code.EXIT_BARRED
    await stopping.pardon_device(context, ROOT, device.id, WHY)
    assert not (await market.exits.current(device.id)).paused
    assert await code_of(stopping.pardon_device(context, ROOT, device.id, WHY)) is (
        Code.TOKEN_NOT_FOUND
    )
    assert await code_of(stopping.bar_device(context, ROOT, "none", WHY)) is Code.TOKEN_NOT_FOUND
    assert await actions(market, device.owner) == ["device.bar", "device.pardon"]


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_job_is_cancelled_as_by_its_buyer(market: Market, is_running: bool) -> None:
    buyer, context = await market.person(credit="10"), market.context
    job = await market.jobs.create(buyer, NewJob("a title", "script", MICRO, 1, "", ""))
    if is_running:
        await market.jobs.accept(await device_of(market, await market.person()), job)
    outcomes = Outcomes(context, RULES.jobs, market.bounds)
    await stopping.cancel_job(context, outcomes, ROOT, job, WHY)
    found = await market.store.read(job_queries.find, job)
    assert found is not None
    assert found.status == JobStatus.CANCELLED
    again = stopping.cancel_job(context, outcomes, ROOT, job, WHY)
    assert await code_of(again) is Code.JOB_OVER
    none = stopping.cancel_job(context, outcomes, ROOT, "none", WHY)
    assert await code_of(none) is Code.JOB_NOT_FOUND
    assert (await types_of(market, buyer))[-1] == "job.cancelled"
    assert await actions(market, buyer) == ["job.cancel"]
    report = await audit_all(market.store)
    assert report.passed, report
