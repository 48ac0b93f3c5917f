"""Exits that are attached to one node and carry for another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socket import SocketType

import pytest
from support.base.ports import closed_port
from support.base.waiting import until
from support.clients.datagrams import peer, unwrapped, wrapped
from support.daemons.bounded import bounded, exit_bounds
from support.exits.device import BEAT_SECONDS, Granted, answering
from support.exits.linked import Entry, Link, Node
from support.targets import targets

from proxyctl.attach.daemon import borrower as borrower_module
from proxyctl.protocol.frames import (
    Associate,
    Dial,
    DialOutcome,
    ExitStatus,
    For,
    Hello,
    Lend,
    Lent,
    Park,
    Ping,
    Pong,
    ServiceLimits,
    Welcome,
    encode,
)
from proxyctl.protocol.frames import Return as ReturnToHome
from proxyd.exits.dialling.dial import Via
from proxyd.exits.nodes.borrowing import BorrowingBounds
from proxyd.exits.nodes.lending import LendingBounds
from proxyd.wire.events import Failure
from proxyd.wire.links import Borrow, Borrowed, Carrying, Passed, Return
from proxyd.wire.wants import Wants
from proxyd.wiring.bounds import Bounds, ExitBounds

LOOPBACK = ip_address("127.0.0.1")


@dataclass
class Payer:
    """The payer."""

    id: str = "session"
    user_id: str = "buyer"
    price_per_gb: int = 1_000_000


class Call:
    """A dial from a node."""

    def __init__(self, node: Node, number: int, wants: Wants = Wants()) -> None:  # noqa: B008
        self.node = node
        self.outcome: Failure | SocketType | None = None
        self.via: Via | None = None
        self.dial = node.exits.dial(wants, Payer(), LOOPBACK, number, self._done)

    def _done(self, outcome: SocketType | Failure, _unread: bool, via: Via | None) -> None:
        self.outcome, self.via = outcome, via

    async def end(self) -> Failure | None:
        """Wait for the outcome; None if the target was reached."""
        await until(lambda: self.outcome is not None, "there is an outcome")
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def sock(self) -> SocketType:
        assert isinstance(self.outcome, SocketType)
        return self.outcome

    async def spoken(self, words: bytes) -> bytes:
        """Send words to an echo, and return the bytes that come back."""
        waiting, heard = words, b""
        while len(heard) < len(words):
            with suppress(BlockingIOError):
                waiting = waiting[self.sock.send(waiting) :] if waiting else b""
            with suppress(BlockingIOError):
                data = self.sock.recv(65_536)
                if not data:
                    break
                heard += data
            await asyncio.sleep(0)
        return heard

    async def is_cut(self) -> bool:
        """Wait until the connection ends."""
        while True:
            try:
                if not self.sock.recv(65_536):
                    return True
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except ConnectionError:
                return True

    def close(self) -> None:
        self.node.reactor.poller.forget(self.sock.fileno())
        self.sock.close()


@dataclass
class Two:
    """A node where buyers are and one with exits, and the link of the first."""

    edge: Node
    home: Node
    link: Link


@pytest.fixture
async def two(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Two]:
    edge, home = (Node(tmp_path / name, bounds=bounds.exits) for name in ("edge", "home"))
    yield Two(edge, home, edge.link(home))
    await edge.close()
    await home.close()
    assert edge.counters.parked == home.counters.parked == 0


async def test_a_buyer_leaves_through_an_exit_of_another_node(two: Two) -> None:
    await two.home.agent()
    two.edge.hear_of("device", two.link)
    words = targets.pattern(300_000)
    async with targets.echo() as target:
        for _ in range(3):
            call = Call(two.edge, target.port)
            assert await call.end() is None
            assert call.via is not None
            assert call.via.attached.device_id == "device"
            assert await call.spoken(words) == words
            call.close()
        await until(lambda: target.ended + target.resets == 3)
    assert two.edge.counters.dials == {"connected": 3}
    assert len(two.edge.borrowing) == len(two.home.lending) == 1
    assert sum(isinstance(each, Borrow) for each in two.link.sent) == 1
    await until(lambda: not two.home.exit_of("device").relays)


async def test_datagrams_leave_through_an_exit_of_another_node(two: Two) -> None:
    await two.home.agent(udp=True)
    two.edge.hear_of("device", two.link)
    loop = asyncio.get_running_loop()
    associated = loop.create_future()

    def done(outcome: SocketType | Failure, _unread: bool, _via: Via | None) -> None:
        associated.set_result(outcome)

    two.edge.exits.associate(Wants(), Payer(), done)
    work = await associated
    assert isinstance(work, SocketType)
    with peer() as target:
        datagram = wrapped(*target.address, b"up")
        await loop.sock_sendall(work, len(datagram).to_bytes(2, "big") + datagram)
        data, sender = await target.receive()
        assert data == b"up"
        target.send(b"down", sender)
        size = int.from_bytes(await loop.sock_recv(work, 2), "big")
        assert unwrapped(await loop.sock_recv(work, size)) == (*target.address, b"down")
    two.edge.reactor.poller.forget(work.fileno())
    work.close()
    await until(lambda: not two.home.exit_of("device").relays)


async def test_a_burst_is_served(two: Two) -> None:
    await two.home.agent()
    two.edge.hear_of("device", two.link)
    async with targets.echo() as target:
        calls = [Call(two.edge, target.port) for _ in range(12)]
        assert [await each.end() for each in calls] == [None] * 12
        for number, each in enumerate(calls):
            words = b"words %d" % number
            assert await each.spoken(words) == words
            each.close()
        await until(lambda: target.ended + target.resets == 12)


async def test_bytes_of_the_target_are_passed_on(two: Two) -> None:
    await two.home.agent()
    two.edge.hear_of("device", two.link)
    with closed_port() as port:
        assert await Call(two.edge, port).end() is Failure.REFUSED


async def test_the_round_trip_is_that_of_the_exit(two: Two) -> None:
    await two.home.agent()
    entry = two.edge.hear_of("device", two.link)
    attached = two.edge.loans.exit_of(entry)
    assert attached is not None
    await until(lambda: two.home.exit_of("device").pulse._ping is None, "it has answered its home")
    attached.pulse.ping()
    await until(lambda: attached.pulse._ping is None, "it has answered")
    assert attached.pulse.heard_at >= attached.pulse._pinged_at


async def test_an_exit_that_is_gone_is_answered_at_once_and_the_next_is_taken(two: Two) -> None:
    await two.home.agent("second")
    two.edge.hear_of("first", two.link)
    two.edge.hear_of("second", two.link)
    async with targets.echo() as target:
        call = Call(two.edge, target.port)
        assert await call.end() is None
        assert call.via is not None
        assert call.via.attached.device_id == "second"
        call.close()
    assert two.edge.directory.noted[0] == ("first", None)
    assert [each for each in two.link.other.sent if isinstance(each, Borrowed)] == [
        Borrowed(1, "gone")
    ]


async def test_an_exit_that_does_not_reach_the_node_is_passed_over(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> SocketType:
        raise ConnectionRefusedError

    await two.home.agent("first")
    monkeypatch.setattr(borrower_module.Borrower, "connect", refuse)
    two.edge.hear_of("first", two.link)
    other = await two.edge.parked("second")
    other.obey = answering(DialOutcome.REFUSED)
    assert await Call(two.edge, 80).end() is Failure.REFUSED
    assert two.edge.directory.noted[0] == ("first", None)
    assert [each for each in two.link.other.sent if isinstance(each, Borrowed)] == [
        Borrowed(1, "unreachable")
    ]
    assert not len(two.home.lending)


async def test_an_exit_that_could_not_reach_a_borrower_is_not_lent_again_for_a_while(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await two.home.device(features=("lend",))
    entry = two.edge.hear_of("device", two.link)
    answers = two.link.other.sent

    def lends() -> list[int]:
        return [each.number for each in device.frames if isinstance(each, Lend)]

    assert two.edge.loans.exit_of(entry) is not None
    await until(lambda: bool(lends()))
    device.send(Lent(lends()[-1], "unreachable"))
    await until(lambda: len(answers) == 1)
    assert two.edge.loans.exit_of(entry) is not None
    await until(lambda: len(answers) == 2)
    assert {each.code for each in answers} == {"unreachable"}
    assert len(lends()) == 1
    monkeypatch.setattr(two.home.exit_of("device").load, "now", lambda: float("inf"))
    assert two.edge.loans.exit_of(entry) is not None
    await until(lambda: len(lends()) == 2, "it is asked again")


async def test_an_exit_whose_agent_cannot_carry_for_others_is_passed_over(two: Two) -> None:
    await two.home.device()
    two.edge.hear_of("device", two.link)
    assert await Call(two.edge, 80).end() is Failure.NO_EXIT
    assert two.link.other.sent == [Borrowed(1, "unreachable")]


@bounded(exit_bounds(borrowing=BorrowingBounds(loans_max=1)))
async def test_an_exit_that_cannot_be_borrowed_is_passed_over(two: Two) -> None:
    await two.home.agent()
    used = two.edge.loans.exit_of(two.edge.hear_of("device", two.link))
    assert used is not None
    other = two.edge.hear_of("other", two.link)
    relay = Relayed()
    used.begin(relay)
    assert two.edge.loans.exit_of(other) is None, "the one that is used keeps its room"
    async with targets.echo() as target:
        call = Call(two.edge, target.port)
        assert await call.end() is None
        call.close()
    used.end(relay)
    assert two.edge.loans.exit_of(other) is not None, "an idle one is given back"
    await until(lambda: not len(two.home.lending))
    two.link.cut()
    assert two.edge.loans.exit_of(other) is None


async def test_idle_exits_are_given_back(tmp_path: Path) -> None:
    bounds = ExitBounds(borrowing=BorrowingBounds(idle_seconds=0.0))
    edge = Node(tmp_path / "edge", BEAT_SECONDS, bounds=bounds)
    home = Node(tmp_path / "home")
    link = edge.link(home)
    agent = await home.agent()
    attached = edge.loans.exit_of(edge.hear_of("device", link))
    assert attached is not None
    relay = Relayed()
    attached.begin(relay)
    attached.pool.open()
    await until(lambda: len(attached.pool) == 1, "a connection waits")
    beats = attached.pulse.heard_at
    await until(lambda: attached.pulse.heard_at > beats, "it is asked whether it is there")
    assert len(edge.borrowing), "one that is used is kept"
    attached.end(relay)
    await until(lambda: not len(edge.borrowing))
    await until(lambda: not len(home.lending))
    await until(lambda: not agent._carrier._borrowers, "the agent knows")
    assert edge.counters.parked == 0
    await edge.close()
    await home.close()


# --- counts --------------------------------------------------------------------------------------


class Relayed:
    """A buyer's connection."""

    def __init__(self, up: int = 0, down: int = 0) -> None:
        self.traffic = (up, down)
        self.was_cut = False

    def abort(self) -> None:
        self.was_cut = True


