"""The rules for payouts, each shown to the user as met or not, and the user's earnings."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from market.accounts.restrictions import is_restricted
from market.base.errors import Code, MarketError
from market.money import debts, ledger
from market.money.money import MICRO, Currency, as_decimal
from market.payouts.terms import CENT, DAY_SECONDS, YEAR_SECONDS, PayoutTerms
from storage.accounts import suspensions, users
from storage.engines.store import Transaction
from storage.money import ledger as ledger_queries
from storage.payouts import methods as method_queries
from storage.payouts import payouts as queries
from storage.payouts.methods import MethodRow


class Rule(StrEnum):
    """A rule for payouts."""

    EMAIL_CONFIRMED = "email_confirmed"
    METHOD_READY = "method_ready"
    MINIMUM_EARNED = "minimum_earned"
    FIRST_EARNING_AGE = "first_earning_age"
    BELOW_DAILY_LIMIT = "below_daily_limit"
    NO_PAYMENT_CASE = "no_payment_case"
    NOT_SUSPENDED = "not_suspended"
    IDENTITY_CHECKED = "identity_checked"


# The meaning of each rule for the user who does not meet it.
MEANINGS = {
    Rule.EMAIL_CONFIRMED: "Confirm your e-mail address first.",
    Rule.METHOD_READY: "Add a payout method; a new one can be used after a while.",
    Rule.MINIMUM_EARNED: "The available earnings are less than the smallest payout.",
    Rule.FIRST_EARNING_AGE: "The first earning is too recent.",
    Rule.BELOW_DAILY_LIMIT: "There is a limit on the payouts of a day; try again tomorrow.",
    Rule.NO_PAYMENT_CASE: "A payment is disputed, or money is owed.",
    Rule.NOT_SUSPENDED: "A part of the account is suspended.",
    Rule.IDENTITY_CHECKED: "Above the yearly amount the operator has to check the identity first.",
}
# An approval checks these again: they can change after the request.
AT_APPROVAL = (Rule.NO_PAYMENT_CASE, Rule.NOT_SUSPENDED)


class Tick(Struct, frozen=True):
    """A rule, and whether a user meets it; by time alone it will be met at `met_at`."""

    rule: Rule
    is_met: bool
    met_at: int | None = None


class Earnings(Struct, frozen=True):
    """A user's earnings in one currency, in micro-units.

    `earned` is the sum of all other terms: `available` for payouts and purchases, `held` for open
    purchases, `in_payout`, `paid` and `fees` of payouts, and `spent` on purchases or corrected.
    `owed` is no term of it: later earnings pay it first, and are `spent` then.
    """

    earned: int
    available: int
    held: int
    in_payout: int
    paid: int
    fees: int
    owed: int = 0

    @property
    def spent(self) -> int:
        """The rest: what purchases and corrections have used of the earnings."""
        parts = self.available + self.held + self.in_payout + self.paid + self.fees
        return self.earned - parts


class Standing(Struct, frozen=True):
    """The ticks of all rules for a user, the user's earnings, and the methods."""

    ticks: tuple[Tick, ...]
    earnings: dict[Currency, Earnings]
    methods: tuple[MethodRow, ...]
    year_usd: int


class Quote(Struct, frozen=True):
    """The price of a payout: `amount` of the wallet, its worth, and the fee of it."""

    currency: Currency
    amount: int
    rate: int
    usd: int
    fee: int
    fee_amount: int


