"""Rules about payments: after every commit, at every request to the bank, and at the end."""

from typing import TYPE_CHECKING, Any

from support.payments.kept import by_month, gone, kept

from market.accounts.accounts import OF_PAYMENT
from market.money.money import Currency
from tests.sim.money.bank import LATE_MOST_SECONDS, PATIENCE_SECONDS, SimBank
from tests.sim.money.plans import CEILING, PAYERS, payer_name
from tests.sim.store import ANSWER_SECONDS, Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

_PAYMENTS = """
    SELECT p.id, p.user_id, p.status, p.amount, p.card_id IS NOT NULL, p.created_at,
        (SELECT SUM(e.amount) FROM transfers AS t JOIN entries AS e ON e.transfer_id = t.id
            WHERE t.kind = 'deposit' AND t.reference = :prefix || p.id)
    FROM payments AS p ORDER BY p.id
"""
_RETURNS = """
    SELECT id, payment_id, user_id, kind, status, amount, held, provider_ref FROM payment_returns
    ORDER BY id
"""
_REFUND = "SELECT amount, held FROM payment_returns WHERE id = :id AND kind = 'refund'"
_SUSPENDED = "SELECT user_id FROM suspended_parts WHERE part = 'purchases'"
_CHARGED = "SELECT user_id, amount FROM payments WHERE id = :id AND card_id IS NOT NULL"
_SUMS = """
    SELECT (SELECT balance FROM accounts WHERE id = :available),
        (SELECT balance FROM accounts WHERE id = :held),
        (SELECT COALESCE(SUM(amount - paid), 0) FROM debts WHERE user_id = :user)
"""
# A request that was permitted when it began may arrive this much later.
IN_FLIGHT_SECONDS = 2 * ANSWER_SECONDS + PATIENCE_SECONDS + LATE_MOST_SECONDS
# Units that move no money, the most frequent ones.
_IDLE = frozenset(
    ("renew", "register", "exchange", "open_lease", "release", "acknowledge", "claim")
)


