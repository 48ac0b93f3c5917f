"""Same work on several devices: permitted devices, the counted result, and the payments."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from support.base.brief import brief
from support.base.cases import cases
from support.base.clock import Clock
from support.market import books
from support.market.books import refusal, stored_job
from support.market.jobs import code_of, device_of, wanted
from support.market.market import Market
from support.market.reviews import decide_review
from support.market.work import SMALL, ask, given, offer

from market.accounts.bounds import Bounds
from market.attempts.attempts import Ending, FailureKind
from market.base.bus import WAITING
from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.dispatch.claims import ClaimOutcome, Claims, Pair, Refused, claim
from market.jobs import reviews
from market.jobs.copies import COPIES_MAX, RUNNING_MAX_SECONDS, UNTAKEN_SECONDS, Copying, copying_of
from market.jobs.kinds.copied import UNNEEDED
from market.jobs.matching import Needs, WaitingJob
from market.jobs.specs import Spec
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.trust import trust
from proxyctl.protocol.jobspec import Capacity, Payload, Port, Resources
from storage.devices.devices import DeviceRow
from storage.dispatch.claims import GivenRow, PairRow
from storage.engines.store import Store, Transaction
from storage.files import artifacts as artifact_queries
from storage.files.artifacts import ArtifactRow
from storage.jobs import reviews as review_queries
from storage.jobs.jobs import JobRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CREDIT = Currency.CREDIT
HOUR = 3_600
DAY = 24 * HOUR
HERE, THERE = "9.9.9.0/24", "8.8.8.0/24"
SCRIPT = Payload(script="print(1)")

available = partial(books.available, currency=CREDIT)
held = partial(books.held, currency=CREDIT)


async def copied(
    market: Market, buyer: str, copies: int = 3, compare: str = "bytes", **changes: Any
) -> list[str]:
    """Post a job `copies` times, for 10 credits each and two hours, unless changed."""
    hours = changes.pop("review_hours", None)
    payload = changes.pop("payload", SCRIPT)
    new = replace(
        wanted(job_type="script", **changes),
        spec=Spec(payload, Resources(), timeout_seconds=HOUR, review_hours=hours),
    )
    return await market.jobs.create_copies(buyer, new, Copying(copies, compare))


async def worker(market: Market) -> DeviceRow:
    """Return a device of a new owner."""
    return await device_of(market, await market.person())


async def begun(market: Market, job_id: str, device: DeviceRow, network: str = "") -> None:
    await market.jobs.accept(device, job_id, network)
    await market.attempt_reports.started(device, job_id, None)


async def done(market: Market, job_id: str, result: str) -> DeviceRow:
    """Have a new owner's device do a copy."""
    device = await worker(market)
    await begun(market, job_id, device)
    await market.jobs.complete(device, job_id, result)
    return device


async def verdicts(market: Market, buyer: str, job_id: str) -> list[bool | None]:
    group = (await market.jobs.find(buyer, job_id)).group
    assert group is not None
    return [copy.agrees for copy in group.copies]


async def state(market: Market, buyer: str, job_id: str) -> tuple[str, str | None]:
    group = (await market.jobs.find(buyer, job_id)).group
    assert group is not None
    return group.state, group.canonical


async def review_state(market: Market, job_id: str) -> str:
    [row] = await market.store.read(review_queries.of_job, job_id)
    return row.state


# --- valid orders -------------------------------------------------------------------


@cases(
    ("copies", "compare", "payload", "field"),
    [
        (2, None, None, "trust.copies"),
        (0, None, SCRIPT, "trust.copies"),
        (COPIES_MAX + 1, None, SCRIPT, "trust.copies"),
        (2, "roughly", SCRIPT, "trust.compare"),
        (None, "json", SCRIPT, "trust.compare"),
        (1, "json", SCRIPT, "trust.compare"),
        (2, None, Payload(script="x", ports=(Port("web", 80),)), "trust.copies"),
        (2, None, Payload(script="x", restart="always"), "trust.copies"),
    ],
)
def test_a_job_that_cannot_be_compared_is_refused(
    copies: int | None, compare: str | None, payload: Payload | None, field: str
) -> None:
    with pytest.raises(MarketError) as caught:
        copying_of(copies, compare, payload)
    assert (caught.value.code, caught.value.field) == (Code.PAYLOAD_INVALID, field)


def test_work_that_is_done_once_is_no_copy() -> None:
    assert copying_of(None, None, None) is None
    assert copying_of(1, None, None) is None
    assert copying_of(5, None, SCRIPT) == Copying(5, "bytes")
    assert copying_of(2, "numbers:1e-6", SCRIPT) == Copying(2, "numbers:1e-6")


async def test_each_copy_is_a_job_with_its_own_hold_or_no_copy_is_made(market: Market) -> None:
    buyer = await market.person(credit="35")
    assert await refusal(copied(market, buyer, 4)) is Code.INSUFFICIENT_FUNDS
    assert await held(market, buyer) == 0
    jobs = await copied(market, buyer, 3)
    assert (await available(market, buyer), await held(market, buyer)) == (5 * MICRO, 30 * MICRO)
    for job_id in jobs:
        group = (await market.jobs.find(buyer, job_id)).group
        assert group is not None
        assert (group.state, group.canonical, group.compare) == ("open", None, "bytes")
        assert [(copy.job_id, copy.status, copy.agrees) for copy in group.copies] == [
            (each, "waiting", None) for each in jobs
        ]
    market.change_bounds(Bounds(jobs=4))
    rich = await market.person(credit="100")
    assert await refusal(copied(market, rich, 5)) is Code.TOO_MANY_JOBS


