"""UDP ASSOCIATE over real sockets: RFC 1928, section 7, and every byte of it counted."""

import asyncio
import dataclasses
import fcntl
import logging
import math
import socket
import struct
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.base.brief import brief, examples
from support.base.cases import cases
from support.base.clock import Clock
from support.base.descriptors import all_gone, at_rest, none_left
from support.base.ports import closed_port
from support.base.waiting import PATIENCE_SECONDS, until
from support.clients.datagrams import (
    Associated,
    Peer,
    associated,
    logged_in,
    nobody_at,
    peer,
    unwrapped,
    wrapped,
)
from support.clients.socks import GREETING, Client, credentials, request
from support.clients.story import buy, used
from support.daemons.service import Bought, Person, Service, running, running_in, settings_for
from support.exits.device import EXITS, running_with_agent, running_with_exit
from support.exits.epoll import Full
from support.targets.targets import pattern

from proxyctl.attach.relay.relay import AsyncioRelays
from proxyd.connection import ClientConnection, reached_at
from proxyd.egress.resolve import Address, NameNotFoundError
from proxyd.limits import associations_total
from proxyd.relay import udp

SECURE = {"exits": {**EXITS["exits"], "encrypt": "all"}}
WAYS = {
    "directly": running_in,
    "through an exit": running_with_exit,
    "through the agent": running_with_agent,
    "through the agent of asyncio": partial(running_with_agent, relays=AsyncioRelays),
    "through the agent under TLS": partial(running_with_agent, **SECURE),
}
# `make test` goes through each part once: the agent is an exit. `make test-both` goes every way.
LONG = {"through an exit", "through the agent of asyncio", "through the agent under TLS"}
# They examine sockets of this machine; with an exit the datagrams leave from another one.
DIRECTLY_ALONE = {
    "test_a_datagram_without_payload_goes_only_while_a_byte_would",
    "test_without_a_descriptor_an_association_is_refused",
    "test_without_a_descriptor_a_datagram_is_dropped",
    "test_a_socket_that_cannot_be_watched_leaves_nothing",
}
LOOPBACK = IPv4Address("127.0.0.1")
LARGEST_UP = 65_507 - 10  # the payload of an IPv4 packet, without the header with the target
SIZES = [0, 1, 1_200, 1_472, 8_000, 60_000]
GENERAL_FAILURE = b"\x05\x01\x00\x01" + bytes(6)


# Tests of the client's side and of names: the daemon treats both before a datagram leaves, on each
# way alike. So `make test` runs them directly.
BEFORE_THE_WAY_OUT = {
    "test_a_client_may_say_in_any_way_that_it_does_not_know",
    "test_a_client_that_ended_with_its_request_has_no_association_left",
    "test_a_malformed_datagram_does_not_set_the_clients_port",
    "test_a_malformed_datagram_is_dropped",
    "test_a_mistake_of_the_resolver_is_logged_and_cuts_the_association",
    "test_a_name_without_an_answer_holds_a_bounded_number_of_bytes",
    "test_a_peer_that_vanishes_is_noticed_by_the_kernel",
    "test_a_port_at_another_address_than_the_clients_is_not_believed",
    "test_a_request_in_one_segment_with_everything_before_it_is_served",
    "test_an_address_in_text_is_that_address",
    "test_an_announced_port_is_the_only_one",
    "test_an_ipv4_address_in_any_form_is_reached_over_ipv4",
    "test_another_address_is_not_the_client",
    "test_another_port_is_not_the_client_once_its_own_is_known",
    "test_bytes_on_the_tcp_connection_mean_nothing",
    "test_datagrams_to_a_name_stay_in_order_while_it_is_looked_up",
    "test_fragments_are_dropped",
    "test_look_ups_end_with_their_association",
    "test_names_that_are_looked_up_at_once_are_bounded",
    "test_the_counts_are_written_down",
    "test_unknown_names_are_dropped",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each way, as far as it makes a difference."""
    if "service" not in metafunc.fixturenames:
        return
    name = metafunc.function.__name__
    ways = ["directly"] if name in DIRECTLY_ALONE else list(WAYS)
    is_long = LONG if name not in BEFORE_THE_WAY_OUT else {*WAYS} - {"directly"}
    values = [pytest.param(way, marks=[pytest.mark.long] * (way in is_long)) for way in ways]
    metafunc.parametrize("service", values, indirect=True)


@pytest.fixture
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    """A daemon whose sessions leave directly, or all through an exit; its ledger must agree."""
    async with WAYS[request.param](tmp_path) as running:
        yield running
        await running.assert_audit()


@asynccontextmanager
async def bought_association(
    service: Service, *, quota: int = 10**9, announced: tuple[str, int] | None = None
) -> AsyncIterator[tuple[Associated, Person, Bought]]:
    """Give an association of a new session."""
    person, bought = await buy(service, quota=quota)
    async with associated(service, bought, announced=announced) as client:
        yield client, person, bought


def only_connection(service: Service) -> ClientConnection:
    """Return the one connection that is open."""
    [connection] = service.daemon.gateway._clients.connections
    return connection


async def rest_of(control: Client) -> bytes:
    """Return everything that is still said on a TCP connection, which must end."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await control.rest()


async def sockets_gone(client: Associated, outer: tuple) -> None:
    """Wait until both of an association's ports are free again."""
    await nobody_at(client.relay)
    await nobody_at(("127.0.0.1", outer[1]))


class Names:
    """A resolver that a test holds back, changes and counts."""

    def __init__(self, service: Service) -> None:
        self.known: dict[str, list[Address]] = {}
        self.remembered: dict[str, list[Address]] = {}
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        service.daemon.gateway._for_connections.datagrams.resolver = self

    def cached(self, name: str) -> list[Address] | None:
        if name == "known-to-be-unknown":
            raise NameNotFoundError(name)
        return self.remembered.get(name)

    async def resolve(self, name: str, asker: object = None) -> list[Address]:
        self.asked.append(name)
        await self.may_answer.wait()
        if name not in self.known:
            raise NameNotFoundError(name)
        self.remembered[name] = self.known[name]
        return self.known[name]


@contextmanager
def families(port_of: Peer) -> Iterator[Peer]:
    """Keep a socket of the other family at the same port."""
    other = "::1" if port_of.address[0] == "127.0.0.1" else "127.0.0.1"
    with peer(other, port_of.port) as made:
        yield made


# --- the reply -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listening", "dialled"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "::1"),
        ("::", "127.0.0.1"),
    ],
)
async def test_the_reply_names_where_datagrams_are_taken(
    tmp_path: Path, listening: str, dialled: str
) -> None:
    async with running_in(tmp_path, proxy={"host": listening}) as service:
        person, bought = await buy(service)
        async with associated(service, bought, host=dialled) as client:
            assert client.relay[0] == dialled
            assert client.relay[1] not in (0, service.proxy_port)
            for host in ("127.0.0.1", "::1"):
                with peer(host) as target:
                    await client.exchange(target, b"up", b"downwards")
        assert await used(service, person, bought) == 2 * len(b"updownwards")


