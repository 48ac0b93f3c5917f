"""The ways of payouts out of the service: a payment service, and a bank that a person uses.

The service remembers a batch for a while: sent again later, it is paid again. The bank pays every
line of each file that it gets. `support.market.payout_bank` has the truth about the service.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from support.market.payout_bank import Bank

from market.money.money import micro
from market.payments.provider import ProviderError
from market.payouts.providers import Order, Progress, Refusal
from market.payouts.terms import FailReason, MethodKind
from tests.sim.money.bank import SELDOM, Line

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop, World

REMEMBERS_SECONDS = 2 * 86_400
# Before the name of a batch: the name of its transfer.
TRANSFER = "outside-"


class Outside:
    """The money that has left the service, and its arrivals.

    Args:
        world: the draws.
        lies: of the payment service.
        now: returns the wall time in UTC seconds.

    Attributes:
        truth: the payment service.
        sent: by payout: the micro-USD of each time it was sent.
        progress: by payout: its outcome.
        files: the batches whose files a person has given to the bank.
        asked: called with the payouts that are sent now.
    """

    def __init__(self, world: "World", lies: frozenset[str], now: Callable[[], float]) -> None:
        self.world = world
        self.truth = Bank()
        self.sent: dict[str, list[int]] = {}
        self.progress: dict[str, Progress] = self.truth.progress
        self.files: set[str] = set()
        self.asked: Callable[[Sequence[str]], None] = lambda _: None
        self._lies = lies
        self._now = now
        # By user: the account at the payment service; users have filled in some of them.
        self.accounts: dict[str, str] = {}
        self.filled: set[str] = set()
        # By batch: the payout of its transfer there.
        self.transfers: dict[str, str] = {}
        self._first_at: dict[str, float] = {}
        self._by_file: set[str] = set()

    def has(self, lie: str) -> bool:
        """Return whether the service has a kind of lie now."""
        return lie in self._lies

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._lies = frozenset()

    async def take(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        """Take a batch of the service."""
        now = self._now()
        is_known = now - self._first_at.get(batch_id, 0.0) < REMEMBERS_SECONDS
        if not is_known:
            self.truth.batches.pop(batch_id, None)
            refused = self.has("refused")
            self.truth.refused = {
                each.payout_id
                for each in orders
                if refused and self.world.numbers("wrong", each.payout_id)[0] < 2 * SELDOM
            }
            self.truth.names_refused = self.world.numbers("names", batch_id)[0] < 0.5
        answer = await self.truth.send(batch_id, orders)
        if not is_known and isinstance(answer, str):
            self._first_at[batch_id] = now
            self.asked([each.payout_id for each in orders])
            for each in orders:
                self.sent.setdefault(each.payout_id, []).append(each.net)
        return answer

    def pay_file(self, batch_id: str, content: str) -> None:
        """Pay every line of the file of a batch."""
        self.files.add(batch_id)
        lines = list(csv.DictReader(io.StringIO(content)))
        self.asked([each["payout_id"] for each in lines])
        for each in lines:
            net = micro(Decimal(each["amount_usd"]))
            self.sent.setdefault(each["payout_id"], []).append(net)
            self._by_file.add(each["payout_id"])

    async def transfer(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        """Take a payout to an account of its user; a batch that is known is not paid again."""
        [order] = orders
        if batch_id not in self.transfers:
            if order.details.account not in self.filled:
                self.world.fail(f"a payout leaves for the account {order.details.account}")
            if self.has("refused") and self.world.numbers("closed", batch_id)[0] < 2 * SELDOM:
                return Refusal("a closed account", {order.payout_id: FailReason.METHOD_INVALID})
            self.transfers[batch_id] = order.payout_id
            self.asked([order.payout_id])
            self.sent.setdefault(order.payout_id, []).append(order.net)
            self.progress[order.payout_id] = Progress(is_paid=True)
        return f"{TRANSFER}{batch_id}"

    def reversed_transfers(self) -> list[str]:
        """Return the transfers that have come back."""
        return [
            f"{TRANSFER}{batch_id}"
            for batch_id, payout_id in self.transfers.items()
            if self.progress[payout_id].failed is not None
        ]

    def end(self, payout_id: str, number: float) -> None:
        """Let a payout that was sent arrive, or come back.

        From a bank or an account of its user, one that arrived may come back later.
        """
        before = self.progress.get(payout_id, Progress())
        may_return = payout_id in self._by_file or payout_id in self.transfers.values()
        share = 0.3 if not before.is_paid else 0.1 if may_return else 0.0
        if before.failed is None and number < share:
            self.progress[payout_id] = Progress(failed=FailReason.RETURNED)
        elif before.failed is None:
            self.progress[payout_id] = Progress(is_paid=True)


class SenderClient:
    """The client of a daemon: a `Provider` of payouts.

    Args:
        outside: the service.
        loop: of the daemon.
    """

    name = "paypal"
    kind = MethodKind.PAYPAL
    batch_max = 3
    remembers_seconds = REMEMBERS_SECONDS - 3_600

    def __init__(self, outside: Outside, loop: "SimLoop") -> None:
        self._outside = outside
        self._line = Line(outside.world, self.name, loop, outside.has)

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        """See `Provider.send`."""
        sent: str | Refusal = await self._line.ask(
            "send", batch_id, lambda: self._outside.take(batch_id, orders)
        )
        return sent

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        """See `Provider.look`; some answers have no outcome yet."""
        outside, number = self._outside, self._line.count

        async def look() -> Mapping[str, Progress]:
            seen: dict[str, Progress] = dict(await outside.truth.look(outside_id))
            a, _, _, _ = outside.world.numbers("progress", self._line.name, number)
            if outside.has("unknown") and a < SELDOM:
                raise ProviderError("its status is 'limbo'")
            return {} if outside.has("stale") and a < 3 * SELDOM else seen

        seen: Mapping[str, Progress] = await self._line.ask("progress", outside_id, look)
        return seen

    async def close(self) -> None:
        """See `Provider.close`."""


class ConnectClient:
    """The client of a daemon: a `Provider` of payouts whose users have accounts there.

    Args:
        outside: the service.
        loop: of the daemon.
    """

    name = "stripe"
    kind = MethodKind.STRIPE
    batch_max = 1
    remembers_seconds = REMEMBERS_SECONDS - 3_600

    def __init__(self, outside: Outside, loop: "SimLoop") -> None:
        self._outside = outside
        self._line = Line(outside.world, self.name, loop, outside.has)

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        """See `Provider.send`."""
        sent: str | Refusal = await self._line.ask(
            "send", batch_id, lambda: self._outside.transfer(batch_id, orders)
        )
        return sent

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        """See `Provider.look`."""
        payout_id, progress = await self.payout_of(outside_id)
        return {payout_id: progress}

    async def payout_of(self, transfer_id: str) -> tuple[str, Progress]:
        """See `Connect.payout_of`."""
        outside = self._outside

        async def look() -> tuple[str, Progress]:
            payout_id = outside.transfers.get(transfer_id.removeprefix(TRANSFER), "")
            return payout_id, outside.progress.get(payout_id, Progress())

        found: tuple[str, Progress] = await self._line.ask("transfer", transfer_id, look)
        return found

    async def open_account(self, key: str) -> str:
        """See `Connect.open_account`."""

        async def open_one() -> str:
            return self._outside.accounts.setdefault(key, f"acct_{key}")

        account: str = await self._line.ask("account", key, open_one)
        return account

    async def link(self, account_id: str, return_url: str) -> str:
        """See `Connect.link`."""

        async def link() -> str:
            return f"https://stripe.example/{account_id}?then={return_url}"

        url: str = await self._line.ask("link", account_id, link)
        return url

    async def is_ready(self, account_id: str) -> bool:
        """See `Connect.is_ready`."""

        async def look() -> bool:
            return account_id in self._outside.filled

        ready: bool = await self._line.ask("ready", account_id, look)
        return ready

    async def close(self) -> None:
        """See `Provider.close`."""
