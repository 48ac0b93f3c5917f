"""Queries that read the accounts of the staff."""

from typing import NamedTuple

from storage.engines.store import Transaction

LISTED_MAX = 1_000


class StaffRow(NamedTuple):
    """A member of the staff; `last_step` is the newest used time step of the second factor."""

    id: str
    email: str
    role: str
    password_hash: str
    sealed_factor: str
    last_step: int
    created_at: int
    locked_at: int | None


class ListedStaffRow(NamedTuple):
    """A member of the staff as a list shows it, with the number of unused recovery codes."""

    id: str
    email: str
    role: str
    created_at: int
    locked_at: int | None
    codes_left: int


_STAFF = f"SELECT {', '.join(StaffRow._fields)} FROM staff"


async def find(tx: Transaction, staff_id: str) -> StaffRow | None:
    """Return a member of the staff by their identifier."""
    return await tx.one(StaffRow, f"{_STAFF} WHERE id = :id", id=staff_id)


async def find_by_email(tx: Transaction, email_key: str) -> StaffRow | None:
    """Return a member of the staff by the comparison key of their address."""
    return await tx.one(StaffRow, f"{_STAFF} WHERE email_key = :email_key", email_key=email_key)


async def all_staff(tx: Transaction) -> list[ListedStaffRow]:
    """Return the members of the staff, the oldest first, at most `LISTED_MAX`."""
    return await tx.all(
        ListedStaffRow,
        """
        SELECT s.id, s.email, s.role, s.created_at, s.locked_at, (
            SELECT COUNT(*) FROM staff_recovery AS r
            WHERE r.staff_id = s.id AND r.used_at IS NULL
        )
        FROM staff AS s ORDER BY s.id LIMIT :limit
        """,
        limit=LISTED_MAX,
    )


async def owns(tx: Transaction, staff_id: str, user_id: str) -> bool:
    """Return whether a user is a member: by the same address, or by a declaration."""
    found = await tx.one(
        int,
        """
        SELECT 1 FROM users AS u WHERE u.id = :user_id AND (
            u.email_key = (SELECT s.email_key FROM staff AS s WHERE s.id = :staff_id)
            OR EXISTS (
                SELECT 1 FROM staff_users AS o
                WHERE o.staff_id = :staff_id AND o.user_id = :user_id
            )
        )
        """,
        staff_id=staff_id,
        user_id=user_id,
    )
    return found is not None


# The users of a member, as `owns` decides about one.
_OWN_USERS = """
    SELECT u.id FROM users AS u JOIN staff AS s ON s.email_key = u.email_key
    WHERE s.id = :staff_id
    UNION ALL SELECT o.user_id FROM staff_users AS o WHERE o.staff_id = :staff_id
"""


async def own_users(tx: Transaction, staff_id: str) -> set[str]:
    """Return the users that are a member (`owns`)."""
    return set(await tx.all(str, _OWN_USERS, staff_id=staff_id))


async def bought_through(tx: Transaction, staff_id: str, device_id: str) -> bool:
    """Return whether an exit has unpaid earnings from sessions of a member's own users (`owns`)."""
    found = await tx.one(
        int,
        f"""
        SELECT 1 FROM exit_earnings AS e JOIN bandwidth_sessions AS b ON b.id = e.session_id
        WHERE e.device_id = :device_id AND e.paid_at IS NULL AND e.reversed_at IS NULL
            AND b.user_id IN ({_OWN_USERS})
        LIMIT 1
        """,
        staff_id=staff_id,
        device_id=device_id,
    )
    return found is not None


async def has_other_operator(tx: Transaction, staff_id: str) -> bool:
    """Return whether an operator that is not locked remains without one member."""
    found = await tx.one(
        int,
        "SELECT 1 FROM staff WHERE id <> :id AND role = 'operator' AND locked_at IS NULL",
        id=staff_id,
    )
    return found is not None
