"""A payment provider in memory, whose payers, bank and failures the test decides."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import json
from msgspec.structs import replace

from market.payments.provider import (
    Failure,
    HookError,
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


class BankCards:
    """The `Cards` of a bank. `failure` is the outcome of each further charge."""

    def __init__(self, bank: "Bank") -> None:
        self._bank = bank
        self.setups: dict[str, SeenSetup] = {}
        self.attached: set[str] = set()
        self._charges: dict[str, NewCharge] = {}
        self.conflicts = 0  # repetitions with another text
        self.customers: dict[str, set[str]] = {}
        self._customer_of: dict[str, str] = {}  # by the page
        self.failure: Failure = ""

    async def prepare(self, setup: NewSetup) -> OpenedSetup:
        self._bank.call("prepare")
        ref = f"page-{setup.id}"
        self.setups.setdefault(ref, SeenSetup("open", setup.id, True))
        self._bank.fail("prepared")
        customer = setup.customer_id or f"customer-{setup.id}"
        self.customers.setdefault(customer, set())
        self._customer_of[setup.id] = customer
        return OpenedSetup(ref, customer, f"https://bank.example/{ref}")

    async def look(self, ref: str) -> SeenSetup:
        self._bank.call("look at page")
        return self.setups[ref]

    async def charge(self, charge: NewCharge) -> str:
        self._bank.call("charge")
        provider_id = f"bank-{charge.id}"
        if self._charges.setdefault(charge.id, charge) != charge:
            self.conflicts += 1
            raise ProviderError("the key is of another request", is_final=True)
        if provider_id not in self._bank.payments:
            is_attached = charge.card_id in self.attached
            if not is_attached:
                raise ProviderError("no such card", is_final=True)
            self._bank.payments[provider_id] = Seen(
                "failed" if self.failure else "paid",
                charge.amount,
                "usd",
                charge.id,
                True,
                f"charge-{charge.id}",
                failure=self.failure,
            )
        assert self._bank.payments[provider_id].amount == charge.amount
        self._bank.fail("charged")
        return provider_id

    async def find_charge(self, charge: NewCharge) -> str | None:
        self._bank.call("find charge")
        provider_id = f"bank-{charge.id}"
        return provider_id if provider_id in self._bank.payments else None

    async def forget(self, card_id: str) -> None:
        self._bank.call("forget")
        self.attached.discard(card_id)
        self._bank.fail("forgotten")

    async def expire(self, ref: str) -> None:
        self._bank.call("expire")
        if self.setups[ref].state == "open":
            self.setups[ref] = replace(self.setups[ref], state="over")

    async def forget_customer(self, customer_id: str) -> None:
        self._bank.call("forget customer")
        self.attached -= self.customers.pop(customer_id, set())
        self._bank.fail("customer forgotten")

    def fill_in(self, setup_id: str, card_id: str) -> None:
        """Save a card on a page, as a user does."""
        customer = self._customer_of[setup_id]
        self.attached.add(card_id)
        self.customers[customer].add(card_id)
        self.setups[f"page-{setup_id}"] = SeenSetup(
            "saved", setup_id, True, customer, card_id, f"visa …{card_id[-4:]}"
        )


class Bank:
    """A `Provider`. `fail` is called before and after the effect of each call, and may raise."""

    def __init__(self) -> None:
        self.payments: dict[str, Seen] = {}
        self.refused = False  # refunds
        self.refund_state: Any = "done"
        self.calls = 0
        self.cards = BankCards(self)
        self.fail: Callable[[str], None] = lambda moment: None

    async def create(self, payment: NewPayment) -> Opened:
        self.call("create")
        provider_id = f"bank-{payment.id}"
        known = self.payments.setdefault(
            provider_id, Seen("open", payment.amount, "usd", payment.id, True)
        )
        assert known.amount == payment.amount
        self.fail("created")
        return Opened(provider_id, f"https://bank.example/{provider_id}")

    async def look(self, provider_id: str) -> Seen:
        self.call("look")
        seen = self.payments[provider_id]
        self.fail("looked")
        return seen

    async def refund(self, provider_id: str, charge_id: str, amount: int, key: str) -> SeenReturn:
        self.call("refund")
        seen = self.payments[provider_id]
        for each in seen.returns:
            if each.own_id == key:
                return each
        gone = sum(each.amount for each in seen.returns if each.state != "void")
        if self.refused or gone + amount > seen.amount:
            raise ProviderError("refused", is_final=True)
        made = self._add(provider_id, "refund", self.refund_state, amount, key)
        self.fail("refunded")
        return made

    def read_hook(self, headers: Mapping[str, str], body: bytes, now: int) -> Notice:
        if headers.get("signature") != "right":
            raise HookError("wrong")
        return json.decode(body, type=Notice)

    async def close(self) -> None:
        """Close nothing."""

    # Acts of payers, banks and operators.

    def set(self, payment_id: str, /, **changes: Any) -> None:
        """Change the facts about a payment."""
        provider_id = f"bank-{payment_id}"
        self.payments[provider_id] = replace(self.payments[provider_id], **changes)

    def pay(self, payment_id: str) -> None:
        """Pay a payment that is open."""
        if self.payments[f"bank-{payment_id}"].state == "open":
            self.set(payment_id, state="paid", charge_id=f"charge-{payment_id}")

    def dispute(self, payment_id: str, amount: int) -> str:
        """Dispute a payment; return the dispute."""
        return self._add(f"bank-{payment_id}", "dispute", "pending", amount, "").ref

    def refund_outside(self, payment_id: str, amount: int) -> str:
        """Refund a payment without the service."""
        return self._add(f"bank-{payment_id}", "refund", "done", amount, "").ref

    def decide(self, payment_id: str, ref: str, state: Any) -> None:
        """Change the state of a refund or a dispute."""
        seen = self.payments[f"bank-{payment_id}"]
        returns = tuple(
            replace(each, state=state) if each.ref == ref else each for each in seen.returns
        )
        self.set(payment_id, returns=returns)

    def of(self, payment_id: str) -> Seen:
        """Return the facts about a payment."""
        return self.payments[f"bank-{payment_id}"]

    def notice(self, payment_id: str) -> bytes:
        """Return a notice about a payment."""
        return json.encode(Notice(payment_id=payment_id, provider_id=f"bank-{payment_id}"))

    def call(self, name: str) -> None:
        """Count a call, which may fail before its effect."""
        self.calls += 1
        self.fail(name)

    def _add(self, provider_id: str, kind: Any, state: Any, amount: int, own: str) -> SeenReturn:
        seen = self.payments[provider_id]
        made = SeenReturn(f"{kind}-{own or len(seen.returns)}", kind, state, amount, own)
        self.payments[provider_id] = replace(seen, returns=(*seen.returns, made))
        return made
