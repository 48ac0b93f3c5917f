"""Targets dialled through exits: the orders, the chosen exit, and the next attempt."""

import asyncio
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.names import Slow
from support.base.ports import silent_port
from support.base.waiting import until
from support.daemons.bounded import bounded, exit_bounds
from support.exits.device import (
    Device,
    Granted,
    Port,
    answering,
    carry,
    has_closed,
    hello,
    ignore,
    paused,
)
from support.targets import targets

from proxyctl.protocol.frames import (
    CALLS,
    DENY,
    Capacity,
    Dial,
    Dialled,
    DialOutcome,
    Over,
    Pong,
    ServiceLimits,
)
from proxyd.egress.resolve import DnsResolver
from proxyd.exits.attached.pool import Parked
from proxyd.exits.dialling.dial import DialTimes, Via
from proxyd.exits.dialling.target import seen_address
from proxyd.wire.events import Address, Failure
from proxyd.wire.wants import Wants
from proxyd.wiring.bounds import ExitBounds

LOOPBACK = ip_address("127.0.0.1")
ANY = Wants()


@dataclass
class Payer:
    """The payer."""

    id: str = "session"
    user_id: str = "buyer"
    price_per_gb: int = 1_000_000


@dataclass
class Reached:
    """Outcome of a dial; `sock` is the test's."""

    failure: Failure | None = None
    sock: socket.SocketType | None = None
    via: Via | None = None
    is_unread: bool = False

    async def close(self, port: Port, target: targets.Target | None = None) -> None:
        """Close it, and wait until its target knows."""
        assert self.sock is not None
        port.reactor.poller.forget(self.sock.fileno())
        self.sock.close()
        if target is not None:
            await until(lambda: target.ended + target.resets > 0, "the target knows")


class Call:
    """A dial under way."""

    def __init__(
        self,
        port: Port,
        host: Address | str,
        number: int,
        wants: Wants = ANY,
        buyer: Payer | None = None,
    ) -> None:
        self.answers: list[Reached] = []
        self.dial = port.exits.dial(wants, buyer or Payer(), host, number, self._done)

    def _done(self, outcome: socket.SocketType | Failure, is_unread: bool, via: Via | None) -> None:
        if isinstance(outcome, Failure):
            self.answers.append(Reached(failure=outcome))
        else:
            self.answers.append(Reached(sock=outcome, via=via, is_unread=is_unread))

    async def end(self) -> Reached:
        await until(lambda: bool(self.answers), "there is an outcome")
        (answer,) = self.answers
        return answer


class Standstill:
    """A relay that moves nothing, and never gives way."""

    traffic = 0, 0

    def yields_at(self) -> float:
        return inf

    def abort(self) -> None:
        raise AssertionError


async def dialled(
    port: Port,
    host: Address | str = LOOPBACK,
    number: int = 80,
    wants: Wants = ANY,
    buyer: Payer | None = None,
) -> Reached:
    """Dial, and return the outcome."""
    return await Call(port, host, number, wants, buyer).end()


async def spoken(answer: Reached, words: bytes) -> bytes:
    """Send words to an echo, and return the bytes that come back."""
    assert isinstance(answer.sock, socket.socket | socket.SocketType)
    loop = asyncio.get_running_loop()
    answer.sock.send(words)
    heard = b""
    while len(heard) < len(words):
        with suppress(BlockingIOError):
            heard += answer.sock.recv(len(words))
        await asyncio.sleep(0)
    assert loop.is_running()
    return heard


# --- orders to an exit ----------------------------------------------------------------------------


async def test_a_target_is_reached_through_an_exit(port: Port) -> None:
    device = await port.parked()
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        assert await spoken(answer, b"words") == b"words"
        assert device.dials == [Dial(1, (LOOPBACK,), target.port)]
        assert answer.via is not None
        assert answer.via.attached.device_id == "device"
        assert answer.via.address == LOOPBACK
        assert answer.via.headers[0].startswith("X-Exit: country=xx; id=")
        assert answer.via.headers[0].endswith("; ip=127.0.0.1")
        await answer.close(port, target)
    assert port.counters.dials == {"connected": 1}


