import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

import pytest
from support.base.cases import cases
from support.base.descriptors import descriptors
from support.base.ports import closed_port, listening_port, resetting_port, silent_port
from support.base.waiting import until
from support.exits.epoll import Full
from support.targets import targets

from proxyctl.attach.network.lan import Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.attach.relay import dial, poller
from proxyctl.attach.relay.dial import DIAL_SECONDS, LOOKUPS_MAX, Dialer, DialError, outcome_of
from proxyctl.attach.relay.relay import AsyncioRelays
from proxyctl.attach.relay.relay_linux import EpollRelays
from proxyctl.protocol.addresses import Address
from proxyctl.protocol.frames import CANDIDATES_MAX, DialOutcome
from proxyctl.protocol.policy import Policy

HERE, THERE = ip_address("127.0.0.1"), ip_address("127.0.0.2")


MakeDialer = Callable[..., Dialer]


@pytest.fixture(params=[EpollRelays, AsyncioRelays])
async def dialer(request: pytest.FixtureRequest) -> AsyncIterator[MakeDialer]:
    """Make dialers that permit some networks."""
    relays = request.param(asyncio.get_running_loop())

    def make(*allowed: str, public: str = "", seconds: float = DIAL_SECONDS) -> Dialer:
        surroundings = Surroundings(set, list)
        surroundings.learn_public(public)
        guard = Guard(
            policy=Policy(),
            surroundings=surroundings,
            kernel=None,
            must_know=True,
            allow=[ip_network(each) for each in allowed],
        )
        return Dialer(guard, relays.connect, asyncio.get_running_loop(), seconds)

    yield make
    relays.close()


def every_port(_: object) -> bool:
    return True


class Wavering(Guard):
    """A guard whose judgement changes while a dial connects."""

    def __init__(self) -> None:
        super().__init__(policy=Policy(), surroundings=Surroundings(set, list), kernel=None)
        self.judged: list[tuple[str, int]] = []

    def permits(self, address: Address, port: int) -> bool:
        self.judged.append((str(address), port))
        return len(self.judged) == 1