def quote(terms: PayoutTerms, currency: Currency, amount: int) -> Quote:
    """Return the payout for an amount of a wallet, at most.

    A payout is whole cents, so its amount may be less.

    Raises:
        MarketError: `payout_too_small`.
    """
    rate = 0 if currency is Currency.USD else terms.credit_rate
    worth = worth_of(terms, currency, amount)
    usd = worth - worth % CENT
    if usd < terms.minimum or usd <= terms.fee or usd <= 0:
        message = (
            f"A payout is at least {as_decimal(terms.minimum)} USD, and more than its fee of "
            f"{as_decimal(terms.fee)} USD."
        )
        raise MarketError(Code.PAYOUT_TOO_SMALL, message, field="amount")
    if not rate:
        return Quote(currency, usd, 0, usd, terms.fee, terms.fee)
    used = -(-usd * MICRO // rate)
    return Quote(currency, used, rate, usd, terms.fee, min(terms.fee * MICRO // rate, used - 1))


def worth_of(terms: PayoutTerms, currency: Currency, amount: int) -> int:
    """Return the worth of an amount in micro-USD, rounded down."""
    return amount if currency is Currency.USD else amount * terms.credit_rate // MICRO


async def earnings_of(tx: Transaction, user_id: str, currency: Currency) -> Earnings:
    """Return a user's earnings in a currency. The user's open holds and payouts are read."""
    account = ledger.available(user_id, currency)
    total = await queries.earned(tx, user_id, currency)
    sums = await queries.sums(tx, user_id, currency)
    return Earnings(
        earned=0 if total is None else total.total,
        available=(await ledger_queries.balances(tx, account)).earned,
        held=await queries.earned_in_holds(tx, user_id, currency),
        in_payout=sums.in_payout,
        paid=sums.paid,
        fees=sums.fees,
        owed=await debts.owed_of_earnings(tx, user_id, currency),
    )


async def standing_of(tx: Transaction, user_id: str, terms: PayoutTerms, now: int) -> Standing:
    """Return a user's standing now."""
    earnings = {each: await earnings_of(tx, user_id, each) for each in Currency}
    methods = await method_queries.of_user(tx, user_id)
    year_usd = await queries.usd_since(tx, user_id, now - YEAR_SECONDS)
    most = max(worth_of(terms, each, earnings[each].available) for each in Currency)
    ticks = [
        await _email(tx, user_id),
        _method(methods, now),
        Tick(Rule.MINIMUM_EARNED, most >= max(terms.minimum, terms.fee + CENT)),
        await _first_earning(tx, user_id, terms, now),
        await _daily(tx, user_id, terms, now),
        *[await _again(tx, user_id, rule) for rule in AT_APPROVAL],
        Tick(
            Rule.IDENTITY_CHECKED,
            year_usd < terms.verified_above or await queries.is_verified(tx, user_id),
        ),
    ]
    return Standing(tuple(ticks), earnings, tuple(methods), year_usd)


def require_all(ticks: Sequence[Tick]) -> None:
    """Check that every rule is met.

    Raises:
        MarketError: `payout_not_permitted`; the message has the meaning of the first rule that is
            not met.
    """
    for tick in ticks:
        if not tick.is_met:
            raise MarketError(Code.PAYOUT_NOT_PERMITTED, MEANINGS[tick.rule])


async def require_again(tx: Transaction, user_id: str) -> None:
    """Check the rules that can change between a request and its approval.

    Raises:
        MarketError: `payout_not_permitted`.
    """
    require_all([await _again(tx, user_id, rule) for rule in AT_APPROVAL])


async def _again(tx: Transaction, user_id: str, rule: Rule) -> Tick:
    if rule is Rule.NOT_SUSPENDED:
        return Tick(rule, not await suspensions.of_user(tx, user_id))
    return Tick(rule, not await is_restricted(tx, user_id))


async def _email(tx: Transaction, user_id: str) -> Tick:
    user = await users.find(tx, user_id)
    return Tick(Rule.EMAIL_CONFIRMED, user is not None and user.email_verified_at is not None)


def _method(methods: Sequence[MethodRow], now: int) -> Tick:
    usable_at = min((row.usable_at for row in methods), default=None)
    is_ready = usable_at is not None and usable_at <= now
    return Tick(Rule.METHOD_READY, is_ready, None if is_ready else usable_at)


async def _first_earning(tx: Transaction, user_id: str, terms: PayoutTerms, now: int) -> Tick:
    first_at = await queries.first_earned_at(tx, user_id)
    met_at = None if first_at is None else first_at + terms.first_wait_seconds
    is_met = met_at is not None and met_at <= now
    return Tick(Rule.FIRST_EARNING_AGE, is_met, None if is_met else met_at)


async def _daily(tx: Transaction, user_id: str, terms: PayoutTerms, now: int) -> Tick:
    today = now - now % DAY_SECONDS
    is_met = await queries.count_since(tx, user_id, today) < terms.a_day
    return Tick(Rule.BELOW_DAILY_LIMIT, is_met, None if is_met else today + DAY_SECONDS)