# --- who may do it ---------------------------------------------------------------------------


async def test_copies_go_to_different_owners_and_networks_and_not_to_the_buyer(
    market: Market,
) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    one, two, three = await copied(market, buyer)
    first, second = await device_of(market, owner), await device_of(market, owner)
    neighbour, other = await worker(market), await worker(market)
    taken = Code.COPY_TAKEN_HERE
    assert await refusal(market.jobs.accept(await device_of(market, buyer), one)) is taken
    await market.jobs.accept(first, one, HERE)
    await market.jobs.accept(first, one, HERE)  # it has it already
    for device, network in ((first, THERE), (second, THERE), (second, ""), (neighbour, HERE)):
        assert await refusal(market.jobs.accept(device, two, network)) is taken
    assert await refusal(market.jobs.accept(other, one, THERE)) is Code.JOB_NOT_WAITING
    await market.jobs.accept(neighbour, two, THERE)
    # Of two devices whose networks are not known, the owners differ.
    await market.jobs.accept(other, three)


async def test_a_lost_attempt_binds_no_worker_and_a_failed_one_does(market: Market) -> None:
    buyer = await market.person(credit="100")
    one, two, three = await copied(market, buyer)
    lost, failed, refusing = [await worker(market) for _ in range(3)]
    await market.jobs.accept(lost, one, HERE)
    await market.job_sweeper.take_back_attempt(one, 1, "silent")
    await market.jobs.accept(lost, two, HERE)
    await market.jobs.accept(failed, one, THERE)
    await market.jobs.fail(failed, one, "cannot", ending=Ending(FailureKind.IMAGE))
    # Else one owner could fail all of them.
    assert await refusal(market.jobs.accept(failed, three)) is Code.COPY_TAKEN_HERE
    await market.jobs.accept(refusing, one, "7.7.7.0/24")
    await market.jobs.fail(refusing, one, "not mine", ending=Ending(FailureKind.REFUSED))
    await market.jobs.accept(refusing, three, "7.7.7.0/24")


def waiting_copy(job_id: str, group: str) -> WaitingJob:
    return WaitingJob(job_id, Needs(Resources(), "script"), price=1, created_at=0, group=group)


async def of_two_daemons(
    market: Market, jobs: list[str], devices: list[DeviceRow]
) -> list[ClaimOutcome]:
    """Let two daemons assign a copy each to a device each at the same time. Return the outcomes."""
    found: list[ClaimOutcome] = []
    unbounded = Bounds(device_slots=0, new_device_slots=0, new_owner_slots=0)
    daemons = [Claims(market.context, lambda: unbounded) for _ in devices]
    for daemon, job_id, device in zip(daemons, jobs, devices, strict=True):
        copy = waiting_copy(job_id, jobs[0])
        told = lambda _, outcome: found.append(outcome)  # noqa: E731 - one line of it
        daemon.put(Pair(copy, device.id, lambda: True, told))
    await asyncio.gather(*(daemon.settle() for daemon in daemons))
    return found


@pytest.mark.both_engines
async def test_two_daemons_never_give_two_copies_to_one_owner(market: Market) -> None:
    buyer, owner = await market.person(credit="1000"), await market.person()
    devices = [await device_of(market, owner) for _ in range(2)]
    for _ in range(5):
        jobs = await copied(market, buyer, 2)
        found = await of_two_daemons(market, jobs, devices)
        assert [isinstance(each, GivenRow) for each in found].count(True) == 1
        assert Refused.RELATED in found


@pytest.mark.both_engines
async def test_of_two_copies_that_one_owner_accepts_at_once_one_is_refused(market: Market) -> None:
    buyer, owner = await market.person(credit="1000"), await market.person()
    for _ in range(5):
        jobs = await copied(market, buyer, 2)
        devices = [await device_of(market, owner) for _ in jobs]
        accepting = [
            market.jobs.accept(device, job_id) for device, job_id in zip(devices, jobs, strict=True)
        ]
        outcomes = await asyncio.gather(*accepting, return_exceptions=True)
        assert sorted(str(code_of(each)) for each in outcomes) == [
            str(Code.COPY_TAKEN_HERE),
            str(None),
        ]


async def test_in_one_batch_owners_and_networks_differ_as_well(market: Market) -> None:
    buyer = await market.person(credit="1000")
    jobs = await copied(market, buyer, 3)
    owner = await market.person()
    same = [await device_of(market, owner) for _ in range(2)]
    near, far = await worker(market), await worker(market)
    pairs = [
        PairRow(jobs[0], same[0].id, 0, group_id=jobs[0], network=HERE),
        PairRow(jobs[1], same[1].id, 0, group_id=jobs[0], network=THERE),
        PairRow(jobs[2], near.id, 0, group_id=jobs[0], network=HERE),
    ]
    outcomes = await market.store.write(claim, market.context, pairs, Bounds())
    assert isinstance(outcomes[jobs[0]], GivenRow)
    assert [outcomes[job_id] for job_id in jobs[1:]] == [Refused.RELATED] * 2
    pairs = [
        PairRow(jobs[1], far.id, 0, group_id=jobs[0], network=THERE),
        PairRow(jobs[2], near.id, 0, group_id=jobs[0]),
    ]
    outcomes = await market.store.write(claim, market.context, pairs, Bounds())
    assert all(isinstance(each, GivenRow) for each in outcomes.values())


