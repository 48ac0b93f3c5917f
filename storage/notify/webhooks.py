"""Queries on webhooks: endpoints, deliveries to them, and each attempt at a delivery."""

import json
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row
from storage.events.events import EventRow

EVERY_TYPE = "*"
# A test of one endpoint does not send to the others.
TEST_TYPE = "test.ping"
# Endpoints take turns among this number of the deliveries that are due for longest.
TURNS_MAX_ROWS = 5_000


class EndpointRow(NamedTuple):
    """An endpoint for events of a user: `types` has commas in between, times are UTC seconds.

    `made_by` is the line of API keys that has set the address, None for a login. At `proven_at` its
    address has first answered well; until `quiet_until` nothing but tests is sent there.
    """

    id: str
    user_id: str
    url: str
    types: str
    description: str
    sealed_secret: str
    sealed_old_secret: str | None
    old_until: int | None
    created_at: int
    failing_since: int | None
    disabled_at: int | None
    disabled_reason: str | None
    made_by: str | None
    proven_at: int | None = None
    quiet_until: int = 0

    def wants(self, kind: str) -> bool:
        """Return whether this endpoint receives events of a type as they happen."""
        if kind == TEST_TYPE:
            return False
        wanted = self.types.split(",")
        return EVERY_TYPE in wanted or kind in wanted


class DeliveryRow(NamedTuple):
    """Delivery of an event to an endpoint; `next_at` counts while it is pending."""

    id: str
    endpoint_id: str
    user_id: str
    event_id: str
    type: str
    status: str
    attempts: int
    tries: int
    next_at: int
    last_status: int | None
    last_error: str | None
    last_ms: int | None
    created_at: int


class AttemptRow(NamedTuple):
    """One attempt: the status of the answer if there was one, the error, and the duration."""

    number: int
    started_at: int
    status: int | None
    error: str
    ms: int
    answer: str


class DueRow(NamedTuple):
    """A delivery whose time has come, and whose; `is_proven` is 1 if its endpoint ever answered."""

    id: str
    endpoint_id: str
    user_id: str
    is_proven: int


class Waiting(NamedTuple):
    """The number of pending deliveries, and the time since which the oldest due one waits."""

    deliveries: int
    since: int | None


_UNCHANGED = ("id", "user_id", "created_at", "disabled_at", "disabled_reason")
_ENDPOINT = ", ".join(EndpointRow._fields)
_DELIVERY_TYPES = {
    "id": "TEXT",
    "endpoint_id": "TEXT",
    "user_id": "TEXT",
    "event_id": "TEXT",
    "type": "TEXT",
    "next_at": "BIGINT",
    "created_at": "BIGINT",
}
_NEW = ", ".join(_DELIVERY_TYPES)
_DELIVERY = ", ".join(DeliveryRow._fields)
_ATTEMPT = ", ".join(AttemptRow._fields)


async def schedule(
    tx: Transaction, events: Sequence[EventRow], new_id: Callable[[], str]
) -> list[str]:
    """Deliver events to the endpoints that want them; return the deliveries' identifiers.

    One statement for users without endpoints, and two otherwise, however many events there are. No
    endpoint gets the events about itself.
    """
    users = {event.user_id for event in events}
    endpoints = await tx.all(
        EndpointRow,
        f"""
        SELECT {_ENDPOINT} FROM webhook_endpoints
        WHERE user_id {tx.among("users")} AND disabled_at IS NULL
        """,
        users=json.dumps(sorted(users)),
    )
    pairs = [
        (endpoint, event)
        for event in events
        for endpoint in endpoints
        if endpoint.user_id == event.user_id
        and endpoint.wants(event.type)
        and endpoint.id != event.subject_id
    ]
    return await _insert(tx, pairs, new_id)


async def schedule_one(
    tx: Transaction, endpoint: EndpointRow, event: EventRow, new_id: Callable[[], str]
) -> str:
    """Schedule one event for one endpoint, regardless of its types; return the identifier."""
    (made,) = await _insert(tx, [(endpoint, event)], new_id)
    return made


