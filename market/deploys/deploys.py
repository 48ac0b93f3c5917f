"""Deploys: a number of replicas on GPUs for a number of hours; every replica is a job."""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from market.accounts.bounds import Bounds, lock_and_keep
from market.accounts.funds import naming_funds
from market.accounts.spending import Spender, reporting_limits, spend
from market.accounts.suspensions import require_may_buy
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.deploys.rollouts import NO_GPU, Rollouts, description, needs
from market.deploys.steps import Strategy
from market.deploys.templates import (
    HOUR_SECONDS,
    JOB_TYPES,
    WHOLE_BY_DEFAULT,
    Template,
    completed,
    job_type_of,
    spec_of,
)
from market.events.context import Context
from market.events.idempotency import Receipt
from market.jobs.jobs import Jobs
from market.jobs.matching import MILLION, Needs
from market.jobs.postings import DURATION_MAX_HOURS, PRICE_MAX, HeldPrice, NewJob, put_up, waiting
from market.money.money import Currency, as_decimal
from proxyctl.protocol.jobspec import gpus
from storage.deploys import deploys as queries
from storage.deploys import rollouts as rollout_queries
from storage.deploys.deploys import DeployRow, ReplicaRow
from storage.deploys.rollouts import PresentRow, RolloutRow
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow

NAME_MAX_CHARACTERS = 180
MODEL_MAX_CHARACTERS = 100
IMAGE_MAX_CHARACTERS = 300
COMMAND_MAX_CHARACTERS = 2_000
GPU_COUNT_MAX = 64
REPLICAS_MAX = 100
# Of one part of a list: the replicas of more deploys would be hundreds of milliseconds.
LISTED_REPLICAS_MAX = 2_000


class Rates(Struct, frozen=True):
    """Price of an hour by GPU model in lower case, and price of a credit: micro-USD."""

    by_model: Mapping[str, int]
    default: int
    credit: int

    def of(self, gpu_model: str) -> int:
        """Return the rate of a model in any case of letters, or the default.

        Where two rates have names of the same model, the dearer one counts.
        """
        exact = self.by_model.get(gpu_model.strip().lower())
        if exact is not None:
            return exact
        key = gpus.key(gpu_model)
        same = [rate for model, rate in self.by_model.items() if gpus.key(model) == key]
        return max(same) if key and same else self.default

    def credits_for(self, usd: int) -> int:
        """Return the value of micro-USD in micro-credits, rounded down."""
        return usd * 1_000_000 // self.credit


class NewDeploy(Struct, frozen=True):  # as wide as the request
    """Deploy that a buyer orders; with an image or a command, devices run it automatically."""

    job_name: str
    job_type: str
    gpu_model: str
    gpu_count: int
    duration_hrs: int
    replicas: int
    currency: Currency
    image: str = ""
    command: str = ""
    template: Template | None = None
    strategy: Strategy = Strategy()


class Deploy(Struct, frozen=True):
    """Deploy with the state of its replicas.

    A deploy with a template has a `rollout`. Instead of `replicas` it has the `present` ones,
    because the number of replaced ones has no bound. `spent` is the cost of all of them once it is
    over.
    """

    row: DeployRow
    replicas: tuple[ReplicaRow, ...]
    rollout: RolloutRow | None = None
    spent: int = 0
    present: tuple[PresentRow, ...] = ()
    now: int = 0

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """The state of each replica."""
        return tuple(JobStatus(replica.status) for replica in self.replicas)

    @property
    def paid(self) -> int | None:
        """The cost in micro-units of its currency; None while a replica is not over."""
        is_over = self.status not in ("queued", "running")
        if self.rollout is not None:
            return self.spent if is_over else None
        amounts = [each.captured for each in self.replicas if each.captured is not None]
        return sum(amounts) if len(amounts) == len(self.replicas) and is_over else None

    @property
    def id(self) -> str:
        """The identifier of the deploy."""
        return self.row.id

    @property
    def job_ids(self) -> list[str]:
        """The jobs of its replicas, without replaced ones."""
        if self.rollout is not None:
            return [row.job_id for row in self.present]
        return [replica.job_id for replica in self.replicas]

    @property
    def desired(self) -> int:
        """Wanted number of replicas."""
        return self.row.replicas if self.rollout is None else self.rollout.desired

    @property
    def ready_replicas(self) -> int:
        """The number of usable replicas; without a template, a running replica is usable."""
        if self.rollout is None:
            return self.statuses.count(JobStatus.RUNNING)
        return sum(row.ready_at is not None for row in self.present)

    @property
    def available_replicas(self) -> int:
        """The number of replicas that have been ready for the required time."""
        if self.rollout is None:
            return self.ready_replicas
        least = msgspec.json.decode(self.rollout.strategy, type=Strategy).min_ready_s
        since = [row.ready_at for row in self.present if row.ready_at is not None]
        return sum(self.now - each >= least for each in since)

    @property
    def updated_replicas(self) -> int:
        """Number of replicas of the current revision that run, or wait for their first device."""
        if self.rollout is None:
            return 0
        open_rows = [
            row
            for row in self.present
            if row.status == JobStatus.RUNNING
            or (row.status == JobStatus.WAITING and row.failure_reason is None)
        ]
        return sum(row.revision == self.rollout.revision for row in open_rows)

    @property
    def status(self) -> str:
        """State of the deploy: running or queued as long as any replica is, then how it ended.

        One that may go on has its replicas replaced, so it is queued when none is there.
        """
        present = set(self.statuses)
        if self.rollout is not None:
            present = {JobStatus(row.status) for row in self.present}
            if self.rollout.state != "over" and JobStatus.FAILED not in present:
                present.add(JobStatus.WAITING)
        for status, word in (
            (JobStatus.RUNNING, "running"),
            (JobStatus.WAITING, "queued"),
            (JobStatus.CANCELLED, "cancelled"),
            (JobStatus.FAILED, "failed"),
        ):
            if status in present:
                return word
        return "completed" if present or self.rollout is None else "cancelled"