async def test_devices_that_ask_are_offered_one_copy(market: Market) -> None:
    buyer, owner = await market.person(credit="1000"), await market.person()
    jobs = await copied(market, buyer, 3)
    await market.dispatch.pairing.reader.catch_up()
    roomy = offer(Capacity(slots=5, cores=16, ram_gb=64, disk_gb=500, arch="x86_64"))
    own = await device_of(market, buyer)
    assert await given(market, own, ask(roomy)) == []
    assert (await market.dispatch.offers(own, 10)).jobs == []
    first, second = await device_of(market, owner), await device_of(market, owner)
    here, there = replace(ask(roomy), network=HERE), replace(ask(roomy), network=THERE)
    [one] = await given(market, first, here)
    # Nothing was read again: the book in memory knows it, so no claim was tried in vain.
    assert await given(market, second, there) == []
    neighbour = await worker(market)
    assert await given(market, neighbour, here) == []
    assert market.dispatch.claims.claimed == 1
    await market.dispatch.pairing.reader.catch_up()
    assert await given(market, second, there) == []
    [two] = await given(market, neighbour, there)
    [three] = await given(market, await worker(market))
    assert {one, two, three} == set(jobs)


async def test_a_lost_copy_comes_to_a_worker_that_has_none(market: Market) -> None:
    buyer = await market.person(credit="1000")
    one, two = await copied(market, buyer, 2)
    await market.dispatch.pairing.reader.catch_up()
    first, second = await worker(market), await worker(market)
    asked = replace(ask(offer(SMALL)), network=HERE)
    [mine] = await given(market, first, asked)
    await market.job_sweeper.take_back_attempt(mine, 1, "silent")
    await market.dispatch.pairing.reader.catch_up()
    [other] = await given(market, first, asked)
    assert await given(market, second, asked) == []  # in the same network
    elsewhere = replace(asked, network=THERE)
    [rest] = await given(market, second, elsewhere)
    assert {other, rest} == {one, two}


async def test_a_worker_that_has_lost_a_copy_for_good_may_have_another_one(market: Market) -> None:
    buyer = await market.person(credit="1000")
    one, two = await copied(market, buyer, 2)
    await market.dispatch.pairing.reader.catch_up()
    device, given_to = await worker(market), []
    for _ in range(2):
        [job_id] = await given(market, device)
        given_to.append(job_id)
        await market.dispatch.pairing.reader.catch_up()  # that the other one is not for this owner
        job = await stored_job(market, job_id)
        await market.job_sweeper.take_back_attempt(job_id, job.attempts, "silent")
        await market.dispatch.pairing.reader.catch_up()
    assert given_to == [one, one]  # the older one is offered first
    assert await given(market, device) == [two]


async def test_other_daemons_are_notified_of_a_taken_copy(market: Market) -> None:
    buyer = await market.person(credit="1000")
    jobs = await copied(market, buyer, 3)
    await market.dispatch.pairing.reader.catch_up()
    heard: list[str] = []
    market.context.bus.subscribe(WAITING, heard.extend)
    [one] = await given(market, await worker(market))
    rest = {*jobs} - {one}
    assert {*heard} == rest
    heard.clear()
    two, three = sorted(rest)
    await market.jobs.accept(await worker(market), two)
    assert three in heard


# --- whose result counts ---------------------------------------------------------------------


async def test_a_majority_is_paid_for_and_a_waiting_copy_is_not_needed(market: Market) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer)
    first = await done(market, one, "42")
    market.clock.now += 10 * HOUR
    assert await market.reviews.expire() == 0
    assert await state(market, buyer, one) == ("open", None)
    second = await done(market, two, "42")
    assert await state(market, buyer, three) == ("agreed", one)
    assert await verdicts(market, buyer, one) == [True, True, None]
    job = await stored_job(market, three)
    assert (job.status, job.failure_reason) == ("cancelled", UNNEEDED)
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO, 0)
    market.clock.now += DAY - 1
    assert await market.reviews.expire() == 0
    market.clock.now += 1  # a day since they were compared
    assert await market.reviews.expire() == 2
    for device in (first, second):
        assert await available(market, device.user_id) == 9 * MICRO