async def test_streams_from_elsewhere_count_at_the_home(tmp_path: Path) -> None:
    edge, home = Node(tmp_path / "edge", BEAT_SECONDS), Node(tmp_path / "home")
    home.devices.grants["device"] = Granted("device", "owner", 0, ServiceLimits(2, 0, 1000, ()))
    await home.agent()
    own = home.exit_of("device")
    attached = edge.loans.exit_of(edge.hear_of("device", edge.link(home)))
    assert attached is not None
    relays = [Relayed(100, 200), Relayed(0, 300)]
    for each in relays:
        attached.begin(each)
    await until(lambda: not own.has_place, "both places are taken")
    attached.end(relays[0])
    await until(lambda: own.has_place)
    assert own.load.carried == 600
    relays[1].traffic = (400, 300)
    await until(lambda: own.load.carried == 1000)
    own.spend(0)
    assert own.is_spent
    attached.end(relays[1])
    edge.borrowing.close()
    await until(lambda: not len(home.lending))
    assert (own.load.connections_elsewhere, own.load.carried) == (0, 1000)
    await edge.close()
    await home.close()


def takes(entry: Entry) -> bool:
    return entry.has_place_for("buyer", datagrams=False)


async def test_an_exit_that_is_full_here_is_not_chosen(two: Two) -> None:
    await two.home.agent()
    entry = two.edge.hear_of("device", two.link, limits=ServiceLimits(1, 0, 0, ()))
    assert takes(entry)
    attached = two.edge.loans.exit_of(entry)
    assert attached is not None
    relay = Relayed()
    attached.begin(relay)
    assert not takes(entry)
    assert await Call(two.edge, 80).end() is Failure.NO_EXIT
    two.edge.loans.changed(entry)
    entry.limits = ServiceLimits(2, 0, 0, ())
    assert not takes(entry)
    two.edge.loans.changed(entry)
    assert takes(entry)
    attached.end(relay)