class Deploys:
    """Deploys of buyers.

    Args:
        images: default images, by type.
        listed_replicas_max: the largest number of replicas in one part of a list.
    """

    def __init__(
        self,
        context: Context,
        jobs: Jobs,
        rollouts: Rollouts,
        rates: Rates,
        images: Mapping[str, str],
        listed_replicas_max: int = LISTED_REPLICAS_MAX,
    ) -> None:
        self.listed_replicas_max = listed_replicas_max
        self._context = context
        self._store = context.store
        self._jobs = jobs
        self._rollouts = rollouts
        self._images = images
        self._identifiers = context.identifiers
        self._now = context.now
        self.rates = rates

    async def create(
        self,
        user_id: str,
        new: NewDeploy,
        receipt: Receipt[DeployRow] | None = None,
        spender: Spender | None = None,
    ) -> DeployRow:
        """Queue a deploy, hold the price of all its replicas, and return it.

        Raises:
            MarketError: `invalid_field`, `insufficient_funds`, `too_many_jobs`,
                `too_many_free_jobs`, `too_much_job_text`, `too_many_attempts`,
                `idempotency_key_reused`, `spend_limit_reached`.
            Replayed: this was answered before.
        """
        new = _checked(new)
        usd = self.rates.of(new.gpu_model) * new.gpu_count * new.duration_hrs
        price_credit = self.rates.credits_for(usd)
        if price_credit > PRICE_MAX:
            message = f"A replica may cost at most {as_decimal(PRICE_MAX)} credits."
            raise MarketError(Code.INVALID_FIELD, message, field="duration_hrs")
        price = price_credit if new.currency is Currency.CREDIT else usd
        deploy = DeployRow(
            id=self._identifiers.new(),
            user_id=user_id,
            job_name=new.job_name,
            job_type=new.job_type,
            gpu_model=new.gpu_model,
            gpu_count=new.gpu_count,
            duration_hrs=new.duration_hrs,
            replicas=new.replicas,
            currency=new.currency,
            price=price * new.replicas,
            created_at=self._now(),
            image=new.image or None,
            command=new.command or None,
        )
        template = self._template(new)
        with self._jobs.counting_refusals(user_id):
            async with (
                naming_funds(self._context, spender, deploy.price),
                reporting_limits(self._context, spender),
            ):
                if template is None:
                    await self._store.write(
                        _create,
                        self._context,
                        deploy,
                        self._replicas(deploy, price_credit, price),
                        self._jobs.bounds(),
                        receipt,
                        spender,
                    )
                else:
                    await self._begin(
                        deploy, template, new.strategy, price_credit, receipt, spender
                    )
        return deploy

    async def find(self, user_id: str, deploy_id: str) -> Deploy:
        """Return one of a user's deploys.

        Raises:
            MarketError: `deploy_not_found`, when it does not exist or belongs to another user.
        """
        return await self._store.read(_find, user_id, deploy_id, self._now())

    async def page(self, user_id: str, *, before: str, limit: int) -> tuple[list[Deploy], bool]:
        """Return a user's deploys, newest first, and whether more follow.

        There are fewer than `limit` where these have many replicas.
        """
        return await self._store.read(
            _page,
            user_id,
            before=before,
            limit=limit,
            replicas_max=self.listed_replicas_max,
            now=self._now(),
        )

    async def cancel(self, user_id: str, deploy_id: str) -> None:
        """Cancel the rest of a deploy.

        Finished replicas stay paid, running ones are settled like a cancelled job, waiting ones are
        released. A second call changes nothing.

        Raises:
            MarketError: `deploy_not_found`.
        """
        deploy = await self.find(user_id, deploy_id)
        if deploy.rollout is not None:
            await self._rollouts.cancel(user_id, deploy_id)
        else:
            await self._jobs.cancel_all(user_id, deploy.job_ids)

    def price_of(self, new: NewDeploy) -> int:
        """Return the price of a replica as in an `Offer`: an hour's, in parts of a micro-USD."""
        return self.rates.of(new.gpu_model.strip()) * new.gpu_count * MILLION

    def needs_of(self, new: NewDeploy) -> Needs | None:
        """Return the needs of each replica of a deploy; None without a template.

        Raises:
            MarketError: `invalid_field`, `payload_invalid`.
        """
        new = _checked(new)
        template = self._template(new)
        if template is None:
            return None
        # Before it is compared with devices: names of GPUs that are compared are kept in memory.
        spec_of(template, new.job_type, new.duration_hrs * HOUR_SECONDS)
        job_type = job_type_of(new.job_type, template)
        reputation = template.min_reputation
        return Needs.of(template, template.resources, job_type, min_reputation=reputation)

    def _template(self, new: NewDeploy) -> Template | None:
        """Return the template of a deploy's replicas, or None if the order has none."""
        default_image = self._images.get(new.job_type, "")
        template = replace(new.template or Template(), image=new.image, command=new.command)
        # For other types, a buyer that sends a template, even an empty one, wants the default
        # image.
        is_meant = new.template is not None or new.job_type in WHOLE_BY_DEFAULT
        if template == Template() and not (default_image and is_meant):
            return None
        template = completed(template, new.job_type, default_image)
        needed = template.resources
        if new.gpu_model.lower() != NO_GPU:
            needed = dataclasses.replace(needed, gpus=new.gpu_count, gpu_model=new.gpu_model)
        return replace(template, resources=needed)

    async def _begin(
        self,
        deploy: DeployRow,
        template: Template,
        strategy: Strategy,
        price_credit: int,
        receipt: Receipt[DeployRow] | None,
        spender: Spender | None,
    ) -> None:
        """Add a deploy with a template."""
        deploy = deploy._replace(image=template.image or None)
        whole = deploy.duration_hrs * HOUR_SECONDS
        spec_of(template, deploy.job_type, whole)

        async def begin(tx: Transaction) -> list[str]:
            await lock_and_keep(tx, deploy.user_id, receipt, deploy)
            await queries.insert(tx, deploy)
            begun = await self._rollouts.begin(tx, deploy, template, strategy, price_credit)
            await spend(tx, spender, deploy.currency, deploy.price, deploy.created_at)
            return begun

        for job_id in await self._store.write(begin):
            self._rollouts.put_up(job_id)

    def _replicas(
        self, deploy: DeployRow, price_credit: int, price: int
    ) -> list[tuple[JobRow, str]]:
        """Return the replicas of a deploy without a template."""
        return [
            (self._replica(deploy, number, price_credit, price), self._identifiers.new())
            for number in range(1, deploy.replicas + 1)
        ]

    def _replica(self, deploy: DeployRow, number: int, price_credit: int, price: int) -> JobRow:
        new = NewJob(
            title=f"{deploy.job_name} ({number} of {deploy.replicas})",
            job_type=JOB_TYPES[deploy.job_type],
            price=price_credit,
            duration_hrs=deploy.duration_hrs,
            description=description(deploy, number, deploy.replicas),
            requirements=needs(deploy),
        )
        return waiting(
            new,
            job_id=self._identifiers.new(),
            user_id=deploy.user_id,
            now=deploy.created_at,
            deploy_id=deploy.id,
            held=HeldPrice(Currency(deploy.currency), price),
        )


