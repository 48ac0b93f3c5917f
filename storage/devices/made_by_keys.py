"""Queries on worker tokens and endpoints of webhooks that API keys have made."""

from typing import NamedTuple

from storage.engines.store import Transaction


class MadeRow(NamedTuple):
    """The number of worker tokens and endpoints in use that keys of one line have made."""

    purse_id: str
    devices: int
    webhooks: int


async def note_device(tx: Transaction, device_id: str, purse_id: str) -> None:
    """Note that a key has made a worker token."""
    await tx.run(
        "UPDATE devices SET made_by = :made_by WHERE id = :id", made_by=purse_id, id=device_id
    )


async def counts(tx: Transaction, user_id: str) -> list[MadeRow]:
    """Return the counts of tokens and endpoints in use, by line of keys."""
    return await tx.all(
        MadeRow,
        """
        SELECT made_by, SUM(devices), SUM(webhooks) FROM (
            SELECT made_by, 1 AS devices, 0 AS webhooks FROM devices
            WHERE user_id = :user_id AND made_by IS NOT NULL AND revoked_at IS NULL
            UNION ALL
            SELECT made_by, 0, 1 FROM webhook_endpoints
            WHERE user_id = :user_id AND made_by IS NOT NULL AND disabled_at IS NULL
        ) AS made
        GROUP BY made_by
        """,
        user_id=user_id,
    )


async def devices(tx: Transaction, user_id: str, purse_id: str) -> list[str]:
    """Return the devices in use whose tokens keys have made.

    Args:
        tx: the transaction.
        user_id: whose devices.
        purse_id: the line of the keys; "" for all keys of the user.
    """
    return await tx.all(
        str,
        """
        SELECT id FROM devices
        WHERE user_id = :user_id AND made_by IS NOT NULL AND revoked_at IS NULL
            AND (:purse_id = '' OR made_by = :purse_id)
        ORDER BY id
        """,
        user_id=user_id,
        purse_id=purse_id,
    )
