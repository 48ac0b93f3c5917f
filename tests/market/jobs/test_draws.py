"""Cost of replicas: the time in which they can be used, to the second, for any events."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from support.base.clock import Clock
from support.market.books import available, earned, held
from support.market.jobs import device_of, prove
from support.market.market import RULES, Market
from support.market.reviews import decide_review

from market.attempts.attempts import Ending, FailureKind
from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Change, Template
from market.jobs.reviews import disputes
from market.money.audit import audit_ledger
from market.money.money import Currency, micro
from proxyctl.protocol.jobspec import Port, Ready
from storage.engines.errors import ConstraintError
from storage.engines.store import Store, Transaction
from storage.money import ledger as ledger_queries

if TYPE_CHECKING:
    from storage.devices.devices import DeviceRow
    from storage.jobs.jobs import JobRow

USD, CREDIT = Currency.USD, Currency.CREDIT
HOUR = 3_600
PROBE = Template(ports=(Port("web", 8080),), ready=Ready(8080))


async def create(market: Market, user: str, **changes: Any) -> str:
    fields: dict[str, Any] = {
        "job_name": "a service",
        "job_type": "Docker",
        "gpu_model": "A100",
        "gpu_count": 1,
        "duration_hrs": 2,
        "replicas": 1,
        "currency": USD,
        "image": "web:1",
    }
    return (await market.deploys.create(user, NewDeploy(**{**fields, **changes}))).id


async def replica(market: Market, user: str, deploy_id: str) -> "JobRow":
    [job_id] = (await market.deploys.find(user, deploy_id)).job_ids
    return (await market.jobs.find(user, job_id)).job


async def begun(market: Market, owner: str, job_id: str) -> "DeviceRow":
    device = await device_of(market, owner)
    await market.jobs.accept(device, job_id)
    await market.attempt_reports.started(device, job_id, None)
    return device


async def drawn(market: Market) -> dict[int, int]:
    """Return the seconds that were paid, by attempt."""

    async def read(tx: Transaction) -> dict[int, int]:
        attempts = await tx.all(int, "SELECT attempt FROM job_draws ORDER BY job_id, attempt")
        seconds = await tx.all(int, "SELECT seconds FROM job_draws ORDER BY job_id, attempt")
        return dict(zip(attempts, seconds, strict=True))

    return await market.store.read(read)


@pytest.mark.parametrize("currency", [USD, CREDIT])
async def test_time_is_paid_from_when_it_is_ready_to_the_second(
    market: Market, currency: Currency
) -> None:
    user, owner = await market.person("3", "300"), await market.person()
    deploy_id = await create(market, user, template=PROBE, currency=currency)
    job = await replica(market, user, deploy_id)
    device = await begun(market, owner, job.id)
    market.clock.now += HOUR // 2
    await market.attempt_reports.ready(device, job.id, None)
    market.clock.now += 1_201
    await market.deploys.cancel(user, deploy_id)
    price = micro(3) if currency is USD else micro(300)
    cost = price * 1_201 // (2 * HOUR)
    assert await available(market, user, currency) == price - cost
    gross = micro(300) * 1_201 // (2 * HOUR)
    assert await earned(market, owner) == gross - gross // 10
    assert (await market.deploys.find(user, deploy_id)).paid == cost
    assert (await audit_ledger(market.store)).passed


class LockSpy:
    """Transaction that records the tables of its locks, in order."""

    def __init__(self, tx: Transaction, tables: list[str]) -> None:
        self._tx = tx
        self._tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        self._tables.append(table)
        await self._tx.lock(table, ids)


@pytest.mark.parametrize("kind", [FailureKind.HOST, FailureKind.TIMEOUT])
async def test_reputations_are_locked_before_accounts(
    market: Market, kind: FailureKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ends of other jobs do: else two that end at once could wait for each other."""
    user, owner = await market.person("3"), await market.person()
    deploy_id = await create(market, user)
    job = await replica(market, user, deploy_id)
    device = await begun(market, owner, job.id)
    market.clock.now += 2 * HOUR if kind is FailureKind.TIMEOUT else HOUR
    write = market.store.write
    units: list[list[str]] = []

    async def spied(unit: Any, *args: Any, **kwargs: Any) -> Any:
        async def noting(tx: Transaction) -> Any:
            units.append([])
            return await unit(LockSpy(tx, units[-1]), *args, **kwargs)

        return await write(noting)

    with monkeypatch.context() as patched:
        patched.setattr(market.store, "write", spied)
        await market.jobs.fail(device, job.id, "it ended", ending=Ending(kind))
    [tables] = [each for each in units if "accounts" in each]
    assert "reputations" in tables
    assert "reputations" not in tables[tables.index("accounts") :]
    assert await drawn(market) == {1: market.clock.now - job.created_at}
    assert (await audit_ledger(market.store)).passed


