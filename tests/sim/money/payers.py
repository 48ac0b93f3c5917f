"""Payers: they pay, leave and return, save cards, spend, ask for refunds, and dispute.

The bank sends notices about each change: once, several times, late, or never.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from market.accounts.scopes import Maker
from market.base.errors import Code, MarketError
from market.events.idempotency import Replayed
from market.money.money import GB, MICRO, Currency
from market.payments.provider import Notice
from market.payments.top_ups import NewTopUp
from market.staff.base.roles import Machine
from market.staff.money import doubts
from tests.sim.clients import RequestError, receipt_of
from tests.sim.jobs import Actor
from tests.sim.money.bank import HEADERS, NAME, SimBank
from tests.sim.money.plans import CEILING, CENT, PayerPlan, payer_name

if TYPE_CHECKING:
    from tests.sim.clients import Network

# A provider repeats a notice that was not taken for days; here it does so for a few seconds.
NOTICE_TRIES = 4
NOTICE_SECONDS = 1.0
FORGED = {"signature": "wrong"}
ROOT = Machine("root")
LIMITS = dict.fromkeys(Currency, 10**12)


class Notices:
    """The notices of a bank, on their way to the daemons.

    Args:
        network: leads to the daemons.
        bank: sends them.
        until: when it stops.
    """

    def __init__(self, network: "Network", bank: SimBank, until: float) -> None:
        self._network = network
        self._bank = bank
        self._until = until
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def payment(self, payment_id: str) -> None:
        """Send notices about a payment."""
        seen = self._bank.of(payment_id)
        charge_id = "" if seen is None else seen.charge_id
        by_charge = self._network.world.numbers("notice of", payment_id, self._count)[0] < 0.3
        if by_charge and charge_id:
            self._send(Notice(charge_id=charge_id))
        else:
            self._send(Notice(payment_id=payment_id, provider_id=f"bank-{payment_id}"))

    def page(self, ref: str) -> None:
        """Send notices about the page of a card."""
        self._send(Notice(provider_id=ref))

    async def end(self) -> None:
        """Wait until all have arrived."""
        for task in sorted(self._tasks, key=lambda each: each.get_name()):
            await task

    def _send(self, notice: Notice) -> None:
        self._count += 1
        a, b, _, _ = self._network.world.numbers("notices", self._count)
        copies = 0 if self._bank.has("silent") and a < 0.6 else 1 + int(3 * b * b)
        for copy in range(copies):
            name = f"notice {self._count:05}.{copy}"
            task = asyncio.get_running_loop().create_task(self._deliver(notice, name), name=name)
            self._tasks.add(task)

    async def _deliver(self, notice: Notice, name: str) -> None:
        a, b, c, _ = self._network.world.numbers(name)
        await asyncio.sleep(0.05 + 3 * a * a)
        actor = Actor(self._network, name, int(b * 8), self._until)
        headers = FORGED if c < 0.05 else HEADERS
        body = msgspec.json.encode(notice)
        for _ in range(NOTICE_TRIES):
            life = actor.daemon()
            if life is not None and self._network.world.now < self._until:
                try:
                    await self._network.request(
                        name, lambda market: market.payments.receive(NAME, headers, body), life
                    )
                except RequestError as error:
                    cause = error.__cause__
                    if isinstance(cause, MarketError) and cause.code is Code.HOOK_INVALID:
                        if headers is HEADERS:
                            self._network.world.fail(f"{name} is refused")
                        return
                else:
                    if headers is FORGED:
                        self._network.world.fail(f"{name} is taken, and its signature is wrong")
                    return
            await asyncio.sleep(NOTICE_SECONDS)


class Payer(Actor):
    """A user who pays.

    Args:
        network: leads to the daemons.
        plan: the actions.
        number: of the payer.
        until: when it stops.
        bank: takes the money.
        notices: of the bank.
    """

    def __init__(
        self,
        network: "Network",
        plan: PayerPlan,
        number: int,
        until: float,
        bank: SimBank,
        notices: Notices,
    ) -> None:
        super().__init__(network, payer_name(number), number, until)
        self.plan = plan
        self._bank = bank
        self._notices = notices
        self._draw = network.world.draw(self.name)
        self._count = 0
        # The payments that this user knows.
        self._pages: list[str] = []

    async def run(self) -> None:
        """Do all of it."""
        world = self.network.world
        for at, what in self.plan.steps:
            await asyncio.sleep(max(0.0, at - world.now))
            done = await getattr(self, f"do_{what}")()
            shown = done.code if isinstance(done, MarketError) else "done"
            world.say(f"{self.name} {what}: {shown}")

    def _chosen(self, *states: str) -> str | None:
        """Return a payment of this user that the bank has in one of some states; None without one.

        The begins of automatic payments are known from the list.
        """
        known = [
            each
            for each in self._pages
            if (seen := self._bank.of(each)) is not None and seen.state in states
        ]
        return known[int(self._draw.random() * len(known))] if known else None

    async def do_offer(self) -> Any:
        """Look at the offer, and at the list of payments, which has the pages."""

        async def look(market: Any) -> Any:
            await market.payments.offer(self.name)
            return await market.payments.page(self.name, before="", limit=50)

        rows = await self.insist("list", look)
        if isinstance(rows, list):
            self._pages = [each.id for each in reversed(rows) if each.row.provider_id]
        return rows

    async def do_create(self) -> Any:
        """Begin a payment, once."""
        self._count += 1
        key, amount = f"{self.name} {self._count}", 500 + int(2_500 * self._draw.random())

        async def create(market: Any) -> Any:
            receipt = receipt_of(market, self.name, key)
            try:
                return (await market.payments.create(self.name, amount * CENT, "", receipt)).id
            except Replayed as replayed:
                return msgspec.json.decode(replayed.answer)["row"][0]

        made = await self.insist("create", create)
        if isinstance(made, str):
            self._pages.append(made)
        return made

    async def do_pay(self) -> Any:
        """Pay on a page of the bank; perhaps another amount than that of the payment."""
        payment_id = self._chosen("open")
        if payment_id is None:
            await self.do_offer()
            payment_id = self._chosen("open")
        if payment_id is None:
            return None
        if self._bank.has("wrong") and self._draw.random() < 0.2:
            amount = (
                self._bank.truth.of(payment_id).amount
                + (CENT, -CENT, 100 * CENT)[int(3 * self._draw.random())]
            )
            self._bank.truth.set(payment_id, amount=amount)
        self._bank.truth.pay(payment_id)
        return self._changed(payment_id)

    async def do_return(self) -> Any:
        """Come back from the page of the bank."""
        payment_id = self._chosen("open", "paid", "expired", "failed")
        if payment_id is None:
            return None
        return await self.insist("find", lambda market: market.payments.find(self.name, payment_id))

    async def do_refund(self) -> Any:
        """Ask for unspent money back."""
        await self.do_offer()
        payment_id = self._chosen("paid")
        if payment_id is None:
            return None
        self._count += 1
        key, part = f"{self.name} refund {self._count}", 1 + int(3 * self._draw.random())
        amount = self._bank.truth.of(payment_id).amount // part // CENT * CENT

        async def refund(market: Any) -> Any:
            receipt = receipt_of(market, self.name, key)
            try:
                return await market.payments.refund(self.name, payment_id, amount, receipt)
            except Replayed:
                return None

        done = await self.insist("refund", refund)
        self._changed(payment_id)
        return done

    async def do_spend(self) -> Any:
        """Buy traffic, and use none of it."""
        self._count += 1
        cents, key = 1 + int(2_000 * self._draw.random()), f"{self.name} buys {self._count}"

        async def buy(market: Any) -> Any:
            receipt = receipt_of(market, self.name, key)
            try:
                return await market.bandwidth.buy(
                    self.name, quota_bytes=cents * GB // 100, price_per_gb=MICRO, receipt=receipt
                )
            except Replayed:
                return None

        return await self.insist("buy", buy)

    # --- acts at the bank ------------------------------------------------------------------------

    async def do_dispute(self) -> Any:
        """Dispute a payment at the bank."""
        return self._take_back("dispute", self._bank.truth.dispute)

    async def do_outside(self) -> Any:
        """Have the operator refund a payment at the bank."""
        return self._take_back("outside", self._bank.truth.refund_outside)

    def _take_back(self, lie: str, take: Any) -> Any:
        payment_id = self._chosen("paid")
        if payment_id is None or not self._bank.has(lie):
            return None
        part = 1 + int(2 * self._draw.random())
        amount = self._bank.left(payment_id) // part // CENT * CENT
        # Of a refund on its way the bank would refuse the rest, and the service knows only later.
        is_waiting = self.network.books.database.rows(
            "SELECT 1 FROM payment_returns WHERE payment_id = :id AND status = 'pending'",
            id=payment_id,
        )
        if amount <= 0 or is_waiting:
            return None
        take(payment_id, amount)
        return self._changed(payment_id)

    async def do_decide(self) -> Any:
        """Let a bank decide about a dispute or a refund; a refund may fail after it was made."""
        payment_id = self._chosen("paid")
        returns = () if payment_id is None else self._bank.truth.of(payment_id).returns
        if payment_id is None or not returns:
            return None
        chosen = returns[int(self._draw.random() * len(returns))]
        state = "done" if self._draw.random() < 0.5 else "void"
        can_fail = self._bank.has("pending") and chosen.kind == "refund"
        if chosen.state == "pending" or (chosen.state == "done" and state == "void" and can_fail):
            self._bank.truth.decide(payment_id, chosen.ref, state)
            return self._changed(payment_id)
        return None

    def _changed(self, payment_id: str) -> str:
        self._bank.states(payment_id)
        self._notices.payment(payment_id)
        return payment_id

    # --- automatic top-ups -----------------------------------------------------------------------

    async def do_save(self) -> Any:
        """Save a card on a page of the bank."""
        url = await self.insist("save", lambda market: market.payments.cards.save(self.name))
        if not isinstance(url, str) or not url:
            return url
        ref = url.rpartition("/")[2]
        setup_id = ref.removeprefix("page-")
        cards = self._bank.truth.cards
        if cards.setups[ref].state != "open" or self._draw.random() < 0.2:
            return None
        card_id = f"card-{setup_id}"
        cards.fill_in(setup_id, card_id)
        self._bank.outcomes[card_id] = list(self.plan.card)
        self._notices.page(ref)
        return url

    async def do_top_up(self) -> Any:
        """Switch the automatic top-up on."""
        new = NewTopUp(self.plan.threshold, self.plan.amount, CEILING)
        return await self.insist(
            "top-up", lambda market: market.top_ups.set_on(self.name, new, Maker())
        )

    async def do_off(self) -> Any:
        """Switch the automatic top-up off."""
        return await self.insist("off", lambda market: market.top_ups.end(self.name))

    async def do_remove(self) -> Any:
        """Remove the card."""
        return await self.insist("remove", lambda market: market.payments.cards.remove(self.name))


class Desk(Actor):
    """The staff that decides about doubtful payments, by the bank's own words.

    Args:
        network: leads to the daemons.
        bank: has the truth.
        until: when it stops.
    """

    def __init__(self, network: "Network", bank: SimBank, until: float) -> None:
        super().__init__(network, "desk", 0, until)
        self._bank = bank
        self._draw = network.world.draw("desk")

    async def run(self) -> None:
        """Look at doubtful payments again and again."""
        while self.network.world.now < self.until:
            await asyncio.sleep(4 * self._draw.random())
            self._number += 1
            rows = self.network.books.database.rows(
                "SELECT id FROM payments WHERE status = 'doubtful' AND accepted IS NULL"
            )
            for (payment_id,) in rows:
                done = await self.insist("decide", partial(self.decide, payment_id))
                self.network.world.say(f"desk {payment_id[-6:]}: {done!r}")

    async def decide(self, payment_id: str, market: Any) -> Any:
        """Accept the amount at the bank, or give the payment up."""
        seen = self._bank.truth.of(payment_id)
        ((amount,),) = self.network.books.database.rows(
            "SELECT amount FROM payments WHERE id = :id", id=payment_id
        )
        if seen.amount != amount and self._draw.random() < 0.3:
            row = await doubts.give_up(market.context, ROOT, payment_id, "it is wrong")
            return row.status
        outcome = await doubts.credit(
            market.context, ROOT, payment_id, LIMITS, amount=seen.amount, why="the bank has it"
        )
        return outcome.state
