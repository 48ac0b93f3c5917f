"""Rules that stop: a halt with an end, once for a finding, and a suspension after several."""

import asyncio

import pytest
from support.market.events import types_of
from support.market.market import Market
from support.market.staff import ROOT

from market.bandwidth.sessions import Halted
from market.base.states import SessionStatus
from market.money.money import GB
from market.staff import rule_stops
from market.staff.abuse import tickets
from market.staff.abuse.rule_tickets import Found, Peak
from market.staff.audit import audit_all
from market.staff.finding import history
from market.staff.rule_stops import Stopped, Threshold
from market.staff.stopping import stopping, suspending
from storage.accounts import suspensions
from storage.engines.store import Transaction

FIGURES = {"port": 22, "targets": 201, "dials": 201, "failed": 190}
WORDS = "Rule scan, in a minute: port 22, targets 201, dials 201, failed 190."


async def bought(market: Market) -> tuple[str, str]:
    user = await market.person(usd="20")
    sold = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    return user, sold.session_id


def found(market: Market, session: str, rule: str = "scan") -> Found:
    return Found(rule, session, market.clock.now, FIGURES)


async def test_a_stop_halts_for_a_time_and_ends_by_itself(market: Market) -> None:
    user, session = await bought(market)
    finding = found(market, session)
    until = market.clock.now + 600
    assert await rule_stops.stop(market.context, finding, 600) == Stopped(until, 1)
    assert await rule_stops.stop(market.context, finding, 600) is None  # halted already
    [shown] = await market.bandwidth.page(user, status=None, before="", limit=9)
    assert shown.halted == Halted(WORDS, market.clock.now, until)
    market.clock.now = until - 1
    assert await market.suspensions.release_due() == 0
    market.clock.now = until
    assert await market.suspensions.release_due() == 1
    assert await market.suspensions.release_due() == 0
    assert (await market.bandwidth.one(user, session)).session.halted is None
    # The finding of before the release never stops again, a new one does.
    assert await rule_stops.stop(market.context, finding, 600) is None
    market.clock.now += 1
    assert await rule_stops.stop(market.context, found(market, session), 600) == Stopped(
        until + 601, 1
    )
    page = await tickets.show(market.context, ROOT, 1)
    assert (page.facts["stops"], page.row.category, page.row.user_id) == (2, "scan", user)
    assert [row.via for row in page.history] == ["rule", "rule"]
    rows = await history.read(market.context, ROOT, user=user, limit=50)
    halts = [row for row in rows if row.action == "session.halt"]
    assert [(row.via, row.text) for row in halts] == [("rule", WORDS)] * 2
    kinds = [each for each in await types_of(market, user) if each.startswith("session.")]
    assert kinds == ["session.created", "session.halted", "session.resumed", "session.halted"]
    assert (await audit_all(market.store)).passed


@pytest.mark.both_engines
async def test_three_stops_in_a_day_suspend_until_a_person_decides(market: Market) -> None:
    user, session = await bought(market)

    async def stop() -> None:
        market.clock.now += 1
        assert await rule_stops.stop(market.context, found(market, session), 60) is not None
        assert await market.rule_stops.follow() == 1
        assert await market.rule_stops.follow() == 0
        market.clock.now += 60
        await market.suspensions.release_due()

    async def parts() -> list[str]:
        rows = await market.store.read(suspensions.of_user, user)
        return [row.part for row in rows if row.ends_at is None]

    for _ in range(2):
        await stop()
    market.clock.now += 86_400  # the first two are too old to count
    for _ in range(2):
        await stop()
    assert await parts() == []
    await stop()
    assert await parts() == ["keys", "sessions"]
    shown = (await market.bandwidth.one(user, session)).session.halted
    assert shown is not None
    assert "3 times within 24 hours (scan)" in shown.reason
    await suspending.resume(market.context, market.letters, ROOT, user, why="looked at it")
    for _ in range(2):  # the person's decision stands: three others are needed
        await stop()
    assert await parts() == []


@pytest.mark.both_engines
async def test_nodes_and_persons_race_for_one_session(market: Market) -> None:
    _, session = await bought(market)
    finding = found(market, session)
    results = await asyncio.gather(
        *(rule_stops.stop(market.context, finding, 60) for _ in range(5)),
        stopping.halt_session(market.context, ROOT, session, "a person"),
    )
    assert sum(isinstance(each, Stopped) for each in results) <= 1
    market.clock.now += 61
    assert await market.suspensions.release_due() == 0  # the halt of a person has no end
    await stopping.let_session_go(market.context, ROOT, session, "resolved")
    assert await rule_stops.stop(market.context, finding, 60) is None


async def test_a_session_that_is_over_or_unknown_is_not_stopped(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, session = await bought(market)
    assert await rule_stops.stop(market.context, found(market, "unknown"), 60) is None
    monkeypatch.setattr(tickets, "OPEN_MAX", 0)  # a full list lets no scanner go on
    assert await rule_stops.stop(market.context, found(market, session), 60) == Stopped(
        market.clock.now + 60, None
    )
    await market.bandwidth.end(user, session)
    market.clock.now += 61
    assert await rule_stops.stop(market.context, found(market, session), 60) is None
    assert await market.suspensions.release_due() == 1
    assert (await market.bandwidth.one(user, session)).session.status is SessionStatus.ENDED
    assert (await types_of(market, user))[-1] != "session.resumed"


@pytest.mark.both_engines
async def test_a_trial_counts_what_other_figures_would_have_found(market: Market) -> None:
    _, session = await bought(market)
    _, other = await bought(market)
    now = market.clock.now - market.clock.now % 3600
    peaks = [
        Peak("scan", session, now, 150, 90),
        Peak("scan", session, now, 120, 95),  # lower: the higher one stays
        Peak("scan", other, now, 400, 10),
        Peak("mail", other, now - 60, 9, 100),
        Peak("mail", "unknown", now, 9, 100),
    ]
    for each in peaks:
        await rule_stops.raise_peaks(market.context, [each])
    thresholds = {"scan": Threshold(100, 60), "mail": Threshold(5), "login": Threshold(0)}
    scan, mail, login = await rule_stops.trial(market.context, ROOT, thresholds)
    assert (scan.would, mail.would, login.would) == ((1, 1, 1), (1, 1, 1), (0, 0, 0))
    [scan] = await rule_stops.trial(market.context, ROOT, {"scan": Threshold(150, 5)})
    assert (scan.would.sessions, scan.stops, scan.tickets) == (1, 0, 0)
    await rule_stops.stop(market.context, found(market, session), 60)
    [scan] = await rule_stops.trial(market.context, ROOT, {"scan": Threshold(100, 60)})
    assert (scan.stops, scan.tickets) == (1, 1)
    market.clock.now += 31 * 86_400
    assert await market.rule_stops.delete_old() == 4


@pytest.mark.both_engines
async def test_a_damaged_stop_holds_up_no_other(market: Market) -> None:
    stopped = [await bought(market) for _ in range(2)]
    for _, session in stopped:
        market.clock.now += 1
        assert await rule_stops.stop(market.context, found(market, session), 60) is not None

    async def damage(tx: Transaction) -> None:
        await tx.run("UPDATE rule_stops SET figures = '[' WHERE session_id = :id", id=stopped[0][1])

    await market.store.write(damage)
    assert await market.rule_stops.follow() == 1
    assert await market.rule_stops.follow() == 0