async def test_bytes_of_a_target_before_the_answer_are_announced(port: Port) -> None:
    device = await port.parked()

    def has_come() -> bool:
        watchers = port.reactor.poller._watchers.values()
        return any(isinstance(each, Parked) and each.is_unread for each in watchers)

    async def obey(device: Device, dial: Dial) -> None:
        with device.take(dial.number) as work:
            if dial.port == 81:
                work.send(b"hello")
                await until(has_come, "the bytes are before the answer")
            device.send(Dialled(dial.number, DialOutcome.CONNECTED, 0, None, 0))
            await asyncio.Event().wait()

    device.obey = obey
    for number, is_unread in ((80, False), (81, True)):
        answer = await dialled(port, LOOPBACK, number)
        assert answer.is_unread is is_unread
        assert answer.sock is not None
        if is_unread:
            assert answer.sock.recv(5) == b"hello"
        await answer.close(port)


@cases(
    ("claimed", "told"),
    [
        (None, "198.51.100.7"),
        ("8.8.8.8", "198.51.100.7"),
        ("192.168.1.2", "198.51.100.7"),
        ("2606:4700::1", "2606:4700::1"),
        ("fd00::1", "198.51.100.7"),
        ("::ffff:8.8.8.8", "198.51.100.7"),
    ],
)
def test_the_address_that_an_exit_reports_is_believed_where_it_can_be(
    claimed: str | None, told: str
) -> None:
    known = ip_address("198.51.100.7")
    said = ip_address(claimed) if claimed is not None else None
    assert seen_address(known, said) == ip_address(told)


async def test_a_buyer_is_notified_that_another_exit_was_promised(port: Port) -> None:
    device = await port.parked()
    device.obey = answering(DialOutcome.CONNECTED)
    port.directory.has_moved = True
    answer = await dialled(port)
    assert answer.via is not None
    assert answer.via.headers[1] == "X-Exit-Changed: 1"
    await answer.close(port)


async def test_a_name_is_looked_up_here_and_its_addresses_are_sent(port: Port) -> None:
    device = await port.parked()
    async with targets.echo() as target:
        answer = await dialled(port, "localhost", target.port)
        assert device.dials == [Dial(1, (LOOPBACK,), target.port)]
        await answer.close(port, target)


async def test_an_exit_that_does_not_know_the_denied_addresses_looks_up_no_names(
    port: Port,
) -> None:
    device = await port.parked()
    answer = await dialled(port, "example.com", 443, Wants(dns_at_exit=True))
    assert answer.failure is Failure.NO_EXIT
    assert device.dials == []


async def test_an_exit_gets_no_order_for_its_own_addresses(port: Port) -> None:
    own, other = await port.parked("own"), await port.parked("other")
    for device in (own, other):
        device.obey = answering(DialOutcome.TIMED_OUT)
    public = ip_address("93.184.220.2")
    port.listener.roster.attached_here("own").location.learn(public)
    answer = await dialled(port, public, 443)
    assert answer.failure is Failure.TIMED_OUT
    assert (len(own.dials), len(other.dials)) == (0, 1)


async def test_an_older_agent_that_is_attached_by_ipv6_gets_no_ipv4(port: Port) -> None:
    device = await port.parked()
    device.obey = answering(DialOutcome.TIMED_OUT)
    attached = port.listener.roster.attached_here("device")
    attached.location.learn(ip_address("2a02:2455:1234:5600::10"))
    there = ip_address("93.184.215.14"), ip_address("2600:3c01::f03c")
    assert attached.permitted(there) == there[1:]
    assert (await dialled(port, there[0], 443)).failure is Failure.NO_EXIT
    assert device.dials == []
    attached.features = (CALLS,)
    assert attached.permitted(there) == there, "it judges by itself"


async def test_unusable_exits_use_up_no_try(port: Port) -> None:
    names = ["one", "two", "three", "four"]
    *blind, last = [await port.parked(name) for name in names]
    for name in names[:3]:
        port.listener.roster.attached_here(name).location.learn(
            ip_address("2a02:2455:1234:5600::10")
        )
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        assert answer.via is not None
        assert answer.via.attached.device_id == "four"
        await answer.close(port, target)
    assert [len(each.dials) for each in (*blind, last)] == [0, 0, 0, 1]


