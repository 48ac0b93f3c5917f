"""Queries on users and their login sessions."""

from typing import NamedTuple

from storage.store import Transaction


class UserRow(NamedTuple):
    """A user; times in UTC seconds."""

    id: str
    username: str
    email: str
    password_hash: str
    email_verified_at: int | None
    created_at: int


class LoginRow(NamedTuple):
    """A user as a login session shows them, with what they can spend in micro-units."""

    user_id: str
    username: str
    email: str
    email_verified_at: int | None
    usd_available: int
    credit_available: int


_USER = "SELECT id, username, email, password_hash, email_verified_at, created_at FROM users"

_PROFILE = """
    SELECT u.id, u.username, u.email, u.email_verified_at, usd.balance, credit.balance
    FROM users AS u
    JOIN accounts AS usd ON usd.id = 'user:' || u.id || ':available:usd'
    JOIN accounts AS credit ON credit.id = 'user:' || u.id || ':available:credit'
"""


async def insert(tx: Transaction, user: UserRow, *, username_key: str, email_key: str) -> bool:
    """Add a user; False when the name or the e-mail address is taken."""
    added = await tx.run(
        """
        INSERT INTO users
            (id, username, username_key, email, email_key, password_hash, email_verified_at,
             created_at)
        VALUES
            (:id, :username, :username_key, :email, :email_key, :password_hash,
             :email_verified_at, :created_at)
        ON CONFLICT DO NOTHING
        """,
        username_key=username_key,
        email_key=email_key,
        **user._asdict(),
    )
    return added == 1


async def find_by_email(tx: Transaction, email_key: str) -> UserRow | None:
    """Return the user with this folded e-mail address."""
    return await tx.one(UserRow, f"{_USER} WHERE email_key = :email_key", email_key=email_key)


async def insert_login(
    tx: Transaction, *, session_id: str, user_id: str, created_at: int, expires_at: int
) -> None:
    """Record that a user logged in."""
    await tx.run(
        """
        INSERT INTO login_sessions (id, user_id, created_at, expires_at)
        VALUES (:session_id, :user_id, :created_at, :expires_at)
        """,
        session_id=session_id,
        user_id=user_id,
        created_at=created_at,
        expires_at=expires_at,
    )


async def profile(tx: Transaction, user_id: str) -> LoginRow | None:
    """Return a user with their balances."""
    return await tx.one(LoginRow, f"{_PROFILE} WHERE u.id = :user_id", user_id=user_id)


async def profile_by_login(
    tx: Transaction, *, session_id: str, user_id: str, now: int
) -> LoginRow | None:
    """Return the user of a login session that is theirs and still valid."""
    return await tx.one(
        LoginRow,
        f"""{_PROFILE}
        JOIN login_sessions AS login ON login.user_id = u.id
        WHERE login.id = :session_id AND u.id = :user_id
            AND login.ended_at IS NULL AND login.expires_at > :now
        """,
        session_id=session_id,
        user_id=user_id,
        now=now,
    )
