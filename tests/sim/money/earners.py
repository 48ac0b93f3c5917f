"""Earners request payouts; the staff approves, sends and books them."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from market.base.errors import MarketError
from market.events.idempotency import Replayed
from market.jobs.postings import NewJob
from market.jobs.specs import Spec
from market.money.money import MICRO, Currency
from market.payouts.details import Details
from market.payouts.files import Format, Line, Outcome
from market.payouts.payouts import Request
from market.payouts.providers import Progress
from market.payouts.terms import FailReason, MethodKind, RejectReason
from market.staff.base.roles import Machine
from market.staff.money import paying
from proxyctl.protocol.jobspec import payload_of, resources_of
from storage.payouts import payouts as queries
from tests.sim.clients import receipt_of
from tests.sim.jobs import Actor
from tests.sim.money.plans import EarnerPlan, earner_name
from tests.sim.money.senders import Outside

if TYPE_CHECKING:
    from tests.sim.clients import Network

ROOT = Machine("root")
LIMITS = dict.fromkeys(Currency, 10**12)
PLACES = (
    (MethodKind.BANK, Details(holder="Ada Lovelace", iban="DE89 3704 0044 0532 0130 00")),
    (MethodKind.PAYPAL, Details(email="ada@example.com")),
)
REST_SECONDS = 1.5
# A batch that was sent late arrives within this time; then the service's word is final.
DOUBT_SECONDS = 20.0
# The end of a run draws up to this for each transfer. A draw below a tenth brings the money back.
LATE_SHARE = 0.3
_FILES = "SELECT id FROM payout_batches WHERE format = 'csv' ORDER BY id"
_SENT = """
    SELECT p.id FROM payouts AS p JOIN payout_batches AS b ON b.id = p.batch_id
    WHERE b.format = 'csv' AND p.state IN ('sent', 'paid') ORDER BY p.id
"""
_DOUBTFUL = """
    SELECT p.id, b.id FROM payouts AS p JOIN payout_batches AS b ON b.id = p.batch_id
    WHERE p.state = 'sent' AND b.doubtful_at IS NOT NULL ORDER BY p.id
