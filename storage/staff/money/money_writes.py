"""The statements that write amounts, approvals and limits; only `market.staff` may import them.

Each runs within an act, like those of `storage.staff.base.writes`.
"""

from storage.accounts.user_limits import UserLimitsRow
from storage.engines.store import Transaction, insert_row
from storage.staff.money.approvals import ApprovalRow
from storage.staff.money.money import MoneyRow


async def insert_money(tx: Transaction, row: MoneyRow) -> None:
    """Add an amount that an act moves now."""
    await insert_row(tx, "staff_money", **row._asdict())


async def insert_approval(tx: Transaction, row: ApprovalRow) -> None:
    """Add a request that waits for a second person."""
    await insert_row(tx, "approvals", **row._asdict())


async def decide(
    tx: Transaction, approval_id: str, decision: str, *, by: str | None, now: int
) -> bool:
    """Decide a request; return False if it was decided before.

    Raises:
        ConstraintError: `approvals_by_another`, when its author approves it.
    """
    changed = await tx.run(
        """
        UPDATE approvals SET decision = :decision, decided_by = :by, decided_at = :now
        WHERE id = :id AND decision IS NULL
        """,
        id=approval_id,
        decision=decision,
        by=by,
        now=now,
    )
    return changed == 1


async def set_limits(tx: Transaction, row: UserLimitsRow) -> None:
    """Set the limits and the price of a user."""
    await tx.run(
        """
        INSERT INTO user_limits (user_id, sessions, jobs, devices, price_percent, until, changed_at,
            level)
        VALUES (:user_id, :sessions, :jobs, :devices, :price_percent, :until, :changed_at,
            :level)
        ON CONFLICT (user_id) DO UPDATE SET
            sessions = excluded.sessions, jobs = excluded.jobs, devices = excluded.devices,
            price_percent = excluded.price_percent, until = excluded.until,
            changed_at = excluded.changed_at, level = excluded.level
        """,
        **row._asdict(),
    )
