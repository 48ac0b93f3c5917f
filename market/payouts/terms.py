"""Terms of payouts: the settings of the operator, and the codes of reasons."""

from enum import StrEnum

from msgspec import Struct

from market.money.money import MICRO

CENT = MICRO // 100
DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600
YEAR_SECONDS = 365 * DAY_SECONDS


class MethodKind(StrEnum):
    """A way to pay out. The values are stored, so they never change."""

    BANK = "bank"
    PAYPAL = "paypal"
    MANUAL = "manual"
    STRIPE = "stripe"


class RejectReason(StrEnum):
    """The reasons of the operator to reject a payout."""

    METHOD_INVALID = "method_invalid"
    NAME_MISMATCH = "name_mismatch"
    IDENTITY_NEEDED = "identity_needed"
    EARNINGS_IN_DOUBT = "earnings_in_doubt"
    CIRCULAR_EARNINGS = "circular_earnings"
    TERMS_BROKEN = "terms_broken"
    NOT_SUPPORTED = "not_supported"


class FailReason(StrEnum):
    """The reasons of payouts that were sent and did not arrive."""

    METHOD_INVALID = "method_invalid"
    NAME_MISMATCH = "name_mismatch"
    REFUSED = "refused"
    RETURNED = "returned"
    UNCLAIMED = "unclaimed"
    NOT_SENT = "not_sent"


# The reasons of payouts that were paid and came back; the others say that no money left.
REASONS_OF_RETURNS = (FailReason.RETURNED, FailReason.UNCLAIMED)


class PayoutTerms(Struct, frozen=True):  # as wide as its section of the settings
    """The operator's terms for payouts; amounts in micro-USD, times in seconds.

    Attributes:
        methods: the ways to pay out; none switches payouts off.
        credit_rate: the price of a credit in micro-USD.
        minimum: the smallest payout.
        fee: the part of each payout that the house keeps.
        automatic: payouts up to this amount need no decision; 0 for none.
        review_seconds: the promised time until a decision.
        method_wait_seconds: the least age of a method for a payout.
        first_wait_seconds: the time between the first earning and the first payout.
        a_day: the most payouts that a user may request within a day.
        verified_above: the most that a user without a verified identity gets within a year.
    """

    methods: frozenset[str] = frozenset()
    credit_rate: int = CENT
    minimum: int = 5 * MICRO
    fee: int = 0
    automatic: int = 0
    review_seconds: int = 48 * HOUR_SECONDS
    method_wait_seconds: int = 72 * HOUR_SECONDS
    first_wait_seconds: int = 7 * DAY_SECONDS
    a_day: int = 3
    verified_above: int = 600 * MICRO

    @property
    def are_offered(self) -> bool:
        """Whether the service pays earnings out."""
        return bool(self.methods)
