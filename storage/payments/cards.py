"""Queries on saved cards, and on cards, pages and customers that a provider still has to remove."""

from enum import StrEnum
from typing import NamedTuple

from storage.engines.store import Transaction


class SavedCardRow(NamedTuple):  # as wide as its table
    """The saved card of a user, and the page where a card is saved; times in UTC seconds.

    `shown` has the brand and the last digits. `setup_id` is our identifier of the page, and
    `setup_ref` the provider's. `setups` counts the pages since `setups_since`.
    """

    user_id: str
    provider: str
    customer_id: str | None
    card_id: str | None
    shown: str
    saved_at: int | None
    setup_id: str | None
    setup_ref: str | None
    setup_url: str
    looked_at: int
    next_look_at: int | None
    setups: int
    setups_since: int


class Forgotten(StrEnum):
    """A thing that a provider has to remove: a card, an open page for one, or a customer."""

    CARD = "card"
    PAGE = "page"
    CUSTOMER = "customer"


class ForgottenRow(NamedTuple):
    """A thing that a provider has to remove, by the provider's identifier of it."""

    id: str
    provider: str
    kind: str


_COLUMNS = ", ".join(SavedCardRow._fields)
_SELECT = f"SELECT {_COLUMNS} FROM saved_cards"


async def find(tx: Transaction, user_id: str) -> SavedCardRow | None:
    """Return the saved card of a user."""
    return await tx.one(SavedCardRow, f"{_SELECT} WHERE user_id = :user_id", user_id=user_id)


async def find_by_setup(tx: Transaction, provider: str, setup_ref: str) -> str | None:
    """Return the user of a page where a card is saved."""
    return await tx.one(
        str,
        "SELECT user_id FROM saved_cards WHERE setup_ref = :ref AND provider = :provider",
        ref=setup_ref,
        provider=provider,
    )


async def begin_setup(
    tx: Transaction, user_id: str, provider: str, setup_id: str, *, setups: int, since: int
) -> None:
    """Record a new page where a user saves a card; the card of before stays."""
    await tx.run(
        """
        INSERT INTO saved_cards (user_id, provider, setup_id, setups, setups_since)
        VALUES (:user_id, :provider, :setup_id, :setups, :since)
        ON CONFLICT (user_id) DO UPDATE SET
            provider = excluded.provider, setup_id = excluded.setup_id, setup_ref = NULL,
            setup_url = '', next_look_at = NULL, looked_at = 0, setups = excluded.setups,
            setups_since = excluded.setups_since
        """,
        user_id=user_id,
        provider=provider,
        setup_id=setup_id,
        setups=setups,
        since=since,
    )


async def set_setup(
    tx: Transaction,
    user_id: str,
    setup_id: str,
    *,
    customer_id: str,
    setup_ref: str,
    url: str,
    next_look_at: int,
) -> bool:
    """Record the provider's answer to a page; False if another page has begun meanwhile."""
    count = await tx.run(
        """
        UPDATE saved_cards SET setup_ref = :ref, setup_url = :url, next_look_at = :next_look_at,
            customer_id = CASE WHEN card_id IS NULL THEN :customer ELSE customer_id END
        WHERE user_id = :user_id AND setup_id = :setup_id AND setup_ref IS NULL
        """,
        user_id=user_id,
        setup_id=setup_id,
        customer=customer_id,
        ref=setup_ref,
        url=url,
        next_look_at=next_look_at,
    )
    return count == 1


async def claim_look(
    tx: Transaction, user_id: str, *, before: int, now: int, next_look_at: int
) -> bool:
    """Claim a look at the page of a user; False if another one began after `before`.

    A look in the future was made with a clock that was ahead, and does not count.
    """
    count = await tx.run(
        """
        UPDATE saved_cards SET looked_at = :now, next_look_at = :next_look_at
        WHERE user_id = :user_id AND setup_ref IS NOT NULL
            AND (looked_at <= :before OR looked_at > :now)
        """,
        user_id=user_id,
        now=now,
        before=before,
        next_look_at=next_look_at,
    )
    return count == 1


async def end_setup(tx: Transaction, user_id: str) -> None:
    """Record that the page of a user is over."""
    await tx.run(
        """
        UPDATE saved_cards SET setup_id = NULL, setup_ref = NULL, setup_url = '',
            next_look_at = NULL
        WHERE user_id = :user_id
        """,
        user_id=user_id,
    )


async def set_card(
    tx: Transaction, user_id: str, *, customer_id: str, card_id: str, shown: str, now: int
) -> None:
    """Record the card that a user has saved."""
    await tx.run(
        """
        UPDATE saved_cards SET customer_id = :customer, card_id = :card, shown = :shown,
            saved_at = :now
        WHERE user_id = :user_id
        """,
        user_id=user_id,
        customer=customer_id,
        card=card_id,
        shown=shown,
        now=now,
    )


async def clear_card(tx: Transaction, user_id: str) -> None:
    """Record that a user has no card; the page stays."""
    await tx.run(
        "UPDATE saved_cards SET card_id = NULL, shown = '', saved_at = NULL WHERE user_id = :user",
        user=user_id,
    )


async def due(tx: Transaction, now: int, limit: int) -> list[str]:
    """Return the users whose pages are to be looked at, the longest due first."""
    return await tx.all(
        str,
        """
        SELECT user_id FROM saved_cards WHERE next_look_at <= :now
        ORDER BY next_look_at LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def forget(
    tx: Transaction, outside_id: str, provider: str, now: int, kind: Forgotten = Forgotten.CARD
) -> None:
    """Record that a provider has to remove a thing, by the provider's identifier of it."""
    await tx.run(
        """
        INSERT INTO forgotten_at_provider (id, provider, kind, next_at)
        VALUES (:id, :provider, :kind, :now)
        ON CONFLICT DO NOTHING
        """,
        id=outside_id,
        provider=provider,
        kind=kind,
        now=now,
    )


async def forget_of(tx: Transaction, user_id: str, now: int) -> None:
    """Record that a provider has to remove all that it has of the cards of a user."""
    row = await find(tx, user_id)
    if row is None:
        return
    for outside_id, kind in (
        (row.setup_ref, Forgotten.PAGE),
        (row.card_id, Forgotten.CARD),
        (row.customer_id, Forgotten.CUSTOMER),
    ):
        if outside_id is not None:
            await forget(tx, outside_id, row.provider, now, kind)


async def forgotten(tx: Transaction, now: int, limit: int) -> list[str]:
    """Return the things that a provider has to remove now, the longest due first.

    A page comes before its customer, so that it saves no card afterwards.
    """
    return await tx.all(
        str,
        """
        SELECT id FROM forgotten_at_provider WHERE next_at <= :now
        ORDER BY next_at, kind DESC LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def find_forgotten(tx: Transaction, outside_id: str) -> ForgottenRow | None:
    """Return a thing that a provider has to remove."""
    return await tx.one(
        ForgottenRow,
        "SELECT id, provider, kind FROM forgotten_at_provider WHERE id = :id",
        id=outside_id,
    )


async def put_off(tx: Transaction, outside_id: str, next_at: int) -> None:
    """Plan the next attempt to remove a thing."""
    await tx.run(
        "UPDATE forgotten_at_provider SET next_at = :at WHERE id = :id", id=outside_id, at=next_at
    )


async def end_forgetting(tx: Transaction, outside_id: str) -> None:
    """Record that a provider has removed a thing."""
    await tx.run("DELETE FROM forgotten_at_provider WHERE id = :id", id=outside_id)
