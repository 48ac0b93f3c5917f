"""Deploys: buyers who order replicas, change them, and end them; devices that run them.

A replica serves until it is stopped, ends early, or fails. A revision may be one that never works.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from market.accounts.spending import Spender
from market.attempts.attempts import Ending, FailureKind
from market.base.errors import MarketError
from market.deploys.deploys import NewDeploy
from market.deploys.rollouts import Judgement, judge
from market.deploys.standing import standing_of
from market.deploys.steps import Strategy
from market.deploys.templates import Change, Template
from market.events.idempotency import Replayed
from market.money.money import Currency
from proxyctl.protocol.jobspec import Port, Ready
from storage.deploys.deploys import DeployRow
from storage.deploys.rollouts import RolloutRow
from tests.sim.clients import receipt_of
from tests.sim.jobs import Actor, DeviceAgent
from tests.sim.store import EPOCH, Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

# The first has much money, the others hardly any.
DEPLOYERS = ("user0", "user6", "user7")
POOR_MONEY = 350_000_000
DEPLOY_KEY = "key-deploys"
DEPLOY_KEY_LIMIT = 700_000_000
WORKS, FAILS, NEVER_READY = "serve", "fail", "idle"
# Deploys are looked at every five seconds, and requests take their time.
SETTLED_SECONDS = 12
STEPS = (
    *("scale", "scale", "scale", "revise", "revise", "restart", "rollback", "pause", "resume"),
    *("job", "look", "look", "apps", "apps"),
)
_ROLLOUT = ", ".join(RolloutRow._fields)
_CHANGING = frozenset(("_scale", "revise", "begin"))
_OPEN_HOLDS = """
    SELECT j.id, j.status, j.price_held, h.amount, h.resolved_at,
        (SELECT COALESCE(SUM(d.amount), 0) FROM job_draws AS d WHERE d.job_id = j.id), r.state
    FROM jobs AS j LEFT JOIN holds AS h ON h.id = 'job:' || j.id
    LEFT JOIN deploy_rollouts AS r ON r.deploy_id = j.deploy_id WHERE j.deploy_id IS NOT NULL
"""
_BOUGHT = """
    SELECT d.id, r.number, SUM(w.seconds), d.duration_hrs
    FROM deploys AS d JOIN deploy_rollouts AS o ON o.deploy_id = d.id
    JOIN deploy_replicas AS r ON r.deploy_id = d.id JOIN job_draws AS w ON w.job_id = r.job_id
    WHERE json_extract(o.strategy, '$.max_surge') = 0 GROUP BY d.id, r.number, d.duration_hrs
"""
_SURPLUS = """
    SELECT d.job_name, o.revision - 1, json_extract(o.strategy, '$.max_surge'), o.replica_price
    FROM deploys AS d JOIN deploy_rollouts AS o ON o.deploy_id = d.id
    WHERE d.currency = :currency
"""
_ATTEMPTS = """
    SELECT d.job_id, d.attempt, d.seconds, r.seconds, a.work_started_at, a.ready_at, a.ended_at,
        r.ready_within
    FROM job_draws AS d JOIN deploy_replicas AS r ON r.job_id = d.job_id
    JOIN job_attempts AS a ON a.job_id = d.job_id AND a.attempt = d.attempt
