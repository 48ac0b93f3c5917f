"""A device's work in its owner's view, on both engines: its state, its jobs, its earnings."""

from support.market.books import refusal
from support.market.jobs import device_of, on, running, wanted
from support.market.market import Market

from market.attempts.attempts import Ending, FailureKind
from market.base.errors import Code
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Template
from market.dispatch.device_work import DeviceWork, EarnedDay, WorkState
from market.money.money import MICRO, Currency
from proxyctl.protocol.jobspec import Port, Ready

DAY, HOUR = 86_400, 3_600
PROBE = Template(ports=(Port("web", 8080),), ready=Ready(8080))


async def test_earnings_of_jobs_and_of_time_are_summed_by_day(market: Market) -> None:
    buyer, owner = await market.person("3", credit="100"), await market.person()
    first = market.clock.now // DAY
    market.clock.now = first * DAY + HOUR
    device = await device_of(market, owner)
    for _ in range(2):
        job_id = await market.jobs.create(buyer, wanted())
        await market.jobs.accept(device, job_id)
        await market.jobs.complete(device, job_id, "")
    market.clock.now += DAY
    new = NewDeploy("a", "Docker", "A100", 1, 2, 1, Currency.USD, "web:1", template=PROBE)
    deploy = await market.deploys.create(buyer, new)
    [replica] = (await market.deploys.find(buyer, deploy.id)).job_ids
    await market.jobs.accept(device, replica)
    await market.attempt_reports.started(device, replica, None)
    await market.attempt_reports.ready(device, replica, None)
    market.clock.now += HOUR
    await market.deploys.cancel(buyer, deploy.id)
    days = await market.device_work.earned(owner, device.id, 30)
    assert days == [
        EarnedDay(first + 1, 135 * MICRO, 0, 0),  # half of 300 credits, less a tenth
        EarnedDay(first, 18 * MICRO, 0, 0),
    ]
    assert await market.device_work.earned(owner, device.id, 1) == days[:1]
    market.clock.now += DAY
    assert await market.device_work.earned(owner, device.id, 1) == []
    found = await market.device_work.jobs(owner, device.id, before="", limit=10)
    newest, *rest = [each.row for each in found]
    assert (newest.id, newest.earned, newest.outcome) == (replica, 135 * MICRO, "cancelled")
    assert [row.earned for row in rest] == [9 * MICRO, 9 * MICRO]


async def test_of_a_job_that_came_back_the_last_attempt_is_listed(market: Market) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, owner)
    await market.jobs.fail(device, job_id, "hot", ending=Ending(FailureKind.HOST))
    await market.jobs.accept(device, job_id)
    [done] = await market.device_work.jobs(owner, device.id, before="", limit=10)
    row = done.row
    assert (row.id, row.attempt, row.outcome, row.earned) == (job_id, 2, None, 0)
    assert await market.device_work.jobs(owner, device.id, before=job_id, limit=10) == []


async def test_the_earnings_of_another_device_at_a_job_are_its_own(market: Market) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, owner)
    await market.jobs.fail(device, job_id, "hot", ending=Ending(FailureKind.HOST))
    other = await on(market, job_id, await market.person())
    await market.jobs.complete(other, job_id, "")
    [done] = await market.device_work.jobs(owner, device.id, before="", limit=10)
    row = done.row
    assert (row.outcome, row.earned) == ("lost", 0)
    assert await market.device_work.earned(owner, device.id, 30) == []


async def test_the_running_jobs_of_a_device_are_its_activity_while_it_reports(
    market: Market,
) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    _, device = await running(market, buyer, owner)
    idle = await device_of(market, owner)
    market.devices.heartbeat(device, {})
    market.devices.heartbeat(idle, {})
    states = await market.device_work.states(await market.devices.page(owner, before="", limit=10))
    assert states == {device.id: WorkState.WORKING, idle.id: WorkState.NOT_ASKING}
    assert (await market.device_work.find(owner, device.id)).running == 1
    market.clock.now += DAY
    assert (await market.device_work.find(owner, device.id)).state is WorkState.OFFLINE


async def test_where_other_nodes_may_know_more_a_device_is_shown_as_waiting(
    market: Market,
) -> None:
    owner = await market.person()
    device = await device_of(market, owner)
    market.devices.heartbeat(device, {})
    shared = DeviceWork(market.context, market.devices, market.dispatch, is_shared=True)
    seen = await shared.find(owner, device.id)
    assert (seen.state, seen.standing.is_reported) == (WorkState.WAITING, True)


async def test_a_device_of_another_user_is_not_found(market: Market) -> None:
    device = await device_of(market, await market.person())
    stranger = await market.person()
    work = market.device_work
    for asked in (
        work.find(stranger, device.id),
        work.jobs(stranger, device.id, before="", limit=1),
        work.earned(stranger, device.id, 1),
    ):
        assert await refusal(asked) is Code.TOKEN_NOT_FOUND
