"""Buyers, and clients of the proxy: they connect, transfer, give up, read slowly, or never.

`Relay` stands for a relay of the proxy: its calls of the session are those of
`proxyd.relay.halfpipe` and `proxyd.relay.tcp`, and the kernel's queue of a socket is a number that
falls with time. `Closing` stands for `proxyd.relay.closing`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from market.bandwidth.sessions import Purchase
from market.base.errors import MarketError
from market.events.idempotency import KeyedRequest, Receipt, Replayed, Seal
from proxyd.exits.choosing.places import yields_at
from proxyd.loop.poller import HUNG_UP
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.in_transit import Closing as ClosingSink
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal
from storage.engines.errors import StoreError

if TYPE_CHECKING:
    from proxyd.exits.dialling.dial import Via
    from tests.sim.checks import Books
    from tests.sim.exit_checks import ExitBooks
    from tests.sim.exit_plans import WishPlan
    from tests.sim.faults import Weather
    from tests.sim.loop import World
    from tests.sim.process import Life, Process

SEND_QUEUE_BYTES = 256 * 1024
READS_PER_TURN = 4
PATIENCE_SECONDS = 5.0
FIRST_LOOK_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
EXITS = 2
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


class _Queue:
    """Queue of a socket in the kernel: bytes that have not left the machine.

    Args:
        clock: the clock of the machine.
        rate: bytes that the peer reads in a second.
    """

    def __init__(self, clock: Callable[[], float], rate: int) -> None:
        self._clock = clock
        self._rate = rate
        self._size = 0
        self._at = clock()

    def size(self) -> int:
        """Return the number of queued bytes."""
        if self._size == 0:
            return 0
        gone = int((self._clock() - self._at) * self._rate)
        if gone:
            self._size = max(0, self._size - gone)
            self._at += gone / self._rate
        return self._size

    def add(self, size: int) -> None:
        """Add bytes."""
        if self.size() == 0:
            self._at = self._clock()
        self._size += size

    def clear(self) -> None:
        """Drop all bytes."""
        self._size = 0

    def seconds_until(self, most: int) -> float | None:
        """Return the seconds until at most `most` bytes are left; None for never."""
        excess = self.size() - most
        if excess <= 0:
            return 0.0
        return excess / self._rate + 1e-6 if self._rate else None


class Numbered:
    """Object with a number as its hash, so that the order of a set is the same in each run."""

    count = 0

    def __init__(self) -> None:
        Numbered.count += 1
        self.number = Numbered.count

    def __hash__(self) -> int:
        return self.number


class _Resume(Numbered):
    """Callback of a relay, for its session to call when that has bytes again."""

    def __init__(self, relay: "Relay") -> None:
        super().__init__()
        self._relay = relay

    def __call__(self) -> None:
        self._relay.resume()


class Relay(Numbered):
    """A transfer from a target to a client: a connection, and a sink, of its session.

    Args:
        life: the daemon.
        books: counts its bytes.
        session: the session that pays.
        plan: the plan of the client.
        over: called at the end, with the reason and the number of bytes that the kernel took.
        via: the exit that a dial has chosen; None for the exit of the plan, or for none.
        target: the work connection of that exit.
    """

    def __init__(
        self,
        life: "Life",
        books: "Books",
        session: LiveSession,
        plan: ClientPlan,
        over: Callable[[str, int], None],
        via: "Via | None" = None,
        target: Any = None,
    ) -> None:
        super().__init__()
        self.life = life
        self.session = session
        self.lease_id = session.lease_id or ""
        self.plan = plan
        self.device_id = "" if plan.exit is None else exit_name(plan.exit)
        # An exit's share counts for its session too.
        self.payer: LiveSession | ExitShare = session
        if via is not None:
            self.device_id = via.attached.device_id
        if self.device_id:
            self.payer = session.share_of(self.device_id)
            self.payer.pace = None if via is None else via.pace
        self.via = via
        self._target = target
        self._moved_at = life.loop.time()
        self.queue = _Queue(life.loop.time, plan.rate)
        self.is_closed = False
        # Since when (loop time) it waits for bytes of its session.
        self.waits_since: float | None = None
        self._books = books
        self._over = over
        self._left = plan.size
        self._pending = 0
        self._delivered = 0
        self._timer: asyncio.Handle | None = None
        self._resume = _Resume(self)

    def start(self) -> None:
        """Begin."""
        assert self.life.core is not None
        self.life.core.meter.tallies.begin(self.session.id)
        self.session.connections.add(self)  # type: ignore[arg-type]
        self.life.relays[self] = None
        self._books.begins(self)
        if self._target is not None and self.life.port is not None:
            self.life.port.watch(self._target, self)
        self._later(0.0)

    # --- moving ----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Schedule the next turn: the session has bytes again."""
        self._later(0.0)

    def _later(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            loop = self.life.loop
            self._timer = (
                loop.call_later(seconds, self._turn) if seconds else loop.call_soon(self._turn)
            )

    def _turn(self) -> None:
        self._timer = None
        self.waits_since = None
        if self.is_closed:
            return
        for _ in range(READS_PER_TURN):
            if self._pending and not self._write():
                return
            if self._left == 0:
                self._end()
                return
            allowance = self._allowance()
            if allowance <= 0:
                return
            size = min(allowance, self._left, self.plan.chunk)
            self._books.takes(self)
            self.session.take(size, self)
            self._left -= size
            self._moved_at = self.life.loop.time()
            if self.via is not None and self.via.proof is not None and not self._delivered:
                self.via.proof(True)
            self._pending = size
            if not self._write():
                return
            if self.plan.pause:
                break
        self._later(self.plan.pause or 1e-4)

    def _allowance(self) -> int:
        """Return how many bytes it may take; it waits for some if that is 0."""
        allowance = self.session.allowance(self)
        if allowance <= 0:
            self.waits_since = self.life.loop.time()
            self.session.wait(self._resume)
        elif isinstance(self.payer, ExitShare):
            allowance = min(allowance, self.payer.allowance(self))
            if allowance <= 0:
                self.payer.wait(self._resume)
        return allowance

    def _write(self) -> bool:
        """Write the pending bytes; return False if some must wait, or if the relay is over."""
        sent = min(self._pending, SEND_QUEUE_BYTES - self.queue.size())
        if sent > 0:
            self._pending -= sent
            self._delivered += sent
            self.queue.add(sent)
            self._books.hands(self, sent)
            self.payer.deliver(sent, self)  # type: ignore[arg-type]
        if self.is_closed:
            return False
        if self._pending:
            self._later(self.queue.seconds_until(SEND_QUEUE_BYTES // 2))
            return False
        return True

    def _end(self) -> None:
        """End the relay as soon as the client has all bytes: the target has ended its stream."""
        seconds = self.queue.seconds_until(0)
        if seconds:
            self._later(seconds)
        elif seconds is not None and self._release():
            self._closed("complete")

    # --- as a connection of an exit --------------------------------------------------------------

    @property
    def traffic(self) -> tuple[int, int]:
        """See `Carried.traffic`."""
        return 0, self._delivered

    def yields_at(self) -> float:
        """See `Carried.yields_at`."""
        return yields_at(self._moved_at, is_half_closed=False)

    def ready(self, events: int) -> None:
        """See `Watcher.ready`: the exit has closed its connection."""
        if events & HUNG_UP and not self.is_closed:
            self._left = 0
            self._later(0.0)

    # --- as a connection and a sink of the session -----------------------------------------------

    def unsent(self) -> int:
        """See `InTransit.unsent`."""
        return self.queue.size()

    def finish(self) -> None:
        """See `MeteredConnection.finish`."""
        if self._release():
            if self.queue.size():
                Closing(self).start()
            self._closed("finished")

    def abort(self) -> None:
        """See `MeteredConnection.abort`."""
        if self._release():
            self._books.cuts(self)
            self._refund()
            self._closed("cut")

    def reset(self) -> None:
        """Reset the connection, as the client."""
        if self._release():
            self._refund()
            self._closed("reset")

    def _refund(self) -> None:
        lost = self.queue.size()
        self._delivered -= lost
        self.queue.clear()
        self._books.hands(self, -lost)
        self.payer.refund(lost)

    def died(self, *, with_machine: bool) -> None:
        """Handle the death of the process; queued bytes still leave, unless the machine died."""
        self.is_closed = True
        if with_machine:
            self._books.hands(self, -self.queue.size())
        self.queue.clear()
        self._books.ends(self)
        self._over("died", self._delivered)

    def _release(self) -> bool:
        if self.is_closed:
            return False
        self.is_closed = True
        self._later(None)
        self.payer.forget(self)  # type: ignore[arg-type]
        self.session.stop_waiting(self._resume)
        if isinstance(self.payer, ExitShare):
            self.payer.stop_waiting(self._resume)
        pending, self._pending = self._pending, 0
        self.session.give_back(pending)
        return True

    def _closed(self, reason: str) -> None:
        self.session.connections.discard(self)  # type: ignore[arg-type]
        self.life.relays.pop(self, None)
        if self.via is not None:
            self.via.attached.end(self)
            self._target.close()
        self._books.ends(self)
        self._over(reason, self._delivered)


class Closing(Numbered, ClosingSink):
    """Socket that waits for its queued bytes to leave before it closes.

    Args:
        relay: the relay that closes its socket.
    """

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._payer = relay.payer
        self._queue = relay.queue
        self._waiting = relay.queue.size()
        self._pause = FIRST_LOOK_SECONDS
        self._deadline = relay.life.loop.time() + PATIENCE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self.lease_id = relay.lease_id
        self.device_id = relay.device_id
        self.place = relay.life.name, relay.session.id
        self.queue = relay.queue

    def start(self) -> None:
        """Begin."""
        self._payer.closings.add(self)
        self._payer.may_wait(self, self._waiting)
        self._relay.life.closings[self] = None
        self._relay._books.closes(self)
        self._look()

    def unsent(self) -> int:
        """See `InTransit.unsent`."""
        return self._queue.size()

    def abort(self) -> None:
        """See `Closing.abort`."""
        self.finish()

    def finish(self) -> None:
        """Close the socket, and refund the bytes that have not left."""
        if self._timer is not None:
            self._timer.cancel()
        self._payer.closings.discard(self)
        self._payer.forget(self)
        self._relay.life.closings.pop(self, None)
        lost = self._queue.size()
        self._queue.clear()
        books = self._relay._books
        books.closed(self)
        if lost:
            books.hands(self, -lost)
            self._payer.refund(lost)

    def died(self, *, with_machine: bool) -> None:
        """See `Relay.died`."""
        books = self._relay._books
        if with_machine:
            books.hands(self, -self._queue.size())
        self._queue.clear()
        books.closed(self)

    def _look(self) -> None:
        loop = self._relay.life.loop
        waiting = self._queue.size()
        if waiting < self._waiting:
            self._waiting = waiting
            self._deadline = loop.time() + PATIENCE_SECONDS
        if waiting == 0 or loop.time() >= self._deadline:
            self.finish()
            return
        self._timer = loop.call_later(self._pause, self._look)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)


def address_of(number: int) -> str:
    """Return the address of a client by its number."""
    return f"198.51.100.{number + 1}"


def exit_name(number: int) -> str:
    """Return the device identifier of an exit."""
    return f"exit{number % EXITS}"


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
        # Makes the relay of a client.
        self.relay_of: Callable[[ClientPlan], type[Relay]] = lambda _: Relay
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
        call = _Call(self, life, make, self._requests)
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
    ) -> None:
        self._loop = asyncio.get_running_loop()
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