class PaymentBooks:
    """Compares the payments with the bank.

    Args:
        network: has the database.
        bank: has the truth.
    """

    def __init__(self, network: "Network", bank: SimBank) -> None:
        self.network = network
        self.bank = bank
        bank.asked = self.asked
        # Since when each user may not pay, and how many payments and returns the user had then.
        self._suspended: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        # Until when an automatic payment of each user may have been wanted.
        self._wanted: dict[str, float] = {}

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql, **values)

    def _fail(self, text: str) -> None:
        self.network.world.fail(text)

    # --- requests to the bank --------------------------------------------------------------------

    def asked(self, name: str, subject: Any) -> None:
        """Look at a request that arrives at the bank."""
        if name == "refund":
            self._refund(*subject)
        elif name == "charge":
            self._charge(subject)

    def _refund(self, provider_id: str, amount: int, key: str) -> None:
        """Fail if a refund is requested before its money was set aside."""
        for stored, held in self._rows(_REFUND, id=key):
            if stored == amount == held:
                return
        self._fail(f"{amount} of {provider_id[-6:]} is to be refunded, and it is not held")

    def _charge(self, charge: Any) -> None:
        """Fail if a card pays without a payment, or long after its top-up was switched off."""
        rows = self._rows(_CHARGED, id=charge.id)
        if not rows or rows[0][1] != charge.amount:
            self._fail(f"a card is to pay {charge.amount}, and there is no such payment")
            return
        ((user_id, _),) = rows
        late = self.network.world.now - self._wanted.get(user_id, 0.0)
        if late > IN_FLIGHT_SECONDS:
            self._fail(f"the card of {user_id} is to pay, and was not wanted for {late:.1f} s")

    # --- commits ---------------------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """Compare the payments after a commit."""
        if commit.name in _IDLE:
            return
        payments, returns = self._rows(_PAYMENTS, prefix=OF_PAYMENT), self._rows(_RETURNS)
        self._look_at_wanted()
        self._look_at_suspended(commit, payments, returns)
        for payment_id, _, status, amount, _, _, credited in payments:
            self._credited(payment_id, status, amount, credited or 0)
        left: dict[str, int] = {}
        for return_id, payment_id, _, kind, status, amount, _, ref in returns:
            self._returned(return_id, payment_id, kind, status, ref)
            if status != "void":
                left[payment_id] = left.get(payment_id, 0) + amount
        for payment_id, _, _, amount, _, _, _ in payments:
            if left.get(payment_id, 0) > amount:
                self._fail(f"{left[payment_id]} goes back of {amount} of {payment_id[-6:]}")

    def _credited(self, payment_id: str, status: str, amount: int, credited: int) -> None:
        """Fail if a payment is credited twice, or with another amount than that at the bank."""
        if credited != (amount if status == "paid" else 0):
            self._fail(f"{credited} of {amount} of the {status} {payment_id[-6:]} is credited")
        if not credited:
            return
        seen = self.bank.of(payment_id)
        if seen is None or seen.state != "paid" or seen.currency != Currency.USD:
            self._fail(f"{payment_id[-6:]} is credited, and the bank has {seen}")
        elif credited != seen.amount:
            self._fail(f"{credited} is credited for {payment_id[-6:]}, and {seen.amount} was paid")

    def _returned(
        self, return_id: str, payment_id: str, kind: str, status: str, ref: str | None
    ) -> None:
        """Fail if a return has a state that it never had at the bank."""
        if status == "pending":
            return
        if status == "void" and return_id in self.bank.refusals:
            return
        name = None if ref is None else ref.removesuffix(":rest")
        if not self.bank.has_been(payment_id, name, return_id, status):
            self._fail(f"the {kind} {return_id[-6:]} is {status}, and was never so at the bank")

    def _look_at_wanted(self) -> None:
        """Record whose automatic payments are wanted."""
        now = self.network.world.now
        for (user_id,) in self._rows(
            "SELECT t.user_id FROM top_ups AS t JOIN saved_cards AS c ON c.user_id = t.user_id"
            " WHERE t.state = 'on' AND c.card_id IS NOT NULL"
        ):
            if user_id not in self._suspended:
                self._wanted[user_id] = now

    def _look_at_suspended(self, commit: Commit, payments: list[Any], returns: list[Any]) -> None:
        """Fail if a suspended user begins a payment or a refund."""
        counts: dict[str, int] = {}
        for row in payments:
            counts[row[1]] = counts.get(row[1], 0) + 1
        for row in returns:
            if row[3] == "refund":
                counts[row[2]] = counts.get(row[2], 0) + 1
        for user_id in self._suspended:
            if counts.get(user_id, 0) != self._counts.get(user_id, 0):
                self._fail(f"{commit.name} moves money of {user_id}, who is suspended")
        self._counts = counts
        now = self.network.world.now
        self._suspended = {
            user_id: self._suspended.get(user_id, now) for (user_id,) in self._rows(_SUSPENDED)
        }

    # --- at the end ------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare everything with the bank, once each payment was looked at."""
        self._compare_payments()
        for number in range(PAYERS):
            self._compare_wallet(payer_name(number))
        self._compare_cards()

    def _compare_payments(self) -> None:
        """Each payment that the bank has is credited, and each refund and dispute is booked."""
        accepted = dict(self._rows("SELECT id, accepted FROM payments"))
        for return_id, payment_id, _, kind, status, *_ in self._rows(_RETURNS):
            if status == "pending":
                self._fail(f"the {kind} {return_id[-6:]} of {payment_id[-6:]} waits at the end")
        for payment_id, _, status, amount, _, _, _ in self._rows(_PAYMENTS, prefix=OF_PAYMENT):
            seen = self.bank.of(payment_id)
            if seen is None or seen.state != "paid":
                if status not in ("open", "expired", "failed"):
                    self._fail(f"{payment_id[-6:]} is {status}, and the bank has {seen}")
                continue
            is_right = seen.amount == amount and seen.currency == Currency.USD
            if is_right != (status == "paid"):
                self._fail(
                    f"{payment_id[-6:]} of {amount} is {status}, and the bank has {seen.amount}"
                    f" {seen.currency}; {accepted[payment_id]} is accepted"
                )
            done = sum(
                row[5] for row in self._rows(_RETURNS) if row[1] == payment_id and row[4] == "done"
            )
            if status == "paid" and done != gone(seen):
                self._fail(f"{done} of {payment_id[-6:]} went back, and {gone(seen)} at the bank")

    def _compare_wallet(self, user_id: str) -> None:
        """Compare a wallet with the money that the bank keeps, and with the losses of the house."""
        expected = sum(
            kept(seen)
            for payment_id, owner, status, *_ in self._rows(_PAYMENTS, prefix=OF_PAYMENT)
            if owner == user_id and status == "paid" and (seen := self.bank.of(payment_id))
        )
        currency = Currency.USD
        ((available, held, debt),) = self._rows(
            _SUMS,
            available=f"user:{user_id}:available:{currency}",
            held=f"user:{user_id}:held:{currency}",
            user=user_id,
        )
        if available + held != expected + debt:
            self._fail(
                f"{user_id} has {available} and {held} held, owes {debt}, and the bank keeps"
                f" {expected}"
            )

    def _compare_cards(self) -> None:
        """Cards have paid within the ceiling of a month, and only saved cards are left."""
        rows = self._rows(_PAYMENTS, prefix=OF_PAYMENT)
        for user_id in {row[1] for row in rows}:
            charges = [
                (row[5], seen)
                for row in rows
                if row[1] == user_id and row[4] and (seen := self.bank.of(row[0]))
            ]
            most = max(by_month(charges).values(), default=0)
            if most > CEILING:
                self._fail(f"the card of {user_id} has paid {most} in a month")
        saved = {card for (card,) in self._rows("SELECT card_id FROM saved_cards") if card}
        if saved != self.bank.truth.cards.attached:
            self._fail(
                f"the cards {saved} are saved, and {self.bank.truth.cards.attached} attached"
            )
