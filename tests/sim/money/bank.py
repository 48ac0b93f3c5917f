"""The bank of payers: it has the truth about payments, and lies to the clients of daemons.

A request and its answer take time. Both may be lost, and a request that arrives after its sender
has given up, or has died, takes effect nevertheless. `support.payments.bank` has the truth.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from support.payments.bank import Bank

from market.payments.provider import (
    NewCharge,
    NewPayment,
    NewSetup,
    Notice,
    Opened,
    OpenedSetup,
    ProviderError,
    Seen,
    SeenReturn,
    SeenSetup,
)
from tests.sim.money.plans import CENT

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop, World

NAME = "bank"
HEADERS = {"signature": "right"}
PATIENCE_SECONDS = 5.0
LATE_MOST_SECONDS = 9.0
# No payer is wrong by this amount.
LIE = 7 * CENT
# The share of requests that a kind of lie concerns.
OFTEN, SELDOM = 0.25, 0.1


class SimBank:
    """A bank, as it is.

    Args:
        world: the time, the draws and the failures of the run.
        lies: of its answers.
        now: returns the wall time in UTC seconds.

    Attributes:
        truth: the payments and cards.
        ends: by payment: the end of its page, in UTC seconds.
        refusals: the keys of refunds that it has refused.
        outcomes: by card: the outcomes of its next payments; "" for one that succeeds.
        asked: called with each request that arrives: its name, and its subject.
    """

    def __init__(self, world: "World", lies: frozenset[str], now: Callable[[], float]) -> None:
        self.world = world
        self.truth = Bank()
        self.ends: dict[str, int] = {}
        self.refusals: set[str] = set()
        self.outcomes: dict[str, list[Any]] = {}
        self.asked: Callable[[str, Any], None] = lambda *_: None
        self._lies = lies
        self._now = now
        self._seen: dict[str, list[Seen]] = {}

    def has(self, lie: str) -> bool:
        """Return whether the bank has a kind of lie now."""
        return lie in self._lies

    def heal(self) -> None:
        """Let the bank lie no more."""
        self._lies = frozenset()

    def look(self, provider_id: str) -> Seen:
        """Return the facts about a payment, and remember them.

        Raises:
            ProviderError: there is no such payment.
        """
        seen = self.truth.payments.get(provider_id)
        if seen is None:
            raise ProviderError("no such payment", is_final=True)
        if seen.state == "open" and self._now() > self.ends.get(provider_id, 0):
            self.truth.set(seen.payment_id, state="expired")
            seen = self.truth.payments[provider_id]
        states = self._seen.setdefault(provider_id, [])
        if not states or states[-1] != seen:
            states.append(seen)
        return seen

    def states(self, payment_id: str) -> list[Seen]:
        """Return all facts that there ever were about a payment, the newest last."""
        provider_id = f"bank-{payment_id}"
        if provider_id in self.truth.payments:
            self.look(provider_id)
        return self._seen.get(provider_id, [])

    def has_been(self, payment_id: str, ref: str | None, key: str, state: str) -> bool:
        """Return whether a refund or a dispute has ever been in a state.

        Args:
            payment_id: its payment.
            ref: its name at the bank, if known.
            key: the service's name of it.
            state: the state.
        """
        return any(
            each.state == state and (each.ref == ref or (each.own_id and each.own_id == key))
            for seen in self.states(payment_id)
            for each in seen.returns
        )

    def of(self, payment_id: str) -> Seen | None:
        """Return the facts about a payment; None for an unknown one."""
        states = self.states(payment_id)
        return states[-1] if states else None

    def left(self, payment_id: str) -> int:
        """Return the micro-USD of a payment that are neither given back nor asked back."""
        seen = self.truth.of(payment_id)
        return seen.amount - sum(each.amount for each in seen.returns if each.state != "void")


class BankClient:
    """The client of a daemon: a `Provider`.

    Args:
        bank: the bank.
        loop: of the daemon.
    """

    def __init__(self, bank: SimBank, loop: "SimLoop") -> None:
        self._bank = bank
        self._line = Line(bank.world, NAME, loop, bank.has)
        self.cards = CardClient(bank, self._line)

    async def create(self, payment: NewPayment) -> Opened:
        """See `Provider.create`."""

        async def create() -> Opened:
            self._bank.ends[f"bank-{payment.id}"] = payment.expires_at
            return await self._bank.truth.create(payment)

        opened: Opened = await self._line.ask("create", payment, create, self._arrive)
        return opened

    async def look(self, provider_id: str) -> Seen:
        """See `Provider.look`."""
        number = self._line.count

        async def look() -> Seen:
            return self._forged(provider_id, number)

        seen: Seen = await self._line.ask("look", provider_id, look, self._arrive)
        return seen

    async def refund(self, provider_id: str, charge_id: str, amount: int, key: str) -> SeenReturn:
        """See `Provider.refund`."""
        bank, (a, b, _, _) = self._bank, self._bank.world.numbers("refund", key)

        async def refund() -> SeenReturn:
            truth = bank.truth
            truth.refund_state = "pending" if bank.has("pending") and a < 0.5 else "done"
            left = bank.left(provider_id.removeprefix("bank-"))
            is_known = any(each.own_id == key for each in truth.payments[provider_id].returns)
            truth.refused = (bank.has("refused") and b < OFTEN) or amount > left
            truth.refused = truth.refused or key in bank.refusals
            if truth.refused and not is_known:
                bank.refusals.add(key)
            return await truth.refund(provider_id, charge_id, amount, key)

        made: SeenReturn = await self._line.ask(
            "refund", (provider_id, amount, key), refund, self._arrive
        )
        return made

    def read_hook(self, headers: Mapping[str, str], body: bytes, now: int) -> Notice:
        """See `Provider.read_hook`."""
        return self._bank.truth.read_hook(headers, body, now)

    async def close(self) -> None:
        """See `Provider.close`."""

    def _arrive(self, name: str, subject: Any) -> None:
        self._bank.asked(name, subject)

    def _forged(self, provider_id: str, number: int) -> Seen:
        """Return the facts about a payment, or a lie.

        Raises:
            ProviderError: the answer makes no sense.
        """
        bank, seen = self._bank, self._bank.look(provider_id)
        a, b, c, _ = bank.world.numbers("forged", self._line.name, number)
        if bank.has("unknown") and a < SELDOM:
            raise ProviderError("its state is 'limbo'", is_of_payment=True)
        if bank.has("stale") and b < OFTEN:
            states = bank.states(seen.payment_id)
            return states[int(c * len(states))]
        if bank.has("amount") and 0.4 < b < 0.4 + SELDOM:
            return replace(seen, amount=seen.amount + (LIE if c < 0.5 else -LIE))
        if bank.has("currency") and 0.6 < b < 0.6 + SELDOM:
            return replace(seen, currency="eur")
        return seen


class CardClient:
    """The saved cards, for a daemon: a `Cards`."""

    def __init__(self, bank: SimBank, line: "Line") -> None:
        self._bank = bank
        self._line = line

    async def prepare(self, setup: NewSetup) -> OpenedSetup:
        """See `Cards.prepare`."""
        cards = self._bank.truth.cards
        made: OpenedSetup = await self._line.ask("prepare", setup, lambda: cards.prepare(setup))
        return made

    async def look(self, ref: str) -> SeenSetup:
        """See `Cards.look`."""
        cards = self._bank.truth.cards
        seen: SeenSetup = await self._line.ask("look at page", ref, lambda: cards.look(ref))
        return seen

    async def charge(self, charge: NewCharge) -> str:
        """See `Cards.charge`."""
        bank = self._bank

        async def take() -> str:
            cards, outcomes = bank.truth.cards, bank.outcomes.get(charge.card_id, [])
            if f"bank-{charge.id}" not in bank.truth.payments and charge.card_id in cards.attached:
                cards.failure = outcomes.pop(0) if outcomes else ""
            provider_id = await cards.charge(charge)
            bank.look(provider_id)
            return provider_id

        taken: str = await self._line.ask("charge", charge, take, bank.asked)
        return taken

    async def find_charge(self, charge: NewCharge) -> str | None:
        """See `Cards.find_charge`."""
        cards = self._bank.truth.cards
        found: str | None = await self._line.ask(
            "find charge", charge, lambda: cards.find_charge(charge)
        )
        return found

    async def forget(self, card_id: str) -> None:
        """See `Cards.forget`."""
        cards = self._bank.truth.cards
        await self._line.ask("forget", card_id, lambda: cards.forget(card_id))


Effect = Callable[[], Coroutine[Any, Any, Any]]


class Line:
    """The way of the requests of a daemon to a service, and of the answers.

    Args:
        world: the time and the draws.
        name: of the service.
        loop: of the daemon.
        has: returns whether a kind of failure happens.

    Attributes:
        count: the number of requests.
    """

    def __init__(
        self, world: "World", name: str, loop: "SimLoop", has: Callable[[str], bool]
    ) -> None:
        self.name = f"{name} {loop.name}"
        self.count = 0
        self._world = world
        self._loop = loop
        self._has = has

    async def ask(
        self,
        what: str,
        subject: Any,
        effect: Effect,
        arrived: Callable[[str, Any], None] = lambda *_: None,
    ) -> Any:
        """Return the answer to a request.

        Args:
            what: names the request.
            subject: of the request.
            effect: of the request at the service; it does not wait.
            arrived: called when the request arrives.

        Raises:
            ProviderError: a refusal, or no answer.
        """
        self.count += 1
        call = _Call(self._world, self._has, f"{self.name} {what} {self.count}")
        future: asyncio.Future[Any] = self._loop.create_future()

        def answer(value: Any) -> None:
            if not self._loop.is_dead:
                self._loop.call_soon(_resolve, future, value)

        call.send(lambda: arrived(what, subject), effect, answer)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                value = await future
        except TimeoutError:
            raise ProviderError("no answer in time") from None
        if isinstance(value, ProviderError):
            raise value
        return value


class _Call:
    """A request on its way."""

    def __init__(self, world: "World", has: Callable[[str], bool], name: str) -> None:
        self._world = world
        self._name = name
        a, b, c, d = world.numbers(name)
        self._fails = has("error") and a < OFTEN
        self._loses = has("lost") and 0.3 < a < 0.3 + OFTEN
        self._repeats = has("twice") and 0.6 < a < 0.6 + OFTEN
        late = LATE_MOST_SECONDS * d if has("late") and b < OFTEN else 0.0
        self._there = 0.01 + 0.1 * c + (late if b < OFTEN / 2 else 0.0)
        self._back = 0.01 + 0.1 * d + (0.0 if b < OFTEN / 2 else late)
        self._has_no_effect = d < 0.5

    def send(self, arrived: Callable[[], None], effect: Effect, answer: Any) -> None:
        """Let the request arrive, take effect, and be answered."""
        world = self._world

        def arrive() -> None:
            world.say(f"{self._name}{' fails' if self._fails else ''}")
            if self._fails:
                error = ProviderError("status 500", has_no_effect=self._has_no_effect)
                world.after(self._back, answer, error)
                return
            arrived()
            value = _at_once(effect())
            if self._repeats:
                value = _at_once(effect())
            if self._loses and not isinstance(value, ProviderError):
                value = ProviderError("the connection broke")
            world.after(self._back, answer, value)

        world.after(self._there, arrive)


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not wait, or its `ProviderError`."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    except ProviderError as error:
        return error
    raise AssertionError("an effect waits")


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)
