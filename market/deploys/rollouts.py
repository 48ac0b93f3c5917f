"""Rollouts: a deploy gets the replicas that its buyer wants, one change after the other.

Every change is a unit of work of its own with the deploy locked: it reads the present replicas,
plans, and stops and starts some of them. No state is kept in memory in between, so a daemon can
stop anywhere, and several daemons can process the same deploy.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from market.accounts.bounds import lock_and_keep, lock_user, require
from market.accounts.funds import naming_funds
from market.accounts.personal import bounds_of
from market.accounts.spending import Spender, reporting_limits, spend
from market.accounts.suspensions import require_may_buy
from market.base.bus import REPLICAS, WAITING
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.base.sweeping import PUT_OFF_SECONDS
from market.deploys.standing import HOUR_SECONDS, OPEN, Standing, standing_of, standings
from market.deploys.steps import Goal, Replica, Start, Step, Stop, Strategy, Wait, plan
from market.deploys.templates import Change, Template, job_type_of, spec_of, template_of
from market.events.catalogue import DeployCancelled, DeployFinished, DeployReady
from market.events.context import Context
from market.events.idempotency import Receipt
from market.events.recording import record
from market.jobs.draws import accounts_of
from market.jobs.jobs import Jobs
from market.jobs.postings import DAY_SECONDS, HeldPrice, NewJob, put_up, waiting
from market.jobs.specs import Specs, size_of
from market.money.money import Currency
from proxyctl.protocol.jobspec import Port, payload_of
from storage.deploys import deploys as deploy_queries
from storage.deploys import rollouts as queries
from storage.deploys.deploys import DeployRow
from storage.deploys.rollouts import PresentRow, ReplicaRow, RevisionRow, RolloutRow
from storage.engines.errors import StoreError, UnavailableError
from storage.engines.store import Transaction
from storage.jobs import job_specs as spec_queries
from storage.jobs import jobs as job_queries
from storage.jobs.jobs import JobRow

NO_GPU = "none"  # as a model: a deploy with a template that needs no GPU
REVISIONS_KEPT = 10
LOOK_MAX_DEPLOYS = 200  # deploys of one look; the others follow in the next look
HEARD_MAX = 10_000  # reported jobs that wait for a look; further ones wait for the sweep
# After a refusal: money or room for jobs comes back when the buyer does something.
REFUSED_SECONDS = 30
# An attempt is not paid before it is ready, so a buyer can have a device for this time for nothing.
# The time is enough to fetch and load a large model; images and files arrive before work begins.
READY_MAX_SECONDS = 1_800
UNREADABLE = (
    "The secrets of this deploy cannot be read any more; send them again in a new revision."
)
LAST_SECONDS = (
    "has less than a minute of its hours left: it serves to its end and gets no successor."
)
NO_CHANGE = "This revision changes nothing: name what is to change, or restart the deploy."
# Between why a job has failed and the end of its own log, in the reason that the agent reports.
LAST_WORDS = "; its last words:"
# Of the job's own words: its job, and its log, have the whole.
WORDS_SHOWN_CHARACTERS = 100
REASON_SHOWN_CHARACTERS = 300  # of the rest: some sentences, where the agent has one

_logger = logging.getLogger("jobs")


class Serving(Struct, frozen=True):
    """Replica that can be used now: the running attempt at its job, and its ports."""

    job_id: str
    attempt: int
    device_id: str
    number: int
    revision: int
    ports: tuple[Port, ...]


class Judgement(Struct, frozen=True):
    """Next steps for a deploy, and its rollout after them."""

    steps: list[Step]
    after: RolloutRow

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to do."""
        return all(isinstance(step, Wait) for step in self.steps)


class Done(Struct, frozen=True):
    """Result of a unit of work: stopped jobs as they were before, and new jobs."""

    stopped: list[JobRow] = []
    started: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.stopped or self.started)


