"""Connecting to targets over real sockets, and every way that it fails."""

import asyncio
import errno
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from support.base.cases import cases
from support.base.ports import closed_port
from support.base.waiting import until
from support.exits.epoll import Full
from support.targets.targets import echo

from proxyctl.protocol.policy import Policy
from proxyd.egress import direct
from proxyd.egress.candidates import CANDIDATES_MAX
from proxyd.egress.direct import MOST_TELLING, RACERS_MAX, DirectExit
from proxyd.egress.resolve import (
    LookupFailedError,
    LookupTimedOutError,
    NameNotFoundError,
    Resolver,
)
from proxyd.loop.reactor import Reactor
from proxyd.wire.events import Failure

Address = IPv4Address | IPv6Address
Outcome = socket.socket | Failure

LOOPBACK = Policy(allow=["127.0.0.0/8", "::1/128"])
LOCALHOST = IPv4Address("127.0.0.1")
LONG_SECONDS = 10.0
SHORT_SECONDS = 0.2
SHARED_SECONDS = 0.7  # among candidates that do not answer


class Known:
    """A resolver that finds one name's addresses on request."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = [ip_address(text) for text in addresses]
        self.asked: list[str] = []

    def cached(self, name: str) -> None:
        return None

    async def resolve(self, name: str, asker: object = None) -> list[Address]:
        self.asked.append(name)
        return self.addresses


class Raising:
    """A resolver that fails, after `turns` of the loop."""

    def __init__(self, error: Exception, turns: int = 0) -> None:
        self.error = error
        self.turns = turns

    def cached(self, name: str) -> None:
        return None

    async def resolve(self, name: str, asker: object = None) -> list[Address]:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        raise self.error


class Silent:
    """A resolver that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.given_up = asyncio.Event()

    def cached(self, name: str) -> None:
        return None

    async def resolve(self, name: str, asker: object = None) -> list[Address]:
        self.asked.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.given_up.set()


async def soon(event: asyncio.Event) -> None:
    """Wait for an event, but not for ever."""
    async with asyncio.timeout(LONG_SECONDS):
        await event.wait()


class Dialled:
    """A dial, and its outcomes."""

    reactor: Reactor
    new_socket: type[socket.socket] = socket.socket

    def __init__(
        self,
        resolver: Resolver,
        *,
        policy: Policy = LOOPBACK,
        timeout: float = LONG_SECONDS,
        racers: int = RACERS_MAX,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.told = asyncio.Event()
        self.exit = DirectExit(
            self.reactor, resolver, policy, timeout, racers, new_socket=self.new_socket
        )

    def start(self, host: Address | str, port: int) -> None:
        self.dial = self.exit.dial(host, port, None, self._done)

    def _done(self, outcome: Outcome, is_unread: bool) -> None:
        self.outcomes.append(outcome)
        self.told.set()

    async def outcome(self) -> Outcome:
        """Return the one outcome, after the loop had its chance to tell another."""
        await soon(self.told)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(self.outcomes) == 1
        return self.outcomes[0]

    async def failure(self) -> Failure:
        outcome = await self.outcome()
        assert isinstance(outcome, Failure)
        return outcome

    async def connected(self) -> socket.socket:
        outcome = await self.outcome()
        assert isinstance(outcome, socket.socket)
        return outcome


class Tracked(socket.socket):
    """A socket that is remembered."""

    made: list["Tracked"] = []

    def __init__(self, *arguments: int, **more: int) -> None:
        super().__init__(*arguments, **more)
        self.made.append(self)


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tracked]]:
    """Remember every socket that dials make."""
    Tracked.made = []
    monkeypatch.setattr(Dialled, "new_socket", Tracked)
    yield Tracked.made
    for sock in Tracked.made:
        sock.close()