async def _insert(
    tx: Transaction, pairs: Sequence[tuple[EndpointRow, EventRow]], new_id: Callable[[], str]
) -> list[str]:
    if not pairs:
        return []
    rows = [
        {
            "id": new_id(),
            "endpoint_id": endpoint.id,
            "user_id": event.user_id,
            "event_id": event.id,
            "type": event.type,
            "next_at": _not_before(endpoint, event),
            "created_at": event.created_at,
        }
        for endpoint, event in pairs
    ]
    await tx.run(
        f"""
        INSERT INTO webhook_deliveries ({_NEW}, status)
        SELECT {_NEW}, 'pending' FROM {tx.table("made", **_DELIVERY_TYPES)}
        """,
        made=json.dumps(rows),
    )
    return [str(row["id"]) for row in rows]


def _not_before(endpoint: EndpointRow, event: EventRow) -> int:
    if event.type == TEST_TYPE:
        return event.created_at
    return max(event.created_at, endpoint.quiet_until)


# --- endpoints -------------------------------------------------------------------------------


async def insert_endpoint(tx: Transaction, row: EndpointRow) -> None:
    """Add an endpoint."""
    await insert_row(tx, "webhook_endpoints", **row._asdict())


async def endpoints(tx: Transaction, user_id: str) -> list[EndpointRow]:
    """Return a user's endpoints, oldest first."""
    return await tx.all(
        EndpointRow,
        f"SELECT {_ENDPOINT} FROM webhook_endpoints WHERE user_id = :user_id ORDER BY user_id, id",
        user_id=user_id,
    )


async def endpoint(tx: Transaction, user_id: str, endpoint_id: str) -> EndpointRow | None:
    """Return one of a user's endpoints."""
    return await tx.one(
        EndpointRow,
        f"SELECT {_ENDPOINT} FROM webhook_endpoints WHERE id = :id AND user_id = :user_id",
        id=endpoint_id,
        user_id=user_id,
    )


async def update_endpoint(tx: Transaction, row: EndpointRow) -> None:
    """Store the fields of an endpoint, except its state and the reason of that."""
    values = {name: value for name, value in row._asdict().items() if name not in _UNCHANGED}
    changes = ", ".join(f"{name} = :{name}" for name in values)
    await tx.run(f"UPDATE webhook_endpoints SET {changes} WHERE id = :id", id=row.id, **values)


async def enable(tx: Transaction, endpoint_id: str) -> bool:
    """Enable an endpoint again, and forget its failures; False when it was not disabled."""
    changed = await tx.run(
        """
        UPDATE webhook_endpoints
        SET disabled_at = NULL, disabled_reason = NULL, failing_since = NULL
        WHERE id = :id AND disabled_at IS NOT NULL
        """,
        id=endpoint_id,
    )
    return changed == 1


async def disable(tx: Transaction, endpoint_id: str, reason: str, now: int) -> bool:
    """Disable an endpoint; its waiting deliveries fail. False when it was so before."""
    changed = await tx.run(
        """
        UPDATE webhook_endpoints SET disabled_at = :now, disabled_reason = :reason
        WHERE id = :id AND disabled_at IS NULL
        """,
        id=endpoint_id,
        reason=reason,
        now=now,
    )
    if changed:
        await tx.run(
            """
            UPDATE webhook_deliveries SET status = 'failed', last_error = 'disabled'
            WHERE endpoint_id = :id AND status = 'pending'
            """,
            id=endpoint_id,
        )
    return changed == 1


async def delete_endpoint(tx: Transaction, user_id: str, endpoint_id: str) -> bool:
    """Delete an endpoint; False when the user has no such one. Its deliveries: `delete_of`."""
    changed = await tx.run(
        "DELETE FROM webhook_endpoints WHERE id = :id AND user_id = :user_id",
        id=endpoint_id,
        user_id=user_id,
    )
    return changed == 1


async def begin_failing(
    tx: Transaction, endpoint_id: str, url: str, now: int
) -> EndpointRow | None:
    """Note a failure; return the endpoint with its `failing_since`.

    None when it is deleted, or leads elsewhere by now: the failure says nothing of another server.
    """
    await tx.run(
        """
        UPDATE webhook_endpoints SET failing_since = :now
        WHERE id = :id AND url = :url AND failing_since IS NULL
        """,
        id=endpoint_id,
        url=url,
        now=now,
    )
    return await tx.one(
        EndpointRow,
        f"SELECT {_ENDPOINT} FROM webhook_endpoints WHERE id = :id AND url = :url",
        id=endpoint_id,
        url=url,
    )


