"""Queries on exits: consents, the bytes that each device carried, and the earnings of its owner.

Triggers add up the counts of exits on their lease, and a check compares the sum with the bytes that
the lease has used. So exits together never earn more than the buyer pays for, even after a mistake
elsewhere.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.accounts.suspensions import is_suspended
from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row
from storage.money.ledger import DifferenceRow, differences

DAY_SECONDS = 86_400
# An owner is paid for this many sessions in one transaction; the next transaction continues.
PAID_MAX_EARNINGS = 1_000


class ExitRow(NamedTuple):  # as wide as its table
    """A device as an exit: limits in bytes, price in micro-USD per GB, times in UTC seconds.

    Limits of 0 are none. `ports` are those of targets, with commas between. `barred_for` is a kind
    of finding (`market.exits.canaries`), "" where the operator has barred it. `token_revoked_at` is
    that of the device.
    """

    device_id: str
    user_id: str
    terms_hash: str
    consented_at: int
    revoked_at: int | None
    paused_at: int | None
    barred_at: int | None
    connections: int
    bytes_per_second: int
    bytes_per_day: int
    ports: str
    min_price_per_gb: int
    country: str
    city: str
    asn: int
    barred_for: str
    token_revoked_at: int | None


class LimitsRow(NamedTuple):
    """How much a device carries at most, as in `ExitRow`."""

    connections: int
    bytes_per_second: int
    bytes_per_day: int
    ports: str
    min_price_per_gb: int


class StandingRow(NamedTuple):
    """Permissions of a device: ended, paused, or the limits that it may use (see `LimitsRow`).

    `is_ended` and `is_paused` are 0 or 1; an exit is also paused while its owner's devices are
    suspended.
    """

    device_id: str
    is_ended: int
    is_paused: int
    connections: int
    bytes_per_second: int
    bytes_per_day: int
    ports: str
    min_price_per_gb: int


class ConsentRow(NamedTuple):
    """A change of a device's consent to be an exit.

    `event` is given, revoked, barred or pardoned; `created_at` is its time.
    """

    id: str
    device_id: str
    event: str
    terms_hash: str
    reason: str
    created_at: int


class FindingRow(NamedTuple):
    """Finding about a device: its kind and the evidence; times in UTC seconds."""

    id: str
    device_id: str
    kind: str
    evidence: str
    found_at: int
    pardoned_at: int | None


class OwnedFindingRow(NamedTuple):
    """A finding as in `FindingRow`, and the owner of its device."""

    id: str
    device_id: str
    kind: str
    evidence: str
    found_at: int
    pardoned_at: int | None
    user_id: str


class BarredRow(NamedTuple):
    """Barred device: its owner, the time since when (UTC seconds), and the finding."""

    device_id: str
    user_id: str
    barred_at: int
    barred_for: str


class OriginRow(NamedTuple):
    """Location of a device: "" and 0 if unknown; the country in lower case."""

    device_id: str
    country: str
    city: str
    asn: int


class UseRow(NamedTuple):
    """Bytes that an exit carried under a lease, with the price in micro-USD per GB and the share.

    The share is 0 for the buyer's own exits.
    """

    lease_id: str
    device_id: str
    session_id: str
    price_per_gb: int
    share_percent: int
    used_bytes: int
    earned: int


class DayRow(NamedTuple):
    """Bytes that a device carried on a day, and its owner's earnings for them, in micro-USD."""

    device_id: str
    day: int
    used_bytes: int
    earned: int


class EarnedDayRow(NamedTuple):
    """Bytes and earnings of several exits on a day, as in `DayRow`, and the amount taken back."""

    day: int
    used_bytes: int
    earned: int
    taken_back: int


class EarnedRow(NamedTuple):
    """Bytes that a device carried of a session, and its owner's earnings for them, in micro-USD.

    `used_bytes` and `amount` are in all. There are `postings` earnings of it so far, which add up
    to `posted_bytes` and `posted`; the unreversed ones add up to `kept_bytes` and `kept`. The owner
    of a device that `is_barred` (0 or 1) gets no more.
    """

    session_id: str
    device_id: str
    user_id: str
    used_bytes: int
    amount: int
    is_barred: int
    postings: int
    posted_bytes: int
    posted: int
    kept_bytes: int
    kept: int


class EarningRow(NamedTuple):
    """Earning number `number` of a session and a device; not posted if it `is_barred` (1)."""

    session_id: str
    device_id: str
    number: int
    user_id: str
    used_bytes: int
    amount: int
    is_barred: int


class PaidRow(NamedTuple):
    """An earning that was paid out: its key, and the amount in micro-USD."""

    session_id: str
    device_id: str
    number: int
    amount: int


class PendingRow(NamedTuple):
    """A pending earning: its key, its amount in micro-USD, its bytes and their price for a GB."""

    session_id: str
    device_id: str
    number: int
    amount: int
    used_bytes: int
    price_per_gb: int


