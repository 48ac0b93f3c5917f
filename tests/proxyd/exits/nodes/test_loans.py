"""Exits that are attached to one node and carry for another, by themselves or by their node."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socket import SocketType

import pytest
from support.base.waiting import until
from support.clients.datagrams import peer, unwrapped, wrapped
from support.exits.device import BEAT_SECONDS, Granted, answering, ignore, paused
from support.exits.linked import Entry, Link, Node
from support.targets import targets

from proxyctl.attach.daemon import borrower as borrower_module
from proxyctl.exit.base import retries
from proxyctl.protocol.frames import (
    Associate,
    Dial,
    Dialled,
    For,
    Hello,
    Lend,
    Lent,
    Limits,
    Outcome,
    Park,
    Ping,
    Pong,
    State,
    Welcome,
    encode,
)
from proxyctl.protocol.frames import Return as ReturnToHome
from proxyd.exits.dialling.dial import Via
from proxyd.exits.nodes import borrowing, lending, stand_in
from proxyd.relay.closing import reset
from proxyd.wire.events import Failure
from proxyd.wire.links import Borrow, Borrowed, Carrying, Passed, Return
from proxyd.wire.wants import Wants

LOOPBACK = ip_address("127.0.0.1")


@dataclass
class Somebody:
    """Who pays."""

    id: str = "session"
    user_id: str = "buyer"
    price_per_gb: int = 1_000_000


class Call:
    """A dial from a node."""

    def __init__(self, node: Node, number: int, wants: Wants = Wants()) -> None:  # noqa: B008
        self.node = node
        self.outcome: Failure | SocketType | None = None
        self.via: Via | None = None
        self.dial = node.exits.dial(wants, Somebody(), LOOPBACK, number, self._done)

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
        """Say something to an echo, and return what comes back."""
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


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(retries, "RETRY_MOST_SECONDS", 0.05)


@dataclass
class Two:
    """A node where buyers are and one with exits, and the link of the first."""

    edge: Node
    home: Node
    link: Link


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    edge, home = Node(tmp_path / "edge"), Node(tmp_path / "home")
    yield Two(edge, home, edge.link(home))
    await edge.close()
    await home.close()
    assert edge.counters.parked == home.counters.parked == 0


async def with_agent(two: Two) -> None:
    """An agent that can carry for others."""
    await two.home.agent()


async def with_old_agent(two: Two) -> None:
    """A device that knows nothing of loans."""
    await two.home.parked()


async def with_agent_apart(two: Two) -> None:
    """An agent that does not reach the other node, which the home does."""

    class Elsewhere(borrower_module.Borrower):
        async def connect(self):
            raise ConnectionRefusedError

    carrier = (await two.home.agent())._carrier
    lend = carrier._lend

    def replaced(frame: Lend, home: object) -> str:
        before = borrower_module.Borrower.connect
        code = lend(frame, home)
        pool = carrier._borrowers[frame.number].pool
        pool._connect = Elsewhere("127.0.0.1", 1, LOOPBACK, None, None).connect
        assert borrower_module.Borrower.connect is before
        return code

    carrier._lend = replaced


KINDS = [with_agent, with_old_agent, with_agent_apart]
Kind = Callable[[Two], Awaitable[None]]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_buyer_leaves_through_an_exit_of_another_node(two: Two, kind: Kind) -> None:
    await kind(two)
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
    assert two.home.lending.stand_ins == (kind is not with_agent)
    assert sum(isinstance(each, Borrow) for each in two.link.sent) == 1
    await until(lambda: not two.home.exit_of("device").relays)


@pytest.mark.parametrize("stands_in", [False, True])
async def test_datagrams_leave_through_an_exit_of_another_node(two: Two, stands_in: bool) -> None:
    if stands_in:
        await two.home.device(features=("udp",))
    else:
        await two.home.agent(udp=True)
    two.edge.hear_of("device", two.link)
    loop = asyncio.get_running_loop()
    associated = loop.create_future()

    def done(outcome: SocketType | Failure, _unread: bool, _via: Via | None) -> None:
        associated.set_result(outcome)

    two.edge.exits.associate(Wants(), Somebody(), done)
    work = await associated
    assert isinstance(work, SocketType)
    assert two.home.lending.stand_ins == stands_in
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_burst_is_served(two: Two, kind: Kind) -> None:
    await kind(two)
    two.edge.hear_of("device", two.link)
    async with targets.echo() as target:
        calls = [Call(two.edge, target.port) for _ in range(12)]
        assert [await each.end() for each in calls] == [None] * 12
        for number, each in enumerate(calls):
            words = b"words %d" % number
            assert await each.spoken(words) == words
            each.close()
        await until(lambda: target.ended + target.resets == 12)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_the_target_says_is_told(two: Two, kind: Kind) -> None:
    await kind(two)
    two.edge.hear_of("device", two.link)
    async with targets.echo() as target:
        port = target.port
    assert await Call(two.edge, port).end() is Failure.REFUSED


@pytest.mark.parametrize("kind", [with_old_agent, with_agent_apart])
async def test_resets_and_ends_pass_where_a_node_stands_in(two: Two, kind: Kind) -> None:
    await kind(two)
    two.edge.hear_of("device", two.link)
    async with targets.sink(b"the answer") as target:
        call = Call(two.edge, target.port)
        assert await call.end() is None
        call.sock.send(b"the question")
        call.sock.shutdown(1)
        heard = b""
        while len(heard) < 10:
            with suppress(BlockingIOError):
                heard += call.sock.recv(100)
            await asyncio.sleep(0)
        assert heard == b"the answer"
        assert target.data == b"the question"
        assert await call.is_cut()
        call.close()
        second = Call(two.edge, target.port)
        assert await second.end() is None
        two.edge.reactor.poller.forget(second.sock.fileno())
        reset(second.sock)
        await until(lambda: target.resets + target.ended == 2)
    await until(lambda: two.home.stand_ins.open <= 2, "only what waits is left")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_round_trip_is_that_of_the_exit(two: Two, kind: Kind) -> None:
    await kind(two)
    entry = two.edge.hear_of("device", two.link)
    attached = two.edge.loans.exit_of(entry)
    assert attached is not None
    await until(lambda: two.home.exit_of("device").pulse._ping is None, "it has answered its home")
    attached.pulse.ping()
    await until(lambda: attached.pulse._ping is None, "it has answered")
    assert attached.pulse.heard_at >= attached.pulse._pinged_at


async def test_a_silent_exit_is_silent_where_its_home_stands_in(two: Two) -> None:
    device = await two.home.parked()
    device.answers_pings = False
    entry = two.edge.hear_of("device", two.link)
    attached = two.edge.loans.exit_of(entry)
    assert attached is not None
    attached.pulse.ping()
    await until(lambda: any(isinstance(each, Ping) for each in device.frames[-1:]), "it is asked")
    assert attached.pulse._ping is not None
    assert not any(isinstance(each, Passed) for each in two.link.other.sent)


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


async def test_an_exit_that_nobody_can_borrow_is_passed_over(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrowing, "LOANS_MAX", 1)
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


async def test_idle_exits_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, home = Node(tmp_path / "edge", BEAT_SECONDS), Node(tmp_path / "home")
    link = edge.link(home)
    agent = await home.agent()
    attached = edge.loans.exit_of(edge.hear_of("device", link))
    assert attached is not None
    attached.pool.open()
    await until(lambda: len(attached.pool) == 1, "a connection waits")
    beats = attached.pulse.heard_at
    await until(lambda: attached.pulse.heard_at > beats, "it is asked whether it is there")
    monkeypatch.setattr(borrowing, "IDLE_SECONDS", 0.0)
    await until(lambda: not len(edge.borrowing))
    await until(lambda: not len(home.lending))
    await until(lambda: not agent._carrier._borrowers, "the agent knows")
    assert edge.counters.parked == 0
    await edge.close()
    await home.close()


# --- what is counted -----------------------------------------------------------------------------


class Relayed:
    """A buyer's connection."""

    def __init__(self, up: int = 0, down: int = 0) -> None:
        self.traffic = (up, down)
        self.was_cut = False

    def abort(self) -> None:
        self.was_cut = True


