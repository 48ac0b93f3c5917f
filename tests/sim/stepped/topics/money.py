"""Units that spend the money of one buyer."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from support.market import cases
from support.market.jobs import wanted

from market.accounts.referrals import Referrals
from market.assistant import goodness
from market.assistant.goodness import RewardTerms
from market.jobs.copies import Copying
from market.money.money import MICRO
from market.photos.likeness import Likeness
from market.staff.cases.base import Decision, Kind
from storage.assistant.assistant import RewardRow
from tests.sim.stepped.belongings import LATE_REWARDS, samples
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.jobs import JOBS
from tests.sim.stepped.topics.sessions import buys
from tests.sim.stepped.topics.staff import corrects
from tests.sim.stepped.world import script


async def _posts(side: Side) -> Any:
    await side.market.jobs.create(side.buyer, wanted())


async def _posts_with_key(side: Side) -> Any:
    await side.market.jobs.create(side.buyer, wanted(), spender=side.world.people_have.spender)


async def _posts_once(side: Side) -> Any:
    await side.market.jobs.create(side.buyer, wanted(), side.receipt(side.buyer))


async def _posts_all(side: Side) -> Any:
    await side.market.jobs.create(side.world.people["poor"], wanted())


async def _posts_copies(side: Side) -> Any:
    await side.market.jobs.create_copies(side.buyer, script(), Copying(3, "bytes"))


MONEY: Mapping[str, Action] = {
    "posts a job": _posts,
    "posts a job with a key": _posts_with_key,
    "posts a job once": _posts_once,
    "posts a job with all of its money": _posts_all,
    "posts copies of a job": _posts_copies,
    "buys a session": buys,
    "takes credits by a correction": partial(corrects, -1),
    "completes a job": JOBS["completes a job"],
    "cancels a waiting job": JOBS["cancels a waiting job"],
}


# --- rewards, by the house ----------------------------------------------------------------------

# One reward is within the limits of the day, two are not.
DEEDS = RewardTerms({"tree": MICRO}, 0.5, user_daily=MICRO, total_daily=MICRO)


async def _refers(name: str, side: Side) -> Any:
    code = side.world.people_have.referral_code
    await side.market.referrals.apply(side.world.people[name], code)


async def _refers_once(side: Side) -> Any:
    user_id = side.world.people["worker"]
    code = side.world.people_have.referral_code
    await side.market.referrals.apply(user_id, code, side.receipt(user_id))


async def _pays_referrals(side: Side) -> Any:
    return await Referrals(side.market.context, LATE_REWARDS).pay_due()


async def _rewards(name: str, photo: str, side: Side) -> Any:
    market, now = side.market, side.market.clock.now
    reward = RewardRow(
        market.identifiers.new(),
        side.world.people[name],
        now // 86_400,
        "tree",
        1.0,
        "model",
        MICRO,
        photo,
        now,
    )
    return await market.store.write(
        goodness.pay,
        market.context,
        reward,
        Likeness((), ()),
        DEEDS,
        transfer_id=market.identifiers.new(),
    )


async def _gives_sample(which: str, side: Side) -> Any:
    has = side.world.people_have
    device = has.sampled if which == "first" else has.second_sampled
    assert device is not None
    new = has.samples[side.label == "b"]
    given = await side.market.store.write(samples(side.market)._give, device.id, new)
    return given is not None


async def _completes_sample(result: str, side: Side) -> Any:
    has = side.world.people_have
    assert has.sampled is not None
    return await side.market.jobs.complete(has.sampled, has.given, result)


async def _voids_sample(side: Side) -> Any:
    case_id = side.world.people_have.failed
    return (await cases.decide(side.market, Kind.SAMPLE, case_id, Decision.VOIDED)).state


async def _revokes_sampled(side: Side) -> Any:
    device = side.world.people_have.sampled
    assert device is not None
    await side.market.devices.revoke(device.user_id, device.id)


REWARDS: Mapping[str, Action] = {
    "refers a user": partial(_refers, "worker"),
    "refers another user": partial(_refers, "second worker"),
    "refers a user once": _refers_once,
    "pays referrals": _pays_referrals,
    "rewards a photo": partial(_rewards, "worker", "photo"),
    "rewards another photo": partial(_rewards, "worker", "other"),
    "rewards another user": partial(_rewards, "second worker", "photo"),
    "gives a sample": partial(_gives_sample, "second"),
    "completes a sample": partial(_completes_sample, "wrong"),
    "makes a failed sample void": _voids_sample,
    "revokes the device of a sample": _revokes_sampled,
}