class PaidOutRow(NamedTuple):
    """An earning that is paid out: its key, the amount in micro-USD, and the earned part of it.

    That part is 0 of a session that the owner of the exit bought: it was the owner's money.
    """

    session_id: str
    device_id: str
    number: int
    amount: int
    earned: int


class ActiveRow(NamedTuple):
    """Session that lasts until `expires_at`, in UTC seconds."""

    expires_at: int
    id: str


class DueRow(NamedTuple):
    """An earning that may be paid out: when it was posted, in UTC seconds, and whose it is."""

    posted_at: int
    user_id: str


class ReversedRow(NamedTuple):
    """An earning that was reversed, with its session: status, buyer, price per GB."""

    session_id: str
    number: int
    user_id: str
    status: str
    buyer_id: str
    used_bytes: int
    amount: int
    price_per_gb: int


class SumRow(NamedTuple):
    """Sums of a device: bytes and micro-USD, in all and on one day; pending; and taken back.

    `name` is the name that its owner gave it.
    """

    device_id: str
    used_bytes: int
    earned: int
    day_bytes: int
    day_earned: int
    pending: int
    taken_back: int
    name: str


class CountryRow(NamedTuple):
    """The bytes of a session that left in a country, and the number of devices."""

    country: str
    exits: int
    used_bytes: int


_OWN = ", ".join(f"e.{name}" for name in ExitRow._fields[:-1])
_EXIT = f"""
    SELECT {_OWN}, d.revoked_at FROM exits AS e JOIN devices AS d ON d.id = e.device_id
"""
_FINDING = """
    SELECT f.id, f.device_id, f.kind, f.evidence, f.found_at, f.pardoned_at, e.user_id
    FROM exit_canaries AS f JOIN exits AS e ON e.device_id = f.device_id
"""
_LIMITS = ", ".join(f"{name} = :{name}" for name in LimitsRow._fields)


async def find(tx: Transaction, device_id: str) -> ExitRow | None:
    """Return a device as an exit; None if its owner has never agreed to that."""
    return await tx.one(ExitRow, f"{_EXIT} WHERE e.device_id = :device_id", device_id=device_id)