async def test_an_exit_looks_a_name_up_if_that_is_wanted(port: Port) -> None:
    device = await port.parked()
    port.listener.roster.attached_here("device").features = (DENY,)
    device.obey = answering(DialOutcome.NAME_UNKNOWN)
    answer = await dialled(port, "Example.COM.", 443, Wants(dns_at_exit=True))
    assert answer.failure is Failure.HOST_UNREACHABLE
    assert device.dials == [Dial(1, "example.com", 443)]


@pytest.mark.parametrize(
    ("host", "number", "wants"),
    [
        (ip_address("10.0.0.1"), 80, ANY),
        (ip_address("::ffff:10.0.0.1"), 80, ANY),
        ("10.1", 80, ANY),
        ("10.1", 80, Wants(dns_at_exit=True)),
        ("example.com", 25, Wants(dns_at_exit=True)),
        (LOOPBACK, 25, ANY),
        (LOOPBACK, 80, Wants(tls_only=True)),
    ],
)
async def test_a_forbidden_target_is_never_requested_of_an_exit(
    port: Port, host: Address | str, number: int, wants: Wants
) -> None:
    device = await port.parked()
    port.exits.resolver = DnsResolver()  # it knows numbers without a look-up
    answer = await dialled(port, host, number, wants)
    assert answer.failure is Failure.NOT_ALLOWED
    assert device.dials == []


@pytest.mark.parametrize(
    ("host", "dns_at_exit"),
    [
        ("nowhere", False),
        ("no name", False),
        ("no name", True),
        ("x" * 300, False),
        ("x" * 300, True),
    ],
)
async def test_a_text_that_is_no_name_is_not_requested(
    port: Port, host: str, dns_at_exit: bool
) -> None:
    device = await port.parked()
    answer = await dialled(port, host, 80, Wants(dns_at_exit=dns_at_exit))
    assert answer.failure is Failure.HOST_UNREACHABLE
    assert device.dials == []


@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (DialOutcome.REFUSED, Failure.REFUSED),
        (DialOutcome.HOST_UNREACHABLE, Failure.HOST_UNREACHABLE),
        (DialOutcome.NAME_UNKNOWN, Failure.HOST_UNREACHABLE),
    ],
)
async def test_the_bytes_of_the_target_are_passed_on_and_no_other_exit_is_tried(
    port: Port, outcome: DialOutcome, failure: Failure
) -> None:
    devices = [await port.parked(token) for token in ("one", "two")]
    for each in devices:
        each.obey = answering(outcome)
    assert (await dialled(port)).failure is failure
    assert [len(each.dials) for each in devices] == [1, 0]
    assert port.counters.failovers == 0


async def test_a_refusal_of_a_doubtful_exit_is_checked_through_another(port: Port) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = answering(DialOutcome.REFUSED)
    port.directory.is_doubtful = True
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        assert answer.via is not None
        assert answer.via.attached.device_id == "second"
        assert port.directory.contradicted == ["first"]
        await answer.close(port, target)
    second.obey = answering(DialOutcome.HOST_UNREACHABLE)
    assert (await dialled(port)).failure is Failure.REFUSED  # the first answer, confirmed
    assert (await dialled(port, wants=Wants(session="a"))).failure is Failure.REFUSED
    assert (len(first.dials), len(second.dials)) == (3, 2)  # a label shows no other address
    assert port.directory.contradicted == ["first"]


@pytest.mark.parametrize("outcome", [DialOutcome.PAUSED, DialOutcome.AT_LIMIT, DialOutcome.FAILED])
async def test_an_exit_that_cannot_is_passed_over(port: Port, outcome: DialOutcome) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = answering(outcome)
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        assert answer.via is not None
        assert answer.via.attached.device_id == "second"
        await answer.close(port, target)
    assert (len(first.dials), len(second.dials)) == (1, 1)
    assert port.counters.failovers == 1


DOUBTFUL = pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (DialOutcome.TIMED_OUT, Failure.TIMED_OUT),
        (DialOutcome.NETWORK_UNREACHABLE, Failure.NETWORK_UNREACHABLE),
        (DialOutcome.NOT_ALLOWED, Failure.NOT_ALLOWED),
    ],
)


