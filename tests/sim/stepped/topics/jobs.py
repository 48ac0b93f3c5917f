"""Units on jobs: their attempts, their reviews, and copies of one job."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from support.market.leaving import tools

from market.base.states import ReviewStatus
from market.dispatch.claims import claim
from market.erasure import erasing
from market.jobs import reviews
from market.money.money import MICRO, Currency
from market.staff.base.roles import Machine
from market.staff.money import judging, second_person
from market.staff.money.judging import Verdict
from storage.devices import devices, origins
from storage.devices.origins import SightingRow
from storage.dispatch.claims import PairRow
from tests.sim.stepped.side import Action, Side

REVIEWED_SECONDS = 2 * 86_400  # after it any review is over


async def _accepts(device: str, job: str, side: Side) -> Any:
    world = side.world
    await side.market.jobs.accept(world.devices[device], world.jobs[job])


async def _claims(side: Side) -> Any:
    world = side.world
    names = (("waiting", "idle"), ("second waiting", "second idle"))
    pairs = [PairRow(world.jobs[job], world.devices[device].id, 0) for job, device in names]
    bounds = side.market.bounds()
    outcomes = await side.market.store.write(claim, side.market.context, pairs, bounds)
    return {each: type(outcome).__name__ for each, outcome in outcomes.items()}


async def _starts(side: Side) -> Any:
    device, job = side.world.devices["accepted"], side.world.jobs["accepted"]
    await side.market.attempt_reports.started(device, job, None)


async def completes(name: str, result: str, side: Side) -> Any:
    device, job = side.world.devices[name], side.world.jobs[name]
    return await side.market.jobs.complete(device, job, result)


async def fails(name: str, side: Side) -> Any:
    device, job = side.world.devices[name], side.world.jobs[name]
    return await side.market.jobs.fail(device, job, "a reason")


async def cancels(name: str, side: Side) -> Any:
    await side.market.jobs.cancel(side.buyer, side.world.jobs[name])


async def renews(name: str, side: Side) -> Any:
    side.market.renewals.renew(side.world.jobs[name], 1)
    await side.market.renewals.flush()


async def takes_back(name: str, side: Side) -> Any:
    await side.market.job_sweeper.take_back_attempt(side.world.jobs[name], 1, "gone")


async def _takes_back_of(name: str, side: Side) -> Any:
    await side.market.job_sweeper.take_back_from(side.world.devices[name].id)


async def _revokes_device(name: str, side: Side) -> Any:
    device = side.world.devices[name]
    await side.market.devices.revoke(device.user_id, device.id)


async def _reports_devices(side: Side) -> Any:
    now, names = side.market.clock.now, ("running", "idle")
    rows = [side.world.devices[each]._replace(last_heartbeat_at=now) for each in names]
    await side.market.store.write(devices.write_reports, rows)


async def _sees_devices(side: Side) -> Any:
    now, names = side.market.clock.now, ("running", "idle")
    rows = [SightingRow(side.world.devices[each].id, "203.0.113.9", now, now, 1) for each in names]
    await side.market.store.write(origins.write, rows, gap_seconds=300, most=100)


async def _finds_silent(side: Side) -> Any:
    before = side.market.clock.now
    return await side.market.store.write(devices.mark_silent, before=before, limit=20)


JOBS: Mapping[str, Action] = {
    "accepts a job": partial(_accepts, "idle", "waiting"),
    "accepts a job with another device": partial(_accepts, "second idle", "waiting"),
    "claims jobs": _claims,
    "cancels a waiting job": partial(cancels, "waiting"),
    "starts a job": _starts,
    "completes a job": partial(completes, "running", "done"),
    "fails a job": partial(fails, "running"),
    "cancels a running job": partial(cancels, "running"),
    "renews an attempt": partial(renews, "running"),
    "takes an attempt back": partial(takes_back, "running"),
    "takes the attempts of a device back": partial(_takes_back_of, "running"),
    "revokes a device with a job": partial(_revokes_device, "running"),
    "revokes an idle device": partial(_revokes_device, "idle"),
    "completes another job": partial(completes, "second running", "done"),
    "writes reports of devices": _reports_devices,
    "writes addresses of devices": _sees_devices,
    "finds silent devices": _finds_silent,
    "sweeps jobs": lambda side: side.market.job_sweeper.take_back(),
}


async def _confirms(name: str, side: Side) -> Any:
    await side.market.reviews.confirm(side.buyer, side.world.jobs[name])


async def _disputes(side: Side) -> Any:
    await side.market.reviews.dispute(side.buyer, side.world.jobs["reviewed"], "a reason")


async def _decides(percent: int, side: Side) -> Any:
    limits = dict.fromkeys(Currency, 1_000 * MICRO)
    context, job_id = side.market.context, side.world.jobs["disputed"]
    decided = await judging.decide(
        context, Machine("root"), job_id, Verdict(percent), limits, "read the log"
    )
    return [row.state for row in decided.rows]


async def _approves_decision(side: Side) -> Any:
    judgement = side.world.judgement
    outcome = await second_person.approve(side.market.context, Machine("second"), judgement)
    return outcome.state


async def _expires(side: Side) -> Any:
    later = side.market.clock.now + REVIEWED_SECONDS
    chosen = reviews.decision(side.market.identifiers.new, ReviewStatus.EXPIRED, later)
    context, job_id = side.market.context, side.world.jobs["reviewed"]
    await side.market.store.write(reviews._expire, context, chosen, job_id)


async def _appeals(side: Side) -> Any:
    row = await side.market.appeals.appeal(side.buyer, side.world.jobs["disputed"], "a reason")
    return row.reason


async def _answers(side: Side) -> Any:
    world = side.world
    row = await side.market.answers.answer(world.people["worker"], world.jobs["disputed"], "no")
    return row.answer


REVIEWS: Mapping[str, Action] = {
    "answers": _answers,
    "appeals": _appeals,
    "confirms": partial(_confirms, "reviewed"),
    "confirms another one": partial(_confirms, "second reviewed"),
    "disputes": _disputes,
    "pays after the review": _expires,
    "decides for the worker": partial(_decides, 0),
    "decides for the buyer": partial(_decides, 100),
    "approves a decision": _approves_decision,
    "completes a job": JOBS["completes a job"],
}


async def _erases_worker(side: Side) -> Any:
    """Confirm a copy, and erase its worker with the pay."""
    market, worker = side.market, side.world.people["worker of copy 0"]
    await market.reviews.confirm(side.buyer, side.world.jobs["copy 0"])
    await market.store.write(erasing.erase, market.context, tools(market), worker, waives=True)


COPIES: Mapping[str, Action] = {
    "completes a copy": partial(completes, "copy 1", "same"),
    "completes another copy": partial(completes, "copy 2", "same"),
    "completes a copy with another result": partial(completes, "copy 2", "other"),
    "fails a copy": partial(fails, "copy 1"),
    "cancels a copy": partial(cancels, "copy 1"),
    "takes a copy back": partial(takes_back, "copy 1"),
    "erases a worker who was paid": _erases_worker,
}
