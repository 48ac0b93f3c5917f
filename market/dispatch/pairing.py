"""Pairing jobs that wait with devices that wait, in memory; `Claims` writes the pairs down."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic

from msgspec import structs

from market.accounts.bounds import Bounds
from market.base.bus import GONE, WAITING
from market.base.errors import Code, MarketError
from market.dispatch.asks import DispatchPace
from market.dispatch.claims import ClaimOutcome, Claims, Pair, Refused
from market.dispatch.device import Request
from market.dispatch.supply import PRICES_MAX, Given
from market.events.context import Context
from market.jobs.matching import DeviceBook, JobBook, WaitingJob, suits
from market.jobs.specs import Specs
from market.jobs.waiting_jobs import Finds, WaitingJobs
from proxyctl.protocol.jobspec import Capacity
from proxyctl.protocol.jobspec.matching import left
from storage.dispatch.claims import GivenRow

# In one answer: more jobs than a device may hold, unless the operator wants that.
JOBS_PER_ANSWER = 16
NOTHING = Capacity()


class FullOwners:
    """The owners without a free slot, each until the next try.

    Args:
        pace: returns how long that takes.
    """

    def __init__(self, pace: Callable[[], DispatchPace]) -> None:
        self._pace = pace
        self._until: dict[str, float] = {}  # by the clock of the loop

    def __contains__(self, owner: object) -> bool:
        if not self._until:
            return False
        until = self._until.get(owner) if isinstance(owner, str) else None
        return until is not None and until > asyncio.get_running_loop().time()

    def add(self, owner: str) -> None:
        """Give an owner's devices no jobs for a while; else a job goes from one to the next."""
        now = asyncio.get_running_loop().time()
        self._until = {each: until for each, until in self._until.items() if until > now}
        self._until[owner] = now + self._pace().full_seconds

    def discard(self, owner: str) -> None:
        """Try an owner's devices again: perhaps a job of one has ended."""
        self._until.pop(owner, None)


class Pairing:
    """Pairs jobs with requests.

    Args:
        bounds: returns the bounds of each device and owner.
        credit: the worth of a credit, in micro-USD.
        pace: returns times and sizes.
        end_unreadable: ends a job whose secrets cannot be read any more.

    Attributes:
        jobs: the jobs that wait.
        waiting: the requests that wait.
        claims: writes pairs down.
        claimed: jobs that are being given to devices, and so are in no book.
        reader: reads jobs that wait into memory.
        full: the owners without a free slot.
        prices: the prices of the last jobs that devices got here, for the supply.
    """

    def __init__(
        self,
        context: Context,
        specs: Specs,
        bounds: Callable[[], Bounds],
        credit: int,
        pace: Callable[[], DispatchPace],
        end_unreadable: Callable[[str], Awaitable[None]],
    ) -> None:
        self.jobs = JobBook()
        self.waiting: DeviceBook[Request] = DeviceBook()
        self.claims = Claims(context, bounds)
        self.claimed: set[str] = set()
        finds = Finds(self._add, self.claimed.__contains__, specs.payload_of, end_unreadable)
        self.reader = WaitingJobs(context.store, self.jobs, credit, finds, context.now)
        self.full = FullOwners(pace)
        self.prices: deque[Given] = deque(maxlen=PRICES_MAX)
        self._bus = context.bus
        context.bus.subscribe(WAITING, self._jobs_wait)
        context.bus.subscribe(GONE, self._jobs_gone)
        context.bus.on_missed(self.reader.compare_soon)

    def match(self, request: Request) -> None:
        """Find jobs for a request, the best first, as many as the device has room for."""
        offer = request.offer
        chosen: list[WaitingJob] = []
        most = min(offer.capacity.slots, JOBS_PER_ANSWER)
        if most < 1 or not self.jobs or request.owner in self.full:
            return
        groups: set[str] = set()
        best = self.jobs.best(offer, request.owner, request.reputation, request.network)
        for job in best:
            if (chosen and not suits(job.needs, offer)) or job.group in groups:
                continue
            if job.group:
                groups.add(job.group)
            chosen.append(job)
            if len(chosen) == most:
                break
            offer = structs.replace(offer, capacity=left(offer.capacity, job.needs.resources))
        for job in chosen:
            self.jobs.remove(job.id)
            self._claim(request, job)

    def _add(self, job: WaitingJob) -> None:
        """Give a job to a waiting device, or keep it.

        A job without room in the book comes again: the next comparison finds it.
        """
        request = self.waiting.find(job, self.full.__contains__)
        if request is None:
            if self.jobs.has_room(job):
                self.jobs.add(job)
            return
        self.waiting.remove(request)
        self._claim(request, job)

    def _claim(self, request: Request, job: WaitingJob) -> None:
        request.claiming += 1
        request.device.holding.begin_claim()
        self.claimed.add(job.id)
        for other in self.jobs.copies(job.group):
            other.exclude(request.owner, request.network)

        on_outcome = partial(self._on_outcome, request)
        pair = Pair(job, request.device_id, lambda: request.is_wanted, on_outcome, request.network)
        self.claims.put(pair)

    def _on_outcome(self, request: Request, job: WaitingJob, outcome: ClaimOutcome) -> None:
        """Act on the outcome of a pair."""
        device = request.device
        request.claiming -= 1
        self.claimed.discard(job.id)
        self._read_copies(job, outcome)
        if isinstance(outcome, GivenRow):
            device.holding.add(outcome)
            request.jobs.append(outcome)
            names = request.offer.capacity.gpu_names if job.needs.resources.needed_gpus else ()
            self.prices.append(Given(monotonic(), job.price, "".join(names[:1]), job.buyer))
            self._bus.publish(GONE, (job.id,))
        elif outcome is Refused.TAKEN or outcome is Refused.RELATED:
            self.reader.read_soon(job.id)
        elif isinstance(outcome, Exception):  # another device would get no further
            request.error = outcome
            device.holding.doubt()
            self.jobs.add(job.again())
        else:
            if outcome is Refused.FULL:
                request.offer = structs.replace(request.offer, capacity=NOTHING)
            elif outcome is Refused.OWNER_FULL:
                self.full.add(request.owner)
            elif outcome is Refused.REVOKED:
                request.error = MarketError(Code.WORKER_UNAUTHORIZED)
            elif outcome is Refused.UNTRUSTED:  # it has fallen since it was looked up
                device.reputation = min(device.reputation, job.needs.min_reputation - 1)
                device.holding.doubt()
            self._add(job.again())
        device.holding.end_claim()
        if not request.claiming:
            request.wake()

    def _read_copies(self, job: WaitingJob, outcome: ClaimOutcome) -> None:
        """Queue a job's other copies to be read again, because their permitted owners changed."""
        for other in self.jobs.copies(job.group):
            if isinstance(outcome, GivenRow):  # other daemons do not know, either
                self._bus.publish(WAITING, (other.id,))
            else:
                self.reader.read_soon(other.id)

    # --- notifications -----------------------------------------------------------------------

    def _jobs_wait(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self.reader.read_soon(job_id)

    def _jobs_gone(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self.jobs.remove(job_id)
