"""Look-ups of devices in the store: their attempts, and the actions that they must take.

Devices that ask at the same time are looked up together.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from market.attempts.attempts import PROVEN_JOBS, Action, actions_for_all
from market.base.errors import Code, MarketError
from market.base.gathering import Gathering
from market.dispatch.asks import Ask
from market.dispatch.device import Key, Request
from market.dispatch.pairing import JOBS_PER_ANSWER
from market.dispatch.samples import Samples
from market.events.context import Context
from market.trust import trust
from market.trust.reputation import NEW_RELIABILITY, Reputation
from storage.devices import devices as device_queries
from storage.dispatch import claims as queries
from storage.dispatch.claims import GivenRow, HeldRow
from storage.engines.store import Transaction

# More than a device may hold, unless the operator wants that; of more, the rest are not sent again.
HELD_MAX = 1_000
LOOKS_MAX_DEVICES = 50  # looked up together: the first of them waits for the last


class _Question(NamedTuple):
    """A device, and the attempts that it names."""

    device_id: str
    named: frozenset[Key]


class _Found(Struct, frozen=True):
    """Result for a device: its attempts, the attempts that it does not know, and actions."""

    held: Sequence[HeldRow]
    unknown: Sequence[GivenRow]
    actions: Sequence[Action]
    reputation: int
    is_due: bool = False
    is_proven: bool = False


class Lookups:
    """Looks devices up.

    Args:
        samples: gives jobs whose answers are known; None where there are none.
    """

    def __init__(self, context: Context, samples: Samples | None) -> None:
        self.samples = samples
        self._store = context.store
        self._looks = Gathering(self._look_up, LOOKS_MAX_DEVICES)
        self._is_draining = False

    def drain(self) -> None:
        """Stop giving samples."""
        self._is_draining = True

    async def look(self, request: Request, ask: Ask) -> tuple[Sequence[GivenRow], Sequence[Action]]:
        """Look a device up. Return the attempts that it has and does not know, and actions.

        A device that is due for a sample is given one where it gets nothing else.
        """
        device = request.device
        look = device.holding.look()
        try:
            found = await self._looks.ask(_Question(request.device_id, ask.attempts))
        except BaseException:
            device.holding.failed(look)
            raise
        if found is None:
            device.holding.failed(look)
            raise MarketError(Code.WORKER_UNAUTHORIZED)
        device.reputation, device.is_proven = found.reputation, found.is_proven
        held = frozenset((row.job_id, row.attempt) for row in found.held)
        answers = device.answers
        if device.holding.found(look, held):  # an older look lacks later attempts
            answers.keep(device.holding.attempts, ask.attempts)
        actions = answers.new(found.actions, ask.seen)
        unknown = [row for row in found.unknown if answers.is_unseen(row, ask)]
        if found.is_due and not unknown and not actions:
            sample = await self._sample(request)
            if sample is not None and request.is_wanted:
                return [sample], ()
        return unknown, actions

    async def _sample(self, request: Request) -> GivenRow | None:
        """Give a device a sample if one is due; else try again at its next look-up."""
        holding = request.device.holding
        if self.samples is None or self._is_draining or request.offer.capacity.slots < 1:
            return None
        holding.begin_claim()  # a later request waits, and looks the sample up
        try:
            row = await self.samples.give(request.device_id, request.offer)
        except BaseException:
            holding.doubt()
            raise
        finally:
            holding.end_claim()
        if row is not None:
            holding.add(row)
        return row

    async def _look_up(self, questions: Sequence[_Question]) -> dict[_Question, _Found]:
        return await self._store.read(_look, questions, self.samples)


async def _look(
    tx: Transaction, questions: Sequence[_Question], samples: Samples | None
) -> dict[_Question, _Found]:
    """Compare the attempts that devices name with the store; leave revoked devices out."""
    device_ids = list({each.device_id for each in questions})
    reputations = await trust.of_devices(tx, device_ids)  # of all devices, revoked or not
    for device_id in await device_queries.revoked_among(tx, device_ids):
        del reputations[device_id]
    held: dict[str, list[HeldRow]] = {device_id: [] for device_id in device_ids}
    for row in await queries.held(tx, device_ids, limit=HELD_MAX * len(device_ids)):
        held[row.device_id].append(row)
    unknown = {each: _unknown(held[each.device_id], each.named) for each in questions}
    wanted = [job_id for each in unknown.values() for job_id in each]
    given = {row.job_id: row for row in await queries.given(tx, wanted)} if wanted else {}
    due = frozenset[str]() if samples is None else await samples.due(tx, device_ids)
    found = {}
    named = [(each.device_id, sorted(each.named)) for each in questions]
    for each, actions in zip(questions, await actions_for_all(tx, named), strict=True):
        device_id = each.device_id
        if device_id not in reputations:
            continue
        rows = [given[job_id] for job_id in unknown[each] if job_id in given]
        reputation, is_due = reputations[device_id], device_id in due
        found[each] = _Found(
            held[device_id], rows, actions, reputation.score, is_due, _is_proven(reputation)
        )
    return found


def _is_proven(reputation: Reputation) -> bool:
    """Return whether a device has completed enough jobs to be more than a token."""
    return reputation.attempts >= PROVEN_JOBS and reputation.score >= NEW_RELIABILITY


def _unknown(held: Sequence[HeldRow], named: frozenset[Key]) -> list[str]:
    """Return the jobs of a device that it neither names nor has seen, up to a bound."""
    unknown = (
        row.job_id for row in held if not row.is_known and (row.job_id, row.attempt) not in named
    )
    return list(islice(unknown, JOBS_PER_ANSWER))