def judge(rollout: RolloutRow, standing: Standing, now: int) -> Judgement:
    """Return the next steps for a deploy, and its rollout after them.

    A replica with too little time for another job serves to its end in its own revision, and the
    rollout waits for that.
    """
    if rollout.state in ("paused", "over"):
        return Judgement([], rollout)
    strategy = msgspec.json.decode(rollout.strategy, type=Strategy)
    numbers = frozenset(range(1, rollout.desired + 1))
    rows, done = standing.rows, standing.done(now)
    # Neither starts again by itself: a cancelled replica may have been cancelled by its buyer, as a
    # job.
    failed = {
        row.number: row
        for row in rows
        if row.status in (JobStatus.FAILED, JobStatus.CANCELLED)
        and row.revision == rollout.revision
    }
    cancelled = {number for number, row in failed.items() if row.status == JobStatus.CANCELLED}
    last = standing.last(rollout.revision, now)
    replicas = [
        Replica(
            row.job_id,
            row.number,
            rollout.revision if row.job_id in last else row.revision,
            row.ready_at,
        )
        for row in rows
        if row.status in OPEN
    ]
    last_number = min((each.number for each in replicas if each.job_id in last), default=None)
    goal = Goal(rollout.revision, numbers - done, frozenset(failed))
    steps = plan(goal, replicas, strategy, now)
    # A failed replica stays failed until a change, even if other replicas are still awaited.
    is_broken = bool(goal.failed & goal.numbers) and all(isinstance(step, Wait) for step in steps)
    updated = len(numbers & done) + len(
        {
            each.number
            for each in replicas
            if each.revision == goal.revision
            and each.job_id not in last
            and each.number in goal.numbers
            and each.is_available(strategy, now)
        }
    )
    has_progressed = updated > rollout.updated or rollout.state == "available"
    progressed_at = now if has_progressed and steps else rollout.progressed_at
    problem = _why_it_waits(rows) or (None if has_progressed else rollout.problem)
    is_over = bool(numbers) and numbers <= done | cancelled and not steps
    if is_over or is_broken:
        state = "over" if is_over else "stuck"
        missing = min(goal.failed & goal.numbers, default=None)
        problem = None if missing is None else _why_it_ended(failed[missing])
    elif steps:
        is_stuck = now - progressed_at >= strategy.progress_s
        state = "stuck" if is_stuck else "progressing"
        if is_stuck and problem is None:
            problem = f"Nothing has got better for {strategy.progress_s} seconds."
    elif last_number is not None:
        state, problem = "progressing", f"Replica {last_number} {LAST_SECONDS}"
    else:
        state, problem = "available", None
    after = rollout._replace(
        state=state, updated=updated, progressed_at=progressed_at, problem=problem
    )
    return Judgement(steps, after)


def _why_it_ended(row: PresentRow) -> str:
    """Describe the end of a replica that failed, or was cancelled as a job."""
    how = "has failed" if row.status == JobStatus.FAILED else "was cancelled"
    if row.failure_reason is None:
        return f"Replica {row.number} {how}."
    return f"Replica {row.number} {how}: {_in_short(row.failure_reason)}"


