"""Clients of a process that has no exits leave through those of another one."""

import asyncio
import base64
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.descriptors import all_gone, at_rest
from support.base.waiting import until
from support.clients.datagrams import associated, peer
from support.clients.socks import Client, plain_tunnel, request
from support.clients.story import buy, reached, status_is, used
from support.daemons.bounded import bounded, exit_bounds
from support.daemons.service import Service
from support.daemons.two_processes import daemon_of, two_processes, two_with_agent, two_with_exit
from support.database import sqlite
from support.exits.device import answering, consented, ignore, listener_of
from support.targets import targets

from proxyctl.protocol.frames import DialOutcome
from proxyd.exits.attached.attached import Attached
from proxyd.exits.processes.asking import AskingTimes
from proxyd.wiring.bounds import Bounds

MEGABYTE = 1_000_000
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
async def service(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Service]:
    """A daemon of two processes with an exit, whose clients come to the one without it."""
    async with two_with_exit(tmp_path, bounds=bounds) as running:
        yield running
        await running.assert_audit()


def exit_of(service: Service) -> Attached:
    (attached,) = listener_of(service).roster.by_device.values()
    return attached


async def answer_to(service: Service, username: str, password: str, port: int) -> int:
    """Ask for a target by SOCKS5, and return the code of the reply."""
    client = await Client.open(service.proxy_port)
    assert await client.log_in(username, password) == 0
    await client.send(request("127.0.0.1", port))
    code, _, _ = await client.reply()
    await client.close()
    return code


# --- streams -------------------------------------------------------------------------------------


@cases("first_is_client", [True, False])
async def test_each_end_is_passed_on_by_itself(service: Service, first_is_client: bool) -> None:
    loop = asyncio.get_running_loop()
    _, bought = await buy(service)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with closing(await plain_tunnel(service, bought, listener.getsockname()[1])) as client:
            target, _ = await loop.sock_accept(listener)
            with closing(target):
                first, second = (client, target) if first_is_client else (target, client)
                await loop.sock_sendall(first, b"last words")
                first.shutdown(socket.SHUT_WR)
                assert await loop.sock_recv(second, 100) == b"last words"
                assert await loop.sock_recv(second, 100) == b""
                await loop.sock_sendall(second, b"still talking")
                assert await loop.sock_recv(first, 100) == b"still talking"
                second.shutdown(socket.SHUT_WR)
                assert await loop.sock_recv(first, 100) == b""


@cases("first_is_client", [True, False])
async def test_a_reset_is_passed_on(service: Service, first_is_client: bool) -> None:
    loop = asyncio.get_running_loop()
    _, bought = await buy(service)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with closing(await plain_tunnel(service, bought, listener.getsockname()[1])) as client:
            target, _ = await loop.sock_accept(listener)
            with closing(target):
                first, second = (client, target) if first_is_client else (target, client)
                first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                first.close()
                with pytest.raises(ConnectionResetError):
                    await loop.sock_recv(second, 100)


