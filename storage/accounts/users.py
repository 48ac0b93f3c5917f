"""Queries on users and their login sessions."""

from typing import NamedTuple

from storage.engines.store import Transaction, Value, insert_row

# How long logins and secrets of e-mails are kept after they ran out. If a clock that was ahead is
# set back meanwhile, they are valid again, as their owners expect.
KEPT_SECONDS = 30 * 86_400


class UserRow(NamedTuple):
    """A user; times in UTC seconds."""

    id: str
    username: str
    email: str
    password_hash: str
    email_verified_at: int | None
    created_at: int


class LoginRow(NamedTuple):
    """User with their balances in micro-units: the spendable amount, and the held amount."""

    user_id: str
    username: str
    email: str
    email_verified_at: int | None
    usd_available: int
    credit_available: int
    usd_held: int
    credit_held: int


class LoginSessionRow(NamedTuple):
    """Login session that is valid; times in UTC seconds, "" for an unknown network or program."""

    id: str
    created_at: int
    expires_at: int
    network: str
    user_agent: str


_USER = "SELECT id, username, email, password_hash, email_verified_at, created_at FROM users"

_LOGIN = """u.id, u.username, u.email, u.email_verified_at, usd.balance, credit.balance,
        usd_held.balance, credit_held.balance"""
_OF_USER = """
    FROM users AS u
    JOIN accounts AS usd ON usd.id = 'user:' || u.id || ':available:usd'
    JOIN accounts AS credit ON credit.id = 'user:' || u.id || ':available:credit'
    JOIN accounts AS usd_held ON usd_held.id = 'user:' || u.id || ':held:usd'
    JOIN accounts AS credit_held ON credit_held.id = 'user:' || u.id || ':held:credit'
"""


