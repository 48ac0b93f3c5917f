"""Connections through exits: answers to clients, counts, and ends.

The streams themselves are in `test_streams.py`; each test there also runs through an exit.
"""

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.base.descriptors import all_gone, at_rest
from support.base.ports import closed_port
from support.base.waiting import until
from support.clients.socks import Client, credentials, request, tunnel
from support.clients.story import buy, reached, used
from support.daemons.bounded import bounded, exit_bounds
from support.daemons.service import Bought, Person, Service, running_in
from support.exits.device import (
    EXITS,
    Device,
    answering,
    consented,
    listener_of,
    paused,
    running_with_exit,
)
from support.targets import targets

from proxyctl.protocol.frames import Dial, Dialled, DialOutcome, Nodes, ServiceLimits
from proxyd.exits.attached.attached import STANDBY
from proxyd.exits.attached.certificate import fingerprint, own_certificate
from proxyd.exits.attached.listener import PortBounds
from proxyd.metering.meter import MeterBounds
from proxyd.metering.sessions import MemoryBounds
from proxyd.ops.processes.listening import CannotListenError, bound_port
from proxyd.wiring.bounds import Bounds


@pytest.fixture
async def service(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Service]:
    """A daemon with an exit; its ledger must agree when the test is over."""
    async with running_with_exit(tmp_path, bounds=bounds) as running:
        yield running
        await running.assert_audit()


def device_id(service: Service) -> str:
    (device,) = listener_of(service).roster.by_device
    return device


async def answer_to(service: Service, bought: Bought, port: int) -> tuple[int, str, int]:
    """Ask for a target by SOCKS5, and return the reply."""
    client = await Client.open(service.proxy_port)
    assert await client.log_in(bought.username, bought.password) == 0
    await client.send(request("127.0.0.1", port))
    reply = await client.reply()
    await client.close()
    return reply