async def test_what_goes_through_from_elsewhere_counts_at_the_home(tmp_path: Path) -> None:
    edge, home = Node(tmp_path / "edge", BEAT_SECONDS), Node(tmp_path / "home")
    home.devices.grants["device"] = Granted("device", "owner", 0, Limits(2, 0, 1000, ()))
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


async def test_where_a_node_stands_in_it_counts_itself(two: Two) -> None:
    await two.home.parked()
    own = two.home.exit_of("device")
    two.edge.hear_of("device", two.link)
    async with targets.echo() as target:
        call = Call(two.edge, target.port)
        assert await call.end() is None
        assert await call.spoken(b"words") == b"words"
        assert len(own.relays) == 1
        two.link.send(Carrying(1, 7, 700))
        call.close()
        await until(lambda: not own.relays)
    assert own.load.carried == 10
    assert own.load.connections_elsewhere == 0


def takes(entry: Entry) -> bool:
    return entry.has_place_for("buyer", datagrams=False)


async def test_an_exit_that_is_full_here_is_not_chosen(two: Two) -> None:
    await two.home.agent()
    entry = two.edge.hear_of("device", two.link, limits=Limits(1, 0, 0, ()))
    assert takes(entry)
    attached = two.edge.loans.exit_of(entry)
    assert attached is not None
    relay = Relayed()
    attached.begin(relay)
    assert not takes(entry)
    assert await Call(two.edge, 80).end() is Failure.NO_EXIT
    two.edge.loans.changed(entry)
    entry.limits = Limits(2, 0, 0, ())
    assert not takes(entry)
    two.edge.loans.changed(entry)
    assert takes(entry)
    attached.end(relay)


