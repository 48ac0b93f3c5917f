"""Queries on the logins of the staff, and on the attempts to log in."""

from typing import NamedTuple

from storage.engines.paging import behind
from storage.engines.store import Transaction, Value, insert_row
from storage.staff.base.rows import ShownAttemptRow

FORGET_MAX = 100  # rows that one new row makes room for


class AttemptRow(NamedTuple):
    """An attempt to prove a password and a code; without `right_at` it was wrong."""

    id: str
    account: str
    staff_id: str | None
    network: str
    via: str
    unix_user: str | None
    created_at: int
    right_at: int | None


class LoginRow(NamedTuple):
    """A login that has not ended, and its member."""

    id: str
    staff_id: str
    email: str
    role: str
    seen_at: int
    expires_at: int
    factor_at: int


async def count_wrong(
    tx: Transaction, *, account: str, network: str | None, since: int, most: int
) -> tuple[int, int]:
    """Return the number of wrong attempts of an account, and the time of the oldest.

    Attempts at `since` and before do not count, and no more than `most` are counted.

    Args:
        tx: the transaction.
        account: the account.
        network: the network of the attempts; None for all networks.
        since: in UTC seconds.
        most: the largest number.
    """
    of_network = "" if network is None else "AND network = :network"
    values: dict[str, Value] = {} if network is None else {"network": network}
    found = await tx.all(
        int,
        f"""
        SELECT created_at FROM staff_attempts
        WHERE account = :account {of_network} AND created_at > :since AND right_at IS NULL
        ORDER BY created_at DESC LIMIT :most
        """,
        account=account,
        since=since,
        most=most,
        **values,
    )
    return len(found), min(found, default=since)


async def has_right(tx: Transaction, *, account: str, network: str) -> bool:
    """Return whether a kept attempt of an account and network was right."""
    found = await tx.one(
        int,
        """
        SELECT 1 FROM staff_attempts
        WHERE account = :account AND network = :network AND right_at IS NOT NULL LIMIT 1
        """,
        account=account,
        network=network,
    )
    return found is not None


async def insert_attempt(tx: Transaction, row: AttemptRow, *, kept_since: int) -> None:
    """Add an attempt, and delete some of the attempts before `kept_since`."""
    await tx.run(
        """
        DELETE FROM staff_attempts WHERE id IN (
            SELECT id FROM staff_attempts WHERE created_at <= :moment
            ORDER BY created_at LIMIT :limit
        )
        """,
        moment=kept_since,
        limit=FORGET_MAX,
    )
    await insert_row(tx, "staff_attempts", **row._asdict())


async def set_right(tx: Transaction, attempt_id: str, now: int) -> None:
    """Note that an attempt was right."""
    await tx.run("UPDATE staff_attempts SET right_at = :now WHERE id = :id", id=attempt_id, now=now)


async def attempts(tx: Transaction, *, before: str, limit: int) -> list[ShownAttemptRow]:
    """Return the newest attempts before one."""
    return await tx.all(
        ShownAttemptRow,
        """
        SELECT a.id, a.created_at, (SELECT s.email FROM staff AS s WHERE s.id = a.staff_id),
            a.network, a.via, a.unix_user, a.right_at
        FROM staff_attempts AS a WHERE a.id < :before ORDER BY a.id DESC LIMIT :limit
        """,
        before=behind(before),
        limit=limit,
    )


async def insert_login(
    tx: Transaction,
    *,
    login_id: str,
    staff_id: str,
    network: str,
    now: int,
    expires_at: int,
    kept_since: int,
    factor_at: int,
) -> None:
    """Add a login, and delete some of the logins that expired before `kept_since`.

    `factor_at` is the time at which it has proved its second factor; 0 for never.
    """
    await tx.run(
        """
        DELETE FROM staff_logins WHERE id IN (
            SELECT id FROM staff_logins WHERE expires_at <= :moment
            ORDER BY expires_at LIMIT :limit
        )
        """,
        moment=kept_since,
        limit=FORGET_MAX,
    )
    await insert_row(
        tx,
        "staff_logins",
        id=login_id,
        staff_id=staff_id,
        network=network,
        created_at=now,
        seen_at=now,
        expires_at=expires_at,
        factor_at=factor_at,
    )


async def live(tx: Transaction, login_id: str, *, now: int, seen_since: int) -> LoginRow | None:
    """Return a login that has not ended, of a member that is not locked."""
    return await tx.one(
        LoginRow,
        """
        SELECT l.id, l.staff_id, (SELECT s.email FROM staff AS s WHERE s.id = l.staff_id),
            (SELECT s.role FROM staff AS s WHERE s.id = l.staff_id), l.seen_at, l.expires_at,
            l.factor_at
        FROM staff_logins AS l
        WHERE l.id = :id AND l.ended_at IS NULL AND l.expires_at > :now
            AND l.seen_at > :seen_since
            AND (SELECT s.locked_at FROM staff AS s WHERE s.id = l.staff_id) IS NULL
        """,
        id=login_id,
        now=now,
        seen_since=seen_since,
    )


async def see(tx: Transaction, login_id: str, now: int) -> None:
    """Note that a login was used."""
    await tx.run(
        "UPDATE staff_logins SET seen_at = :now WHERE id = :id AND seen_at < :now",
        id=login_id,
        now=now,
    )


async def prove(tx: Transaction, login_id: str, now: int) -> None:
    """Note that a login has proved its second factor again."""
    await tx.run(
        "UPDATE staff_logins SET factor_at = :now WHERE id = :id AND ended_at IS NULL",
        id=login_id,
        now=now,
    )


async def end(tx: Transaction, login_id: str, now: int) -> None:
    """End a login."""
    await tx.run(
        "UPDATE staff_logins SET ended_at = :now WHERE id = :id AND ended_at IS NULL",
        id=login_id,
        now=now,
    )


async def end_all(tx: Transaction, staff_id: str, now: int, *, but: str = "") -> None:
    """End every login of a member, except one."""
    await tx.run(
        """
        UPDATE staff_logins SET ended_at = :now
        WHERE staff_id = :staff_id AND ended_at IS NULL AND id <> :but
        """,
        staff_id=staff_id,
        now=now,
        but=but,
    )