async def test_a_worker_that_differs_is_not_paid_and_is_trusted_less(market: Market) -> None:
    buyer = await market.person(credit="30")
    one, two, three = jobs = await copied(market, buyer, review_hours=0)
    devices = [await worker(market) for _ in jobs]
    for device, job_id in zip(devices, jobs, strict=True):
        await begun(market, job_id, device)
    await market.jobs.complete(devices[0], one, "a lie")
    await market.jobs.complete(devices[1], two, "42")
    assert await state(market, buyer, one) == ("open", None)
    await market.jobs.complete(devices[2], three, "42")
    assert await state(market, buyer, one) == ("agreed", two)
    assert await verdicts(market, buyer, one) == [False, True, True]
    assert (await market.jobs.find(buyer, one)).paid == 0
    assert (await stored_job(market, one)).earned == 0
    assert await market.reviews.expire() == 2
    assert [await available(market, device.user_id) for device in devices] == [
        0,
        9 * MICRO,
        9 * MICRO,
    ]
    assert [await held(market, device.user_id) for device in devices] == [0, 0, 0]
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO, 0)
    found = await market.store.read(trust.of_devices, [device.id for device in devices])
    assert [found[device.id].checks for device in devices] == [1, 1, 1]
    liar, honest = found[devices[0].id], found[devices[1].id]
    assert liar.correctness < honest.correctness
    assert liar.streak == 0
    # It is as final as every decision.
    assert await refusal(market.reviews.confirm(buyer, one)) is Code.NOT_REVIEWABLE


async def test_a_free_job_says_nothing_of_devices(market: Market) -> None:
    buyer = await market.person()
    jobs = await copied(market, buyer, price=0)
    devices = [
        await done(market, job_id, result) for job_id, result in zip(jobs, "ab", strict=False)
    ]
    devices.append(await done(market, jobs[2], "a"))
    assert await verdicts(market, buyer, jobs[0]) == [True, False, True]
    found = await market.store.read(trust.of_devices, [device.id for device in devices])
    assert {each.checks for each in found.values()} == {0}


@pytest.mark.both_engines
async def test_copies_that_differ_count_once_a_day_for_a_buyer_and_an_owner(
    market: Market,
) -> None:
    """Work that tosses a coin has another result on one of three devices."""
    owner = await market.person()
    others = [await worker(market) for _ in range(2)]

    async def differs(buyer: str) -> int:
        victim = await device_of(market, owner)
        jobs = await copied(market, buyer)
        for device, job_id, result in zip((victim, *others), jobs, ("0", "1", "1"), strict=True):
            await begun(market, job_id, device)
            await market.jobs.complete(device, job_id, result)
        assert await verdicts(market, buyer, jobs[0]) == [False, True, True]
        assert (await stored_job(market, jobs[0])).earned == 0
        return (await market.store.read(trust.of_devices, [victim.id]))[victim.id].correctness

    buyer, another = [await market.person(credit="150") for _ in range(2)]
    assert [await differs(buyer) for _ in range(3)] == [500_000] * 3
    assert [await differs(another) for _ in range(2)] == [250_000] * 2
    market.clock.now += DAY
    assert await differs(buyer) == 125_000


@pytest.mark.parametrize(("result", "agrees"), [("42", True), ("43", False)])
async def test_a_worker_that_has_begun_may_still_agree(
    market: Market, result: str, agrees: bool
) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer)
    late = await worker(market)
    await begun(market, three, late)
    await done(market, one, "42")
    await done(market, two, "42")
    assert await state(market, buyer, one) == ("agreed", one)
    assert (await stored_job(market, three)).status == "running"
    await market.jobs.complete(late, three, result)
    assert await verdicts(market, buyer, one) == [True, True, agrees]
    assert await held(market, late.user_id) == (9 * MICRO if agrees else 0)
    assert await available(market, buyer) == (0 if agrees else 10 * MICRO)
    market.clock.now += DAY
    assert await market.reviews.expire() == 2 + agrees


async def test_a_worker_that_is_lost_after_the_others_agreed_is_not_replaced(
    market: Market,
) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer)
    await begun(market, three, await worker(market))
    await done(market, one, "42")
    await done(market, two, "42")
    await market.job_sweeper.take_back_attempt(three, 1, "silent")
    assert (await stored_job(market, three)).status == "failed"
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO, 0)


async def test_without_a_majority_each_is_in_review_as_other_work_is(market: Market) -> None:
    buyer = await market.person(credit="20")
    one, two = await copied(market, buyer, 2)
    first = await done(market, one, "heads")
    second = await done(market, two, "tails")
    assert await state(market, buyer, one) == ("undecided", None)
    assert await verdicts(market, buyer, one) == [None, None]
    # Disagreement is not free: a job that prints a random number would be.
    assert (await available(market, buyer), await held(market, buyer)) == (0, 0)
    found = await market.store.read(trust.of_devices, [first.id, second.id])
    assert {each.checks for each in found.values()} == {0}
    await market.reviews.dispute(buyer, one, "not what the other one found")
    market.clock.now += DAY
    assert await market.reviews.expire() == 1
    assert await available(market, second.user_id) == 9 * MICRO
    await decide_review(market.context, one, ReviewStatus.REVERSED)
    assert await available(market, buyer) == 10 * MICRO


async def test_results_are_compared_as_the_buyer_wants(market: Market) -> None:
    buyer = await market.person(credit="1000")
    for compare, results, agreed in (
        ("bytes", ('{"a": 1}', '{"a":1.0}'), False),
        ("json", ('{"a": 1}', '{"a":1.0}'), True),
        ("numbers:1e-6", ("loss 0.1", "loss 0.10000001"), True),
        ("numbers:1e-6", ("loss 0.1", "loss 0.11"), False),
    ):
        jobs = await copied(market, buyer, 2, compare)
        for job_id, result in zip(jobs, results, strict=True):
            await done(market, job_id, result)
        expected = ("agreed", jobs[0]) if agreed else ("undecided", None)
        assert await state(market, buyer, jobs[0]) == expected


