"""The audit: every sum in the ledger, recomputed from its entries and from the open work.

All checks read one snapshot. Each check adds up two lists by reference and returns the differences
(`storage.money.ledger.differences`), so its time grows with the lists and not with their product.
"""

from msgspec import Struct

from market.money.money import Currency, as_decimal
from storage.assistant import assistant as assistant_queries
from storage.bandwidth import sessions as bandwidth_queries
from storage.bandwidth import usage as usage_queries
from storage.engines.store import Store, Transaction
from storage.exits import exits as exit_queries
from storage.jobs import copies as copy_queries
from storage.jobs import draws as draw_queries
from storage.jobs import reviews as review_queries
from storage.money import earned as earned_queries
from storage.money import ledger as queries
from storage.money.ledger import DifferenceRow, TotalRow
from storage.payments import audit as payment_queries
from storage.payouts import audit as payout_queries
from storage.trust import samples as sample_queries


class Check(Struct, frozen=True):
    """An invariant of the ledger, and a line for each case that breaks it."""

    promise: str
    differences: tuple[str, ...]


class Report(Struct, frozen=True):
    """Outcome of an audit: the number of rows read, and every check."""

    accounts: int
    transfers: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return not any(check.differences for check in self.checks)


async def audit_ledger(store: Store) -> Report:
    """Audit the whole ledger over one snapshot, while the daemon continues to write.

    Raises:
        UnavailableError: the store did not answer.
    """
    return await store.read(_audit)


async def _audit(tx: Transaction) -> Report:
    totals = await queries.totals(tx)
    checks = (
        Check(
            "every balance is the sum of its entries",
            tuple(
                f"{row.reference} holds {as_decimal(row.actual)}, "
                f"its entries make {as_decimal(row.expected)}"
                for row in await queries.misstated_balances(tx)
            ),
        ),
        Check("each currency sums to zero", tuple(_unbalanced(totals))),
        Check(
            "no user's account is below zero",
            tuple(
                f"{row.reference} holds {as_decimal(row.actual)}"
                for row in await queries.overdrawn(tx)
            ),
        ),
        Check(
            "held money is the sum of open holds",
            difference_lines(await queries.held_against_holds(tx)),
        ),
        Check(
            "every hold was set aside in full",
            difference_lines(await queries.holds_without_posting(tx)),
        ),
        Check(
            "every resolved hold paid its capture, and released the rest",
            difference_lines(await queries.resolutions_against_postings(tx)),
        ),
        Check(
            "open holds are open work",
            tuple(
                f"{row.reference}: "
                f"{'open hold without work' if row.actual else 'work without hold'}"
                for row in await queries.holds_against_work(tx)
            ),
        ),
        Check(
            "every session's counters are the sums of its leases",
            tuple(await bandwidth_queries.usage_mismatches(tx)),
        ),
        Check(
            "the hours and days of every session add up to its used bytes",
            tuple(
                f"{row.session_id}: expected {row.expected}, found {row.actual}"
                for row in await usage_queries.mismatches(tx)
            ),
        ),
        Check(
            "every reward for a photo was paid once, and nothing else was",
            difference_lines(await assistant_queries.rewards_against_postings(tx)),
        ),
        Check(
            "holds are drawn from as attempts were paid, for the time that their jobs have",
            (
                *difference_lines(await draw_queries.against_holds(tx)),
                *difference_lines(await draw_queries.against_postings(tx)),
                *_counts(await draw_queries.overused(tx)),
            ),
        ),
        Check(
            "earned money is what was earned, less what was taken of it",
            (
                *difference_lines(await earned_queries.against_entries(tx)),
                *difference_lines(await earned_queries.totals_against_entries(tx)),
                *difference_lines(await earned_queries.holds_against_entries(tx)),
                *_counts(await earned_queries.lines_against_entries(tx)),
            ),
        ),
        *await _payout_checks(tx),
        *await _review_checks(tx),
        *await _exit_checks(tx),
        *await _payment_checks(tx),
    )
    accounts = await queries.count_accounts(tx)
    return Report(accounts, await queries.count_transfers(tx), checks)