@cases(
    ("here", "client", "public", "told"),
    [
        ("10.0.0.5", "8.8.8.8", "9.9.9.9", "9.9.9.9"),
        ("10.0.0.5", "10.0.0.9", "9.9.9.9", "10.0.0.5"),
        ("1.1.1.1", "8.8.8.8", "9.9.9.9", "1.1.1.1"),
        ("10.0.0.5", "8.8.8.8", None, "10.0.0.5"),
    ],
)
def test_a_client_that_cannot_know_our_own_address_gets_the_public_one(
    here: str, client: str, public: str | None, told: str
) -> None:
    outside = ip_address(public) if public is not None else None
    assert reached_at(ip_address(here), ip_address(client), outside) == ip_address(told)


@cases("asked", [request("0", 0, command=3), request("::", 0, command=3)])
async def test_a_client_may_say_in_any_way_that_it_does_not_know(
    service: Service, asked: bytes
) -> None:
    _, bought = await buy(service)
    control = await logged_in(service, bought)
    await control.send(asked)
    code, *relay = await control.reply()
    assert code == 0
    with peer() as own, peer() as target:
        await Associated(control, tuple(relay), own).exchange(target, b"up", b"down")
    await control.close()


async def test_a_request_in_one_segment_with_everything_before_it_is_served(
    service: Service,
) -> None:
    _, bought = await buy(service)
    control = await Client.open(service.proxy_port)
    await control.send(
        GREETING
        + credentials(bought.username, bought.password)
        + request("0.0.0.0", 0, command=3)
        + b"what is said here means nothing"
    )
    assert await control.receive(4) == b"\x05\x02\x01\x00"
    _, *relay = await control.reply()
    with peer() as own, peer() as target:
        await Associated(control, tuple(relay), own).exchange(target, b"up", b"down")
    await control.close()


async def test_a_client_that_ended_with_its_request_has_no_association_left(
    service: Service,
) -> None:
    _, bought = await buy(service)
    before = await at_rest(service)
    for known in (False, True):  # the second time, nothing is awaited on the way
        control = await Client.open(service.proxy_port)
        await control.send(
            GREETING
            + credentials(bought.username, bought.password)
            + request("0.0.0.0", 0, command=3)
        )
        control.end()
        assert await control.receive(4) == b"\x05\x02\x01\x00", known
        assert (await control.reply())[0] == 0
        assert await rest_of(control) == b""
        await control.close()
        await all_gone(service, before)


# --- there and back ------------------------------------------------------------------------------


@cases("size", SIZES)
@cases("host", ["127.0.0.1", "::1"])
async def test_a_datagram_arrives_whole_and_so_does_its_answer(
    service: Service, host: str, size: int
) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer(host) as target:
            await client.exchange(target, pattern(size), pattern(size + 1)[1:])
        assert await used(service, person, bought) == 2 * size