async def sent(market: Market, job_id: str, name: str, digest: str, *, whole: bool = True) -> None:
    """Store an output of the attempt that runs of a job."""
    job, artifact_id = await stored_job(market, job_id), market.identifiers.new()

    async def insert(tx: Transaction) -> None:
        content_id = None
        if whole:
            content_id = artifact_id
            await artifact_queries.insert_content(
                tx, content_id=content_id, digest=digest, size_bytes=1, is_checked=False
            )
        await artifact_queries.insert(
            tx,
            ArtifactRow(
                id=artifact_id,
                user_id=job.user_id,
                job_id=job_id,
                attempt=job.attempts,
                kind="output",
                name=name,
                digest=digest,
                size_bytes=1,
                reference="",
                content_id=content_id,
                created_at=0,
                whole_at=0 if whole else None,
                expires_at=None,
            ),
        )

    await market.store.write(insert)


async def test_outputs_are_compared_by_their_hashes(market: Market) -> None:
    buyer = await market.person(credit="50")
    jobs = await copied(market, buyer, 5)
    devices = [await worker(market) for _ in jobs]
    for device, job_id in zip(devices, jobs, strict=True):
        await begun(market, job_id, device)
    # The second one has sent a file anew, the third one not all of it, the fourth another.
    await sent(market, jobs[0], "out/a", "aa")
    await sent(market, jobs[1], "out/a", "bb")
    await sent(market, jobs[1], "out/a", "aa")
    await sent(market, jobs[2], "out/a", "aa", whole=False)
    await sent(market, jobs[3], "out/a", "cc")
    await sent(market, jobs[4], "out/a", "aa")
    for device, job_id in zip(devices, jobs, strict=True):
        await market.jobs.complete(device, job_id, "done")
    assert await verdicts(market, buyer, jobs[0]) == [True, True, False, False, True]


async def test_an_output_that_is_being_replaced_does_not_count(market: Market) -> None:
    buyer = await market.person(credit="30")
    jobs = await copied(market, buyer)
    devices = [await worker(market) for _ in jobs]
    for device, job_id in zip(devices, jobs, strict=True):
        await begun(market, job_id, device)
        await sent(market, job_id, "out/a", "aa")
    # The earlier file is deleted: the buyer would have no file left.
    await sent(market, jobs[0], "out/a", "bb", whole=False)
    for device, job_id in zip(devices, jobs, strict=True):
        await market.jobs.complete(device, job_id, "done")
    assert await verdicts(market, buyer, jobs[0]) == [False, True, True]


async def test_outputs_stay_until_all_copies_are_compared_with_them(market: Market) -> None:
    buyer = await market.person(credit="30")
    jobs = await copied(market, buyer)
    devices = [await worker(market) for _ in jobs]
    for device, job_id in zip(devices, jobs, strict=True):
        await begun(market, job_id, device)
    await sent(market, jobs[0], "out/a", "bb")
    await sent(market, jobs[0], "out/a", "aa")
    await sent(market, jobs[1], "out/a", "aa")
    await sent(market, jobs[2], "out/a", "aa")

    async def outputs(job_id: str) -> list[ArtifactRow]:
        return await market.artifacts.page_of_job(buyer, job_id, before="", limit=10)

    last, replaced = await outputs(jobs[0])
    # Otherwise the buyer has the device's work, and does not pay for it.
    needed = Code.ARTIFACT_NEEDED
    assert await refusal(market.artifacts.delete(buyer, last.id)) is needed
    await market.artifacts.delete(buyer, replaced.id)
    await market.jobs.complete(devices[0], jobs[0], "done")
    assert await refusal(market.artifacts.delete(buyer, last.id)) is needed
    await market.jobs.complete(devices[1], jobs[1], "done")
    assert await state(market, buyer, jobs[0]) == ("agreed", jobs[0])
    # A late result is compared with the same files.
    assert await refusal(market.artifacts.delete(buyer, last.id)) is needed
    await market.artifacts.settle()
    market.clock.now += market.artifacts.terms.keep_seconds
    await market.artifacts.expire()
    assert await outputs(jobs[0]) != []
    await market.jobs.complete(devices[2], jobs[2], "done")
    assert await verdicts(market, buyer, jobs[0]) == [True, True, True]
    assert await refusal(market.artifacts.delete(buyer, last.id)) is needed, "it is in review"
    await market.reviews.expire()
    await market.artifacts.delete(buyer, last.id)
    market.clock.now += DAY
    await market.artifacts.expire()
    assert [await outputs(job_id) for job_id in jobs[:2]] == [[], []]


# --- buyers and time -------------------------------------------------------------------------