async def http_answer(service: Service, bought: Bought, port: int) -> str:
    """Ask for a tunnel by HTTP, and return the head of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.proxy_port)
    shown = base64.b64encode(f"{bought.username}:{bought.password}".encode()).decode()
    head = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {shown}\r\n"
    writer.write(f"{head}\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer.decode()


# --- answers to a client -------------------------------------------------------------------------


async def test_socks_returns_the_address_of_the_exit(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.sink() as target:
        assert await answer_to(service, bought, target.port) == (0, "127.0.0.1", 0)
        await until(lambda: target.ended + target.resets >= 1)


async def test_http_returns_the_exit(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.sink() as target:
        answer = await http_answer(service, bought, target.port)
        assert answer.startswith("HTTP/1.1 200 ")
        assert "\r\nX-Exit: country=xx; id=" in answer
        assert device_id(service) not in answer
        await until(lambda: target.ended + target.resets >= 1)


@cases(
    ("outcome", "code", "status"),
    [
        (DialOutcome.REFUSED, 5, 502),
        (DialOutcome.HOST_UNREACHABLE, 4, 502),
        (DialOutcome.NOT_ALLOWED, 2, 403),
        (DialOutcome.FAILED, 3, 503),
    ],
)
async def test_a_client_gets_the_failure_that_the_exit_met(
    service: Service, outcome: DialOutcome, code: int, status: int
) -> None:
    device = await replaced(service)
    device.obey = answering(outcome)
    _, bought = await buy(service)
    assert (await answer_to(service, bought, 80))[0] == code
    answer = await http_answer(service, bought, 80)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "Proxy-Status: proxyd; error=" in answer


async def test_junk_in_the_place_of_tls_is_neither_passed_on_nor_billed(tmp_path: Path) -> None:
    hello = b"\x16\x03\x01\x00\x05hello"
    async with running_in(tmp_path, **EXITS) as service:
        device = await (await consented(service)).attach(service)
        service.wishes = "-country-xx"
        person, bought = await buy(service)

        async def send_junk(device: Device, dial: Dial) -> None:
            work = device.take(dial.number)
            device.send(Dialled(dial.number, DialOutcome.CONNECTED, 0, None, 0))
            loop = asyncio.get_running_loop()
            await loop.sock_recv(work, 100)
            with suppress(OSError):
                await loop.sock_sendall(work, bytes(100_000))
            work.close()

        device.obey = send_junk
        for number in range(3):
            client = await tunnel(
                service.proxy_port, bought.username, bought.password, f"127.{number}.0.1", 443
            )
            await client.send(hello)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.receive(1)
            await client.close()
        directory = service.daemon.gateway._for_connections.exits.directory
        ((_, rests), grudge), *others = directory._faults.grudges.items()
        assert (rests, others) == (device_id(service), [])
        assert grudge.rest.until > asyncio.get_running_loop().time(), "it rests for this buyer"
        assert not directory._files._members[device_id(service)].standing.faults, (
            "and for no other yet"
        )
        await until(lambda: not listener_of(service).roster.by_device[device_id(service)].relays)
        await service.end(person, bought)
        assert await used(service, person, bought) <= 3 * len(hello)
        await device.kill()


async def replaced(service: Service) -> Device:
    """Replace the exit of a daemon by one that the test has in hand."""
    for control in listener_of(service).roster.controls():
        control.cut("lost")
    made = await consented(service)
    device = await made.attach(service)
    await until(lambda: listener_of(service).counters.parked > 0)
    return device


async def test_without_an_exit_of_the_kind_there_is_no_connection_from_here(
    service: Service,
) -> None:
    _, bought = await buy(service)
    elsewhere = Bought(bought.id, bought.username[:-2] + "de", bought.password, 0)
    async with targets.sink() as target:
        assert (await answer_to(service, elsewhere, target.port))[0] == 3
        answer = await http_answer(service, elsewhere, target.port)
        assert answer.startswith("HTTP/1.1 503 ")
        assert "\r\nRetry-After: " in answer
        assert target.accepted == 0


async def test_a_daemon_without_exits_connects_no_client_that_wants_one(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service, targets.sink() as target:
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        assert (await answer_to(service, bought, target.port))[0] == 3
        assert target.accepted == 0


async def test_a_client_that_wants_to_leave_directly_does(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        await leave_directly(service)


async def leave_directly(service: Service) -> None:
    """Have a session with the wish to leave directly, which no exit carries."""
    service.wishes = "-direct"
    _, bought = await buy(service)
    async with targets.sink() as target:
        code, host, port = await answer_to(service, bought, target.port)
        assert (code, host, port != 0) == (0, "127.0.0.1", True)
        await until(lambda: target.ended + target.resets >= 1)
    assert not listener_of(service).counters.dials


async def test_no_buyer_leaves_through_an_own_device(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        person, bought = await buy(service)
        made = await consented(service, person)
        device = await made.attach(service)
        mine = Bought(bought.id, bought.username + "-country-xx", bought.password, 0)
        assert (await answer_to(service, mine, 80))[0] == 3
        assert device.dials == []
        await device.kill()


# --- counts --------------------------------------------------------------------------------------


async def test_the_bytes_of_an_exit_are_the_bytes_of_the_session(service: Service) -> None:
    person, bought = await buy(service)
    payload = targets.pattern(300_000)
    async with targets.echo() as target:
        for _ in range(3):
            client = await reached(service, bought, target)
            await client.send(payload)
            assert await client.receive(len(payload)) == payload
            client.end()
            assert await client.rest() == b""
            await client.close()
    assert await used(service, person, bought) == 6 * len(payload)
    await service.end(person, bought)
    answer = await service.call(
        "GET", f"/api/bandwidth/sessions/{bought.id}/exits", token=person.token
    )
    assert answer.status == 200, answer.body
    assert sum(each["bytes"] for each in answer.body["countries"]) == 6 * len(payload)


async def test_an_ended_connection_leaves_nothing(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.sink(b"answer") as target:
        for _ in range(20):
            client = await reached(service, bought, target)
            await client.send(b"question")
            client.end()
            assert await client.rest() == b"answer"
            await client.close()
        await at_rest(service)
    exit_ = listener_of(service).roster.by_device[device_id(service)]
    assert not exit_.relays
    assert not exit_.dials


async def test_records_name_the_exit(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    log = {"access_log": {"folder": str(folder), "target": "none"}}
    async with running_with_exit(tmp_path, **log) as service:
        exit_id = device_id(service)
        _, bought = await buy(service)
        async with targets.sink(b"answer") as target:
            client = await reached(service, bought, target)
            client.end()
            await client.rest()
            await client.close()
        await at_rest(service)
    (file,) = folder.iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    [ended] = [each for each in records if each["event"] == "ended"]
    assert (ended["exit"], ended["exit_address"]) == (exit_id, "127.0.0.1")


async def test_records_of_a_failed_dial_name_the_exits_that_were_tried(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    log = {"access_log": {"folder": str(folder), "target": "hash"}}
    async with running_with_exit(tmp_path, **log) as service:
        exit_id = device_id(service)
        _, bought = await buy(service)
        with closed_port() as port:
            assert (await answer_to(service, bought, port))[0] == 5
        await at_rest(service)
    (file,) = folder.iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    [ended] = [each for each in records if each["event"] == "ended"]
    assert (ended["reason"], ended["tried"]) == ("refused", [[exit_id, "127.0.0.1"]])


async def test_metrics_show_exits(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.sink() as target:
        await answer_to(service, bought, target.port)
        await until(lambda: target.ended + target.resets >= 1)
    async with service.http.get(service.url + "/metrics") as response:
        text = await response.text()
    for line in (
        'proxyd_exits{country="xx"} 1.0',
        "proxyd_exits_attached 1.0",
        'proxyd_exit_dials_total{outcome="connected"} 1.0',
        "proxyd_exit_failovers_total 0.0",
    ):
        assert line in text


async def test_an_owner_sees_whether_a_device_carries(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        made = await consented(service)
        assert await states(service, made.owner) == ["offline"]
        device = await made.attach(service)
        assert await states(service, made.owner) == ["online"]
        second = await consented(service, made.owner)
        standby = await second.attach(service)
        assert sorted(await states(service, made.owner)) == ["online", "resting"]
        device.send(paused("on battery"))
        await until(lambda: len(listener_of(service).offers.by_country()) == 1)
        answer = await service.call("GET", "/api/exits/coverage")
        assert [each["country"] for each in answer.body["countries"]] == ["xx"]
        await device.kill()
        await standby.kill()


async def test_a_second_device_on_a_line_learns_that_it_rests(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        first, second = [await consented(service) for _ in range(2)]
        device, standby = await first.attach(service), await second.attach(service)

        def words(of: Device) -> list[str]:
            return [each.paused for each in of.frames if isinstance(each, ServiceLimits)]

        await until(lambda: words(standby) == [STANDBY], "it is told that it rests")
        await device.kill()
        await until(lambda: words(standby)[1:] == [""], "it is told that it is the first now")
        assert words(device) == []
        standby.send(paused("on battery"))
        third = await (await consented(service)).attach(service)
        standby.send(paused(""))
        await until(lambda: len(words(third)) + len(words(standby)) > 2, "one of them rests")
        await standby.kill()
        await third.kill()


async def states(service: Service, owner: Person) -> list[str]:
    """Return the state of each of an owner's exits."""
    answer = await service.call("GET", "/api/exits/me", token=owner.token)
    assert answer.status == 200, answer.body
    return [each["state"] for each in answer.body["exits"]]