@pytest.fixture(autouse=True)
async def reactor() -> AsyncIterator[None]:
    """Watch the sockets of dials, and close the reactor after the test."""
    Dialled.reactor = Reactor(asyncio.get_running_loop(), pipes_max=0)
    yield
    Dialled.reactor.close()


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Listen on a port without accepting: the kernel connects clients by itself."""
    with socket.socket() as listener:
        listener.bind((host, port))
        listener.listen()
        yield


@asynccontextmanager
async def mute(host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Hold a port whose queue is full: a connection is neither taken nor refused."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener, socket.socket(family) as filler:
        listener.bind((host, 0))
        listener.listen(0)
        filler.setblocking(False)
        await loop.sock_connect(filler, listener.getsockname())
        yield listener.getsockname()[1]


async def elapsed(seconds: float) -> None:
    """Wait until every timer of the loop that is due within `seconds` has had its turn."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def assert_carries(sock: socket.socket, port: int) -> None:
    """Check that a socket is connected to an echo on `port`, and close it."""
    loop = asyncio.get_running_loop()
    with sock:
        assert sock.getpeername()[1] == port
        await loop.sock_sendall(sock, b"ping")
        assert await loop.sock_recv(sock, 4) == b"ping"


async def test_an_address_is_connected_to() -> None:
    async with echo() as target:
        dialled = Dialled(Silent())
        dialled.start(LOCALHOST, target.port)
        sock = await dialled.connected()
        assert sock.gettimeout() == 0.0
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getpeername() == ("127.0.0.1", target.port)
        await assert_carries(sock, target.port)


async def test_an_ipv6_address_is_connected_to() -> None:
    async with echo("::1") as target:
        dialled = Dialled(Silent())
        dialled.start(IPv6Address("::1"), target.port)
        await assert_carries(await dialled.connected(), target.port)


async def test_a_mapped_address_is_connected_to_where_policy_permits() -> None:
    async with echo() as target:
        dialled = Dialled(Silent())
        dialled.start(IPv6Address("::ffff:127.0.0.1"), target.port)
        await assert_carries(await dialled.connected(), target.port)


async def test_the_socket_of_a_success_outlives_the_dial() -> None:
    async with echo() as target:
        dialled = Dialled(Silent(), timeout=SHORT_SECONDS)
        dialled.start(LOCALHOST, target.port)
        sock = await dialled.connected()
        dialled.dial.cancel()
        await elapsed(2 * SHORT_SECONDS)
        await assert_carries(sock, target.port)
        assert len(dialled.outcomes) == 1


async def test_a_port_without_a_listener_refuses(tracked: list[Tracked]) -> None:
    with closed_port() as port:
        dialled = Dialled(Silent())
        dialled.start(LOCALHOST, port)
        assert await dialled.failure() is Failure.REFUSED
    assert [sock.fileno() for sock in tracked] == [-1]


