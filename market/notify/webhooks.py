"""Webhooks: events sent to users' own servers, by the specification Standard Webhooks 1.0.

An endpoint has a secret, which signs its deliveries. The transaction that records an event also
stores its deliveries (`market.events.recording`). A sender in `proxyd.outbound` fetches due
deliveries, attempts them, and reports the outcome. A failed attempt is repeated on a schedule. A
test and a retry are deliveries like all others, so the same rules hold for them.

Deliveries need no claims: only the daemon that sweeps a database sends them. If it dies in the
middle of an attempt, the next one makes that attempt again; receivers know it by its identifier,
which is the event's and the same in every attempt.
"""

import base64
import hashlib
import hmac
import random
import secrets
from collections.abc import Collection, Sequence
from enum import Enum, auto
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Raw, Struct

from market.accounts.letters import Letters
from market.accounts.mail import Message, webhook_disabled
from market.accounts.makers import require_current
from market.accounts.scopes import LOCAL, Maker
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.throttle import Throttle
from market.events import recording as event_log
from market.events.catalogue import (
    CATALOGUE,
    Ping,
    WebhookChanged,
    WebhookCreated,
    WebhookDisabled,
    timestamp,
)
from market.events.context import Context
from market.notify.feed import beginning_of
from storage.accounts import users
from storage.engines.store import Transaction
from storage.events.events import EventRow
from storage.notify import webhooks as queries
from storage.notify.webhooks import (
    EVERY_TYPE,
    TEST_TYPE,
    AttemptRow,
    DeliveryRow,
    DueRow,
    EndpointRow,
    Waiting,
)

ENDPOINTS_MAX = 10
URL_MAX_CHARACTERS = 2_000
DESCRIPTION_MAX_CHARACTERS = 200
SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 - how every secret begins
# Time after a roll in which the old secret signs as well.
OVERLAP_SECONDS = 24 * 3_600
# Pause before each attempt, in seconds after the previous one: the specification's own schedule.
SCHEDULE = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
JITTER = 0.2  # of each pause, more or less
RETRY_AFTER_MAX_SECONDS = 86_400
# An endpoint is disabled after this time of failures without a success.
FAILING_MAX_SECONDS = 5 * 86_400
# An endpoint that has never answered well gets no events after a failure, for the time that it has
# failed so far: its server may belong to a person without any part in this. Tests are sent anyway.
QUIET_LEAST_SECONDS, QUIET_MOST_SECONDS = 5, 3_600
ATTEMPTS_KEPT = 30  # three whole schedules
RETENTION_SECONDS = 30 * 86_400  # as events
DELETED_MAX = 1_000  # in one transaction
DELETED_MAX_TIMES = 20  # in one sweep
# The number of webhooks that a user sends by hand is bounded: other servers receive them.
BY_HAND_PER_WINDOW = 30
WINDOW_SECONDS = 60
HTTPS_PORT = 443
FIRST_FREE_PORT = 1_024  # below it are other services of the internet, which speak no HTTP

# Why an endpoint is disabled: the last two are for a stolen password and a stolen key.
GONE, FAILING, BY_USER, RESET, BY_KEY = "gone", "failing", "user", "reset", "key"
CLOSED = "closed"
GONE_STATUS = 410
_REASONS = {
    GONE: "it answered that it is gone for good (status 410)",
    FAILING: "nothing could be delivered there for five days",
}


class WebhookTerms(Struct, frozen=True):
    """Permitted targets of webhooks, beside the rules of egress.

    `allows_loopback` is for demonstrations: it permits endpoints on this machine, also without TLS.
    """

    blocked_ports: frozenset[int] = frozenset()
    allows_loopback: bool = False


class QueueBounds(Struct, frozen=True):
    """The number of deliveries that wait.

    Attributes:
        pending: for one endpoint; the rest fails, and can be recovered.
        turns: the oldest deliveries, among which the endpoints take turns.
    """

    pending: int = 10_000
    turns: int = queries.TURNS_MAX_ROWS


USUAL_BOUNDS = QueueBounds()


class Secret(Struct, frozen=True):
    """An endpoint and its secret, which is shown once."""

    endpoint: EndpointRow
    secret: str


class Attempt(Struct, frozen=True):
    """Attempt that is sent now: the delivery, and its request."""

    row: DeliveryRow
    url: str
    headers: dict[str, str]
    body: bytes
    started_at: int


