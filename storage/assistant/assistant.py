"""Queries on rewards for photos of good deeds, and on the prints of those photos."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row
from storage.money.ledger import DifferenceRow, differences

BANDS = ("band_a", "band_b", "band_c", "band_d")
# Values that one look-up in a band may have. The statement always has this number, filled up with
# the first value, so that the engines prepare one text.
PROBES = 64

_PROBE_NAMES = tuple(f"value_{first}{second}" for first in "abcdefgh" for second in "abcdefgh")


class RewardRow(NamedTuple):
    """A reward: `day` counts from 1970 in UTC, `amount` is in micro-credits."""

    id: str
    user_id: str
    day: int
    category: str
    confidence: float
    model: str
    amount: int
    file_hash: str
    created_at: int


class PaidRow(NamedTuple):
    """Sums paid on a day, in micro-credits: to one user, and to all."""

    to_user: int
    to_all: int


class PayeeRow(NamedTuple):
    """Payment for a photo: the user and the amount, in micro-credits."""

    user_id: str
    amount: int


class PrintRow(NamedTuple):
    """A photo's perceptual hash: the `bits` that the bands index, and the finer `detail`."""

    bits: int
    detail: int


_REWARD = f"SELECT {', '.join(RewardRow._fields)} FROM goodness_rewards"


async def paid_on(tx: Transaction, *, day: int, user_id: str) -> PaidRow:
    """Return the sums paid on a day, to one user and to all."""
    paid = await tx.one(
        PaidRow,
        """
        SELECT
            CAST(COALESCE(SUM(CASE WHEN user_id = :user_id THEN amount ELSE 0 END), 0) AS BIGINT),
            CAST(COALESCE(SUM(amount), 0) AS BIGINT)
        FROM goodness_rewards
        WHERE day = :day
        """,
        user_id=user_id,
        day=day,
    )
    return paid or PaidRow(0, 0)


async def rewards_page(
    tx: Transaction, *, user_id: str, before: str, limit: int
) -> list[RewardRow]:
    """Return the rewards before one, of a user or of all ("") users, newest first."""
    of_user = "user_id = :user_id AND " if user_id else ""
    order = NEWEST_FIRST if user_id else "DESC"  # of all users: the primary key has the order
    return await tx.all(
        RewardRow,
        f"{_REWARD} WHERE {of_user}id < :before ORDER BY id {order} LIMIT :limit",
        before=behind(before),
        limit=limit,
        **({"user_id": user_id} if user_id else {}),
    )


async def find_reward(tx: Transaction, reward_id: str) -> RewardRow | None:
    """Return a reward."""
    return await tx.one(RewardRow, f"{_REWARD} WHERE id = :id", id=reward_id)


async def reward_of_file(tx: Transaction, file_hash: str) -> PayeeRow | None:
    """Return the reward for the very same file, if there was one."""
    return await tx.one(
        PayeeRow,
        "SELECT user_id, amount FROM goodness_rewards WHERE file_hash = :file_hash",
        file_hash=file_hash,
    )


async def reward_of_print(tx: Transaction, row: PrintRow, band_a: int) -> PayeeRow | None:
    """Return the first reward for a photo with this print, whose first band is `band_a`."""
    return await tx.one(
        PayeeRow,
        """
        SELECT r.user_id, r.amount
        FROM goodness_prints AS p JOIN goodness_rewards AS r ON r.id = p.reward_id
        WHERE p.band_a = :band_a AND p.bits = :bits AND p.detail = :detail
        ORDER BY r.created_at, r.id
        LIMIT 1
        """,
        band_a=band_a,
        bits=row.bits,
        detail=row.detail,
    )


async def prints_near(tx: Transaction, band: int, values: Sequence[int]) -> list[PrintRow]:
    """Return every kept print that has one of 1 to `PROBES` values in a band."""
    assert 0 < len(values) <= PROBES  # noqa: S101 - the statement has a place for so many
    names = ", ".join(f":{name}" for name in _PROBE_NAMES)
    probes = [*values, *[values[0]] * (PROBES - len(values))]
    return await tx.all(
        PrintRow,
        f"SELECT bits, detail FROM goodness_prints WHERE {BANDS[band]} IN ({names})",
        **dict(zip(_PROBE_NAMES, probes, strict=True)),
    )


async def insert_reward(tx: Transaction, reward: RewardRow) -> None:
    """Add a reward."""
    await insert_row(tx, "goodness_rewards", **reward._asdict())


async def insert_print(
    tx: Transaction, reward_id: str, number: int, row: PrintRow, bands: Sequence[int]
) -> None:
    """Add a print of a rewarded photo, with its bands; `number` counts the photo's prints."""
    await insert_row(
        tx,
        "goodness_prints",
        reward_id=reward_id,
        number=number,
        bits=row.bits,
        detail=row.detail,
        **dict(zip(BANDS, bands, strict=True)),
    )


async def rewards_against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each reward that the ledger did not pay to its user, and each payment without one."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'goodness:' || id || ' to user:' || user_id || ':available:credit' AS reference,
                amount
            FROM goodness_rewards
            """,
            """
            SELECT t.business_key || ' to ' || e.credit_account AS reference, e.amount
            FROM transfers AS t JOIN entries AS e ON e.transfer_id = t.id
            WHERE t.business_key LIKE 'goodness:%'
            """,
        ),
    )
