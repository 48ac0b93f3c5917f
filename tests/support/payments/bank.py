"""A payment provider in memory, whose payers, bank and failures the test decides."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import json
from msgspec.structs import replace

from market.payments.provider import (
    HookError,
    NewPayment,
    Notice,
    Opened,
    ProviderError,
    Seen,
    SeenReturn,
)


class Bank:
    """A `Provider`. `fail` is called before and after the effect of each call, and may raise."""

    def __init__(self) -> None:
        self.payments: dict[str, Seen] = {}
        self.refused = False  # refunds
        self.refund_state: Any = "done"
        self.calls = 0
        self.fail: Callable[[str], None] = lambda moment: None

    async def create(self, payment: NewPayment) -> Opened:
        self._call("create")
        provider_id = f"bank-{payment.id}"
        known = self.payments.setdefault(
            provider_id, Seen("open", payment.amount, "usd", payment.id, True)
        )
        assert known.amount == payment.amount
        self.fail("created")
        return Opened(provider_id, f"https://bank.example/{provider_id}")

    async def look(self, provider_id: str) -> Seen:
        self._call("look")
        seen = self.payments[provider_id]
        self.fail("looked")
        return seen

    async def refund(self, provider_id: str, charge_id: str, amount: int, key: str) -> SeenReturn:
        self._call("refund")
        seen = self.payments[provider_id]
        for each in seen.returns:
            if each.own_id == key:
                return each
        if self.refused:
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

    def _call(self, name: str) -> None:
        self.calls += 1
        self.fail(name)

    def _add(self, provider_id: str, kind: Any, state: Any, amount: int, own: str) -> SeenReturn:
        seen = self.payments[provider_id]
        made = SeenReturn(f"{kind}-{own or len(seen.returns)}", kind, state, amount, own)
        self.payments[provider_id] = replace(seen, returns=(*seen.returns, made))
        return made
