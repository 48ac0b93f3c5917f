"""Findings about an exit are stored; it is barred, and can be pardoned."""

from collections.abc import Awaitable
from typing import Any

import pytest
from support.market.books import available, balance
from support.market.exits import claw_back, exit_device, through
from support.market.market import Market

from market.base.errors import Code, MarketError
from market.exits.canaries import EVIDENCE_MAX_CHARACTERS, barred, pardon, record
from market.exits.consents import BARRED_WORDS
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import GB


async def refusal(attempt: Awaitable[Any]) -> MarketError:
    with pytest.raises(MarketError) as caught:
        await attempt
    return caught.value


async def test_a_finding_bars_the_device_and_notifies_its_watchers(market: Market) -> None:
    made = await exit_device(market)
    told: list[str] = []
    market.exits.watch(told.append)
    await market.exit_canaries.bar(made.id, "content", "evil\x1b bytes")
    assert told == [made.id]
    error = await refusal(market.exits.authorize(made.token, market.exits.terms_hash))
    assert error.code is Code.EXIT_BARRED
    assert BARRED_WORDS["content"] in error.message
    terms_hash = market.exits.terms_hash
    error = await refusal(market.exits.consent(made.owner, made.id, terms_hash, None))
    assert error.code is Code.EXIT_BARRED
    found = await record(market.context, made.id)
    [finding] = found.findings
    assert (finding.kind, finding.evidence) == ("content", "evil? bytes")
    assert finding.found_at == market.clock.now
    assert [(each.event, each.reason) for each in found.history] == [
        ("given", ""),
        ("barred", "canary: content"),
    ]
    [row] = await barred(market.context)
    assert (row.device_id, row.user_id, row.barred_for) == (made.id, made.owner, "content")


async def test_evidence_has_a_bound_and_a_second_finding_is_kept(market: Market) -> None:
    made = await exit_device(market)
    await market.exit_canaries.bar(made.id, "junk", "x" * 10_000)
    await market.exit_canaries.bar(made.id, "silence", "y")
    found = await record(market.context, made.id)
    assert len(found.findings[0].evidence) == EVIDENCE_MAX_CHARACTERS
    assert [each.kind for each in found.findings] == ["junk", "silence"]
    assert found.row.barred_for == "junk"
    assert [each.event for each in found.history] == ["given", "barred"]


async def test_a_missing_device_is_not_barred(market: Market) -> None:
    await market.exit_canaries.bar("nobody", "junk", "x")
    assert await barred(market.context) == []


async def test_bytes_that_it_carried_of_open_sessions_earn_nothing(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 2, (made, GB // 2))
    await market.exit_canaries.bar(made.id, "content", "")
    await session.end()
    assert await balance(market, ledger.pending(made.owner)) == 0
    assert await available(market, session.buyer) == 100_000_000
    assert (await audit_ledger(market.store)).passed


@pytest.mark.both_engines
async def test_a_pardon_undoes_a_bar(market: Market) -> None:
    made = await exit_device(market)
    await market.exit_canaries.bar(made.id, "content", "")
    market.clock.now += 5
    await pardon(market.context, made.id)
    grant = await market.exits.authorize(made.token, market.exits.terms_hash)
    assert grant.device_id == made.id
    found = await record(market.context, made.id)
    assert found.row.barred_at is None
    assert found.row.barred_for == ""
    assert found.findings[0].pardoned_at == market.clock.now
    assert [each.event for each in found.history] == ["given", "barred", "pardoned"]
    assert await barred(market.context) == []


async def test_a_claw_back_can_be_pardoned_and_follows_a_finding(market: Market) -> None:
    made = await exit_device(market)
    await market.exit_canaries.bar(made.id, "content", "")
    await claw_back(market.context, made.id, "cheated")
    assert (await record(market.context, made.id)).row.barred_for == "content"
    await pardon(market.context, made.id)
    await claw_back(market.context, made.id, "again")
    [row] = await barred(market.context)
    assert row.barred_for == ""
    error = await refusal(market.exits.authorize(made.token, market.exits.terms_hash))
    assert error.message == Code.EXIT_BARRED.meaning


@pytest.mark.parametrize("work", [pardon, record])
async def test_there_has_to_be_one(market: Market, work: Any) -> None:
    error = await refusal(work(market.context, "nobody"))
    assert error.code is Code.TOKEN_NOT_FOUND
