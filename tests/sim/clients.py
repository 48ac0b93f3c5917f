"""Buyers, and clients of the proxy: they connect, transfer, give up, read slowly, or never."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from market.bandwidth.sessions import Purchase
from market.base.errors import MarketError
from market.events.idempotency import KeyedRequest, Receipt, Replayed, Seal
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal
from storage.engines.errors import StoreError
from tests.sim.relays import Relay
from tests.sim.supply import SupplyBooks

if TYPE_CHECKING:
    from proxyd.exits.dialling.dial import Via
    from tests.sim.checks import Books
    from tests.sim.exit_checks import ExitBooks
    from tests.sim.exit_plans import WishPlan
    from tests.sim.faults import Weather
    from tests.sim.loop import World
    from tests.sim.process import Life, Process

PASSWORDLESS = (2001, 2002)
SEAL = Seal(b"s" * 40)
CONNECT_SECONDS = 10.0
REFUSED_MOST_SECONDS = 3.0
REQUEST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A session to buy.

    Attributes:
        quota: its bytes.
        price: micro-USD per GB.
        at: the time of the purchase.
        ends_at: the time at which its buyer ends it; None for never.
        lifetime: its lifetime in seconds; None for the operator's default.
        addresses: the numbers of the addresses that need no password.
        tries: number of requests to end it; None to repeat until one succeeds.
    """

    quota: int
    price: int
    at: float
    ends_at: float | None
    lifetime: float | None
    addresses: tuple[int, ...] = ()
    tries: int | None = None


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client that uses a session again and again.

    Attributes:
        session: the number of its session.
        node: the number of the first node that it uses.
        at: when it begins.
        size: the bytes of a transfer.
        chunk: the most bytes that its target sends together.
        pause: seconds between two chunks.
        rate: bytes that it reads in a second; 0 for never.
        gives_up: seconds after which it resets a transfer; None for never.
        rests: seconds between two transfers.
        roams: whether it uses another node each time.
        exit: the number of the exit that it leaves through; None for directly.
        address: the number of its address.
        by_address: whether it comes to the port without passwords.
        is_datagrams: whether it gets datagrams, of the size of its pieces.
        is_wrong: whether its password is wrong.
    """

    session: int
    node: int
    at: float
    size: int
    chunk: int
    pause: float
    rate: int
    gives_up: float | None
    rests: float
    roams: bool
    exit: int | None = None
    address: int = 0
    by_address: bool = False
    is_datagrams: bool = False
    is_wrong: bool = False


@dataclass(frozen=True, slots=True)
class StaffPlan:
    """A single action of the operator.

    Attributes:
        what: "advance" posts the earnings of exits, "bar" bars an exit that has cheated.
        at: when.
        exit: the number of the exit.
    """

    what: str
    at: float
    exit: int


def address_of(number: int) -> str:
    """Return the address of a client by its number."""
    return f"198.51.100.{number + 1}"


class RequestError(Exception):
    """A request to the API got no result: it was refused, failed, or its answer was lost."""


class Network:
    """Network between the clients and the daemons, with delays and faults.

    Args:
        world: the time.
        weather: the faults.
        processes: the processes that run daemons.
        books: count the bytes.
    """

    def __init__(
        self, world: "World", weather: "Weather", processes: list["Process"], books: "Books"
    ) -> None:
        self.world = world
        self.weather = weather
        self.processes = processes
        self.books = books
        # The client's wishes, where a run has devices that attach.
        self.wishes: tuple[WishPlan, ...] = ()
        self.terms_hash = ""
        self.exit_books: ExitBooks | None = None
        self.supply = SupplyBooks(self)
        # Makes the relay of a client.
        self.relay_of: Callable[[ClientPlan], type[Relay]] = lambda _: Relay
        # The names of requests whose work was cancelled at a daemon.
        self.cancelled: set[str] = set()
        self._requests = 0

    def latency(self, *names: object) -> float:
        """Return the seconds that a message of a client takes."""
        return self.weather.latency(self.world.numbers("client", *names, self.world.now)[0])

    def daemon(self, number: int) -> "Life | None":
        """Return the serving daemon of a process; None if it does not serve."""
        return self.processes[number % len(self.processes)].serving

    async def connect(
        self, life: "Life", bought: Purchase, plan: ClientPlan, name: str
    ) -> "Connection":
        """Send credentials to a daemon; return the connection when the daemon has admitted or
        refused it.
        """
        connection = Connection(self, life, bought, plan, name)
        self.world.after(self.latency(name, "there"), connection.sent)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection.refusal = await connection.decided
        except TimeoutError:
            connection.refusal = "silent"
        return connection

    async def request(
        self, name: str, make: Callable[[Any], Coroutine[Any, Any, Any]], life: "Life"
    ) -> Any:
        """Send a request to the API of a daemon; return its result.

        Raises:
            RequestError: the request was refused, failed, or got no answer.
        """
        self._requests += 1
        call = _Call(self, life, make, self._requests, name)
        self.world.after(self.latency(name, self._requests), call.sent)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                value = await call.answered
        except TimeoutError:
            raise RequestError("no answer") from None
        if isinstance(value, StoreError | MarketError):
            raise RequestError(str(value)) from value
        if isinstance(value, BaseException):
            if not isinstance(value, RequestError):
                self.world.fail(f"the request {name} raises {value!r}", value)
            raise value
        return value


class Connection:
    """Client's side of a connection to a daemon.

    `decided` gets the reason of a refusal; "" when the client was admitted. `over` gets the end.

    Args:
        network: the network between client and daemon.
        life: the daemon.
        bought: the session.
        plan: the plan of the client.
        name: the name of the client.
    """

    def __init__(
        self, network: Network, life: "Life", bought: Purchase, plan: ClientPlan, name: str
    ) -> None:
        loop = asyncio.get_running_loop()
        self.refusal = ""
        self.relay: Relay | None = None
        self.decided: asyncio.Future[str] = loop.create_future()
        self.over: asyncio.Future[tuple[str, int]] = loop.create_future()
        self._loop = loop
        self._network = network
        self._life = life
        self._bought = bought
        self._plan = plan
        self._name = name
        self._address = address_of(plan.address)
        self._is_by_address = plan.by_address and bought.passwordless_port is not None

    def sent(self) -> None:
        """The request arrives at the machine."""
        if self._life.loop.is_dead:
            self._answer(self.decided, "refused")
        else:
            self._life.loop.call_soon(self._arrive)

    def _arrive(self) -> None:
        life, bought = self._life, self._bought
        if not life.is_serving or life.core is None:
            self._answer(self.decided, "refused")
            return
        meter = life.core.meter
        if self._is_by_address:
            port_index = PASSWORDLESS.index(bought.passwordless_port or PASSWORDLESS[0])
            answer = meter.admit_address(port_index, self._address, self._name, self._decide)
        else:
            password = bought.password[::-1] if self._plan.is_wrong else bought.password
            answer = meter.admit(
                bought.username.encode(), password.encode(), self._name, self._decide
            )
        if answer is not None:
            self._decide(answer)

    def _decide(self, answer: LiveSession | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._answer(self.decided, answer.name)
        elif not self.decided.cancelled() and self._life.is_serving:  # or the handshake is over
            books = self._network.books
            books.uses(self._life.name, answer.id)
            if self._is_by_address:
                books.admits(answer.id, self._address)
            elif self._life.core is not None:
                self._life.core.meter.prove(answer, self._address)
            port = self._life.port
            if self._network.wishes and port is not None and self._plan.exit is not None:
                port.connect(answer, self._wish(), self._reached)
                return
            self.relay = self._network.relay_of(self._plan)(
                self._life, books, answer, self._plan, self._ended
            )
            self.relay.start()
            self._answer(self.decided, "")

    def _wish(self) -> "WishPlan":
        wishes = self._network.wishes
        return wishes[(self._plan.node + (self._plan.exit or 0)) % len(wishes)]

    def _reached(self, session: LiveSession, outcome: Any, via: "Via | None") -> None:
        """An exit has connected to the target, or none could."""
        self._network.books.uses(self._life.name, session.id)
        if via is None:
            self._answer(self.decided, outcome.name)
            return
        relay = self._network.relay_of(self._plan)(
            self._life, self._network.books, session, self._plan, self._ended, via, outcome
        )
        via.attached.begin(relay, via.place)
        if self.decided.cancelled() or not self._life.is_serving:  # the client has left
            via.attached.end(relay)
            outcome.close()
            return
        self.relay = relay
        if self._network.exit_books is not None:
            self._network.exit_books.chooses(relay, self._wish())
        relay.start()
        self._answer(self.decided, "")

    def _ended(self, reason: str, size: int) -> None:
        self._answer(self.over, (reason, size))

    def _answer(self, future: "asyncio.Future[Any]", value: Any) -> None:
        seconds = self._network.latency(self._name, "back")
        self._network.world.after(seconds, self._loop.call_soon, _resolve, future, value)


class _Call:
    """Client's side of a request to the API."""

    def __init__(
        self,
        network: Network,
        life: "Life",
        make: Callable[[Any], Coroutine[Any, Any, Any]],
        number: int,
        name: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self.answered: asyncio.Future[Any] = self._loop.create_future()
        self._network = network
        self._life = life
        self._make = make
        self._number = number

    def sent(self) -> None:
        """The request arrives at the machine."""
        if self._life.loop.is_dead:
            self._lost()
        else:
            self._life.callers[self._lost] = None
            self._life.loop.call_soon(self._arrive)

    def _arrive(self) -> None:
        life, weather = self._life, self._network.weather
        if not life.is_serving:
            life.callers.pop(self._lost, None)
            self._answer(RequestError("refused"))
            return
        task = life.loop.create_task(self._make(life.market))
        life.requests[task] = None
        task.add_done_callback(self._done)
        a, b, _, _ = self._network.world.numbers("request", self._number)
        if weather.cancels(a):
            life.loop.call_later(0.02 * b if b < 0.7 else 5 * b, task.cancel)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._life.requests.pop(task, None)
        self._life.callers.pop(self._lost, None)
        if self._life.loop.is_dead:
            return
        if task.cancelled():
            self._network.cancelled.add(self._name)
            self._answer(RequestError("cancelled"))
        else:
            error = task.exception()
            self._answer(task.result() if error is None else error)

    def _lost(self) -> None:
        self._answer(RequestError("lost"))

    def _answer(self, value: Any) -> None:
        seconds = self._network.latency("request", self._number)
        _, _, c, _ = self._network.world.numbers("request", self._number)
        if self._network.weather.loses_answer(c):
            value = RequestError("lost")
        self._network.world.after(seconds, self._loop.call_soon, _resolve, self.answered, value)


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def receipt_of(market: Any, user_id: str, key: str) -> Receipt[Any]:
    """Return the receipt of a request that takes effect once, by its Idempotency-Key."""
    request = KeyedRequest(user_id, key, key, SEAL, market.context.now())
    return Receipt(request, msgspec.json.encode)


class Buyer:
    """Buys a session, and perhaps ends it.

    Args:
        network: the network to the daemons.
        plan: its actions.
        number: the number of the session.
        user_id: its account.
    """

    def __init__(self, network: Network, plan: SessionPlan, number: int, user_id: str) -> None:
        self.network = network
        self.plan = plan
        self.number = number
        self.user_id = user_id
        self.bought: Purchase | None = None
        self.is_ended = False

    async def run(self) -> None:
        """Buy the session, and end it as planned; repeat failed requests."""
        plan, world = self.plan, self.network.world
        await asyncio.sleep(plan.at)
        self.bought = await self._insist("buy", self._buy)
        world.say(f"buyer{self.number} bought {self.bought.session_id[-6:]}")
        self.network.books.lists(
            self.bought.session_id, [address_of(each) for each in plan.addresses]
        )
        if plan.lifetime is not None:
            self.network.books.lives(self.bought.session_id, plan.lifetime)
        if plan.ends_at is not None:
            await asyncio.sleep(max(0.0, plan.ends_at - world.now))
            await self.end()

    async def _buy(self, market: Any) -> Purchase:
        """Buy the session once, even if the request is repeated."""
        plan = self.plan
        try:
            purchase: Purchase = await market.bandwidth.buy(
                self.user_id,
                quota_bytes=plan.quota,
                price_per_gb=plan.price,
                allow_ips=[address_of(each) for each in plan.addresses],
                client=address_of(plan.addresses[0]) if plan.addresses else "",
                receipt=receipt_of(market, self.user_id, f"session{self.number}"),
            )
        except Replayed as replayed:
            return msgspec.json.decode(replayed.answer, type=Purchase)
        return purchase

    async def end(self) -> None:
        """End the session."""
        assert self.bought is not None
        session_id, user_id = self.bought.session_id, self.user_id

        async def end(market: Any) -> None:
            began = self.network.world.now
            await market.bandwidth.end(user_id, session_id)
            self.network.books.was_ended(session_id, began)

        try:
            await self._insist("end", end, self.plan.tries)
        except RequestError:
            self.network.world.say(f"buyer{self.number} gives up")
            return
        self.is_ended = True
        self.network.world.say(f"buyer{self.number} ended")

    async def _insist(
        self,
        name: str,
        make: Callable[[Any], Coroutine[Any, Any, Any]],
        most: int | None = None,
    ) -> Any:
        tries = 0
        while True:
            lives = [each.serving for each in self.network.processes if each.has_services]
            serving = [each for each in lives if each is not None and each.market is not None]
            if serving:
                life = serving[(self.number + tries) % len(serving)]
                try:
                    return await self.network.request(name, make, life)
                except RequestError as error:
                    self.network.world.say(f"buyer{self.number} {name}: {error}")
                    if most is not None and tries + 1 >= most:
                        raise
            tries += 1
            await asyncio.sleep(0.2)


class Client:
    """Uses a session.

    Args:
        network: the network to the daemons.
        plan: its actions.
        buyer: the buyer of its session.
        name: the name of the client.
        until: the time at which it stops.
    """

    def __init__(
        self, network: Network, plan: ClientPlan, buyer: Buyer, name: str, until: float
    ) -> None:
        self.network = network
        self.plan = plan
        self.buyer = buyer
        self.name = name
        self.until = until
        self.received = 0

    async def run(self) -> None:
        """Transfer again and again, until the session is over for good."""
        plan, world = self.plan, self.network.world
        await asyncio.sleep(plan.at)
        number, refusals = plan.node, 0
        while world.now < self.until and not self.buyer.is_ended:
            life = self.network.daemon(number)
            bought = self.buyer.bought
            if life is None or bought is None:
                number += 1 if bought is not None else 0
                await asyncio.sleep(0.1)
                continue
            connection = await self.network.connect(life, bought, plan, self.name)
            if connection.refusal:
                world.say(f"{self.name} {life.name} {connection.refusal}")
                number, refusals = number + 1, refusals + 1
                await asyncio.sleep(min(plan.rests * 2**refusals, REFUSED_MOST_SECONDS))
                continue
            refusals = 0
            reason = await self._use(connection, life)
            world.say(f"{self.name} {life.name} {reason}")
            number += 1 if plan.roams or reason == "died" else 0
            await asyncio.sleep(max(0.0, min(plan.rests, self.until - world.now)))

    async def _use(self, connection: Connection, life: "Life") -> str:
        plan, world = self.plan, self.network.world
        most = self.until - world.now
        seconds = most if plan.gives_up is None else min(most, plan.gives_up)
        try:
            async with asyncio.timeout(max(0.01, seconds)):
                reason, size = await asyncio.shield(connection.over)
        except TimeoutError:
            if not life.loop.is_dead and connection.relay is not None:
                life.loop.call_soon(connection.relay.reset)
            reason, size = "gave up", 0
        self.received += size
        return reason