async def test_cancelling_one_cancels_all_that_are_not_over(market: Market) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer)
    first, second = await done(market, one, "42"), await worker(market)
    await begun(market, two, second)
    market.clock.now += HOUR // 2
    await market.jobs.cancel(buyer, three)
    await market.jobs.cancel(buyer, two)
    assert [(await stored_job(market, each)).status for each in (one, two, three)] == [
        "completed",
        "cancelled",
        "cancelled",
    ]
    assert await refusal(market.jobs.cancel(buyer, one)) is Code.JOB_OVER
    assert await state(market, buyer, one) == ("undecided", None)
    # A quarter of the two hours has run; the finished one is in review.
    assert await available(market, second.user_id) == 9 * MICRO // 4
    assert await held(market, first.user_id) == 9 * MICRO
    market.clock.now += DAY
    assert await market.reviews.expire() == 1
    assert await available(market, first.user_id) == 9 * MICRO
    assert await available(market, buyer) == 30 * MICRO - 10 * MICRO - 10 * MICRO // 4


async def test_copies_that_fail_for_good_leave_the_others_to_the_buyer(market: Market) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer)
    done_by = await done(market, one, "42")
    for job_id in (two, three):
        device = await worker(market)
        await begun(market, job_id, device)
        await market.jobs.fail(device, job_id, "exit 1", ending=Ending(FailureKind.JOB))
    assert await state(market, buyer, one) == ("undecided", None)
    assert await available(market, buyer) == 20 * MICRO
    market.clock.now += DAY
    assert await market.reviews.expire() == 1
    assert await available(market, done_by.user_id) == 9 * MICRO


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_worker_that_has_failed_at_work_that_most_agree_on_is_not_paid(
    market: Market, is_late: bool
) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer, review_hours=0)
    device = await worker(market)
    await begun(market, three, device)
    market.clock.now += HOUR

    async def fail() -> None:
        await market.jobs.fail(device, three, "exit 1", ending=Ending(FailureKind.JOB))

    if not is_late:
        await fail()
        await market.reviews.expire()
        assert await held(market, device.user_id) == 9 * MICRO // 2
    await done(market, one, "42")
    await done(market, two, "42")
    if is_late:
        await fail()
    assert await held(market, device.user_id) == await available(market, device.user_id) == 0
    assert await available(market, buyer) == 10 * MICRO
    assert (await market.jobs.find(buyer, three)).paid == 0
    assert await verdicts(market, buyer, one) == [True, True, None]
    # A failure does not affect the correctness of the device.
    [found] = (await market.store.read(trust.of_devices, [device.id])).values()
    assert found.checks == 0
    assert (await audit_ledger(market.store)).passed


async def test_a_worker_that_has_failed_where_none_agree_is_paid_for_the_time(
    market: Market,
) -> None:
    buyer = await market.person(credit="20")
    one, two = await copied(market, buyer, 2, review_hours=0)
    device = await worker(market)
    await begun(market, one, device)
    market.clock.now += HOUR
    await market.jobs.fail(device, one, "exit 1", ending=Ending(FailureKind.JOB))
    other = await done(market, two, "42")
    assert await market.reviews.expire() == 2
    assert await available(market, device.user_id) == 9 * MICRO // 2
    assert await available(market, other.user_id) == 9 * MICRO


async def test_no_worker_waits_for_ever_for_a_copy_that_none_takes(market: Market) -> None:
    buyer = await market.person(credit="20")
    one, two = await copied(market, buyer, 2)
    first = await done(market, one, "42")
    market.clock.now += UNTAKEN_SECONDS - 1
    assert await market.job_sweeper.expire() == 0
    market.clock.now += 1
    assert await market.job_sweeper.expire() == 1
    assert await state(market, buyer, two) == ("undecided", None)
    market.clock.now += DAY
    assert await market.reviews.expire() == 1
    assert await available(market, first.user_id) == 9 * MICRO
    assert await available(market, buyer) == 10 * MICRO


async def test_a_worker_is_paid_in_the_end_even_if_nothing_is_ever_compared(market: Market) -> None:
    buyer = await market.person(credit="20")
    one, two = await copied(market, buyer, 2)
    await begun(market, two, await worker(market))
    first = await done(market, one, "42")
    market.clock.now += UNTAKEN_SECONDS + 4 * HOUR + DAY
    assert await market.reviews.expire() == 1
    assert await available(market, first.user_id) == 9 * MICRO


async def test_the_worker_of_the_other_copy_does_not_keep_the_first_unpaid_for_long(
    market: Market,
) -> None:
    buyer = await market.person(credit="20")
    one, two = await copied(market, buyer, 2, duration_hrs=8_760)
    slow = await worker(market)
    await begun(market, two, slow)
    first = await done(market, one, "42")
    market.clock.now += UNTAKEN_SECONDS + RUNNING_MAX_SECONDS + DAY - 1
    assert await market.reviews.expire() == 0
    market.clock.now += 1
    assert await market.reviews.expire() == 1
    assert await available(market, first.user_id) == 9 * MICRO
    # A later result is still compared with it, and paid for or not on its own.
    await market.jobs.complete(slow, two, "no idea")
    assert await state(market, buyer, one) == ("undecided", None)
    assert [await review_state(market, each) for each in (one, two)] == ["expired", "held"]
    assert (await audit_ledger(market.store)).passed