def _checked(new: NewDeploy) -> NewDeploy:
    """Return the order of a buyer, with names without spaces around them.

    Raises:
        MarketError: `invalid_field`.
    """
    new = replace(new, job_name=new.job_name.strip(), gpu_model=new.gpu_model.strip())
    for field, text, most in (
        ("job_name", new.job_name, NAME_MAX_CHARACTERS),
        ("gpu_model", new.gpu_model, MODEL_MAX_CHARACTERS),
    ):
        if not 1 <= len(text) <= most:
            message = f"{field} must have 1 to {most} characters."
            raise MarketError(Code.INVALID_FIELD, message, field=field)
    for field, text, most in (
        ("image", new.image, IMAGE_MAX_CHARACTERS),
        ("command", new.command, COMMAND_MAX_CHARACTERS),
    ):
        if len(text) > most or not text.isprintable():
            message = f"{field} must have at most {most} characters, all of them printable."
            raise MarketError(Code.INVALID_FIELD, message, field=field)
    for field, number, most in (
        ("gpu_count", new.gpu_count, GPU_COUNT_MAX),
        ("duration_hrs", new.duration_hrs, DURATION_MAX_HOURS),
        ("replicas", new.replicas, REPLICAS_MAX),
    ):
        if not 1 <= number <= most:
            message = f"{field} must be from 1 to {most}."
            raise MarketError(Code.INVALID_FIELD, message, field=field)
    strategy = new.strategy
    if not (strategy.max_surge or strategy.max_unavailable):
        message = "Without a surge at least one replica must be allowed to be unavailable."
        raise MarketError(Code.INVALID_FIELD, message, field="strategy")
    return new