async def of_user(tx: Transaction, user_id: str, *, before: str, limit: int) -> list[ExitRow]:
    """Return the devices of a user that are or were exits, newest first.

    Args:
        tx: the transaction.
        user_id: whose.
        before: only devices older than this identifier; "" for the newest.
        limit: how many at most.
    """
    return await tx.all(
        ExitRow,
        f"""
        {_EXIT}
        WHERE e.user_id = :user_id AND e.device_id < :before
        ORDER BY e.device_id {NEWEST_FIRST}
        LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
    )


async def consent(
    tx: Transaction, *, device_id: str, user_id: str, terms_hash: str, limits: LimitsRow, now: int
) -> None:
    """Make a device an exit, under terms and within limits; or one again."""
    await tx.run(
        """
        INSERT INTO exits (device_id, user_id, terms_hash, consented_at, connections,
            bytes_per_second, bytes_per_day, ports, min_price_per_gb)
        VALUES (:device_id, :user_id, :terms_hash, :now, :connections,
            :bytes_per_second, :bytes_per_day, :ports, :min_price_per_gb)
        ON CONFLICT (device_id) DO UPDATE SET
            terms_hash = excluded.terms_hash,
            consented_at = excluded.consented_at,
            revoked_at = NULL,
            paused_at = NULL,
            connections = excluded.connections,
            bytes_per_second = excluded.bytes_per_second,
            bytes_per_day = excluded.bytes_per_day,
            ports = excluded.ports,
            min_price_per_gb = excluded.min_price_per_gb
        """,
        device_id=device_id,
        user_id=user_id,
        terms_hash=terms_hash,
        now=now,
        **limits._asdict(),
    )


async def insert_consent(tx: Transaction, consent: ConsentRow) -> None:
    """Add to the history of a device."""
    await insert_row(tx, "exit_consents", **consent._asdict())


async def consents(tx: Transaction, device_id: str) -> list[ConsentRow]:
    """Return the history of a device, the oldest first."""
    return await tx.all(
        ConsentRow,
        """
        SELECT id, device_id, event, terms_hash, reason, created_at FROM exit_consents
        WHERE device_id = :device_id ORDER BY id
        """,
        device_id=device_id,
    )


async def change_limits(tx: Transaction, device_id: str, limits: LimitsRow) -> None:
    """Set how much a device carries at most."""
    await tx.run(
        f"UPDATE exits SET {_LIMITS} WHERE device_id = :device_id",
        device_id=device_id,
        **limits._asdict(),
    )


async def pause(tx: Transaction, device_id: str, paused_at: int | None) -> None:
    """Stop a device from carrying traffic; with None, carry again."""
    await tx.run(
        "UPDATE exits SET paused_at = :paused_at WHERE device_id = :device_id",
        device_id=device_id,
        paused_at=paused_at,
    )


async def revoke(tx: Transaction, device_id: str, now: int) -> bool:
    """Take a consent back; False when there was none."""
    changed = await tx.run(
        "UPDATE exits SET revoked_at = :now WHERE device_id = :device_id AND revoked_at IS NULL",
        device_id=device_id,
        now=now,
    )
    return changed == 1


async def bar(tx: Transaction, device_id: str, now: int, kind: str = "") -> bool:
    """Bar a device from being an exit, regardless of its owner's consent; False if it was no exit.

    Args:
        tx: the transaction.
        device_id: which.
        now: UTC seconds.
        kind: of the finding that it is barred for; "" when the operator bars it.
    """
    changed = await tx.run(
        """
        UPDATE exits SET barred_at = :now, barred_for = :kind
        WHERE device_id = :device_id AND barred_at IS NULL
        """,
        device_id=device_id,
        now=now,
        kind=kind,
    )
    return changed == 1


async def unbar(tx: Transaction, device_id: str) -> bool:
    """Let a device be an exit again; False when it was not barred."""
    changed = await tx.run(
        """
        UPDATE exits SET barred_at = NULL, barred_for = ''
        WHERE device_id = :device_id AND barred_at IS NOT NULL
        """,
        device_id=device_id,
    )
    return changed == 1


async def barred(tx: Transaction, limit: int) -> list[BarredRow]:
    """Return devices that are barred, the latest first."""
    return await tx.all(
        BarredRow,
        """
        SELECT device_id, user_id, barred_at, barred_for FROM exits
        WHERE barred_at IS NOT NULL ORDER BY barred_at DESC, device_id LIMIT :limit
        """,
        limit=limit,
    )


async def insert_finding(tx: Transaction, finding: FindingRow) -> None:
    """Store a finding about a device."""
    await insert_row(tx, "exit_canaries", **finding._asdict())


async def findings(tx: Transaction, device_id: str) -> list[FindingRow]:
    """Return the findings about a device, the oldest first."""
    return await tx.all(
        FindingRow,
        """
        SELECT id, device_id, kind, evidence, found_at, pardoned_at FROM exit_canaries
        WHERE device_id = :device_id ORDER BY id
        """,
        device_id=device_id,
    )


async def findings_page(tx: Transaction, *, before: str, limit: int) -> list[OwnedFindingRow]:
    """Return the findings about all devices before one, newest first."""
    return await tx.all(
        OwnedFindingRow,
        # The primary key has the order.
        f"{_FINDING} WHERE f.id < :before ORDER BY f.id DESC LIMIT :limit",
        before=behind(before),
        limit=limit,
    )


async def find_finding(tx: Transaction, finding_id: str) -> OwnedFindingRow | None:
    """Return a finding with the owner of its device."""
    return await tx.one(OwnedFindingRow, f"{_FINDING} WHERE f.id = :id", id=finding_id)


async def pardon_finding(tx: Transaction, finding_id: str, now: int) -> bool:
    """Mark a finding as pardoned; False when it was before."""
    changed = await tx.run(
        "UPDATE exit_canaries SET pardoned_at = :now WHERE id = :id AND pardoned_at IS NULL",
        id=finding_id,
        now=now,
    )
    return changed == 1


async def pardon_findings(tx: Transaction, device_id: str, now: int) -> None:
    """Mark everything that was found of a device as pardoned."""
    await tx.run(
        """
        UPDATE exit_canaries SET pardoned_at = :now
        WHERE device_id = :device_id AND pardoned_at IS NULL
        """,
        device_id=device_id,
        now=now,
    )


async def move(tx: Transaction, origins: Sequence[OriginRow]) -> None:
    """Record where devices come from, in one statement; devices that are no exits are left out."""
    columns = {"device_id": "TEXT", "country": "TEXT", "city": "TEXT", "asn": "BIGINT"}
    await tx.run(
        f"""
        UPDATE exits SET country = moved.country, city = moved.city, asn = moved.asn
        FROM {tx.table("moved", **columns)}
        WHERE exits.device_id = moved.device_id
        """,
        moved=json.dumps([each._asdict() for each in origins]),
    )


async def standings(tx: Transaction, device_ids: Sequence[str]) -> list[StandingRow]:
    """Return the current permissions of some exits."""
    limits = ", ".join(f"e.{name}" for name in LimitsRow._fields)
    return await tx.all(
        StandingRow,
        f"""
        SELECT e.device_id,
            CASE WHEN e.revoked_at IS NULL AND e.barred_at IS NULL AND d.revoked_at IS NULL
                THEN 0 ELSE 1 END,
            CASE WHEN e.paused_at IS NULL AND NOT {is_suspended("e.user_id", "devices")}
                THEN 0 ELSE 1 END,
            {limits}
        FROM {tx.table("asked", id="TEXT")}
        JOIN exits AS e ON e.device_id = asked.id
        JOIN devices AS d ON d.id = e.device_id
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
    )


