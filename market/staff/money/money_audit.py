"""The audit of the money that the staff has moved, and of its approvals."""

from market.money.audit import Check, difference_lines
from market.staff.money.approvals import payload_hash
from storage.engines.store import Store, Transaction
from storage.staff.money import approvals as approval_queries
from storage.staff.money import money as queries


async def audit_money(store: Store) -> tuple[Check, ...]:
    """Compare the acts of the staff that moved money with the ledger, over one snapshot.

    Raises:
        UnavailableError: the store did not answer.
    """
    return await store.read(_audit)


async def _audit(tx: Transaction) -> tuple[Check, ...]:
    return (
        Check(
            "every deposit, refund and correction is one act of the staff, about its user",
            (
                *difference_lines(await queries.acts_against_postings(tx)),
                *(
                    f"{row.reference}: moved the money of another user"
                    for row in await queries.acts_of_others(tx)
                ),
            ),
        ),
        Check(
            "the house's account of corrections is minus their sum",
            difference_lines(await queries.corrections_against_house(tx)),
        ),
        Check(
            "no deposit is refunded by more than was paid in",
            difference_lines(await queries.refunded_too_much(tx)),
        ),
        Check(
            "every approved request was carried out as it was asked, and approved by another",
            (
                *difference_lines(await queries.approvals_against_acts(tx)),
                *(
                    f"{row.reference}: its approval is missing"
                    for row in await queries.acts_without_approval(tx)
                ),
                *(
                    f"{row.id}: its payload was changed"
                    for row in await approval_queries.payloads(tx)
                    if payload_hash(row.payload) != row.payload_hash
                ),
            ),
        ),
    )