async def end_failing(tx: Transaction, endpoint_id: str, url: str, now: int) -> None:
    """Note a success at a URL; the first success ends the delay that `quieten` has set.

    Nothing is noted when the endpoint leads elsewhere by now: another server has agreed to nothing.
    """
    await tx.run(
        """
        UPDATE webhook_endpoints SET failing_since = NULL
        WHERE id = :id AND url = :url AND failing_since IS NOT NULL
        """,
        id=endpoint_id,
        url=url,
    )
    is_first = await tx.run(
        """
        UPDATE webhook_endpoints SET quiet_until = 0, proven_at = :now
        WHERE id = :id AND url = :url AND proven_at IS NULL
        """,
        id=endpoint_id,
        url=url,
        now=now,
    )
    if is_first:
        await release(tx, endpoint_id, now)


async def quieten(tx: Transaction, endpoint_id: str, until: int) -> None:
    """Send nothing but tests to an endpoint until then."""
    await tx.run(
        "UPDATE webhook_endpoints SET quiet_until = :until WHERE id = :id",
        id=endpoint_id,
        until=until,
    )
    await tx.run(
        f"""
        UPDATE webhook_deliveries SET next_at = :until
        WHERE endpoint_id = :id AND status = 'pending' AND next_at < :until
            AND type <> '{TEST_TYPE}'
        """,
        id=endpoint_id,
        until=until,
    )


async def release(tx: Transaction, endpoint_id: str, now: int) -> None:
    """Send everything to an endpoint now that was put off and not attempted yet."""
    await tx.run(
        """
        UPDATE webhook_deliveries SET next_at = :now
        WHERE endpoint_id = :id AND status = 'pending' AND next_at > :now AND tries = 0
        """,
        id=endpoint_id,
        now=now,
    )


# --- deliveries ------------------------------------------------------------------------------


async def due(
    tx: Transaction,
    *,
    but: Collection[str],
    but_users: Collection[str],
    now: int,
    limit: int,
    turns_max: int = TURNS_MAX_ROWS,
) -> list[DueRow]:
    """Return deliveries whose time has come, their endpoints taking turns.

    An endpoint that has never answered well has one at a time, beside tests.

    Args:
        tx: the transaction.
        but: endpoints to leave out.
        but_users: users all of whose endpoints to leave out.
        now: UTC seconds.
        limit: how many at most.
        turns_max: among how many of the oldest the endpoints take turns.
    """
    values: dict[str, str] = {}
    left_out = ""
    if but:
        left_out = f"AND endpoint_id NOT IN (SELECT id FROM {tx.table('busy', id='TEXT')})"
        values["busy"] = json.dumps([{"id": each} for each in sorted(but)])
    if but_users:
        left_out += f" AND user_id NOT IN (SELECT id FROM {tx.table('users', id='TEXT')})"
        values["users"] = json.dumps([{"id": each} for each in sorted(but_users)])
    return await tx.all(
        DueRow,
        f"""
        SELECT id, endpoint_id, user_id, is_proven FROM (
            SELECT id, endpoint_id, user_id, type, next_at,
                CASE WHEN (
                    SELECT w.proven_at FROM webhook_endpoints AS w WHERE w.id = oldest.endpoint_id
                ) IS NULL THEN 0 ELSE 1 END AS is_proven,
                ROW_NUMBER() OVER (PARTITION BY endpoint_id ORDER BY next_at, id) AS turn
            FROM (
                SELECT id, endpoint_id, user_id, type, next_at FROM webhook_deliveries
                WHERE status = 'pending' AND next_at <= :now {left_out}
                ORDER BY next_at, id
                LIMIT {turns_max}
            ) AS oldest
        ) AS in_turns
        WHERE turn = 1 OR type = '{TEST_TYPE}' OR is_proven = 1
        ORDER BY turn, next_at, id
        LIMIT :limit
        """,
        now=now,
        limit=limit,
        **values,
    )


