"""Deploys with a template: revisions, scale, and payments, on both engines."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.base.waiting import until
from support.market.books import available, earned, held, stored_job
from support.market.events import said, types_of
from support.market.jobs import device_of, prove
from support.market.market import WAITING_SECONDS, Market
from support.market.work import given

from market.accounts.bounds import Bounds
from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.accounts.spending import Spender, SpendLimits
from market.attempts.attempts import Ending, FailureKind
from market.base.bus import REPLICAS
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.sweeping import PUT_OFF_SECONDS
from market.deploys.deploys import Deploy, NewDeploy
from market.deploys.rollouts import READY_MAX_SECONDS, RolloutPace, Rollouts, Serving, serving
from market.deploys.steps import Strategy
from market.deploys.templates import Change, Template
from market.jobs import outcomes
from market.jobs.draws import DAY_SECONDS, UNREADY_FREE_IN_ALL_SECONDS, UNREADY_FREE_SECONDS
from market.jobs.kinds.replica import ENDED_EARLY
from market.jobs.overdue import STOP_SECONDS
from market.jobs.specs import Specs
from market.money.audit import audit_ledger
from market.money.money import Currency, micro
from market.trust import trust
from proxyctl.protocol.jobspec import Payload, Port, Ready, Resources
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow

if TYPE_CHECKING:
    from storage.devices.devices import DeviceRow

USD, CREDIT = Currency.USD, Currency.CREDIT
HOUR = 3_600
REPLICA_USD = micro(3)  # 1.50 x 2 hours
PROBE = Template(ports=(Port("web", 8080),), ready=Ready(8080))
FIELDS: dict[str, Any] = {
    "job_name": "a service",
    "job_type": "Docker",
    "gpu_model": "A100",
    "gpu_count": 1,
    "duration_hrs": 2,
    "replicas": 3,
    "currency": USD,
    "image": "web:1",
}
NEXT = Change(image="web:2")


class Fleet:
    """Devices of one owner, one for each replica that waits, and a daemon that looks at deploys."""

    def __init__(self, market: Market, owner: str) -> None:
        self.market = market
        self.owner = owner
        self.devices: dict[str, DeviceRow] = {}

    async def jobs(self, user: str, deploy_id: str) -> list[JobRow]:
        deploy = await self.market.deploys.find(user, deploy_id)
        return [(await self.market.jobs.find(user, each)).job for each in deploy.job_ids]

    async def take(self, user: str, deploy_id: str) -> list[str]:
        """Accept the waiting jobs, and begin the work; return which jobs that were."""
        taken = []
        for job in await self.jobs(user, deploy_id):
            if job.status == "waiting":
                device = await device_of(self.market, self.owner)
                self.devices[job.id] = device
                await self.market.jobs.accept(device, job.id)
                await self.market.attempt_reports.started(device, job.id, None)
                taken.append(job.id)
        return taken

    async def ready(self, job_ids: Sequence[str]) -> None:
        for each in job_ids:
            await self.market.attempt_reports.ready(self.devices[each], each, None)

    async def settle(self, user: str, deploy_id: str) -> Deploy:
        """Take the waiting jobs and look at the deploy until it is as it should be."""
        for _ in range(30):
            await self.market.rollouts.look(deploy_id)
            if not await self.take(user, deploy_id):
                break
        return await self.market.deploys.find(user, deploy_id)

    async def images(self, user: str, deploy_id: str) -> list[str]:
        images = []
        for job in await self.jobs(user, deploy_id):
            owned = await self.market.jobs.find(user, job.id)
            assert owned.spec is not None
            assert owned.spec.payload is not None
            images.append(owned.spec.payload.image)
        return images


@pytest.fixture
async def fleet(market: Market) -> Fleet:
    return Fleet(market, await market.person())


async def create(market: Market, user: str, **changes: Any) -> str:
    return (await market.deploys.create(user, NewDeploy(**{**FIELDS, **changes}))).id


async def running(fleet: Fleet, user: str, **changes: Any) -> str:
    deploy_id = await create(fleet.market, user, **changes)
    deploy = await fleet.settle(user, deploy_id)
    assert deploy.rollout is not None
    assert deploy.rollout.state == "available"
    return deploy_id


async def pass_time(market: Market, seconds: int, job_id: str) -> None:
    """Let time pass while the device of a replica reports."""
    end = market.clock.now + seconds
    while market.clock.now < end:
        market.clock.now += min(30, end - market.clock.now)
        market.renewals.renew(job_id, (await stored_job(market, job_id)).attempts)
        await market.job_sweeper.take_back()


async def audited(market: Market) -> bool:
    return (await audit_ledger(market.store)).passed


async def state(market: Market, user: str, deploy_id: str) -> str:
    rollout = (await market.deploys.find(user, deploy_id)).rollout
    assert rollout is not None
    return rollout.state


async def until_state(market: Market, user: str, deploy_id: str, wanted: str) -> None:
    async def is_so() -> bool:
        return await state(market, user, deploy_id) == wanted

    await until(is_so, f"the state {wanted}")


async def test_a_replica_names_its_program(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    template = Template(env={"MODE": "fast"}, ports=(Port("web", 8080),), network="egress")
    deploy_id = await create(market, user, command="serve --port '80 80'", template=template)
    assert await held(market, user) == 3 * REPLICA_USD
    for job in await fleet.jobs(user, deploy_id):
        spec = (await market.jobs.find(user, job.id)).spec
        assert spec is not None
        assert spec.payload is not None
        assert (spec.payload.image, spec.payload.command) == ("web:1", ("serve", "--port", "80 80"))
        assert (spec.payload.env, spec.payload.network) == ({"MODE": "fast"}, "egress")
        assert (spec.resources.gpus, spec.resources.gpu_model) == (1, "A100")
        assert (spec.timeout_seconds, job.duration_hrs) == (2 * HOUR, 2)
    assert await audited(market)


@pytest.mark.both_engines
async def test_replicas_are_for_devices_with_the_wanted_reputation(
    market: Market,
) -> None:
    user = await market.person("100")
    new, known = [await device_of(market, await market.person()) for _ in range(2)]
    await market.store.write(trust.checked, known.id, is_right=True)

    async def rise(tx: Transaction) -> None:
        await tx.run("UPDATE reputations SET reliability = 950000 WHERE id = :id", id=known.id)

    await market.store.write(rise)
    template = Template(min_reputation=900_000, script="print(1)")
    said = {"image": "", "gpu_model": "none", "job_type": "Script", "replicas": 1}
    await create(market, user, template=template, **said)
    await market.dispatch.pairing.reader.catch_up()
    assert await given(market, new) == []
    assert len(await given(market, known)) == 1


async def test_one_that_says_nothing_has_no_revisions(market: Market) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, image="")
    assert (await market.deploys.find(user, deploy_id)).rollout is None
    for act in (
        market.rollouts.revise(user, deploy_id, NEXT),
        market.rollouts.scale(user, deploy_id, 1),
        market.rollouts.revisions(user, deploy_id),
    ):
        with pytest.raises(MarketError) as caught:
            await act
        assert caught.value.code is Code.DEPLOY_HAS_NO_REVISIONS


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"image": "Not An Image"}, "image"),
        ({"command": "say 'hello"}, "command"),
        ({"template": Template(env={"1": ""})}, "env"),
        ({"image": "", "command": "serve"}, "image"),
    ],
)
async def test_a_deploy_that_no_device_could_run_is_refused(
    market: Market, changes: dict[str, Any], field: str
) -> None:
    user = await market.person("100")
    with pytest.raises(MarketError) as caught:
        await create(market, user, **changes)
    assert (caught.value.code, caught.value.field) == (Code.PAYLOAD_INVALID, field)
    assert await held(market, user) == 0


async def test_a_replica_counts_as_ready_when_its_device_says_so(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, template=PROBE)
    taken = await fleet.take(user, deploy_id)
    assert (await market.deploys.find(user, deploy_id)).ready_replicas == 0
    await fleet.ready(taken[:2])
    found = await market.deploys.find(user, deploy_id)
    assert (found.ready_replicas, found.available_replicas, found.updated_replicas) == (2, 2, 3)


async def test_the_ready_replicas_serve_the_newest_first(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, template=PROBE)

    async def numbers() -> list[tuple[int, int]]:
        rows = await market.store.read(serving, deploy_id)
        return [(row.revision, row.number) for row in rows]

    taken = await fleet.take(user, deploy_id)
    assert await numbers() == []
    await fleet.ready(taken)
    assert await numbers() == [(1, 1), (1, 2), (1, 3)]
    await market.rollouts.revise(user, deploy_id, NEXT)
    await market.rollouts.look(deploy_id)
    assert len(await numbers()) == 2
    [new] = await fleet.take(user, deploy_id)
    await fleet.ready([new])
    [first, *rest] = await market.store.read(serving, deploy_id)
    assert first == Serving(new, 1, fleet.devices[new].id, 1, 2, (Port("web", 8080),))
    assert [(row.revision, row.number) for row in rest] == [(1, 2), (1, 3)]
    await market.job_sweeper.take_back_attempt(new, 1, "gone")
    assert await numbers() == [(1, 2), (1, 3)]


async def test_replicas_are_replaced_one_after_the_other(market: Market, fleet: Fleet) -> None:
    user = await market.person("9")  # not a cent more than it costs
    deploy_id = await create(market, user, template=PROBE)
    await fleet.ready(await fleet.take(user, deploy_id))
    await market.rollouts.look(deploy_id)
    assert await state(market, user, deploy_id) == "available"
    assert await market.rollouts.revise(user, deploy_id, NEXT) == 2
    for done in range(3):
        await market.rollouts.look(deploy_id)
        await market.rollouts.look(deploy_id)  # nothing more before the next one is ready
        found = await market.deploys.find(user, deploy_id)
        assert (found.ready_replicas, found.updated_replicas) == (2, done + 1)
        assert await fleet.images(user, deploy_id) == ["web:2"] * (done + 1) + ["web:1"] * (
            2 - done
        )
        await fleet.ready(await fleet.take(user, deploy_id))
    await market.rollouts.look(deploy_id)
    found = await market.deploys.find(user, deploy_id)
    assert found.rollout is not None
    assert (found.rollout.state, found.available_replicas, found.status) == (
        "available",
        3,
        "running",
    )
    rows = await market.rollouts.revisions(user, deploy_id)
    assert [(row.revision, row.state) for row in rows] == [(2, "available"), (1, "available")]
    assert await audited(market)


async def test_used_time_is_paid_and_the_rest_pays_the_next_replica(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("3")
    deploy_id = await running(fleet, user, replicas=1)
    market.clock.now += HOUR
    await market.rollouts.restart(user, deploy_id)
    await fleet.settle(user, deploy_id)
    assert await held(market, user) == REPLICA_USD // 2
    assert await earned(market, fleet.owner) == micro(135)  # of 150 for the hour
    [job] = await fleet.jobs(user, deploy_id)
    spec = (await market.jobs.find(user, job.id)).spec
    assert spec is not None
    assert (job.duration_hrs, spec.timeout_seconds) == (1, HOUR)
    market.clock.now += HOUR // 3
    await market.deploys.cancel(user, deploy_id)
    assert await available(market, user) == micro(1)
    assert await earned(market, fleet.owner) == micro(180)
    found = await market.deploys.find(user, deploy_id)
    assert (found.status, found.paid) == ("cancelled", micro(2))
    assert await audited(market)


async def test_a_crash_between_any_two_steps_is_harmless(market: Market, fleet: Fleet) -> None:
    pace = market.rollouts.pace = RolloutPace(steps_per_unit=1, units_per_look=1)
    user = await market.person("9")
    deploy_id = await running(fleet, user)
    await market.rollouts.revise(user, deploy_id, NEXT)
    for _ in range(30):  # each time by a daemon that knows nothing
        daemon = Rollouts(market.context, market.jobs, market.specs, pace)
        await daemon.look(deploy_id)
        jobs = await fleet.jobs(user, deploy_id)
        assert len([job for job in jobs if job.status == "running"]) >= 2
        assert len(jobs) <= 3
        assert await audited(market)
        await fleet.take(user, deploy_id)
        if await state(market, user, deploy_id) == "available":
            break
    assert await fleet.images(user, deploy_id) == ["web:2"] * 3


@pytest.mark.both_engines
async def test_two_daemons_do_not_do_it_twice(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=4)
    other = Rollouts(market.context, market.jobs, market.specs)
    await market.rollouts.revise(user, deploy_id, NEXT)
    for _ in range(5):
        await asyncio.gather(*(each.look(deploy_id) for each in (other, market.rollouts) * 3))
        jobs = await fleet.jobs(user, deploy_id)
        assert len(jobs) == 4
        assert len([job for job in jobs if job.status == "running"]) >= 3
        await fleet.take(user, deploy_id)
    assert await fleet.images(user, deploy_id) == ["web:2"] * 4
    assert other.started + market.rollouts.started == 8
    assert await audited(market)


async def test_without_progress_a_rollout_is_stuck_and_goes_on_when_there_is(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    await market.rollouts.revise(user, deploy_id, NEXT)
    await market.rollouts.sweep()
    market.clock.now += 599
    await market.rollouts.sweep()
    assert await state(market, user, deploy_id) == "progressing"
    market.clock.now += 1
    await market.rollouts.sweep()
    assert await state(market, user, deploy_id) == "stuck"
    found = await market.deploys.find(user, deploy_id)
    assert found.ready_replicas == 2  # the earlier replicas stay
    assert found.rollout is not None
    assert found.rollout.problem is not None
    await fleet.settle(user, deploy_id)
    assert await state(market, user, deploy_id) == "available"


async def test_one_that_is_stuck_goes_back_if_it_is_to(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, strategy=Strategy(auto_revert=True))
    await market.rollouts.revise(user, deploy_id, Change(image="web:broken"))
    await market.rollouts.look(deploy_id)
    market.clock.now += 600
    before = {job.id for job in await fleet.jobs(user, deploy_id) if job.status == "running"}
    await market.rollouts.look(deploy_id)
    await fleet.settle(user, deploy_id)
    assert await fleet.images(user, deploy_id) == ["web:1"] * 3
    assert len(before) == 2
    assert before <= {job.id for job in await fleet.jobs(user, deploy_id)}  # working replicas stay
    rows = await market.rollouts.revisions(user, deploy_id)
    assert [row.state for row in rows] == ["available", "stuck", "available"]
    assert rows[0].cause == "revision 2 was stuck, back to 1"


async def test_a_rollback_is_a_new_revision_with_the_old_template(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    for image in ("web:2", "web:3"):
        await market.rollouts.revise(user, deploy_id, Change(image=image))
        await fleet.settle(user, deploy_id)
    assert await market.rollouts.rollback(user, deploy_id, None) == 4
    await fleet.settle(user, deploy_id)
    assert await fleet.images(user, deploy_id) == ["web:2"] * 3
    assert await market.rollouts.rollback(user, deploy_id, 1) == 5
    await fleet.settle(user, deploy_id)
    assert await fleet.images(user, deploy_id) == ["web:1"] * 3
    for unknown in (5, 6, 99):
        with pytest.raises(MarketError) as caught:
            await market.rollouts.rollback(user, deploy_id, unknown)
        assert caught.value.code is Code.REVISION_NOT_FOUND
    for _ in range(8):
        await market.rollouts.restart(user, deploy_id)
    rows = await market.rollouts.revisions(user, deploy_id)
    assert [row.revision for row in rows] == list(range(13, 3, -1))


async def test_while_it_is_paused_nothing_starts_or_stops(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    await market.rollouts.pause(user, deploy_id, is_paused=True)
    await market.rollouts.revise(user, deploy_id, NEXT)
    await market.rollouts.scale(user, deploy_id, 5)
    await market.rollouts.sweep()
    await market.rollouts.look(deploy_id)
    assert await fleet.images(user, deploy_id) == ["web:1"] * 3
    assert await state(market, user, deploy_id) == "paused"
    await market.rollouts.pause(user, deploy_id, is_paused=False)
    await fleet.settle(user, deploy_id)
    assert await fleet.images(user, deploy_id) == ["web:2"] * 5


async def test_to_nothing_and_back(market: Market, fleet: Fleet) -> None:
    user = await market.person("9")
    deploy_id = await running(fleet, user)
    market.clock.now += HOUR // 2
    await market.rollouts.scale(user, deploy_id, 0)
    found = await fleet.settle(user, deploy_id)
    assert (found.status, found.desired, found.job_ids, found.row.price) == ("queued", 0, [], 0)
    assert await held(market, user) == 0
    rest = 3 * REPLICA_USD * 3 // 4
    assert await available(market, user) == rest
    market.clock.now += 10 * HOUR  # stopped replicas cost nothing
    await market.rollouts.scale(user, deploy_id, 2)
    found = await fleet.settle(user, deploy_id)
    assert (found.status, found.ready_replicas) == ("running", 2)
    assert await held(market, user) == rest * 2 // 3
    await market.rollouts.scale(user, deploy_id, 3)
    with pytest.raises(MarketError) as caught:
        await market.rollouts.scale(user, deploy_id, 4)
    assert caught.value.code is Code.INSUFFICIENT_FUNDS
    assert caught.value.message == "This costs more, and 0.00 USD are available."
    assert (await market.deploys.find(user, deploy_id)).desired == 3
    assert await audited(market)


async def test_a_replica_that_is_lost_waits_and_one_that_failed_needs_its_buyer(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=2)
    first, second = await fleet.jobs(user, deploy_id)
    await market.job_sweeper.take_back_attempt(first.id, 1, "gone")
    await market.rollouts.look(deploy_id)
    assert (await market.deploys.find(user, deploy_id)).updated_replicas == 1
    assert await state(market, user, deploy_id) == "progressing"
    await fleet.settle(user, deploy_id)
    assert await state(market, user, deploy_id) == "available"
    for _ in range(3):  # whose devices fail at it one after the other
        device = fleet.devices[second.id]
        await prove(market, device.user_id)
        await market.jobs.fail(device, second.id, "no memory")
        fleet.owner = await market.person()
        await fleet.take(user, deploy_id)
    await market.rollouts.look(deploy_id)
    found = await market.deploys.find(user, deploy_id)
    assert found.rollout is not None
    assert (found.rollout.state, found.ready_replicas) == ("stuck", 1)
    assert found.rollout.problem == "Replica 2 has failed: no memory"
    await market.rollouts.restart(user, deploy_id)
    found = await fleet.settle(user, deploy_id)
    assert (found.status, found.ready_replicas) == ("running", 2)
    assert await audited(market)


async def test_a_replica_that_is_cancelled_as_a_job_is_missing_until_a_restart(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    second = (await fleet.jobs(user, deploy_id))[1]
    await market.jobs.cancel(user, second.id)
    found = await fleet.settle(user, deploy_id)
    assert found.rollout is not None
    assert (found.rollout.state, found.rollout.updated, found.ready_replicas) == ("stuck", 2, 2)
    assert found.rollout.problem == "Replica 2 was cancelled."
    await market.rollouts.restart(user, deploy_id)
    found = await fleet.settle(user, deploy_id)
    assert found.rollout is not None
    assert (found.rollout.state, found.rollout.updated, found.ready_replicas) == ("available", 3, 3)
    # All of them: nothing will ever run again, and the deploy is over.
    await market.jobs.cancel_all(user, [job.id for job in await fleet.jobs(user, deploy_id)])
    await market.rollouts.look(deploy_id)
    rollout = (await market.deploys.find(user, deploy_id)).rollout
    assert rollout is not None
    assert (rollout.state, rollout.problem) == ("over", "Replica 1 was cancelled.")
    assert await held(market, user) == 0
    assert await audited(market)


async def test_a_replica_that_no_device_takes_in_time_is_missing(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, replicas=2)
    first, _ = await fleet.jobs(user, deploy_id)
    device = await device_of(market, fleet.owner)
    await market.jobs.accept(device, first.id)
    await market.attempt_reports.started(device, first.id, None)
    market.clock.now += WAITING_SECONDS + 1
    assert await market.job_sweeper.expire() == 1
    await market.rollouts.look(deploy_id)
    rollout = (await market.deploys.find(user, deploy_id)).rollout
    assert rollout is not None
    assert rollout.state == "stuck"
    assert rollout.problem == f"Replica 2 was cancelled: {outcomes.UNWANTED}"


async def fail_for_good(fleet: Fleet, user: str, deploy_id: str, job_id: str) -> None:
    """Have the devices of three owners fail at a replica."""
    for _ in range(3):
        fleet.owner = await fleet.market.person()
        await prove(fleet.market, fleet.owner)
        await fleet.take(user, deploy_id)
        await fleet.market.jobs.fail(fleet.devices[job_id], job_id, "no memory")


async def test_a_revision_that_does_not_work_leaves_the_working_one(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    await market.rollouts.revise(user, deploy_id, Change(image="web:broken"))
    for _ in range(3):
        await market.rollouts.look(deploy_id)
        for job in await fleet.jobs(user, deploy_id):
            if job.status == "waiting":
                await fail_for_good(fleet, user, deploy_id, job.id)
    found = await market.deploys.find(user, deploy_id)
    assert (found.ready_replicas, await state(market, user, deploy_id)) == (2, "stuck")
    assert found.rollout is not None
    assert found.rollout.problem == "Replica 1 has failed: no memory"
    await market.rollouts.rollback(user, deploy_id, 1)
    found = await fleet.settle(user, deploy_id)
    assert (found.ready_replicas, await fleet.images(user, deploy_id)) == (3, ["web:1"] * 3)
    assert await audited(market)


@pytest.mark.both_engines
async def test_a_revision_is_gone_back_to_only_once(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, strategy=Strategy(auto_revert=True))
    await market.rollouts.revise(user, deploy_id, Change(image="web:broken"))
    for _ in range(4):  # and no device takes anything
        await market.rollouts.look(deploy_id)
        market.clock.now += 600
    rows = await market.rollouts.revisions(user, deploy_id)
    assert [row.state for row in rows] == ["stuck", "stuck", "available"]


async def test_a_revision_needs_the_same_gpus(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=1, gpu_count=2)
    await market.rollouts.revise(user, deploy_id, Change(resources=Resources(ram_gb=8)))
    await market.rollouts.look(deploy_id)
    [job] = await fleet.jobs(user, deploy_id)
    spec = (await market.jobs.find(user, job.id)).spec
    assert spec is not None
    assert spec.resources == Resources(gpus=2, gpu_model="A100", ram_gb=8)


async def test_a_script_needs_neither_image_nor_gpu(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    template = Template(script="print(1)")
    deploy_id = await create(
        market, user, job_type="Inference", image="", gpu_model="None", template=template
    )
    payload = await payload_of(market, user, deploy_id)
    assert (payload.script, payload.image, payload.ports) == ("print(1)", "", ())
    [job, *_] = await fleet.jobs(user, deploy_id)
    spec = (await market.jobs.find(user, job.id)).spec
    assert spec is not None
    assert spec.resources.needed_gpus == 0


async def payload_of(market: Market, user: str, deploy_id: str) -> Payload:
    """Return the payload of a deploy's first replica."""
    [job_id, *_] = (await market.deploys.find(user, deploy_id)).job_ids
    spec = (await market.jobs.find(user, job_id)).spec
    assert spec is not None
    assert spec.payload is not None
    return spec.payload


