"""Ports without passwords, over real sockets: admitted clients, their sessions, refused clients."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from support.base.waiting import until
from support.clients.socks import Client, request, tunnel
from support.clients.story import used
from support.daemons.bounded import bounded, unknown_bounds
from support.daemons.service import Bought, Person, Service, running_in
from support.targets import targets

from market.bandwidth.allowlist import canonical
from market.bandwidth.leases import Grant
from proxyd.ops.processes.listening import bound_port
from proxyd.wiring.bounds import Bounds
from storage.engines.errors import UnavailableError

HERE, THERE = "127.0.0.1", "127.0.0.2"
GREETING = b"\x05\x01\x00"  # no authentication is all that is offered
ACCEPTED = b"\x05\x00"
REFUSED = b"\x05\xff"
TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"
NOBODY = b"No session lets this address in without a password.\n"
USED_UP = b"The quota of the session is used up.\n"
OVER = b"The session has ended, has expired, or is halted.\n"

TWO_PORTS = {"passwordless_ports": [0, 0]}


@pytest.fixture
async def service(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Service]:
    """A running daemon with two ports without passwords."""
    async with running_in(tmp_path, bounds=bounds, proxy=TWO_PORTS) as running:
        yield running
        await running.assert_audit()


async def buy(service: Service, *allow_ips: str, quota: int = 10**9) -> tuple[Person, Bought]:
    """Return a user with a session for these addresses, which are proved."""
    person, bought = await order(service, *allow_ips, quota=quota)
    proved = await service.daemon.market.leases.prove(
        [(bought.id, each) for each in canonical(allow_ips)]
    )
    assert None not in proved
    return person, bought


async def order(service: Service, *allow_ips: str, quota: int = 10**9) -> tuple[Person, Bought]:
    """Return a user with a session for these addresses; except for `HERE` they are pending."""
    person = await service.person(usd="10")
    return person, await service.buy(person, quota=quota, allow_ips=allow_ips)


async def log_in(service: Service, bought: Bought, *, source: str = "") -> None:
    """Show a session's password on the main port."""
    client = await Client.open(service.proxy_port, source=source)
    assert await client.log_in(bought.username, bought.password) == 0
    await client.close()


async def pending(service: Service, person: Person, bought: Bought) -> list[str]:
    return list((await service.session(person, bought)).get("pending_ips", []))


async def end(service: Service, person: Person, bought: Bought) -> None:
    """End a session by the API."""
    answer = await service.call(
        "POST", "/api/bandwidth/end", {"session_id": bought.id}, token=person.token
    )
    assert answer.status == 200, answer.body


async def greeted(port: int, *, host: str = HERE, source: str = "") -> bytes:
    """Return which method of SOCKS5 a client without credentials is given."""
    client = await Client.open(port, host=host, source=source)
    await client.send(GREETING)
    method = await client.receive(2)
    if method == REFUSED:
        assert await client.rest() == b""
    await client.close()
    return method


async def told(port: int, *, source: str = "") -> tuple[int, bytes]:
    """Ask for a tunnel by HTTP, in vain; return the status and the words."""
    client = await Client.open(port, source=source)
    await client.send(b"CONNECT 127.0.0.1:25 HTTP/1.1\r\nHost: proxied\r\n\r\n")
    head, _, words = (await client.rest()).partition(b"\r\n\r\n")
    await client.close()
    return int(head.split()[1]), words