async def _create(
    tx: Transaction,
    context: Context,
    deploy: DeployRow,
    replicas: Sequence[tuple[JobRow, str]],
    bounds: Bounds,
    receipt: Receipt[DeployRow] | None,
    spender: Spender | None,
) -> None:
    await lock_and_keep(tx, deploy.user_id, receipt, deploy)
    await queries.insert(tx, deploy)
    await put_up(tx, context, replicas, bounds)
    await require_may_buy(tx, deploy.user_id)
    await spend(tx, spender, deploy.currency, deploy.price, deploy.created_at)


async def _find(tx: Transaction, user_id: str, deploy_id: str, now: int) -> Deploy:
    row = await queries.find(tx, deploy_id)
    if row is None or row.user_id != user_id:
        raise MarketError(Code.DEPLOY_NOT_FOUND)
    (deploy,) = await _with_replicas(tx, [row], await _rollouts(tx, [row]), now)
    return deploy


async def _page(
    tx: Transaction, user_id: str, *, before: str, limit: int, replicas_max: int, now: int
) -> tuple[list[Deploy], bool]:
    rows = await queries.page(tx, user_id=user_id, before=before, limit=limit + 1)
    rollouts = await _rollouts(tx, rows)
    replicas = (
        row.replicas if row.id not in rollouts else max(row.replicas, rollouts[row.id].desired)
        for row in rows
    )
    fitting = sum(count <= replicas_max for count in accumulate(replicas))
    part = rows[: min(max(fitting, 1), limit)]
    return await _with_replicas(tx, part, rollouts, now), len(part) < len(rows)


async def _rollouts(tx: Transaction, rows: Sequence[DeployRow]) -> dict[str, RolloutRow]:
    """Return the rollouts of those of these deploys that have one."""
    if not rows:
        return {}
    found = await rollout_queries.of_deploys(tx, [row.id for row in rows])
    return {each.deploy_id: each for each in found}


async def _with_replicas(
    tx: Transaction, rows: Sequence[DeployRow], rollouts: Mapping[str, RolloutRow], now: int
) -> list[Deploy]:
    """Return deploys with their replicas; `rollouts` has those of these deploys, or of more."""
    if not rows:
        return []
    ids = [row.id for row in rows]
    rollouts = {each: rollouts[each] for each in ids if each in rollouts}
    replicas: dict[str, list[ReplicaRow]] = {each: [] for each in ids}
    for replica in await queries.replicas(tx, [each for each in ids if each not in rollouts]):
        replicas[replica.deploy_id].append(replica)
    present: dict[str, list[PresentRow]] = {each: [] for each in rollouts}
    if rollouts:
        for row in await rollout_queries.present(tx, list(rollouts)):
            present[row.deploy_id].append(row)
    over = [each.deploy_id for each in rollouts.values() if each.state == "over"]
    spent = await rollout_queries.spent(tx, over) if over else {}
    return [
        Deploy(
            row,
            tuple(replicas[row.id]),
            rollouts.get(row.id),
            spent.get(row.id, 0),
            tuple(present.get(row.id, ())),
            now,
        )
        for row in rows
    ]