async def test_a_target_that_does_not_answer_times_out(tracked: list[Tracked]) -> None:
    async with mute() as port:
        dialled = Dialled(Silent(), timeout=SHORT_SECONDS)
        dialled.start(LOCALHOST, port)
        assert not dialled.outcomes
        assert await dialled.failure() is Failure.TIMED_OUT
    assert [sock.fileno() for sock in tracked] == [-1]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (errno.ENETUNREACH, Failure.NETWORK_UNREACHABLE),
        (errno.ENETDOWN, Failure.NETWORK_UNREACHABLE),
        (errno.EAFNOSUPPORT, Failure.NETWORK_UNREACHABLE),
        (errno.EHOSTUNREACH, Failure.HOST_UNREACHABLE),
        (errno.EHOSTDOWN, Failure.HOST_UNREACHABLE),
        (errno.ECONNREFUSED, Failure.REFUSED),
        (errno.ECONNRESET, Failure.REFUSED),
        (errno.ETIMEDOUT, Failure.TIMED_OUT),
        (errno.EACCES, Failure.NOT_ALLOWED),
        (errno.EPERM, Failure.NOT_ALLOWED),
        (errno.EMFILE, Failure.GENERAL),
        (errno.EADDRNOTAVAIL, Failure.GENERAL),
        (errno.EIO, Failure.GENERAL),
    ],
)
@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
async def test_each_errno_of_the_system_has_its_failure(
    code: int,
    failure: Failure,
    raised: bool,
    tracked: list[Tracked],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect_ex(sock: Tracked, where: tuple[str, int]) -> int:
        if raised:
            raise OSError(code, "as the test wants")
        return code

    monkeypatch.setattr(Tracked, "connect_ex", connect_ex, raising=False)
    dialled = Dialled(Silent())
    dialled.start(LOCALHOST, 80)
    assert await dialled.failure() is failure
    assert [sock.fileno() for sock in tracked] == [-1]


async def test_without_a_socket_the_dial_fails(
    tracked: list[Tracked], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(sock: Tracked, *arguments: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Tracked, "__init__", no_more)
    dialled = Dialled(Silent())
    dialled.start(LOCALHOST, 80)
    assert await dialled.failure() is Failure.GENERAL


async def test_an_address_that_no_system_call_takes_fails_like_any_other(
    tracked: list[Tracked],
) -> None:
    dialled = Dialled(Silent(), policy=Policy())
    dialled.start(IPv6Address("2606:4700::1%\x00"), 80)
    assert await dialled.failure() is Failure.GENERAL
    assert all(sock.fileno() == -1 for sock in tracked)


async def test_a_forbidden_address_is_refused_at_once_and_never_dialled(
    tracked: list[Tracked],
) -> None:
    async with echo() as target:
        dialled = Dialled(Silent(), policy=Policy())
        dialled.start(LOCALHOST, target.port)
        assert dialled.outcomes == [Failure.NOT_ALLOWED]
        assert await dialled.failure() is Failure.NOT_ALLOWED
        assert target.accepted == 0
    assert tracked == []


async def test_a_blocked_port_is_refused() -> None:
    async with echo() as target:
        policy = Policy(allow=["127.0.0.0/8"], blocked_ports=[target.port])
        dialled = Dialled(Known("127.0.0.1"), policy=policy)
        dialled.start("target.example", target.port)
        assert await dialled.failure() is Failure.NOT_ALLOWED
        assert target.accepted == 0


async def test_a_name_is_looked_up_once_and_dialled() -> None:
    async with echo() as target:
        resolver = Known("127.0.0.1")
        dialled = Dialled(resolver)
        dialled.start("target.example", target.port)
        await assert_carries(await dialled.connected(), target.port)
        assert resolver.asked == ["target.example"]


async def test_an_address_is_not_looked_up() -> None:
    async with echo() as target:
        resolver = Known("127.0.0.3")
        dialled = Dialled(resolver)
        dialled.start(LOCALHOST, target.port)
        await assert_carries(await dialled.connected(), target.port)
        assert resolver.asked == []


async def test_a_dial_that_cannot_be_watched_leaves_nothing(
    tracked: list[Tracked], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mute() as port:
        dialled = Dialled(Known("127.0.0.1"))
        with monkeypatch.context() as patched:
            patched.setattr(dialled.reactor.poller, "_epoll", Full())
            with pytest.raises(OSError, match="max_user_watches"):
                dialled.start(LOCALHOST, port)
        assert len(dialled.exit.deadlines) == 0
    assert [sock.fileno() for sock in tracked] == [-1]
    assert dialled.outcomes == []


async def test_the_next_candidate_is_tried_when_one_refuses(tracked: list[Tracked]) -> None:
    async with echo() as target:
        dialled = Dialled(Known("127.0.0.3", "::1", "127.0.0.1", "127.0.0.4"))
        dialled.start("target.example", target.port)
        sock = await dialled.connected()
        assert sock.getpeername()[0] == "127.0.0.1"
        await assert_carries(sock, target.port)
        assert target.accepted == 1
    assert len(tracked) == 3
    assert all(each.fileno() == -1 for each in tracked)


async def test_the_next_candidate_is_tried_when_one_does_not_answer() -> None:
    async with mute() as port:
        with listening("127.0.0.3", port):
            dialled = Dialled(Known("127.0.0.1", "127.0.0.3"))
            dialled.start("target.example", port)
            with await dialled.connected() as sock:
                assert sock.getpeername()[0] == "127.0.0.3"


@pytest.mark.parametrize("order", [("127.0.0.1", "127.0.0.3"), ("127.0.0.3", "127.0.0.1")])
async def test_a_refusal_is_a_better_answer_than_silence(
    order: tuple[str, str], tracked: list[Tracked]
) -> None:
    async with mute() as port:
        dialled = Dialled(Known(*order), timeout=SHARED_SECONDS)
        dialled.start("target.example", port)
        assert await dialled.failure() is Failure.REFUSED
    assert [sock.fileno() for sock in tracked] == [-1] * 2


CODES = {
    Failure.REFUSED: errno.ECONNREFUSED,
    Failure.TIMED_OUT: errno.ETIMEDOUT,
    Failure.HOST_UNREACHABLE: errno.EHOSTUNREACH,
    Failure.NETWORK_UNREACHABLE: errno.ENETUNREACH,
    Failure.NOT_ALLOWED: errno.EPERM,
    Failure.GENERAL: errno.EADDRNOTAVAIL,
}


@pytest.mark.parametrize("more", range(len(MOST_TELLING)))
@pytest.mark.parametrize("less", range(len(MOST_TELLING)))
async def test_the_most_telling_failure_is_reported_in_any_order(
    more: int, less: int, tracked: list[Tracked], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [CODES[MOST_TELLING[more]], CODES[MOST_TELLING[less]]]
    monkeypatch.setattr(Tracked, "connect_ex", lambda *_: codes.pop(0), raising=False)
    dialled = Dialled(Known("127.0.0.3", "127.0.0.4"))
    dialled.start("target.example", 80)
    assert await dialled.failure() is MOST_TELLING[min(more, less)]


@asynccontextmanager
async def mute_beside_listener() -> AsyncIterator[int]:
    """Hold a port that is mute by IPv6 and listens by IPv4, where no other test has the latter."""
    while True:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(mute("::1"))
            try:
                stack.enter_context(listening("127.0.0.1", port))
            except OSError:
                continue
            yield port
            return


async def test_a_family_that_does_not_answer_is_overtaken_within_the_stagger(
    tracked: list[Tracked],
) -> None:
    async with mute_beside_listener() as port:
        dialled = Dialled(Known("::1", "127.0.0.1"))
        dialled.start("target.example", port)
        with await dialled.connected() as sock:
            assert sock.getpeername()[0] == "127.0.0.1"
    assert [each.family for each in tracked] == [socket.AF_INET6, socket.AF_INET]
    assert all(each.fileno() == -1 for each in tracked)


async def test_the_first_attempt_may_still_win(tracked: list[Tracked]) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as listener, socket.socket() as filler:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        filler.setblocking(False)
        port = listener.getsockname()[1]
        await loop.sock_connect(filler, listener.getsockname())
        dialled = Dialled(Known("127.0.0.1", "127.0.0.3"))
        dialled.start("target.example", port)
        await until(lambda: len(tracked) == 2, "the other one has begun, and is refused")
        listener.accept()[0].close()  # now there is room, and the kernel tries again in a second
        with await dialled.connected() as sock:
            assert sock.getpeername()[0] == "127.0.0.1"


async def test_no_other_attempt_begins_while_the_first_is_quick(tracked: list[Tracked]) -> None:
    async with echo() as target:
        dialled = Dialled(Known("127.0.0.1", "127.0.0.3", "::1"))
        dialled.start("target.example", target.port)
        await assert_carries(await dialled.connected(), target.port)
    assert len(tracked) == 1


async def test_every_candidate_begins_before_the_time_is_over(tracked: list[Tracked]) -> None:
    async with mute() as port:
        dialled = Dialled(Known("127.0.0.1", "127.0.0.1", "127.0.0.1"), timeout=SHARED_SECONDS)
        dialled.start("target.example", port)
        assert await dialled.failure() is Failure.TIMED_OUT
    assert [sock.fileno() for sock in tracked] == [-1] * 3


async def test_where_sockets_are_short_the_next_candidate_replaces_the_last(
    tracked: list[Tracked],
) -> None:
    async with mute() as port:
        with listening("127.0.0.3", port):
            dialled = Dialled(Known("127.0.0.1", "127.0.0.1", "127.0.0.3"), racers=0)
            dialled.start("target.example", port)
            await until(lambda: len(tracked) == 2, "the second candidate has begun")
            assert [sock.fileno() == -1 for sock in tracked] == [True, False]
            with await dialled.connected() as sock:
                assert sock.getpeername()[0] == "127.0.0.3"
    assert [sock.fileno() for sock in tracked] == [-1] * 3


async def test_cancelling_a_race_closes_every_socket(tracked: list[Tracked]) -> None:
    async with mute() as port:
        dialled = Dialled(Known("127.0.0.1", "127.0.0.1", "127.0.0.1"))
        dialled.start("target.example", port)
        await until(lambda: len(tracked) == 2, "the second one has begun")
        assert dialled.exit.racers == 1
        dialled.dial.cancel()
        assert dialled.exit.racers == 0
        assert [sock.fileno() for sock in tracked] == [-1] * 2
        await elapsed(2 * direct.STAGGER_SECONDS)
    assert len(tracked) == 2
    assert dialled.outcomes == []


async def test_the_tried_candidates_are_bounded(
    tracked: list[Tracked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracked, "connect_ex", lambda *_: errno.ECONNREFUSED, raising=False)
    dialled = Dialled(Known(*(f"127.0.0.{n}" for n in range(1, 60))))
    dialled.start("target.example", 80)
    assert await dialled.failure() is Failure.REFUSED
    assert len(tracked) == CANDIDATES_MAX


class Remembering(Silent):
    """A resolver that knows names without a look-up, and makes none."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.addresses = [ip_address(text) for text in addresses]

    def cached(self, name: str) -> list[Address]:
        if not self.addresses:
            raise NameNotFoundError(name)
        return self.addresses


async def test_a_known_name_is_dialled_without_a_look_up() -> None:
    async with echo() as target:
        resolver = Remembering("127.0.0.3", "127.0.0.1")
        dialled = Dialled(resolver)
        dialled.start("target.example", target.port)
        await assert_carries(await dialled.connected(), target.port)
        assert not resolver.asked.is_set()


async def test_a_known_name_is_judged_like_any_other() -> None:
    dialled = Dialled(Remembering("10.0.0.1", "::1"), policy=Policy())
    dialled.start("rebound.example", 80)
    assert dialled.outcomes == [Failure.NOT_ALLOWED]


async def test_a_name_known_to_be_missing_fails_at_once() -> None:
    dialled = Dialled(Remembering())
    dialled.start("nosuch.example", 80)
    assert dialled.outcomes == [Failure.HOST_UNREACHABLE]


async def test_forbidden_candidates_are_left_out(tracked: list[Tracked]) -> None:
    async with echo() as target:
        dialled = Dialled(
            Known("10.0.0.1", "127.0.0.2", "169.254.169.254", "127.0.0.1", "::1"),
            policy=Policy(allow=["127.0.0.1/32"]),
        )
        dialled.start("target.example", target.port)
        await assert_carries(await dialled.connected(), target.port)
    assert len(tracked) == 1


async def test_a_name_with_forbidden_addresses_only_is_not_allowed(tracked: list[Tracked]) -> None:
    dialled = Dialled(Known("127.0.0.1", "10.0.0.1", "::1", "64:ff9b::7f00:1"), policy=Policy())
    dialled.start("rebound.example", 80)
    assert await dialled.failure() is Failure.NOT_ALLOWED
    assert tracked == []


@cases(
    ("error", "failure"),
    [
        (LookupFailedError("SERVFAIL"), Failure.GENERAL),
        (LookupTimedOutError("silence"), Failure.TIMED_OUT),
    ],
)
async def test_name_servers_that_fail_are_told_apart_and_nothing_breaks(
    error: Exception, failure: Failure
) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    dialled = Dialled(Raising(error))
    dialled.start("target.example", 80)
    assert await dialled.failure() is failure
    assert reported == []


async def test_an_unknown_name_is_an_unreachable_host() -> None:
    dialled = Dialled(Raising(NameNotFoundError("nosuch.example")))
    dialled.start("nosuch.example", 80)
    assert await dialled.failure() is Failure.HOST_UNREACHABLE


async def test_a_resolver_that_breaks_is_a_general_failure_and_reported() -> None:
    reported: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    error = ZeroDivisionError()
    dialled = Dialled(Raising(error))
    dialled.start("target.example", 80)
    assert await dialled.failure() is Failure.GENERAL
    assert [context["exception"] for context in reported] == [error]


async def test_a_resolver_that_never_answers_times_out_and_is_given_up() -> None:
    resolver = Silent()
    dialled = Dialled(resolver, timeout=SHORT_SECONDS)
    dialled.start("slow.example", 80)
    assert await dialled.failure() is Failure.TIMED_OUT
    await soon(resolver.given_up)


async def test_cancelling_while_a_name_is_looked_up_reports_nothing() -> None:
    resolver = Silent()
    dialled = Dialled(resolver, timeout=SHORT_SECONDS)
    dialled.start("slow.example", 80)
    await soon(resolver.asked)
    dialled.dial.cancel()
    await soon(resolver.given_up)
    await elapsed(2 * SHORT_SECONDS)
    assert dialled.outcomes == []


async def test_cancelling_while_connecting_closes_the_socket_and_reports_nothing(
    tracked: list[Tracked],
) -> None:
    async with mute() as port:
        dialled = Dialled(Silent(), timeout=SHORT_SECONDS)
        dialled.start(LOCALHOST, port)
        assert [sock.fileno() == -1 for sock in tracked] == [False]
        dialled.dial.cancel()
        assert [sock.fileno() == -1 for sock in tracked] == [True]
        await elapsed(2 * SHORT_SECONDS)
    assert dialled.outcomes == []
    assert len(tracked) == 1


async def test_cancelling_between_the_connection_and_its_report_reports_nothing(
    tracked: list[Tracked],
) -> None:
    async with echo() as target:
        dialled = Dialled(Silent())
        dialled.start(LOCALHOST, target.port)
        assert not dialled.outcomes  # connected already, for the kernel
        dialled.dial.cancel()
        await elapsed(0.0)
        assert dialled.outcomes == []
    assert [sock.fileno() for sock in tracked] == [-1]


@cases("error", [NameNotFoundError("nosuch.example"), ZeroDivisionError()])
async def test_cancelling_as_a_look_up_fails_leaves_no_error_behind(error: Exception) -> None:
    gc.collect()  # remains of earlier tests do not count
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for turns in range(4):
        dialled = Dialled(Raising(error, turns))
        dialled.start("nosuch.example", 80)
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        dialled.dial.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert dialled.outcomes == []
    gc.collect()
    assert [context["message"] for context in reported] == []


async def test_cancelling_twice_or_after_the_outcome_changes_nothing() -> None:
    with closed_port() as port:
        dialled = Dialled(Silent())
        dialled.start(LOCALHOST, port)
        assert await dialled.failure() is Failure.REFUSED
        dialled.dial.cancel()
        dialled.dial.cancel()
        assert await dialled.failure() is Failure.REFUSED
