"""Sends webhooks: the due ones, several at once, a bounded number of them to each endpoint.

How one is sent, and where it cannot go, is in `posting.py`.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from market.notify.webhooks import Attempt, DeliveryOutcome, Webhooks
from proxyctl.protocol.policy import Policy
from proxyd.egress.resolve import Resolver
from proxyd.loop.fair_slots import FairSlots
from proxyd.outbound.host_pace import HostPace
from storage.engines.errors import StoreError, level_of

if TYPE_CHECKING:
    from proxyd.outbound.posting import Poster

ATTEMPTS_PER_ENDPOINT = 4
# Queries of one look for due deliveries: each leaves out the endpoints and users that have their
# share by then.
ROUNDS_MAX = 16
# Attempts that end within it are followed by the same number after one query to the database.
GATHERED_SECONDS = 0.05
# Between two tries to write an outcome down. If it is not, the attempt is made again.
STORE_PAUSE_SECONDS = 1.0
SETTLED_MAX_SECONDS = 60.0

_logger = logging.getLogger("webhooks")


@dataclass(frozen=True, slots=True)
class SendingBounds:
    """Limits of attempts: their number, and the waits for them.

    Attributes:
        attempts_max: all of this process; one user may have no more of them than are left for the
            others.
        look_max_seconds: one look goes on for this time, while attempts end that others wait for.
            After it the daemon checks again whether it is the one that sends.
        room_seconds: how long to wait for one to end: deliveries to other endpoints wait
            meanwhile.
        grace_seconds: the time for attempts that are under way when the daemon stops.
        attempt_seconds: for one of them, from the look-up of its host to the end of the answer.
    """

    attempts_max: int = 64
    look_max_seconds: float = 5.0
    room_seconds: float = 0.5
    grace_seconds: float = 1.0
    attempt_seconds: float = 15.0


USUAL: Final = SendingBounds()


class WebhookSender:
    """Attempts the due deliveries.

    Args:
        resolver: looks names up, as for sessions.
        agent: the name of this program in requests.
        tls: the accepted certificates; by default those that this machine trusts.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        webhooks: Webhooks,
        resolver: Resolver,
        policy: Policy,
        *,
        agent: str,
        tls: ssl.SSLContext | None = None,
        bounds: SendingBounds = USUAL,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._bounds = bounds
        self._clock = clock
        self._webhooks = webhooks
        self._to_poster = resolver, policy, agent, tls, bounds.attempt_seconds
        self._poster: Poster | None = None
        self._slots = FairSlots[str](bounds.attempts_max)
        self.pace = HostPace(clock=clock)
        self._of_endpoint: Counter[str] = Counter()
        self._unproven: set[str] = set()  # endpoints under way that have one attempt at a time
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._is_closing = False
        self._room = asyncio.Event()  # set when an attempt is over

    async def look(self) -> None:
        """Begin the due attempts; without room for more, wait for room.

        It goes on while attempts end that others may wait for, but for no longer than a bound.

        Raises:
            StoreError: the due deliveries cannot be listed now.
        """
        end_at = self._clock() + self._bounds.look_max_seconds
        while True:
            self._room.clear()
            if not await self._begin_all() or self._clock() >= end_at or not await self._has_room():
                return

    async def _begin_all(self) -> bool:
        """Begin attempts while there is room. Return whether deliveries may wait for room.

        The deliveries that a query leaves out wait, even if the attempts that keep them out end
        before the store answers.
        """
        for _ in range(ROUNDS_MAX):
            endpoints, users = self._full_endpoints(), self._slots.full()
            if self._is_closing or not await self._begin_some(endpoints, users):
                return bool(endpoints or users)
        return True

    async def _has_room(self) -> bool:
        """Wait for attempts to end; False when none does for a while, or the daemon stops."""
        try:
            async with asyncio.timeout(self._bounds.room_seconds):
                await self._room.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(GATHERED_SECONDS)
        return not self._is_closing

    async def _begin_some(self, endpoints: list[str], users: list[str]) -> bool:
        """Begin some attempts. Return whether any began.

        Endpoints and users that have all of their attempts are left out of the query, so that their
        waiting deliveries cannot fill the query's limit and hide the others.
        """
        room = self._bounds.attempts_max - self._slots.taken
        if room <= 0:
            return False
        # Attempts that are under way still look due.
        limit = room + len(self._sending)
        due = await self._webhooks.due(but=endpoints, but_users=users, limit=limit)
        if self._is_closing:  # meanwhile: an attempt that begins now would have no end
            return False
        begun = 0
        for row in due:
            if row.id in self._sending:
                continue
            if self._of_endpoint[row.endpoint_id] >= ATTEMPTS_PER_ENDPOINT:
                continue
            if self._slots.take(row.user_id):
                if not row.is_proven:
                    self._unproven.add(row.endpoint_id)
                self._begin(row.id, row.endpoint_id, row.user_id)
                begun += 1
        return begun > 0

    def _full_endpoints(self) -> list[str]:
        return [
            each
            for each, n in self._of_endpoint.items()
            if n >= ATTEMPTS_PER_ENDPOINT or each in self._unproven
        ]

    async def settled(self) -> None:
        """Wait until every attempt that is under way is over."""
        while self._sending:
            await asyncio.wait(list(self._sending.values()))

    async def close(self) -> None:
        """Begin nothing more, and end running attempts; they are repeated another time."""
        self._is_closing = True
        self._room.set()
        tasks = list(self._sending.values())
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=self._bounds.grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def _begin(self, delivery_id: str, endpoint_id: str, user_id: str) -> None:
        def over(task: "asyncio.Task[None]") -> None:
            del self._sending[delivery_id]
            self._of_endpoint[endpoint_id] -= 1
            if not self._of_endpoint[endpoint_id]:
                del self._of_endpoint[endpoint_id]
                self._unproven.discard(endpoint_id)
            self._slots.give(user_id)
            self._room.set()
            if not task.cancelled() and task.exception() is not None:
                _logger.error("a delivery failed in proxyd", exc_info=task.exception())

        self._of_endpoint[endpoint_id] += 1
        task = asyncio.get_running_loop().create_task(self._send(delivery_id))
        self._sending[delivery_id] = task
        task.add_done_callback(over)

    async def _send(self, delivery_id: str) -> None:
        try:
            attempt = await self._webhooks.begin(delivery_id)
            if attempt is not None and (seconds := self._delay(attempt)):
                await asyncio.sleep(seconds)
                # Meanwhile the endpoint may have been disabled, by its owner or by a reset.
                attempt = await self._webhooks.begin(delivery_id)
        except StoreError as error:
            _logger.log(
                level_of(error, logging.WARNING),
                "a delivery waits for the store to return: %s",
                error,
            )
            return
        if attempt is not None:
            await self._settle(attempt, await self.post(attempt))

    def _delay(self, attempt: Attempt) -> float:
        """Count an attempt at its host, and return for how many seconds it has to wait."""
        host = urlsplit(attempt.url).hostname or ""
        return self.pace.delay(attempt.row.user_id, host)

    async def _settle(self, attempt: Attempt, outcome: DeliveryOutcome) -> None:
        """Store an outcome; retry for a while until the store accepts it."""
        give_up_at = self._clock() + SETTLED_MAX_SECONDS
        while True:
            try:
                await self._webhooks.settle(attempt, outcome)
            except StoreError as error:
                if self._clock() >= give_up_at:
                    _logger.warning("a delivery will be sent twice: %s", error)
                    return
                await asyncio.sleep(STORE_PAUSE_SECONDS)
            else:
                return

    async def post(self, attempt: Attempt) -> DeliveryOutcome:
        """Send one attempt, and return its result: all attempts, also tests and retries, use it."""
        if self._poster is None:
            # Here, so that a daemon whose users have no webhooks does not wait for an HTTP client.
            from proxyd.outbound.posting import Poster  # noqa: PLC0415

            self._poster = Poster(*self._to_poster)
        return await self._poster.post(attempt)