async def test_a_worker_that_was_confirmed_before_the_comparison_stays_paid(market: Market) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer)
    early = await done(market, one, "a lie")
    await market.reviews.confirm(buyer, one)
    await done(market, two, "42")
    await market.reviews.dispute(buyer, two, "is it?")
    await done(market, three, "42")
    assert await verdicts(market, buyer, one) == [False, True, True]
    assert await available(market, early.user_id) == 9 * MICRO
    # A disputed copy that agrees waits for the operator.
    assert [await review_state(market, each) for each in (one, two, three)] == [
        "confirmed",
        "disputed",
        "held",
    ]


async def test_a_disputed_and_different_copy_is_given_back(market: Market) -> None:
    buyer = await market.person(credit="30")
    one, two, three = await copied(market, buyer)
    await done(market, one, "a lie")
    await market.reviews.dispute(buyer, one, "a lie")
    await done(market, two, "42")
    await done(market, three, "42")
    assert await review_state(market, one) == "reversed"
    assert await reviews.disputes(market.context) == []


async def test_a_report_that_is_repeated_changes_nothing(market: Market) -> None:
    buyer = await market.person(credit="20")
    one, two = await copied(market, buyer, 2)
    first, second = await done(market, one, "42"), await done(market, two, "42")
    before = await available(market, buyer)
    await market.jobs.complete(first, one, "43")
    await market.jobs.complete(second, two, "42")
    assert await verdicts(market, buyer, one) == [True, True]
    assert await available(market, buyer) == before


@pytest.mark.both_engines
async def test_of_results_that_come_at_once_all_are_judged(market: Market) -> None:
    buyer = await market.person(credit="50")
    jobs = await copied(market, buyer, 5)
    devices = [await worker(market) for _ in jobs]
    for device, job_id in zip(devices, jobs, strict=True):
        await begun(market, job_id, device)
    reports = [
        market.jobs.complete(device, job_id, "42" if number % 2 == 0 else str(number))
        for number, (device, job_id) in enumerate(zip(devices, jobs, strict=True))
    ]
    await asyncio.gather(*reports)
    assert await verdicts(market, buyer, jobs[0]) == [True, False, True, False, True]
    assert await available(market, buyer) == 20 * MICRO


# --- findings of the audit -------------------------------------------------------------------

DAMAGE = {
    "verdicts that are missing": "UPDATE job_copies SET verdict = NULL",
    "a verdict that was changed": "UPDATE job_copies SET verdict = 'differs' WHERE number = 1",
    "pay for a failure": """
        UPDATE jobs SET status = 'failed'
        WHERE id IN (SELECT job_id FROM job_copies WHERE number = 1)
    """,
    "agreement without work": "UPDATE job_copies SET verdict = 'agrees' WHERE number = 3",
}


@pytest.mark.both_engines
@pytest.mark.parametrize("damage", DAMAGE)
async def test_the_audit_finds_verdicts_that_money_does_not_follow(
    store: Store, clock: Clock, damage: str
) -> None:
    market = Market(store, clock)
    buyer = await market.person(credit="30")
    one, two, _ = await copied(market, buyer)
    await done(market, one, "42")
    await done(market, two, "42")
    assert (await audit_ledger(store)).passed

    async def tamper(tx: Transaction) -> None:
        await tx.run(DAMAGE[damage])

    await store.write(tamper)
    report = await audit_ledger(store)
    market.passwords.close()
    broken = [check.promise for check in report.checks if check.differences]
    assert broken == ["copies are paid for, or given back, as their comparison was decided"]


# --- random events ---------------------------------------------------------------------------