@pytest.mark.parametrize("limit", ["paused", "full"])
async def test_a_stand_in_keeps_to_what_the_exit_may_carry(two: Two, limit: str) -> None:
    device = await two.home.parked()
    attached = two.edge.loans.exit_of(two.edge.hear_of("device", two.link))
    assert attached is not None
    attached.pool.open()
    await until(lambda: len(attached.pool) > 0)
    if limit == "paused":
        device.send(paused("on battery"))
        await until(lambda: not two.home.exit_of("device").is_open)
    else:
        two.home.exit_of("device").grant(Limits(1, 0, 0, ()))
        two.home.exit_of("device").begin(Relayed())
    assert await Call(two.edge, 80).end() is Failure.NO_EXIT
    assert device.dials == []
    assert two.edge.counters.dials == {"paused" if limit == "paused" else "at_limit": 1}


# --- what ends -----------------------------------------------------------------------------------


async def carried(two: Two, target: targets.Target) -> Call:
    """Return a connection through an exit of the other node."""
    call = Call(two.edge, target.port)
    assert await call.end() is None
    assert call.via is not None
    assert await call.spoken(b"words") == b"words"
    return call


@pytest.mark.parametrize("kind", KINDS)
async def test_a_revoked_exit_is_cut_on_every_node(two: Two, kind: Kind) -> None:
    await kind(two)
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


@pytest.mark.parametrize("kind", KINDS)
async def test_what_goes_on_after_the_link_or_the_home_is_lost(two: Two, kind: Kind) -> None:
    await kind(two)
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
    device = await two.home.parked()
    device.obey = ignore
    two.edge.hear_of("device", two.link)
    call = Call(two.edge, 80)
    await until(lambda: bool(device.dials))
    other = await two.edge.parked("other")
    other.obey = answering(Outcome.REFUSED)
    two.link.cut()
    assert await call.end() is Failure.REFUSED
    await until(lambda: two.home.stand_ins.open == 0)


async def test_a_dial_that_is_given_up_is_given_up_where_a_node_stands_in(two: Two) -> None:
    device = await two.home.parked()
    device.obey = ignore
    two.edge.hear_of("device", two.link)
    call = Call(two.edge, 80)
    await until(lambda: bool(device.dials))
    own = two.home.exit_of("device")
    assert len(own.dials) == 1
    call.dial.cancel()
    await until(lambda: not own.dials)


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
async def test_a_borrower_that_says_what_it_may_not_is_cut(two: Two, frame: Passed) -> None:
    await two.home.agent()
    assert two.edge.loans.exit_of(two.edge.hear_of("device", two.link)) is not None
    two.link.send(frame)
    await until(lambda: two.link.is_over)
    assert two.link.other.error is not None
    assert not len(two.home.lending)


async def test_what_is_said_of_loans_that_are_over_is_passed_over(two: Two) -> None:
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
        For(1, encode(Welcome(1, "", "", "", 0, Limits(0, 0, 0, ()), 1))),
        For(1, encode(Dial(1, "name", 80))),
        For(1, b"\x00\x01"),
        For(1, b""),
    ],
    ids=["welcome", "dial", "cut off", "nothing"],
)
async def test_an_agent_that_says_what_it_may_not_is_cut(two: Two, frame: For) -> None:
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
    thief.send(For(1, encode(State(""))))
    thief.send(Ping(b"12345678"))
    await until(lambda: Pong(b"12345678") in thief.frames)
    assert two.home.lending.stand_ins == 0
    assert not any(isinstance(each, Passed) for each in two.link.other.sent)


