"""The probes of the search: each one is a range of one index, and returns `limit` rows at most."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, matches
from storage.engines.store import Transaction

# Behind every text that begins with a prefix: no name has this character.
_LAST = "\U0010ffff"
ORIGINS_MAX = 1_000  # rows of one address that are read: many households can share it


class HitRow(NamedTuple):
    """A row that matches, and its user. `matched` is the text that matched."""

    kind: str
    id: str
    user_id: str
    username: str
    email: str
    matched: str


class NamedSessionRow(NamedTuple):
    """A session of a user, with the name that clients use at the proxy."""

    id: str
    username: str
    status: str
    bytes_used: int
    quota_bytes: int
    created_at: int
    expires_at: int


class OpenRow(NamedTuple):
    """The number of a user's open things."""

    sessions: int
    jobs: int
    devices: int
    keys: int


def _of_users(found: str) -> str:
    """Return SQL for rows of `kind, id, user_id, matched` with the names of their users."""
    return f"""
        SELECT f.kind, f.id, f.user_id, u.username, u.email, f.matched
        FROM ({found}) AS f JOIN users AS u ON u.id = f.user_id
    """


# Tables whose rows belong to a user, each by its primary key.
_BY_ID = " UNION ALL ".join(
    f"SELECT '{kind}' AS kind, id, {owner} AS user_id, id AS matched FROM {table} WHERE id = :text"
    for kind, table, owner in (
        ("user", "users", "id"),
        ("session", "bandwidth_sessions", "user_id"),
        ("job", "jobs", "user_id"),
        ("deploy", "deploys", "user_id"),
        ("device", "devices", "user_id"),
        ("key", "api_keys", "user_id"),
    )
)

# The users of a transfer; UNION shows a user with two accounts in it once.
_TRANSFER = " UNION ".join(
    f"""
    SELECT 'transfer' AS kind, t.id, a.user_id, t.business_key AS matched FROM transfers AS t
    JOIN entries AS e ON e.transfer_id = t.id JOIN accounts AS a ON a.id = e.{side}_account
    WHERE t.{{column}} = :text AND a.user_id IS NOT NULL
    """
    for side in ("debit", "credit")
)


async def by_id(tx: Transaction, text: str, limit: int) -> list[HitRow]:
    """Return the row with an identifier; for a transfer one hit for each of its users."""
    found = await tx.all(HitRow, _of_users(_BY_ID), text=text)
    moved = await tx.all(
        HitRow, f"{_of_users(_TRANSFER.format(column='id'))} LIMIT :limit", text=text, limit=limit
    )
    return (found + moved)[:limit]


async def by_reference(tx: Transaction, text: str, limit: int) -> list[HitRow]:
    """Return the deposits with a reference."""
    found = []
    for currency in ("usd", "credit"):
        found += await tx.all(
            HitRow,
            f"{_of_users(_TRANSFER.format(column='business_key'))} LIMIT :limit",
            text=f"deposit:{text}:{currency}",
            limit=limit,
        )
    return found[:limit]


async def by_email(tx: Transaction, key: str, limit: int) -> list[HitRow]:
    """Return users whose folded e-mail address begins with a text, in the order of addresses."""
    return await _of_prefix(tx, "email", key, limit)


async def by_username(tx: Transaction, key: str, limit: int) -> list[HitRow]:
    """Return users whose folded name begins with a text, in the order of names."""
    return await _of_prefix(tx, "username", key, limit)


async def _of_prefix(tx: Transaction, column: str, key: str, limit: int) -> list[HitRow]:
    return await tx.all(
        HitRow,
        f"""
        SELECT 'user', id, id, username, email, {column} FROM users
        WHERE {column}_key >= :low AND {column}_key < :high
        ORDER BY {column}_key LIMIT :limit
        """,
        low=key,
        high=key + _LAST,
        limit=limit,
    )


async def by_domain(tx: Transaction, domain: str, limit: int) -> list[HitRow]:
    """Return the newest users whose folded address is of a domain."""
    return await tx.all(
        HitRow,
        f"""
        SELECT 'user', id, id, username, email, email FROM users
        WHERE email_domain = :domain ORDER BY id {NEWEST_FIRST} LIMIT :limit
        """,
        domain=domain,
        limit=limit,
    )