@contextmanager
def answers(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], list[str]]
) -> Iterator[list[str]]:
    """Have names answered by a function; yields the names that were looked up."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple]:
        asked.append(host)
        await asyncio.sleep(0)
        return [(0, 0, 0, "", (text, port)) for text in answer()]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    yield asked


async def test_an_address_that_is_silent_does_not_hold_up_the_next(dialer: MakeDialer) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with silent_port() as port:
        server = await asyncio.start_server(answer, str(THERE), port)
        try:
            sock = await dialer("127.0.0.0/8").dial((HERE, THERE), port, every_port)
            assert sock.getpeername() == (str(THERE), port)
            sock.close()
        finally:
            server.close()


async def test_silence_everywhere_ends_in_time(dialer: MakeDialer) -> None:
    with silent_port() as port, pytest.raises(DialError) as raised:
        await dialer("127.0.0.0/8", seconds=0.1).dial((HERE,), port, every_port)
    assert raised.value.outcome is DialOutcome.TIMED_OUT


async def test_the_failure_that_came_furthest_is_reported(dialer: MakeDialer) -> None:
    here = dialer("127.0.0.0/8", "240.0.0.0/8")
    with closed_port() as port, pytest.raises(DialError) as raised:
        await here.dial((IPv4Address("240.0.0.1"), HERE), port, every_port)
    assert raised.value.outcome is DialOutcome.REFUSED


async def test_a_cancelled_dial_leaves_no_socket(dialer: MakeDialer) -> None:
    with silent_port() as port:
        before = descriptors()
        task = asyncio.create_task(dialer("127.0.0.0/8").dial((HERE, THERE), port, every_port))
        await until(lambda: descriptors() > before)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: descriptors() <= before)  # sockets of an earlier test may go meanwhile


async def test_of_a_names_addresses_only_permitted_ones_are_dialled(
    dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with targets.echo() as target:
        with answers(monkeypatch, lambda: ["192.168.1.1", "fe80::1%lo", "127.0.0.1"]) as asked:
            sock = await dialer("127.0.0.0/8").dial("Example.org", target.port, every_port)
        assert sock.getpeername() == ("127.0.0.1", target.port)
        assert asked == ["example.org."]
        sock.close()


async def test_a_name_with_only_addresses_of_the_home_is_unknown(
    dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answers(monkeypatch, lambda: ["192.168.1.1", "::ffff:10.0.0.1"]) as asked:
        assert await refusal(dialer(), "example.org", 80) is DialOutcome.NAME_UNKNOWN
        assert asked == ["example.org."]
        # A port that is refused everywhere is refused before the look-up.
        assert await refusal(dialer(), "example.org", 25) is DialOutcome.NOT_ALLOWED
        assert (
            await refusal(dialer(), "example.org", 80, lambda _: False) is DialOutcome.NOT_ALLOWED
        )
        assert asked == ["example.org."]


async def test_a_name_that_the_service_denies_is_not_allowed(
    dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answers(monkeypatch, lambda: ["45.33.32.156"]):
        known = dialer(public="93.184.220.2")
        denied = await refusal(known, "example.org", 80, lambda address: address is None)
    assert denied is DialOutcome.NOT_ALLOWED


@pytest.mark.parametrize("host", ["example.org", (ip_address("45.33.32.156"),)])
async def test_a_family_without_a_known_public_address_has_no_way_out(
    dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch, host: tuple | str
) -> None:
    with answers(monkeypatch, lambda: ["45.33.32.156"]):
        blind = dialer(public="2a02:2455:1234:5600::10")
        assert await refusal(blind, host, 80) is DialOutcome.NETWORK_UNREACHABLE


async def refusal(
    dialer: Dialer, host: tuple | str, port: int, permits_port: Callable = every_port
) -> DialOutcome:
    """Return why a target is not dialled."""
    with pytest.raises(DialError) as raised:
        await dialer.dial(host, port, permits_port)
    return raised.value.outcome


async def test_a_missing_name_is_reported(
    dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> list[str]:
        raise socket.gaierror

    with answers(monkeypatch, unknown), pytest.raises(DialError) as raised:
        await dialer().dial("example.org", 80, every_port)
    assert raised.value.outcome is DialOutcome.NAME_UNKNOWN


async def test_look_ups_are_bounded(dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.get_running_loop().create_future()

    async def getaddrinfo(*_: object, **__: object) -> list:
        return await never

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    one = dialer()
    tasks = [
        asyncio.create_task(one.dial("example.org", 80, every_port)) for _ in range(LOOKUPS_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(DialError) as raised:
        await one.dial("example.org", 80, every_port)
    assert raised.value.outcome is DialOutcome.TIMED_OUT
    never.set_exception(socket.gaierror())
    assert all(
        isinstance(each, DialError) for each in await asyncio.gather(*tasks, return_exceptions=True)
    )


async def test_a_port_that_the_limits_lack_is_not_allowed(dialer: MakeDialer) -> None:
    with pytest.raises(DialError) as raised:
        await dialer("127.0.0.0/8").dial((HERE,), 80, lambda _: False)
    assert raised.value.outcome is DialOutcome.NOT_ALLOWED


@cases(
    ("error", "outcome"),
    [
        (ConnectionRefusedError(), DialOutcome.REFUSED),
        (TimeoutError(), DialOutcome.TIMED_OUT),
        (OSError(errno.ETIMEDOUT, ""), DialOutcome.TIMED_OUT),
        (OSError(errno.EHOSTUNREACH, ""), DialOutcome.HOST_UNREACHABLE),
        (OSError(errno.ENETUNREACH, ""), DialOutcome.NETWORK_UNREACHABLE),
        (OSError(errno.EMFILE, ""), DialOutcome.AT_LIMIT),
        (OSError(errno.EADDRNOTAVAIL, ""), DialOutcome.NETWORK_UNREACHABLE),
        (OSError(errno.EPERM, ""), DialOutcome.NOT_ALLOWED),
        (OSError(errno.EACCES, ""), DialOutcome.NOT_ALLOWED),
        (OSError(errno.ECONNRESET, ""), DialOutcome.REFUSED),
        (OSError(errno.ENOPROTOOPT, ""), DialOutcome.HOST_UNREACHABLE),
        (OSError(errno.EPROTO, ""), DialOutcome.HOST_UNREACHABLE),
    ],
)
def test_each_failure_has_its_outcome(error: OSError, outcome: DialOutcome) -> None:
    assert outcome_of(error) is outcome


def test_no_error_of_a_connect_is_a_fault_of_the_device() -> None:
    for number in errno.errorcode:
        assert outcome_of(OSError(number, "")) is not DialOutcome.FAILED


@cases("relays", [EpollRelays, AsyncioRelays])
async def test_a_socket_is_judged_again_where_it_has_connected(
    relays: Callable[..., EpollRelays | AsyncioRelays],
) -> None:
    before = descriptors()
    loop, guard = asyncio.get_running_loop(), Wavering()
    made = relays(loop)
    with listening_port() as port:
        refused = await refusal(Dialer(guard, made.connect, loop), (HERE,), port)
        assert refused is DialOutcome.NOT_ALLOWED
        assert guard.judged == [(str(HERE), port)] * 2
    made.close()
    await until(lambda: descriptors() <= before, "the socket is closed")


class Elsewhere:
    """A socket that has connected to another place than the target."""

    def __init__(self) -> None:
        self.is_closed = False

    def getpeername(self) -> tuple[str, int]:
        return "192.168.1.1", 80

    def close(self) -> None:
        self.is_closed = True


async def test_a_socket_that_leads_elsewhere_is_judged_by_where_it_leads() -> None:
    loop, sock = asyncio.get_running_loop(), Elsewhere()
    guard = Guard(policy=Policy(), surroundings=Surroundings(set, list), kernel=None)

    def connect(*arguments: Any) -> asyncio.Handle:
        return loop.call_soon(arguments[-1], sock)

    target = (ip_address("93.184.215.14"),)
    assert await refusal(Dialer(guard, connect, loop), target, 80) is DialOutcome.NOT_ALLOWED
    assert sock.is_closed


async def test_a_name_that_changes_its_address_is_dialled_where_it_was_judged(
    dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [["127.0.0.1"], ["127.0.0.2"], ["192.168.1.1"]]
    with listening_port() as port, answers(monkeypatch, lambda: replies.pop(0)) as asked:
        with await dialer("127.0.0.0/8").dial("example.org", port, every_port) as sock:
            assert sock.getpeername()[0] == "127.0.0.1"
        assert len(asked) == 1


async def test_a_target_that_resets_while_it_is_dialled_leaves_nothing(dialer: MakeDialer) -> None:
    before = descriptors()
    here = dialer("127.0.0.0/8")
    with resetting_port() as port:
        for outcome in await asyncio.gather(
            *(here.dial((HERE,), port, every_port) for _ in range(32)), return_exceptions=True
        ):
            if isinstance(outcome, socket.socket):  # it was reset a moment later
                outcome.close()
            else:
                assert isinstance(outcome, DialError)
                assert outcome.outcome is DialOutcome.REFUSED
    await until(lambda: descriptors() <= before, "nothing is left open")


async def test_many_cancelled_dials_leave_nothing_and_report_nothing(dialer: MakeDialer) -> None:
    before = descriptors()
    here = dialer("127.0.0.0/8")
    with silent_port() as port:
        attempts = [here.begin((HERE, THERE), port, every_port, pytest.fail) for _ in range(50)]
        attempts += [here.begin((HERE,), 25, every_port, pytest.fail) for _ in range(5)]
        await until(lambda: descriptors() >= before + 50)
        for attempt in (*attempts, *attempts):
            attempt.cancel()
    await until(lambda: descriptors() <= before, "nothing is left open")


async def test_a_device_without_descriptors_is_at_its_limit(
    dialer: MakeDialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    for module in (dial, poller):
        monkeypatch.setattr(module, "new_socket", none_left)
    outcomes: list[object] = []
    dialer("127.0.0.0/8").begin((HERE,), 80, every_port, outcomes.append)
    assert outcomes == [], "the caller has what it began before it is called"
    await until(lambda: bool(outcomes))
    assert outcomes == [DialOutcome.AT_LIMIT]


async def test_a_poller_that_takes_no_socket_fails_a_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, loop = descriptors(), asyncio.get_running_loop()
    relays = EpollRelays(loop)
    guard = Guard(
        policy=Policy(),
        surroundings=Surroundings(set, list),
        kernel=None,
        allow=[ip_network("127.0.0.0/8")],
    )
    with listening_port() as port, monkeypatch.context() as patched:
        of_relays = relays._shared.poller
        patched.setattr(of_relays, "_epoll", Full(of_relays._epoll))
        failed = await refusal(Dialer(guard, relays.connect, loop), (HERE,), port)
        assert failed is DialOutcome.HOST_UNREACHABLE
    relays.close()
    await until(lambda: descriptors() <= before, "its socket is closed")


async def test_the_last_address_connects_after_all_others_have_failed(dialer: MakeDialer) -> None:
    nowhere = tuple(ip_address(f"240.0.0.{number}") for number in (1, 2, 3))
    here = dialer("127.0.0.0/8", "240.0.0.0/8")
    with listening_port() as port, await here.dial((*nowhere, HERE), port, every_port) as sock:
        assert sock.getpeername() == (str(HERE), port)


async def test_no_more_addresses_than_the_bound_are_dialled(dialer: MakeDialer) -> None:
    nowhere = tuple(ip_address(f"240.0.0.{number}") for number in range(1, CANDIDATES_MAX + 1))
    here = dialer("127.0.0.0/8", "240.0.0.0/8")
    with listening_port() as port, pytest.raises(DialError):
        await here.dial((*nowhere, HERE), port, every_port)
