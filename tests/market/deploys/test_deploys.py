"""Deploys: their cost, their replicas in the marketplace, and their end, on both engines."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from support.base.cases import cases
from support.database.statements import counted
from support.market.books import available, held, revenue
from support.market.events import rows_of, types_of
from support.market.jobs import prove
from support.market.market import Market

from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.deploys.deploys import Deploy, NewDeploy, Rates
from market.deploys.templates import Template
from market.jobs.postings import TITLE_MAX_CHARACTERS
from market.money.audit import audit_ledger
from market.money.money import Currency, micro
from proxyctl.protocol.jobspec import Resources
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow

USD, CREDIT = Currency.USD, Currency.CREDIT
HOUR = 3_600
FIELDS: dict[str, Any] = {
    "job_name": "a model",
    "job_type": "Training",
    "gpu_model": "A100",
    "gpu_count": 2,
    "duration_hrs": 3,
    "replicas": 3,
    "currency": USD,
}
REPLICA_USD = micro(9)  # 1.50 x 2 GPUs x 3 hours
REPLICA_CREDIT = micro(900)


async def create(market: Market, user: str, **changes: Any) -> str:
    return (await market.deploys.create(user, NewDeploy(**{**FIELDS, **changes}))).id


async def device(market: Market, owner: str) -> DeviceRow:
    made = await market.devices.create(
        owner, name="worker", device_type="server", min_price_usd=None
    )
    return await market.devices.authenticate(made.token)


async def open_jobs(market: Market) -> list[JobRow]:
    """Return waiting and running jobs, whole, oldest first."""
    found = await market.jobs.page_open(status=None, job_type="", before="", limit=1000)
    return [(await market.jobs.find_open(job.id)).job for job in found[::-1]]


async def shape(market: Market, user: str, deploy_id: str) -> tuple[str, int]:
    deploy = await market.deploys.find(user, deploy_id)
    return deploy.status, deploy.ready_replicas


async def audited(market: Market) -> bool:
    return (await audit_ledger(market.store)).passed


async def counts(tx: Transaction) -> list[int | None]:
    return [
        await tx.one(int, f"SELECT COUNT(*) FROM {table}")
        for table in ("deploys", "jobs", "holds", "transfers")
    ]


async def test_the_price_is_rate_by_gpus_by_hours_by_replicas(market: Market) -> None:
    user = await market.person("100", "10000")
    deploy = await market.deploys.find(user, await create(market, user))
    assert (deploy.row.price, deploy.row.currency) == (micro(27), "usd")
    assert await available(market, user) == micro(100 - 27)
    assert await held(market, user) == micro(27)
    assert await available(market, user, CREDIT) == micro(10_000)
    assert await audited(market)


async def test_in_credits_the_price_is_the_worth_of_the_dollars(market: Market) -> None:
    user = await market.person("100", "10000")
    deploy = await market.deploys.find(user, await create(market, user, currency=CREDIT))
    assert (deploy.row.price, deploy.row.currency) == (micro(2_700), "credit")
    assert await available(market, user, CREDIT) == micro(10_000 - 2_700)
    assert await held(market, user, CREDIT) == micro(2_700)
    assert await available(market, user) == micro(100)
    assert await audited(market)


async def test_the_rate_is_that_of_the_model_or_the_default(market: Market) -> None:
    user = await market.person("1000")
    cases: list[tuple[dict[str, Any], int]] = [
        ({"gpu_model": "a100"}, 27_000_000),
        ({"gpu_model": " A100 "}, 27_000_000),
        ({"gpu_model": "A100 80GB"}, 18_000_000),
        ({"gpu_model": "what nobody has heard of"}, 18_000_000),
        ({"gpu_count": 1}, 13_500_000),
        ({"duration_hrs": 1}, 9_000_000),
        ({"replicas": 1}, 9_000_000),
        ({"gpu_count": 1, "duration_hrs": 1, "replicas": 1}, 1_500_000),
    ]
    for changes, price in cases:
        before = await held(market, user)
        deploy = await market.deploys.find(user, await create(market, user, **changes))
        assert deploy.row.price == price, changes
        assert await held(market, user) == before + price


@pytest.mark.parametrize(
    ("usd", "credit", "currency"), [("26.999999", "99999", USD), ("999", "2699.999999", CREDIT)]
)
async def test_without_the_money_nothing_is_left_behind(
    market: Market, usd: str, credit: str, currency: Currency
) -> None:
    user = await market.person(usd, credit)
    before = await market.store.read(counts)
    with pytest.raises(MarketError) as caught:
        await create(market, user, currency=currency)
    assert caught.value.code is Code.INSUFFICIENT_FUNDS
    has = "26.999999 USD" if currency is USD else "2699.999999 credits"
    assert caught.value.message.endswith(f", and {has} are available.")
    assert await market.store.read(counts) == before
    assert await market.deploys.page(user, before="", limit=10) == ([], False)
    assert await open_jobs(market) == []
    assert (await held(market, user), await held(market, user, CREDIT)) == (0, 0)
    assert await audited(market)


async def test_the_last_millionth_is_enough(market: Market) -> None:
    user = await market.person("27", "2700")
    await create(market, user)
    await create(market, user, currency=CREDIT)
    assert (await available(market, user), await available(market, user, CREDIT)) == (0, 0)


@pytest.mark.both_engines
async def test_twenty_deploys_at_once_with_money_for_three_make_three(market: Market) -> None:
    user = await market.person("81")
    outcomes = await asyncio.gather(
        *(create(market, user) for _ in range(20)), return_exceptions=True
    )
    refused = [each for each in outcomes if isinstance(each, BaseException)]
    assert {getattr(each, "code", each) for each in refused} == {Code.INSUFFICIENT_FUNDS}
    assert len(refused) == 17
    assert len((await market.deploys.page(user, before="", limit=100))[0]) == 3
    assert len(await open_jobs(market)) == 9
    assert await available(market, user) == 0


@pytest.mark.parametrize("currency", [USD, CREDIT])
async def test_every_replica_is_a_waiting_job_priced_in_credits(
    market: Market, currency: Currency
) -> None:
    user = await market.person("100", "10000")
    deploy_id = await create(market, user, currency=currency)
    jobs = await open_jobs(market)
    assert len(jobs) == 3
    assert len({job.id for job in jobs} | {deploy_id}) == 4
    for number, job in enumerate(jobs, start=1):
        assert (job.user_id, job.deploy_id, job.status) == (user, deploy_id, JobStatus.WAITING)
        assert job.title == f"a model ({number} of 3)"
        assert (job.job_type, job.duration_hrs) == ("training", 3)
        assert job.price_credit == REPLICA_CREDIT
        assert job.price_held == (REPLICA_USD if currency is USD else REPLICA_CREDIT)
        assert "2" in job.requirements
        assert "A100" in job.requirements


async def test_a_worker_of_a_replica_gets_its_program(market: Market) -> None:
    user = await market.person("100")
    plain = await create(market, user, replicas=1)
    told = {"image": "registry.example.com/model:7", "command": "train --epochs 3"}
    deploy_id = await create(market, user, replicas=2, job_type="Jupyter", **told)
    jobs = await open_jobs(market)
    assert [job.description for job in jobs] == [
        f"Replica 1 of 1 of the deploy {plain}\nType: Training",
        *(f"Replica {number} of 2 of the deploy {deploy_id}\nType: Jupyter" for number in (1, 2)),
    ]
    worker = await device(market, await market.person())
    expected = [(None, None), *[(told["image"], told["command"])] * 2]
    for job, what in zip(jobs, expected, strict=True):
        await market.jobs.accept(worker, job.id)
        work = await market.jobs.work(worker, job.id)
        assert (work.job.id, work.image, work.command) == (job.id, *what)
    row = (await market.deploys.find(user, deploy_id)).row
    assert (row.image, row.command) == (told["image"], told["command"])


@pytest.mark.parametrize(
    ("field", "text"),
    [("image", "x" * 301), ("command", "x" * 2_001), ("image", "a\nb"), ("command", "a\x1bb")],
)
async def test_the_text_for_a_worker_is_bounded_and_printable(
    market: Market, field: str, text: str
) -> None:
    user = await market.person("100")
    with pytest.raises(MarketError) as caught:
        await create(market, user, **{field: text})
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, field)


async def test_the_cost_of_a_deploy_is_known_once_it_is_over(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await create(market, user, replicas=2)
    worker = await device(market, owner)
    first, second = await open_jobs(market)
    assert [row.job_id for row in (await market.deploys.find(user, deploy_id)).replicas] == [
        first.id,
        second.id,
    ]
    await market.jobs.accept(worker, first.id)
    await market.jobs.complete(worker, first.id, "")
    assert (await market.deploys.find(user, deploy_id)).paid is None
    await market.jobs.cancel(user, second.id)
    assert (await market.deploys.find(user, deploy_id)).paid == REPLICA_USD


async def test_a_replica_has_the_type_that_the_marketplace_knows(market: Market) -> None:
    user = await market.person("100")
    types = {}
    for named in ("Docker", "Jupyter", "Inference", "Training", "Script"):
        deploy_id = await create(market, user, job_type=named, replicas=1)
        types[named] = (await open_jobs(market))[-1].job_type
        assert (await market.deploys.find(user, deploy_id)).row.job_type == named
    assert types == {
        "Docker": "docker",
        "Jupyter": "docker",
        "Inference": "inference",
        "Training": "training",
        "Script": "script",
    }


async def test_a_completed_replica_that_dollars_pay_earns_its_worker_credits(
    market: Market,
) -> None:
    user, owner = await market.person("100"), await market.person()
    await create(market, user)
    worker = await device(market, owner)
    job = (await open_jobs(market))[0]
    await market.jobs.accept(worker, job.id)
    market.clock.now += 60
    await market.jobs.complete(worker, job.id, "done")
    assert await revenue(market) == REPLICA_USD
    assert await held(market, user) == 2 * REPLICA_USD
    assert await available(market, user) == micro(100 - 27)
    assert await available(market, owner, CREDIT) == micro(810)
    assert await available(market, owner) == 0
    assert await revenue(market, CREDIT) == -micro(810)
    assert await audited(market)
    await market.jobs.complete(worker, job.id, "done again")
    assert await available(market, owner, CREDIT) == micro(810)
    assert await revenue(market) == REPLICA_USD


async def test_a_completed_replica_that_credits_pay_leaves_the_house_its_fee(
    market: Market,
) -> None:
    user, owner = await market.person("0", "10000"), await market.person()
    await create(market, user, currency=CREDIT)
    worker = await device(market, owner)
    job = (await open_jobs(market))[0]
    await market.jobs.accept(worker, job.id)
    await market.jobs.complete(worker, job.id, "done")
    assert await available(market, owner, CREDIT) == micro(810)
    assert await revenue(market, CREDIT) == micro(90)
    assert await held(market, user, CREDIT) == 2 * REPLICA_CREDIT
    assert await revenue(market) == 0
    assert await audited(market)


async def begun(market: Market, user: str, owner: str, currency: Currency) -> str:
    """Deploy three replicas: one is completed, one runs for an hour of its three, one waits."""
    deploy_id = await create(market, user, currency=currency)
    worker = await device(market, owner)
    done, runs, _ = await open_jobs(market)
    await market.jobs.accept(worker, done.id)
    await market.jobs.complete(worker, done.id, "done")
    await market.jobs.accept(worker, runs.id)
    await market.attempt_reports.started(worker, runs.id, 1)
    market.clock.now += HOUR
    return deploy_id


async def test_cancelling_settles_each_replica_as_it_is_in_dollars(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await begun(market, user, owner, USD)
    await market.deploys.cancel(user, deploy_id)
    assert await available(market, user) == micro(100 - 9 - 3)
    assert await held(market, user) == 0
    assert await revenue(market) == micro(9 + 3)
    assert await available(market, owner, CREDIT) == micro(810 + 270)
    assert await revenue(market, CREDIT) == -micro(810 + 270)
    deploy = await market.deploys.find(user, deploy_id)
    assert deploy.statuses == (JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.CANCELLED)
    assert await open_jobs(market) == []
    assert await audited(market)


async def test_cancelling_settles_each_replica_as_it_is_in_credits(market: Market) -> None:
    user, owner = await market.person("0", "10000"), await market.person()
    deploy_id = await begun(market, user, owner, CREDIT)
    await market.deploys.cancel(user, deploy_id)
    assert await available(market, user, CREDIT) == micro(10_000 - 900 - 300)
    assert await held(market, user, CREDIT) == 0
    assert await available(market, owner, CREDIT) == micro(810 + 270)
    assert await revenue(market, CREDIT) == micro(90 + 30)
    assert await audited(market)


async def test_a_cancelled_drawss_for_the_time_it_ran_and_no_more(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    worker = await device(market, owner)
    # 150 credits for an hour: 41.666666 of them are 0.416666 USD, the fee is 4.166666.
    cases = [
        (0, 0, 0),
        (1_000, 416_666, 37_500_000),
        (HOUR, 1_500_000, 135_000_000),
        (10 * HOUR, 1_500_000, 135_000_000),
    ]
    for seconds, usd, earned in cases:
        spent, credits_before = await revenue(market), await available(market, owner, CREDIT)
        deploy_id = await create(market, user, gpu_count=1, duration_hrs=1, replicas=1)
        [job] = await open_jobs(market)
        await market.jobs.accept(worker, job.id)
        await market.attempt_reports.started(worker, job.id, 1)
        market.clock.now += seconds
        await market.deploys.cancel(user, deploy_id)
        assert await revenue(market) == spent + usd
        assert await available(market, user) == micro(100) - spent - usd
        assert await available(market, owner, CREDIT) == credits_before + earned
    assert await audited(market)


@pytest.mark.both_engines
async def test_cancelling_again_changes_nothing(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await begun(market, user, owner, USD)
    await market.deploys.cancel(user, deploy_id)
    before = await market.store.read(counts)
    market.clock.now += HOUR
    await market.deploys.cancel(user, deploy_id)
    assert await market.store.read(counts) == before
    assert await available(market, user) == micro(88)
    assert await shape(market, user, deploy_id) == ("cancelled", 0)


async def test_cancelling_reads_the_deploy_once(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await begun(market, user, owner, USD)
    reads = counted(market.store, "read", monkeypatch)
    await market.deploys.cancel(user, deploy_id)
    assert len(reads) == 1


@pytest.mark.both_engines
async def test_cancelling_twenty_times_at_once_settles_once(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await begun(market, user, owner, USD)
    await asyncio.gather(*(market.deploys.cancel(user, deploy_id) for _ in range(20)))
    assert await available(market, user) == micro(88)
    assert await available(market, owner, CREDIT) == micro(1_080)
    assert await audited(market)


@pytest.mark.both_engines
async def test_replicas_that_are_accepted_while_they_are_cancelled_end_cancelled(
    market: Market,
) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await create(market, user, gpu_count=1, replicas=10)
    workers = [await device(market, owner) for _ in range(5)]
    jobs = await open_jobs(market)
    outcomes = await asyncio.gather(
        market.deploys.cancel(user, deploy_id),
        *(
            market.jobs.accept(workers[number % len(workers)], job.id)
            for number, job in enumerate(reversed(jobs))
        ),
        return_exceptions=True,
    )
    refused = [each for each in outcomes if isinstance(each, BaseException)]
    assert {getattr(each, "code", each) for each in refused} <= {Code.JOB_NOT_WAITING}
    deploy = await market.deploys.find(user, deploy_id)
    assert deploy.statuses == (JobStatus.CANCELLED,) * 10
    assert await available(market, user) == micro(100)


async def test_cancelling_a_completed_deploy_leaves_it_paid(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await create(market, user, replicas=1)
    worker = await device(market, owner)
    [job] = await open_jobs(market)
    await market.jobs.accept(worker, job.id)
    await market.jobs.complete(worker, job.id, "done")
    await market.deploys.cancel(user, deploy_id)
    assert await shape(market, user, deploy_id) == ("completed", 0)
    assert await revenue(market) == REPLICA_USD
    assert await available(market, owner, CREDIT) == micro(810)


async def test_cancelling_leaves_other_deploys_alone(market: Market) -> None:
    user = await market.person("100")
    first, second = await create(market, user), await create(market, user)
    await market.deploys.cancel(user, first)
    assert await shape(market, user, second) == ("queued", 0)
    assert {job.deploy_id for job in await open_jobs(market)} == {second}
    assert await held(market, user) == micro(27)


async def test_a_foreign_or_missing_deploy_is_not_found(market: Market) -> None:
    user, other = await market.person("100"), await market.person("100")
    deploy_id = await create(market, user)
    for caller, asked in ((other, deploy_id), (user, market.identifiers.new())):
        for act in (market.deploys.find, market.deploys.cancel):
            with pytest.raises(MarketError) as caught:
                await act(caller, asked)
            assert caught.value.code is Code.DEPLOY_NOT_FOUND
    assert await shape(market, user, deploy_id) == ("queued", 0)
    assert await held(market, user) == micro(27)


async def test_a_replica_by_itself_is_not_a_deploy(market: Market) -> None:
    user = await market.person("100")
    await create(market, user)
    with pytest.raises(MarketError) as caught:
        await market.deploys.cancel(user, (await open_jobs(market))[0].id)
    assert caught.value.code is Code.DEPLOY_NOT_FOUND


async def test_a_life_that_succeeds_in_words(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await create(market, user, replicas=2)
    worker = await device(market, owner)
    first, second = await open_jobs(market)
    assert await shape(market, user, deploy_id) == ("queued", 0)
    await market.jobs.accept(worker, first.id)
    assert await shape(market, user, deploy_id) == ("running", 1)
    await market.jobs.accept(worker, second.id)
    assert await shape(market, user, deploy_id) == ("running", 2)
    await market.jobs.complete(worker, first.id, "done")
    assert await shape(market, user, deploy_id) == ("running", 1)
    await market.jobs.fail(worker, second.id, "no memory")
    assert await shape(market, user, deploy_id) == ("queued", 0)
    other = await device(market, await market.person())
    await market.jobs.accept(other, second.id)
    await market.jobs.complete(other, second.id, "done")
    assert await shape(market, user, deploy_id) == ("completed", 0)
    assert await revenue(market) == micro(18)


async def test_a_replica_that_fails_three_times_is_released(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await create(market, user, replicas=2)
    worker = await device(market, owner)
    first, second = await open_jobs(market)
    await market.jobs.accept(worker, first.id)
    await market.jobs.complete(worker, first.id, "done")
    for _ in range(3):
        assert await shape(market, user, deploy_id) == ("queued", 0)
        other = await market.person()
        await prove(market, other)
        worker = await device(market, other)
        await market.jobs.accept(worker, second.id)
        await market.jobs.fail(worker, second.id, "no memory")
    assert await shape(market, user, deploy_id) == ("failed", 0)
    assert await available(market, user) == micro(100 - 9)
    assert await held(market, user) == 0
    assert await available(market, owner, CREDIT) == micro(810)
    assert await audited(market)


async def test_a_replica_whose_device_vanishes_waits_again(market: Market) -> None:
    user, owner = await market.person("100"), await market.person()
    deploy_id = await create(market, user, replicas=1)
    [job] = await open_jobs(market)
    await market.jobs.accept(await device(market, owner), job.id)
    assert await market.silence(615) == 1
    assert await shape(market, user, deploy_id) == ("queued", 0)
    assert await held(market, user) == REPLICA_USD


async def test_a_replica_can_be_cancelled_as_the_job_it_is(market: Market) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user, replicas=2)
    first, second = await open_jobs(market)
    await market.jobs.cancel(user, first.id)
    assert await shape(market, user, deploy_id) == ("queued", 0)
    assert await available(market, user) == micro(100 - 9)
    await market.jobs.cancel(user, second.id)
    assert await shape(market, user, deploy_id) == ("cancelled", 0)
    assert await available(market, user) == micro(100)
    await market.deploys.cancel(user, deploy_id)


async def test_a_field_out_of_range_is_refused(market: Market) -> None:
    user = await market.person("1000")
    cases: dict[str, list[Any]] = {
        "job_name": ["", " \t ", "x" * 181],
        "gpu_model": ["", "  ", "x" * 101],
        "gpu_count": [0, -1, 65, 2**70],
        "duration_hrs": [0, -1, 8_761, 2**70],
        "replicas": [0, -1, 101, 2**70],
    }
    for field, values in cases.items():
        for value in values:
            with pytest.raises(MarketError) as caught:
                await create(market, user, **{field: value})
            assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, field), value
    assert await held(market, user) == 0
    assert await open_jobs(market) == []


async def test_a_field_at_the_end_of_its_range_is_taken(market: Market) -> None:
    user = await market.person("100000")
    cases: list[dict[str, Any]] = [
        {"job_name": "x" * 180, "replicas": 100},
        {"gpu_model": "x" * 100},
        {"gpu_count": 64},
        {"gpu_count": 1, "duration_hrs": 8_760, "gpu_model": "T4"},
    ]
    for changes in cases:
        deploy: Deploy = await market.deploys.find(user, await create(market, user, **changes))
        assert {name: getattr(deploy.row, name) for name in changes} == changes
        jobs = [job for job in await open_jobs(market) if job.deploy_id == deploy.row.id]
        assert len(jobs) == len(deploy.statuses) == deploy.row.replicas
        assert max(len(job.title) for job in jobs) <= TITLE_MAX_CHARACTERS
        await market.deploys.cancel(user, deploy.row.id)
    assert await available(market, user) == micro(100_000)


async def test_a_name_padded_with_blanks_makes_no_title_that_no_job_could_have(
    market: Market,
) -> None:
    user = await market.person("100")
    with suppress(MarketError):
        await create(market, user, job_name="x" + " " * 300)
    assert [job.title for job in await open_jobs(market) if len(job.title) > 200] == []


async def test_a_replica_costs_at_most_the_limit_of_a_job(market: Market) -> None:
    user = await market.person("100000")
    fields = {"gpu_model": "T4", "gpu_count": 40, "replicas": 2}
    deploy_id = await create(market, user, **fields, duration_hrs=250)
    assert {job.price_credit for job in await open_jobs(market)} == {micro(1_000_000)}
    assert (await market.deploys.find(user, deploy_id)).row.price == micro(20_000)
    with pytest.raises(MarketError) as caught:
        await create(market, user, **fields, duration_hrs=251)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "duration_hrs")
    assert await held(market, user) == micro(20_000)


async def test_pages_follow_each_other_newest_first(market: Market) -> None:
    user, other = await market.person("100"), await market.person("100")
    made = []
    for number in range(1, 6):
        made.append(await create(market, user, gpu_count=1, duration_hrs=1, replicas=number))
        await create(market, other, gpu_count=1, duration_hrs=1, replicas=1)
    first, has_more = await market.deploys.page(user, before="", limit=3)
    assert has_more
    rest, has_more = await market.deploys.page(user, before=first[-1].row.id, limit=3)
    assert not has_more
    assert [deploy.row.id for deploy in (*first, *rest)] == made[::-1]
    assert [len(deploy.statuses) for deploy in (*first, *rest)] == [5, 4, 3, 2, 1]
    assert await market.deploys.page(user, before=made[0], limit=3) == ([], False)


async def test_a_page_has_a_bounded_number_of_replicas(market: Market) -> None:
    market.deploys.listed_replicas_max = 5
    user = await market.person("100")
    replicas = [1, 2, 2, 9, 5]
    made = [
        await create(market, user, gpu_count=1, duration_hrs=1, replicas=each) for each in replicas
    ]
    scaled = await create(
        market,
        user,
        gpu_model="none",
        gpu_count=1,
        duration_hrs=1,
        replicas=1,
        template=Template(image="a:1"),
        image="a:1",
    )
    await market.rollouts.scale(user, scaled, 4)
    pages, before, has_more = [], "", True
    while has_more:
        found, has_more = await market.deploys.page(user, before=before, limit=10)
        before = found[-1].id
        pages.append([each.id for each in found])
    one, two, three, four, five = made
    assert pages == [[scaled], [five], [four], [three, two, one]]


async def test_a_requirement_that_no_device_meets_is_compared_with_no_device(
    market: Market,
) -> None:
    plain = Template(image="a:1", resources=Resources(arch="x" * 1_000))
    with pytest.raises(MarketError) as caught:
        market.deploys.needs_of(NewDeploy(**{**FIELDS, "template": plain, "image": "a:1"}))
    assert (caught.value.code, caught.value.field) == (Code.PAYLOAD_INVALID, "resources.arch")


async def test_a_page_asks_the_same_however_many_deploys_there_are(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, other = await market.person("1000"), await market.person("1000")
    made = [await create(market, user, replicas=1 + number % 3) for number in range(12)]
    await create(market, other, replicas=2)
    asked = counted(market.store, "read", monkeypatch)
    for limit in (1, 12):
        found, _ = await market.deploys.page(user, before="", limit=limit)
        assert [deploy.id for deploy in found] == made[::-1][:limit]
        assert [len(deploy.replicas) for deploy in found] == [
            deploy.row.replicas for deploy in found
        ]
    assert asked == [3, 3]


@cases(
    ("asked", "rate"),
    [
        ("RTX 4090", 4),
        ("rtx 4090 ", 4),
        ("NVIDIA GeForce RTX 4090", 4),
        ("rtx4090", 4),
        ("RTX 4090 Laptop GPU", 1),
        ("A100", 10),
        ("Tesla A100", 10),
        ("A100-SXM4-40GB", 1),
        ("A100-80GB", 15),
        ("NVIDIA A100 80 GB", 15),
        ("4090", 1),  # less than the rate names: it might be another card
        ("graphics", 1),
        ("", 1),
    ],
)
def test_a_rate_is_for_its_model_however_that_is_written(asked: str, rate: int) -> None:
    models = {"rtx 4090": 4, "a100": 10, "a100 80gb": 15, "80gb a100": 14, "gpu": 99}
    assert Rates(by_model=models, default=1, credit=1).of(asked) == rate


async def over(market: Market, user: str) -> list[str]:
    return [each for each in await types_of(market, user) if each.startswith("deploy.")]


async def test_the_end_of_the_last_replica_is_the_end_of_the_deploy(market: Market) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user)
    jobs = await open_jobs(market)
    workers = [await device(market, await market.person()) for _ in jobs]
    for worker, job in zip(workers, jobs, strict=True):
        await market.jobs.accept(worker, job.id)
    await market.jobs.complete(workers[0], jobs[0].id, "done")
    assert await over(market, user) == []
    await asyncio.gather(
        market.jobs.complete(workers[1], jobs[1].id, "done"),
        market.jobs.complete(workers[2], jobs[2].id, "done"),
    )
    assert await over(market, user) == ["deploy.finished"]
    [row] = await rows_of(market, user, "deploy.finished")
    assert row.subject_id == deploy_id


async def test_a_deploy_that_is_cancelled_says_so_once(market: Market) -> None:
    user = await market.person("100")
    deploy_id = await create(market, user)
    for _ in range(2):
        await market.deploys.cancel(user, deploy_id)
    assert await over(market, user) == ["deploy.cancelled"]
