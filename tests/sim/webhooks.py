"""Webhooks: owners of endpoints, and their servers.

The product's own sender chooses each delivery and its time; only the HTTP request is simulated. A
server checks the signature of each request, and answers, fails, is slow, is down for a while, or
answers that it is gone. An answer that is lost makes the sender repeat the delivery.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

from market.base.errors import MarketError
from market.notify.webhooks import SCHEDULE, Attempt, DeliveryOutcome, Secret
from proxyd.outbound.webhooks import USUAL, WebhookSender
from tests.sim.jobs import Actor
from tests.sim.store import ANSWER_SECONDS, Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

LOOK_SECONDS = 0.5
# A request under way has this time to arrive after its endpoint was closed.
UNDER_WAY_SECONDS = 0.2
# A request that was signed while a secret was unknown to its owner is on its way for this time.
UNSURE_SECONDS = 20.0
TYPES = ("*", "job.completed,job.accepted", "deploy.ready,webhook.created,key.created")


@dataclass(frozen=True, slots=True)
class HookPlan:
    """An endpoint, its owner and its server.

    Attributes:
        user: the number of the owner.
        at: when it is made.
        types: the wanted events.
        failing: the share of requests that the server fails.
        losing: the share of requests without an answer.
        slow: seconds of an answer, on average.
        down: from when to when the server refuses connections; None for never.
        gone_at: when it begins to answer that it is gone; None for never.
        steps: the actions of the owner: time and kind.
    """

    user: int
    at: float
    types: str
    failing: float
    losing: float
    slow: float
    down: tuple[float, float] | None
    gone_at: float | None
    steps: tuple[tuple[float, str], ...]


def hooks_of(draw: Random, seconds: float) -> tuple[HookPlan, ...]:
    """Return the endpoints of a run."""
    kinds = ("test", "roll", "move", "disable", "enable", "retry", "recover", "look", "delete")
    hooks = []
    for _ in range(1 + int(draw.random() * 3)):
        at = seconds * draw.random() ** 2
        steps = [
            (round(at + seconds * draw.random(), 3), kinds[int(draw.random() ** 1.3 * len(kinds))])
            for _ in range(int(draw.random() * 6))
        ]
        hooks.append(
            HookPlan(
                user=int(draw.random() * 4),
                at=round(at, 3),
                types=TYPES[int(draw.random() ** 2 * len(TYPES))],
                failing=0.6 * draw.random() ** 2,
                losing=0.3 * draw.random() ** 3,
                slow=draw.random() ** 4 * 3,
                down=_down(draw, seconds * draw.random()),
                gone_at=seconds * draw.random() if draw.random() < 0.1 else None,
                steps=tuple(sorted(steps)),
            )
        )
    return tuple(hooks)


def _down(draw: Random, at: float) -> tuple[float, float] | None:
    """Return when a server is down: never, for a while, or for good."""
    kind, seconds = draw.random(), 20 * draw.random()
    if kind < 0.5:
        return None
    return at, at + seconds if kind < 0.8 else float("inf")


class Server:
    """The receiver of an endpoint's events.

    Args:
        plan: how it answers.
        owner: knows the secrets.
    """

    def __init__(self, plan: HookPlan, owner: "HookOwner") -> None:
        self.plan = plan
        self.owner = owner
        self.bodies: dict[str, bytes] = {}
        self.thanked: set[str] = set()
        self.requests = 0

    def receive(self, attempt: Attempt, draw: float, fail: Callable[[str], None]) -> int:
        """Return the status of the answer to a request."""
        headers, body = attempt.headers, attempt.body
        message_id = headers["webhook-id"]
        if not self._is_signed(headers, body):
            if self.owner.is_sure:
                fail(f"a delivery to {self.owner.name} has no right signature")
            return 401
        if self.bodies.setdefault(message_id, body) != body:
            fail(f"a repeated delivery to {self.owner.name} has another body")
        now = self.owner.network.world.now
        if self.plan.gone_at is not None and now >= self.plan.gone_at:
            return 410
        if draw < self.plan.failing:
            return (500, 503, 429)[int(draw * 1e4) % 3]
        self.thanked.add(message_id)
        return 204

    def _is_signed(self, headers: dict[str, str], body: bytes) -> bool:
        """Check a signature as the specification says."""
        content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        given = headers["webhook-signature"].split()
        # The newest one signs from its answer on; its owner may not have got that.
        for secret in self.owner.secrets[-1 if self.owner.is_sure else 0 :]:
            key = base64.b64decode(secret.removeprefix("whsec_"))
            digest = hmac.digest(key, content, hashlib.sha256)
            if f"v1,{base64.b64encode(digest).decode()}" in given:
                return True
        return False


class Servers:
    """All receivers, and the state of their endpoints."""

    def __init__(self, network: "Network") -> None:
        self.network = network
        self.by_url: dict[str, Server] = {}
        # Of each endpoint that is disabled, deleted, or leads elsewhere: since when.
        self.closed: dict[tuple[str, str], float] = {}
        self._open: dict[tuple[str, str], tuple[str, str]] = {}
        self._last_event = 0

    # --- after each commit -----------------------------------------------------------------------

    def committed(self, _: Commit) -> None:
        """Each event has its deliveries from its own transaction on."""
        rows = self.network.books.database.rows
        fail = self.network.world.fail
        events = rows(
            "SELECT rowid, id, user_id, type, subject_id FROM events WHERE rowid > :last",
            last=self._last_event,
        )
        for number, event_id, user_id, kind, subject_id in events:
            self._last_event = number
            for (endpoint_id, _url), (owner_id, types) in self._open.items():
                wants = types == "*" or kind in types.split(",")
                if owner_id != user_id or not wants or kind == "test.ping":
                    continue
                if endpoint_id == subject_id or not self._is_open(endpoint_id):
                    continue
                if not rows(
                    "SELECT 1 FROM webhook_deliveries WHERE endpoint_id = :a AND event_id = :b",
                    a=endpoint_id,
                    b=event_id,
                ):
                    fail(f"the event {kind} has no delivery to an endpoint that wants it")
        now_open = {
            (endpoint_id, url): (user_id, types)
            for endpoint_id, url, user_id, types in rows(
                "SELECT id, url, user_id, types FROM webhook_endpoints WHERE disabled_at IS NULL"
            )
        }
        for key in self._open:
            if key not in now_open:
                self.closed[key] = self.network.world.now
        for key in now_open:
            self.closed.pop(key, None)
        self._open = now_open

    def _is_open(self, endpoint_id: str) -> bool:
        """Return whether an endpoint is enabled; it may be disabled by the last commit."""
        return bool(
            self.network.books.database.rows(
                "SELECT 1 FROM webhook_endpoints WHERE id = :id AND disabled_at IS NULL",
                id=endpoint_id,
            )
        )

    # --- requests --------------------------------------------------------------------------------

    async def post(self, attempt: Attempt, patience: float) -> DeliveryOutcome:
        """Send a request over a network that loses some; return its outcome."""
        self._look_at_closed(attempt)
        world = self.network.world
        server = self.by_url[attempt.url]
        server.requests += 1
        a, b, c, d = world.numbers("hook", attempt.url, server.requests)
        began, down = world.now, server.plan.down
        await asyncio.sleep(self.network.weather.latency(a))
        if down is not None and down[0] <= world.now < down[1]:
            return DeliveryOutcome(None, "refused", 1)
        is_lost = b < server.plan.losing
        if is_lost and d < 0.5:  # on its way there
            await asyncio.sleep(patience)
            return DeliveryOutcome(None, "timed out", round(patience * 1_000))
        status = server.receive(attempt, c, world.fail)
        seconds = patience if is_lost else 2 * d * server.plan.slow
        await asyncio.sleep(min(seconds, patience))
        ms = round((world.now - began) * 1_000)
        if seconds >= patience:
            return DeliveryOutcome(None, "timed out", ms)
        wait = int(60 * d) if status == 429 else 0
        error = "" if status == 204 else f"status {status}"
        return DeliveryOutcome(status, error, ms, "", wait)

    def _look_at_closed(self, attempt: Attempt) -> None:
        """Nothing is sent to an endpoint that is closed."""
        since = self.closed.get((attempt.row.endpoint_id, attempt.url))
        if since is None:
            return
        books, now = self.network.books, self.network.world.now
        seconds = UNDER_WAY_SECONDS
        if not books.is_healthy(since):
            is_slow = any(each.kind in ("freeze", "sleep") for each in books.weather.faults)
            seconds = float("inf") if is_slow else ANSWER_SECONDS + UNDER_WAY_SECONDS
        if now - since > seconds:
            self.network.world.fail(
                f"a delivery is sent {now - since:.2f} s after its endpoint was closed"
            )

    # --- at the end ------------------------------------------------------------------------------

    def check(self, *, has_clocks: bool) -> None:
        """Each event was delivered, or given up after the documented attempts."""
        rows, fail = self.network.books.database.rows, self.network.world.fail
        for delivery_id, url, event_id, status, tries, error, disabled in rows(
            "SELECT d.id, w.url, d.event_id, d.status, d.tries, d.last_error, w.disabled_at"
            " FROM webhook_deliveries AS d JOIN webhook_endpoints AS w ON w.id = d.endpoint_id"
        ):
            name = f"the delivery {delivery_id[-6:]} to {url}"
            server = self.by_url[url]
            if status == "pending":
                fail(f"{name} still waits after {tries} attempts")
            elif status == "failed" and disabled is None and error != "disabled":
                # An owner may enable an endpoint again whose server was gone for good.
                was_gone = error == "status 410" and server.plan.gone_at is not None
                if tries < len(SCHEDULE) and not was_gone:
                    fail(f"{name} was given up after {tries} attempts: {error}")
            elif (
                status == "delivered"
                and not server.owner.has_moved
                and event_id not in server.thanked
            ):
                fail(f"{name} counts as delivered, and the server has not answered well")
            if not has_clocks:
                self._look_at_pauses(delivery_id, name, server)

    def _look_at_pauses(self, delivery_id: str, name: str, server: Server) -> None:
        """Attempts keep the pauses of the schedule, unless the owner has asked for more."""
        if server.owner.has_asked_again:
            return
        rows = self.network.books.database.rows(
            "SELECT number, started_at, status FROM webhook_attempts WHERE delivery_id = :id"
            " ORDER BY number",
            id=delivery_id,
        )
        if len(rows) > len(SCHEDULE):
            self.network.world.fail(f"{name} was attempted {len(rows)} times")
        for (_, before, _), (number, at, _) in pairwise(rows):
            if at - before < int(0.8 * SCHEDULE[number - 1]):
                self.network.world.fail(
                    f"{name} was attempted again after {at - before} s, as number {number}"
                )


class SimSender(WebhookSender):
    """The product's sender, with simulated requests."""

    def __init__(self, market: Any, servers: Servers, clock: Callable[[], float]) -> None:
        nobody: Any = None
        super().__init__(market.webhooks, nobody, nobody, agent="", clock=clock)
        self._servers = servers

    async def post(self, attempt: Attempt) -> DeliveryOutcome:
        """See `WebhookSender.post`."""
        return await self._servers.post(attempt, USUAL.attempt_seconds)