class Trial:
    """Buyers, workers and copies, and things that happen to them by chance."""

    def __init__(self, market: Market, seed: int) -> None:
        self.market = market
        self.chance = random.Random(seed)
        self.buyers: list[str] = []
        self.devices: list[DeviceRow] = []
        self.jobs: list[str] = []
        self.copies_of: dict[str, list[str]] = {}

    async def begin(self) -> None:
        self.buyers = [await self.market.person(credit="1000") for _ in range(2)]
        owners = [*self.buyers, *[await self.market.person() for _ in range(6)]]
        self.devices = [await device_of(self.market, owner) for owner in owners]
        self.devices.append(await device_of(self.market, owners[-1]))
        for copies in (2, 3, 4, 5):
            await self.post(copies)

    async def post(self, copies: int) -> None:
        buyer, price = self.chance.choice(self.buyers), self.chance.choice([0, 7, 3_333_333])
        jobs = await copied(self.market, buyer, copies, price=price, review_hours=1)
        self.copies_of[jobs[0]] = jobs
        self.jobs += jobs

    async def happen(self) -> None:
        """Cause one event, or several at the same time."""
        job = await stored_job(self.market, self.chance.choice(self.jobs))
        things = [self.one(job) for _ in range(self.chance.choice([1, 1, 1, 3]))]
        outcomes = await asyncio.gather(*things, return_exceptions=True)
        for outcome in outcomes:
            assert outcome is None or isinstance(outcome, MarketError), repr(outcome)

    async def one(self, job: JobRow) -> None:
        market, chance = self.market, self.chance
        device = chance.choice(self.devices)
        if job.device_id is not None and chance.random() < 0.9:
            [device] = [each for each in self.devices if each.id == job.device_id]
        attempt_ending = Ending(chance.choice(list(FailureKind)))
        decided = chance.choice([ReviewStatus.UPHELD, ReviewStatus.REVERSED])
        network = chance.choice(["", HERE, THERE, "x"])
        things: dict[str, Callable[[], Awaitable[Any]]] = {
            "accept": lambda: market.jobs.accept(device, job.id, network),
            "start": lambda: market.attempt_reports.started(device, job.id, None),
            "complete": lambda: market.jobs.complete(device, job.id, chance.choice("aaab")),
            "fail": lambda: market.jobs.fail(device, job.id, "cannot", ending=attempt_ending),
            "lose": lambda: market.job_sweeper.take_back_attempt(job.id, job.attempts, "silent"),
            "cancel": lambda: market.jobs.cancel(job.user_id, job.id),
            "confirm": lambda: market.reviews.confirm(job.user_id, job.id),
            "dispute": lambda: market.reviews.dispute(job.user_id, job.id, "wrong"),
            "decide": lambda: decide_review(market.context, job.id, decided),
            "wait": self.wait,
        }
        await things[chance.choice(self.WHAT)]()

    async def wait(self) -> None:
        self.market.clock.now += self.chance.choice([60, HOUR, DAY])
        await self.market.job_sweeper.expire()
        await self.market.reviews.expire()

    WHAT = (
        *("accept",) * 8,
        *("complete",) * 8,
        *("start", "fail", "lose", "cancel", "confirm", "dispute", "decide", "wait"),
    )

    async def end(self) -> None:
        """Have everything come to an end."""
        for job_id in self.jobs:
            with suppress(MarketError):
                await self.market.jobs.cancel(
                    (await stored_job(self.market, job_id)).user_id, job_id
                )
            with suppress(MarketError):
                await decide_review(self.market.context, job_id, ReviewStatus.UPHELD)
        self.market.clock.now += DAY
        await self.market.reviews.expire()

    async def check_verdicts(self) -> None:
        for first, jobs in self.copies_of.items():
            rows = [await stored_job(self.market, job_id) for job_id in jobs]
            done = [row for row in rows if row.status == "completed"]
            found, canonical = await state(self.market, rows[0].user_id, first)
            assert {row.status for row in rows} <= {"completed", "failed", "cancelled"}
            counts = Counter(row.result for row in done)
            right = [result for result, count in counts.items() if 2 * count > len(jobs)]
            assert found == ("agreed" if right else "undecided")
            agree = await verdicts(self.market, rows[0].user_id, first)
            for row, verdict in zip(rows, agree, strict=True):
                is_judged = right and row.status == "completed"
                assert verdict is ((row.result == right[0]) if is_judged else None)
                reviewed = await self.market.store.read(review_queries.of_job, row.id)
                if verdict is False or (right and row.status == "failed"):
                    assert "expired" not in {each.state for each in reviewed}
            if right:
                assert canonical in jobs
                assert next(row for row in rows if row.id == canonical).result == right[0]

    async def check_independence(self) -> None:
        async def read(tx: Transaction) -> list[tuple[str, ...]]:
            return await tx.all(
                lambda *row: row,
                """
                SELECT c.group_id, c.job_id, d.user_id, j.user_id, COALESCE(n.network, '')
                FROM job_copies AS c JOIN jobs AS j ON j.id = c.job_id
                JOIN job_attempts AS a ON a.job_id = c.job_id AND a.outcome <> 'lost'
                JOIN devices AS d ON d.id = a.device_id
                LEFT JOIN copy_networks AS n ON n.job_id = a.job_id AND n.attempt = a.attempt
                """,
            )

        rows = await self.market.store.read(read)
        assert rows
        for one in rows:
            assert one[2] != one[3]
            for other in rows:
                if one[0] == other[0] and one[1] != other[1]:
                    assert one[2] != other[2]
                    assert not one[4] or one[4] != other[4]

    async def check_money(self) -> None:
        """Check the balance of each user against the costs and the earnings of jobs."""
        spent, earned = Counter[str](), Counter[str]()
        owners = {device.id: device.user_id for device in self.devices}
        for job_id in self.jobs:
            job = await stored_job(self.market, job_id)
            paid = (await self.market.jobs.find(job.user_id, job_id)).paid
            assert paid is not None
            spent[job.user_id] += paid
            if job.device_id is not None:
                earned[owners[job.device_id]] += job.earned
        for user in {*self.buyers, *owners.values()}:
            start = 1000 * MICRO if user in self.buyers else 0
            assert await held(self.market, user) == 0
            assert await available(self.market, user) == start - spent[user] + earned[user]
        house = spent.total() - earned.total()
        assert await books.revenue(self.market, CREDIT) == house
        assert await books.balance(self.market, "house:review:credit") == 0


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", brief(range(3)))
async def test_the_sums_are_always_exact_and_copies_independent(
    market: Market, store: Store, seed: int
) -> None:
    trial = Trial(market, seed)
    await trial.begin()
    for number in range(100):
        await trial.happen()
        if number % 50 == 49:  # another daemon goes on, which remembers nothing
            crashed = trial.market
            trial.market = Market(store, market.clock)
            trial.market._people = crashed._people
            if crashed is not market:
                crashed.passwords.close()
            report = await audit_ledger(store)
            assert report.passed, report
    await trial.end()
    await trial.check_verdicts()
    await trial.check_independence()
    await trial.check_money()
    trial.market.passwords.close()