async def pending(
    tx: Transaction, delivery_id: str
) -> tuple[DeliveryRow, EndpointRow, EventRow | None] | None:
    """Return the delivery, endpoint and event of an attempt; None when it is no longer pending.

    The event is absent if it is too old to be kept.
    """
    found = await tx.one(
        DeliveryRow,
        f"SELECT {_DELIVERY} FROM webhook_deliveries WHERE id = :id AND status = 'pending'",
        id=delivery_id,
    )
    if found is None:
        return None
    place = await tx.one(
        EndpointRow,
        f"SELECT {_ENDPOINT} FROM webhook_endpoints WHERE id = :id AND disabled_at IS NULL",
        id=found.endpoint_id,
    )
    if place is None:
        return None
    return found, place, await event(tx, found.event_id)


async def event(tx: Transaction, event_id: str) -> EventRow | None:
    """Return an event; None of one that is too old to be kept."""
    return await tx.one(
        EventRow,
        f"SELECT {', '.join(EventRow._fields)} FROM events WHERE id = :id",
        id=event_id,
    )


async def record_attempt(
    tx: Transaction,
    row: DeliveryRow,
    attempt: AttemptRow,
    *,
    status: str,
    next_at: int,
    kept: int,
) -> bool:
    """Record the result of an attempt; False if another attempt was recorded since.

    A request for the whole schedule again (`retry`) that came meanwhile takes effect, unless the
    event is delivered.

    Args:
        tx: the transaction.
        row: the delivery as it was when the attempt began.
        attempt: how it went.
        status: the new status of the delivery.
        next_at: when the next attempt is due, if it is pending.
        kept: how many attempts are kept.
    """
    changed = await tx.run(
        """
        UPDATE webhook_deliveries
        SET status = CASE WHEN tries = :tries OR :status = 'delivered' THEN :status ELSE status END,
            next_at = CASE WHEN tries = :tries THEN :next_at ELSE next_at END,
            tries = CASE WHEN tries = :tries THEN tries + 1 ELSE tries END,
            attempts = attempts + 1,
            last_status = :last_status, last_error = :last_error, last_ms = :last_ms
        WHERE id = :id AND status = 'pending' AND attempts = :attempts
        """,
        id=row.id,
        attempts=row.attempts,
        tries=row.tries,
        status=status,
        next_at=next_at,
        last_status=attempt.status,
        last_error=attempt.error or None,
        last_ms=attempt.ms,
    )
    if not changed:
        return False
    await insert_row(tx, "webhook_attempts", delivery_id=row.id, **attempt._asdict())
    await tx.run(
        "DELETE FROM webhook_attempts WHERE delivery_id = :id AND number <= :oldest",
        id=row.id,
        oldest=attempt.number - kept,
    )
    return True


async def give_up(tx: Transaction, delivery_id: str, error: str) -> None:
    """Mark a delivery as failed that cannot be attempted."""
    await tx.run(
        """
        UPDATE webhook_deliveries SET status = 'failed', last_error = :error
        WHERE id = :id AND status = 'pending'
        """,
        id=delivery_id,
        error=error,
    )


async def give_up_disabled(tx: Transaction, delivery_id: str) -> None:
    """Mark a delivery as failed whose endpoint is disabled or deleted.

    The endpoint is locked, so that a request of its owner to enable it, and to send the delivery
    again, is before that or after it.
    """
    endpoint_id = await tx.one(
        str, "SELECT endpoint_id FROM webhook_deliveries WHERE id = :id", id=delivery_id
    )
    if endpoint_id is None:
        return
    await tx.lock("webhook_endpoints", [endpoint_id])
    await tx.run(
        """
        UPDATE webhook_deliveries SET status = 'failed', last_error = 'disabled'
        WHERE id = :id AND status = 'pending' AND NOT EXISTS (
            SELECT 1 FROM webhook_endpoints AS w
            WHERE w.id = webhook_deliveries.endpoint_id AND w.disabled_at IS NULL
        )
        """,
        id=delivery_id,
    )


async def page(
    tx: Transaction, endpoint_id: str, *, status: str, before: str, limit: int
) -> list[DeliveryRow]:
    """Return the deliveries to an endpoint, newest first; of one status unless ""."""
    only = "AND status = :status" if status else ""
    values = {"status": status} if status else {}
    return await tx.all(
        DeliveryRow,
        f"""
        SELECT {_DELIVERY} FROM webhook_deliveries
        WHERE endpoint_id = :endpoint_id AND id < :before {only}
        ORDER BY id {NEWEST_FIRST}
        LIMIT :limit
        """,
        endpoint_id=endpoint_id,
        before=behind(before),
        limit=limit,
        **values,
    )