async def test_targets_of_both_families_and_names_are_told_apart(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as first, peer() as second, peer("::1") as third, peer("::") as named:
            targets = {first: b"1", second: b"22", third: b"333"}
            senders = {each: await client.reaches(each, sent) for each, sent in targets.items()}
            client.send(("localhost", named.port), b"4444")
            sent, sender = await named.receive()
            assert sent == b"4444"
            for each, payload in reversed(targets.items()):
                each.send(payload * 2, senders[each])
                assert await client.receive() == (*each.address, payload * 2)
            named.send(b"answer", sender)
            host, port, payload = await client.receive()
            assert ip_address(host).is_loopback
            assert (port, payload) == (named.port, b"answer")
        assert await used(service, person, bought) == (1 + 2 + 3) * 3 + 4 + 6


async def test_a_target_of_one_family_takes_no_port_of_the_other(service: Service) -> None:
    async with bought_association(service) as (client, _, _):
        with peer("::1") as target:
            outer = await client.reaches(target)
            await nobody_at(("127.0.0.1", outer[1]))


@cases("host", ["::ffff:127.0.0.1", "127.0.0.1"])
async def test_an_ipv4_address_in_any_form_is_reached_over_ipv4(
    service: Service, host: str
) -> None:
    async with bought_association(service) as (client, _, _):
        with peer() as target:
            client.send((host, target.port), b"up")
            _, sender = await target.receive()
            target.send(b"down", sender)
            assert await client.receive() == ("127.0.0.1", target.port, b"down")


async def test_an_address_in_text_is_that_address(service: Service) -> None:
    async with bought_association(service) as (client, _, _):
        with peer() as target:
            encoded = b"\0\0\0\x03\x09127.0.0.1" + struct.pack(">H", target.port)
            client.own.send(encoded + b"up", client.relay)
            assert (await target.receive())[0] == b"up"


async def test_many_datagrams_at_once_arrive_in_order(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            count = 5 * udp.READS_PER_TURN
            for number in range(count):
                client.send(target.address, bytes((number,)))
            arrived = [await target.receive() for _ in range(count)]
            assert [data for data, _ in arrived] == [bytes((each,)) for each in range(count)]
            for number in range(count):
                target.send(bytes((number, number)), arrived[0][1])
            answers = [await client.receive() for _ in range(count)]
            assert [each.payload[0] for each in answers] == list(range(count))
        assert await used(service, person, bought) == 3 * count


async def test_a_target_that_refuses_harms_no_other(service: Service) -> None:
    async with bought_association(service) as (client, _, _):
        with peer() as target, closed_port() as nobody:
            for _ in range(3):  # each is answered with port unreachable
                client.send(("127.0.0.1", nobody), b"is anybody there?")
                await client.exchange(target, b"up", b"down")


# --- dropped datagrams ---------------------------------------------------------------------------

MALFORMED = {
    "nothing": b"",
    "one byte": b"\0",
    "no address": b"\0\0\0\x01",
    "half an address": b"\0\0\0\x01\x7f\0",
    "no port": b"\0\0\0\x01\x7f\0\0\x01",
    "half a name": b"\0\0\0\x03\xfflocalhost\0\x35payload",
    "no name": b"\0\0\0\x03\0\0\x35payload",
    "no name at all": b"\0\0\0\x03\x04a\0bc\0\x35payload",
    "unknown address type": b"\0\0\0\x02\x7f\0\0\x01\0\x35payload",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "60,000 zeros": bytes(60_000),
}


@cases("data", MALFORMED.values())
async def test_a_malformed_datagram_is_dropped(service: Service, data: bytes) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            client.own.send(data, client.relay)
            await client.exchange(target, b"up", b"down")
            client.own.send(data, client.relay)
            await client.exchange(target, b"up", b"down")
        assert await used(service, person, bought) == 12


@cases("fragment", [1, 0x7F, 0x80, 0xFF])
async def test_fragments_are_dropped(service: Service, fragment: int) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            data = wrapped(*target.address, b"a part", fragment=fragment)
            client.own.send(data, client.relay)
            await client.exchange(target, b"up", b"down")
        assert await used(service, person, bought) == 6


async def test_another_address_is_not_the_client(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target, peer("127.0.0.2") as stranger:
            for _ in range(2):  # before and after the client's port is known
                stranger.send(wrapped(*target.address, b"stolen"), client.relay)
                await client.exchange(target, b"up", b"down")
        assert await used(service, person, bought) == 12


async def test_another_port_is_not_the_client_once_its_own_is_known(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target, peer() as stranger:
            await client.reaches(target, b"up")
            stranger.send(wrapped(*target.address, b"stolen"), client.relay)
            await client.exchange(target, b"up", b"down")
        assert await used(service, person, bought) == 8


async def test_a_malformed_datagram_does_not_set_the_clients_port(service: Service) -> None:
    async with bought_association(service) as (client, _, _):
        with peer() as target, peer() as stranger:
            for data in MALFORMED.values():
                stranger.send(data, client.relay)
            await client.exchange(target, b"up", b"down")


@cases("host", ["127.0.0.1", "::ffff:127.0.0.1"])
async def test_an_announced_port_is_the_only_one(service: Service, host: str) -> None:
    with peer() as announced, peer() as target:
        async with bought_association(service, announced=(host, announced.port)) as (
            client,
            person,
            bought,
        ):
            client.send(target.address, b"from another port")
            announcing = Associated(client.control, client.relay, announced)
            await announcing.exchange(target, b"up", b"down")
            assert await used(service, person, bought) == 6


@cases("host", ["0.0.0.0", "192.0.2.1", "2001:db8::1"])
async def test_a_port_at_another_address_than_the_clients_is_not_believed(
    service: Service, host: str
) -> None:
    async with bought_association(service, announced=(host, 9)) as (client, _, _):
        with peer() as target:
            await client.exchange(target, b"up", b"down")


async def test_answers_come_only_from_where_the_client_has_sent_to(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target, peer() as stranger, peer("127.0.0.2", target.port) as neighbour:
            outer = await client.reaches(target, b"up")
            stranger.send(b"from another port", outer)
            neighbour.send(b"from another address", outer)
            target.send(b"down", outer)
            assert await client.receive() == (*target.address, b"down")
            assert await used(service, person, bought) == 6
            await client.exchange(stranger, b"now you may", b"answer")


async def test_only_the_latest_targets_may_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "TARGETS_MAX", 2)
    async with bought_association(service) as (client, _, _):
        with peer() as first, peer() as second, peer() as third:
            for each in (first, second, first, third):  # the second is the one not used for longest
                outer = await client.reaches(each)
            second.send(b"too late", outer)
            first.send(b"in time", outer)
            assert (await client.receive()).payload == b"in time"
            await client.exchange(second, b"again", b"and it may")


async def test_a_datagram_that_the_policy_forbids_is_dropped(tmp_path: Path) -> None:
    egress = {"allow": ["127.0.0.1/32"]}
    async with running_in(tmp_path, egress=egress) as service:
        async with bought_association(service) as (client, person, bought):
            with peer("127.0.0.2") as forbidden, peer("::1") as forbidden_v6, peer() as target:
                names = Names(service)
                names.remembered["both"] = [IPv4Address("127.0.0.2"), LOOPBACK]
                for port in (forbidden.port, 25, 465, 587, 0):
                    for host in ("127.0.0.2", "::ffff:127.0.0.2", "::1", "10.0.0.1", "224.0.0.1"):
                        client.send((host, port), b"forbidden")
                for host, port in ((target.address[0], 25), ("both", 587)):
                    client.send((host, port), b"forbidden")
                client.send(("::1", forbidden_v6.port), b"forbidden")
                client.send(("both", target.port), b"the second of two addresses")
                assert (await target.receive())[0] == b"the second of two addresses"
                await client.exchange(target, b"up", b"down")
                for each in (forbidden, forbidden_v6):
                    with pytest.raises(BlockingIOError):
                        each.sock.recv(1)
            assert await used(service, person, bought) == 27 + 6


@pytest.mark.parametrize("passes_for_global", [False, True])
async def test_this_machine_is_forbidden_unless_it_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes_for_global: bool
) -> None:
    if passes_for_global:
        monkeypatch.setattr("proxyctl.protocol.policy.is_global", lambda _: True)
    async with running_in(tmp_path, egress={"allow": []}) as service:
        person, bought = await buy(service)
        before = await at_rest(service)
        async with associated(service, bought) as client:
            with peer() as target:
                for number in range(10):
                    client.send(target.address, bytes(number))
                await client.control.send(b"x")
                client.control.end()
                assert await client.ended() == b""
                with pytest.raises(BlockingIOError):
                    target.sock.recv(1)
        assert await used(service, person, bought) == 0
        await all_gone(service, before)


async def test_a_datagram_that_the_kernel_does_not_send_is_dropped_and_not_counted(
    tmp_path: Path,
) -> None:
    egress = {"allow": ["0.0.0.0/0", "127.0.0.0/8", "::1/128"]}
    async with running_in(tmp_path, egress=egress) as service:
        async with bought_association(service) as (client, person, bought):
            with peer() as target:
                client.send(("255.255.255.255", 9), b"a broadcast")
                await client.exchange(target, pattern(LARGEST_UP), b"")
                outer = await client.reaches(target, b"up")
                target.send(pattern(65_507), outer)  # ten bytes too many with its header
                target.send(b"down", outer)
                assert (await client.receive()).payload == b"down"
            assert await used(service, person, bought) == LARGEST_UP + 6


# --- names ---------------------------------------------------------------------------------------


async def test_datagrams_to_a_name_stay_in_order_while_it_is_looked_up(service: Service) -> None:
    names = Names(service)
    names.known["target.example"] = [LOOPBACK]
    async with bought_association(service) as (client, _, _):
        with peer() as target, peer() as other:
            for number in range(10):
                client.send(("target.example", target.port), b"%d" % number)
            client.send(("target.example", other.port), b"another port")
            await client.reaches(other, b"a target without a name does not wait")
            names.remembered["target.example"] = [LOOPBACK]  # known now, and others wait still
            client.send(("target.example", target.port), b"10")
            await client.reaches(other, b"all are there")
            names.may_answer.set()
            arrived = [(await target.receive())[0] for _ in range(11)]
            assert arrived == [b"%d" % number for number in range(11)]
            assert (await other.receive())[0] == b"another port"
            client.send(("target.example", target.port), b"without a question")
            assert (await target.receive())[0] == b"without a question"
    assert names.asked == ["target.example"]


async def test_unknown_names_are_dropped(service: Service) -> None:
    names = Names(service)
    names.may_answer.set()
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            for name in ("known-to-be-unknown", "unknown", "unknown"):
                client.send((name, target.port), b"lost")
            await client.exchange(target, b"up", b"down")
            await until(lambda: not lookups_left(), "the look-ups are over")
            await client.exchange(target, b"up", b"down")
        assert await used(service, person, bought) == 12


async def test_a_name_without_an_answer_holds_a_bounded_number_of_bytes(service: Service) -> None:
    names = Names(service)
    kept = udp.WAITING_MAX_BYTES // (60_000 + udp.WAITING_OVERHEAD_BYTES)
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            for name in ("one.example", "another.example"):  # there is room again for the second
                names.may_answer.clear()
                names.known[name] = [LOOPBACK]
                for _ in range(kept + 2):
                    client.send((name, target.port), bytes(60_000))
                    await client.reaches(target, b"")
                names.may_answer.set()
                for _ in range(kept):
                    assert (await target.receive())[0] == bytes(60_000)
                await until(lambda: not lookups_left(), "the look-up is over")
                await client.reaches(target, b"and nothing more")
        assert await used(service, person, bought) == 2 * (kept * 60_000 + 16)


async def test_names_that_are_looked_up_at_once_are_bounded(service: Service) -> None:
    names = Names(service)
    async with bought_association(service) as (client, _, _):
        with peer() as target:
            for number in range(2 * udp.LOOKUPS_MAX):
                client.send((f"{number}.example", target.port), b"")
            await client.exchange(target, b"up", b"down")
            assert names.asked == [f"{number}.example" for number in range(udp.LOOKUPS_MAX)]
            names.may_answer.set()
            await until(lambda: not lookups_left(), "the look-ups are over")
            client.send(("one-more.example", target.port), b"")
            await until(lambda: names.asked[-1] == "one-more.example", "it is looked up")


def lookups_left() -> list[asyncio.Task]:
    """Return the look-ups for datagrams that are not over."""
    tasks = asyncio.all_tasks()
    names = {each: str(each.get_coro()) for each in tasks}  # mypyc names it another way round
    return [each for each, name in names.items() if "Association" in name and "_look_up" in name]


async def test_look_ups_end_with_their_association(service: Service) -> None:
    names = Names(service)
    async with bought_association(service) as (client, _, _):
        for name in ("one.example", "another.example"):
            client.send((name, 9), b"lost")
        await until(lambda: len(names.asked) == 2, "both are looked up")
    await until(lambda: service.daemon.gateway.connections == 0, "the association has ended")
    await until(lambda: not lookups_left(), "nothing is looked up for nobody")


async def test_look_ups_end_with_the_daemon(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        names = Names(service)
        async with bought_association(service) as (client, _, _):
            client.send(("one.example", 9), b"lost")
            await until(lambda: len(names.asked) == 1, "it is looked up")
            await service.daemon.close()
            assert not lookups_left()


async def test_a_datagram_behind_the_last_byte_opens_nothing(service: Service) -> None:
    names = Names(service)
    names.known["target.example"] = [LOOPBACK, IPv6Address("::1")]
    person, bought = await buy(service, quota=10)
    before = await at_rest(service)
    async with associated(service, bought) as client:
        with peer() as target, families(target) as other:
            for payload in (b"ten bytes.", b"", b"ten bytes."):
                client.send(("target.example", target.port), payload)
            await until(lambda: bool(names.asked), "it is looked up")
            names.may_answer.set()
            assert (await target.receive())[0] == b"ten bytes."
            assert await client.ended() == b""
            for each in (target, other):
                with pytest.raises(BlockingIOError):
                    each.sock.recv(1)
    assert await used(service, person, bought) == 10
    await all_gone(service, before)


async def test_a_mistake_of_the_resolver_is_logged_and_cuts_the_association(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names(service)

    async def mistaken(name: str) -> list[Address]:
        raise RuntimeError("a mistake")

    names.resolve = mistaken
    with caplog.at_level(logging.ERROR):
        async with bought_association(service) as (client, _, _):
            client.send(("target.example", 9), b"lost")
            await client.cut()
    assert "an association failed and is cut" in caplog.text
    await until(lambda: service.daemon.gateway.connections == 0)


async def test_a_name_whose_addresses_change_places_keeps_its_target(service: Service) -> None:
    names = Names(service)
    loopbacks = [LOOPBACK, IPv6Address("::1")]
    names.remembered["target.example"] = loopbacks
    async with bought_association(service) as (client, _, _):
        with peer() as target, families(target) as other:
            for each in (b"1", b"2", b"3"):
                client.send(("target.example", target.port), each)
                assert (await target.receive())[0] == each
                names.remembered["target.example"] = loopbacks = loopbacks[::-1]
            names.remembered["target.example"] = [IPv6Address("::1")]
            client.send(("target.example", target.port), b"4")
            assert (await other.receive())[0] == b"4"


async def test_the_first_reachable_address_is_taken(tmp_path: Path) -> None:
    egress = {"allow": ["0.0.0.0/0", "127.0.0.0/8", "::1/128"]}
    async with running_in(tmp_path, egress=egress) as service:
        names = Names(service)
        names.remembered["target.example"] = [IPv4Address("255.255.255.255"), LOOPBACK]
        async with bought_association(service) as (client, person, bought):
            with peer() as target:
                client.send(("target.example", target.port), b"up")
                assert (await target.receive())[0] == b"up"
            assert await used(service, person, bought) == 2


# --- the end -------------------------------------------------------------------------------------


@cases("how", ["close", "end", "reset"])
async def test_an_association_ends_with_its_tcp_connection(service: Service, how: str) -> None:
    _, bought = await buy(service)
    before = await at_rest(service)
    async with associated(service, bought) as client:
        with peer() as target:
            outer = await client.reaches(target)
            if how == "close":
                await client.control.close()
            elif how == "end":
                client.control.end()
            else:
                client.control.reset()
            await sockets_gone(client, outer)
        if how == "end":
            assert await client.ended() == b""
    await all_gone(service, before)


async def test_an_ended_session_cuts_its_associations(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            outer = await client.reaches(target, b"up")
            await service.end(person, bought)
            await client.cut()
            await sockets_gone(client, outer)
        assert await used(service, person, bought) == 2


async def test_an_expired_session_cuts_its_associations(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            outer = await client.reaches(target, b"up")
            await service.expire(bought)
            await client.cut()
            await sockets_gone(client, outer)

        async def is_written() -> bool:
            return (await service.session(person, bought))["status"] == "expired"

        await until(is_written, "the session is expired in the list, too")


@cases("up", [True, False])
async def test_the_last_byte_ends_the_association(service: Service, up: bool) -> None:
    async with bought_association(service, quota=100) as (client, person, bought):
        with peer() as target:
            if up:
                outer = await client.reaches(target, bytes(100))
            else:
                outer = await client.reaches(target, bytes(40))
                target.send(bytes(60), outer)
                assert (await client.receive()).payload == bytes(60)
            assert await client.ended() == b""
            await sockets_gone(client, outer)
        session = await service.session(person, bought)
        assert (session["bytes_used"], session["status"]) == (100, "exhausted")


async def test_bytes_on_the_tcp_connection_mean_nothing(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            await client.control.send(request(*target.address) + pattern(3_000_000))
            await client.exchange(target, b"up", b"down")
        assert await used(service, person, bought) == 6


async def test_associations_go_on_while_the_daemon_drains_and_end_with_it(
    tmp_path: Path,
) -> None:
    async with running_in(tmp_path) as service:
        async with bought_association(service) as (client, _, _):
            with peer() as target:
                service.daemon.gateway.stop_accepting()
                outer = await client.reaches(target)
                await client.exchange(target, b"up", b"down")
                assert await service.daemon.gateway.drain(0.01) == 1
                service.daemon.gateway.close()
                await client.cut()
                await sockets_gone(client, outer)
                assert service.daemon.gateway.connections == 0


async def test_draining_is_over_when_the_last_association_is(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        async with bought_association(service) as (client, _, _):
            service.daemon.gateway.stop_accepting()
            client.control.end()
            assert await service.daemon.gateway.drain(10) == 0


async def test_an_idle_association_is_cut(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"idle_seconds": 0.2}) as service:
        async with bought_association(service) as (client, _, _):
            await client.cut()
            await nobody_at(client.relay)


async def test_datagrams_in_both_directions_keep_it_from_being_idle(service: Service) -> None:
    loop = asyncio.get_running_loop()
    async with bought_association(service) as (client, _, _):
        with peer() as target, peer("127.0.0.2") as stranger:
            connection = only_connection(service)
            outer = await client.reaches(target)
            for payload in (b"", b"not empty"):
                await asyncio.sleep(0.01)  # so that the next datagram is later than this moment
                since = loop.time()
                await client.reaches(target, payload)
                connection.abort_if_idle(since)
                await asyncio.sleep(0.01)
                since = loop.time()
                target.send(payload, outer)
                await client.receive()
                connection.abort_if_idle(since)
            last = connection._transfer.active_at
            stranger.send(b"who is not asked", outer)
            client.own.send(b"malformed", client.relay)
            client.send(("10.0.0.1", 80), b"forbidden")
            await client.control.send(b"said here, it means nothing")
            await until(lambda: loop.time() > last)
            connection.abort_if_idle(last)
            assert service.daemon.gateway.connections == 1
            connection.abort_if_idle(last + 0.001)
            await client.cut()


async def test_a_peer_that_vanishes_is_noticed_by_the_kernel(service: Service) -> None:
    async with bought_association(service):
        control = only_connection(service).client.sock
        assert control.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert control.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


# --- counting ------------------------------------------------------------------------------------


async def test_a_datagram_that_the_rest_cannot_pay_is_dropped_whole(service: Service) -> None:
    async with bought_association(service, quota=1_000) as (client, person, bought):
        with peer() as target:
            outer = await client.reaches(target, bytes(900))
            client.send(target.address, bytes(101))
            await client.reaches(target, bytes(50))
            target.send(bytes(51), outer)
            target.send(bytes(49), outer)
            assert (await client.receive()).payload == bytes(49)
            session = await service.session(person, bought)
            assert (session["bytes_used"], session["bytes_left"]) == (999, 1)
            assert session["status"] == "active"
            await client.exchange(target, b"", b"")
            client.send(target.address, b"xx")
            await client.reaches(target, b"x")
            assert await client.ended() == b""
        assert await used(service, person, bought) == 1_000


async def test_a_datagram_without_payload_goes_only_while_a_byte_would(service: Service) -> None:
    async with bought_association(service, quota=1_000) as (client, _, _):
        with peer() as target:
            outer = await client.reaches(target, b"up")
            [session] = service.daemon.core.meter.sessions
            left, taker = session.available, object()
            session.take(left, taker)  # as a tunnel does that has read bytes and not yet written
            for _ in range(100):
                client.send(target.address, b"")
                target.send(b"", outer)
            await until(lambda: all_read(service), "the proxy has read them")
            session.give_back(left)
            await client.exchange(target, b"the next to arrive", b"either way")
            await client.exchange(target, b"", b"")


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_datagram_without_payload_goes_nowhere_from_a_node_that_is_cut_off(
    store_url: str,
) -> None:
    async with running(settings_for(store_url)) as service:
        async with bought_association(service) as (client, _, _):
            with peer() as target:
                outer = await client.reaches(target, b"up")
                fence = service.daemon.core.membership.node._fence
                clock, fence._boottime = fence._boottime, lambda: math.inf
                for _ in range(100):
                    client.send(target.address, b"")
                    target.send(b"", outer)
                await until(lambda: all_read(service), "the proxy has read them")
                fence._boottime = clock
                await client.exchange(target, b"the next to arrive", b"either way")


async def test_the_datagrams_of_a_session_in_a_second_are_bounded_at_any_size(
    tmp_path: Path, clock: Clock
) -> None:
    limits = {"session_datagrams_per_second": 5}
    async with running_in(tmp_path, limits=limits) as service:
        _, bought = await buy(service)
        async with associated(service, bought) as first, associated(service, bought) as second:
            with peer() as target:
                datagrams = service.daemon.gateway._for_connections.datagrams
                datagrams.allows.__self__._now = clock.steady
                outer = await first.reaches(target, b"one of ten at once")
                for _ in range(30):
                    first.send(target.address, b"")
                    second.send(target.address, b"with payload")
                    target.send(b"down", outer)
                await until(lambda: all_read(service), "the proxy has read them")
                assert waiting_at(target, first.own, second.own) == 9
                assert service.daemon.gateway.datagrams_over_rate == 91 - 10
                clock.now += 1
                for _ in range(30):
                    second.send(target.address, b"")
                await until(lambda: all_read(service), "the proxy has read them")
                assert waiting_at(target) == 5
        _, another = await buy(service)
        async with associated(service, another) as client:
            with peer() as target:
                await client.exchange(target, b"", b"what another session does is its own")


async def test_the_number_of_datagrams_a_second_may_change_while_they_are_relayed(
    service: Service, clock: Clock
) -> None:
    async with bought_association(service) as (client, _, _):
        with peer() as target:
            gateway = service.daemon.gateway
            gateway.change_limits(dataclasses.replace(gateway.limits, datagrams_per_second=1))
            gateway._for_connections.datagrams.allows.__self__._now = clock.steady
            for _ in range(30):
                client.send(target.address, b"")
            await until(lambda: all_read(service), "the proxy has read them")
            # An exit relays them later than the proxy reads them, and keeps their order.
            assert [(await target.receive())[0] for _ in range(2)] == [b"", b""]
            gateway.change_limits(dataclasses.replace(gateway.limits, datagrams_per_second=0))
            await client.exchange(target, b"the next to arrive", b"either way")


async def test_a_datagram_larger_than_the_burst_of_a_slow_session_goes(
    tmp_path: Path,
) -> None:
    async with running_in(tmp_path, limits={"session_bytes_per_second": 1_000}) as service:
        async with bought_association(service, quota=1_500) as (client, person, bought):
            with peer() as target:
                client.send(target.address, bytes(1_501))
                await client.reaches(target, bytes(1_300))
                client.send(target.address, b"too soon")
            assert await used(service, person, bought) == 1_300


async def test_associations_and_tunnels_of_a_session_share_its_budget(service: Service) -> None:
    person, bought = await buy(service, quota=1_000)
    async with associated(service, bought) as first, associated(service, bought) as second:
        with peer() as target:
            await first.reaches(target, bytes(600))
            second.send(target.address, bytes(401))
            await second.reaches(target, bytes(399))
            assert await used(service, person, bought) == 999
            await first.reaches(target, b"x")
            assert await first.ended() == b""
            assert await second.ended() == b""
            with pytest.raises(BlockingIOError):
                target.sock.recv(1)
    assert await used(service, person, bought) == 1_000


@pytest.mark.parametrize(
    ("size", "quota"),
    brief([(1, 2_000), (7, 5_000), (1_200, 20_000), (1, 20_000), (7, 20_000)], 3, are_sets=True),
)
async def test_no_client_gets_more_than_the_quota_by_many_datagrams(
    service: Service, size: int, quota: int
) -> None:
    person, bought = await buy(service, quota=quota)
    async with associated(service, bought) as first, associated(service, bought) as second:
        with peer() as target:
            outer = await first.reaches(target, b"")
            arrived = 0
            for _ in range(3 * quota // size):
                target.send(bytes(size), outer)
                for client in (first, second):
                    client.send(target.address, bytes(size))
                await asyncio.sleep(0)
                for each in (target, first.own):
                    try:
                        while True:
                            data = each.sock.recv(65_535)
                            arrived += len(data if each is target else unwrapped(data).payload)
                    except BlockingIOError:
                        pass
                if arrived + size > quota:
                    break
    assert await used(service, person, bought) == arrived == quota // size * size


async def test_the_counts_are_written_down(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target:
            await client.exchange(target, bytes(1_000), bytes(234))
            await service.daemon.core.meter.flush()
            await service.assert_audit()
            await service.end(person, bought)
    assert await used(service, person, bought) == 1_234
    assert await service.balance(person) == 9.999999


# --- limits --------------------------------------------------------------------------------------


async def refused(service: Service, bought: Bought) -> bytes:
    """Return everything that a client hears that asks for an association."""
    control = await logged_in(service, bought)
    await control.send(request("0.0.0.0", 0, command=3))
    answer = await rest_of(control)
    await control.close()
    return answer


async def test_more_associations_than_allowed_are_refused_until_one_ends(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"connections_total": 40}) as service:
        _, bought = await buy(service)
        _, other = await buy(service)
        before = await at_rest(service)
        async with associated(service, bought) as first:
            async with associated(service, bought):
                assert await refused(service, bought) == GENERAL_FAILURE
                async with associated(service, other):
                    pass
            await until(lambda: service.daemon.gateway.connections == 1)
            async with associated(service, bought):
                assert await refused(service, bought) == GENERAL_FAILURE
                with peer() as target:
                    await first.exchange(target, b"up", b"down")
        await all_gone(service, before)


@cases(("connections", "associations"), [(1, 1), (19, 1), (409, 40), (419_430, 7_000)])
def test_associations_are_a_share_of_the_connections_and_of_the_ports(
    connections: int, associations: int
) -> None:
    assert associations_total(connections) == associations


async def test_without_a_descriptor_an_association_is_refused(service: Service) -> None:
    _, bought = await buy(service)
    control = await logged_in(service, bought)
    with none_left():
        await control.send(request("0.0.0.0", 0, command=3))
        assert await rest_of(control) == GENERAL_FAILURE
    await control.close()
    async with associated(service, bought) as client:
        with peer() as target:
            await client.exchange(target, b"up", b"down")


async def test_without_a_descriptor_a_datagram_is_dropped(service: Service) -> None:
    async with bought_association(service) as (client, person, bought):
        with peer() as target, peer("::1") as other:
            with none_left():
                client.send(target.address, b"lost")
                await until(lambda: has_read_all(service), "it is dropped")
            await client.exchange(target, b"up", b"down")
            with none_left():
                client.send(other.address, b"lost")
                await client.exchange(target, b"up", b"down")
            await client.exchange(other, b"up", b"down")
        assert await used(service, person, bought) == 18


def all_read(service: Service) -> bool:
    """Say whether nothing waits in any socket that datagrams are relayed from."""
    associations = [each._transfer for each in service.daemon.gateway._clients.connections]
    sockets = [sock for each in associations for sock in (each._inner, *each._outer.values())]
    return all(is_empty(sock) for sock in sockets)


def is_empty(sock: socket.socket) -> bool:
    """Say whether no datagram waits in a socket, not even one without payload."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    return False


def waiting_at(*peers: Peer) -> int:
    """Return how many datagrams have arrived, and take them."""
    count = 0
    for each in peers:
        with suppress(BlockingIOError):
            while True:
                each.sock.recv(65_535)
                count += 1
    return count


def has_read_all(service: Service) -> bool:
    """Say whether nothing waits in the socket that the client sends to."""
    inner = only_connection(service)._transfer._inner
    return fcntl.ioctl(inner.fileno(), termios.FIONREAD, bytes(4)) == bytes(4)


async def test_the_number_of_descriptors_returns_to_its_start(service: Service) -> None:
    _, bought = await buy(service)
    before = await at_rest(service)
    for _ in range(20):
        async with associated(service, bought) as client:
            for host in ("127.0.0.1", "::1"):
                with peer(host) as target:
                    await client.exchange(target, b"up", b"down")
    await all_gone(service, before)


@pytest.mark.parametrize("earlier", [0, udp.READS_PER_TURN])
async def test_a_socket_that_cannot_be_watched_leaves_nothing(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    earlier: int,
) -> None:
    _, bought = await buy(service)
    before = await at_rest(service)

    with peer() as target:
        async with associated(service, bought) as client:
            poller = service.daemon.gateway._reactor.poller
            monkeypatch.setattr(poller, "_epoll", Full(poller._epoll))
            for _ in range(earlier):  # so that the mistake is made in a later turn
                client.own.send(b"malformed", client.relay)
            client.send(target.address, b"lost")
            await client.cut()
            monkeypatch.undo()
    assert "an association failed and is cut" in caplog.text
    await all_gone(service, before)


# --- any datagrams -------------------------------------------------------------------------------

HEADS = st.one_of(
    st.binary(max_size=30),
    st.builds(
        lambda reserved, fragment, kind, rest: reserved + bytes((fragment, kind)) + rest,
        st.binary(min_size=2, max_size=2),
        st.sampled_from([0, 0, 0, 1, 255]),
        st.sampled_from([0, 1, 3, 4, 5]),
        st.binary(max_size=300),
    ),
    st.builds(
        wrapped,
        st.sampled_from(["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "255.255.255.255"])
        | st.text("abc.-_", min_size=1, max_size=255),
        st.just(9) | st.integers(0, 1_023),
        st.binary(max_size=1_500),
    ),
)
ALL_BUT_LOOPBACK = [
    *map(str, IPv4Network("0.0.0.0/0").address_exclude(IPv4Network("127.0.0.0/8"))),
    *map(str, ip_network("::/0").address_exclude(ip_network("::/64"))),
]


def test_no_datagram_harms_an_association(tmp_path: Path) -> None:
    stack = AsyncExitStack()

    async def begin() -> tuple[Service, Associated, Peer, Person, Bought]:
        service = await stack.enter_async_context(
            running_in(tmp_path, egress={"deny": ALL_BUT_LOOPBACK})
        )
        Names(service).may_answer.set()
        client, *buyer = await stack.enter_async_context(bought_association(service))
        return service, client, stack.enter_context(peer()), *buyer

    async def attack(datagrams: list[bytes]) -> None:
        for each in datagrams:
            client.own.send(each, client.relay)
            target.send(each, outer)
        await client.reaches(target, b"up")
        target.send(b"the last of them", outer)
        while (await client.receive()).payload != b"the last of them":
            pass

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        service, client, target, person, bought = runner.run(begin())
        outer = runner.run(client.reaches(target))
        try:

            @hypothesis_settings(max_examples=examples(200), deadline=None)
            @given(st.lists(HEADS, max_size=10))
            def fuzz(datagrams: list[bytes]) -> None:
                runner.run(attack(datagrams))

            fuzz()
            assert service.daemon.gateway.connections == 1
            runner.run(service.assert_audit())
            assert runner.run(used(service, person, bought)) > 0
        finally:
            runner.run(stack.aclose())
