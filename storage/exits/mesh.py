"""Queries on the shared data of nodes: where they are reached, and the exits of labels."""

from typing import NamedTuple

from storage.engines.store import Transaction

SWEPT_MAX_BINDINGS = 10_000  # at once: it bounds a transaction


class DoorRow(NamedTuple):
    """A node, where devices attach to it, and where other nodes reach it.

    `certificate` is the SHA-256 of the one that it shows, in hexadecimal. All are "" and 0 for a
    node that takes no exits.
    """

    node_id: str
    exits_host: str
    exits_port: int
    certificate: str
    link_host: str
    link_port: int


class BindingRow(NamedTuple):
    """The exit of a label, until a time (UTC seconds); `country` is where its first exit was."""

    device_id: str
    country: str
    until: int


async def doors(tx: Transaction) -> list[DoorRow]:
    """Return every node."""
    return await tx.all(
        DoorRow,
        """
        SELECT id, exits_host, exits_port, exits_certificate, link_host, link_port FROM nodes
        """,
    )


async def open_door(tx: Transaction, door: DoorRow) -> None:
    """Record where a node is reached."""
    await tx.run(
        """
        UPDATE nodes SET exits_host = :exits_host, exits_port = :exits_port,
            exits_certificate = :certificate, link_host = :link_host, link_port = :link_port
        WHERE id = :node_id
        """,
        **door._asdict(),
    )


async def bind(
    tx: Transaction, session_id: str, label: str, binding: BindingRow, *, replaced: str, now: int
) -> BindingRow:
    """Bind a label to an exit, and return the resulting binding.

    A label stays with its exit, unless that is `replaced` or the lifetime is over. So several nodes
    that bind it simultaneously all get the first one's.

    Args:
        tx: the transaction.
        session_id: whose label it is.
        label: a hash of it.
        binding: the caller's choice.
        replaced: the exit that the caller knows it by and that will not do any more; "" for none.
        now: UTC seconds.
    """
    row = await tx.one(
        BindingRow,
        """
        INSERT INTO exit_bindings (session_id, label, device_id, country, until)
        VALUES (:session_id, :label, :device_id, :country, :until)
        ON CONFLICT (session_id, label) DO UPDATE SET
            device_id = excluded.device_id,
            country = CASE WHEN exit_bindings.until <= :now
                THEN excluded.country ELSE exit_bindings.country END,
            until = CASE WHEN exit_bindings.until <= :now
                THEN excluded.until ELSE exit_bindings.until END
        WHERE exit_bindings.device_id = :replaced OR exit_bindings.until <= :now
        RETURNING device_id, country, until
        """,
        session_id=session_id,
        label=label,
        replaced=replaced,
        now=now,
        **binding._asdict(),
    )
    row = row or await bound(tx, session_id, label)
    return row or binding  # its session has ended just now


async def bound(tx: Transaction, session_id: str, label: str) -> BindingRow | None:
    """Return the binding of a label; its lifetime may be over. None for a new one."""
    return await tx.one(
        BindingRow,
        """
        SELECT device_id, country, until FROM exit_bindings
        WHERE session_id = :session_id AND label = :label
        """,
        session_id=session_id,
        label=label,
    )


async def sweep_bindings(tx: Transaction, now: int, kept: int) -> int:
    """Remove bindings whose lifetime or session is over, or some of them. Return their number.

    Args:
        tx: the transaction.
        now: UTC seconds.
        kept: how many of a session stay; the bindings that last longest.
    """
    return await tx.run(
        """
        DELETE FROM exit_bindings WHERE (session_id, label) IN (
            SELECT o.session_id, o.label FROM (
                SELECT b.session_id, b.label, b.until, s.status, ROW_NUMBER() OVER (
                    PARTITION BY b.session_id ORDER BY b.until DESC, b.label
                ) AS place
                FROM exit_bindings AS b
                JOIN bandwidth_sessions AS s ON s.id = b.session_id
            ) AS o
            WHERE o.until <= :now OR o.status <> 'active' OR o.place > :kept
            LIMIT :most
        )
        """,
        now=now,
        kept=kept,
        most=SWEPT_MAX_BINDINGS,
    )
