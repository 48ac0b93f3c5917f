"""The statements that write the tables of the staff; only `market.staff` may import them.

The transaction of each statement also writes a row of the log, so an act without a row is
impossible (`market/staff/base/acts.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row
from storage.staff.base.log import HEAD, LogRow
from storage.staff.base.staff import StaffRow


class TextRow(NamedTuple):
    """Free text of an act: a reason, a note, or the text of a search."""

    id: str
    kind: str
    log_number: int
    user_id: str | None
    body: str
    salt: str
    created_at: int


async def lock_head(tx: Transaction) -> None:
    """Lock the newest row of the log, so that one act at a time is written."""
    await tx.lock("staff_log_head", [HEAD])


async def append(tx: Transaction, row: LogRow) -> None:
    """Append a row to the log, and advance its head."""
    await insert_row(tx, "staff_log", **row._asdict())
    await tx.run(
        "UPDATE staff_log_head SET number = :number, hash = :hash WHERE id = :id",
        id=HEAD,
        number=row.number,
        hash=row.hash,
    )


async def insert_text(tx: Transaction, row: TextRow) -> None:
    """Add the free text of an act."""
    await insert_row(tx, "texts", **row._asdict())


async def insert_staff(tx: Transaction, row: StaffRow, *, email_key: str) -> bool:
    """Add a member of the staff; return False if the address is taken."""
    added = await tx.run(
        """
        INSERT INTO staff (id, email, email_key, role, password_hash, sealed_factor, last_step,
            created_at, locked_at)
        VALUES (:id, :email, :email_key, :role, :password_hash, :sealed_factor, :last_step,
            :created_at, :locked_at)
        ON CONFLICT DO NOTHING
        """,
        email_key=email_key,
        **row._asdict(),
    )
    return added == 1


async def set_role(tx: Transaction, staff_id: str, role: str) -> None:
    """Give a member of the staff another role.

    Raises:
        ConstraintError: `staff_keeps_an_operator`.
    """
    await tx.run("UPDATE staff SET role = :role WHERE id = :id", id=staff_id, role=role)


async def declare_user(tx: Transaction, staff_id: str, user_id: str, now: int) -> bool:
    """Note that a user is a member's own; return False if it was declared before."""
    added = await tx.run(
        """
        INSERT INTO staff_users (staff_id, user_id, declared_at)
        VALUES (:staff_id, :user_id, :now) ON CONFLICT DO NOTHING
        """,
        staff_id=staff_id,
        user_id=user_id,
        now=now,
    )
    return added == 1


async def set_locked(tx: Transaction, staff_id: str, locked_at: int | None) -> None:
    """Lock a member of the staff, or unlock them with None.

    Raises:
        ConstraintError: `staff_keeps_an_operator`.
    """
    await tx.run(
        "UPDATE staff SET locked_at = :locked_at WHERE id = :id", id=staff_id, locked_at=locked_at
    )


async def set_password(tx: Transaction, staff_id: str, password_hash: str) -> None:
    """Replace the password of a member of the staff."""
    await tx.run(
        "UPDATE staff SET password_hash = :password_hash WHERE id = :id",
        id=staff_id,
        password_hash=password_hash,
    )


async def set_factor(
    tx: Transaction, staff_id: str, sealed_factor: str, code_hashes: Sequence[str]
) -> None:
    """Replace the second factor of a member of the staff, and their recovery codes."""
    await tx.run(
        "UPDATE staff SET sealed_factor = :sealed_factor, last_step = 0 WHERE id = :id",
        id=staff_id,
        sealed_factor=sealed_factor,
    )
    await tx.run("DELETE FROM staff_recovery WHERE staff_id = :id", id=staff_id)
    await insert_recovery(tx, staff_id, code_hashes)


async def insert_recovery(tx: Transaction, staff_id: str, code_hashes: Sequence[str]) -> None:
    """Add the recovery codes of a member of the staff, by their hashes."""
    for code_hash in code_hashes:
        await insert_row(tx, "staff_recovery", staff_id=staff_id, code_hash=code_hash)


async def use_step(tx: Transaction, staff_id: str, step: int) -> bool:
    """Use up the code of a time step; return False if this or a later step was used before."""
    changed = await tx.run(
        "UPDATE staff SET last_step = :step WHERE id = :id AND last_step < :step",
        id=staff_id,
        step=step,
    )
    return changed == 1


async def use_recovery(tx: Transaction, staff_id: str, code_hash: str, now: int) -> bool:
    """Use up a recovery code; return False if it is wrong or was used before."""
    changed = await tx.run(
        """
        UPDATE staff_recovery SET used_at = :now
        WHERE staff_id = :id AND code_hash = :code_hash AND used_at IS NULL
        """,
        id=staff_id,
        code_hash=code_hash,
        now=now,
    )
    return changed == 1