@DOUBTFUL
async def test_a_failure_that_may_be_the_exits_own_is_tried_through_one_more(
    port: Port, outcome: DialOutcome, failure: Failure
) -> None:
    devices = [await port.parked(token) for token in ("one", "two", "three")]
    for each in devices:
        each.obey = answering(outcome)
    assert (await dialled(port)).failure is failure
    assert [len(each.dials) for each in devices] == [1, 1, 0]


@DOUBTFUL
async def test_an_answer_that_another_exit_contradicts_is_a_fault(
    port: Port, outcome: DialOutcome, failure: Failure
) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = answering(outcome)
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        await answer.close(port, target)
    assert port.directory.contradicted == ["first"]
    second.obey = answering(outcome)
    assert (await dialled(port)).failure is failure
    assert port.directory.contradicted == ["first"]


async def test_an_exit_may_have_no_route_by_the_other_family(port: Port) -> None:
    first, _ = await port.parked("first"), await port.parked("second")
    first.obey = answering(DialOutcome.NETWORK_UNREACHABLE)
    port.listener.roster.attached_here("first").address = ip_address("2600:3c01::f03c")
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        await answer.close(port, target)
    assert port.directory.contradicted == []


@DOUBTFUL
async def test_a_failure_is_reported_where_no_other_exit_exists(
    port: Port, outcome: DialOutcome, failure: Failure
) -> None:
    device = await port.parked()
    device.obey = answering(outcome)
    assert (await dialled(port)).failure is failure
    assert len(device.dials) == 1


async def test_an_exit_without_the_targets_family_is_passed_over(port: Port) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = answering(DialOutcome.NETWORK_UNREACHABLE)
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        assert answer.via is not None
        assert answer.via.attached.device_id == "second"
        await answer.close(port, target)
    assert len(second.dials) == 1


async def test_an_order_for_a_connection_that_the_exit_has_closed_is_given_once_more(
    port: Port,
) -> None:
    device = await port.parked()

    async def obey(device: Device, dial: Dial) -> None:
        device.obey = carry
        await has_closed(device, dial)

    device.obey = obey
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        await answer.close(port, target)
    assert port.directory.noted == [("device", DialOutcome.CONNECTED)]


async def test_an_exit_that_closes_every_connection_is_at_fault(port: Port) -> None:
    device = await port.parked()
    device.obey = has_closed
    assert (await dialled(port)).failure is Failure.NO_EXIT
    assert len(device.dials) == 2
    assert port.directory.noted == [("device", DialOutcome.FAILED)]


async def test_three_exits_are_enough(port: Port) -> None:
    devices = [await port.parked(token) for token in ("one", "two", "three", "four")]
    for each in devices:
        each.obey = answering(DialOutcome.FAILED)
    assert (await dialled(port)).failure is Failure.NO_EXIT
    assert [len(each.dials) for each in devices] == [1, 1, 1, 0]


# --- which exits ----------------------------------------------------------------------------------


async def test_without_an_exit_there_is_no_connection(port: Port) -> None:
    assert (await dialled(port)).failure is Failure.NO_EXIT


async def test_no_buyer_leaves_through_an_own_device(port: Port) -> None:
    device = await port.parked()
    answer = await dialled(port, buyer=Payer(user_id="owner"))
    assert answer.failure is Failure.NO_EXIT
    assert device.dials == []


async def test_a_device_that_takes_nothing_gets_no_order_until_it_does(port: Port) -> None:
    device = await port.parked()
    device.obey = answering(DialOutcome.REFUSED)
    device.send(paused("on battery"))
    await until(lambda: not port.directory.exits, "it takes nothing")
    assert (await dialled(port)).failure is Failure.NO_EXIT
    device.send(paused("still"))
    device.send(paused(""))
    await until(lambda: bool(port.directory.exits), "it takes connections again")
    assert (await dialled(port)).failure is Failure.REFUSED


async def test_a_device_that_attaches_paused_gets_no_order(port: Port) -> None:
    await port.device(paused="at night")
    assert (await dialled(port)).failure is Failure.NO_EXIT


