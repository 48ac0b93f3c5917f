"""Labels whose exit dies while they dial: soft ones continue elsewhere, strict ones fail."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.base.waiting import until
from support.daemons.bounded import bounded, exit_bounds
from support.exits.device import Device, Port, answering, ignore

from proxyctl.protocol.frames import Dial, DialOutcome
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.dialling.dial import DialTimes, Via
from proxyd.exits.dialling.watch import PATIENCE_LEAST_SECONDS
from proxyd.wire.events import Failure
from proxyd.wire.wants import Wants
from proxyd.wiring.bounds import Bounds

LOOPBACK = ip_address("127.0.0.1")
SOFT, STRICT = Wants(session="label"), Wants(session="label", strict=True)
# In which a label has to be elsewhere: a dial that takes longer is over. The most patience with an
# exit and the silence after it are two seconds of it.
DIAL_SECONDS = 3.5


class Buyer:
    """The payer."""

    id = "session"
    user_id = "buyer"
    price_per_gb = 1_000_000


async def outcome_of(port: Port, wants: Wants) -> Failure:
    """Dial through an exit, in vain, and return why."""
    answers: list[Failure] = []

    def done(outcome: socket.SocketType | Failure, _is_unread: bool, _via: Via | None) -> None:
        assert isinstance(outcome, Failure)
        answers.append(outcome)

    port.exits.dial(wants, Buyer(), LOOPBACK, 80, done)
    await until(lambda: bool(answers), "there is an outcome")
    (answer,) = answers
    return answer


@pytest.fixture
async def port(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Port]:
    """Devices are chosen as by a daemon."""
    opened = Port(tmp_path, directory=Directory(), seconds=DIAL_SECONDS, bounds=bounds.exits)
    yield opened
    await opened.close()
    assert opened.counters.parked == 0


async def two(port: Port, wants: Wants) -> tuple[Device, Device]:
    """Return the device of a label, and another one."""
    devices = [await port.parked(f"at {n}", address=f"127.0.0.{n}") for n in (2, 3)]
    for each in devices:
        each.obey = answering(DialOutcome.REFUSED)
    assert await outcome_of(port, wants) is Failure.REFUSED
    await until(lambda: port.counters.parked == 2, "its connection was replaced")
    first, second = sorted(devices, key=lambda each: len(each.dials), reverse=True)
    assert (len(first.dials), len(second.dials)) == (1, 0)
    return first, second


async def freeze(device: Device) -> None:
    """Have it say nothing any more, while all its connections stay."""
    device.answers_pings = device.parks = False
    device.obey = ignore


async def freeze_bare(device: Device) -> None:
    """Have it say nothing any more, and none of its connections waits."""
    await freeze(device)
    for number in tuple(device.parked):
        device.take(number).close()


async def kill_on_order(device: Device) -> None:
    """Have it die when it gets an order."""

    async def die(device: Device, _dial: Dial) -> None:
        assert device._writer is not None
        device._writer.transport.abort()

    device.obey = die


async def keep_none(device: Device) -> None:
    """Have it answer questions, and open no connection."""
    device.parks = False
    for number in tuple(device.parked):
        device.take(number).close()


ENDS = pytest.mark.parametrize(
    "end",
    [Device.kill, kill_on_order, freeze, freeze_bare, keep_none],
    ids=lambda end: end.__name__,
)


async def ended(port: Port, first: Device, end: Callable[[Device], Awaitable[None]]) -> None:
    """End a device in one of these ways; the daemon knows which of its connections have ended."""
    await end(first)
    waiting = 1 + len(first.parked)
    await until(lambda: port.counters.parked == waiting, "what it has closed waits no more")


@bounded(exit_bounds(dials=DialTimes(parked_wait_seconds=0.5)))
@ENDS
async def test_a_soft_label_goes_on_elsewhere_and_stays_there(
    port: Port, end: Callable[[Device], Awaitable[None]]
) -> None:
    first, second = await two(port, SOFT)
    await ended(port, first, end)
    assert await outcome_of(port, SOFT) is Failure.REFUSED
    assert len(second.dials) == 1
    asked = len(first.dials)
    assert await outcome_of(port, SOFT) is Failure.REFUSED
    assert (len(first.dials), len(second.dials)) == (asked, 2)


@bounded(exit_bounds(dials=DialTimes(parked_wait_seconds=0.5)))
@ENDS
async def test_a_strict_label_gets_the_loss_of_its_exit(
    port: Port, end: Callable[[Device], Awaitable[None]]
) -> None:
    first, second = await two(port, STRICT)
    await ended(port, first, end)
    assert await outcome_of(port, STRICT) is Failure.EXIT_LOST
    assert second.dials == []


async def test_an_exit_that_dies_after_its_answer_is_noticed(port: Port) -> None:
    """It has answered the first question: that it is there, is not believed for ever."""
    first, second = await two(port, SOFT)
    port.exits.change_seconds(2 * DIAL_SECONDS)

    async def hedged(device: Device, _dial: Dial) -> None:
        if port.counters.hedges:  # the second order: it has arrived
            device.answers_pings = False

    first.obey = hedged
    assert await outcome_of(port, SOFT) is Failure.REFUSED
    assert port.counters.hedges == 1
    assert len(second.dials) == 1


async def test_a_late_answer_costs_no_label_its_exit(port: Port) -> None:
    first, second = await two(port, SOFT)
    first.answers_pings = False

    async def late(device: Device, dial: Dial) -> None:
        await asyncio.sleep(2 * PATIENCE_LEAST_SECONDS)
        await answering(DialOutcome.REFUSED)(device, dial)

    first.obey = late
    assert await outcome_of(port, SOFT) is Failure.REFUSED
    assert second.dials == []