async def of_devices(tx: Transaction, device_ids: Sequence[str]) -> list[ExitRow]:
    """Return those of some devices that are or were exits."""
    return await tx.all(
        ExitRow,
        f"""
        SELECT {_OWN}, d.revoked_at
        FROM {tx.table("asked", id="TEXT")}
        JOIN exits AS e ON e.device_id = asked.id
        JOIN devices AS d ON d.id = e.device_id
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
    )


async def of_owner_of(tx: Transaction, device_id: str) -> list[str]:
    """Return all devices that are or were exits of the user who owns this one."""
    return await tx.all(
        str,
        """
        SELECT e.device_id FROM exits AS one JOIN exits AS e ON e.user_id = one.user_id
        WHERE one.device_id = :device_id
        ORDER BY e.device_id
        """,
        device_id=device_id,
    )


async def open_pending_account(tx: Transaction, account: str, user_id: str) -> None:
    """Open the account of an owner's exit earnings that are not paid out, if need be."""
    await tx.run(
        """
        INSERT INTO accounts (id, user_id, kind, currency)
        VALUES (:account, :user_id, 'pending', 'usd')
        ON CONFLICT (id) DO NOTHING
        """,
        account=account,
        user_id=user_id,
    )


async def use_of(tx: Transaction, pairs: Sequence[tuple[str, str]]) -> list[UseRow]:
    """Return the use of exits under leases so far, for each pair of a lease and an exit.

    A pair whose lease or exit does not exist has no row.
    """
    return await tx.all(
        UseRow,
        f"""
        SELECT l.id, e.device_id, s.id, s.price_per_gb,
            CASE WHEN e.user_id = s.user_id THEN 0 ELSE s.exit_share_percent END,
            COALESCE(u.used_bytes, 0), COALESCE(u.earned, 0)
        FROM {tx.table("asked", lease_id="TEXT", device_id="TEXT")}
        JOIN bandwidth_leases AS l ON l.id = asked.lease_id
        JOIN bandwidth_sessions AS s ON s.id = l.session_id
        JOIN exits AS e ON e.device_id = asked.device_id
        LEFT JOIN exit_usage AS u ON u.lease_id = l.id AND u.device_id = e.device_id
        """,
        asked=json.dumps([{"lease_id": lease, "device_id": device} for lease, device in pairs]),
    )


async def write_use(tx: Transaction, uses: Sequence[UseRow], days: Sequence[DayRow]) -> None:
    """Set the use of exits under leases, and add to their use by day, in two statements.

    Raises:
        ConstraintError: a count would fall, or the exits of a lease carried more than it has used.
    """
    await tx.run(
        f"""
        INSERT INTO exit_usage (lease_id, device_id, session_id, used_bytes, earned)
        SELECT lease_id, device_id, session_id, used_bytes, earned FROM {
            tx.table(
                "counted",
                lease_id="TEXT",
                device_id="TEXT",
                session_id="TEXT",
                used_bytes="BIGINT",
                earned="BIGINT",
            )
        }
        WHERE TRUE
        ON CONFLICT (lease_id, device_id) DO UPDATE SET
            used_bytes = excluded.used_bytes, earned = excluded.earned
        """,
        counted=json.dumps(
            [
                {
                    "lease_id": each.lease_id,
                    "device_id": each.device_id,
                    "session_id": each.session_id,
                    "used_bytes": each.used_bytes,
                    "earned": each.earned,
                }
                for each in uses
            ]
        ),
    )
    await _add_to_days(tx, days)


async def _add_to_days(tx: Transaction, days: Sequence[DayRow]) -> None:
    columns = {"device_id": "TEXT", "day": "BIGINT", "used_bytes": "BIGINT", "earned": "BIGINT"}
    await tx.run(
        f"""
        INSERT INTO exit_days (device_id, day, used_bytes, earned)
        SELECT device_id, day, used_bytes, earned FROM {tx.table("added", **columns)}
        WHERE TRUE
        ON CONFLICT (device_id, day) DO UPDATE SET
            used_bytes = exit_days.used_bytes + excluded.used_bytes,
            earned = exit_days.earned + excluded.earned
        """,
        # In one order, so that two reports about the same exits cannot deadlock.
        added=json.dumps([each._asdict() for each in sorted(days)]),
    )


# Of the sessions in `asked`: one row for each device that carried something of one.
_EARNED = """
    SELECT u.session_id, u.device_id, e.user_id, u.used_bytes, u.earned,
        CASE WHEN e.barred_at IS NULL THEN 0 ELSE 1 END, COALESCE(x.postings, 0),
        COALESCE(x.posted_bytes, 0), COALESCE(x.posted, 0),
        COALESCE(x.kept_bytes, 0), COALESCE(x.kept, 0)
    FROM (
        SELECT session_id, device_id, CAST(SUM(used_bytes) AS BIGINT) AS used_bytes,
            CAST(SUM(earned) AS BIGINT) AS earned
        FROM {asked} JOIN exit_usage ON session_id = asked.id
        GROUP BY session_id, device_id
    ) AS u
    JOIN exits AS e ON e.device_id = u.device_id
    LEFT JOIN (
        SELECT session_id, device_id, COUNT(*) AS postings,
            CAST(SUM(used_bytes) AS BIGINT) AS posted_bytes, CAST(SUM(amount) AS BIGINT) AS posted,
            CAST(SUM(CASE WHEN reversed_at IS NULL THEN used_bytes ELSE 0 END) AS BIGINT)
                AS kept_bytes,
            CAST(SUM(CASE WHEN reversed_at IS NULL THEN amount ELSE 0 END) AS BIGINT) AS kept
        FROM {asked} JOIN exit_earnings ON session_id = asked.id
        GROUP BY session_id, device_id
    ) AS x ON x.session_id = u.session_id AND x.device_id = u.device_id
"""


async def earned_of(tx: Transaction, session_id: str) -> list[EarnedRow]:
    """Return the earnings of each exit by a session.

    Exits without earnings are left out, unless they are barred. All exits that carried something
    are locked, so that none is barred meanwhile.
    """
    query = _EARNED.format(asked=tx.table("asked", id="TEXT"))
    asked = json.dumps([{"id": session_id}])
    rows = await tx.all(EarnedRow, query, asked=asked)
    if not rows:
        return rows
    await tx.lock("devices", [row.device_id for row in rows])
    rows = await tx.all(EarnedRow, query, asked=asked)
    return [row for row in rows if row.amount or row.is_barred]


async def sessions_to_advance(tx: Transaction, *, after: ActiveRow, limit: int) -> list[ActiveRow]:
    """Return active sessions that went through exits, those that expire first at the front.

    Args:
        tx: the transaction.
        after: only sessions behind this one.
        limit: how many at most.
    """
    return await tx.all(
        ActiveRow,
        """
        SELECT s.expires_at, s.id FROM bandwidth_sessions AS s
        WHERE s.status = 'active' AND (s.expires_at, s.id) > (:expires_at, :id)
            AND EXISTS (SELECT 1 FROM exit_usage AS u WHERE u.session_id = s.id)
        ORDER BY s.expires_at, s.id
        LIMIT :limit
        """,
        limit=limit,
        **after._asdict(),
    )


async def to_advance(
    tx: Transaction, session_ids: Sequence[str], *, least: int, limit: int
) -> list[EarnedRow]:
    """Return the unposted earnings of exits by sessions, and lock those exits.

    Args:
        tx: the transaction.
        session_ids: which.
        least: only exits with at least this number of unposted micro-USD.
        limit: how many rows at most.
    """
    query = f"""
        {_EARNED.format(asked=tx.table("asked", id="TEXT"))}
        WHERE e.barred_at IS NULL AND u.earned - COALESCE(x.posted, 0) >= :least
        ORDER BY u.session_id, u.device_id
        LIMIT :limit
    """
    asked = json.dumps([{"id": each} for each in session_ids])
    rows = await tx.all(EarnedRow, query, asked=asked, least=least, limit=limit)
    if not rows:
        return rows
    locked = {row.device_id for row in rows}
    await tx.lock("devices", sorted(locked))
    # Some may have been barred before, or have earned more; others wait for the next time.
    rows = await tx.all(EarnedRow, query, asked=asked, least=least, limit=limit)
    return [row for row in rows if row.device_id in locked]


async def insert_earnings(tx: Transaction, earnings: Sequence[EarningRow], now: int) -> None:
    """Record the earnings posted to pending accounts, and the earnings that barred exits lose."""
    columns = {
        "session_id": "TEXT",
        "device_id": "TEXT",
        "number": "BIGINT",
        "user_id": "TEXT",
        "used_bytes": "BIGINT",
        "amount": "BIGINT",
        "is_barred": "BIGINT",
    }
    await tx.run(
        f"""
        INSERT INTO exit_earnings
            (session_id, device_id, number, user_id, used_bytes, amount, posted_at, reversed_at)
        SELECT session_id, device_id, number, user_id, used_bytes, amount,
            CASE WHEN is_barred = 0 THEN CAST(:now AS BIGINT) END,
            CASE WHEN is_barred = 0 THEN NULL ELSE CAST(:now AS BIGINT) END
        FROM {tx.table("earned", **columns)}
        """,
        now=now,
        earned=json.dumps([each._asdict() for each in earnings]),
    )


async def due_to_pay(tx: Transaction, *, moment: int, after: DueRow, limit: int) -> list[DueRow]:
    """Return earnings that may be paid out: posted at `moment` or before, and not of a barred exit.

    Args:
        tx: the transaction.
        moment: UTC seconds.
        after: only those behind this one.
        limit: how many at most.
    """
    return await tx.all(
        DueRow,
        """
        SELECT x.posted_at, x.user_id
        FROM exit_earnings AS x JOIN exits AS e ON e.device_id = x.device_id
        WHERE x.paid_at IS NULL AND x.reversed_at IS NULL AND x.posted_at <= :moment
            AND (x.posted_at, x.user_id) > (:posted_at, :user_id) AND e.barred_at IS NULL
        ORDER BY x.posted_at, x.user_id
        LIMIT :limit
        """,
        moment=moment,
        limit=limit,
        **after._asdict(),
    )


async def pending_since(tx: Transaction, user_id: str) -> int | None:
    """Return when the oldest earning of an owner was posted that is pending."""
    return await tx.one(
        int,
        """
        SELECT posted_at FROM exit_earnings
        WHERE user_id = :user_id AND paid_at IS NULL AND reversed_at IS NULL
        ORDER BY posted_at
        LIMIT 1
        """,
        user_id=user_id,
    )


async def pay(tx: Transaction, user_id: str, *, moment: int, now: int) -> list[PaidOutRow]:
    """Resolve an owner's oldest earnings that may be paid out as paid; see `due_to_pay`."""
    return await tx.all(
        PaidOutRow,
        """
        UPDATE exit_earnings SET paid_at = :now
        WHERE paid_at IS NULL AND reversed_at IS NULL
            AND (session_id, device_id, number) IN (
                SELECT x.session_id, x.device_id, x.number
                FROM exit_earnings AS x JOIN exits AS e ON e.device_id = x.device_id
                WHERE x.user_id = :user_id AND x.paid_at IS NULL AND x.reversed_at IS NULL
                    AND x.posted_at <= :moment AND e.barred_at IS NULL
                ORDER BY x.posted_at, x.device_id
                LIMIT :limit
            )
        RETURNING session_id, device_id, number, amount, CASE WHEN EXISTS (
            SELECT 1 FROM bandwidth_sessions AS b
            WHERE b.id = exit_earnings.session_id AND b.user_id = exit_earnings.user_id
        ) THEN 0 ELSE amount END
        """,
        user_id=user_id,
        moment=moment,
        now=now,
        limit=PAID_MAX_EARNINGS,
    )


async def pending_of(
    tx: Transaction, device_id: str, *, until: int, limit: int
) -> list[PendingRow]:
    """Return earnings of a device that are pending and were posted by a time, the largest first."""
    return await tx.all(
        PendingRow,
        """
        SELECT x.session_id, x.device_id, x.number, x.amount, x.used_bytes, s.price_per_gb
        FROM exit_earnings AS x JOIN bandwidth_sessions AS s ON s.id = x.session_id
        WHERE x.device_id = :device_id AND x.paid_at IS NULL AND x.reversed_at IS NULL
            AND x.posted_at <= :until
        ORDER BY x.amount DESC, x.session_id, x.number LIMIT :limit
        """,
        device_id=device_id,
        until=until,
        limit=limit,
    )


async def reverse(
    tx: Transaction, device_id: str, earnings: Sequence[PendingRow], *, now: int
) -> list[ReversedRow]:
    """Resolve earnings of a device as reversed, and return those that were pending until now."""
    columns = {"session_id": "TEXT", "number": "BIGINT"}
    rows = await tx.all(
        PaidRow,
        f"""
        UPDATE exit_earnings SET reversed_at = :now
        WHERE paid_at IS NULL AND reversed_at IS NULL
            AND (session_id, device_id, number) IN (
                SELECT session_id, CAST(:device_id AS TEXT), number
                FROM {tx.table("wanted", **columns)}
            )
        RETURNING session_id, device_id, number, amount
        """,
        device_id=device_id,
        now=now,
        wanted=json.dumps([each._asdict() for each in earnings]),
    )
    return await tx.all(
        ReversedRow,
        f"""
        SELECT x.session_id, x.number, x.user_id, s.status, s.user_id, x.used_bytes, x.amount,
            s.price_per_gb
        FROM {tx.table("reversed", **columns)}
        JOIN exit_earnings AS x ON x.session_id = reversed.session_id
            AND x.device_id = :device_id AND x.number = reversed.number
        JOIN bandwidth_sessions AS s ON s.id = x.session_id
        ORDER BY x.session_id, x.number
        """,
        device_id=device_id,
        reversed=json.dumps([each._asdict() for each in rows]),
    )


async def days(tx: Transaction, device_ids: Sequence[str], *, since: int) -> list[DayRow]:
    """Return the traffic and the earnings of devices by day, the latest first.

    Args:
        tx: the transaction.
        device_ids: which.
        since: the first day, counted from 1970.
    """
    return await tx.all(
        DayRow,
        f"""
        SELECT x.device_id, x.day, x.used_bytes, x.earned FROM {tx.table("asked", id="TEXT")}
        JOIN exit_days AS x ON x.device_id = asked.id AND x.day >= :since
        ORDER BY x.day DESC, x.device_id
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
        since=since,
    )


async def days_of_user(tx: Transaction, user_id: str, *, since: int) -> list[EarnedDayRow]:
    """Return the traffic and the earnings of a user's exits by day, the latest first.

    Args:
        tx: the transaction.
        user_id: whose.
        since: the first day, counted from 1970.
    """
    return await tx.all(
        EarnedDayRow,
        f"""
        SELECT day, CAST(SUM(used_bytes) AS BIGINT), CAST(SUM(earned) AS BIGINT),
            CAST(SUM(taken_back) AS BIGINT)
        FROM (
            SELECT x.day, x.used_bytes, x.earned, 0 AS taken_back
            FROM exits AS e JOIN exit_days AS x ON x.device_id = e.device_id AND x.day >= :since
            WHERE e.user_id = :user_id
            UNION ALL
            SELECT r.reversed_at / {DAY_SECONDS}, 0, 0, r.amount
            FROM exits AS e JOIN exit_earnings AS r ON r.device_id = e.device_id
            WHERE e.user_id = :user_id AND r.reversed_at IS NOT NULL
                AND r.reversed_at >= :moment
        ) AS each_day
        GROUP BY day
        ORDER BY day DESC
        """,
        user_id=user_id,
        since=since,
        moment=since * DAY_SECONDS,
    )


async def sums(tx: Transaction, device_ids: Sequence[str], *, day: int) -> list[SumRow]:
    """Return the sums, in all and on a day, of those of these devices that are or were exits."""
    return await tx.all(
        SumRow,
        f"""
        SELECT e.device_id,
            CAST(COALESCE(SUM(x.used_bytes), 0) AS BIGINT),
            CAST(COALESCE(SUM(x.earned), 0) AS BIGINT),
            CAST(COALESCE(SUM(CASE WHEN x.day = :day THEN x.used_bytes END), 0) AS BIGINT),
            CAST(COALESCE(SUM(CASE WHEN x.day = :day THEN x.earned END), 0) AS BIGINT),
            (
                SELECT CAST(COALESCE(SUM(p.amount), 0) AS BIGINT) FROM exit_earnings AS p
                WHERE p.device_id = e.device_id AND p.paid_at IS NULL AND p.reversed_at IS NULL
            ),
            (
                SELECT CAST(COALESCE(SUM(r.amount), 0) AS BIGINT) FROM exit_earnings AS r
                WHERE r.device_id = e.device_id AND r.reversed_at IS NOT NULL
            ),
            d.name
        FROM {tx.table("asked", id="TEXT")}
        JOIN exits AS e ON e.device_id = asked.id
        JOIN devices AS d ON d.id = e.device_id
        LEFT JOIN exit_days AS x ON x.device_id = e.device_id
        GROUP BY e.device_id, d.name
        """,
        day=day,
        asked=json.dumps([{"id": each} for each in device_ids]),
    )


async def by_country(tx: Transaction, session_id: str) -> list[CountryRow]:
    """Return the bytes of a session that left in each country, the largest amount first."""
    return await tx.all(
        CountryRow,
        """
        SELECT e.country, COUNT(DISTINCT u.device_id), CAST(SUM(u.used_bytes) AS BIGINT)
        FROM exit_usage AS u JOIN exits AS e ON e.device_id = u.device_id
        WHERE u.session_id = :session_id AND u.used_bytes > 0
        GROUP BY e.country
        ORDER BY SUM(u.used_bytes) DESC, e.country
        """,
        session_id=session_id,
    )


async def leases_against_use(tx: Transaction) -> list[DifferenceRow]:
    """Return each lease whose `exit_bytes` differ from the sum of the counts of its exits."""
    return await tx.all(
        DifferenceRow,
        differences(
            "SELECT lease_id AS reference, used_bytes AS amount FROM exit_usage",
            "SELECT id AS reference, exit_bytes AS amount FROM bandwidth_leases"
            " WHERE exit_bytes <> 0",
        ),
    )


async def leases_overused(tx: Transaction) -> list[DifferenceRow]:
    """Return each lease whose exits carried more than it has used."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT id, used_bytes, exit_bytes FROM bandwidth_leases WHERE exit_bytes > used_bytes
        """,
    )


async def days_against_use(tx: Transaction) -> list[DifferenceRow]:
    """Return each exit whose days do not add up to its carried bytes or to its earnings."""
    rows: list[DifferenceRow] = []
    for column in ("used_bytes", "earned"):
        rows += await tx.all(
            DifferenceRow,
            differences(
                f"SELECT device_id AS reference, {column} AS amount FROM exit_usage",
                f"SELECT device_id AS reference, {column} AS amount FROM exit_days",
            ),
        )
    return rows


async def earnings_against_use(tx: Transaction) -> list[DifferenceRow]:
    """Return each settled session whose exits were not posted their earnings."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT u.session_id || ' ' || u.device_id AS reference, u.earned AS amount
            FROM exit_usage AS u JOIN bandwidth_sessions AS s ON s.id = u.session_id
            WHERE s.status <> 'active'
            """,
            """
            SELECT x.session_id || ' ' || x.device_id AS reference, x.amount
            FROM exit_earnings AS x JOIN bandwidth_sessions AS s ON s.id = x.session_id
            WHERE s.status <> 'active'
            """,
        ),
    )


async def advances_against_use(tx: Transaction) -> list[DifferenceRow]:
    """Return each active session with an exit that was posted more than its earnings."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT x.session_id || ' ' || x.device_id, u.earned, x.amount
        FROM (
            SELECT e.session_id, e.device_id, CAST(SUM(e.amount) AS BIGINT) AS amount
            FROM exit_earnings AS e JOIN bandwidth_sessions AS s ON s.id = e.session_id
            WHERE s.status = 'active'
            GROUP BY e.session_id, e.device_id
        ) AS x
        JOIN (
            SELECT session_id, device_id, CAST(SUM(earned) AS BIGINT) AS earned
            FROM exit_usage GROUP BY session_id, device_id
        ) AS u ON u.session_id = x.session_id AND u.device_id = x.device_id
        WHERE x.amount > u.earned
        ORDER BY x.session_id, x.device_id
        """,
    )


async def earned_against_price(tx: Transaction) -> list[DifferenceRow]:
    """Return each count of an exit whose earnings are not its share of the price of its bytes.

    The share of the price of `b` bytes is `b * q / 10^11`, rounded down, with `q` the price per GB
    times the share in percent. The product does not fit into 64 bits; its parts do, for up to
    10^13 bytes (the most that a session has) and prices of up to 10^12 micro-USD:
    `q = q1 * 10^11 + q0` and `b = b1 * 10^6 + b0`.
    """
    return await tx.all(
        DifferenceRow,
        """
        SELECT reference, expected, earned FROM (
            SELECT reference, earned, b * (q / 100000000000)
                + b / 1000000 * (q % 100000000000) / 100000
                + (
                    b / 1000000 * (q % 100000000000) % 100000 * 1000000
                    + b % 1000000 * (q % 100000000000)
                ) / 100000000000 AS expected
            FROM (
                SELECT u.lease_id || ' ' || u.device_id AS reference, u.earned, u.used_bytes AS b,
                    CASE WHEN e.user_id = s.user_id THEN 0
                        ELSE s.price_per_gb * s.exit_share_percent END AS q
                FROM exit_usage AS u
                JOIN bandwidth_sessions AS s ON s.id = u.session_id
                JOIN exits AS e ON e.device_id = u.device_id
            ) AS used
        ) AS recomputed
        WHERE expected <> earned
        ORDER BY reference
        """,
    )


async def earnings_against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each pending account whose credits are not the earnings of its owner."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'user:' || user_id || ':pending:usd' AS reference, amount FROM exit_earnings
            WHERE posted_at IS NOT NULL
            """,
            """
            SELECT a.id AS reference, e.amount FROM accounts AS a
            JOIN entries AS e ON e.credit_account = a.id
            WHERE a.kind = 'pending'
            """,
        ),
    )