class DeliveryOutcome(Struct, frozen=True):
    """Outcome of an attempt: the status of the answer, or a class of errors.

    `error` is "" of a success. `answer` is how the answer began. The server asks to be left alone
    for `retry_after_seconds`.
    """

    status: int | None
    error: str
    ms: int
    answer: str = ""
    retry_after_seconds: int = 0


class Shown(Struct, frozen=True):
    """Delivery in its user's view; without a body once the event was deleted."""

    row: DeliveryRow
    attempts: list[AttemptRow]
    body: str | None


class _Written(Enum):
    """Result of storing an attempt: nothing (stored before), its outcome, or also an e-mail."""

    NOTHING = auto()
    OUTCOME = auto()
    WITH_LETTER = auto()


class _Body(Struct):
    """Body of a delivery, by the specification."""

    type: str
    timestamp: str
    data: Raw


class Webhooks:
    """Endpoints and their deliveries."""

    def __init__(
        self,
        context: Context,
        sealing: Sealing,
        letters: Letters,
        terms: WebhookTerms,
        bounds: QueueBounds = USUAL_BOUNDS,
    ) -> None:
        self.bounds = bounds
        self._context = context
        self._store = context.store
        self._now = context.now
        self._sealing = sealing
        self._letters = letters
        self._terms = terms
        self._by_hand = Throttle(BY_HAND_PER_WINDOW, WINDOW_SECONDS, context.now)
        # As `sweep` has counted it last; and attempts of this process, by how they ended.
        self.waiting = Waiting(0, None)
        self.late_seconds = 0
        self.ends = {"delivered": 0, "failed": 0}

    # --- endpoints ---------------------------------------------------------------------------

    async def create(
        self,
        user_id: str,
        *,
        url: str,
        types: Sequence[str],
        description: str,
        maker: Maker = LOCAL,
    ) -> Secret:
        """Add an endpoint, and return it with its secret.

        A `maker` that has ended since the request began adds none.

        Raises:
            MarketError: `invalid_field`, `too_many_webhooks`, `unauthorized`.
        """
        secret = _new_secret()
        row = EndpointRow(
            id=self._context.identifiers.new(),
            user_id=user_id,
            url=checked_url(url, self._terms),
            types=_checked_types(types),
            description=description,
            sealed_secret=self._sealing.close(secret),
            sealed_old_secret=None,
            old_until=None,
            created_at=self._now(),
            failing_since=None,
            disabled_at=None,
            disabled_reason=None,
            made_by=maker.purse_id,
        )

        async def unit(tx: Transaction) -> None:
            await require_current(tx, user_id, self._now(), maker)
            await _create(tx, self._context, row, maker.key_id)

        await self._store.write(unit)
        return Secret(row, shown_secret(secret))

    async def all_of(self, user_id: str) -> list[EndpointRow]:
        """Return a user's endpoints, oldest first."""
        return await self._store.read(queries.endpoints, user_id)

    async def change(
        self,
        user_id: str,
        endpoint_id: str,
        *,
        url: str | None = None,
        types: Sequence[str] | None = None,
        description: str | None = None,
        is_enabled: bool | None = None,
        maker: Maker = LOCAL,
    ) -> EndpointRow:
        """Change the given fields of an endpoint; None leaves a field unchanged.

        An API key that changes the URL of an endpoint, or enables it, counts as its maker. Enabling
        an endpoint, or giving it another URL, clears its failures; a recovery sends the missed
        events. A `maker` that has ended since the request began changes nothing.

        Raises:
            MarketError: `webhook_not_found`, `invalid_field`, `unauthorized`.
        """
        place = None if url is None else checked_url(url, self._terms)
        wanted = None if types is None else _checked_types(types)

        async def unit(tx: Transaction) -> EndpointRow:
            await require_current(tx, user_id, self._now(), maker)
            row = await _locked(tx, user_id, endpoint_id)
            changed = row._replace(
                url=row.url if place is None else place,
                types=row.types if wanted is None else wanted,
                description=row.description if description is None else description,
            )
            if changed.url != row.url:
                await _require_new_url(tx, changed)
                changed = changed._replace(proven_at=None, failing_since=None, quiet_until=0)
                await queries.release(tx, endpoint_id, self._now())
            is_news = is_enabled or (changed.url, changed.types) != (row.url, row.types)
            if is_news:
                changed = await self._note_change(tx, changed, maker)
            await queries.update_endpoint(tx, changed)
            if is_enabled:
                await queries.enable(tx, endpoint_id)
            elif is_enabled is not None:
                await queries.disable(tx, endpoint_id, BY_USER, self._now())
            return await _endpoint(tx, user_id, endpoint_id)

        return await self._store.write(unit)

    async def _note_change(self, tx: Transaction, row: EndpointRow, maker: Maker) -> EndpointRow:
        """Record the change of an endpoint. Return it as made by `maker`."""
        data = WebhookChanged(row.id, row.url, maker.key_id)
        await event_log.record(tx, self._context, row.user_id, data, subject_id=row.id)
        return row._replace(made_by=maker.purse_id)

    async def roll(
        self,
        user_id: str,
        endpoint_id: str,
        *,
        maker: Maker = LOCAL,
    ) -> Secret:
        """Give an endpoint another secret; the old one also signs for a day.

        Raises:
            MarketError: `webhook_not_found`, `unauthorized`.
        """
        secret = _new_secret()
        sealed, until = self._sealing.close(secret), self._now() + OVERLAP_SECONDS

        async def unit(tx: Transaction) -> EndpointRow:
            await require_current(tx, user_id, self._now(), maker)
            row = await _locked(tx, user_id, endpoint_id)
            rolled = row._replace(
                sealed_secret=sealed, sealed_old_secret=row.sealed_secret, old_until=until
            )
            rolled = await self._note_change(tx, rolled, maker)
            await queries.update_endpoint(tx, rolled)
            return rolled

        return Secret(await self._store.write(unit), shown_secret(secret))

    async def delete(self, user_id: str, endpoint_id: str) -> None:
        """Delete an endpoint; it receives no more events.

        Raises:
            MarketError: `webhook_not_found`.
        """
        if not await self._store.write(queries.delete_endpoint, user_id, endpoint_id):
            raise MarketError(Code.WEBHOOK_NOT_FOUND)
        # Rows that a crash leaves are deleted by age like all others.
        while await self._store.write(queries.delete_of, endpoint_id, limit=DELETED_MAX):
            pass

    # --- deliveries --------------------------------------------------------------------------

    async def test(self, user_id: str, endpoint_id: str) -> str:
        """Schedule a test event for an endpoint. Return the delivery's identifier.

        Raises:
            MarketError: `webhook_not_found`, `webhook_disabled`, `too_many_attempts`.
        """
        self._by_hand.take(user_id)

        async def unit(tx: Transaction) -> str:
            place = _enabled(await _locked(tx, user_id, endpoint_id))
            ping = Ping(endpoint_id)
            event = await event_log.record(tx, self._context, user_id, ping, subject_id=endpoint_id)
            return await queries.schedule_one(tx, place, event, self._context.identifiers.new)

        return await self._store.write(unit)

    async def deliveries(
        self, user_id: str, endpoint_id: str, *, status: str, before: str, limit: int
    ) -> list[DeliveryRow]:
        """Return the deliveries of an endpoint, newest first.

        Raises:
            MarketError: `webhook_not_found`.
        """

        async def unit(tx: Transaction) -> list[DeliveryRow]:
            await _endpoint(tx, user_id, endpoint_id)
            return await queries.page(tx, endpoint_id, status=status, before=before, limit=limit)

        return await self._store.read(unit)

    async def delivery(self, user_id: str, delivery_id: str) -> Shown:
        """Return a delivery with its attempts.

        Raises:
            MarketError: `delivery_not_found`.
        """

        async def unit(tx: Transaction) -> Shown:
            row = await _delivery(tx, user_id, delivery_id)
            event = await queries.event(tx, row.event_id)
            body = None if event is None else body_of(event).decode()
            return Shown(row, await queries.attempts(tx, delivery_id), body)

        return await self._store.read(unit)

    async def retry(self, user_id: str, delivery_id: str) -> DeliveryRow:
        """Schedule a delivery for now, for any earlier outcome.

        Raises:
            MarketError: `delivery_not_found`, `webhook_disabled`, `too_many_attempts`.
        """
        self._by_hand.take(user_id)

        async def unit(tx: Transaction) -> DeliveryRow:
            row = await _delivery(tx, user_id, delivery_id)
            await tx.lock("webhook_endpoints", [row.endpoint_id])
            place = await queries.endpoint(tx, user_id, row.endpoint_id)
            if place is None or await queries.event(tx, row.event_id) is None:
                raise MarketError(Code.DELIVERY_NOT_FOUND)
            _enabled(place)
            await queries.retry(tx, delivery_id, self._now())
            return await _delivery(tx, user_id, delivery_id)

        return await self._store.write(unit)

    async def recover(self, user_id: str, endpoint_id: str, since: int) -> int:
        """Schedule all deliveries that failed since a time again. Return their number.

        The queue of the endpoint limits their number; another call recovers the rest.

        Raises:
            MarketError: `webhook_not_found`, `webhook_disabled`, `too_many_attempts`.
        """
        self._by_hand.take(user_id)

        async def unit(tx: Transaction) -> int:
            _enabled(await _locked(tx, user_id, endpoint_id))
            room = self.bounds.pending - await queries.count_pending(tx, endpoint_id)
            if room <= 0:
                return 0
            return await queries.recover(tx, endpoint_id, since=since, limit=room, now=self._now())

        return await self._store.write(unit)

    # --- sending -----------------------------------------------------------------------------

    async def due(
        self, *, but: Collection[str], but_users: Collection[str] = (), limit: int
    ) -> list[DueRow]:
        """Return due deliveries, except those of the given endpoints and users.

        Raises:
            StoreError: the database is unavailable.
        """
        return await self._store.read(
            queries.due,
            but=but,
            but_users=but_users,
            now=self._now(),
            limit=limit,
            turns_max=self.bounds.turns,
        )

    async def begin(self, delivery_id: str) -> Attempt | None:
        """Return the request for a delivery, or None when no further attempt is due.

        Raises:
            StoreError: the database is unavailable.
        """
        found = await self._store.read(queries.pending, delivery_id)
        if found is None:
            await self._store.write(queries.give_up_disabled, delivery_id)
            return None
        row, place, event = found
        now = self._now()
        if row.next_at > now:  # an attempt that was under way when it was listed has failed since
            return None
        keys = self._keys(place, now)
        if event is None or not keys:
            why = "event not kept" if event is None else "secret not readable"
            await self._store.write(queries.give_up, delivery_id, why)
            return None
        body = body_of(event)
        return Attempt(row, place.url, signed(event.id, now, body, keys), body, now)

    async def settle(self, attempt: Attempt, outcome: DeliveryOutcome) -> None:
        """Store the outcome of an attempt; decide whether and when another one follows.

        Raises:
            StoreError: nothing was written; it may be tried again.
        """
        written = await self._store.write(self._settle, attempt, outcome)
        if written is not _Written.NOTHING:
            self.ends["failed" if outcome.error else "delivered"] += 1
        if written is _Written.WITH_LETTER:
            self._letters.wake()

    async def sweep(self) -> None:
        """Delete old deliveries, drop deliveries beyond the queues' limits, and count waiting ones.

        Raises:
            StoreError: it is done later.
        """
        most = self.bounds.pending
        for endpoint_id in await self._store.read(queries.crowded, most):
            await self._store.write(_drop_newest, endpoint_id, most)
        before = beginning_of(self._now() - RETENTION_SECONDS)
        for _ in range(DELETED_MAX_TIMES):
            gone = await self._store.write(queries.delete_before, before, limit=DELETED_MAX)
            if gone < DELETED_MAX:
                break
        now = self._now()
        self.waiting = await self._store.read(queries.waiting, now)
        self.late_seconds = 0 if self.waiting.since is None else now - self.waiting.since

    def _keys(self, place: EndpointRow, now: int) -> list[bytes]:
        """Return the secrets that sign now, the newest first; none if that cannot be read."""
        newest = self._sealing.open(place.sealed_secret)
        if newest is None:
            return []
        if place.sealed_old_secret is None or place.old_until is None or now >= place.old_until:
            return [newest]
        old = self._sealing.open(place.sealed_old_secret)
        return [newest] if old is None else [newest, old]

    async def _settle(
        self, tx: Transaction, attempt: Attempt, outcome: DeliveryOutcome
    ) -> "_Written":
        row, now = attempt.row, self._now()
        if outcome.error:
            # The user before the endpoint, as everybody does: the second change of an endpoint
            # refers to its user again, which locks the user.
            await users.lock(tx, row.user_id)
        # The endpoint first, as everybody does who changes both.
        await tx.lock("webhook_endpoints", [row.endpoint_id])
        done = AttemptRow(
            number=row.attempts + 1,
            started_at=attempt.started_at,
            status=outcome.status,
            error=outcome.error,
            ms=outcome.ms,
            answer=outcome.answer,
        )
        is_gone = outcome.status == GONE_STATUS and not await _leads_elsewhere(tx, attempt)
        is_last = row.tries + 1 >= len(SCHEDULE) or is_gone
        status, next_at = "delivered", row.next_at
        if outcome.error:
            status = "failed" if is_last else "pending"
            next_at = now if is_last else now + self._pause(row.tries + 1, outcome)
        if not await queries.record_attempt(
            tx, row, done, status=status, next_at=next_at, kept=ATTEMPTS_KEPT
        ):
            return _Written.NOTHING
        if not outcome.error:
            await queries.end_failing(tx, row.endpoint_id, attempt.url, now)
            return _Written.OUTCOME
        place = await queries.begin_failing(tx, row.endpoint_id, attempt.url, now)
        if place is None:
            return _Written.OUTCOME
        if place.proven_at is None:
            failed = now - (place.failing_since or now)
            pause = min(max(failed, QUIET_LEAST_SECONDS), QUIET_MOST_SECONDS)
            await queries.quieten(tx, place.id, now + pause)
        if outcome.status == GONE_STATUS:
            return await self._disable(tx, place, GONE, now)
        if now - (place.failing_since or now) >= FAILING_MAX_SECONDS:
            return await self._disable(tx, place, FAILING, now)
        return _Written.OUTCOME

    def _pause(self, tries: int, outcome: DeliveryOutcome) -> int:
        """Return the pause in seconds before the next attempt, after `tries` attempts."""
        pause = round(SCHEDULE[tries] * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311
        return max(pause, min(outcome.retry_after_seconds, RETRY_AFTER_MAX_SECONDS))

    async def _disable(
        self, tx: Transaction, place: EndpointRow, reason: str, now: int
    ) -> "_Written":
        """Disable an endpoint, and notify its user by an event and by an e-mail."""
        if not await queries.disable(tx, place.id, reason, now):
            return _Written.OUTCOME
        data = WebhookDisabled(place.id, place.url, reason)
        await event_log.record(tx, self._context, place.user_id, data, subject_id=place.id)

        def write(to: str, app_url: str) -> Message:
            return webhook_disabled(to, app_url, place.url, _REASONS[reason])

        name = f"webhook disabled:{place.id}"
        is_put = await self._letters.put(tx, place.user_id, name, write)
        return _Written.WITH_LETTER if is_put else _Written.OUTCOME


def body_of(event: EventRow) -> bytes:
    """Return the body for an event: the same in every attempt."""
    body = _Body(event.type, timestamp(event.created_at), Raw(event.data.encode()))
    return msgspec.json.encode(body)


def signed(message_id: str, now: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the headers of an attempt: its identifier, its time, and a signature by each key."""
    content = f"{message_id}.{now}.".encode() + body
    digests = (hmac.digest(key, content, hashlib.sha256) for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(each).decode()}" for each in digests),
    }


def shown_secret(secret: bytes) -> str:
    """Return a secret as users and their libraries write it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def checked_url(url: str, terms: WebhookTerms) -> str:
    """Return a URL whose text is a permitted target.

    The address of its name is checked at each connection.

    Raises:
        MarketError: `invalid_field`.
    """
    problem = _problem(url, terms)
    if problem:
        raise MarketError(Code.INVALID_FIELD, f"url {problem}.", field="url")
    return url


def _problem(url: str, terms: WebhookTerms) -> str:
    """Return the error of a URL as the rest of a sentence, or "" for a valid URL."""
    if len(url) > URL_MAX_CHARACTERS:
        return f"has more than {URL_MAX_CHARACTERS} characters"
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return "has characters that a URL cannot have; encode them"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    is_local = terms.allows_loopback and _is_loopback(host or "")
    if parts.scheme != "https" and not (is_local and parts.scheme == "http"):
        return "does not begin with https://"
    if not host:
        return "names no host"
    return _problem_beside(parts, port, terms)


def _problem_beside(parts: SplitResult, port: int | None, terms: WebhookTerms) -> str:
    if "@" in parts.netloc:
        return "has a user name or a password in it"
    if parts.fragment:
        return "has a fragment, which is not sent"
    if port is None or port == HTTPS_PORT:
        return ""
    if port < FIRST_FREE_PORT or port in terms.blocked_ports:
        return "names a port that is not 443 or one from 1024 on, or is blocked"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked_types(types: Sequence[str]) -> str:
    known = {*CATALOGUE, EVERY_TYPE} - {TEST_TYPE}
    strange = [each for each in types if each not in known]
    if strange or not types:
        problem = f"names no type of events: {strange[0][:64]}" if strange else "is empty"
        message = f"types {problem}; * is every type."
        raise MarketError(Code.INVALID_FIELD, message, field="types")
    return EVERY_TYPE if EVERY_TYPE in types else ",".join(dict.fromkeys(types))


def _new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def _enabled(place: EndpointRow) -> EndpointRow:
    if place.disabled_at is not None:
        raise MarketError(Code.WEBHOOK_DISABLED)
    return place


async def disable_all(
    tx: Transaction, context: Context, user_id: str, *, reason: str = RESET, made_by: str = ""
) -> None:
    """Disable every endpoint of a user that has lost the password, or whose password was stolen.

    Args:
        tx: the transaction.
        context: the time and the record of events.
        user_id: the user.
        reason: the reason.
        made_by: only the endpoints that this line of API keys has made; "" for all.
    """
    rows = [
        row
        for row in await queries.endpoints(tx, user_id)
        if row.disabled_at is None and made_by in ("", row.made_by)
    ]
    await tx.lock("webhook_endpoints", [row.id for row in rows])
    now = context.now()
    # All of them first: no disabled endpoint gets an event about another one.
    disabled = [row for row in rows if await queries.disable(tx, row.id, reason, now)]
    for row in disabled:
        data = WebhookDisabled(row.id, row.url, reason)
        await event_log.record(tx, context, user_id, data, subject_id=row.id)


async def _require_new_url(tx: Transaction, row: EndpointRow) -> None:
    """Refuse a URL that the user has already: its server would get each event twice.

    Raises:
        MarketError: `invalid_field`.
    """
    others = await queries.endpoints(tx, row.user_id)
    if any(row.url == each.url and row.id != each.id for each in others):
        raise MarketError(
            Code.INVALID_FIELD, "url is that of another endpoint of yours.", field="url"
        )


async def _create(tx: Transaction, context: Context, row: EndpointRow, key_id: str | None) -> None:
    """Add an endpoint. The user is locked, so that two requests do not count the same ones."""
    if len(await queries.endpoints(tx, row.user_id)) >= ENDPOINTS_MAX:
        raise MarketError(Code.TOO_MANY_WEBHOOKS)
    await _require_new_url(tx, row)
    # Before the endpoint exists, so that only other endpoints get the event.
    data = WebhookCreated(row.id, row.url, key_id)
    await event_log.record(tx, context, row.user_id, data, subject_id=row.id)
    await queries.insert_endpoint(tx, row)


async def _drop_newest(tx: Transaction, endpoint_id: str, most: int) -> None:
    await tx.lock("webhook_endpoints", [endpoint_id])
    await queries.drop_newest(tx, endpoint_id, most)


async def _endpoint(tx: Transaction, user_id: str, endpoint_id: str) -> EndpointRow:
    row = await queries.endpoint(tx, user_id, endpoint_id)
    if row is None:
        raise MarketError(Code.WEBHOOK_NOT_FOUND)
    return row


async def _locked(tx: Transaction, user_id: str, endpoint_id: str) -> EndpointRow:
    """Return an endpoint, locked until the end of the transaction."""
    await tx.lock("webhook_endpoints", [endpoint_id])
    return await _endpoint(tx, user_id, endpoint_id)


async def _leads_elsewhere(tx: Transaction, attempt: Attempt) -> bool:
    """Return whether an endpoint has another URL by now than in an attempt."""
    place = await queries.endpoint(tx, attempt.row.user_id, attempt.row.endpoint_id)
    return place is not None and place.url != attempt.url


async def _delivery(tx: Transaction, user_id: str, delivery_id: str) -> DeliveryRow:
    row = await queries.delivery(tx, user_id, delivery_id)
    if row is None:
        raise MarketError(Code.DELIVERY_NOT_FOUND)
    return row