async def insert(tx: Transaction, user: UserRow, *, username_key: str, email_key: str) -> bool:
    """Add a user; False when the name or the e-mail address is taken."""
    row_count = await tx.run(
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
    return row_count == 1


async def find_by_email(tx: Transaction, email_key: str) -> UserRow | None:
    """Return the user with this folded e-mail address."""
    return await tx.one(UserRow, f"{_USER} WHERE email_key = :email_key", email_key=email_key)


async def find_by_username(tx: Transaction, username_key: str) -> UserRow | None:
    """Return the user with this folded user name."""
    return await tx.one(
        UserRow, f"{_USER} WHERE username_key = :username_key", username_key=username_key
    )


async def insert_login(
    tx: Transaction,
    *,
    session_id: str,
    user_id: str,
    created_at: int,
    expires_at: int,
    network: str = "",
    user_agent: str = "",
) -> None:
    """Add a login session; delete the user's login sessions that expired `KEPT_SECONDS` ago."""
    await tx.run(
        "DELETE FROM login_sessions WHERE user_id = :user_id AND expires_at <= :moment",
        user_id=user_id,
        moment=created_at - KEPT_SECONDS,
    )
    await insert_row(
        tx,
        "login_sessions",
        id=session_id,
        user_id=user_id,
        created_at=created_at,
        expires_at=expires_at,
        network=network,
        user_agent=user_agent,
    )


async def is_live(tx: Transaction, session_id: str, now: int) -> bool:
    """Return whether a login session was not ended and has not expired."""
    row = await tx.one(
        int,
        """
        SELECT 1 FROM login_sessions
        WHERE id = :session_id AND ended_at IS NULL AND expires_at > :now
        """,
        session_id=session_id,
        now=now,
    )
    return row is not None


async def login_began_at(tx: Transaction, session_id: str, now: int) -> int | None:
    """Return the time of a login in UTC seconds; None if its session is over."""
    return await tx.one(
        int,
        """
        SELECT created_at FROM login_sessions
        WHERE id = :session_id AND ended_at IS NULL AND expires_at > :now
        """,
        session_id=session_id,
        now=now,
    )


async def end_login(tx: Transaction, session_id: str, now: int) -> None:
    """End one login session; ending it again changes nothing."""
    await tx.run(
        "UPDATE login_sessions SET ended_at = :now WHERE id = :id AND ended_at IS NULL",
        id=session_id,
        now=now,
    )


async def logins(tx: Transaction, user_id: str, *, now: int, limit: int) -> list[LoginSessionRow]:
    """Return the login sessions of a user that are valid, newest first."""
    return await tx.all(
        LoginSessionRow,
        """
        SELECT id, created_at, expires_at, network, user_agent FROM login_sessions
        WHERE user_id = :user_id AND ended_at IS NULL AND expires_at > :now
        ORDER BY created_at DESC, id DESC LIMIT :limit
        """,
        user_id=user_id,
        now=now,
        limit=limit,
    )


async def end_login_of(tx: Transaction, session_id: str, *, user_id: str, now: int) -> bool:
    """End a valid login session of a user; False when the user has no such session."""
    row_count = await tx.run(
        """
        UPDATE login_sessions SET ended_at = :now
        WHERE id = :id AND user_id = :user_id AND ended_at IS NULL AND expires_at > :now
        """,
        id=session_id,
        user_id=user_id,
        now=now,
    )
    return row_count == 1


async def end_logins(tx: Transaction, user_id: str, *, but: str, now: int) -> None:
    """End every login session of a user but one ("" for none)."""
    await tx.run(
        """
        UPDATE login_sessions SET ended_at = :now
        WHERE user_id = :user_id AND id <> :but AND ended_at IS NULL
        """,
        user_id=user_id,
        but=but,
        now=now,
    )


async def is_name_taken(tx: Transaction, username_key: str) -> bool:
    """Return whether a user has this folded user name."""
    row = await tx.one(
        int, "SELECT 1 FROM users WHERE username_key = :username_key", username_key=username_key
    )
    return row is not None


async def lock(tx: Transaction, user_id: str) -> None:
    """Lock a user, so that units that check or replace their password run one at a time."""
    await tx.lock("users", [user_id])


async def find(tx: Transaction, user_id: str) -> UserRow | None:
    """Return a user by their identifier."""
    return await tx.one(UserRow, f"{_USER} WHERE id = :user_id", user_id=user_id)


async def set_password(tx: Transaction, user_id: str, password_hash: str) -> None:
    """Replace a user's password."""
    await tx.run(
        "UPDATE users SET password_hash = :password_hash WHERE id = :user_id",
        user_id=user_id,
        password_hash=password_hash,
    )


async def set_email_verified(tx: Transaction, user_id: str, now: int) -> None:
    """Record when a user first proved that they read the e-mail of their address."""
    await tx.run(
        """
        UPDATE users SET email_verified_at = :now
        WHERE id = :user_id AND email_verified_at IS NULL
        """,
        user_id=user_id,
        now=now,
    )


async def insert_mail_token(
    tx: Transaction, *, token_hash: str, user_id: str, purpose: str, now: int, expires_at: int
) -> None:
    """Add the hash of a secret that is sent by e-mail; earlier ones of its purpose become void.

    Tokens of the user that expired `KEPT_SECONDS` ago are deleted.
    """
    await tx.run(
        "DELETE FROM mail_tokens WHERE user_id = :user_id AND expires_at <= :moment",
        user_id=user_id,
        moment=now - KEPT_SECONDS,
    )
    await void_mail_tokens(tx, user_id, purpose=purpose, now=now)
    await insert_row(
        tx,
        "mail_tokens",
        token_hash=token_hash,
        user_id=user_id,
        purpose=purpose,
        created_at=now,
        expires_at=expires_at,
    )


async def owner_of_mail_token(
    tx: Transaction, *, token_hash: str, purpose: str, now: int
) -> str | None:
    """Return the user of a secret; None when it is not valid."""
    return await tx.one(
        str,
        """
        SELECT user_id FROM mail_tokens
        WHERE token_hash = :token_hash AND purpose = :purpose
            AND used_at IS NULL AND expires_at > :now
        """,
        token_hash=token_hash,
        purpose=purpose,
        now=now,
    )


async def void_mail_tokens(tx: Transaction, user_id: str, *, purpose: str, now: int) -> None:
    """Make void every secret that a user was sent for a purpose."""
    await tx.run(
        """
        UPDATE mail_tokens SET used_at = :now
        WHERE user_id = :user_id AND purpose = :purpose AND used_at IS NULL
        """,
        user_id=user_id,
        purpose=purpose,
        now=now,
    )


async def use_mail_token(tx: Transaction, *, token_hash: str, purpose: str, now: int) -> str | None:
    """Use up a secret and return its user; None when it is not valid."""
    return await tx.one(
        str,
        """
        UPDATE mail_tokens SET used_at = :now
        WHERE token_hash = :token_hash AND purpose = :purpose
            AND used_at IS NULL AND expires_at > :now
        RETURNING user_id
        """,
        token_hash=token_hash,
        purpose=purpose,
        now=now,
    )


async def profile(tx: Transaction, user_id: str) -> LoginRow | None:
    """Return a user with their balances."""
    sql = f"SELECT {_LOGIN} {_OF_USER} WHERE u.id = :user_id"
    return await tx.one(LoginRow, sql, user_id=user_id)


async def profile_by_login(
    tx: Transaction, *, session_id: str, user_id: str, now: int
) -> tuple[LoginRow, int, str | None] | None:
    """Return a user with balances and the end of a login session, if that is theirs and valid.

    So it is without a commit in between: a login session has ended at that time, in UTC seconds.
    The last value is the text for a user whose logins are suspended, else None.
    """
    return await tx.one(
        lambda *columns: (LoginRow(*columns[:-2]), int(columns[-2]), columns[-1]),
        f"""SELECT {_LOGIN}, login.expires_at,
            CASE WHEN suspended.user_id IS NULL THEN NULL ELSE COALESCE(shown.body, '') END
        {_OF_USER}
        JOIN login_sessions AS login ON login.user_id = u.id
        LEFT JOIN suspended_parts AS suspended
            ON suspended.user_id = u.id AND suspended.part = 'logins'
        LEFT JOIN texts AS shown ON shown.id = suspended.shown_id
        WHERE login.id = :session_id AND u.id = :user_id
            AND login.ended_at IS NULL AND login.expires_at > :now
        """,
        session_id=session_id,
        user_id=user_id,
        now=now,
    )


async def note_network(
    tx: Transaction, *, user_id: str, network_hash: str, now: int, keep: int
) -> bool:
    """Note a login from a network, for a user that the caller has locked. Return True if it is new.

    It is new if the user has logged in from other networks before and not from this one. Only the
    latest `keep` networks are known.
    """
    values: dict[str, Value] = {"user_id": user_id, "network_hash": network_hash, "now": now}
    is_known = await tx.run(
        """
        UPDATE login_networks SET seen_at = :now
        WHERE user_id = :user_id AND network_hash = :network_hash
        """,
        **values,
    )
    if is_known:
        return False
    others = await tx.one(
        int, "SELECT COUNT(*) FROM login_networks WHERE user_id = :user_id", user_id=user_id
    )
    await insert_row(tx, "login_networks", user_id=user_id, network_hash=network_hash, seen_at=now)
    if others is not None and others >= keep:
        await tx.run(
            """
            DELETE FROM login_networks WHERE user_id = :user_id AND network_hash IN (
                SELECT network_hash FROM login_networks
                WHERE user_id = :user_id AND network_hash <> :network_hash
                ORDER BY seen_at LIMIT :over
            )
            """,
            user_id=user_id,
            network_hash=network_hash,
            over=others + 1 - keep,
        )
    return bool(others)