"""
_JOB = Spec(payload_of({"script": "print(6 * 7)"}), resources_of({}), timeout_seconds=600)


class Earner(Actor):
    """A user with earned money: requests payouts, cancels some, and spends.

    Args:
        network: leads to the daemons.
        plan: the actions.
        number: of the earner.
        until: when it stops.
        outside: has the accounts at the payment service.
    """

    def __init__(
        self, network: "Network", plan: EarnerPlan, number: int, until: float, outside: Outside
    ) -> None:
        super().__init__(network, earner_name(number), number, until)
        self.plan = plan
        self._outside = outside
        self._draw = network.world.draw(self.name)
        self._count = 0
        self._methods: list[str] = []
        self._payouts: list[str] = []
        self._jobs: list[str] = []

    async def run(self) -> None:
        """Do all of it."""
        world = self.network.world
        for kind, details in PLACES:
            added = await self.insist(
                "method",
                lambda market, a=kind, b=details: market.payouts.add_method(self.name, a, b),
            )
            if hasattr(added, "id"):
                self._methods.append(added.id)
        if self.plan.connects:
            await self.do_connect()
        for at, what in self.plan.steps:
            await asyncio.sleep(max(0.0, at - world.now))
            done = await getattr(self, f"do_{what}")()
            shown = done.code if isinstance(done, MarketError) else "done"
            world.say(f"{self.name} {what}: {shown}")

    async def do_connect(self) -> Any:
        """Open an account at the payment service, and fill it in, sometimes later."""
        done = await self.insist("connect", lambda market: market.payouts.connect(self.name))
        if hasattr(done, "url"):
            if done.method.id not in self._methods:
                self._methods.append(done.method.id)
            if self._draw.random() < 0.7:
                self._outside.filled.add(self._outside.accounts[self.name])
        return done

    async def do_request(self) -> Any:
        """Request a payout, once."""
        if not self._methods:
            return None
        self._count += 1
        key, currency = f"{self.name} payout {self._count}", (Currency.CREDIT, Currency.USD)
        whole = 10 + int(600 * self._draw.random() ** 2)
        chosen = currency[int(2 * self._draw.random())]
        amount = whole * MICRO if chosen is Currency.CREDIT else whole * MICRO // 100
        method = self._methods[int(self._draw.random() * len(self._methods))]
        new = Request(chosen, amount, method)

        async def request(market: Any) -> Any:
            receipt = receipt_of(market, self.name, key)
            try:
                return (await market.payouts.request(self.name, new, receipt=receipt)).id
            except Replayed as replayed:
                return msgspec.json.decode(replayed.answer)[0]

        made = await self.insist("request", request)
        if isinstance(made, str):
            self._payouts.append(made)
        return made

    async def do_cancel(self) -> Any:
        """Cancel a payout; often one that was decided meanwhile."""
        if not self._payouts:
            return None
        payout_id = self._payouts[-1 - int(self._draw.random() ** 2 * len(self._payouts))]
        return await self.insist(
            "cancel", lambda market: market.payouts.cancel(self.name, payout_id)
        )

    async def do_look(self) -> Any:
        """Look at the earnings, and finish the account at the payment service."""
        if self.plan.connects:
            await self.do_connect()

        async def look(market: Any) -> Any:
            await market.payouts.page(self.name, before="", limit=20)
            return await market.payouts.standing(self.name)

        return await self.insist("standing", look)

    async def do_spend(self) -> Any:
        """Post a job that no device takes."""
        self._count += 1
        title = f"{self.name} job {self._count}"
        price = int(1_500 * self._draw.random()) * MICRO
        new = NewJob(title, "script", price, 1, "", "", _JOB)

        async def post(market: Any) -> Any:
            receipt = receipt_of(market, self.name, title)
            try:
                return await market.jobs.create(self.name, new, receipt)
            except Replayed:
                return None

        made = await self.insist("post", post)
        if isinstance(made, str):
            self._jobs.append(made)
        return made

    async def do_unspend(self) -> Any:
        """Cancel a job."""
        if not self._jobs:
            return None
        job_id = self._jobs.pop()
        return await self.insist("unpost", lambda market: market.jobs.cancel(self.name, job_id))


class Teller(Actor):
    """A member of the staff that pays out, beside another one that does the same.

    Args:
        network: leads to the daemons.
        number: of the teller.
        until: when it stops.
        outside: takes the files, and has the outcomes.
    """

    def __init__(self, network: "Network", number: int, until: float, outside: Outside) -> None:
        super().__init__(network, f"teller{number}", number, until)
        self._outside = outside
        self._draw = network.world.draw(self.name)
        self._doubtful_at: dict[str, float] = {}

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql)

    async def run(self) -> None:
        """Work until the time is over."""
        while self.network.world.now < self.until:
            await asyncio.sleep(REST_SECONDS * self._draw.random())
            self._number += 1
            acts = (self._decide, self._decide, self._export, self._give, self._end, self._book)
            await acts[int(self._draw.random() * len(acts))](self.insist)
            await self._decide_doubts(self.insist, DOUBT_SECONDS)

    async def finish(self, request: "Send") -> None:
        """Send and book everything, once nothing fails."""

        async def send(what: str, make: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
            """Return the answer to a request; None for a refusal."""
            answers: list[Any] = []

            async def made(market: Any) -> None:
                answers.append(await make(market))

            await request(what, made)
            return answers[-1] if answers else None

        for payout_id in self._in_state("requested"):
            await send("last approval", partial(self._approve, payout_id))
        await self._export(send)
        await self._give(send)
        for payout_id in self._outside.sent:
            if payout_id not in self._outside.progress:
                self._outside.end(payout_id, 1.0)
            elif payout_id in self._outside.transfers.values():
                self._outside.end(payout_id, LATE_SHARE * self._draw.random())
        await self._notify(send)
        await self._book(send)
        await self._decide_doubts(send, 0.0)

    def _in_state(self, state: str) -> list[str]:
        sql = f"SELECT id FROM payouts WHERE state = '{state}' ORDER BY id"
        return [payout_id for (payout_id,) in self._rows(sql)]

    async def _decide(self, send: "Send") -> None:
        """Approve and reject payouts, also those that others decide about."""
        for payout_id in self._in_state("requested"):
            if self._draw.random() < 0.6:
                await send("approve", partial(self._approve, payout_id))
        for payout_id in (*self._in_state("requested"), *self._in_state("approved")):
            if self._draw.random() < 0.1:
                await send("reject", partial(self._reject, payout_id))

    async def _approve(self, payout_id: str, market: Any) -> Any:
        return (await paying.approve(market.context, ROOT, payout_id, LIMITS)).state

    async def _reject(self, payout_id: str, market: Any) -> Any:
        return await paying.reject(market.context, ROOT, payout_id, RejectReason.TERMS_BROKEN)

    async def _export(self, send: "Send") -> None:
        """Write approved payouts into a file; its answer may be lost."""

        async def export(market: Any) -> Any:
            sealing = market.payouts.sealing
            done = await paying.export(
                market.context, ROOT, sealing, Format.CSV, but=MethodKind.PAYPAL
            )
            return None if done.batch is None else (done.batch.id, done.content)

        done = await send("export", export)
        if isinstance(done, tuple) and done[0] not in self._outside.files:
            self._outside.pay_file(*done)

    async def _give(self, send: "Send") -> None:
        """Give the files to the bank that it does not have yet."""
        for (batch_id,) in self._rows(_FILES):
            if batch_id not in self._outside.files:
                content = await send("export again", partial(self._again, batch_id))
                if isinstance(content, str) and batch_id not in self._outside.files:
                    self._outside.pay_file(batch_id, content)

    async def _again(self, batch_id: str, market: Any) -> str:
        sealing = market.payouts.sealing
        done = await paying.export_again(market.context, ROOT, sealing, batch_id)
        return str(done.content)

    async def _end(self, _: "Send") -> None:
        """Let payouts arrive, or come back."""
        for payout_id in self._outside.sent:
            if self._draw.random() < 0.5:
                self._outside.end(payout_id, self._draw.random())
        await self._notify(self.insist)

    async def _notify(self, send: "Send") -> None:
        """Let the payment service notify a daemon of the transfers that have come back."""
        for each in self._outside.reversed_transfers():
            await send("notice", lambda market, name=each: market.payouts.look_at_transfer(name))

    async def _book(self, send: "Send") -> None:
        """Import the outcomes of the bank, also those that were imported before."""
        for (payout_id,) in self._rows(_SENT):
            progress = self._outside.progress.get(payout_id, Progress())
            if progress.is_paid or progress.failed is not None:
                await send("book", partial(self._book_one, payout_id, progress))

    async def _decide_doubts(self, send: "Send", seconds: float) -> None:
        """Decide about doubtful batches by the word of the service, after a while."""
        now = self.network.world.now
        for payout_id, batch_id in self._rows(_DOUBTFUL):
            if now - self._doubtful_at.setdefault(batch_id, now) < seconds:
                continue
            progress = self._outside.progress.get(payout_id, Progress())
            if payout_id not in self._outside.sent:
                progress = Progress(failed=FailReason.NOT_SENT)
            if progress.is_paid or progress.failed is not None:
                await send("doubt", partial(self._book_one, payout_id, progress))

    async def _book_one(self, payout_id: str, progress: Progress, market: Any) -> Any:
        row = await market.context.store.read(queries.find, payout_id)
        outcome = Outcome.PAID if progress.failed is None else Outcome.FAILED
        line = Line(2, payout_id, row.net, outcome, progress.failed)
        [booked] = await paying.book(market.context, ROOT, [line], LIMITS)
        return booked.result


# Sends a request; see `Actor.insist` and `acts.Request`.
Send = Callable[[str, Callable[[Any], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]