# --- ends ----------------------------------------------------------------------------------------


async def test_a_killed_exit_breaks_its_connections_and_the_next_go_on(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service, targets.echo() as target:
        first = await (await consented(service)).attach(service)
        service.wishes = "-country-xx-session-label"
        person, bought = await buy(service)
        client = await reached(service, bought, target)
        await client.send(b"words")
        assert await client.receive(5) == b"words"
        second = await (await consented(service)).attach(service)
        await first.kill()
        with suppress(ConnectionError):  # or the end, as the kernel likes
            assert await client.rest() == b""
        await client.close()
        again = await reached(service, bought, target)
        assert len(second.dials) == 1
        await again.close()
        await until(lambda: target.ended + target.resets >= 2)
        await second.kill()
        await service.end(person, bought)
        await service.assert_audit()


async def test_an_exit_that_is_paused_in_the_account_is_cut_within_a_second(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service, targets.echo() as target:
        made = await consented(service)
        device = await made.attach(service)
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        client = await reached(service, bought, target)
        body = {"token_id": made.device_id}
        answer = await service.call("POST", "/api/worker/exit/pause", body, token=made.owner.token)
        assert answer.status == 200, answer.body
        with pytest.raises(ConnectionError):
            await client.receive(1)
        await client.close()
        assert (await answer_to(service, bought, target.port))[0] == 3
        answer = await service.call(
            "POST", "/api/worker/token/revoke", body, token=made.owner.token
        )
        assert answer.status == 200, answer.body
        await until(lambda: device.is_over, "it is let go of")
        assert device.sorry is not None
        assert device.sorry.code == "worker_unauthorized"
        await device.kill()


async def test_exits_are_notified_of_the_end_and_serve_until_then(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service, targets.sink(b"answer") as target:
        listener, another = listener_of(service), await consented(service)
        device = await (await consented(service)).attach(service)
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        client = await reached(service, bought, target)
        draining = asyncio.get_running_loop().create_task(service.daemon.drain())
        await until(lambda: device.drained, "it is told")
        late = await Device(device.port).attach(another.first)
        assert late.sorry is not None
        assert late.sorry.code == "stopping"
        await late.kill()
        client.end()
        assert await client.rest() == b"answer"
        await client.close()
        await draining
        await until(lambda: device.is_over, "it is let go of")
        assert len(listener) == 0


async def test_devices_get_the_next_certificate(tmp_path: Path) -> None:
    bounds = exit_bounds(port=PortBounds(nodes_seconds=0.0))
    for name in ("first", "next", "other"):
        (tmp_path / name).mkdir()
    paths = [own_certificate(tmp_path / name, 1_700_000_000) for name in ("first", "next", "other")]
    prints = [fingerprint(path) for path in paths]
    files = {"tls_cert": str(paths[0]), "tls_key": str(paths[0])}
    exits = EXITS["exits"] | files | {"next_tls_cert": str(paths[1])}
    async with running_in(tmp_path, bounds=bounds, **EXITS | {"exits": exits}) as service:
        made = await consented(service)
        device = Device(bound_port(service.daemon.listeners.exits))
        await device.attach(made.first._replace(features=("nodes",)))

        def told() -> list[tuple[str, ...]]:
            frames = [each for each in device.frames if isinstance(each, Nodes)]
            return [tuple(each.certificate for each in frame.nodes) for frame in frames]

        await until(lambda: told() == [(prints[1],)], "it is told the next one")
        shutil.copy(paths[2], paths[0])
        service.daemon.settings = replace(
            service.daemon.settings, exits=replace(service.daemon.settings.exits, next_tls_cert="")
        )
        service.daemon.reload(service.daemon.settings)
        await until(lambda: told()[1:] == [(prints[2],)], "it is told the one that is shown now")
        await device.kill()


async def test_another_certificate_is_shown_after_a_reload(tmp_path: Path) -> None:
    files = [own_certificate(tmp_path / name, 1_700_000_000) for name in ("one", "two")]
    used = tmp_path / "used.pem"
    shutil.copy(files[0], used)
    exits = {**EXITS["exits"], "tls_cert": str(used), "tls_key": str(used)}
    async with running_in(tmp_path, **{**EXITS, "exits": exits}) as service:
        for each in files:
            shutil.copy(each, used)
            service.daemon.reload(service.daemon.settings)
            device = await (await consented(service)).attach(service)
            assert device.peer_fingerprint() == fingerprint(each)
            answer = await service.call("GET", "/api/exits/terms")
            assert answer.body["certificate_sha256"] == fingerprint(each)
            await device.kill()
        used.write_text("broken")
        with pytest.raises(CannotListenError):
            service.daemon.reload(service.daemon.settings)


async def test_nothing_is_left_of_exits_that_come_and_go(service: Service) -> None:
    made = await consented(service)
    await all_gone(service, 10**6)
    before = await at_rest(service)
    for _ in range(10):
        device = await made.attach(service)
        await device.kill()
    await until(lambda: len(listener_of(service)) == 1)
    await all_gone(service, before)


def test_the_credentials_of_a_session_with_wishes_fit() -> None:
    assert len(credentials("name-country-xx", "password")) < 255


# --- how fast an exit goes -----------------------------------------------------------------------


async def test_an_exit_goes_at_its_owners_speed_shared_by_all_sessions(service: Service) -> None:
    """The device of this test holds to no limit, so it is the daemon that does."""
    rate = 400_000
    attached = listener_of(service).roster.by_device[device_id(service)]
    attached.grant(attached.limits._replace(bytes_per_second=rate))
    loop = asyncio.get_running_loop()
    async with targets.source(None) as target:
        begun = loop.time()
        buyers = [await buy(service) for _ in range(3)]
        clients = [await reached(service, bought, target) for _, bought in buyers]
        await asyncio.gather(*(client.receive(100_000) for client in clients))
        moved = sum([await used(service, *each) for each in buyers])
        assert 300_000 <= moved <= rate * (loop.time() - begun + 0.3)
        attached.grant(attached.limits._replace(bytes_per_second=1))
        await asyncio.gather(*(client.receive(1) for client in clients))
        attached.grant(attached.limits._replace(bytes_per_second=0))
        await asyncio.gather(*(client.receive(5_000_000) for client in clients))
        for client in clients:
            await client.close()


async def test_a_session_that_leaves_directly_minds_no_exit(tmp_path: Path) -> None:
    async with running_with_exit(tmp_path, all_leave=False) as service:
        attached = listener_of(service).roster.by_device[device_id(service)]
        attached.grant(attached.limits._replace(bytes_per_second=1))
        _, bought = await buy(service)
        async with targets.source(5_000_000) as target:
            client = await reached(service, bought, target)
            await client.receive(5_000_000)
            await client.close()
        await service.assert_audit()


# --- records of a session ------------------------------------------------------------------------


@bounded(Bounds(metering=MeterBounds(memory=MemoryBounds(remember_seconds=0.0))))
async def test_the_labels_of_a_session_are_forgotten_when_it_is_over(service: Service) -> None:
    service.wishes = "-country-xx-session-a"
    person, bought = await buy(service)
    bindings = listener_of(service)._base.services.directory._bindings._by_session
    async with targets.sink() as target:
        await answer_to(service, bought, target.port)
        assert list(bindings) == [bought.id]
        await service.end(person, bought)
        await until(lambda: not bindings, "they are forgotten")


async def test_a_device_is_notified_of_a_pause_in_the_account(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        made = await consented(service)
        device = await made.attach(service)
        assert device.welcome is not None
        assert device.welcome.limits.paused == ""

        def told() -> list[str]:
            return [each.paused for each in device.frames if isinstance(each, ServiceLimits)]

        body = {"token_id": made.device_id}
        for what, words in (("pause", ["paused in the account"]), ("resume", [""])):
            before = len(told())
            path = f"/api/worker/exit/{what}"
            await service.call("POST", path, body, token=made.owner.token)
            await until(lambda before=before, words=words: told()[before:] == words, what)
        await device.kill()