# --- ends ----------------------------------------------------------------------------------------


async def carried(two: Two, target: targets.Target) -> Call:
    """Return a connection through an exit of the other node."""
    call = Call(two.edge, target.port)
    assert await call.end() is None
    assert call.via is not None
    assert await call.spoken(b"words") == b"words"
    return call


async def test_a_revoked_exit_is_cut_on_every_node(two: Two) -> None:
    await two.home.agent()
    two.edge.hear_of("device", two.link)
    async with targets.echo() as target:
        call = await carried(two, target)
        relay = Relayed()
        assert call.via is not None
        call.via.attached.begin(relay)
        two.home.devices.grants["device"] = Granted("device", "owner", paused=True)
        two.home.listener.recheck("device")
        await until(lambda: relay.was_cut)
        assert not len(two.edge.borrowing)
        assert not len(two.home.lending)
        call.close()


async def test_streams_go_on_after_the_link_or_the_home_is_lost(two: Two) -> None:
    await two.home.agent()
    two.edge.hear_of("device", two.link)
    async with targets.echo() as target:
        call = await carried(two, target)
        relay = Relayed()
        assert call.via is not None
        call.via.attached.begin(relay)
        two.link.cut()
        assert not len(two.edge.borrowing)
        assert not len(two.home.lending)
        assert call.via.attached.is_gone
        assert not relay.was_cut
        assert await call.spoken(b"more words") == b"more words"
        assert await Call(two.edge, target.port).end() is Failure.NO_EXIT
        two.edge.devices.grants["device"] = Granted("device", "owner", paused=True)
        two.edge.listener.recheck("device")
        await until(lambda: relay.was_cut, "this node looks after what goes on")
        call.close()


