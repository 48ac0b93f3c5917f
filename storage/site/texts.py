"""Queries on published texts, and on the consents of users."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row


class TextRow(NamedTuple):
    """A version of a text in one language, without its body; times in UTC seconds."""

    kind: str
    version: int
    locale: str
    hash: str
    published_at: int
    valid_from: int


class VersionRow(NamedTuple):
    """Version of a kind of text, with the beginning of its validity."""

    kind: str
    version: int
    valid_from: int


_HEADS = "SELECT kind, version, locale, hash, published_at, valid_from FROM site_texts"


async def newest(tx: Transaction, kind: str) -> list[TextRow]:
    """Return the languages of the newest version of a kind, also before it is valid."""
    return await tx.all(
        TextRow,
        f"""
        {_HEADS} WHERE kind = :kind
            AND version = (SELECT MAX(version) FROM site_texts WHERE kind = :kind)
        ORDER BY locale
        """,
        kind=kind,
    )


async def languages(tx: Transaction, kind: str, version: int) -> list[TextRow]:
    """Return the languages of a version."""
    return await tx.all(
        TextRow,
        f"{_HEADS} WHERE kind = :kind AND version = :version ORDER BY locale",
        kind=kind,
        version=version,
    )


async def valid(tx: Transaction, kind: str, now: int) -> VersionRow | None:
    """Return the version of a kind that is valid."""
    return await tx.one(
        VersionRow,
        """
        SELECT kind, version, valid_from FROM site_texts
        WHERE kind = :kind AND valid_from <= :now ORDER BY version DESC LIMIT 1
        """,
        kind=kind,
        now=now,
    )


async def valid_kinds(tx: Transaction, now: int) -> list[str]:
    """Return the kinds that have a valid version."""
    return await tx.all(
        str, "SELECT DISTINCT kind FROM site_texts WHERE valid_from <= :now", now=now
    )


async def latest(tx: Transaction, kind: str) -> int:
    """Return the number of the newest version of a kind, also before it is valid; 0 for none."""
    number = await tx.one(
        int, "SELECT COALESCE(MAX(version), 0) FROM site_texts WHERE kind = :kind", kind=kind
    )
    return number or 0


async def body(tx: Transaction, kind: str, version: int, locale: str) -> str | None:
    """Return the body of a version in one language."""
    return await tx.one(
        str,
        """
        SELECT body FROM site_texts
        WHERE kind = :kind AND version = :version AND locale = :locale
        """,
        kind=kind,
        version=version,
        locale=locale,
    )


async def agreed(tx: Transaction, user_id: str, kind: str, least: int) -> bool:
    """Return whether a user has agreed to a version of a kind, or to a later one."""
    row = await tx.one(
        int,
        """
        SELECT 1 FROM consents
        WHERE user_id = :user_id AND kind = :kind AND version >= :least LIMIT 1
        """,
        user_id=user_id,
        kind=kind,
        least=least,
    )
    return row is not None


async def agree(
    tx: Transaction, user_id: str, version: VersionRow, *, now: int, network: str
) -> None:
    """Record that a user agrees to a version; a repetition changes nothing."""
    if not await agreed(tx, user_id, version.kind, version.version):
        await insert_row(
            tx,
            "consents",
            user_id=user_id,
            kind=version.kind,
            version=version.version,
            given_at=now,
            network=network,
        )
