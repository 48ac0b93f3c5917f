"""An exit is counted where its connections leave, which the daemon finds out by calling itself."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.base.waiting import until
from support.clients.socks import Client
from support.clients.story import buy
from support.daemons.bounded import bounded, exit_bounds
from support.daemons.service import Service, running_in
from support.exits.canaries import swallow
from support.exits.device import (
    EXITS,
    NO_LIMITS,
    Consented,
    Device,
    Obey,
    answering,
    carry,
    consented,
    listener_of,
    raw,
)
from support.targets.targets import echo

from proxyctl.protocol.frames import CALL, CALL_NUMBER_BYTES, CALLS, DialOutcome, Seen
from proxyd.exits.attached.attached import CROWDED, WANDERING
from proxyd.exits.attached.origins import MOVES_MAX
from proxyd.exits.dialling import origin
from proxyd.ops.processes.listening import bound_port
from proxyd.wiring.bounds import Bounds

ELSEWHERE = "127.0.0.9"


@pytest.fixture
async def service(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Service]:
    """A daemon that may be called at loopback; the address `ELSEWHERE` is in another country."""
    known = {"127.0.0.0/8": "xx", f"{ELSEWHERE}/32": "xy"}
    sections = {"exits": EXITS["exits"], "geo": {"known": known}}
    async with running_in(tmp_path, bounds=bounds, **sections) as running:
        running.daemon.exit_port.canaries._origins.permits = lambda _: True
        yield running


async def attached(
    service: Service, made: Consented, *, leaves_from: str = "", obey: Obey = carry
) -> Device:
    device = Device(bound_port(service.daemon.listeners.exits))
    device.leaves_from, device.obey = leaves_from, obey
    return await device.attach(made.first)


async def reason(service: Service, made: Consented) -> tuple[str, str]:
    mine = await service.call("GET", "/api/exits/me", token=made.owner.token)
    return mine.body["exits"][0]["state"], mine.body["exits"][0]["reason"]


async def looked(service: Service, device: Device) -> None:
    """Wait until the daemon has called itself through a device."""
    listener = listener_of(service)
    await until(lambda: bool(device.dials) and not listener.origins._calls, "the call is over")


async def test_an_exit_that_leaves_from_its_own_address_stays_there(service: Service) -> None:
    made = await consented(service)
    device = await attached(service, made)
    await looked(service, device)
    entry = listener_of(service).roster.by_device[made.device_id]
    assert not entry.is_elsewhere
    assert (str(entry.address), entry.place.country) == ("127.0.0.1", "xx")
    assert await reason(service, made) == ("online", "")
    await device.kill()


async def test_an_exit_that_leaves_from_elsewhere_is_counted_there(service: Service) -> None:
    made = await consented(service)
    device = await attached(service, made, leaves_from=ELSEWHERE)
    listener = listener_of(service)
    entry = listener.roster.by_device[made.device_id]
    await until(lambda: entry.is_elsewhere, "it is seen")
    assert (str(entry.address), entry.place.country, entry.network) == (ELSEWHERE, "xy", ELSEWHERE)
    assert dict(listener.offers.by_country()) == {"xy": 1}
    state, words = await reason(service, made)
    assert state == "online"
    assert ELSEWHERE in words
    entry.grant(NO_LIMITS)
    async with echo() as target:
        service.wishes = "-country-xy"
        _, bought = await buy(service)
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        assert await client.connect("127.0.0.1", target.port) == 0
        await client.close()
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        assert await client.connect("127.0.0.1", target.port) == 3
        await client.close()
    await device.kill()
    await until(lambda: len(listener) == 0, "it is gone")
    assert not listener.roster.per_network["127.0.0.1"]
    assert not listener.origins._elsewhere


async def test_two_lines_that_leave_from_one_are_one(service: Service) -> None:
    first, second = await consented(service), await consented(service)
    one = await attached(service, first, leaves_from=ELSEWHERE)
    entry = listener_of(service).roster.by_device[first.device_id]
    await until(lambda: entry.is_elsewhere, "it is seen")
    other = await attached(service, second, leaves_from=ELSEWHERE)
    entry = listener_of(service).roster.by_device[second.device_id]
    await until(lambda: entry.is_elsewhere, "it is seen")
    state, words = await reason(service, second)
    assert state == "resting"
    assert "same line" in words
    await one.kill()
    await other.kill()


async def test_an_agent_that_makes_calls_learns_the_seen_address(service: Service) -> None:
    made = await consented(service)
    first = made.first._replace(features=(CALLS,))
    device = await attached(service, replace(made, first=first), leaves_from=ELSEWHERE)
    await until(lambda: Seen(ELSEWHERE) in device.frames, "it is told")
    assert len(device.calls) == 1
    assert device.dials == [], "no order leads to the service"
    assert listener_of(service).roster.by_device[made.device_id].is_elsewhere
    await device.kill()


async def test_a_look_at_the_other_family_makes_no_call_in_the_own_one(service: Service) -> None:
    made = await consented(service)
    device = await attached(service, replace(made, first=made.first._replace(features=(CALLS,))))
    await until(lambda: len(device.calls) == 1, "it is called as it attaches")
    listener, origins = listener_of(service), service.daemon.exit_port.canaries._origins
    await until(lambda: not listener.origins._calls, "that is over")
    entry = listener.roster.by_device[made.device_id]
    assert await origins.look(entry, other_family=True), "the daemon has no address there"
    assert len(device.calls) == 1
    await device.kill()


async def test_a_call_puts_no_exit_ahead_of_one_attached_from_there(service: Service) -> None:
    evil, honest = await consented(service), await consented(service)
    listener = listener_of(service)
    mover = await attached(service, evil, leaves_from="127.0.0.8")
    entry = listener.roster.by_device[evil.device_id]
    await until(lambda: entry.is_elsewhere, "it is seen")
    port = bound_port(service.daemon.listeners.exits)
    local = await at_home(port, ELSEWHERE, honest)
    await looked(service, local)
    listener.origins.leaves_from(entry, ELSEWHERE)  # another device carries its next call
    assert await reason(service, honest) == ("online", "")
    assert (await reason(service, evil))[0] == "resting"
    await local.kill()
    await until(lambda: honest.device_id not in listener.roster.by_device, "its line was lost")
    assert (await reason(service, evil))[0] == "online"
    local = await at_home(port, ELSEWHERE, honest)
    await until(lambda: listener.roster.by_device.get(honest.device_id) is not None)
    assert await reason(service, honest) == ("online", ""), "it takes its place back"
    assert (await reason(service, evil))[0] == "resting"
    await local.kill()
    await mover.kill()


async def at_home(port: int, address: str, made: Consented) -> Device:
    """Attach a device whose connections leave from where it attaches."""
    device = Device(port, address)
    device.leaves_from = address
    return await device.attach(made.first)


async def test_calls_from_a_network_take_no_place_of_those_that_attach_there(
    service: Service,
) -> None:
    listener = listener_of(service)
    listener.change_limits(replace(listener.origins._limits, exits_per_network=2))
    port, entries, devices = bound_port(service.daemon.listeners.exits), [], []
    for number in range(3):
        made = await consented(service)
        device = await at_home(port, f"127.0.2.{number}", made)
        await looked(service, device)
        entries.append(listener.roster.by_device[made.device_id])
        devices.append(device)
        listener.origins.leaves_from(entries[-1], ELSEWHERE)
    assert [each.location.astray for each in entries] == ["", "", CROWDED]
    for _ in range(2):
        made = await consented(service)
        devices.append(await at_home(port, ELSEWHERE, made))
        assert devices[-1].welcome is not None
    listener.origins.leaves_from(entries[2], "127.0.2.2")
    where = entries[2].location
    assert (where.is_elsewhere, where.astray) == (False, ""), "it is at home again"
    for device in devices:
        await device.kill()
    await until(lambda: len(listener) == 0, "all are gone")
    assert not listener.origins._elsewhere
    assert not listener.roster.per_network


async def test_an_exit_that_wanders_is_not_chosen(service: Service) -> None:
    made = await consented(service)
    device = await attached(service, made)
    await looked(service, device)
    listener = listener_of(service)
    entry = listener.roster.by_device[made.device_id]
    for moves in range(MOVES_MAX + 1):
        assert dict(listener.offers.by_country()) != {}
        listener.origins.leaves_from(entry, f"127.0.1.{moves}")
    assert dict(listener.offers.by_country()) == {}
    assert await reason(service, made) == ("resting", WANDERING)
    await device.kill()


async def test_an_exit_that_always_leaves_from_the_same_other_line_does_not_wander(
    service: Service,
) -> None:
    made, listener = await consented(service), listener_of(service)
    for _ in range(MOVES_MAX + 2):
        device = await attached(service, made, leaves_from=ELSEWHERE)
        entry = listener.roster.by_device[made.device_id]
        await until(lambda entry=entry: entry.is_elsewhere, "it is seen")
        assert not entry.location.astray
        await device.kill()
        await until(lambda: len(listener) == 0, "it is gone")


@bounded(exit_bounds(call_seconds=0.3))
@pytest.mark.parametrize("obey", [answering(DialOutcome.NOT_ALLOWED), swallow])
async def test_a_call_that_does_not_arrive_proves_nothing(service: Service, obey: Obey) -> None:
    made = await consented(service)
    device = await attached(service, made, obey=obey)
    await looked(service, device)
    assert await reason(service, made) == ("online", "")
    await device.kill()


async def test_a_daemon_that_is_not_public_is_not_called(service: Service) -> None:
    origins = service.daemon.exit_port.canaries._origins
    origins.permits = origin.is_global
    made = await consented(service)
    device = await attached(service, made)
    entry = listener_of(service).roster.by_device[made.device_id]
    assert await origins.look(entry), "there is nothing to wait for"
    assert device.dials == []
    await device.kill()


@pytest.mark.parametrize(
    "data",
    [CALL + bytes(CALL_NUMBER_BYTES), CALL + bytes(CALL_NUMBER_BYTES + 1), CALL + b"x" * 33],
)
async def test_unexpected_numbers_are_refused(service: Service, data: bytes) -> None:
    listener = listener_of(service)
    sock = await raw(bound_port(service.daemon.listeners.exits), data)
    await until(lambda: sum(listener.counters.arrivals_refused.values()) == 1, "it is closed")
    sock.close()


async def test_a_number_that_is_cut_is_refused(service: Service) -> None:
    listener = listener_of(service)
    sock = await raw(bound_port(service.daemon.listeners.exits), CALL + bytes(3))
    sock.close()
    await until(lambda: sum(listener.counters.arrivals_refused.values()) == 1, "it is closed")
    assert len(listener.arrivals) == 0
