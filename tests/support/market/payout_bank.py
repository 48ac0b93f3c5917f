"""A payment service for payouts in memory, whose failures and outcomes the test decides."""

from collections.abc import Callable, Mapping, Sequence

from market.payments.provider import ProviderError
from market.payouts.providers import BATCH_MAX, Order, Progress, Refusal
from market.payouts.terms import FailReason, MethodKind


class Bank:
    """A provider that sends each batch once, and fails on request.

    `after_send` is called after the effect of a batch, and may raise.
    """

    name = "paypal"
    kind = MethodKind.PAYPAL
    remembers_seconds = 29 * 86_400

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.names_refused = True
        self.batches: dict[str, Sequence[Order]] = {}
        self.progress: dict[str, Progress] = {}
        self.error: ProviderError | None = None
        self.forgets_answers = False
        self.after_send: Callable[[], None] = lambda: None
        self.batch_max = BATCH_MAX
        self.calls = 0
        self.looks = 0
        self.look_error: Exception | None = None
        self.closed = 0

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        self.calls += 1
        if self.error is not None:
            raise self.error
        wrong = self.refused & {order.payout_id for order in orders}
        if wrong:
            named = dict.fromkeys(wrong, FailReason.METHOD_INVALID)
            return Refusal("wrong form", named if self.names_refused else {})
        known = self.batches.setdefault(batch_id, tuple(orders))
        assert known == tuple(orders)
        self.after_send()
        if self.forgets_answers:
            raise ProviderError("no answer in time")
        return f"outside-{batch_id}"

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        self.looks += 1
        if self.look_error is not None:
            raise self.look_error
        return {
            order.payout_id: self.progress.get(order.payout_id, Progress())
            for order in self.batches[outside_id.removeprefix("outside-")]
        }

    async def close(self) -> None:
        self.closed += 1

    @property
    def sent(self) -> int:
        return sum(order.net for orders in self.batches.values() for order in orders)
