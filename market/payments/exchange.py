"""Payments in another currency: the ratio of their credited USD to the paid amount."""

from msgspec import Struct
from msgspec.structs import replace

from market.money.money import Currency
from market.payments.provider import Seen, SeenReturn
from market.payments.terms import CENT
from storage.payments.payments import PaymentRow
from storage.payments.returns import ReturnRow


class Exchange(Struct, frozen=True):
    """The ratio: `usd` micro-USD are credited for `paid` micro-units of the other currency.

    The operator has accepted such a payment as an amount of USD. Its refunds and disputes are in
    the other currency at the provider, in multiples of `step`. They are booked in USD at the same
    ratio, in whole cents. Both numbers are 1 for a payment in USD.
    """

    usd: int = 1
    paid: int = 1
    step: int = CENT

    @staticmethod
    def of(row: PaymentRow, seen: Seen) -> "Exchange":
        """Return the ratio of a payment that is credited."""
        if seen.currency == Currency.USD or seen.amount <= 0:
            return Exchange()
        return Exchange(row.amount, seen.amount, seen.step)

    def at_provider(self, amount: int) -> int:
        """Return micro-USD in the currency of the provider, rounded down; 0 for less than a step.

        A least amount would pay out more than was paid: many small refunds would each get it.
        """
        if self.usd == self.paid:
            return amount
        return amount * self.paid // self.usd // self.step * self.step

    def credited(self, seen: SeenReturn, stored: ReturnRow | None) -> SeenReturn:
        """Return a refund or a dispute in USD; one that is stored keeps its amount.

        Only if the provider has another amount of it, the amount differs.
        """
        if self.usd == self.paid:
            return seen
        if stored is not None and self.at_provider(stored.amount) == seen.amount:
            return replace(seen, amount=stored.amount)
        if seen.amount == self.paid:
            return replace(seen, amount=self.usd)
        return replace(seen, amount=max(seen.amount * self.usd // self.paid // CENT * CENT, CENT))


IN_USD = Exchange()