async def test_a_replica_that_was_never_ready_costs_nothing(market: Market) -> None:
    user, owner = await market.person("3"), await market.person()
    deploy_id = await create(market, user, template=PROBE)
    job = await replica(market, user, deploy_id)
    await begun(market, owner, job.id)
    market.clock.now += HOUR
    await market.deploys.cancel(user, deploy_id)
    assert await available(market, user) == micro(3)
    assert await drawn(market) == {}


async def served(
    market: Market, user: str, currency: Currency = USD, seconds: tuple[int, ...] = (1_000,)
) -> tuple[str, list[str]]:
    """Have a replica served by one owner after the other; return its job, and these."""
    deploy_id = await create(market, user, currency=currency)
    job, owners = await replica(market, user, deploy_id), []
    for each in seconds:
        owners.append(await market.person())
        device = await begun(market, owners[-1], job.id)
        market.clock.now += each
        await market.jobs.fail(device, job.id, "crashed")
    return job.id, owners


@pytest.mark.parametrize("currency", [USD, CREDIT])
async def test_a_draw_is_in_review_and_paid_when_it_is_not_disputed(
    market: Market, currency: Currency
) -> None:
    user = await market.person("3", "300")
    _, [owner] = await served(market, user, currency)
    due = micro(300) * 1_000 // (2 * HOUR)
    due -= due // 10
    assert (await available(market, owner, CREDIT), await held(market, owner, CREDIT)) == (0, due)
    assert await market.reviews.earned_in_review(owner) == due
    market.clock.now += 24 * HOUR - 1
    assert await market.reviews.expire() == 0
    assert (await audit_ledger(market.store)).passed
    market.clock.now += 1
    assert await market.reviews.expire() == 1
    assert (await available(market, owner, CREDIT), await held(market, owner, CREDIT)) == (due, 0)
    assert (await audit_ledger(market.store)).passed