async def _payout_checks(tx: Transaction) -> tuple[Check, ...]:
    return (
        Check(
            "every payout holds its amount, and one that was paid took it",
            difference_lines(await payout_queries.against_holds(tx)),
        ),
        Check(
            "the house sent what the paid payouts say, and has their fees and credits",
            difference_lines(await payout_queries.against_house(tx)),
        ),
        Check(
            "earnings are available, held, in payouts, paid out or spent",
            difference_lines(await payout_queries.against_earnings(tx)),
        ),
        Check(
            "every batch is the sum of its payouts",
            difference_lines(await payout_queries.batches_against_payouts(tx)),
        ),
        Check(
            "unclaimed money is what came back for erased users",
            difference_lines(await payout_queries.unclaimed(tx)),
        ),
    )


async def _review_checks(tx: Transaction) -> tuple[Check, ...]:
    return (
        Check(
            "the house's money in review belongs to jobs in review",
            difference_lines(await review_queries.kept_against_reviews(tx)),
        ),
        Check(
            "every job in review was paid for, and its worker's part is held",
            difference_lines(await review_queries.reviews_against_holds(tx)),
        ),
        Check(
            "copies are paid for, or given back, as their comparison was decided",
            _counts(await copy_queries.against_money(tx)),
        ),
        Check(
            "samples are paid for that were right, and no others",
            difference_lines(await sample_queries.against_money(tx)),
        ),
        Check(
            "every review that was decided paid its worker and the house, or its buyer",
            difference_lines(await review_queries.resolutions_against_postings(tx)),
        ),
    )


async def _exit_checks(tx: Transaction) -> tuple[Check, ...]:
    return (
        Check(
            "exits carried no more of a lease than it has used, and their counts add up",
            (
                *_counts(await exit_queries.leases_against_use(tx)),
                *_counts(await exit_queries.leases_overused(tx)),
                *_counts(await exit_queries.days_against_use(tx)),
            ),
        ),
        Check(
            "exits earn their share of the price of their bytes",
            difference_lines(await exit_queries.earned_against_price(tx)),
        ),
        Check(
            "the house's debt to exits equals its advances for active sessions",
            (
                *difference_lines(await exit_queries.payable_against_advances(tx)),
                *difference_lines(await exit_queries.advances_against_use(tx)),
                *difference_lines(await exit_queries.advances_against_holds(tx)),
            ),
        ),
        Check(
            "every settled session paid its exits their earnings",
            (
                *difference_lines(await exit_queries.earnings_against_use(tx)),
                *difference_lines(await exit_queries.earnings_against_postings(tx)),
            ),
        ),
        Check(
            "pending money is the sum of earnings that are neither paid out nor reversed",
            difference_lines(await exit_queries.pending_against_earnings(tx)),
        ),
    )


async def _payment_checks(tx: Transaction) -> tuple[Check, ...]:
    return (
        Check(
            "every payment that arrived was credited to its user once, and no other was",
            difference_lines(await payment_queries.paid_against_deposits(tx)),
        ),
        Check(
            "no payment went back by more than was paid",
            difference_lines(await payment_queries.returned_too_much(tx)),
        ),
        Check(
            "the house's losses are the debts that users have not paid back",
            (
                *difference_lines(await payment_queries.losses_against_postings(tx)),
                *difference_lines(await payment_queries.losses_against_returns(tx)),
                *difference_lines(await payment_queries.debts_against_payments(tx)),
                *difference_lines(await payment_queries.losses_against_debts(tx)),
            ),
        ),
        Check(
            "every payment that arrived has a receipt, and numbers of papers have no gap",
            _counts(await payment_queries.receipts_against_payments(tx)),
        ),
    )


def _unbalanced(totals: list[TotalRow]) -> list[str]:
    sums = {
        currency: sum(row.amount for row in totals if row.currency == currency)
        for currency in Currency
    }
    return [f"{currency} sums to {as_decimal(total)}" for currency, total in sums.items() if total]


def difference_lines(rows: list[DifferenceRow]) -> tuple[str, ...]:
    """Return a line for each difference of money: its reference, and both amounts."""
    return tuple(
        f"{row.reference}: expected {as_decimal(row.expected)}, found {as_decimal(row.actual)}"
        for row in rows
    )


def _counts(rows: list[DifferenceRow]) -> tuple[str, ...]:
    return tuple(f"{row.reference}: expected {row.expected}, found {row.actual}" for row in rows)
