"""The handshake over real sockets: RFC 1928, RFC 1929, and the corners where proxies fall short."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.descriptors import all_gone, at_rest
from support.base.ports import closed_port, silent_port
from support.base.waiting import until
from support.clients.socks import GREETING, Client, credentials, request, tunnel
from support.clients.story import buy
from support.daemons.bounded import bounded, closing_bounds
from support.daemons.service import Bought, Service, running_in
from support.targets import targets

from proxyd.loop import clock
from proxyd.relay.closing import USUAL

ACCEPTED = b"\x05\x02\x01\x00"  # the method, then the status of RFC 1929
WRONG = b"\x05\x02\x01\x01"
UNSPECIFIED = b"\x01\0\0\0\0\0\0"


def failure(code: int) -> bytes:
    """Return a complete reply without a bound address."""
    return bytes((5, code, 0)) + UNSPECIFIED


def named(host: bytes, port: int) -> bytes:
    """Return a request for a domain name of any bytes."""
    return bytes((5, 1, 0, 3, len(host))) + host + struct.pack(">H", port)


async def logged_in(service: Service, bought: Bought) -> Client:
    """Return a client that may make its request."""
    client = await Client.open(service.proxy_port)
    assert await client.log_in(bought.username, bought.password) == 0
    return client


async def status_of(service: Service, bought: Bought) -> int:
    """Log in, see that a refusal ends the stream in order, and return the status."""
    client = await Client.open(service.proxy_port)
    status = await client.log_in(bought.username, bought.password)
    if status != 0:
        assert await client.rest() == b""
    await client.close()
    return status


async def answer_to(service: Service, *parts: bytes) -> bytes:
    """Send at once, and return everything that comes back; a reset is an error."""
    client = await Client.open(service.proxy_port)
    await client.send(b"".join(parts))
    async with asyncio.timeout(10):
        answer = await client.rest()
    await client.close()
    return answer


async def outcome_of(service: Service, bought: Bought, asked: bytes) -> bytes:
    """Log in, ask, and return everything that comes back; a reset is an error."""
    client = await logged_in(service, bought)
    await client.send(asked)
    async with asyncio.timeout(10):
        answer = await client.rest()
    await client.close()
    return answer


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[targets.Target, list[tuple]]]:
    """Serve an echo that remembers the names of its peers."""
    peers: list[tuple] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername")[:2])
        while data := await reader.read(65_536):
            writer.write(data)

    async with targets.serving(handle) as target:
        yield target, peers


# --- how bytes arrive ----------------------------------------------------------------------------


async def test_a_byte_per_segment_is_understood(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        conversation = (
            (GREETING, 2),
            (credentials(bought.username, bought.password), 2),
            (request(target.host, target.port), 10),
        )
        answers = []
        for message, size in conversation:
            for byte in message:
                await client.send(bytes((byte,)))
                await asyncio.sleep(0.001)  # the daemon reads this byte by itself
            answers.append(await client.receive(size))
        assert answers[0] + answers[1] == ACCEPTED
        assert answers[2][:4] == b"\x05\0\0\x01"
        await client.send(b"hello")
        assert await client.receive(5) == b"hello"
        await client.close()


async def test_only_bytes_are_understood_in_a_request_for_a_name(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await logged_in(service, bought)
        for byte in named(b"127.0.0.1", target.port):
            await client.send(bytes((byte,)))
            await asyncio.sleep(0.001)
        assert (await client.reply())[0] == 0
        await client.close()


@cases("size", [1, 1000, 100_000])
async def test_everything_in_one_segment_is_served_and_counted(service: Service, size: int) -> None:
    buyer, bought = await buy(service)
    payload = targets.pattern(size)
    async with targets.sink(b"thanks") as target:
        client = await Client.open(service.proxy_port)
        await client.send(
            GREETING
            + credentials(bought.username, bought.password)
            + request(target.host, target.port)
            + payload
        )
        client.end()
        answer = await client.rest()
        await client.close()
    assert answer[:8] == ACCEPTED + b"\x05\0\0\x01"
    assert answer[14:] == b"thanks"
    assert bytes(target.data) == payload
    assert (await service.session(buyer, bought))["bytes_used"] == size + len(b"thanks")


async def test_payload_behind_the_request_waits_for_the_dial(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await logged_in(service, bought)
        await client.send(named(b"localhost", target.port) + b"early")
        assert (await client.reply())[0] == 0
        assert await client.receive(5) == b"early"
        await client.send(b"late")
        assert await client.receive(4) == b"late"
        await client.close()


# --- methods -------------------------------------------------------------------------------------


@cases(
    "methods",
    [b"\x02", b"\x00\x02", b"\x02\x00", b"\x01\x80\x02", bytes(range(255)), b"\x02" * 255],
)
async def test_username_and_password_are_chosen_wherever_they_are_offered(
    service: Service, methods: bytes
) -> None:
    _, bought = await buy(service)
    client = await Client.open(service.proxy_port)
    await client.send(bytes((5, len(methods))) + methods)
    assert await client.receive(2) == b"\x05\x02"
    await client.send(credentials(bought.username, bought.password))
    assert await client.receive(2) == b"\x01\x00"
    await client.close()


@cases(
    "methods",
    [b"", b"\x00", b"\x01", b"\x80\xfe", b"\xff", b"\x00" * 255],
)
async def test_a_list_without_username_and_password_is_refused(
    service: Service, methods: bytes
) -> None:
    assert await answer_to(service, bytes((5, len(methods))), methods) == b"\x05\xff"


async def test_no_client_gets_in_without_credentials(service: Service) -> None:
    async with targets.echo() as target:
        asked = request(target.host, target.port)
        assert await answer_to(service, b"\x05\x01\x00", asked) == b"\x05\xff"
        assert await answer_to(service, GREETING, asked) == WRONG
        assert target.accepted == 0


# --- credentials ---------------------------------------------------------------------------------


@cases(
    ("name", "password"),
    [
        (b"", b""),
        (b"", b"x"),
        (b"x", b""),
        (b"u" * 255, b"p" * 255),
        (b"\xff\xfe\x80", b"x"),
        (b"nobody", b"\xff\x00\x80"),
        (b"\0", b"\0"),
    ],
)
async def test_strange_credentials_are_wrong_and_nothing_worse(
    service: Service, name: bytes, password: bytes
) -> None:
    assert await answer_to(service, GREETING, credentials(name, password)) == WRONG


@cases("known", [False, True])
@cases("password", [b"", b"wrong", b"p" * 255, b"\xff\xfe"])
async def test_a_wrong_password_is_never_answered_with_success(
    service: Service, password: bytes, known: bool
) -> None:
    _, bought = await buy(service)
    if known:
        assert await status_of(service, bought) == 0
    async with targets.echo() as target:
        answer = await answer_to(
            service,
            GREETING,
            credentials(bought.username, password),
            request(target.host, target.port),
            b"payload" * 1000,
        )
        assert answer == WRONG
        assert target.accepted == 0


async def test_a_right_password_with_more_behind_it_is_wrong(service: Service) -> None:
    _, bought = await buy(service)
    for password in (bought.password + "x", bought.password[:-1], bought.password.upper()):
        asked = credentials(bought.username, password)
        assert await answer_to(service, GREETING, asked) == WRONG


async def test_another_persons_password_is_wrong(service: Service) -> None:
    _, first = await buy(service)
    _, second = await buy(service)
    asked = credentials(first.username, second.password)
    assert await answer_to(service, GREETING, asked) == WRONG


@cases("version", [0, 2, 5])
async def test_another_version_of_the_negotiation_is_refused(
    service: Service, version: int
) -> None:
    _, bought = await buy(service)
    asked = bytes((version,)) + credentials(bought.username, bought.password)[1:]
    assert await answer_to(service, GREETING, asked) == WRONG


async def test_an_exhausted_session_is_status_2(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service, targets.sink() as target:
        buyer, bought = await buy(service, quota=5)
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        await client.send(b"hello")
        assert await client.rest() == b""
        await client.close()
        assert await status_of(service, bought) == 2
        asked = credentials(bought.username, "wrong")
        assert await answer_to(service, GREETING, asked) == WRONG

        async def is_exhausted() -> bool:
            return (await service.session(buyer, bought))["status"] == "exhausted"

        await until(is_exhausted, "the session is exhausted in the list, too")
        await service.assert_audit()
    async with running_in(tmp_path) as restarted:
        assert await status_of(restarted, bought) == 2


@cases("known", [False, True])
async def test_wishes_that_cannot_be_understood_are_status_6(service: Service, known: bool) -> None:
    _, bought = await buy(service)
    if known:
        assert await status_of(service, bought) == 0
    mistyped = replace(bought, username=f"{bought.username}-ctry-de")
    assert await status_of(service, mistyped) == 6
    assert await status_of(service, replace(mistyped, password="wrong")) == 1
    async with targets.echo() as target:
        direct = f"{bought.username}-direct"
        client = await tunnel(service.proxy_port, direct, bought.password, target.host, target.port)
        await client.send(b"hello")
        assert await client.receive(5) == b"hello"
        await client.close()
        wanted = replace(bought, username=f"{bought.username}-country-de")
        answer = await outcome_of(service, wanted, request(target.host, target.port))
        assert answer == failure(3), "there is no exit, and nothing leaves from here instead"


@pytest.mark.parametrize("known", [False, True])
async def test_an_ended_session_is_status_3(tmp_path: Path, known: bool) -> None:
    async with running_in(tmp_path) as service:
        buyer, bought = await buy(service)
        if known:
            assert await status_of(service, bought) == 0
        ended = await service.call(
            "POST", "/api/bandwidth/end", {"session_id": bought.id}, token=buyer.token
        )
        assert ended.status == 200
        assert await status_of(service, bought) == 3
        asked = credentials(bought.username, "wrong")
        assert await answer_to(service, GREETING, asked) == WRONG
        await service.assert_audit()
    async with running_in(tmp_path) as restarted:
        assert await status_of(restarted, bought) == 3


async def test_an_expired_session_is_status_3(service: Service) -> None:
    buyer, bought = await buy(service)
    await service.expire(bought)
    assert await status_of(service, bought) == 3

    async def is_expired() -> bool:
        return (await service.session(buyer, bought))["status"] == "expired"

    await until(is_expired, "the session expires in the list, too")
    assert await status_of(service, bought) == 3
    assert await service.balance(buyer) == 10


async def test_a_session_that_expires_while_it_is_known_is_status_3(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bought = await buy(service)
    assert await status_of(service, bought) == 0
    later = clock.seconds() + 31 * 86_400
    monkeypatch.setattr(service.daemon.core.meter._admission, "_now", lambda: later)
    assert await status_of(service, bought) == 3


async def test_too_many_connections_are_status_4_until_one_is_closed(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"connections_per_session": 2}) as service:
        buyer, bought = await buy(service)
        other = await service.buy(buyer)
        async with targets.echo() as target:
            clients = [
                await tunnel(
                    service.proxy_port, bought.username, bought.password, target.host, target.port
                )
                for _ in range(2)
            ]
            assert await status_of(service, bought) == 4
            assert await status_of(service, other) == 0
            await clients[0].send(b"alive")
            assert await clients[0].receive(5) == b"alive"
            clients[0].end()
            assert await clients[0].rest() == b""
            assert await status_of(service, bought) == 0
            for client in clients:
                await client.close()
        await service.assert_audit()


# --- requests ------------------------------------------------------------------------------------


@cases("command", [0, 2, 4, 255])
@cases("host", ["127.0.0.1", "::1", "localhost"])
async def test_bind_and_unknown_commands_are_refused(
    service: Service, command: int, host: str
) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        asked = request(host, target.port, command=command)
        assert await outcome_of(service, bought, asked) == failure(7)
        assert target.accepted == 0


@cases("kind", [0, 2, 5, 255])
async def test_an_unknown_address_type_is_refused(service: Service, kind: int) -> None:
    _, bought = await buy(service)
    asked = bytes((5, 1, 0, kind)) + b"\x7f\0\0\x01\0\x50"
    assert await outcome_of(service, bought, asked) == failure(8)


@cases("version", [0, 1, 4, 6])
async def test_a_request_of_another_version_fails(service: Service, version: int) -> None:
    _, bought = await buy(service)
    asked = bytes((version,)) + request("127.0.0.1", 80)[1:]
    assert await outcome_of(service, bought, asked) == failure(1)


@cases("host", ["127.0.0.1", "::1", "localhost"])
async def test_a_refused_port_is_reported_as_refused(service: Service, host: str) -> None:
    _, bought = await buy(service)
    with closed_port() as port:
        assert await outcome_of(service, bought, request(host, port)) == failure(5)


async def test_an_unreachable_network_is_reported_as_unreachable(service: Service) -> None:
    _, bought = await buy(service)
    for host in (
        "127.255.255.255",
        "::ffff:127.255.255.255",
    ):  # no connection leads to a broadcast address
        assert await outcome_of(service, bought, request(host, 80)) == failure(3)


@cases(
    "name",
    [b"nosuch.invalid", b"", b".", b"a" * 255, b"\xff\xfe.example", b"with space.example", b"a\0b"],
)
async def test_an_unknown_name_is_an_unreachable_host(service: Service, name: bytes) -> None:
    _, bought = await buy(service)
    assert await outcome_of(service, bought, named(name, 80)) == failure(4)


@cases(
    "host",
    [
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "fe80::1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "::7f00:1",
        "64:ff9b::7f00:1",
    ],
)
async def test_a_forbidden_address_is_not_allowed(service: Service, host: str) -> None:
    _, bought = await buy(service)
    assert await outcome_of(service, bought, request(host, 80)) == failure(2)


async def test_a_forbidden_address_in_text_is_not_allowed(service: Service) -> None:
    _, bought = await buy(service)
    for text in (b"10.0.0.1", b"::ffff:10.0.0.1", b"[fd00::1]"):
        assert await outcome_of(service, bought, named(text, 80)) == failure(2)


async def test_loopback_is_not_allowed_unless_it_is_configured(tmp_path: Path) -> None:
    async with running_in(tmp_path, egress={"allow": []}) as service:
        _, bought = await buy(service)
        async with targets.echo() as target:
            asked = [request(host, target.port) for host in ("127.0.0.1", "::1", "localhost")]
            asked += [request("::ffff:127.0.0.1", target.port), named(b"127.0.0.1", target.port)]
            for each in asked:
                assert await outcome_of(service, bought, each) == failure(2)
            assert target.accepted == 0
        await service.assert_audit()


async def test_this_machine_is_not_allowed_at_a_globally_routable_address_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Machines for tests have none: let the addresses that they have pass for such.
    monkeypatch.setattr("proxyctl.protocol.policy.is_global", lambda _: True)
    async with running_in(tmp_path, egress={"allow": []}) as service:
        _, bought = await buy(service)
        async with targets.echo() as target:
            for host in ("127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1", "localhost"):
                asked = request(host, target.port)
                assert await outcome_of(service, bought, asked) == failure(2)
            assert target.accepted == 0
        await service.assert_audit()


@cases("port", [0, 25, 465, 587])
async def test_a_blocked_port_is_not_allowed(service: Service, port: int) -> None:
    _, bought = await buy(service)
    for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "localhost"):
        assert await outcome_of(service, bought, request(host, port)) == failure(2)


async def test_a_target_that_never_answers_is_reported_as_timed_out(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"dial_seconds": 0.2}) as service:
        _, bought = await buy(service)
        with silent_port() as port:
            assert await outcome_of(service, bought, request("127.0.0.1", port)) == failure(6)
        await service.assert_audit()


async def test_more_dials_than_may_wait_are_a_general_failure(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"dials_waiting": 1, "dial_seconds": 5}) as service:
        _, bought = await buy(service)
        with silent_port() as silent, closed_port() as closed:
            waiting = await logged_in(service, bought)
            await waiting.send(request("127.0.0.1", silent))
            await until(lambda: service.daemon.gateway.dialing == 1, "the first one dials")
            assert await outcome_of(service, bought, request("127.0.0.1", closed)) == failure(1)
            await waiting.close()


async def test_the_dials_of_one_session_leave_room_for_those_of_another(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"dials_waiting": 4, "dial_seconds": 60}) as service:
        _, bought = await buy(service)
        _, other = await buy(service)
        with silent_port() as silent, closed_port() as closed:
            waiting = [await logged_in(service, bought) for _ in range(2)]
            for client in waiting:
                await client.send(request("127.0.0.1", silent))
            await until(lambda: service.daemon.gateway.dialing == 2, "they dial")
            assert await outcome_of(service, bought, request("127.0.0.1", closed)) == failure(1)
            assert await outcome_of(service, other, request("127.0.0.1", closed)) == failure(5)
            for client in waiting:
                await client.close()


# --- addresses -----------------------------------------------------------------------------------


async def test_the_bound_address_is_the_one_that_the_target_sees(service: Service) -> None:
    _, bought = await buy(service)
    async with watching() as (target, peers):
        for asked in (request("127.0.0.1", target.port), named(b"localhost", target.port)):
            client = await logged_in(service, bought)
            await client.send(asked)
            code, host, port = await client.reply()
            await client.send(b"x")
            assert await client.receive(1) == b"x"
            assert code == 0
            assert (host, port) == peers[-1]
            await client.close()


async def test_a_target_is_reached_over_ipv6(service: Service) -> None:
    buyer, bought = await buy(service)
    async with targets.echo("::1") as target:
        for asked in (request("::1", target.port), named(b"::1", target.port)):
            client = await logged_in(service, bought)
            await client.send(asked)
            code, host, port = await client.reply()
            assert (code, host) == (0, "::1")
            assert port not in (0, target.port)
            await client.send(b"hello")
            assert await client.receive(5) == b"hello"
            await client.close()
    assert (await service.session(buyer, bought))["bytes_used"] == 20


async def test_an_ipv4_address_inside_an_ipv6_one_is_reached_over_ipv4(service: Service) -> None:
    _, bought = await buy(service)
    async with watching() as (target, peers):
        client = await logged_in(service, bought)
        await client.send(request("::ffff:127.0.0.1", target.port))
        code, host, port = await client.reply()
        await client.send(b"x")
        assert await client.receive(1) == b"x"
        bound = ip_address(host)
        assert code == 0
        assert (str(getattr(bound, "ipv4_mapped", None) or bound), port) == peers[0]
        await client.close()


@cases("text", [b"127.0.0.1", b"::ffff:127.0.0.1", b"localhost", b"LOCALHOST."])
async def test_a_name_may_be_an_address_in_text(service: Service, text: bytes) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await logged_in(service, bought)
        await client.send(named(text, target.port))
        assert (await client.reply())[0] == 0
        await client.send(b"hello")
        assert await client.receive(5) == b"hello"
        await client.close()


async def test_success_is_reported_after_the_dial_and_never_before(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"dial_seconds": 2.0}) as service:
        _, bought = await buy(service)
        with silent_port() as port:
            client = await logged_in(service, bought)
            await client.send(request("127.0.0.1", port))
            await until(lambda: service.daemon.gateway.dialing == 1, "it dials")
            assert (await client.reply())[0] == 6
            await client.close()


# --- how a failure ends --------------------------------------------------------------------------


@cases("behind", [0, 1, 100_000])
@cases(
    ("asked", "code"),
    [
        (request("10.0.0.1", 80), 2),
        (request("127.0.0.1", 25), 2),
        (named(b"nosuch.invalid", 80), 4),
        (named(b"", 80), 4),
        (request("127.0.0.1", 80, command=2), 7),
        (request("::1", 80, command=9), 7),
        (b"\x05\x01\x00\x09\x00\x00", 8),
        (b"\x04\x01\x00\x01\x00\x00", 1),
    ],
)
async def test_a_failure_is_complete_and_the_stream_ends_in_order(
    service: Service, asked: bytes, code: int, behind: int
) -> None:
    _, bought = await buy(service)
    answer = await answer_to(
        service,
        GREETING,
        credentials(bought.username, bought.password),
        asked,
        bytes(behind),
    )
    assert answer == ACCEPTED + failure(code)


@cases("behind", [0, 100_000])
async def test_a_refused_dial_is_complete_and_the_stream_ends_in_order(
    service: Service, behind: int
) -> None:
    _, bought = await buy(service)
    with closed_port() as port:
        answer = await answer_to(
            service,
            GREETING,
            credentials(bought.username, bought.password),
            request("127.0.0.1", port),
            bytes(behind),
        )
    assert answer == ACCEPTED + failure(5)


@cases(
    ("sent", "answer"),
    [
        (b"\x05\x01\x00", b"\x05\xff"),
        (b"\x05\x00", b"\x05\xff"),
        (GREETING + credentials("nobody", "x"), WRONG),
        (GREETING + b"\x05", WRONG),
    ],
)
async def test_a_refusal_ends_the_stream_in_order_before_any_further_bytes(
    service: Service, sent: bytes, answer: bytes
) -> None:
    assert await answer_to(service, sent, bytes(100_000)) == answer


@bounded(closing_bounds(patience_seconds=2.0))
@cases(
    ("asked", "answer"),
    [(request("10.0.0.1", 80), failure(2)), (request("127.0.0.1", 80, command=2), failure(7))],
)
async def test_a_failure_is_not_followed_by_a_reset_although_more_was_sent(
    service: Service, asked: bytes, answer: bytes
) -> None:
    _, bought = await buy(service)
    gateway = service.daemon.gateway
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", service.proxy_port)) as sock:
        sock.setblocking(False)
        sent = GREETING + credentials(bought.username, bought.password) + asked
        await loop.sock_sendall(sock, sent + bytes(100_000))
        await until(lambda: len(gateway.closer) == 1, "it has failed")
        await until(lambda: len(gateway.closer) == 0, "it is closed before the client reads")
        received = b""
        while data := await loop.sock_recv(sock, 1000):
            received += data
        assert received == ACCEPTED + answer
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "there was a reset"


@bounded(closing_bounds(patience_seconds=0.2))
async def test_a_failed_client_that_stays_is_let_go_of(service: Service) -> None:
    _, bought = await buy(service)
    assert await status_of(service, bought) == 0
    before = await at_rest(service)
    client = await logged_in(service, bought)
    await client.send(request("10.0.0.1", 80))
    assert (await client.reply())[0] == 2
    await all_gone(service, before + 1)  # the client's own
    await client.close()


@bounded(closing_bounds(patience_seconds=0.5))
async def test_a_failed_client_that_goes_on_sending_is_let_go_of(service: Service) -> None:
    assert USUAL.patience_seconds < 10, "RFC 1928, section 6"
    _, bought = await buy(service)
    gateway = service.daemon.gateway
    client = await logged_in(service, bought)
    await client.send(request("10.0.0.1", 80))
    assert await client.receive(10) == failure(2)
    is_cut = False
    sent = 0
    while not is_cut and sent < 1_000:
        try:
            await client.send(b"x")
            await asyncio.sleep(0.01)  # its own pace, for longer than it is borne with
        except ConnectionError:
            is_cut = True
        sent += 1
    assert is_cut, "a byte now and then keeps the connection"
    assert len(gateway.closer) == 0
    await client.close()


# --- clients that do not finish ------------------------------------------------------------------

HANDSHAKE_SECONDS = 3.0  # a busy machine finishes a whole handshake within this time

UNFINISHED: dict[str, Callable[[Bought], bytes]] = {
    "nothing": lambda _: b"",
    "a version": lambda _: b"\x05",
    "half a method list": lambda _: b"\x05\x05\x00\x01",
    "a method list": lambda _: GREETING,
    "half a name": lambda _: GREETING + b"\x01\x10user",
    "half a password": lambda bought: GREETING + credentials(bought.username, bought.password)[:-1],
    "no request": lambda bought: GREETING + credentials(bought.username, bought.password),
    "half a request": lambda bought: (
        GREETING + credentials(bought.username, bought.password) + request("127.0.0.1", 80)[:-1]
    ),
    "half a host name": lambda bought: (
        GREETING + credentials(bought.username, bought.password) + b"\x05\x01\x00\x03\xffhost"
    ),
}
GARBAGE = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "noise": targets.pattern(100_000),
}


async def stays_until_cut(service: Service, sent: bytes) -> None:
    """Send, then do nothing until the daemon closes."""
    client = await Client.open(service.proxy_port)
    await client.send(sent)
    with suppress(ConnectionError):
        await client.rest()
    await client.close()


async def test_unfinished_handshakes_are_cut_and_leave_nothing(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"handshake_seconds": HANDSHAKE_SECONDS}) as service:
        _, bought = await buy(service)
        assert await status_of(service, bought) == 0
        before = await at_rest(service)
        started = [
            asyncio.create_task(stays_until_cut(service, sent(bought)))
            for sent in UNFINISHED.values()
        ]
        gateway = service.daemon.gateway
        await until(lambda: gateway.connections == len(started), "all are let in")
        await asyncio.gather(*started)
        await all_gone(service, before)
        assert await status_of(service, bought) == 0
        await service.assert_audit()


@cases("garbage", GARBAGE.values())
async def test_garbage_is_closed_without_an_answer(service: Service, garbage: bytes) -> None:
    before = await at_rest(service)
    client = await Client.open(service.proxy_port)
    await client.send(garbage)
    assert await client.rest() == b""
    await client.close()
    await all_gone(service, before)


async def test_a_client_of_socks4_is_refused_in_its_own_words(service: Service) -> None:
    asked = b"\x04\x01\x00\x50\x7f\x00\x00\x01user\x00"
    assert await answer_to(service, asked) == b"\x00\x5b" + bytes(6)


async def test_clients_that_leave_in_the_middle_leave_nothing(service: Service) -> None:
    _, bought = await buy(service)
    assert await status_of(service, bought) == 0
    before = await at_rest(service)
    for sent in UNFINISHED.values():
        for leave in (Client.reset, Client.end):
            client = await Client.open(service.proxy_port)
            await client.send(sent(bought))
            await until(lambda: service.daemon.gateway.connections == 1, "it is let in")
            leave(client)
            with suppress(ConnectionError):
                await client.rest()
            await client.close()
            await until(lambda: service.daemon.gateway.connections == 0, "it is forgotten")
    await all_gone(service, before)


async def test_an_endless_handshake_is_cut(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"handshake_seconds": 0.5}) as service:
        before = await at_rest(service)
        client = await Client.open(service.proxy_port)
        await client.send(b"\x05\xff")
        sent = 0
        while sent < 254 and not client.reader.at_eof() and client.reader.exception() is None:
            with suppress(ConnectionError):
                await client.send(b"\x00")
            sent += 1
            await asyncio.sleep(0.02)  # keeps the conversation going far beyond its limit
        assert sent < 254, "a byte now and then has kept the handshake open"
        await client.close()
        await all_gone(service, before)


async def test_a_finished_handshake_is_not_cut(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"handshake_seconds": HANDSHAKE_SECONDS}) as service:
        _, bought = await buy(service)
        async with targets.echo() as target:
            client = await tunnel(
                service.proxy_port, bought.username, bought.password, target.host, target.port
            )
            await stays_until_cut(service, GREETING)  # began later, is cut
            await client.send(b"hello")
            assert await client.receive(5) == b"hello"
            await client.close()
        await service.assert_audit()


@cases("name", [b"2001:4860:4860::8888%\0", b"fe80::1%lo", b"::1%1", b"[::1%1]"])
async def test_a_scoped_address_is_no_host_and_leaves_nothing_behind(
    service: Service, name: bytes
) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    client = await Client.open(service.proxy_port)
    assert await client.log_in(bought.username, bought.password) == 0
    await client.send(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + b"\x00\x50")
    assert (await client.reply())[0] == 4
    assert await client.rest() == b""
    await client.close()
    await until(lambda: service.daemon.gateway.connections == 0)
    assert service.daemon.gateway.dialing == 0