async def test_only_the_device_of_a_replica_gets_its_secrets(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    template = Template(secrets={"TOKEN": "hunter2"})
    deploy_id = await running(fleet, user, replicas=1, template=template)
    await market.rollouts.revise(user, deploy_id, NEXT)
    await fleet.settle(user, deploy_id)
    [job] = await fleet.jobs(user, deploy_id)
    owned = await market.jobs.find(user, job.id)
    assert owned.spec is not None
    assert owned.spec.payload is not None
    assert owned.spec.payload.secrets == {"TOKEN": ""}
    work = await market.jobs.work(fleet.devices[job.id], job.id)
    assert work.spec is not None
    assert work.spec.payload is not None
    assert work.spec.payload.secrets == {"TOKEN": "hunter2"}
    rows = await market.rollouts.revisions(user, deploy_id)
    assert all(row.secrets is not None for row in rows)
    assert "hunter2" not in repr(rows)
    other = Specs(Sealing(b"o" * 40, b"job secrets"))
    stranger = Rollouts(market.context, market.jobs, other)
    with pytest.raises(MarketError) as caught:
        await stranger.restart(user, deploy_id)
    assert caught.value.field == "secrets"
    await stranger.revise(user, deploy_id, Change(secrets={}))
    await market.deploys.cancel(user, deploy_id)
    assert all(row.secrets is None for row in await market.rollouts.revisions(user, deploy_id))


@pytest.mark.both_engines
async def test_templates_take_their_part_of_a_buyers_storage(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=1)
    await market.rollouts.scale(user, deploy_id, 0)
    market.change_bounds(Bounds(job_bytes=40_000))
    large = Change(env={"TEXT": "x" * 15_000})
    await market.rollouts.revise(user, deploy_id, large)
    await market.rollouts.revise(user, deploy_id, large)
    with pytest.raises(MarketError) as caught:
        await market.rollouts.revise(user, deploy_id, large)
    assert caught.value.code is Code.TOO_MUCH_JOB_TEXT
    market.clock.now += 24 * HOUR
    await market.rollouts.revise(user, deploy_id, large)


async def test_deploys_without_replicas_are_bounded_as_well(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    market.change_bounds(Bounds(jobs=2))
    for _ in range(2):
        deploy_id = await create(market, user, replicas=1)
        await market.rollouts.scale(user, deploy_id, 0)
    with pytest.raises(MarketError) as caught:
        await create(market, user, replicas=1)
    assert caught.value.code is Code.TOO_MANY_JOBS
    await market.deploys.cancel(user, deploy_id)
    await create(market, user, replicas=1)


async def test_replicas_that_served_count_as_paid(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    market.change_bounds(Bounds(job_bytes=6_000))
    market.clock.now += 10
    await market.rollouts.restart(user, deploy_id)
    await fleet.settle(user, deploy_id)  # once the earlier replicas are paid, new ones have room
    market.clock.now += 10
    await market.rollouts.restart(user, deploy_id)
    await fleet.settle(user, deploy_id)
    assert await state(market, user, deploy_id) == "available"
    for _ in range(3):
        await market.rollouts.restart(user, deploy_id)
        await fleet.settle(user, deploy_id)
    rollout = (await market.deploys.find(user, deploy_id)).rollout
    assert rollout is not None
    assert rollout.problem is not None
    assert rollout.problem.startswith(Code.TOO_MUCH_JOB_TEXT.meaning)


async def test_a_replica_that_never_is_ready_is_tried_elsewhere(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, replicas=1, template=PROBE)
    [job_id] = await fleet.take(user, deploy_id)
    await pass_time(market, 600, job_id)
    assert (await fleet.jobs(user, deploy_id))[0].status == "running"
    await pass_time(market, 300, job_id)
    [past] = await market.attempt_reports.of_job(user, job_id)
    assert (past.row.outcome, past.row.reason) == ("failed", "it did not become ready in time")
    fleet.owner = await market.person()
    await fleet.take(user, deploy_id)
    await pass_time(market, 500, job_id)
    await fleet.ready([job_id])
    await pass_time(market, 2 * HOUR, job_id)  # the whole time from here on
    assert (await fleet.jobs(user, deploy_id))[0].status == "running"
    await pass_time(market, STOP_SECONDS + 60, job_id)
    await market.rollouts.look(deploy_id)
    found = await market.deploys.find(user, deploy_id)
    assert (found.status, found.paid) == ("completed", REPLICA_USD)
    assert await audited(market)


async def test_however_patient_a_buyer_is_no_device_waits_for_long_to_be_paid(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    strategy = Strategy(progress_s=2 * HOUR)
    deploy_id = await create(market, user, replicas=1, template=PROBE, strategy=strategy)
    [job_id] = await fleet.take(user, deploy_id)
    await pass_time(market, READY_MAX_SECONDS + 300, job_id)
    [past] = await market.attempt_reports.of_job(user, job_id)
    assert (past.row.outcome, past.row.reason) == ("failed", "it did not become ready in time")
    assert await state(market, user, deploy_id) == "progressing"


async def test_a_device_works_for_nothing_for_half_an_hour_a_day_in_all(
    market: Market, fleet: Fleet
) -> None:
    user, device = await market.person("100"), await device_of(market, fleet.owner)
    strategy = Strategy(progress_s=HOUR)

    async def begin(deploy_id: str, seconds: int) -> str:
        """Let the one device load for `seconds`, without becoming ready."""
        [job] = [each for each in await fleet.jobs(user, deploy_id) if each.status == "waiting"]
        await market.jobs.accept(device, job.id)
        await market.attempt_reports.started(device, job.id, None)
        market.clock.now += seconds
        return job.id

    async def paid(job_id: str) -> int | None:
        return (await market.jobs.find(user, job_id)).paid

    deploy_id = await create(market, user, replicas=1, template=PROBE, strategy=strategy)
    first = await begin(deploy_id, UNREADY_FREE_SECONDS - 100)
    await market.rollouts.restart(user, deploy_id)
    await market.rollouts.look(deploy_id)
    second = await begin(deploy_id, 160)
    await market.rollouts.restart(user, deploy_id)
    await market.rollouts.look(deploy_id)
    assert [await paid(first), await paid(second)] == [0, 60 * REPLICA_USD // (2 * HOUR)]
    # Another deploy does not help either, and a failure of the device itself is not paid.
    third = await begin(deploy_id, 300)
    await market.jobs.fail(device, third, "no disk", ending=Ending(FailureKind.HOST))
    await market.rollouts.cancel(user, deploy_id)
    assert await paid(third) == 0
    again = await create(market, user, replicas=1, template=PROBE, strategy=strategy)
    fourth = await begin(again, 600)
    await market.rollouts.cancel(user, again)
    assert await paid(fourth) == 600 * REPLICA_USD // (2 * HOUR)
    # Another day, and for another device, it is free again.
    market.clock.now += DAY_SECONDS
    await market.job_sweeper.take_back()
    once_more = await create(market, user, replicas=1, template=PROBE, strategy=strategy)
    fifth = await begin(once_more, 600)
    await market.rollouts.cancel(user, once_more)
    assert await paid(fifth) == 0
    assert await audited(market)


async def test_many_devices_work_for_nothing_no_longer_than_eight_of_them(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    strategy = Strategy(progress_s=HOUR)
    for free_seconds in (UNREADY_FREE_IN_ALL_SECONDS, 0):
        deploy_id = await create(market, user, replicas=12, template=PROBE, strategy=strategy)
        job_ids = await fleet.take(user, deploy_id)
        assert len(job_ids) == 12
        market.clock.now += UNREADY_FREE_SECONDS
        await market.rollouts.cancel(user, deploy_id)
        paid = [(await market.jobs.find(user, job_id)).paid or 0 for job_id in job_ids]
        seconds = 12 * UNREADY_FREE_SECONDS - free_seconds
        assert sum(paid) == seconds * REPLICA_USD // (2 * HOUR)
    assert await audited(market)


@pytest.mark.parametrize("fault", [Ending(FailureKind.HOST), Ending()])
async def test_work_that_a_device_could_not_do_uses_up_no_free_time(
    market: Market, fleet: Fleet, fault: Ending
) -> None:
    user, device = await market.person("100"), await device_of(market, fleet.owner)
    strategy = Strategy(progress_s=HOUR)
    paid = []
    for ending in (fault, None):
        deploy_id = await create(market, user, replicas=1, template=PROBE, strategy=strategy)
        [job] = await fleet.jobs(user, deploy_id)
        await market.jobs.accept(device, job.id)
        await market.attempt_reports.started(device, job.id, None)
        market.clock.now += UNREADY_FREE_SECONDS - 100
        if ending is not None:
            await market.jobs.fail(device, job.id, "no disk", ending=ending)
        await market.rollouts.cancel(user, deploy_id)
        paid.append((await market.jobs.find(user, job.id)).paid)
    assert paid == [0, 0]
    assert await audited(market)


async def test_nor_is_a_replica_free_that_was_put_up_days_ago(market: Market, fleet: Fleet) -> None:
    user, device = await market.person("1000"), await device_of(market, fleet.owner)
    strategy = Strategy(progress_s=HOUR)
    deploy_id = await create(
        market, user, replicas=1, template=PROBE, strategy=strategy, duration_hrs=200
    )
    [job] = await fleet.jobs(user, deploy_id)
    market.clock.now += 2 * DAY_SECONDS

    async def try_in_vain(seconds: int) -> int:
        """Let the one device load for `seconds`, and end well. Return the payment for that."""
        before = await available(market, fleet.owner, CREDIT) + await held(
            market, fleet.owner, CREDIT
        )
        await market.jobs.accept(device, job.id)
        await market.attempt_reports.started(device, job.id, None)
        market.clock.now += seconds
        await market.jobs.complete(device, job.id, "done")
        after = await available(market, fleet.owner, CREDIT) + await held(
            market, fleet.owner, CREDIT
        )
        market.clock.now += 300  # until the same owner may have it again
        return after - before

    assert await try_in_vain(UNREADY_FREE_SECONDS) == 0
    assert await try_in_vain(600) > 0
    # The free time of the day before is free again.
    market.clock.now += DAY_SECONDS
    assert await try_in_vain(600) == 0
    assert await audited(market)


async def test_time_beyond_the_limit_for_readiness_counts_as_well(
    market: Market, fleet: Fleet
) -> None:
    """An attempt with a second to become ready ends two minutes later, which cost nothing."""
    user, device = await market.person("1000"), await device_of(market, fleet.owner)
    strategy = Strategy(progress_s=1)
    deploy_id = await create(market, user, replicas=1, template=PROBE, strategy=strategy)
    [job] = await fleet.jobs(user, deploy_id)
    for _ in range(UNREADY_FREE_SECONDS // 120 + 1):
        await market.jobs.accept(device, job.id)
        await market.attempt_reports.started(device, job.id, None)
        market.clock.now += 120
        await market.jobs.complete(device, job.id, "done")
        market.clock.now += 300  # until the same owner may have it again
    await market.rollouts.cancel(user, deploy_id)
    assert (await market.jobs.find(user, job.id)).paid == 120 * REPLICA_USD // (2 * HOUR)
    assert await audited(market)


async def test_a_device_that_has_served_a_replica_may_have_it_again(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=1)
    [job] = await fleet.jobs(user, deploy_id)
    for _ in range(4):
        market.clock.now += 700
        await market.jobs.fail(fleet.devices[job.id], job.id, "out of power")
        assert await fleet.take(user, deploy_id) == [job.id]
    assert await audited(market)


async def test_a_replica_that_waits_anew_has_all_the_time_to_find_a_device(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("3000")
    deploy_id = await running(fleet, user, replicas=1, duration_hrs=2_000)
    [job] = await fleet.jobs(user, deploy_id)
    market.clock.now += WAITING_SECONDS
    await market.job_sweeper.take_back_attempt(job.id, 1, "gone")
    market.clock.now += WAITING_SECONDS - 1
    assert await market.job_sweeper.expire() == 0
    market.clock.now += 1
    assert await market.job_sweeper.expire() == 1


async def test_a_replica_that_comes_before_the_other_goes_has_the_rest_of_it(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    strategy = Strategy(max_surge=1, max_unavailable=0)
    deploy_id = await running(fleet, user, replicas=1, strategy=strategy)
    market.clock.now += HOUR
    await market.rollouts.revise(user, deploy_id, NEXT)
    await market.rollouts.look(deploy_id)
    old, new = await fleet.jobs(user, deploy_id)
    assert (old.price_held, new.price_held) == (REPLICA_USD, REPLICA_USD // 2)


@pytest.mark.both_engines
async def test_a_service_that_ends_by_itself_is_started_again(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, replicas=1, template=PROBE)
    [job_id] = await fleet.take(user, deploy_id)
    await market.jobs.complete(fleet.devices[job_id], job_id, "all done")
    [job] = await fleet.jobs(user, deploy_id)
    assert (job.status, job.failure_reason) == ("waiting", ENDED_EARLY)
    assert await audited(market)
    other = await running(fleet, user, replicas=1)  # without a port
    [job] = await fleet.jobs(user, other)
    await market.jobs.complete(fleet.devices[job.id], job.id, "all done")
    assert (await fleet.jobs(user, other))[0].status == "completed"


async def test_a_service_that_was_ready_may_run_again_with_the_same_owner(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, replicas=1, template=PROBE)
    device = await device_of(market, fleet.owner)
    dispatcher = asyncio.create_task(market.dispatch.run())
    try:
        for seconds in (10, 20, 40, 80, 160, 300, 300):
            [job_id] = await fleet.take(user, deploy_id)
            await fleet.ready([job_id])
            await market.rollouts.look(deploy_id)
            printed = "line of its log\n" * 30 + "OSError: the model is gone"
            reason = f"killed by signal 9; its last words: {printed}"
            await market.jobs.fail(fleet.devices[job_id], job_id, reason)
            await market.rollouts.look(deploy_id)
            rollout = (await market.deploys.find(user, deploy_id)).rollout
            assert rollout is not None
            assert rollout.problem is not None
            waits, _, why = rollout.problem.partition("Z on): ")
            begins = "Replica 1 has ended, and waits for a device (one of the same owner may have"
            assert waits.startswith(begins)
            why, _, words = why.partition("; its last words: ")
            assert why == "killed by signal 9"
            assert (len(words), words[0]) == (100, "…")
            assert words.endswith("line of its log OSError: the model is gone")
            market.clock.now += seconds - 1
            with pytest.raises(MarketError) as caught:
                await market.jobs.accept(device, job_id)
            assert caught.value.code is Code.JOB_FAILED_HERE
            market.context.bus.catch_up()
            market.clock.now += 1
            await until(partial(_may_have, market, job_id, fleet.owner), "it may have it again")
    finally:
        dispatcher.cancel()
    assert len(await fleet.take(user, deploy_id)) == 1
    assert await audited(market)


def _may_have(market: Market, job_id: str, owner: str) -> bool:
    job = market.dispatch.jobs._jobs.get(job_id)
    return job is not None and job.permits(owner, "")


async def test_a_replica_whose_hours_are_over_is_done(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=1)
    [job] = await fleet.jobs(user, deploy_id)
    market.clock.now += 2 * HOUR
    await market.jobs.fail(
        fleet.devices[job.id], job.id, "time", ending=Ending(FailureKind.TIMEOUT)
    )
    await market.rollouts.look(deploy_id)
    found = await market.deploys.find(user, deploy_id)
    assert (found.status, found.paid) == ("completed", REPLICA_USD)
    assert await state(market, user, deploy_id) == "over"
    assert await earned(market, fleet.owner) == micro(270)
    with pytest.raises(MarketError) as caught:
        await market.rollouts.restart(user, deploy_id)
    assert caught.value.code is Code.DEPLOY_OVER


async def count_paid(market: Market) -> int:
    seconds = await market.store.read(
        lambda tx: tx.one(int, "SELECT COALESCE(SUM(seconds), 0) FROM job_draws")
    )
    return seconds or 0


@pytest.mark.both_engines
@pytest.mark.parametrize("change", ["revise", "restart", "rollback"])
async def test_a_replica_in_its_last_minute_serves_to_its_end_and_costs_no_more(
    market: Market, fleet: Fleet, change: str
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=1)
    await market.rollouts.revise(user, deploy_id, NEXT)
    await fleet.settle(user, deploy_id)
    [job] = await fleet.jobs(user, deploy_id)
    market.clock.now += 2 * HOUR - 59
    for _ in range(3):
        if change == "revise":
            await market.rollouts.revise(user, deploy_id, Change(image="web:3"))
        elif change == "restart":
            await market.rollouts.restart(user, deploy_id)
        else:
            await market.rollouts.rollback(user, deploy_id, 1)
        found = await fleet.settle(user, deploy_id)
        assert found.job_ids == [job.id]
        assert found.rollout is not None
        assert found.rollout.state == "progressing"
        assert found.rollout.problem is not None
        assert "less than a minute" in found.rollout.problem
    market.clock.now += 59
    ending = Ending(FailureKind.TIMEOUT)
    await market.jobs.fail(fleet.devices[job.id], job.id, "time", ending=ending)
    found = await fleet.settle(user, deploy_id)
    assert (found.status, found.paid) == ("completed", REPLICA_USD)
    assert await state(market, user, deploy_id) == "over"
    assert await count_paid(market) == 2 * HOUR
    assert await available(market, user) == micro(100) - REPLICA_USD
    assert await audited(market)


async def test_a_replica_whose_stop_pays_its_last_seconds_is_over(
    market: Market, fleet: Fleet
) -> None:
    """Time without readiness is paid at the stop, so the plan did not know that none is left."""
    user, device = await market.person("100"), await device_of(market, fleet.owner)
    strategy = Strategy(progress_s=HOUR)
    deploy_id = await create(market, user, replicas=1, template=PROBE, strategy=strategy)
    for seconds in (1_700, 1_750, 1_750, 1_750, 1_760, 200, 85):
        [job] = await fleet.jobs(user, deploy_id)
        await market.jobs.accept(device, job.id)
        await market.attempt_reports.started(device, job.id, None)
        market.clock.now += seconds
        await market.rollouts.restart(user, deploy_id)
        await market.rollouts.look(deploy_id)
    assert await count_paid(market) == 2 * HOUR - 5
    await market.rollouts.look(deploy_id)
    assert await state(market, user, deploy_id) == "over"
    assert await held(market, user) == 0
    assert await audited(market)


@pytest.mark.both_engines
async def test_time_beside_another_replica_is_not_taken_from_the_next_one(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    minutes = 30 * 60
    strategy = Strategy(max_surge=1, max_unavailable=0, min_ready_s=minutes)
    deploy_id = await create(market, user, replicas=1, strategy=strategy)
    await fleet.settle(user, deploy_id)
    market.clock.now += minutes
    await market.rollouts.revise(user, deploy_id, NEXT)
    await fleet.settle(user, deploy_id)
    market.clock.now += minutes  # both serve
    await fleet.settle(user, deploy_id)
    market.clock.now += minutes - 10
    await market.rollouts.revise(user, deploy_id, Change(image="web:3"))
    found = await fleet.settle(user, deploy_id)
    assert found.rollout is not None
    assert found.rollout.problem is None
    assert await fleet.images(user, deploy_id) == ["web:2", "web:3"]
    # The second had 90 minutes, and has served for an hour without ten seconds.
    [_, new] = await fleet.jobs(user, deploy_id)
    assert new.price_held == REPLICA_USD * (minutes + 10) // (2 * HOUR)
    await market.rollouts.scale(user, deploy_id, 1)
    assert await audited(market)


@pytest.mark.both_engines
async def test_a_stopped_replica_without_a_minute_left_does_not_return(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user, replicas=2)
    market.clock.now += 2 * HOUR - 30
    await market.rollouts.scale(user, deploy_id, 1)
    await market.rollouts.scale(user, deploy_id, 3)
    found = await fleet.settle(user, deploy_id)
    assert (len(found.job_ids), found.ready_replicas) == (2, 2)  # the first, and the new third
    market.clock.now += 30
    first = next(job for job in await fleet.jobs(user, deploy_id) if "(1 of" in job.title)
    ending = Ending(FailureKind.TIMEOUT)
    await market.jobs.fail(fleet.devices[first.id], first.id, "time", ending=ending)
    await market.rollouts.restart(user, deploy_id)
    await fleet.settle(user, deploy_id)
    assert await state(market, user, deploy_id) == "available"
    rows = await market.store.read(serving, deploy_id)
    assert [row.number for row in rows] == [3]
    assert await count_paid(market) == 4 * HOUR  # 30 seconds by the third
    assert await audited(market)


async def test_a_key_counts_the_surplus_replicas_of_its_revisions(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    strategy = Strategy(max_surge=1, max_unavailable=0)
    deploy_id = await running(fleet, user, replicas=2, strategy=strategy)
    limits = SpendLimits(usd=REPLICA_USD, period="lifetime")
    key = (
        await market.keys.create(
            user, NewKey(name="k", scopes=(Scope.JOBS_WRITE,), spend_limits=limits)
        )
    ).row
    spender = Spender(key.id, user)
    market.clock.now += HOUR
    await market.rollouts.revise(user, deploy_id, NEXT, spender=spender)  # half of one's price
    await market.rollouts.restart(user, deploy_id, spender=spender)
    for act in (
        market.rollouts.revise(user, deploy_id, Change(image="web:3"), spender=spender),
        market.rollouts.restart(user, deploy_id, spender=spender),
        market.rollouts.rollback(user, deploy_id, 1, spender=spender),
    ):
        with pytest.raises(MarketError) as caught:
            await act
        assert caught.value.code is Code.SPEND_LIMIT_REACHED
    assert len(await market.rollouts.revisions(user, deploy_id)) == 3
    assert (await market.keys.one(user, key.id)).spent_usd == REPLICA_USD


@pytest.mark.both_engines
async def test_nothing_starts_after_a_cancel(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    await market.rollouts.revise(user, deploy_id, NEXT)
    await asyncio.gather(
        market.deploys.cancel(user, deploy_id),
        *(market.rollouts.look(deploy_id) for _ in range(5)),
    )
    await market.rollouts.look(deploy_id)
    assert {job.status for job in await fleet.jobs(user, deploy_id)} <= {"cancelled"}
    assert await held(market, user) == 0
    assert await state(market, user, deploy_id) == "over"
    assert await audited(market)


@pytest.mark.both_engines
async def test_an_event_of_a_replica_is_looked_at_at_once(market: Market, fleet: Fleet) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user)
    task = asyncio.create_task(market.rollouts.run())
    try:
        await fleet.take(user, deploy_id)
        await until_state(market, user, deploy_id, "available")
    finally:
        task.cancel()


@pytest.mark.both_engines
async def test_a_damaged_deploy_holds_up_no_other(
    market: Market, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    user = await market.person("100")
    ids = [await create(market, user, replicas=1) for _ in range(3)]
    damaged, *others = sorted(ids)  # the first one in each look

    async def set_strategy(tx: Transaction, strategy: str) -> None:
        sql = "UPDATE deploy_rollouts SET strategy = :strategy WHERE deploy_id = :id"
        await tx.run(sql, strategy=strategy, id=damaged)

    await market.store.write(set_strategy, '["none"]')
    task = asyncio.create_task(market.rollouts.run())
    try:
        for deploy_id in (damaged, others[0]):  # each begins work, and reports it
            await fleet.take(user, deploy_id)
        await until_state(market, user, others[0], "available")
        assert not task.done()
        await market.rollouts.sweep()
    finally:
        task.cancel()
    # A sweep also processes it in turn, and logs the error once.
    await fleet.take(user, others[1])
    await market.rollouts.sweep()
    assert await state(market, user, others[1]) == "available"
    assert caplog.text.count(f"the rollout of deploy {damaged} cannot go on") == 1
    # Mended, it goes on after a while by itself.
    await market.store.write(set_strategy, "{}")
    await market.rollouts.sweep()
    assert await state(market, user, damaged) == "progressing"
    market.clock.now += PUT_OFF_SECONDS
    await market.rollouts.sweep()
    assert await state(market, user, damaged) == "available"


@pytest.mark.both_engines
async def test_a_store_that_breaks_a_look_in_its_own_way_ends_no_rollouts(
    market: Market, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    market.rollouts.pace = RolloutPace(failed_seconds=0.01)
    user = await market.person("100")
    deploy_id = await create(market, user, replicas=1)
    read, failures = market.store.read, [LookupError("not of the store's kinds")]

    async def once(unit: Any, *args: Any, **kwargs: Any) -> Any:
        if failures and unit.__name__ == "of_jobs":
            raise failures.pop()
        return await read(unit, *args, **kwargs)

    monkeypatch.setattr(market.store, "read", once)
    task = asyncio.create_task(market.rollouts.run())
    try:
        await fleet.take(user, deploy_id)
        await until(lambda: not failures)
        market.context.bus.publish(REPLICAS, [deploy_id])
        await until_state(market, user, deploy_id, "available")
    finally:
        task.cancel()


async def test_a_deploy_of_another_user_is_not_found(market: Market) -> None:
    user, other = await market.person("100"), await market.person()
    deploy_id = await create(market, user)
    for act in (
        market.rollouts.revise(other, deploy_id, NEXT),
        market.rollouts.scale(other, deploy_id, 0),
        market.rollouts.rollback(other, deploy_id, None),
        market.rollouts.restart(other, deploy_id),
        market.rollouts.pause(other, deploy_id, is_paused=True),
        market.rollouts.revisions(other, deploy_id),
    ):
        with pytest.raises(MarketError) as caught:
            await act
        assert caught.value.code is Code.DEPLOY_NOT_FOUND


async def told(market: Market, user: str) -> list[str]:
    return [each for each in await types_of(market, user) if each.startswith("deploy.")]


async def test_a_buyer_is_notified_that_each_revision_is_ready(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    assert await told(market, user) == ["deploy.ready"]
    await market.rollouts.look(deploy_id)
    await market.rollouts.revise(user, deploy_id, NEXT)
    await fleet.settle(user, deploy_id)
    assert await told(market, user) == ["deploy.ready"] * 2
    assert [each["revision"] for each in await said(market, user, "deploy.ready")] == [1, 2]
    for _ in range(2):
        await market.deploys.cancel(user, deploy_id)
    assert await told(market, user) == [*["deploy.ready"] * 2, "deploy.cancelled"]


async def test_a_buyer_is_notified_once_that_a_deploy_with_revisions_is_over(
    market: Market, fleet: Fleet
) -> None:
    user = await market.person("100")
    deploy_id = await running(fleet, user)
    for job in await fleet.jobs(user, deploy_id):
        await pass_time(market, 60, job.id)
        await market.jobs.cancel(user, job.id)
    for _ in range(2):
        await market.rollouts.look(deploy_id)
    assert (await told(market, user))[-1] == "deploy.finished"
    assert (await told(market, user)).count("deploy.finished") == 1
