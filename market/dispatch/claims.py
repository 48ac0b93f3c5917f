"""Assignment of jobs to devices in the store: many guarded pairs in one transaction.

Each daemon chooses devices and jobs in its own memory. This module decides whether a pair holds:
the job must still wait in the same attempt as when it was read, and the device must have a slot and
a valid token. The next pairs gather while a transaction runs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from time import monotonic

from market.accounts.bounds import Bounds
from market.attempts.attempts import PROVEN_JOBS, slots_of
from market.events.catalogue import JobAccepted
from market.events.context import Context
from market.events.recording import NewEvent, record_all
from market.jobs import copies, owner_slots
from market.jobs.matching import WaitingJob
from market.trust import trust
from storage.dispatch import claims as queries
from storage.dispatch.claims import GivenRow, PairRow
from storage.engines.errors import StoreError
from storage.engines.store import Transaction

# More would not make a pair cheaper, and the first of them waits for the last.
BATCH_MAX_PAIRS = 100
# Simultaneous transactions: while one waits for the disk, the other is processed.
WRITERS_MAX = 2
GATHERED_PAIRS = 16  # that wait before another one is worth it

_logger = logging.getLogger("jobs")


class Refused(Enum):
    """Reason why a pair does not hold.

    `TAKEN`: the job does not wait any more. `RELATED`: it is a copy, and the device's owner or
    network has another one. `FULL`: the device has reached its limit of jobs. `OWNER_FULL`: the
    owner's devices together have reached theirs. `REVOKED`: its token was revoked. `UNTRUSTED`: its
    reputation fell below the job's minimum. `UNWANTED`: the request has ended.
    """

    TAKEN = auto()
    RELATED = auto()
    FULL = auto()
    OWNER_FULL = auto()
    REVOKED = auto()
    UNTRUSTED = auto()
    UNWANTED = auto()


ClaimOutcome = GivenRow | Refused | Exception


class Pair:
    """Job for a device, and the callback for the outcome."""

    __slots__ = ("device_id", "is_wanted", "job", "network", "on_outcome")

    def __init__(
        self,
        job: WaitingJob,
        device_id: str,
        is_wanted: Callable[[], bool],
        on_outcome: Callable[[WaitingJob, ClaimOutcome], None],
        network: str = "",
    ) -> None:
        self.job = job
        self.device_id = device_id
        self.network = network
        self.is_wanted = is_wanted
        self.on_outcome = on_outcome


class Claims:
    """Storage of pairs, in batches.

    Args:
        bounds: returns the limits of a device.
    """

    def __init__(self, context: Context, bounds: Callable[[], Bounds]) -> None:
        self._store = context.store
        self._context = context
        self._bounds = bounds
        self._pairs: deque[Pair] = deque()
        self._writing: set[asyncio.Task[None]] = set()
        # Totals: jobs assigned, jobs that were gone, and seconds in transactions.
        self.claimed = 0
        self.taken = 0
        self.seconds = 0.0

    def put(self, pair: Pair) -> None:
        """Queue a pair for storage; its outcome is always reported, later."""
        self._pairs.append(pair)
        # Each further writer takes the gathered pairs while the others wait for the disk.
        if len(self._writing) < min(WRITERS_MAX, 1 + len(self._pairs) // GATHERED_PAIRS):
            task = asyncio.get_running_loop().create_task(self._write(), name="claims")
            self._writing.add(task)

    async def settle(self) -> None:
        """Wait until every pair has its outcome."""
        while self._writing:
            await asyncio.wait(self._writing)

    async def _write(self) -> None:
        try:
            while self._pairs:
                most = min(len(self._pairs), BATCH_MAX_PAIRS)
                batch = [self._pairs.popleft() for _ in range(most)]
                wanted = [pair for pair in batch if pair.is_wanted()]
                outcomes = await self._outcomes(wanted) if wanted else {}
                for pair in batch:
                    pair.on_outcome(pair.job, outcomes.get(pair.job.id, Refused.UNWANTED))
        finally:  # here, and not once the task is over: a pair that comes in between has a writer
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - this is one
            self._writing.discard(task)

    async def _outcomes(self, pairs: Sequence[Pair]) -> dict[str, ClaimOutcome]:
        rows = [
            PairRow(
                pair.job.id,
                pair.device_id,
                pair.job.attempts,
                pair.job.needs.min_reputation,
                pair.job.group,
                pair.network,
            )
            for pair in pairs
        ]
        began = monotonic()
        try:
            outcomes = await self._store.write(claim, self._context, rows, self._bounds())
        except StoreError as error:
            return {row.job_id: error for row in rows}
        except Exception as error:  # the requests would wait forever for their outcomes
            _logger.exception("%d jobs cannot be given away", len(rows))
            return {row.job_id: error for row in rows}
        self.seconds += monotonic() - began
        self.taken += sum(each is Refused.TAKEN for each in outcomes.values())
        self.claimed += sum(isinstance(each, GivenRow) for each in outcomes.values())
        return outcomes


async def claim(
    tx: Transaction, context: Context, pairs: Sequence[PairRow], bounds: Bounds
) -> dict[str, ClaimOutcome]:
    """Assign jobs to devices. Return the outcome of each job.

    Devices are locked like those that accept a job, and revoking one is not missed. Jobs are locked
    in one order, or two daemons that give the same ones away would wait for each other.
    """
    devices = sorted({pair.device_id for pair in pairs})
    owners = await owner_slots.lock(tx, devices, bounds)
    members = await copies.lock_pairs(tx, pairs)
    left = {
        row.device_id: 0 if row.is_suspended else len(pairs) if most is None else most - row.running
        for row in await queries.loads(tx, devices, proven_jobs=PROVEN_JOBS)
        for most in (slots_of(PROVEN_JOBS if row.is_proven else 0, bounds),)
    }
    owners_left = await owner_slots.left(tx, set(owners.values()), bounds)
    # A buyer's minimum never changes, so it is not read again.
    choosy = [pair.device_id for pair in pairs if pair.min_reputation]
    reputations = await trust.of_devices(tx, choosy) if choosy else {}
    outcomes: dict[str, ClaimOutcome] = {}
    allowed = []
    for pair in pairs:
        room = left.get(pair.device_id)
        if room is None:
            outcomes[pair.job_id] = Refused.REVOKED
        elif pair.min_reputation and reputations[pair.device_id].score < pair.min_reputation:
            outcomes[pair.job_id] = Refused.UNTRUSTED
        elif room < 1:
            outcomes[pair.job_id] = Refused.FULL
        elif owners_left.get(owners.get(pair.device_id, ""), 1) < 1:
            outcomes[pair.job_id] = Refused.OWNER_FULL
        else:
            # A job that is taken already costs only a slot of this batch.
            left[pair.device_id] = room - 1
            if owners.get(pair.device_id) in owners_left:
                owners_left[owners[pair.device_id]] -= 1
            allowed.append(pair)
    permitted = await copies.independent(tx, allowed, members)
    for pair in allowed:
        outcomes[pair.job_id] = Refused.RELATED
    for pair in permitted:
        outcomes[pair.job_id] = Refused.TAKEN
    given = await queries.start(tx, permitted, now=context.now()) if permitted else []
    if members:
        await copies.note_networks(tx, permitted, [row.job_id for row in given])
    outcomes.update((row.job_id, row) for row in given)
    await record_all(tx, context, [accepted(row) for row in given])
    return outcomes


def accepted(row: GivenRow) -> NewEvent:
    """Return the event that reports the assignment of a job to its buyer."""
    data = JobAccepted(row.job_id, row.title, row.attempt, row.deploy_id)
    return NewEvent(row.user_id, data, row.job_id)
