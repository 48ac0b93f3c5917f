import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, ip_address, ip_network

import pytest
from support.base.cases import cases
from support.base.descriptors import descriptors
from support.base.ports import closed_port, silent_port
from support.base.waiting import until
from support.targets import targets

from proxyctl.attach.network.lan import Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.attach.relay.dial import DIAL_SECONDS, LOOKUPS_MAX, Dialer, DialError, outcome_of
from proxyctl.attach.relay.relay import AsyncioRelays
from proxyctl.attach.relay.relay_linux import EpollRelays
from proxyctl.protocol.frames import DialOutcome
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