async def test_one_exit_is_lent_so_often_and_all_so_often(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "LOANS_PER_EXIT", 1)
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
    monkeypatch.setattr(lending, "LOANS_MAX", 0)


async def test_what_an_agent_could_not_reach_is_not_asked_of_it_again(two: Two) -> None:
    device = await two.home.device(features=("lend",))
    entry = two.edge.hear_of("device", two.link)
    attached = two.edge.loans.exit_of(entry)
    assert attached is not None
    attached.pool.open()
    await until(lambda: any(isinstance(each, Lend) for each in device.frames))
    device.send(Lent(1, "unreachable"))
    await until(lambda: len(attached.pool) == 1, "its home has opened a connection")
    two.edge.borrowing.close()
    await until(lambda: not len(two.home.lending))
    again = two.edge.loans.exit_of(entry)
    assert again is not None
    again.pool.open()
    await until(lambda: len(again.pool) == 1)
    assert sum(isinstance(each, Lend) for each in device.frames) == 1


async def test_stand_ins_have_a_bound_and_try_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "AGAIN_SECONDS", 0.01)
    await two.home.parked()
    two.home.stand_ins.most = 2
    two.edge.host = "127.0.0.9"  # nobody is there yet
    attached = two.edge.loans.exit_of(two.edge.hear_of("device", two.link))
    assert attached is not None
    attached.pool.open()
    attached.say(Park(5))
    await until(lambda: len(two.home.lending) == 1)
    loan = next(iter(two.home.lending._by_number.values()))
    await until(lambda: loan.stand_in is not None and loan.stand_in._timer is not None)
    assert two.home.stand_ins.open == 0
    assert loan.stand_in is not None
    loan.stand_in._borrower = ("localhost", two.edge.port)
    await until(lambda: len(attached.pool) == 2, "as many as all may have, though five are wanted")
    assert two.home.stand_ins.open == 2


@pytest.mark.parametrize("place", [("a..b", 1090), ("127.0.0.1", 70_000)])
async def test_a_borrower_that_cannot_be_where_it_says_is_no_mistake_of_ours(
    two: Two,
    place: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "exits")
    monkeypatch.setattr(stand_in, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(two.home.lending, "_reached_at", lambda _: place)
    await two.home.parked()
    attached = two.edge.loans.exit_of(two.edge.hear_of("device", two.link))
    assert attached is not None
    attached.pool.open()
    await until(lambda: caplog.text.count("its borrower is not reached") > 1, "it tries again")
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("feature", [(), ("lend",)], ids=["its node", "the agent"])
async def test_datagrams_are_ordered_of_an_exit_of_another_node(
    two: Two, feature: tuple[str, ...]
) -> None:
    device = await two.home.device(features=(*feature, "udp"))
    attached = two.edge.loans.exit_of(two.edge.hear_of("device", two.link, features=("udp",)))
    assert attached is not None
    assert attached.features == ("udp",)
    attached.say(Associate(7))

    def is_ordered() -> bool:
        """By its node it cannot be: nothing waits there under that number."""
        passed = For(1, encode(Associate(7)))
        refused = Passed(1, encode(Dialled(7, Outcome.FAILED, 0, None, 0)))
        return passed in device.frames if feature else refused in two.link.other.sent

    await until(is_ordered)
    assert not two.link.is_over


async def test_a_stand_in_orders_datagrams(two: Two) -> None:
    device = await two.home.device(features=("udp",))
    device.obey_datagrams = ignore
    await until(lambda: two.home.counters.parked == 1)
    attached = two.edge.loans.exit_of(two.edge.hear_of("device", two.link, features=("udp",)))
    assert attached is not None
    attached.pool.open()
    await until(lambda: len(attached.pool) == 1)
    (parked,) = attached.pool._parked
    attached.say(Associate(parked.number))
    await until(lambda: any(isinstance(each, Associate) for each in device.frames))
    number = next(each.number for each in device.frames if isinstance(each, Associate))
    device.send(Dialled(number, Outcome.CONNECTED, 0, None, 0))
    await until(lambda: len(two.home.stand_ins.joined) == 1)
    parked.sock.send(b"a datagram")
    sock, heard = device.take(number), b""
    while heard != b"a datagram":
        with suppress(BlockingIOError):
            heard += sock.recv(100)
        await asyncio.sleep(0)
    sock.close()
    await until(lambda: not two.home.stand_ins.joined)