async def test_an_exit_has_as_many_connections_as_its_owner_allows(port: Port) -> None:
    port.devices.grants["device"] = Granted("device", "owner", 0, ServiceLimits(2, 0, 0, ()))
    device = await port.parked()
    device.obey = ignore
    calls = [Call(port, LOOPBACK, 80) for _ in range(3)]
    assert (await calls[2].end()).failure is Failure.NO_EXIT
    calls[0].dial.cancel()
    device.obey = answering(DialOutcome.REFUSED)
    assert (await dialled(port)).failure is Failure.REFUSED
    calls[1].dial.cancel()


async def test_an_exit_has_its_place_again_if_it_reports_the_end_before_the_daemon_sees_it(
    port: Port,
) -> None:
    device = port.unattached()
    await device.attach(hello(capacity=Capacity(1, 0, (), dials=0)))
    attached = port.directory.exits["device"]
    device.obey = carry
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        assert answer.via is not None
        relay = Standstill()
        attached.begin(relay, answer.via.place)
        assert (await dialled(port)).failure is Failure.NO_EXIT
        device.send(Over(device.dials[0].number))
        device.send(paused("the next frame"))
        await until(lambda: not port.directory.exits, "both were read")
        attached.end(relay)
        assert attached.has_place_for("buyer", datagrams=False)
        await answer.close(port, target)


async def test_ports_are_those_that_the_owner_allows(port: Port) -> None:
    port.devices.grants["web"] = Granted("web", "owner", 0, ServiceLimits(0, 0, 0, (443,)))
    web = await port.parked("web")
    assert (await dialled(port, number=8080)).failure is Failure.NOT_ALLOWED
    label = Wants(session="label")
    assert (await dialled(port, number=8080, wants=label)).failure is Failure.NOT_ALLOWED
    more = await port.parked("more")
    more.obey = answering(DialOutcome.REFUSED)
    assert (await dialled(port, number=8080)).failure is Failure.REFUSED
    assert (await dialled(port, number=8080, wants=label)).failure is Failure.REFUSED
    assert (web.dials, len(more.dials)) == ([], 2)


# --- when an exit is lost -------------------------------------------------------------------------


async def test_an_exit_that_is_killed_is_passed_over_at_once(port: Port) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = ignore
    second.obey = answering(DialOutcome.REFUSED)
    call = Call(port, LOOPBACK, 80)
    await until(lambda: bool(first.dials), "the first is asked")
    await first.kill()
    assert (await call.end()).failure is Failure.REFUSED
    assert port.counters.dials == {"lost": 1, "refused": 1}
    assert port.directory.noted == [("first", None), ("second", DialOutcome.REFUSED)]


async def test_a_strict_label_fails_rather_than_change_its_exit(port: Port) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = answering(DialOutcome.REFUSED)
    label = Wants(session="label", strict=True)
    assert (await dialled(port, wants=label)).failure is Failure.REFUSED
    await first.kill()
    await until(lambda: len(port.listener) == 1, "it is gone")
    assert (await dialled(port, wants=label)).failure is Failure.EXIT_LOST
    assert second.dials == []


async def test_an_exit_that_is_silent_is_passed_over(port: Port) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    await until(lambda: port.directory.exits["first"].pulse._ping is None, "it has answered")
    first.obey = ignore
    first.answers_pings = False
    second.obey = answering(DialOutcome.REFUSED)
    assert (await dialled(port)).failure is Failure.REFUSED
    assert (len(first.dials), len(second.dials)) == (1, 1)
    assert port.counters.hedges == 0


async def test_an_exit_is_not_silent_whose_daemon_stood_still(port: Port) -> None:
    device = await port.parked()
    attached = port.directory.exits["device"]
    await until(lambda: attached.pulse._ping is None, "it has answered")
    device.answers_pings = False
    device.obey = ignore
    call = Call(port, LOOPBACK, 80)
    await until(lambda: attached.pulse._ping is not None, "it is asked")
    loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()

    def stand_still() -> None:
        """Be late as a loop is that serves its sockets: timers are looked at before the next."""
        loop.remove_reader(here)
        assert attached.pulse._ping is not None
        device.send(Pong(attached.pulse._ping))
        device.answers_pings = True
        device.obey = answering(DialOutcome.REFUSED)  # of the second order
        time.sleep(1.0)  # longer than an exit may be silent

    with here, there:
        loop.add_reader(here, stand_still)
        there.send(b"now")
        assert (await call.end()).failure is Failure.REFUSED
    assert len(device.dials) == 2
    assert port.counters.dials == {"refused": 1}