async def test_a_target_may_speak_first_and_much(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.source(8 * MEGABYTE) as target:
        client = await reached(service, bought, target)
        client.end()
        assert await client.rest() == targets.pattern(8 * MEGABYTE)
        await client.close()


@cases("host", ["127.0.0.1", "::1"])
async def test_datagrams_go_both_ways_and_are_counted(service: Service, host: str) -> None:
    person, bought = await buy(service)
    async with associated(service, bought) as client:
        with peer(host) as target:
            for size in (0, 1_200, 60_000):
                await client.exchange(target, bytes(size), bytes(size))

    async def is_written_down() -> bool:
        return await used(service, person, bought) == 2 * 61_200

    await until(is_written_down, "the store has what was used")
    await until(lambda: not exit_of(service).relays, "the first process knows that it is over")


async def test_a_stream_to_port_0_is_no_association(service: Service) -> None:
    _, bought = await buy(service)
    assert await answer_to(service, bought.username, bought.password, 0) == 2


async def test_a_client_may_speak_before_its_target_is_reached(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        await client.send(request("127.0.0.1", target.port) + b"early words")
        assert (await client.reply())[0] == 0
        assert await client.receive(11) == b"early words"
        await client.close()


# --- under TLS -----------------------------------------------------------------------------------


async def test_streams_under_tls_go_both_ways_and_are_counted(tmp_path: Path) -> None:
    async with two_with_agent(tmp_path) as service:
        person, bought = await buy(service)
        async with targets.echo() as target:
            client = await reached(service, bought, target)
            await client.send(targets.pattern(MEGABYTE))
            client.end()
            assert await client.rest() == targets.pattern(MEGABYTE)
            await client.close()

        async def is_written_down() -> bool:
            return await used(service, person, bought) == 2 * MEGABYTE

        await until(is_written_down, "the store has what was used")
        await until(lambda: not exit_of(service).relays, "the first process knows that it is over")
        pool = exit_of(service).secure
        assert pool is not None
        await until(lambda: len(listener_of(service).seals) <= len(pool), "only parked")


async def test_datagrams_under_tls_go_both_ways_and_are_counted(tmp_path: Path) -> None:
    async with two_with_agent(tmp_path) as service:
        person, bought = await buy(service)
        async with associated(service, bought) as client:
            with peer("127.0.0.1") as target:
                for size in (0, 1_200, 60_000):
                    await client.exchange(target, bytes(size), bytes(size))

        async def is_written_down() -> bool:
            return await used(service, person, bought) == 2 * 61_200

        await until(is_written_down, "the store has what was used")


async def test_a_process_that_dies_takes_its_connections_under_tls_with_it(tmp_path: Path) -> None:
    async with two_with_agent(tmp_path) as service:
        _, bought = await buy(service)
        async with targets.echo() as target:
            client = await reached(service, bought, target)
            daemon_of(service).second.gateway.close()
            await until(lambda: not exit_of(service).relays, "its relays are counted no more")
            await until(lambda: target.ended + target.resets == 1, "the target hears of it")
            await client.close()
        pool = exit_of(service).secure
        assert pool is not None
        await until(lambda: len(listener_of(service).seals) <= len(pool), "only parked")


# --- counts and notifications --------------------------------------------------------------------


async def test_a_quota_ends_at_its_last_byte(service: Service) -> None:
    person, bought = await buy(service, quota=3 * MEGABYTE)
    received = 0
    async with targets.source(None) as target:
        client = await reached(service, bought, target)
        with suppress(ConnectionError):
            while data := await client.reader.read(65_536):
                received += len(data)
        await client.close()
    assert received == 3 * MEGABYTE
    await status_is(service, person, bought, "exhausted")
    assert await used(service, person, bought) == 3 * MEGABYTE


async def test_the_exit_is_named_to_the_client_and_in_the_record(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    log = {"access_log": {"folder": str(folder), "target": "none"}}
    async with two_with_exit(tmp_path, **log) as service:
        exit_ = exit_of(service)
        _, bought = await buy(service)
        async with targets.sink(b"answer") as target:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.proxy_port)
            shown = f"{bought.username}:{bought.password}".encode()
            writer.write(
                f"CONNECT 127.0.0.1:{target.port} HTTP/1.1\r\nHost: x\r\n"
                f"Proxy-Authorization: Basic {base64.b64encode(shown).decode()}\r\n\r\n".encode()
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            assert f"\r\nX-Exit: {exit_.text}; ip=127.0.0.1\r\n" in head
            writer.write_eof()
            assert await reader.read() == b"answer"
            writer.close()
        await at_rest(service)
    (file,) = folder.iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    [record] = [each for each in records if each["event"] == "ended"]
    assert (record["exit"], record["exit_address"]) == (exit_.device_id, "127.0.0.1")


@bounded(exit_bounds(asking=AskingTimes(tell_seconds=0.01)))
async def test_the_exit_counts_the_bytes_that_the_other_process_relays(service: Service) -> None:
    _, bought = await buy(service)
    exit_ = exit_of(service)
    async with targets.echo() as target:
        client = await reached(service, bought, target)
        (relay,) = exit_.relays
        await client.send(bytes(1000))
        await client.receive(1000)
        await until(lambda: sum(relay.traffic) == 2000, "the exit knows of the traffic")
        await client.send(bytes(500))
        await client.receive(500)
        client.end()
        await client.rest()
        await client.close()
        await until(lambda: not exit_.relays, "the exit knows of the end")
    assert exit_.load._ended_bytes == 3000
    await until(lambda: daemon_of(service).desk.relays == 0, "nothing is left of it")


async def test_an_ended_connection_leaves_nothing(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.sink(b"answer") as target:
        for count in range(21):
            client = await reached(service, bought, target)
            await client.send(b"question")
            client.end()
            assert await client.rest() == b"answer"
            await client.close()
            if not count:
                before = await at_rest(service)
        await all_gone(service, before)
    await until(lambda: not exit_of(service).relays, "the exit knows of the ends")
    assert not exit_of(service).dials
    assert not daemon_of(service).asked._asks


# --- failures to connect -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(DialOutcome.REFUSED, 5), (DialOutcome.HOST_UNREACHABLE, 4), (DialOutcome.FAILED, 3)],
)
async def test_a_client_gets_the_failure_that_the_exit_met(
    tmp_path: Path, outcome: DialOutcome, code: int
) -> None:
    async with two_processes(sqlite.database(tmp_path)) as service:
        device = await (await consented(service)).attach(service)
        device.obey = answering(outcome)
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        assert await answer_to(service, bought.username, bought.password, 80) == code
        await device.kill()


async def test_no_buyer_leaves_through_an_own_device(tmp_path: Path) -> None:
    async with two_processes(sqlite.database(tmp_path)) as service:
        service.wishes = "-country-xx"
        person, bought = await buy(service)
        device = await (await consented(service, person)).attach(service)
        assert await answer_to(service, bought.username, bought.password, 80) == 3
        assert device.dials == []
        await device.kill()


async def test_a_client_that_leaves_takes_its_dial_with_it(tmp_path: Path) -> None:
    async with two_processes(sqlite.database(tmp_path)) as service:
        device = await (await consented(service)).attach(service)
        device.obey = ignore
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        await client.send(request("127.0.0.1", 80))
        await until(lambda: len(device.dials) == 1, "the exit has its order")
        client.reset()
        await until(lambda: not exit_of(service).dials, "the order is taken back")
        (process,) = daemon_of(service).desk._processes
        assert not process.is_busy
        await device.kill()


async def test_no_more_requests_are_open_than_there_is_room_for(tmp_path: Path) -> None:
    async with two_processes(sqlite.database(tmp_path)) as service:
        device = await (await consented(service)).attach(service)
        device.obey = ignore
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        daemon_of(service).desk.most = 1
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        await client.send(request("127.0.0.1", 80))
        await until(lambda: len(device.dials) == 1, "the exit has its order")
        assert await answer_to(service, bought.username, bought.password, 80) == 1
        assert len(device.dials) == 1
        client.reset()
        await device.kill()


# --- ends ----------------------------------------------------------------------------------------


async def test_an_exit_that_is_paused_in_the_account_is_cut_there(tmp_path: Path) -> None:
    async with two_processes(sqlite.database(tmp_path)) as service:
        made = await consented(service)
        device = await made.attach(service)
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        async with targets.echo() as target:
            client = await reached(service, bought, target)
            body = {"token_id": made.device_id}
            answer = await service.call(
                "POST", "/api/worker/exit/pause", body, token=made.owner.token
            )
            assert answer.status == 200, answer.body
            with pytest.raises(ConnectionError):
                await client.receive(1)
            await client.close()
            await until(lambda: not exit_of(service).relays, "it is counted no more")
        await device.kill()


async def test_a_process_that_dies_takes_its_relays_and_its_dials_with_it(service: Service) -> None:
    _, bought = await buy(service)
    exit_, daemon = exit_of(service), daemon_of(service)
    async with targets.echo() as target:
        client = await reached(service, bought, target)
        assert len(exit_.relays) == 1
        daemon.second.gateway.close()
        await until(lambda: not exit_.relays, "its relays are counted no more")
        await until(lambda: not daemon.desk._processes, "its line is over")
        await client.close()