async def test_dials_under_way_go_on_elsewhere_when_the_link_is_lost(two: Two) -> None:
    device = await two.home.device(features=("lend",))
    two.edge.hear_of("device", two.link)
    call = Call(two.edge, 80)
    await until(lambda: any(isinstance(each, Lend) for each in device.frames))
    other = await two.edge.parked("other")
    other.obey = answering(DialOutcome.REFUSED)
    two.link.cut()
    assert await call.end() is Failure.REFUSED


async def test_a_device_that_attaches_elsewhere_is_borrowed_there(two: Two) -> None:
    await two.home.agent()
    first = two.edge.loans.exit_of(two.edge.hear_of("device", two.link))
    again = two.edge.link(two.home)
    second = two.edge.loans.exit_of(two.edge.hear_of("device", again))
    assert first is not second
    assert first is not None
    assert first.is_gone
    assert len(two.edge.borrowing) == 1


async def test_an_exit_that_is_filed_anew_is_lent_once(two: Two) -> None:
    await two.home.agent()
    for _ in range(3):  # as when it is found to leave from another line
        assert two.edge.loans.exit_of(two.edge.hear_of("device", two.link)) is not None
    two.link.send(Borrow(7, "nobody", "127.0.0.1", 1, 1))
    assert two.link.other is not None
    await until(lambda: Borrowed(7, "gone") in two.link.other.sent, "the home has heard all")
    assert len(two.edge.borrowing) == len(two.home.lending) == 1


# --- who does not speak the protocol ------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        Passed(1, encode(Hello(1, "t", "v", "s", (), "", ""))),
        Passed(1, encode(For(1, b"\x00\x01\x05"))),
        Passed(1, encode(Lend(1, "h", 1, 1))),
        Passed(1, b"\x00\x01"),
        Borrow(1, "device", "127.0.0.1", 1, 1),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_borrower_that_sends_a_forbidden_frame_is_cut(two: Two, frame: Passed) -> None:
    await two.home.agent()
    assert two.edge.loans.exit_of(two.edge.hear_of("device", two.link)) is not None
    two.link.send(frame)
    await until(lambda: two.link.is_over)
    assert two.link.other.error is not None
    assert not len(two.home.lending)