async def test_an_exit_that_is_slow_and_there_is_ordered_twice_and_the_first_answer_counts(
    port: Port,
) -> None:
    device = await port.parked()

    async def obey(device: Device, dial: Dial) -> None:
        if len(device.dials) == 2:
            await carry(device, dial)

    device.obey = obey
    async with targets.echo() as target:
        answer = await dialled(port, LOOPBACK, target.port)
        assert await spoken(answer, b"words") == b"words"
        await answer.close(port, target)
    assert len({each.number for each in device.dials}) == 2
    assert port.counters.hedges == 1
    late = device.dials[0].number
    device.send(Dialled(late, DialOutcome.CONNECTED, 0, None, 0))  # no effect
    device.send(paused("the last frame"))
    await until(lambda: not port.directory.exits, "it was heard")


@bounded(exit_bounds(dials=DialTimes(unanswered_seconds=0.0)))
@pytest.mark.parametrize("reaches", [True, False])
async def test_an_exit_that_is_there_and_does_not_obey_is_left(port: Port, reaches: bool) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = ignore
    outcome = DialOutcome.CONNECTED if reaches else DialOutcome.TIMED_OUT
    second.obey = answering(outcome)
    answer = await dialled(port)
    if reaches:
        assert port.directory.noted == [("second", outcome), ("first", None)]
        await answer.close(port)
    else:
        assert answer.failure is Failure.TIMED_OUT
        assert port.directory.noted == [("second", outcome)]
    assert port.directory.exits["first"].dials == {}


@bounded(exit_bounds(dials=DialTimes(unanswered_seconds=0.0)))
async def test_a_label_stays_with_an_exit_whose_target_is_silent(port: Port) -> None:
    first, second = await port.parked("first"), await port.parked("second")
    first.obey = ignore
    call = Call(port, LOOPBACK, 80, Wants(session="label"))
    await until(lambda: port.counters.hedges == 1, "it was ordered once more")
    for _ in range(2):
        asked_at = call.dial._watch._asked_at
        await until(lambda before=asked_at: call.dial._watch._asked_at > before, "it was looked at")
    call.dial.cancel()
    assert second.dials == []


async def test_a_dial_that_finds_nothing_waiting_takes_the_next_connection(port: Port) -> None:
    device = port.unattached()
    device.parks = False
    await device.attach()
    device.obey = answering(DialOutcome.REFUSED)
    calls = [Call(port, LOOPBACK, 80) for _ in range(3)]
    await until(lambda: device.wanted >= 4, "it is asked for one more than these")
    device.parks = True
    await device.park()
    for each in calls:
        assert (await each.end()).failure is Failure.REFUSED


@bounded(exit_bounds(dials=DialTimes(parked_wait_seconds=0.05)))
async def test_an_exit_without_connections_is_passed_over(port: Port) -> None:
    first = port.unattached()
    first.parks = False
    await first.attach()
    second = await port.parked("second")
    second.obey = answering(DialOutcome.REFUSED)
    assert (await dialled(port)).failure is Failure.REFUSED
    assert first.dials == []


async def waiting_at(port: Port, dials: int) -> tuple[list[Call], int]:
    """Have more dials wait for an exit than it declares for a second.

    Returns:
        all of them, and how many of them gave it a fault.
    """
    exit_ = port.directory.exits["device"]
    calls = [Call(port, LOOPBACK, 80) for _ in range(dials)]
    assert not exit_.is_behind
    calls.append(Call(port, LOOPBACK, 80))
    assert exit_.is_behind
    second = await port.parked("second")
    second.obey = answering(DialOutcome.REFUSED)
    for each in calls:
        assert (await each.end()).failure is Failure.REFUSED
    return calls, sum(device == "device" for device, _ in port.directory.noted)