"""


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """A deploy.

    Attributes:
        buyer: its number among `DEPLOYERS`.
        at: when it is ordered.
        replicas: how many; without a template they are plain jobs.
        has_template: whether its replicas are replaced.
        in_credits: whether it is paid in credits.
        by_key: whether an API key with a limit pays.
        strategy: how replicas are replaced.
        steps: the changes by the buyer: time, kind, and a number.
    """

    buyer: int
    at: float
    replicas: int
    has_template: bool
    in_credits: bool
    by_key: bool
    strategy: Strategy
    steps: tuple[tuple[float, str, int], ...]


def deploys_of(draw: Random, seconds: float) -> tuple[DeployPlan, ...]:
    """Return the deploys of a run."""
    plans = []
    for _ in range(1 + int(draw.random() * 3)):
        at = 0.3 + 0.5 * seconds * draw.random()
        surge = int(draw.random() * 2)
        steps = [
            (
                round(at + 1 + seconds * draw.random(), 3),
                STEPS[int(draw.random() * len(STEPS))],
                int(draw.random() * 5),
            )
            for _ in range(int(draw.random() * 7))
        ]
        if draw.random() < 0.25:
            steps.append((round(at + seconds * draw.random(), 3), "cancel", 0))
        plans.append(
            DeployPlan(
                buyer=int(draw.random() * len(DEPLOYERS)),
                at=round(at, 3),
                replicas=1 + int(draw.random() * 3),
                has_template=draw.random() < 0.85,
                in_credits=draw.random() < 0.5,
                by_key=draw.random() < 0.4,
                strategy=Strategy(
                    max_surge=surge,
                    max_unavailable=1 if not surge else int(draw.random() * 2),
                    min_ready_s=int(3 * draw.random()),
                    progress_s=(5, 15, 600)[int(draw.random() * 3)],
                    auto_revert=draw.random() < 0.5,
                ),
                steps=tuple(sorted(steps)),
            )
        )
    return tuple(plans)


def _template(number: int) -> Template:
    """Return the work of replicas; some of it fails."""
    what = (WORKS, WORKS, FAILS, NEVER_READY, WORKS)[number % 5]
    return Template(
        script=f"# {what}\nprint({number})",
        ports=(Port("api", 8_000, "http"),),
        ready=Ready(8_000),
        secrets={"PASSWORD": f"secret {number}"} if number % 2 else {},
    )


class DeployBuyer(Actor):
    """Orders a deploy, and changes it.

    Args:
        network: leads to the daemons.
        plan: its actions.
        number: of the deploy.
        until: when it stops.
    """

    def __init__(self, network: "Network", plan: DeployPlan, number: int, until: float) -> None:
        super().__init__(network, f"deploy{number}", number, until)
        self.plan = plan
        self.user_id = DEPLOYERS[0] if plan.by_key else DEPLOYERS[plan.buyer]
        self.deploy_id = ""
        self._spender = Spender(DEPLOY_KEY, self.user_id) if plan.by_key else None

    async def run(self) -> None:
        """Do all of it."""
        plan, world = self.plan, self.network.world
        await asyncio.sleep(plan.at)
        made = await self.insist("order", self._order)
        if not isinstance(made, DeployRow):
            world.say(f"{self.name} not ordered: {made!r}")
            return
        self.deploy_id = made.id
        world.say(f"{self.name} ordered {self.deploy_id[-6:]}")
        for at, what, number in plan.steps:
            await asyncio.sleep(max(0.0, at - world.now))
            done = await getattr(self, f"_{what}")(number)
            world.say(f"{self.name} {what} {number}: {done!r}"[:120])

    async def _order(self, market: Any) -> DeployRow:
        plan = self.plan
        new = NewDeploy(
            job_name=self.name,
            job_type="Script",
            gpu_model="none",
            gpu_count=1,
            duration_hrs=1,
            replicas=plan.replicas,
            currency=Currency.CREDIT if plan.in_credits else Currency.USD,
            template=_template(0) if plan.has_template else None,
            strategy=plan.strategy,
        )
        receipt = receipt_of(market, self.user_id, self.name)
        try:
            row: DeployRow = await market.deploys.create(self.user_id, new, receipt, self._spender)
        except Replayed as replayed:
            return msgspec.json.decode(replayed.answer, type=DeployRow)
        return row

    async def _ask(self, what: str, make: Any) -> Any:
        return await self.insist(what, lambda market: make(market.rollouts))

    async def _scale(self, number: int) -> Any:
        return await self._ask(
            "scale",
            lambda each: each.scale(self.user_id, self.deploy_id, number, self._spender),
        )

    async def _revise(self, number: int) -> Any:
        template = _template(number)
        change = Change(script=template.script, secrets=template.secrets)
        replicas = None if number < 3 else number
        return await self._ask(
            "revise",
            lambda each: each.revise(
                self.user_id, self.deploy_id, change, replicas=replicas, spender=self._spender
            ),
        )

    async def _restart(self, _: int) -> Any:
        return await self._ask(
            "restart",
            lambda each: each.restart(self.user_id, self.deploy_id, spender=self._spender),
        )

    async def _rollback(self, number: int) -> Any:
        return await self._ask(
            "rollback",
            lambda each: each.rollback(
                self.user_id, self.deploy_id, number or None, spender=self._spender
            ),
        )

    async def _pause(self, _: int) -> Any:
        return await self._ask(
            "pause", lambda each: each.pause(self.user_id, self.deploy_id, is_paused=True)
        )

    async def _resume(self, _: int) -> Any:
        return await self._ask(
            "resume", lambda each: each.pause(self.user_id, self.deploy_id, is_paused=False)
        )

    async def _job(self, number: int) -> Any:
        """Cancel a replica as a job."""

        async def cancel(market: Any) -> None:
            deploy = await market.deploys.find(self.user_id, self.deploy_id)
            for job_id in deploy.job_ids[number % 2 :][:1]:
                await market.jobs.cancelling_costs(self.user_id, job_id)
                await market.jobs.cancel(self.user_id, job_id)

        return await self.insist("cancel a job", cancel)

    async def _look(self, _: int) -> Any:
        async def look(market: Any) -> str:
            deploy = await market.deploys.find(self.user_id, self.deploy_id)
            await market.deploys.page(self.user_id, before="", limit=5)
            if deploy.rollout is not None:
                await market.rollouts.revisions(self.user_id, self.deploy_id)
            for job_id in deploy.job_ids[:1]:
                await market.jobs.find(self.user_id, job_id)
                await market.attempt_reports.of_job(self.user_id, job_id)
            numbers = (
                deploy.desired,
                deploy.ready_replicas,
                deploy.available_replicas,
                deploy.updated_replicas,
                deploy.paid,
            )
            return f"{deploy.status} {numbers}"

        return await self.insist("look", look)

    async def _apps(self, number: int) -> Any:
        async def open_apps(market: Any) -> int:
            opened = await market.apps.of_deploy(self.user_id, self.deploy_id)
            if number % 2:
                await market.apps.new_deploy_key(self.user_id, self.deploy_id)
            found = [await market.apps.find(each.id) for each in opened]
            hashes = await market.apps.key_hashes([each.id for each in opened])
            for each in found:
                if each is not None and hashes.get(each.id) is None:
                    raise AssertionError("an app has no key")
            return len(opened)

        return await self.insist("apps", open_apps)

    async def _cancel(self, _: int = 0) -> Any:
        return await self.insist(
            "cancel", lambda market: market.deploys.cancel(self.user_id, self.deploy_id)
        )


class ReplicaAgent(DeviceAgent):
    """A device that also serves replicas."""

    async def _work(self, job: Any) -> None:
        if '"ready"' not in job.row.payload:
            await super()._work(job)
            return
        await self._serve(job.row.job_id, job.row.attempt, job.row.payload)

    async def _serve(self, job_id: str, attempt: int, payload: str) -> None:
        a, b, c, d = self.network.world.numbers(self.name, job_id, attempt)

        async def begin(market: Any) -> None:
            await market.attempt_reports.started(await self._device(market), job_id, attempt)

        async def ready(market: Any) -> None:
            await market.attempt_reports.ready(await self._device(market), job_id, attempt)

        async def end(market: Any) -> bool:
            device = await self._device(market)
            if c < 0.3 and not is_failing:
                await market.jobs.complete(device, job_id, "", attempt=attempt)
            else:
                kind = (FailureKind.JOB, FailureKind.HOST, FailureKind.OOM)[int(3 * d)]
                ending = Ending(FailureKind.JOB if is_failing else kind, 1)
                await market.jobs.fail(device, job_id, "it ends", attempt=attempt, ending=ending)
            return True

        is_failing = f"# {FAILS}" in payload
        began = await self.insist("start", begin)
        if isinstance(began, MarketError) and not self.plan.lies:
            self.held.pop((job_id, attempt), None)
            return
        await asyncio.sleep(2 * a)
        if not is_failing:
            if f"# {NEVER_READY}" not in payload:
                await self.insist("ready", ready)
            # Most serve until they are stopped.
            await asyncio.sleep(30 * b if c < 0.5 else 10_000)
        ended = await self.insist("end", end)
        self.network.world.say(f"{self.name} ended {job_id[-6:]} attempt {attempt}: {ended!r}")
        self.held.pop((job_id, attempt), None)


def _is_behind(rollout: RolloutRow, judged: Judgement) -> bool:
    """Return whether a rollout has steps to take, or is not in the state that it should be in."""
    return not judged.is_settled or rollout.state != judged.after.state


class DeployBooks:
    """Rules about deploys, after each commit and at the end."""

    def __init__(self, network: "Network") -> None:
        self.network = network
        self._desired: dict[str, int] = {}
        # The price of all that the key for deploys has bought, by currency.
        self.by_key: dict[str, int] = {}
        self.keyed: set[str] = set()

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql, **values)

    def committed(self, commit: Commit) -> None:
        """Count the spending of a key; compare holds with open replicas."""
        if commit.name in ("_create", *_CHANGING):
            self._count_spending()
        for job_id, status, price, amount, resolved_at, _, state in self._rows(_OPEN_HOLDS):
            is_open = status in ("waiting", "running")
            if is_open and state == "over":
                self.network.world.fail(f"replica {job_id[-6:]} is {status} after its deploy")
            if price and (amount != price or (resolved_at is None) != is_open):
                self.network.world.fail(
                    f"replica {job_id[-6:]} is {status}, of {price}, and its hold of {amount} is"
                    f" {'open' if resolved_at is None else 'resolved'}"
                )

    def _count_spending(self) -> None:
        for deploy_id, name, currency, price, replicas, desired, each in self._rows(
            "SELECT d.id, d.job_name, d.currency, d.price, d.replicas, r.desired, r.replica_price"
            " FROM deploys AS d LEFT JOIN deploy_rollouts AS r ON r.deploy_id = d.id"
        ):
            if name not in self.keyed:
                continue
            before = self._desired.get(deploy_id, 0)
            of_one = price // replicas if each is None else each
            wanted = replicas if desired is None else desired
            more = max(wanted - before, 0) * of_one
            self._desired[deploy_id] = wanted
            self.by_key[currency] = self.by_key.get(currency, 0) + more

    def check_settled(self, *, has_clocks: bool) -> None:
        """Nothing is left to do for a deploy, once all was calm for a while."""
        if has_clocks:
            return
        now = EPOCH + int(self.network.world.now)
        for values in self._rows(f"SELECT {_ROLLOUT} FROM deploy_rollouts"):
            rollout = RolloutRow(*values)
            standing = self.network.books.database.read(
                partial(standing_of, deploy_id=rollout.deploy_id)
            )
            rows, judged = standing.rows, judge(rollout, standing, now)
            # A rollout is stuck after a time without progress, and is looked at within seconds. A
            # replica may have become ready since, so only work that is due at both times is late.
            due = judge(rollout, standing, now - SETTLED_SECONDS)
            is_waiting = _is_behind(rollout, due) and _is_behind(rollout, judged)
            is_late = is_waiting and rollout.progressed_at < now - SETTLED_SECONDS
            if is_late and rollout.problem is None:
                self.network.world.fail(
                    f"the rollout of {rollout.deploy_id[-6:]} stands still, {rollout.state}:"
                    f" {due.steps}"
                )
            if rollout.state == "available" and judged.after.state == "available":
                current = [row for row in rows if row.revision == rollout.revision]
                done = [row for row in rows if row.status == "completed"]
                ready = [row for row in current if row.ready_at is not None]
                if len(rows) != len(current) or len({*ready, *done}) < rollout.desired:
                    self.network.world.fail(
                        f"the deploy {rollout.deploy_id[-6:]} counts as available with"
                        f" {len(ready)} of {rollout.desired} replicas"
                    )

    def check(self, *, has_clocks: bool) -> None:
        """Each replica's seconds are billed once, and no more than it was there."""
        fail = self.network.world.fail
        total: dict[str, int] = {}
        for job_id, attempt, paid, most, began, ready, ended, within in self._rows(_ATTEMPTS):
            total[job_id] = total.get(job_id, 0) + paid
            since = ready if within is not None and ready is not None else began
            if since is None or ended is None:
                fail(f"replica {job_id[-6:]} attempt {attempt} is paid before it has worked")
            elif paid > max(ended - since, 0) and not has_clocks:
                fail(f"replica {job_id[-6:]} attempt {attempt} is paid {paid} of {ended - since} s")
            if total[job_id] > most:
                fail(f"replica {job_id[-6:]} is paid {total[job_id]} s of {most}")
        for _, status, _, _, resolved_at, drawn, _ in self._rows(_OPEN_HOLDS):
            if status in ("waiting", "running") or resolved_at is None:
                fail(f"a replica is {status} after its end, with {drawn} drawn")
        for job_id, drawn, captured in self._rows(
            "SELECT j.id, (SELECT SUM(d.amount) FROM job_draws AS d WHERE d.job_id = j.id),"
            " h.captured FROM jobs AS j JOIN holds AS h ON h.id = 'job:' || j.id"
            " JOIN deploy_replicas AS r ON r.job_id = j.id"
        ):
            if captured != (drawn or 0):
                fail(f"replica {job_id[-6:]} has cost {captured}, and {drawn} was drawn")
        self._check_hours()
        self._check_key()

    def _check_hours(self) -> None:
        """Without surplus replicas none is paid for more than the hours that were bought for it."""
        for deploy_id, number, paid, hours in self._rows(_BOUGHT):
            if paid > hours * 3_600:
                self.network.world.fail(
                    f"replica {number} of {deploy_id[-6:]} is paid {paid} s of {hours} hours"
                )

    def _surplus(self, currency: str) -> int:
        """Return the most that the revisions of the key's deploys count for surplus replicas."""
        return sum(
            revisions * surge * price
            for name, revisions, surge, price in self._rows(_SURPLUS, currency=currency)
            if name in self.keyed
        )

    def _check_key(self) -> None:
        spent = dict(
            self._rows(
                "SELECT currency, spent FROM key_spends WHERE purse_id = :id"
                " AND period = 'lifetime'",
                id=DEPLOY_KEY,
            )
        )
        for currency, amount in spent.items():
            bought, surplus = self.by_key.get(currency, 0), self._surplus(currency)
            if not bought <= amount <= bought + surplus:
                self.network.world.fail(
                    f"the key of deploys has spent {amount} {currency}, and bought for {bought}"
                    f" and at most {surplus} of surplus"
                )
            if amount > DEPLOY_KEY_LIMIT:
                self.network.world.fail(f"the key of deploys has spent {amount}, above its limit")