@pytest.mark.both_engines
@pytest.mark.parametrize("currency", [USD, CREDIT])
async def test_without_reviews_a_draw_is_paid_at_once(
    store: Store, clock: Clock, currency: Currency, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = replace(RULES.jobs, review_hours=0)
    monkeypatch.setattr("support.market.market.RULES", replace(RULES, jobs=terms))
    market = Market(store, clock)
    user = await market.person("3", "300")
    job_id, [first, second] = await served(market, user, currency, (1_200, 720))
    due = [micro(300) * seconds // (2 * HOUR) for seconds in (1_200, 720)]
    assert [await available(market, owner, CREDIT) for owner in (first, second)] == [
        each - each // 10 for each in due
    ]
    with pytest.raises(MarketError) as caught:
        await market.reviews.dispute(user, job_id, "slow")
    assert caught.value.code is Code.NOT_REVIEWABLE
    await market.jobs.cancel(user, job_id)
    whole = micro(3) if currency is USD else micro(300)
    assert await available(market, user, currency) == whole - whole * 1_920 // (2 * HOUR)
    assert (await audit_ledger(market.store)).passed


@pytest.mark.parametrize("currency", [USD, CREDIT])
async def test_a_buyer_that_was_not_served_gets_back_the_drawn_amount(
    market: Market, currency: Currency
) -> None:
    user = await market.person("3", "300")
    job_id, owners = await served(market, user, currency, (1_000, 700))
    spent = (micro(3) if currency is USD else micro(300)) * 1_700 // (2 * HOUR)
    await market.reviews.dispute(user, job_id, "Nobody answers on the port.")
    market.clock.now += 48 * HOUR
    assert await market.reviews.expire() == 0
    assert len(await disputes(market.context)) == 2
    assert (await audit_ledger(market.store)).passed
    rows = await decide_review(market.context, job_id, ReviewStatus.REVERSED)
    assert sum(row.price for row in rows) == spent
    assert await decide_review(market.context, job_id, ReviewStatus.REVERSED)  # moves no more money
    assert [await earned(market, owner) for owner in owners] == [0, 0]
    assert await market.jobs.earned_today(owners[0]) == {}
    await market.jobs.cancel(user, job_id)
    assert (await market.jobs.find(user, job_id)).paid == 0
    assert await available(market, user, currency) == micro(3 if currency is USD else 300)
    assert (await audit_ledger(market.store)).passed


async def test_only_an_amount_that_is_still_in_review_can_be_disputed(market: Market) -> None:
    user = await market.person("3")
    deploy_id = await create(market, user)
    job, owners = await replica(market, user, deploy_id), []
    for _ in range(2):  # a day apart
        owners.append(await market.person())
        device = await begun(market, owners[-1], job.id)
        market.clock.now += 900
        await market.jobs.fail(device, job.id, "crashed")
        market.clock.now += 24 * HOUR - 1
    assert await market.reviews.expire() == 1
    await market.reviews.dispute(user, job.id, "It was slow.")
    owned = await market.jobs.find(user, job.id)
    assert owned.review is not None
    assert (owned.review.state, owned.review.attempt) == ("disputed", 2)
    rows = await decide_review(market.context, job.id, ReviewStatus.UPHELD)
    assert [row.attempt for row in rows] == [2]
    assert await available(market, owners[0], CREDIT) == await available(market, owners[1], CREDIT)
    with pytest.raises(MarketError) as caught:
        await market.reviews.dispute(user, job.id, "It was slow.")
    assert caught.value.code is Code.NOT_REVIEWABLE
    assert (await audit_ledger(market.store)).passed


async def test_a_buyer_may_confirm_a_draw(market: Market) -> None:
    user = await market.person("3")
    job_id, owners = await served(market, user, USD, (1_000, 700))
    await market.reviews.confirm(user, job_id)
    await market.reviews.confirm(user, job_id)
    assert [await held(market, owner, CREDIT) for owner in owners] == [0, 0]
    assert (await audit_ledger(market.store)).passed


async def test_each_attempt_is_paid_and_the_next_has_the_rest(market: Market) -> None:
    user = await market.person("3")
    owners = [await market.person() for _ in range(5)]
    deploy_id = await create(market, user)
    job = await replica(market, user, deploy_id)
    for number, owner in enumerate(owners[:4], start=1):  # more than may fail without serving
        device = await begun(market, owner, job.id)
        market.clock.now += 1_000
        await market.jobs.fail(device, job.id, "crashed", attempt=number)
        spec = (await market.jobs.find(user, job.id)).spec
        assert spec is not None
        assert spec.timeout_seconds == 2 * HOUR - number * 1_000
        assert await held(market, user) == micro(3) - micro(3) * number * 1_000 // (2 * HOUR)
        assert (await audit_ledger(market.store)).passed
    device = await begun(market, owners[4], job.id)
    market.clock.now += 2 * HOUR  # only 3,200 seconds of these remain
    ending = Ending(FailureKind.TIMEOUT)
    await market.jobs.fail(device, job.id, "its time is over", ending=ending)
    assert await drawn(market) == {1: 1_000, 2: 1_000, 3: 1_000, 4: 1_000, 5: 3_200}
    await market.rollouts.look(deploy_id)
    found = await market.deploys.find(user, deploy_id)
    assert (found.status, found.paid) == ("completed", micro(3))
    assert await available(market, user) == await held(market, user) == 0
    amounts = [await earned(market, owner) for owner in owners]
    assert sum(amounts) == pytest.approx(micro(270), abs=5)
    assert {*(await market.jobs.earned_today(owners[4])).values()} == {amounts[4]}
    assert (await audit_ledger(market.store)).passed


@pytest.mark.both_engines
async def test_a_silent_device_is_paid_until_its_last_report(market: Market) -> None:
    user, owner = await market.person("3"), await market.person()
    deploy_id = await create(market, user)
    job = await replica(market, user, deploy_id)
    await begun(market, owner, job.id)
    market.clock.now += 100
    market.renewals.renew(job.id, 1)
    assert await market.silence(1_000) == 1
    assert await drawn(market) == {1: 100}
    assert (await replica(market, user, deploy_id)).status == "waiting"


async def test_three_owners_that_never_serve_end_it(market: Market) -> None:
    user = await market.person("3")
    deploy_id = await create(market, user)
    job = await replica(market, user, deploy_id)
    for _ in range(3):
        owner = await market.person()
        await prove(market, owner)
        device = await begun(market, owner, job.id)
        market.clock.now += 599
        await market.jobs.fail(device, job.id, "crashed")
    assert (await replica(market, user, deploy_id)).status == "failed"
    assert await available(market, user) == micro(3) - micro(3) * 3 * 599 // (2 * HOUR)
    assert (await audit_ledger(market.store)).passed


async def test_a_hold_is_never_drawn_beyond_its_amount(market: Market) -> None:
    user = await market.person("3")
    job = await replica(market, user, await create(market, user))

    async def draw(tx: Transaction) -> None:
        await ledger_queries.draw_from_hold(tx, f"job:{job.id}", micro(3) + 1)

    with pytest.raises(ConstraintError):
        await market.store.write(draw)


@pytest.mark.both_engines
async def test_the_audit_finds_a_draw_that_was_not_paid(market: Market) -> None:
    user = await market.person("3")
    job = await replica(market, user, await create(market, user))

    async def draw(tx: Transaction) -> None:
        await ledger_queries.draw_from_hold(tx, f"job:{job.id}", 1)

    await market.store.write(draw)
    failed = [
        check.promise for check in (await audit_ledger(market.store)).checks if check.differences
    ]
    assert failed == [
        "held money is the sum of open holds",
        "holds are drawn from as attempts were paid, for the time that their jobs have",
    ]

    async def mend(tx: Transaction) -> None:
        await tx.run("UPDATE holds SET drawn = 0")

    await market.store.write(mend)


class Life:
    """Deploy with random events."""

    def __init__(self, market: Market, seed: int, buyer: str, owners: list[str]) -> None:
        self.market = market
        self.random = random.Random(seed)
        self.buyer = buyer
        self.owners = owners
        self.devices: dict[str, DeviceRow] = {}
        self.deploy_id = ""

    async def act(self) -> None:
        """Cause an event; a refused one changes nothing."""
        market, chance = self.market, self.random.random()
        market.clock.now += self.random.choice((0, 1, 7, 61, 700, 1_801))
        deploy = await market.deploys.find(self.buyer, self.deploy_id)
        if chance < 0.1:
            await market.rollouts.scale(self.buyer, self.deploy_id, self.random.randint(0, 4))
        elif chance < 0.2:
            await market.rollouts.revise(self.buyer, self.deploy_id, Change(command="serve"))
        elif chance < 0.4:
            await market.rollouts.look(self.deploy_id)
        elif deploy.job_ids:
            await self.touch(self.random.choice(deploy.job_ids))

    async def touch(self, job_id: str) -> None:
        """Let something happen to a replica."""
        market = self.market
        job = (await market.jobs.find(self.buyer, job_id)).job
        if job.status == "waiting":
            self.devices[job_id] = await begun(market, self.random.choice(self.owners), job_id)
            return
        if job.status != "running":
            return
        device = self.devices[job_id]
        if self.random.random() < 0.2:
            await self.review(job_id)
        what = self.random.randrange(14)
        if what > 6:
            await market.attempt_reports.ready(device, job_id, None)
        elif what == 2:
            await market.job_sweeper.take_back_attempt(job_id, job.attempts, "silent")
        elif what == 3:
            await market.jobs.complete(device, job_id, "done")
        elif what == 4:
            await market.jobs.cancel(self.buyer, job_id)
        else:
            kind = self.random.choice([*FailureKind])
            await market.jobs.fail(device, job_id, "why", ending=Ending(kind))

    async def review(self, job_id: str) -> None:
        """Let its buyer, or the operator, decide about the drawn amount."""
        what = self.random.randrange(4)
        if what == 0:
            await self.market.reviews.confirm(self.buyer, job_id)
        elif what == 1:
            await self.market.reviews.dispute(self.buyer, job_id, "slow")
        elif what == 2:
            state = self.random.choice((ReviewStatus.UPHELD, ReviewStatus.REVERSED))
            await decide_review(self.market.context, job_id, state)
        else:
            await self.market.reviews.expire()


@pytest.mark.parametrize("currency", [USD, CREDIT])
@pytest.mark.parametrize("seed", range(4))
async def test_the_books_are_right_after_any_events(
    market: Market, seed: int, currency: Currency
) -> None:
    buyer = await market.person("20", "2000")
    owners = [await market.person() for _ in range(8)]
    life = Life(market, seed, buyer, owners)
    template = PROBE if seed % 2 else Template()
    life.deploy_id = await create(market, buyer, replicas=3, template=template, currency=currency)
    for _ in range(80):
        try:
            await life.act()
        except MarketError:
            continue
    assert (await audit_ledger(market.store)).passed
    await market.deploys.cancel(buyer, life.deploy_id)
    report = await audit_ledger(market.store)
    assert [check for check in report.checks if check.differences] == []
    assert await held(market, buyer, currency) == 0
    paid = (await market.deploys.find(buyer, life.deploy_id)).paid
    whole = micro(20) if currency is USD else micro(2_000)
    assert paid is not None
    assert paid > 0
    assert await available(market, buyer, currency) == whole - paid