@bounded(exit_bounds(dials=DialTimes(parked_wait_seconds=0.05)))
async def test_an_exit_that_keeps_to_its_limit_of_dials_is_not_at_fault(port: Port) -> None:
    first = port.unattached()
    first.parks = False
    await first.attach(hello(capacity=Capacity(0, 0, (), dials=2)))
    now = asyncio.get_running_loop().time()
    for _ in range(2):  # the same number in each second of a minute
        port.directory.exits["device"].pool.pace.count(now + 60)
    calls, faults = await waiting_at(port, 2)
    assert faults < len(calls), "while it was behind it had no fault"


@bounded(exit_bounds(dials=DialTimes(parked_wait_seconds=0.05)))
async def test_an_exit_that_opens_no_connection_is_at_fault_for_each_dial(port: Port) -> None:
    first = port.unattached()
    first.parks = False
    await first.attach(hello(capacity=Capacity(0, 0, (), dials=1)))
    calls, faults = await waiting_at(port, 1)
    assert faults == len(calls), "its owner's limit is no excuse"


async def test_an_exit_that_never_had_a_connection_is_no_target_that_does_not_answer(
    tmp_path: Path,
) -> None:
    bounds = ExitBounds(dials=DialTimes(parked_wait_seconds=0.05))
    port = Port(tmp_path, seconds=0.3, bounds=bounds)
    device = port.unattached()
    device.parks = False
    await device.attach()
    assert (await dialled(port)).failure is Failure.NO_EXIT
    await port.close()


async def test_a_dial_ends_with_its_time(tmp_path: Path) -> None:
    port = Port(tmp_path, seconds=0.3)
    device = await port.parked()
    device.obey = ignore
    assert (await dialled(port)).failure is Failure.TIMED_OUT
    await until(lambda: not port.directory.exits["device"].dials, "nothing is left of it")
    await port.close()


@bounded(exit_bounds(dials=DialTimes(parked_wait_seconds=0.0)))
async def test_a_dial_waits_on_where_there_is_no_other_exit(port: Port) -> None:
    device = port.unattached()
    device.parks, device.obey = False, answering(DialOutcome.REFUSED)
    await device.attach()
    call = Call(port, LOOPBACK, 80)
    (attempt,) = call.dial._attempts
    await until(lambda: attempt.is_overdue, "it has looked for another exit")
    device.parks = True
    await device.park()
    assert (await call.end()).failure is Failure.REFUSED


# --- a buyer who leaves ---------------------------------------------------------------------------


async def test_a_buyer_that_leaves_ends_the_order(port: Port) -> None:
    device = await port.parked()
    device.obey = ignore
    call = Call(port, LOOPBACK, 80)
    await until(lambda: bool(device.dials), "it is asked")
    call.dial.cancel()
    call.dial.cancel()
    work = device.take(device.dials[0].number)
    with work, suppress(ConnectionError):
        assert await asyncio.get_running_loop().sock_recv(work, 1) == b""
    assert call.answers == []
    exit_ = port.directory.exits["device"]
    assert exit_.dials == {}


async def test_a_buyer_that_leaves_while_a_name_is_looked_up_costs_no_order(port: Port) -> None:
    device = await port.parked()
    port.exits.resolver = resolver = Slow("127.0.0.1")
    call = Call(port, "localhost", 80)
    await asyncio.sleep(0)
    call.dial.cancel()
    resolver.may_answer.set()
    await asyncio.sleep(0)
    assert device.dials == []
    assert call.answers == []


async def test_bytes_of_the_target_before_the_answer_wait(port: Port) -> None:
    device = await port.parked()

    async def obey(device: Device, dial: Dial) -> None:
        work = device.take(dial.number)
        await asyncio.get_running_loop().sock_sendall(work, b"early words")
        work.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.02)  # the bytes are there long before the answer
        device.parked[dial.number] = work
        await answering(DialOutcome.CONNECTED)(device, dial)

    device.obey = obey
    answer = await dialled(port)
    assert answer.sock is not None
    assert answer.sock.recv(100) == b"early words"
    assert answer.sock.recv(100) == b""
    await answer.close(port)


async def test_a_silent_target_is_left_to_the_exit(port: Port) -> None:
    with silent_port() as number:
        await port.parked()
        call = Call(port, LOOPBACK, number)
        await until(lambda: port.counters.hedges == 1, "it is ordered once more")
        call.dial.cancel()