# Earnings that the house has posted for exits before it is paid for them.
_ADVANCED = """
    FROM exit_earnings AS x JOIN bandwidth_sessions AS s ON s.id = x.session_id
    WHERE x.posted_at IS NOT NULL AND x.reversed_at IS NULL AND s.status = 'active'
"""


async def payable_against_advances(tx: Transaction) -> list[DifferenceRow]:
    """Return the house's account of its debt to exits, unless it is minus the advances."""
    return await tx.all(
        DifferenceRow,
        differences(
            f"SELECT 'house:exit_payable:usd' AS reference, -x.amount AS amount {_ADVANCED}",
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'exit_payable'",
        ),
    )


async def advances_against_holds(tx: Transaction) -> list[DifferenceRow]:
    """Return each active session with more advances than its hold."""
    return await tx.all(
        DifferenceRow,
        f"""
        SELECT h.id, h.amount, a.amount
        FROM (
            SELECT x.session_id, CAST(SUM(x.amount) AS BIGINT) AS amount {_ADVANCED}
            GROUP BY x.session_id
        ) AS a JOIN holds AS h ON h.id = 'bandwidth:' || a.session_id
        WHERE a.amount > h.amount
        ORDER BY h.id
        """,
    )


async def pending_against_earnings(tx: Transaction) -> list[DifferenceRow]:
    """Return each pending account that does not hold its owner's unresolved earnings."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'user:' || user_id || ':pending:usd' AS reference, amount FROM exit_earnings
            WHERE paid_at IS NULL AND reversed_at IS NULL
            """,
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'pending'",
        ),
    )
