"""Samples: jobs with a known result that show whether a device computes them correctly.

A device gets one like any other job, after some of its completed jobs. Each sample is new and comes
at a random time, so only an agent that looks for samples can recognise it. An idle device earns
nothing by samples. One transaction posts the job and assigns it to this device: it never waits, no
other device can get it, and a crash leaves nothing half done. `market.trust.sample_checks`
processes its result.

The money comes from the account of a user that the operator names and funds. A daily limit bounds
it, and one owner gets at most a part of this limit. Without money or limit no device gets samples.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from market.accounts.bounds import Bounds, lock_user
from market.attempts.attempts import slots_left
from market.base.errors import Code, MarketError
from market.base.ids import Identifiers
from market.base.user_fields import email_key
from market.dispatch import sample_tasks
from market.dispatch.claims import accepted
from market.dispatch.sample_tasks import USUAL_SIZES, SampleSizes, Task
from market.events.context import Context
from market.events.recording import record_all
from market.jobs import owner_slots
from market.jobs.matching import Needs, Offer, suits
from market.jobs.postings import NewJob, put_up, waiting
from market.jobs.specs import NewSpec, Specs, size_of, understand
from market.trust import sample_checks
from proxyctl.protocol.jobspec import Resources
from storage.accounts import users as user_queries
from storage.devices import devices as device_queries
from storage.dispatch import claims as claim_queries
from storage.dispatch.claims import GivenRow, PairRow
from storage.engines.store import Transaction
from storage.jobs import job_specs as spec_queries
from storage.jobs.job_specs import SpecRow
from storage.jobs.jobs import JobRow
from storage.trust import samples as queries
from storage.trust import trust as trust_queries
from storage.trust.samples import SampleRow

# For all devices of an owner, in a day: tokens are free, and the first sample comes before any
# work.
FIRSTS_PER_OWNER_DAY: Final = 4
DAY_SECONDS: Final = 86_400
# This part of a day's money is available from the beginning, the rest grows evenly until the end.
# Otherwise devices could use it up in the morning, and avoid samples for the rest of the day.
FIRST_PARTS: Final = 4
# One owner gets at most this part of the money available so far, with any number of devices.
OWNER_PARTS: Final = 4
# Pause after the money has run out, so that not every request checks again.
PAUSE_SECONDS: Final = 60.0
# Tasks made in advance. Each takes this process a part of a second, and a device that waited for it
# would recognise a sample by the delay.
READY_MAX: Final = 8
# The identifier of a job contains its creation time. A sample's identifier pretends a wait like the
# wait of one of the last assigned jobs.
WAITS_LOOKED_AT: Final = 64
# The pretended buyer of a sample registered within this time, like real buyers.
SHOWN_DAYS: Final = 120
# A fixed price would reveal a sample: so it lies between half and one and a half of the usual
# price, with the same rounding.
PRICE_PARTS: Final = 10
NEEDS: Final = Needs(Resources(), "script")
# The limits of users do not apply to the operator's own account.
UNBOUND: Final = Bounds(jobs=0, free_jobs=0, job_bytes=0)

_logger = logging.getLogger("samples")


class SampleTerms(Struct, frozen=True):
    """Money of the operator for samples.

    Attributes:
        account: the e-mail address of the paying user.
        credits_per_day: micro-credits; 0 for no samples.
        price: the average price of a sample, in micro-credits.
        credit: the value of a credit, in micro-USD.
    """

    account: str = ""
    credits_per_day: int = 0
    price: int = 50_000
    credit: int = 10_000

    @property
    def is_on(self) -> bool:
        """Whether devices get samples."""
        return bool(self.account and self.credits_per_day)


class _New(Struct, frozen=True):
    """Sample that may be posted, with the values that its transaction needs from outside."""

    row: JobRow
    spec: SpecRow
    answer: str
    shown_buyer: str
    transfer_id: str


class _Usual(Struct, frozen=True):
    """Usual waits of jobs, in seconds, and the first registration, in UTC seconds."""

    waits: list[int]
    users_since: int


class Samples:
    """Assignment of samples to devices, from tasks that are ready.

    Args:
        bounds: returns the limits of a device.
    """

    def __init__(
        self,
        context: Context,
        terms: SampleTerms,
        specs: Specs,
        bounds: Callable[[], Bounds],
        sizes: SampleSizes = USUAL_SIZES,
    ) -> None:
        self.sizes = sizes
        self._context = context
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._terms = terms
        self._specs = specs
        self._bounds = bounds
        self._ready: deque[Task] = deque()
        self._used = asyncio.Event()
        self._paused_until = 0.0
        self._is_dry = False

    async def run(self) -> None:
        """Keep tasks ready, until cancelled."""
        while True:
            self._used.clear()
            while len(self._ready) < READY_MAX:
                choose = secrets.SystemRandom()
                task = await asyncio.to_thread(sample_tasks.make, choose, self.sizes)
                self._ready.append(task)
            await self._used.wait()

    @property
    def ready(self) -> int:
        """Number of ready tasks."""
        return len(self._ready)

    async def due(self, tx: Transaction, device_ids: Sequence[str]) -> frozenset[str]:
        """Return those of these devices that should get a sample once they have room."""
        return frozenset(device_ids).difference(await queries.with_jobs_left(tx, device_ids))

    async def give(self, device_id: str, offer: Offer) -> GivenRow | None:
        """Put a sample up for a device that is due, and give it; None when it gets none now.

        Raises:
            MarketError: `worker_unauthorized`, when the device was revoked meanwhile.
            StoreError: nothing was given, as far as is known.
        """
        clock = asyncio.get_running_loop().time
        price = self._price()
        is_suitable = suits(NEEDS, offer) and price * self._terms.credit >= offer.least_price
        if not is_suitable or not self._ready or clock() < self._paused_until:
            return None
        task = self._ready.popleft()
        try:
            new = self._new(task, price, await self._store.read(_usual))
            row = await self._store.write(self._give, device_id, new)
        except MarketError as error:
            self._ready.append(task)
            if error.code is not Code.INSUFFICIENT_FUNDS:
                raise
            self._paused_until = clock() + PAUSE_SECONDS
            if not self._is_dry:
                _logger.info(
                    "no samples now: the account has no money, or the present allowance is spent"
                )
            self._is_dry = True
            return None
        except BaseException:  # it may have been given, and is not given twice
            self._used.set()
            raise
        if row is None:
            self._ready.append(task)
            return None
        self._is_dry = False
        self._used.set()
        return row

    def _price(self) -> int:
        """Draw the price of one sample at random, around the average price.

        The sum of a day's prices stays within the allowance of the day: see `allowed_by`.
        """
        half = PRICE_PARTS // 2
        parts = half + secrets.randbelow(2 * half + 1)
        return max(self._terms.price * parts // PRICE_PARTS, 1)

    def _new(self, task: Task, price: int, usual: _Usual) -> _New:
        """Return a sample, before its paying user is known."""
        now = self._now()
        waited = secrets.choice(usual.waits or [0]) * 1_000 + secrets.randbelow(1_000)
        job_id = Identifiers(lambda: now * 1_000 - waited).new()
        spec = understand(
            NewSpec(task.payload, NEEDS.resources), job_type="script", duration_hrs=1, text=""
        )
        wanted = NewJob(
            title=task.title,
            job_type="script",
            price=price,
            duration_hrs=1,
            description="",
            requirements="",
            spec=spec,
        )
        row, spec_row = (
            waiting(wanted, job_id=job_id, user_id="", now=now),
            self._specs.row(job_id, spec),
        )
        row = row._replace(text_bytes=row.text_bytes + size_of(spec_row))
        shown_buyer = _shown_buyer(now, usual.users_since)
        return _New(row, spec_row, task.answer, shown_buyer, self._identifiers.new())

    async def _give(self, tx: Transaction, device_id: str, new: _New) -> GivenRow | None:
        """Post a sample and start it; the device is locked, as by every claim.

        Raises:
            MarketError: `worker_unauthorized`; `insufficient_funds`, when the account, or the money
                available by now, is empty.
        """
        owners = await owner_slots.lock(tx, [device_id], self._bounds())
        if await device_queries.is_revoked(tx, device_id):
            raise MarketError(Code.WORKER_UNAUTHORIZED)
        jobs_left = await queries.jobs_left(tx, device_id)
        slots = await slots_left(tx, device_id, self._bounds())
        payer = await user_queries.find_by_email(tx, email_key(self._terms.account))
        owner_id = (await trust_queries.owners(tx, [device_id]))[device_id]
        owner_left = await owner_slots.left(tx, set(owners.values()), self._bounds())
        is_full = (slots is not None and slots < 1) or owner_left.get(owner_id, 1) < 1
        if jobs_left or is_full:
            return None
        if payer is None:
            raise MarketError(Code.INSUFFICIENT_FUNDS)
        # Before accounts are locked: the end of a sample uses the same order.
        await sample_checks.begin_turn(tx, device_id)
        second, price = new.row.created_at % DAY_SECONDS, new.row.price_credit
        today = new.row.created_at - second
        is_first = jobs_left is None
        if payer.id == owner_id:
            return None
        # With this lock only this transaction changes the spending of the day.
        await lock_user(tx, payer.id)
        if is_first and await queries.firsts_since(tx, owner_id, today) >= FIRSTS_PER_OWNER_DAY:
            return None
        most = allowed_by(self._terms.credits_per_day, second)
        if await queries.spent_since(tx, today) + price > most:
            raise MarketError(Code.INSUFFICIENT_FUNDS)
        of_owner = await queries.spent_on(tx, owner_id, today)
        if of_owner + price > max(most // OWNER_PARTS, price):
            return None
        row = new.row._replace(user_id=payer.id)
        await put_up(tx, self._context, [(row, new.transfer_id)], UNBOUND)
        await spec_queries.insert(tx, new.spec)
        sample = SampleRow(
            job_id=row.id,
            device_id=device_id,
            owner_id=owner_id,
            answer=new.answer,
            shown_buyer=new.shown_buyer,
            price=price,
            is_first=int(is_first),
            created_at=row.created_at,
        )
        await queries.insert(tx, sample)
        # It starts: no other transaction knows it.
        pair = PairRow(row.id, device_id, 0)
        (given,) = await claim_queries.start(tx, [pair], now=row.created_at)
        await record_all(tx, self._context, [accepted(given)])
        return given


def allowed_by(credits_per_day: int, second: int) -> int:
    """Return the part of a day's allowance that is available by a second of that day."""
    first = credits_per_day // FIRST_PARTS
    return first + (credits_per_day - first) * second // DAY_SECONDS


async def _usual(tx: Transaction) -> _Usual:
    waits = await queries.last_waits(tx, limit=WAITS_LOOKED_AT)
    return _Usual(waits, await queries.users_since(tx))


def _shown_buyer(now: int, users_since: int) -> str:
    """Return an identifier like those of users, made at some time in the last months."""
    most = max(min(SHOWN_DAYS * DAY_SECONDS, now - users_since), 1)
    ago = secrets.randbelow(most * 1_000)
    return Identifiers(lambda: now * 1_000 - ago).new()