def _why_it_waits(rows: Sequence[PresentRow]) -> str | None:
    """Describe the last failure of the first replica that waits for another device, or None."""
    for row in rows:
        if row.status == JobStatus.WAITING and row.failure_reason is not None:
            text = f"Replica {row.number} has ended, and waits for a device"
            if row.again_at is not None:
                at = datetime.fromtimestamp(row.again_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                text += f" (one of the same owner may have it from {at} on)"
            return f"{text}: {_in_short(row.failure_reason)}"
    return None


def _in_short(reason: str) -> str:
    """Return a reason in one line, with the end of the job's own last output."""
    said, mark, words = (" ".join(part.split()) for part in reason.partition(LAST_WORDS))
    if len(said) > REASON_SHOWN_CHARACTERS:
        said = f"{said[: REASON_SHOWN_CHARACTERS - 1]}…"
    if len(words) > WORDS_SHOWN_CHARACTERS:
        words = f"…{words[1 - WORDS_SHOWN_CHARACTERS :]}"
    return f"{said}{mark} {words}" if words else said


class RolloutPace(Struct, frozen=True):
    """The steps of a rollout that are done together.

    Attributes:
        steps_per_unit: the steps of one unit of work. A longer one would hold up other writers:
            each step is some ten statements.
        units_per_look: the units of one look. A rollout that needs more waits for the next look.
        failed_seconds: before another look, after a failure of the store.
    """

    steps_per_unit: int = 10
    units_per_look: int = 40
    failed_seconds: float = 1.0


USUAL_PACE = RolloutPace()


class _Heard:
    """Deploys, and jobs of deploys, to look at soon: at most `HEARD_MAX`."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}
        self._wake = asyncio.Event()

    def add(self, ids: Sequence[str]) -> None:
        """Add deploys, or the deploys of jobs, to look at soon."""
        for each in ids[: HEARD_MAX - len(self._ids)]:
            self._ids[each] = None
        self._wake.set()

    async def take(self) -> list[str]:
        """Wait for deploys to look at. Remove and return all of them."""
        await self._wake.wait()
        self._wake.clear()
        ids, self._ids = list(self._ids), {}
        return ids


class Rollouts:
    """Replaces replicas, and applies the changes that buyers request."""

    def __init__(
        self, context: Context, jobs: Jobs, specs: Specs, pace: RolloutPace = USUAL_PACE
    ) -> None:
        self.pace = pace
        self._context = context
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._jobs = jobs
        self._specs = specs
        # In all: replicas that were started, and stopped, by rollouts here.
        self.started = self.stopped = 0
        self._heard = _Heard()
        self._after = ""
        self._refused: dict[str, int] = {}
        context.bus.subscribe(REPLICAS, self._heard.add)

    # --- requests of buyers -----------------------------------------------------------------

    async def revise(
        self,
        user_id: str,
        deploy_id: str,
        change: Change,
        receipt: Receipt[int] | None = None,
        *,
        replicas: int | None = None,
        spender: Spender | None = None,
    ) -> int:
        """Start a new revision with changes. Return its number.

        Args:
            user_id: the owner of the deploy.
            deploy_id: the deploy.
            change: the changed fields.
            receipt: stores the reply.
            replicas: the number of replicas; None for no change.
            spender: the API key that pays for more of them and for surplus ones, or None.

        Raises:
            MarketError: `deploy_not_found`, `deploy_over`, `deploy_has_no_revisions`,
                `payload_invalid`, `too_much_job_text`, `idempotency_key_reused`,
                `account_suspended`, `spend_limit_reached`; with `replicas` also as `scale`.
            Replayed: this was answered before.
        """
        if change == Change() and replicas is None:
            raise MarketError(Code.PAYLOAD_INVALID, NO_CHANGE)

        async def revise(tx: Transaction) -> tuple[int, Done]:
            if replicas is not None:  # before the new rows refer to the buyer
                await _own(tx, user_id, deploy_id)
                await _lock_replicas(tx, await queries.present(tx, [deploy_id]))
            revision, done = await self._revise(tx, user_id, deploy_id, change, receipt), Done()
            if replicas is not None:
                done = await self._scale(tx, user_id, deploy_id, replicas, spender)
            await self._admit(tx, user_id, deploy_id, spender)
            return revision, done

        with self._jobs.counting_refusals(user_id):
            async with (
                naming_funds(self._context, spender),
                reporting_limits(self._context, spender),
            ):
                revision, done = await self._store.write(revise)
        self._tell(done)
        self._hear_deploy(deploy_id)
        return revision

    async def restart(
        self,
        user_id: str,
        deploy_id: str,
        receipt: Receipt[int] | None = None,
        spender: Spender | None = None,
    ) -> int:
        """Replace every replica by a replica with the same work. See `revise`.

        Failed replicas get another chance. A replica in its last minute serves to its end instead.
        """

        async def restart(tx: Transaction) -> int:
            number = await self._revise(tx, user_id, deploy_id, Change(), receipt, cause="restart")
            await self._admit(tx, user_id, deploy_id, spender)
            return number

        async with reporting_limits(self._context, spender):
            revision = await self._store.write(restart)
        self._hear_deploy(deploy_id)
        return revision

    async def rollback(
        self,
        user_id: str,
        deploy_id: str,
        revision: int | None,
        receipt: Receipt[int] | None = None,
        spender: Spender | None = None,
    ) -> int:
        """Return to an earlier revision, by default the last available one.

        That is a new revision as well, whose number is returned.

        Raises:
            MarketError: as `revise`; `revision_not_found`.
            Replayed: this was answered before.
        """

        async def roll_back(tx: Transaction) -> int:
            new = await self._roll_back(tx, user_id, deploy_id, revision, receipt)
            await self._admit(tx, user_id, deploy_id, spender)
            return new

        async with reporting_limits(self._context, spender):
            new = await self._store.write(roll_back)
        self._hear_deploy(deploy_id)
        return new

    async def scale(
        self, user_id: str, deploy_id: str, replicas: int, spender: Spender | None = None
    ) -> None:
        """Set the number of replicas: hold the price of more, or release the price of fewer.

        A replica that returns has its unused hours.

        Raises:
            MarketError: `deploy_not_found`, `deploy_over`, `deploy_has_no_revisions`;
                `insufficient_funds`, `too_many_jobs`, `too_many_free_jobs`, `too_much_job_text`,
                `too_many_attempts`, `spend_limit_reached`, and nothing was changed then.
        """
        with self._jobs.counting_refusals(user_id):
            async with (
                naming_funds(self._context, spender),
                reporting_limits(self._context, spender),
            ):
                done = await self._store.write(self._scale, user_id, deploy_id, replicas, spender)
        self._tell(done)
        self._hear_deploy(deploy_id)

    async def pause(self, user_id: str, deploy_id: str, *, is_paused: bool) -> None:
        """Start and stop no replica until the deploy resumes; running replicas continue.

        Raises:
            MarketError: `deploy_not_found`, `deploy_over`, `deploy_has_no_revisions`.
        """
        await self._store.write(self._pause, user_id, deploy_id, is_paused)
        self._hear_deploy(deploy_id)

    async def revisions(self, user_id: str, deploy_id: str) -> list[RevisionRow]:
        """Return the revisions of a deploy, the newest first.

        Raises:
            MarketError: `deploy_not_found`, `deploy_has_no_revisions`.
        """
        return await self._store.read(_revisions, user_id, deploy_id)

    async def cancel(self, user_id: str, deploy_id: str) -> None:
        """Stop every replica of a deploy for good. Idempotent.

        Raises:
            MarketError: `deploy_not_found`, `deploy_has_no_revisions`.
        """
        self._tell(Done(await self._store.write(self._cancel, user_id, deploy_id)))

    # --- changes of replicas ----------------------------------------------------------------

    def _hear_deploy(self, deploy_id: str) -> None:
        self._refused.pop(deploy_id, None)
        self._heard.add((deploy_id,))

    async def run(self) -> None:
        """Look at the deploys that notices name, until cancelled."""
        while True:
            heard = await self._heard.take()
            try:
                for start in range(0, len(heard), LOOK_MAX_DEPLOYS):
                    await self._look_at(heard[start : start + LOOK_MAX_DEPLOYS])
            except StoreError as error:  # the sweep finds them
                _logger.warning("rollouts continue later: %s", error)
                await asyncio.sleep(self.pace.failed_seconds)
            except Exception:  # this task must go on; the sweep finds these deploys as well
                _logger.exception("rollouts continue later")
                await asyncio.sleep(self.pace.failed_seconds)

    async def sweep(self) -> int:
        """Process some of the open deploys. Return the number of deploys with steps.

        Call this periodically; then each deploy has its turn.

        Raises:
            StoreError: they wait.
        """
        ids = await self._store.read(queries.open_ids, after=self._after, limit=LOOK_MAX_DEPLOYS)
        self._after = ids[-1] if len(ids) == LOOK_MAX_DEPLOYS else ""
        return await self._look_at_deploys(ids)

    async def _look_at(self, ids: Sequence[str]) -> None:
        """Look at the deploys with these identifiers, and at the deploys of these replicas."""
        deploys = await self._store.read(queries.of_jobs, ids)
        await self._look_at_deploys(list({*deploys, *ids}))

    async def _look_at_deploys(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        rollouts, found = await self._store.read(_rollouts, ids)
        now, looks = self._now(), 0
        self._refused = {each: until for each, until in self._refused.items() if until > now}
        for rollout in rollouts:
            if rollout.deploy_id in self._refused:
                continue
            with self._failing_alone(rollout.deploy_id):
                judged = judge(rollout, found[rollout.deploy_id], now)
                if judged.is_settled and judged.after == rollout:
                    continue
                looks += 1
                await self._go_on(rollout.deploy_id)
        return looks

    async def look(self, deploy_id: str) -> None:
        """Take the next steps for a deploy.

        Raises:
            UnavailableError: the remaining steps wait.
        """
        with self._failing_alone(deploy_id):
            await self._go_on(deploy_id)

    @contextmanager
    def _failing_alone(self, deploy_id: str) -> Iterator[None]:
        """Log the failure of one deploy, and put that deploy off: it holds up no other.

        Raises:
            UnavailableError: the store did not answer; it would not for the others, either.
        """
        try:
            yield
        except UnavailableError:
            raise
        except Exception:
            self._refused[deploy_id] = self._now() + PUT_OFF_SECONDS
            _logger.exception("the rollout of deploy %s cannot go on", deploy_id)

    async def _go_on(self, deploy_id: str) -> None:
        try:
            for _ in range(self.pace.units_per_look):
                done = await self._store.write(self._step, deploy_id)
                self._tell(done)
                if not done:
                    return
        except MarketError as error:
            self._refused[deploy_id] = self._now() + REFUSED_SECONDS
            await self._store.write(_note, deploy_id, error.message)

    def _tell(self, done: Done) -> None:
        for job in done.stopped:
            self._jobs.notices.publish_stopped(job)
        for job_id in done.started:
            self.put_up(job_id)
        self.stopped += len(done.stopped)

    def put_up(self, job_id: str) -> None:
        """Publish that new replicas wait for devices. Call it after the commit."""
        self._context.bus.publish(WAITING, [job_id])
        self.started += 1

    # --- units of work ----------------------------------------------------------------------

    async def begin(
        self,
        tx: Transaction,
        deploy: DeployRow,
        template: Template,
        strategy: Strategy,
        replica_credit: int,
    ) -> list[str]:
        """Add the rollout and the replicas of a new deploy, whose row exists. Return their jobs.

        Raises:
            MarketError: as `Deploys.create`.
        """
        rollout = RolloutRow(
            deploy_id=deploy.id,
            user_id=deploy.user_id,
            revision=1,
            desired=deploy.replicas,
            strategy=msgspec.json.encode(strategy).decode(),
            state="progressing",
            replica_price=deploy.price // deploy.replicas,
            replica_credit=replica_credit,
            updated=0,
            progressed_at=deploy.created_at,
            problem=None,
        )
        await require_may_buy(tx, deploy.user_id)
        await queries.insert(tx, rollout)
        # Each of them is processed repeatedly, even without replicas.
        count = await queries.count_open(tx, deploy.user_id)
        bounds = await bounds_of(tx, deploy.user_id, self._jobs.bounds(), deploy.created_at)
        require(count, bounds.jobs, Code.TOO_MANY_JOBS)
        await self._insert_revision(tx, deploy, 1, template, "created", deploy.created_at)
        whole = deploy.duration_hrs * HOUR_SECONDS
        seconds_of = dict.fromkeys(range(1, deploy.replicas + 1), whole)
        return await self._start(tx, deploy, rollout, template, seconds_of)

    async def _revise(
        self,
        tx: Transaction,
        user_id: str,
        deploy_id: str,
        change: Change,
        receipt: Receipt[int] | None = None,
        *,
        cause: str = "revision",
    ) -> int:
        deploy, rollout = await _own(tx, user_id, deploy_id)
        await lock_and_keep(tx, user_id, receipt, rollout.revision + 1)
        revisions = await queries.revisions(tx, deploy_id)
        last = revisions[0]
        says_secrets = change.secrets is not None  # and so those of before need not be readable
        template = change.of(template_of(last.template) if says_secrets else self._template(last))
        whole = deploy.duration_hrs * HOUR_SECONDS
        spec_of(template, deploy.job_type, whole)
        return await self._add_revision(tx, deploy, rollout, template, cause)

    async def _roll_back(
        self,
        tx: Transaction,
        user_id: str,
        deploy_id: str,
        revision: int | None,
        receipt: Receipt[int] | None = None,
    ) -> int:
        deploy, rollout = await _own(tx, user_id, deploy_id)
        await lock_and_keep(tx, user_id, receipt, rollout.revision + 1)
        found = _earlier(await queries.revisions(tx, deploy_id), rollout.revision, revision)
        if found is None:
            raise MarketError(Code.REVISION_NOT_FOUND, field="revision")
        cause = f"rollback to {found.revision}"
        template = self._template(found)
        return await self._add_revision(tx, deploy, rollout, template, cause, same=found)

    async def _admit(
        self, tx: Transaction, user_id: str, deploy_id: str, spender: Spender | None
    ) -> None:
        """Refuse a revision whose buyer is suspended, or whose surplus is beyond a key's limit.

        A surplus replica is paid beside the one that it replaces, and so beyond the price of the
        deploy. At most `max_surge` of them run at once, and none runs longer than the replica that
        has the most time left.

        Raises:
            MarketError: `account_suspended`, `spend_limit_reached`.
        """
        await _require_buyer(tx, user_id)
        deploy, rollout = await _own(tx, user_id, deploy_id)
        strategy = msgspec.json.decode(rollout.strategy, type=Strategy)
        surplus = min(strategy.max_surge, rollout.desired)
        if spender is None or not surplus:
            return
        standing, now = await standing_of(tx, deploy_id), self._now()
        numbers = range(1, rollout.desired + 1)
        seconds = max(0, *(standing.left(number, now) for number in numbers))
        price = rollout.replica_price * seconds // standing.whole
        await spend(tx, spender, deploy.currency, surplus * price, now)

    async def _scale(
        self,
        tx: Transaction,
        user_id: str,
        deploy_id: str,
        replicas: int,
        spender: Spender | None = None,
    ) -> Done:
        deploy, rollout = await _own(tx, user_id, deploy_id)
        now = self._now()
        scaled = rollout._replace(desired=replicas, progressed_at=now)
        if rollout.state != "paused":
            scaled = scaled._replace(state="progressing", problem=None)
        await _change(tx, rollout, scaled)
        await queries.set_price(tx, deploy_id, rollout.replica_price * replicas)
        standing = await standing_of(tx, deploy_id)
        judged = judge(scaled, standing, now)
        # All of it, so that it is refused here if it costs too much.
        done = await self._carry_out(tx, deploy, judged, standing.rows, most=None)
        if replicas > rollout.desired:
            await _require_buyer(tx, user_id)
        more = max(replicas - rollout.desired, 0) * rollout.replica_price
        await spend(tx, spender, deploy.currency, more, now)
        return done

    async def _pause(self, tx: Transaction, user_id: str, deploy_id: str, is_paused: bool) -> None:
        _, rollout = await _own(tx, user_id, deploy_id)
        if is_paused != (rollout.state == "paused"):
            state = "paused" if is_paused else "progressing"
            after = rollout._replace(state=state, progressed_at=self._now(), problem=None)
            await _change(tx, rollout, after)

    async def _cancel(self, tx: Transaction, user_id: str, deploy_id: str) -> list[JobRow]:
        """End a deploy. Return the jobs of its replicas as they were before the stop."""
        _, rollout = await _own(tx, user_id, deploy_id, may_be_over=True)
        if rollout.state != "over":
            await _change(tx, rollout, rollout._replace(state="over", problem=None))
            cancelled = DeployCancelled(deploy_id)
            await record(tx, self._context, user_id, cancelled, subject_id=deploy_id)
        # In one unit with the end: no daemon that dies here leaves anything behind that is paid.
        rows = await queries.present(tx, [deploy_id])
        return await self._stop(tx, rows, are_replaced=False)

    async def _step(self, tx: Transaction, deploy_id: str) -> Done:
        """Take some of the next steps for a deploy, if any."""
        await tx.lock("deploys", [deploy_id])
        deploy = await deploy_queries.find(tx, deploy_id)
        rollout = await queries.find(tx, deploy_id)
        if deploy is None or rollout is None:
            return Done()
        standing = await standing_of(tx, deploy_id)
        judged = judge(rollout, standing, self._now())
        most = self.pace.steps_per_unit
        done = await self._carry_out(tx, deploy, judged, standing.rows, most=most)
        if judged.after != rollout:
            await _change(tx, rollout, judged.after)
            await self._record(tx, rollout, judged.after)
            await self._mark(tx, deploy, rollout, judged.after)
        return done

    async def _record(self, tx: Transaction, before: RolloutRow, after: RolloutRow) -> None:
        """Record an event for a deploy's buyer about its new state."""
        if after.state == before.state:
            return
        deploy_id = after.deploy_id
        if after.state == "available":
            ready = DeployReady(deploy_id, after.revision, after.desired)
            await record(tx, self._context, after.user_id, ready, subject_id=deploy_id)
        elif after.state == "over":
            over = DeployFinished(deploy_id)
            await record(tx, self._context, after.user_id, over, subject_id=deploy_id)

    async def _mark(
        self, tx: Transaction, deploy: DeployRow, before: RolloutRow, after: RolloutRow
    ) -> None:
        """Record the state of a revision, and return to an earlier one after a failed rollout."""
        if after.state in ("available", "stuck", "over"):
            state = "stuck" if after.state == "stuck" else "available"
            await queries.mark_revision(tx, after.deploy_id, after.revision, state)
        strategy = msgspec.json.decode(after.strategy, type=Strategy)
        if after.state != "stuck" or before.state == "stuck" or not strategy.auto_revert:
            return
        revisions = await queries.revisions(tx, after.deploy_id)
        found = _earlier(revisions, after.revision, None, is_available=True)
        if found is None or revisions[0].state == "available":
            return
        # A rollback to a template that is stuck as well would alternate between the two forever.
        before_that = template_of(revisions[0].template)
        if template_of(found.template) != before_that or found.secrets != revisions[0].secrets:
            cause = f"revision {after.revision} was stuck, back to {found.revision}"
            template = self._template(found)
            await self._add_revision(tx, deploy, after, template, cause, same=found)

    async def _carry_out(
        self,
        tx: Transaction,
        deploy: DeployRow,
        judged: Judgement,
        rows: Sequence[PresentRow],
        *,
        most: int | None,
    ) -> Done:
        steps = judged.steps[:most]
        stops = {step.job_id for step in steps if isinstance(step, Stop)}
        numbers = [step.number for step in steps if isinstance(step, Start)]
        stopped = await self._stop(tx, [row for row in rows if row.job_id in stops])
        if not numbers:
            return Done(stopped)
        now, revision = self._now(), judged.after.revision
        await queries.forget_failed(tx, deploy.id, before=revision, now=now)
        revisions = await queries.revisions(tx, deploy.id)
        # Read again: the pay of the stopped replicas counts as used time.
        standing = await standing_of(tx, deploy.id)
        seconds = {
            number: standing.left(number, now)
            for number in numbers
            if not standing.is_used_up(number, now)
        }
        if not seconds:  # the stopped replicas have used all of it; the next look finds them done
            return Done(stopped)
        template = self._template(revisions[0])
        started = await self._start(tx, deploy, judged.after, template, seconds)
        return Done(stopped, started)

    async def _stop(
        self, tx: Transaction, rows: Sequence[PresentRow], *, are_replaced: bool = True
    ) -> list[JobRow]:
        """Stop replicas and pay their work so far. Return their jobs as they were before."""
        running = await _lock_replicas(tx, rows)
        for job in running:
            await self._jobs.outcomes.stop(tx, job, self._jobs.outcomes.moment())
            if are_replaced:
                await queries.stop(tx, job.id, now=self._now())
        return running

    async def _start(
        self,
        tx: Transaction,
        deploy: DeployRow,
        rollout: RolloutRow,
        template: Template,
        seconds_of: Mapping[int, int],
    ) -> list[str]:
        """Post replicas, each for its remaining time. Return their jobs.

        Args:
            tx: the transaction, which has locked the deploy.
            deploy: their deploy.
            rollout: the number of replicas, and their price.
            template: their template.
            seconds_of: the remaining seconds of each replica, by its number.
        """
        patience = msgspec.json.decode(rollout.strategy, type=Strategy).progress_s
        replicas = []
        for number, seconds in seconds_of.items():
            job = self._replica(deploy, rollout, template, number, seconds)
            spec = spec_of(template, deploy.job_type, seconds)
            row = self._specs.row(job.id, spec)
            job = job._replace(text_bytes=job.text_bytes + size_of(row))
            replica = ReplicaRow(
                job_id=job.id,
                deploy_id=deploy.id,
                number=number,
                revision=rollout.revision,
                seconds=seconds,
                ready_within=None if template.ready is None else min(patience, READY_MAX_SECONDS),
            )
            replicas.append((job, row, replica))
        new = self._identifiers.new
        jobs = [(job, new()) for job, _, _ in replicas]
        await lock_user(tx, deploy.user_id)
        await put_up(tx, self._context, jobs, self._jobs.bounds())
        for _, row, replica in replicas:
            await spec_queries.insert(tx, row)
            await queries.insert_replica(tx, replica)
        return [job.id for job, _, _ in replicas]

    def _template(self, row: RevisionRow) -> Template:
        """Return the template of a revision, with its secrets.

        Raises:
            MarketError: `payload_invalid`, when they cannot be read any more.
        """
        template = template_of(row.template)
        if not template.secrets:
            return template
        secrets = None if row.secrets is None else self._specs.unseal(row.secrets)
        if secrets is None:
            raise MarketError(Code.PAYLOAD_INVALID, UNREADABLE, field="secrets")
        return replace(template, secrets=secrets)

    async def _add_revision(
        self,
        tx: Transaction,
        deploy: DeployRow,
        rollout: RolloutRow,
        template: Template,
        cause: str,
        *,
        same: RevisionRow | None = None,
    ) -> int:
        """Make a template the current revision. Return its number.

        Replicas of the revision that is the `same` stay, as those of the new one.

        Raises:
            MarketError: `too_much_job_text`.
        """
        number, now = rollout.revision + 1, self._now()
        await self._insert_revision(tx, deploy, number, template, cause, now)
        await queries.forget_failed(tx, deploy.id, before=number, now=now)
        if same is not None:
            await queries.adopt(tx, deploy.id, before=same.revision, after=number)
        await queries.set_running(
            tx, deploy.id, image=template.image or None, command=template.command or None
        )
        state = "paused" if rollout.state == "paused" else "progressing"
        after = rollout._replace(
            revision=number, state=state, updated=0, progressed_at=now, problem=None
        )
        await _change(tx, rollout, after)
        return number

    async def _insert_revision(
        self,
        tx: Transaction,
        deploy: DeployRow,
        number: int,
        template: Template,
        cause: str,
        now: int,
    ) -> None:
        stored = template.as_json()
        secrets = self._specs.seal(template.secrets) if template.secrets else None
        row = RevisionRow(
            deploy_id=deploy.id,
            user_id=deploy.user_id,
            revision=number,
            template=stored,
            secrets=secrets,
            size_bytes=len(stored.encode()) + len(secrets or ""),
            cause=cause,
            created_at=now,
            state="progressing",
        )
        await queries.insert_revision(tx, row, keep=REVISIONS_KEPT)
        size = await queries.revision_bytes(tx, deploy.user_id, since=now - DAY_SECONDS)
        require(size, self._jobs.bounds().job_bytes, Code.TOO_MUCH_JOB_TEXT)

    def _replica(
        self,
        deploy: DeployRow,
        rollout: RolloutRow,
        template: Template,
        number: int,
        seconds: int,
    ) -> JobRow:
        whole = deploy.duration_hrs * HOUR_SECONDS
        new = NewJob(
            title=f"{deploy.job_name} ({number} of {rollout.desired})",
            job_type=job_type_of(deploy.job_type, template),
            price=rollout.replica_credit * seconds // whole,
            duration_hrs=-(-seconds // HOUR_SECONDS),
            description=description(deploy, number, rollout.desired),
            requirements="no GPU" if deploy.gpu_model.lower() == NO_GPU else needs(deploy),
        )
        return waiting(
            new,
            job_id=self._identifiers.new(),
            user_id=deploy.user_id,
            now=self._now(),
            deploy_id=deploy.id,
            held=HeldPrice(Currency(deploy.currency), rollout.replica_price * seconds // whole),
        )


async def serving(tx: Transaction, deploy_id: str) -> list[Serving]:
    """Return the replicas of a deploy that can be used now, those of the newest revision first.

    A deploy without revisions has no such replicas. The caller checks the owner of the deploy
    first.
    """
    return [
        Serving(
            job_id=row.job_id,
            attempt=row.attempt,
            device_id=row.device_id,
            number=row.number,
            revision=row.revision,
            ports=tuple(payload_of(msgspec.json.decode(row.payload)).ports),
        )
        for row in await queries.serving(tx, deploy_id)
    ]


def description(deploy: DeployRow, number: int, replicas: int) -> str:
    """Return the fields of a replica that a worker may see before it runs it."""
    return f"Replica {number} of {replicas} of the deploy {deploy.id}\nType: {deploy.job_type}"


def needs(deploy: DeployRow) -> str:
    """Return the needs of each replica in words."""
    return f"GPU: {deploy.gpu_count} x {deploy.gpu_model}"


def _earlier(
    revisions: Sequence[RevisionRow],
    current: int,
    wanted: int | None,
    *,
    is_available: bool = False,
) -> RevisionRow | None:
    """Return the wanted revision among the earlier ones.

    Without one, it is the last available revision. If none was available, it is the last one,
    unless `is_available` demands an available one.
    """
    earlier = [row for row in revisions if row.revision < current]
    if wanted is not None:
        return next((row for row in earlier if row.revision == wanted), None)
    available = [row for row in earlier if row.state == "available"]
    return next(iter(available if available or is_available else earlier), None)


async def _own(
    tx: Transaction, user_id: str, deploy_id: str, *, may_be_over: bool = False
) -> tuple[DeployRow, RolloutRow]:
    """Lock one of a user's deploys, and return its present state.

    Raises:
        MarketError: `deploy_not_found`, `deploy_has_no_revisions`, `deploy_over`.
    """
    await tx.lock("deploys", [deploy_id])
    deploy = await deploy_queries.find(tx, deploy_id)
    if deploy is None or deploy.user_id != user_id:
        raise MarketError(Code.DEPLOY_NOT_FOUND)
    rollout = await queries.find(tx, deploy_id)
    if rollout is None:
        raise MarketError(Code.DEPLOY_HAS_NO_REVISIONS)
    if rollout.state == "over" and not may_be_over:
        raise MarketError(Code.DEPLOY_OVER)
    return deploy, rollout


async def _lock_replicas(tx: Transaction, rows: Sequence[PresentRow]) -> list[JobRow]:
    """Lock replicas, and then the accounts that their ends change. Return the open jobs."""
    if not rows:
        return []
    await tx.lock("jobs", sorted(row.job_id for row in rows))
    jobs = [await job_queries.find(tx, row.job_id) for row in rows]
    running = [
        job
        for job in jobs
        if job is not None and job.status in (JobStatus.WAITING, JobStatus.RUNNING)
    ]
    # Lock all accounts in one call: every caller locks accounts in the same order.
    accounts = {account for job in running for account in await accounts_of(tx, job)}
    await tx.lock("accounts", sorted(accounts))
    return running


async def _require_buyer(tx: Transaction, user_id: str) -> None:
    """Refuse new work of a user whose purchases are suspended, also on paid replicas.

    It locks an account, so a transaction calls it after its last lock of a job.

    Raises:
        MarketError: `account_suspended`.
    """
    await lock_user(tx, user_id)
    await require_may_buy(tx, user_id)


async def _change(tx: Transaction, before: RolloutRow, after: RolloutRow) -> None:
    is_changed = await queries.change(tx, before, after)
    assert is_changed  # noqa: S101 - the deploy is locked since this was read
    if after.state == "over":
        await queries.forget_secrets(tx, after.deploy_id)


async def _rollouts(
    tx: Transaction, ids: Sequence[str]
) -> tuple[list[RolloutRow], Mapping[str, Standing]]:
    rollouts = await queries.of_deploys(tx, ids)
    return rollouts, await standings(tx, [rollout.deploy_id for rollout in rollouts])


async def _revisions(tx: Transaction, user_id: str, deploy_id: str) -> list[RevisionRow]:
    deploy = await deploy_queries.find(tx, deploy_id)
    if deploy is None or deploy.user_id != user_id:
        raise MarketError(Code.DEPLOY_NOT_FOUND)
    revisions = await queries.revisions(tx, deploy_id)
    if not revisions:
        raise MarketError(Code.DEPLOY_HAS_NO_REVISIONS)
    return revisions


async def _note(tx: Transaction, deploy_id: str, problem: str) -> None:
    """Record the reason that stops a rollout."""
    await tx.lock("deploys", [deploy_id])
    rollout = await queries.find(tx, deploy_id)
    if rollout is not None and rollout.state != "over":
        await _change(tx, rollout, rollout._replace(problem=problem))
