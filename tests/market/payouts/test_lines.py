"""The lines of each term of earnings add up to the term, on both engines."""

import pytest
from msgspec.structs import replace
from support.market.jobs import device_of, running, wanted
from support.market.market import Market
from support.market.payouts import (
    check_lines,
    earn,
    earn_usd,
    earner,
    earnings,
    request,
    reward,
    send,
)
from support.market.staff import ROOT
from support.market.staff_money import corrected

from market.attempts.attempts import Ending, FailureKind
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Template
from market.money.money import MICRO, Currency
from market.payouts import steps
from market.payouts.lines import Lines, Term
from market.payouts.terms import FailReason

pytestmark = pytest.mark.both_engines
CREDIT = Currency.CREDIT


async def test_earned_money_that_a_replica_has_used_is_spent_and_not_held(market: Market) -> None:
    user, owner = await market.person(), await market.person()
    await earn(market, user, 400)
    before = await earnings(market, user)
    new = NewDeploy(
        job_name="a service",
        job_type="Docker",
        gpu_model="A100",
        gpu_count=1,
        duration_hrs=2,
        replicas=1,
        currency=CREDIT,
        image="web:1",
        template=Template(),
    )
    deploy = await market.deploys.create(user, new)
    assert (await earnings(market, user)).held == 300 * MICRO
    [job] = (await market.deploys.find(user, deploy.id)).job_ids
    device = await device_of(market, owner)
    await market.jobs.accept(device, job)
    await market.attempt_reports.started(device, job, None)
    market.clock.now += 5_400  # of 7,200 seconds
    await market.jobs.fail(device, job, "bye", ending=Ending(FailureKind.HOST))
    found = await earnings(market, user)
    assert (found.held, found.spent) == (75 * MICRO, 225 * MICRO)
    assert found.earned == before.earned == found.available + found.held + found.spent
    for limit in (1, 2, 1_000):
        await check_lines(market, user, limit)
    await market.deploys.cancel(user, deploy.id)
    found = await earnings(market, user)
    assert (found.held, found.spent) == (0, 225 * MICRO)
    await check_lines(market, user)


async def test_the_lines_of_each_term_add_up_to_it(market: Market) -> None:
    market.payouts.terms = replace(market.payouts.terms, fee=MICRO // 2, a_day=9)
    user, method = await earner(market)
    await check_lines(market, user)
    await earn_usd(market, user)
    await earn(market, user, 500)
    await reward(market, user, 100)
    paid, returned = [await request(market, user, method, 500) for _ in range(2)]
    for row in (paid, returned):
        await market.store.write(steps.approve, market.context, row.id)
        await send(market, row)
        await market.store.write(steps.pay, market.context, row.id)
    await market.store.write(steps.fail, market.context, returned.id, FailReason.RETURNED)
    cancelled = await request(market, user, method, 500)
    await market.payouts.cancel(user, cancelled.id)
    waiting = await request(market, user, method, 500)
    bought, device = await running(market, user, await market.person(), price=150 * MICRO)
    await market.jobs.complete(device, bought, "done")
    back = await market.jobs.create(user, wanted(price=200 * MICRO))
    await market.jobs.cancel(user, back)
    held = await market.jobs.create(user, wanted(price=70 * MICRO))
    await corrected(market, ROOT, user, -30, currency=CREDIT)
    found = await earnings(market, user)
    assert min(getattr(found, term) for term in Term) > 0
    for limit in (1, 2, 1_000):
        await check_lines(market, user, limit)
    await check_lines(market, await market.person())

    async def of(term: Term) -> list[tuple[str, str, int]]:
        rows = await market.payouts.lines(user, Lines(CREDIT, term, "", 100))
        return [(row.kind, row.reference, row.amount) for row in rows]

    assert await of(Term.HELD) == [("hold", f"job:{held}", 70 * MICRO)]
    assert await of(Term.IN_PAYOUT) == [("payout", f"payout:{waiting.id}", waiting.amount)]
    net = paid.amount - paid.fee_amount
    assert await of(Term.PAID) == [("payout", f"payout:{paid.id}", net)]
    assert await of(Term.FEES) == [("payout", f"payout:{paid.id}", paid.fee_amount)]
    assert {kind for kind, _, _ in await of(Term.EARNED)} == {"earning"}
    assert {kind for kind, _, _ in await of(Term.SPENT)} == {"hold", "release", "correction"}
