"""Connections of exits under TLS: the requests that get them, and the others.

The streams themselves are in `test_streams.py` and `test_udp.py`; each test there also runs so.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.waiting import until
from support.clients.socks import Client, request
from support.clients.story import buy, reached
from support.daemons.service import Bought, Service, running_in
from support.exits.device import EXITS, Port, consented, listener_of, raw, running_with_agent
from support.targets import targets

from proxyctl.protocol.frames import SECURE, SECURE_TICKETS, Preface
from proxyd.exits.attached.secure import make_pair
from proxyd.ops.processes.listening import bound_port


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A daemon with the agent as its exit; buyers want TLS or do not."""
    async with running_with_agent(tmp_path) as running:
        yield running
        await running.assert_audit()


def wishing(bought: Bought, wishes: str) -> Bought:
    return replace(bought, username=bought.username.partition("-")[0] + wishes)


def comes_from_exits_port(service: Service) -> bool:
    """Return whether the connection is one of the port of exits, without TLS here."""
    (connection,) = service.daemon.gateway._clients.connections
    port = bound_port(service.daemon.listeners.exits)
    return connection._transfer._target.getsockname()[1] == port


@cases("wishes", ["-country-xx", "-country-xx-secure", "-secure"])
async def test_a_buyer_that_wants_tls_has_connections_under_tls(
    service: Service, wishes: str
) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await reached(service, wishing(bought, wishes), target)
        await client.send(b"words")
        assert await client.receive(5) == b"words"
        assert comes_from_exits_port(service) == ("secure" not in wishes)
        assert bool(listener_of(service).seals) == ("secure" in wishes)
        await client.close()
        await until(lambda: target.ended + target.resets >= 1)


async def test_an_exit_that_cannot_do_it_is_not_chosen(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        device = await (await consented(service)).attach(service)
        service.wishes = "-secure"
        _, bought = await buy(service)
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        await client.send(request("127.0.0.1", 80))
        assert (await client.reply())[0] == 3
        await client.close()
        assert device.dials == []
        await device.kill()


async def test_many_at_once_and_large_answers(service: Service) -> None:
    _, bought = await buy(service)
    secure = wishing(bought, "-secure")
    async with targets.source(2_000_000) as target:

        async def fetch() -> None:
            client = await reached(service, secure, target)
            client.end()
            assert await client.rest() == targets.pattern(2_000_000)
            await client.close()

        await asyncio.gather(*(fetch() for _ in range(8)))
    await until(lambda: not service.daemon.gateway.connections)


async def test_connections_under_tls_do_not_outlive_their_relays(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.sink(b"answer") as target:
        for _ in range(5):
            client = await reached(service, wishing(bought, "-secure"), target)
            client.end()
            assert await client.rest() == b"answer"
            await client.close()
    (attached,) = listener_of(service).roster.by_device.values()
    assert attached.secure is not None
    await until(lambda: len(listener_of(service).seals) <= len(attached.secure), "only parked")


async def test_a_ticket_for_tls_is_worth_nothing_in_clear(tmp_path: Path) -> None:
    port = Port(tmp_path)
    device = await port.device(features=(SECURE,))
    (attached,) = port.listener.roster.by_device.values()
    assert attached.secure is not None
    device.parks = False
    attached.secure.open()
    await until(lambda: any(each >= SECURE_TICKETS for each in device.tickets))
    number = next(each for each in device.tickets if each >= SECURE_TICKETS)
    assert device.welcome is not None
    preface = Preface(device.welcome.attachment, number, device.tickets[number])
    with await raw(port.port, preface.encode()) as sock:
        assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    assert port.counters.arrivals_refused["ticket"] == 1
    await port.close()


async def test_without_a_ticket_nothing_waits_under_tls(tmp_path: Path) -> None:
    port = Port(tmp_path)
    stranger = port.unattached()
    await stranger.connect()
    stranger.send_raw(Preface(7, SECURE_TICKETS, bytes(16)).encode())
    await until(lambda: stranger.is_over, "it is cut")
    assert port.counters.refused["ticket"] == 1
    await port.close()


def test_a_pair_is_connected() -> None:
    near, far = make_pair()
    with near, far:
        near.send(b"words")
        far.setblocking(True)
        assert far.recv(5) == b"words"