async def delivery(tx: Transaction, user_id: str, delivery_id: str) -> DeliveryRow | None:
    """Return one delivery of a user."""
    return await tx.one(
        DeliveryRow,
        f"SELECT {_DELIVERY} FROM webhook_deliveries WHERE id = :id AND user_id = :user_id",
        id=delivery_id,
        user_id=user_id,
    )


async def attempts(tx: Transaction, delivery_id: str) -> list[AttemptRow]:
    """Return the attempts at a delivery that are kept, oldest first."""
    return await tx.all(
        AttemptRow,
        f"SELECT {_ATTEMPT} FROM webhook_attempts WHERE delivery_id = :id ORDER BY number",
        id=delivery_id,
    )


async def retry(tx: Transaction, delivery_id: str, now: int) -> None:
    """Repeat a delivery now, with the whole schedule before it, even if it was delivered."""
    await tx.run(
        """
        UPDATE webhook_deliveries SET status = 'pending', tries = 0, next_at = :now WHERE id = :id
        """,
        id=delivery_id,
        now=now,
    )


async def recover(tx: Transaction, endpoint_id: str, *, since: int, limit: int, now: int) -> int:
    """Repeat the failed deliveries since a time, the oldest first. Return their number."""
    return await tx.run(
        """
        UPDATE webhook_deliveries SET status = 'pending', tries = 0, next_at = :now
        WHERE id IN (
            SELECT id FROM webhook_deliveries
            WHERE endpoint_id = :id AND status = 'failed' AND created_at >= :since
            ORDER BY endpoint_id, id
            LIMIT :limit
        )
        """,
        id=endpoint_id,
        since=since,
        limit=limit,
        now=now,
    )


async def count_pending(tx: Transaction, endpoint_id: str) -> int:
    """Return how many deliveries wait for an endpoint."""
    found = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM webhook_deliveries WHERE endpoint_id = :id AND status = 'pending'
        """,
        id=endpoint_id,
    )
    return found or 0


async def crowded(tx: Transaction, most: int) -> list[str]:
    """Return the endpoints with more than `most` waiting deliveries."""
    return await tx.all(
        str,
        """
        SELECT endpoint_id FROM webhook_deliveries WHERE status = 'pending'
        GROUP BY endpoint_id HAVING COUNT(*) > :most
        """,
        most=most,
    )


async def drop_newest(tx: Transaction, endpoint_id: str, most: int) -> int:
    """Fail all waiting deliveries to an endpoint but the `most` that are due first."""
    return await tx.run(
        """
        UPDATE webhook_deliveries SET status = 'failed', last_error = 'too many waiting'
        WHERE id IN (
            SELECT id FROM (
                SELECT id, ROW_NUMBER() OVER (ORDER BY next_at, id) AS place
                FROM webhook_deliveries WHERE endpoint_id = :id AND status = 'pending'
            ) AS places
            WHERE place > :most
        )
        """,
        id=endpoint_id,
        most=most,
    )


async def waiting(tx: Transaction, now: int) -> Waiting:
    """Return the number of waiting deliveries, and the time of the one due for longest."""
    found = await tx.one(
        Waiting,
        """
        SELECT COUNT(*), MIN(CASE WHEN next_at <= :now THEN next_at END)
        FROM webhook_deliveries WHERE status = 'pending'
        """,
        now=now,
    )
    return found or Waiting(0, None)


async def delete_before(tx: Transaction, delivery_id: str, *, limit: int) -> int:
    """Delete the oldest deliveries of all users, with their attempts. Return the number deleted."""
    return await tx.run(
        """
        DELETE FROM webhook_deliveries WHERE id IN (
            SELECT id FROM webhook_deliveries WHERE id < :id ORDER BY id LIMIT :limit
        )
        """,
        id=delivery_id,
        limit=limit,
    )


async def delete_of(tx: Transaction, endpoint_id: str, *, limit: int) -> int:
    """Delete deliveries to a deleted endpoint. Return the number deleted."""
    return await tx.run(
        """
        DELETE FROM webhook_deliveries WHERE id IN (
            SELECT id FROM webhook_deliveries WHERE endpoint_id = :id LIMIT :limit
        )
        """,
        id=endpoint_id,
        limit=limit,
    )