class HookOwner(Actor):
    """Makes an endpoint, and changes it.

    Args:
        network: leads to the daemons.
        plan: its actions.
        number: of the endpoint.
        until: when it stops.
        servers: have its server.
    """

    def __init__(
        self, network: "Network", plan: HookPlan, number: int, until: float, servers: Servers
    ) -> None:
        super().__init__(network, f"hook{number}", number, until)
        self.plan = plan
        self.user_id = f"user{plan.user}"
        self.secrets: list[str] = []
        self.has_moved = self.has_asked_again = False
        self._servers = servers
        self._endpoint_id = ""
        self._unsure_until = float("inf")

    @property
    def is_sure(self) -> bool:
        """Whether it knows every secret that may sign now."""
        return self.network.world.now >= self._unsure_until

    def _url(self) -> str:
        return f"https://{self.name}.example/{int(self.has_moved)}"

    async def run(self) -> None:
        """Do all of it."""
        plan, world = self.plan, self.network.world
        await asyncio.sleep(plan.at)
        self._servers.by_url[self._url()] = Server(plan, self)
        made = await self._learn("create", self._create)
        if isinstance(made, MarketError):
            made = await self._known()
        if not isinstance(made, Secret):
            world.say(f"{self.name} not made: {made!r}")
            return
        self._endpoint_id = made.endpoint.id
        world.say(f"{self.name} made {self._endpoint_id[-6:]}")
        for at, what in plan.steps:
            await asyncio.sleep(max(0.0, at - world.now))
            done = await getattr(self, f"_{what}")()
            world.say(f"{self.name} {what}: {done!r}"[:100])
            if what == "delete":
                return

    async def _learn(self, what: str, make: Any) -> Any:
        """Ask for a secret; until the answer is there, others may sign."""
        self._unsure_until = float("inf")
        made = await self.insist(what, make)
        if isinstance(made, Secret):
            self.secrets.append(made.secret)
            self._unsure_until = self.network.world.now + UNSURE_SECONDS
        return made

    async def _create(self, market: Any) -> Any:
        return await market.webhooks.create(
            self.user_id,
            url=self._url(),
            types=self.plan.types.split(","),
            description=self.name,
        )

    async def _known(self) -> Any:
        """Find the endpoint whose answer was lost, and get another secret for it."""
        rows = await self.insist("list", lambda market: market.webhooks.all_of(self.user_id))
        for row in rows if isinstance(rows, list) else ():
            if row.url == self._url():
                self._endpoint_id = row.id
                return await self._roll()
        return None

    async def _roll(self) -> Any:
        return await self._learn(
            "roll", lambda market: market.webhooks.roll(self.user_id, self._endpoint_id)
        )

    async def _change(self, **fields: Any) -> Any:
        async def change(market: Any) -> Any:
            return await market.webhooks.change(self.user_id, self._endpoint_id, **fields)

        return await self.insist("change", change)

    async def _move(self) -> Any:
        self.has_moved = self.has_asked_again = True
        self._servers.by_url[self._url()] = Server(self.plan, self)
        return await self._change(url=self._url(), description="elsewhere")

    async def _disable(self) -> Any:
        return await self._change(is_enabled=False)

    async def _enable(self) -> Any:
        return await self._change(is_enabled=True)

    async def _test(self) -> Any:
        return await self.insist(
            "test", lambda market: market.webhooks.test(self.user_id, self._endpoint_id)
        )

    async def _look(self) -> Any:
        async def look(market: Any) -> list[Any]:
            rows = await market.webhooks.deliveries(
                self.user_id, self._endpoint_id, status="", before="", limit=10
            )
            shown = [await market.webhooks.delivery(self.user_id, row.id) for row in rows[:2]]
            return [each.row.status for each in shown]

        return await self.insist("look", look)

    async def _retry(self) -> Any:
        self.has_asked_again = True

        async def retry(market: Any) -> Any:
            rows = await market.webhooks.deliveries(
                self.user_id, self._endpoint_id, status="failed", before="", limit=3
            )
            return [await market.webhooks.retry(self.user_id, row.id) for row in rows]

        return await self.insist("retry", retry)

    async def _recover(self) -> Any:
        self.has_asked_again = True
        return await self.insist(
            "recover", lambda market: market.webhooks.recover(self.user_id, self._endpoint_id, 0)
        )

    async def _delete(self) -> Any:
        return await self.insist(
            "delete", lambda market: market.webhooks.delete(self.user_id, self._endpoint_id)
        )