async def test_frames_about_ended_loans_are_passed_over(two: Two) -> None:
    await two.home.agent()
    for frame in (
        Passed(7, encode(Park(1))),
        Borrowed(7, "gone"),
        Return(7),
        Carrying(7, 1, 1),
    ):
        two.link.send(frame)
    assert two.edge.loans.exit_of(two.edge.hear_of("device", two.link)) is not None
    two.link.send(Passed(1, b"\x00\x01\xff"))  # of a later version
    await until(lambda: len(two.home.lending) == 1)
    assert not two.link.is_over


@pytest.mark.parametrize(
    "frame",
    [
        For(1, encode(Welcome(1, "", "", "", 0, ServiceLimits(0, 0, 0, ()), 1))),
        For(1, encode(Dial(1, "name", 80))),
        For(1, b"\x00\x01"),
        For(1, b""),
    ],
    ids=["welcome", "dial", "cut off", "nothing"],
)
async def test_an_agent_that_sends_a_forbidden_frame_is_cut(two: Two, frame: For) -> None:
    device = await two.home.device(features=("lend",))
    assert two.edge.loans.exit_of(two.edge.hear_of("device", two.link)) is not None
    await until(lambda: any(isinstance(each, Lend) for each in device.frames))
    device.send(For(99, b""))  # of a loan that is over
    device.send(Lent(99, "unreachable"))
    device.send(frame)
    await until(lambda: device.is_over)
    assert two.home.counters.cut == {"violation": 1}
    await until(lambda: not len(two.edge.borrowing), "its borrower knows")
    assert not any(isinstance(each, Passed) for each in two.link.other.sent)


async def test_another_exit_cannot_speak_for_a_loan(two: Two) -> None:
    device = await two.home.device(features=("lend",))
    thief = await two.home.device("thief", features=("lend",))
    assert two.edge.loans.exit_of(two.edge.hear_of("device", two.link)) is not None
    await until(lambda: any(isinstance(each, Lend) for each in device.frames))
    thief.send(Lent(1, "unreachable"))
    thief.send(For(1, encode(ExitStatus(""))))
    thief.send(Ping(b"12345678"))
    await until(lambda: Pong(b"12345678") in thief.frames)
    assert len(two.home.lending) == 1
    assert not any(isinstance(each, Passed) for each in two.link.other.sent)


@bounded(exit_bounds(lending=LendingBounds(per_exit=1)))
async def test_the_loans_of_one_exit_are_bounded(two: Two) -> None:
    device = await two.home.device(features=("lend",))
    two.link.send(Borrow(1, "device", "127.0.0.1", 1, 1))
    two.link.send(Borrow(3, "device", "127.0.0.1", 1, 1))
    answers = two.link.other.sent
    await until(lambda: Borrowed(3, "too_many") in answers)
    two.link.send(Return(1))
    await until(lambda: any(isinstance(each, ReturnToHome) for each in device.frames))
    two.home.devices.grants["device"] = Granted("device", "owner", paused=True)
    two.home.listener.recheck("device")
    await until(lambda: not two.home.exit_of("device").is_open)
    two.link.send(Borrow(5, "device", "127.0.0.1", 1, 1))
    await until(lambda: Borrowed(5, "paused") in answers)


@bounded(exit_bounds(lending=LendingBounds(loans_max=1)))
async def test_the_loans_of_all_exits_are_bounded(two: Two) -> None:
    for name in ("device", "other"):
        await two.home.device(name, features=("lend",))
    two.link.send(Borrow(1, "device", "127.0.0.1", 1, 1))
    two.link.send(Borrow(3, "other", "127.0.0.1", 1, 1))
    await until(lambda: Borrowed(3, "too_many") in two.link.other.sent)
    assert len(two.home.lending) == 1


async def test_datagrams_are_ordered_of_an_exit_of_another_node(two: Two) -> None:
    device = await two.home.device(features=("lend", "udp"))
    attached = two.edge.loans.exit_of(two.edge.hear_of("device", two.link, features=("udp",)))
    assert attached is not None
    assert attached.features == ("udp",)
    attached.say(Associate(7))
    await until(lambda: For(1, encode(Associate(7))) in device.frames)
    assert not two.link.is_over