async def by_proxy_name(tx: Transaction, name: str, limit: int) -> list[HitRow]:
    """Return sessions whose proxy user name begins with a text, in the order of names."""
    return await tx.all(
        HitRow,
        _of_users(
            """
            SELECT 'session' AS kind, id, user_id, username AS matched FROM bandwidth_sessions
            WHERE username >= :low AND username < :high ORDER BY username LIMIT :limit
            """
        ),
        low=name,
        high=name + _LAST,
        limit=limit,
    )


async def by_key_prefix(tx: Transaction, prefix: str, limit: int) -> list[HitRow]:
    """Return the newest API keys whose stored beginning is a text."""
    return await tx.all(
        HitRow,
        _of_users(
            f"""
            SELECT 'key' AS kind, id, user_id, prefix AS matched FROM api_keys
            WHERE prefix = :prefix ORDER BY id {NEWEST_FIRST} LIMIT :limit
            """
        ),
        prefix=prefix,
        limit=limit,
    )


async def by_session_address(tx: Transaction, address: str, limit: int) -> list[HitRow]:
    """Return the sessions that a client address opens without a password."""
    return await tx.all(
        HitRow,
        _of_users(
            """
            SELECT 'session' AS kind, s.id, s.user_id, a.address AS matched
            FROM session_addresses AS a JOIN bandwidth_sessions AS s ON s.id = a.session_id
            WHERE a.address = :address ORDER BY a.slot LIMIT :limit
            """
        ),
        address=address,
        limit=limit,
    )


async def by_origin(tx: Transaction, address: str, network: str, limit: int) -> list[HitRow]:
    """Return the devices that were seen at an address, or in its network, the latest first.

    A row has the network. Rows of earlier versions have the whole IPv6 address.
    """
    return await tx.all(
        HitRow,
        f"""
        {
            _of_users(
                f'''
                SELECT 'device' AS kind, d.id, d.user_id, :network AS matched, o.ended_at FROM (
                    SELECT device_id, MAX(ended_at) AS ended_at FROM (
                        SELECT device_id, ended_at FROM device_origins
                        WHERE address IN (:address, :network)
                        ORDER BY ended_at DESC LIMIT {ORIGINS_MAX}
                    ) AS latest
                    GROUP BY device_id
                ) AS o JOIN devices AS d ON d.id = o.device_id
                '''
            )
        }
        ORDER BY f.ended_at DESC, f.id LIMIT :limit
        """,
        address=address,
        network=network,
        limit=limit,
    )


async def by_login_network(tx: Transaction, network: str, limit: int) -> list[HitRow]:
    """Return the newest logins from a network."""
    return await tx.all(
        HitRow,
        _of_users(
            f"""
            SELECT 'login' AS kind, id, user_id, network AS matched FROM login_sessions
            WHERE network = :network ORDER BY id {NEWEST_FIRST} LIMIT :limit
            """
        ),
        network=network,
        limit=limit,
    )


async def by_key_network(tx: Transaction, network: str, limit: int) -> list[HitRow]:
    """Return the newest API keys that were last used from a network."""
    return await tx.all(
        HitRow,
        _of_users(
            f"""
            SELECT 'key' AS kind, id, user_id, last_used_network AS matched FROM api_keys
            WHERE {matches("last_used_network", "network")}
            ORDER BY id {NEWEST_FIRST} LIMIT :limit
            """
        ),
        network=network,
        limit=limit,
    )


async def open_things(tx: Transaction, user_id: str, *, now: int, most: int) -> OpenRow:
    """Count a user's open things, each up to a bound."""
    counts = []
    for table, is_open in (
        ("bandwidth_sessions", "status = 'active'"),
        ("jobs", "status IN ('waiting', 'running')"),
        ("devices", "revoked_at IS NULL"),
        ("api_keys", "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)"),
    ):
        count = await tx.one(
            int,
            f"""
            SELECT COUNT(*) FROM (
                SELECT 1 FROM {table} WHERE user_id = :user_id AND {is_open} LIMIT :most
            ) AS counted
            """,
            user_id=user_id,
            most=most,
            **({"now": now} if ":now" in is_open else {}),
        )
        counts.append(count or 0)
    return OpenRow(*counts)


async def sessions(tx: Transaction, user_id: str, *, limit: int) -> list[NamedSessionRow]:
    """Return the newest sessions of a user."""
    return await tx.all(
        NamedSessionRow,
        f"""
        SELECT {", ".join(NamedSessionRow._fields)} FROM bandwidth_sessions
        WHERE user_id = :user_id ORDER BY id {NEWEST_FIRST} LIMIT :limit
        """,
        user_id=user_id,
        limit=limit,
    )