def counting(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Note every question about an address to the store."""
    leases, asked = service.daemon.market.leases, []
    find = leases.find_by_address

    async def noting(slot: int, address: str) -> str | None:
        asked.append((slot, address))
        return await find(slot, address)

    monkeypatch.setattr(leases, "find_by_address", noting)
    return asked


# --- admitted clients ----------------------------------------------------------------------------


async def test_a_client_of_socks5_is_let_in_and_every_byte_counted(service: Service) -> None:
    buyer, bought = await buy(service, HERE)
    async with targets.echo() as target:
        client = await Client.open(bought.passwordless_port)
        await client.send(GREETING + request(HERE, target.port) + b"hello")
        assert await client.receive(2) == ACCEPTED
        assert (await client.reply())[0] == 0
        assert await client.receive(5) == b"hello"
        await client.close()
    assert await used(service, buyer, bought) == 10


async def test_a_tunnel_is_opened_by_http(service: Service) -> None:
    buyer, bought = await buy(service, HERE)
    async with targets.echo() as target:
        client = await Client.open(bought.passwordless_port)
        await client.send(
            f"CONNECT localhost:{target.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + b"hello"
        )
        assert await client.receive(len(TUNNEL) + 5) == TUNNEL + b"hello"
        await client.close()
    assert await used(service, buyer, bought) == 10


async def test_a_page_is_forwarded(service: Service) -> None:
    buyer, bought = await buy(service, HERE)
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(page)
        writer.close()

    async with targets.serving(handle) as target:
        client = await Client.open(bought.passwordless_port)
        line = f"GET http://127.0.0.1:{target.port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
        await client.send(line.encode())
        assert await client.rest() == page
        await client.close()
    assert await used(service, buyer, bought) == len(seen[0]) + len(page)


async def test_datagrams_are_relayed(service: Service) -> None:
    buyer, bought = await buy(service, HERE)
    client = await Client.open(bought.passwordless_port)
    await client.send(GREETING + request("0.0.0.0", 0, command=3))
    assert await client.receive(2) == ACCEPTED
    code, *relay = await client.reply()
    assert code == 0

    def exchange() -> None:
        with (
            socket.socket(type=socket.SOCK_DGRAM) as target,
            socket.socket(type=socket.SOCK_DGRAM) as sender,
        ):
            for sock in (target, sender):
                sock.bind((HERE, 0))
                sock.settimeout(10)
            port = struct.pack(">H", target.getsockname()[1])
            header = b"\0\0\0\x01" + socket.inet_aton(HERE) + port
            sender.sendto(header + b"hello", tuple(relay))
            data, outer = target.recvfrom(100)
            assert data == b"hello"
            target.sendto(b"there", outer)
            assert sender.recv(100) == header + b"there"

    await asyncio.to_thread(exchange)
    await client.close()
    assert await used(service, buyer, bought) == 10


async def test_needless_credentials_are_not_looked_at(service: Service) -> None:
    buyer, bought = await buy(service, HERE)
    async with targets.echo() as target:
        client = await tunnel(bought.passwordless_port, "any", "thing", HERE, target.port)
        await client.send(b"hello")
        assert await client.receive(5) == b"hello"
        await client.close()
    assert await used(service, buyer, bought) == 10


async def test_a_password_opens_the_same_session_on_the_port_for_passwords(
    service: Service,
) -> None:
    buyer, bought = await buy(service, HERE)
    async with targets.echo() as target:
        shown = await tunnel(
            service.proxy_port, bought.username, bought.password, HERE, target.port
        )
        bare = await Client.open(bought.passwordless_port)
        await bare.send(GREETING + request(HERE, target.port))
        assert await bare.receive(2) == ACCEPTED
        assert (await bare.reply())[0] == 0
        for client, size in ((shown, 1), (bare, 2)):
            await client.send(bytes(size))
            await client.receive(size)
        for client in (shown, bare):
            await client.close()
    assert await used(service, buyer, bought) == 6


# --- refused clients -----------------------------------------------------------------------------


async def test_another_address_is_refused(service: Service) -> None:
    _, bought = await buy(service, HERE)
    port = bought.passwordless_port
    assert await greeted(port, source=THERE) == REFUSED
    assert await told(port, source=THERE) == (403, NOBODY)
    assert await greeted(port) == ACCEPTED


async def test_the_other_ports_admit_no_client(service: Service) -> None:
    _, bought = await buy(service, HERE)
    ports = [bound_port(sock) for sock in service.daemon.listeners.passwordless]
    assert bought.passwordless_port == ports[0]
    assert await greeted(ports[1]) == REFUSED
    assert await greeted(service.proxy_port) == REFUSED


async def test_no_client_is_let_in_before_an_address_is_named(service: Service) -> None:
    _, bought = await buy(service)
    assert bought.passwordless_port == 0
    port = bound_port(service.daemon.listeners.passwordless[0])
    assert await greeted(port) == REFUSED
    assert await told(port) == (403, NOBODY)


async def test_targets_are_forbidden_as_everywhere(service: Service) -> None:
    _, bought = await buy(service, HERE)
    status, words = await told(bought.passwordless_port)
    assert (status, words) == (403, b"This target is not allowed.\n")


# --- which session -------------------------------------------------------------------------------


async def test_two_sessions_of_one_address_have_a_port_each(service: Service) -> None:
    both = [await buy(service, HERE) for _ in range(2)]
    assert len({bought.passwordless_port for _, bought in both}) == 2
    third = await service.person(usd="10")
    refused = await service.call(
        "POST", "/api/bandwidth/create", {"gb": 1, "allow_ips": [HERE]}, token=third.token
    )
    assert (refused.status, refused.code, refused.field) == (400, "addresses_taken", "allow_ips")
    async with targets.echo() as target:
        for size, (_, bought) in enumerate(both, start=1):
            client = await Client.open(bought.passwordless_port)
            await client.send(GREETING + request(HERE, target.port) + bytes(size))
            await client.receive(12 + size)
            await client.close()
    assert [await used(service, *each) for each in both] == [2, 4]


async def test_an_ended_session_admits_no_client_and_its_address_opens_the_next(
    service: Service,
) -> None:
    buyer, over = await buy(service, HERE)
    port = over.passwordless_port
    assert await greeted(port) == ACCEPTED
    await end(service, buyer, over)
    assert await greeted(port) == REFUSED
    assert await told(port) == (403, OVER)
    buyer, after = await buy(service, HERE)
    assert after.passwordless_port == port
    async with targets.echo() as target:
        client = await Client.open(port)
        await client.send(GREETING + request(HERE, target.port) + b"hello")
        assert (await client.receive(17))[-5:] == b"hello"
        await client.close()
    assert await used(service, buyer, after) == 10


async def test_an_ending_cuts_clients_without_a_password(service: Service) -> None:
    buyer, bought = await buy(service, HERE)
    async with targets.echo() as target:
        client = await Client.open(bought.passwordless_port)
        await client.send(GREETING + request(HERE, target.port))
        await client.receive(12)
        await end(service, buyer, bought)
        with pytest.raises(ConnectionError):
            await client.rest()
        await client.close()


async def test_a_session_that_is_used_up_says_so(service: Service) -> None:
    buyer, bought = await buy(service, HERE, quota=10)
    async with targets.echo() as target:
        client = await Client.open(bought.passwordless_port)
        await client.send(GREETING + request(HERE, target.port) + b"hello")
        assert (await client.receive(17))[-5:] == b"hello"
        assert await client.rest() == b""
        await client.close()
    assert await told(bought.passwordless_port) == (403, USED_UP)
    assert await greeted(bought.passwordless_port) == REFUSED
    assert (await service.session(buyer, bought))["status"] == "exhausted"


async def test_a_restart_keeps_sessions_although_their_ports_change(tmp_path: Path) -> None:
    async with running_in(tmp_path, proxy=TWO_PORTS) as service:
        buyer = await service.person(usd="10")
        both = [await service.buy(buyer, allow_ips=[HERE]) for _ in range(2)]
        assert await greeted(both[1].passwordless_port) == ACCEPTED
    async with running_in(tmp_path, proxy=TWO_PORTS) as service:
        ports = [bound_port(sock) for sock in service.daemon.listeners.passwordless]
        for bought, port in zip(both, ports, strict=True):
            session = await service.session(buyer, bought)
            assert (session["allow_ips"], session["passwordless_port"]) == ([HERE], port)
            assert await greeted(port) == ACCEPTED
            await end(service, buyer, bought)
            assert await told(port) == (403, OVER)
        await service.assert_audit()
    async with running_in(tmp_path, proxy=TWO_PORTS) as service:
        assert await told(bound_port(service.daemon.listeners.passwordless[0])) == (403, NOBODY)


# --- whose an address is -------------------------------------------------------------------------


async def test_an_address_lets_in_once_the_password_has_come_from_it(service: Service) -> None:
    buyer, bought = await order(service, HERE, THERE)
    port = bought.passwordless_port
    assert await greeted(port) == ACCEPTED
    assert await greeted(port, source=THERE) == REFUSED
    assert await pending(service, buyer, bought) == [THERE]
    await log_in(service, bought)
    await log_in(service, bought, source="127.0.0.3")
    assert await pending(service, buyer, bought) == [THERE]
    await log_in(service, bought, source=THERE)
    await until(lambda: _is_proved(service, buyer, bought), "the address is proved")
    assert await greeted(port, source="127.0.0.3") == REFUSED


async def _is_proved(service: Service, buyer: Person, bought: Bought) -> bool:
    """Whether the store has it, and the daemon, which gets it from the store a moment later."""
    if await pending(service, buyer, bought):
        return False
    return await greeted(bought.passwordless_port, source=THERE) == ACCEPTED


async def test_a_squatter_neither_keeps_an_address_nor_sees_its_traffic(service: Service) -> None:
    squatter, theirs = await order(service, THERE)
    owner, bought = await order(service, THERE)
    assert bought.passwordless_port == theirs.passwordless_port
    await log_in(service, bought, source=THERE)
    await until(lambda: _is_proved(service, owner, bought), "the address is proved")
    async with targets.echo() as target:
        client = await Client.open(bought.passwordless_port, source=THERE)
        await client.send(GREETING + request(HERE, target.port) + b"hello")
        assert (await client.receive(17))[-5:] == b"hello"
        await client.close()
    assert await used(service, owner, bought) == 10
    assert await used(service, squatter, theirs) == 0
    assert await pending(service, squatter, theirs) == [THERE]


async def test_an_address_that_another_user_has_proved_is_not_asked_for_each_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await order(service, THERE), await order(service, THERE)
    leases, asked = service.daemon.market.leases, []
    prove = leases.prove

    async def noting(shown: Sequence[tuple[str, str]]) -> list[int | None]:
        answer = await prove(shown)
        asked.extend(shown)
        return answer

    monkeypatch.setattr(leases, "prove", noting)
    expected = [(bought.id, THERE) for _, bought in (first, second)]
    for _, bought in (first, second):
        await log_in(service, bought, source=THERE)
        await until(lambda known=bought.id: (known, THERE) in asked, "the store has answered")
        for _ in range(3):
            await log_in(service, bought, source=THERE)
    await service.daemon.core.meter.flush()
    assert asked == expected
    assert await pending(service, *first) == []
    assert await pending(service, *second) == [THERE]


async def test_a_store_that_fails_while_an_address_is_proved_is_asked_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, bought = await order(service, THERE)
    failures = []

    async def fail(shown: object) -> list[int | None]:
        failures.append(shown)
        raise UnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(service.daemon.market.leases, "prove", fail)
        await log_in(service, bought, source=THERE)
        await until(lambda: bool(failures), "the store has failed")
        assert await pending(service, buyer, bought) == [THERE]
    await until(lambda: _is_proved(service, buyer, bought), "the address is proved")


# --- questions to the store ----------------------------------------------------------------------


async def test_a_known_session_is_let_in_from_memory(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bought = await buy(service, HERE, THERE)
    asked = counting(service, monkeypatch)
    for _ in range(5):
        assert await greeted(bought.passwordless_port) == ACCEPTED
        assert await greeted(bought.passwordless_port, source=THERE) == ACCEPTED
    assert asked == [(0, HERE)]


async def test_a_session_that_is_known_by_its_password_is_known_by_its_addresses(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bought = await buy(service, HERE)
    asked = counting(service, monkeypatch)
    client = await Client.open(service.proxy_port)
    assert await client.log_in(bought.username, bought.password) == 0
    await client.close()
    assert await greeted(bought.passwordless_port) == ACCEPTED
    assert asked == []


@bounded(unknown_bounds(seconds=1000.0))
async def test_a_stranger_that_connects_again_and_again_is_looked_up_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counting(service, monkeypatch)
    port = bound_port(service.daemon.listeners.passwordless[0])
    for _ in range(20):
        assert await greeted(port) == REFUSED
    assert asked == [(0, HERE)]
    assert await greeted(port, source=THERE) == REFUSED
    assert asked == [(0, HERE), (0, THERE)]
    _, bought = await buy(service, HERE)
    assert await greeted(bought.passwordless_port) == ACCEPTED
    assert asked == [(0, HERE), (0, THERE), (0, HERE)]


@bounded(unknown_bounds(seconds=0.0))
async def test_a_stranger_is_looked_up_again_after_a_moment(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counting(service, monkeypatch)
    port = bound_port(service.daemon.listeners.passwordless[0])
    for _ in range(3):
        assert await greeted(port) == REFUSED
    assert asked == [(0, HERE)] * 3


@bounded(unknown_bounds(seconds=1000.0, keys_max=2))
async def test_no_more_strangers_are_remembered_than_there_is_room_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counting(service, monkeypatch)
    port = bound_port(service.daemon.listeners.passwordless[0])
    for last in (1, 2, 3, 3, 2, 1):  # the third drives the first out, who drives the second out
        assert await greeted(port, source=f"127.0.0.{last}") == REFUSED
    assert [address for _, address in asked] == [HERE, THERE, "127.0.0.3", HERE]


async def test_a_purchase_while_its_address_is_looked_up_in_vain_lets_in(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, found, bought_now = service.daemon.market.leases, asyncio.Event(), asyncio.Event()
    find = leases.find_by_address

    async def late(slot: int, address: str) -> str | None:
        answer = await find(slot, address)
        found.set()
        await bought_now.wait()
        return answer

    monkeypatch.setattr(leases, "find_by_address", late)
    port = bound_port(service.daemon.listeners.passwordless[0])
    early = asyncio.create_task(greeted(port))
    await found.wait()
    await buy(service, HERE)
    joining = asyncio.create_task(greeted(port))
    await until(lambda: service.daemon.gateway.connections == 2, "both wait")
    bought_now.set()
    assert await asyncio.gather(early, joining) == [ACCEPTED, ACCEPTED]


async def test_a_session_is_leased_once_however_it_is_opened(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bought = await buy(service, HERE, THERE)
    leases, asked, go = service.daemon.market.leases, [], asyncio.Event()
    open_now, find, find_by_address = leases.open, leases.find, leases.find_by_address
    found = []

    def noting(question: Callable[..., Awaitable[str | None]]) -> Callable[..., Awaitable[object]]:
        async def noted(*of: object) -> object:
            answer = await question(*of)
            found.append(answer)
            return answer

        return noted

    async def late(session_id: str) -> Grant | None:
        asked.append(session_id)
        await go.wait()
        return await open_now(session_id)

    monkeypatch.setattr(leases, "open", late)
    monkeypatch.setattr(leases, "find", noting(find))
    monkeypatch.setattr(leases, "find_by_address", noting(find_by_address))

    async def by_password() -> int:
        client = await Client.open(service.proxy_port)
        status = await client.log_in(bought.username, bought.password)
        await client.close()
        return status

    port = bought.passwordless_port
    clients = [
        asyncio.create_task(each)
        for each in (by_password(), greeted(port), greeted(port, source=THERE))
    ]
    await until(lambda: found == [bought.id] * 3, "all three have found it")
    go.set()
    assert await asyncio.gather(*clients) == [0, ACCEPTED, ACCEPTED]
    assert asked == [bought.id]


async def test_a_store_that_does_not_answer_is_not_held_against_a_client(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bought = await buy(service, HERE)

    async def fail(slot: int, address: str) -> str | None:
        raise UnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(service.daemon.market.leases, "find_by_address", fail)
        assert (await told(bought.passwordless_port))[0] == 503
        assert await greeted(bought.passwordless_port) == REFUSED
    assert await greeted(bought.passwordless_port) == ACCEPTED


# --- listening -----------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["127.0.0.1", "::ffff:127.0.0.1"])
async def test_an_ipv4_client_of_an_ipv6_socket_is_an_ipv4_client(
    tmp_path: Path, named: str
) -> None:
    proxy = {"host": "::", "public_host": "localhost"}
    async with running_in(tmp_path, proxy=proxy) as service:
        _, bought = await buy(service, named)
        assert await greeted(bought.passwordless_port) == ACCEPTED
        assert await greeted(bought.passwordless_port, host="::1") == REFUSED


async def test_an_ipv6_address_may_be_named(tmp_path: Path) -> None:
    proxy = {"host": "::", "public_host": "localhost"}
    async with running_in(tmp_path, proxy=proxy) as service:
        _, bought = await buy(service, "0:0:0:0:0:0:0:1")
        assert await greeted(bought.passwordless_port, host="::1") == ACCEPTED
        assert await greeted(bought.passwordless_port) == REFUSED


async def test_connections_of_one_address_are_counted_over_all_ports(tmp_path: Path) -> None:
    limits = {"connections_per_address": 2}
    async with running_in(tmp_path, proxy=TWO_PORTS, limits=limits) as service:
        _, bought = await buy(service, HERE)
        gateway = service.daemon.gateway
        first = await Client.open(service.proxy_port)
        second = await Client.open(bought.passwordless_port)
        await until(lambda: gateway.connections == 2, "both are in")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await greeted(bought.passwordless_port)
        for client in (first, second):
            await client.close()


async def test_a_draining_daemon_accepts_no_client_on_any_port(service: Service) -> None:
    _, bought = await buy(service, HERE)
    assert await greeted(bought.passwordless_port) == ACCEPTED
    gateway = service.daemon.gateway
    assert gateway.is_listening
    gateway.stop_accepting()
    assert not gateway.is_listening
    for listener in service.daemon.listeners.passwordless:
        assert listener.fileno() == -1
    with pytest.raises(ConnectionError):
        await Client.open(bought.passwordless_port)
