"""An attached exit: the number of waiting connections, heartbeats, and permissions."""

import socket
from pathlib import Path

import pytest
from support.base.waiting import until
from support.exits.device import BEAT_SECONDS, Granted, Port, answering, hello, ignore

from market.base.errors import Code, MarketError
from proxyctl.protocol.frames import DialOutcome, Ping, ServiceLimits
from proxyd.exits.attached import arrivals, pool
from proxyd.exits.attached import attached as module
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.location import describe
from proxyd.exits.choosing.entries import Place
from proxyd.wire.events import Failure
from proxyd.wire.wants import Wants
from storage.engines.errors import StoreError


class Relayed:
    """A buyer's connection."""

    def __init__(self, up: int = 0, down: int = 0) -> None:
        self.traffic = (up, down)
        self.was_cut = False

    def abort(self) -> None:
        self.was_cut = True


class Payer:
    """The payer."""

    id = "session"
    user_id = "buyer"
    price_per_gb = 0


def exit_of(port: Port, device: str = "device") -> Attached:
    return port.directory.exits[device]


def test_every_state_has_its_arrows_and_none_leads_out_of_the_end() -> None:
    state, arrows = module.AttachedState, module.TRANSITIONS
    assert set(arrows) == set(state)
    assert arrows[state.GONE] == ()
    reached = {to for tos in arrows.values() for to in tos} | {state.OPEN}
    assert reached == set(state)


async def test_an_exit_rests_for_as_long_as_it_has_a_reason(port: Port) -> None:
    device = await port.parked()
    exit_ = exit_of(port)
    assert exit_.is_open
    exit_.pause("battery")
    exit_.hold(is_held=True)
    exit_.stray(module.CROWDED)
    assert not exit_.is_open
    exit_.pause("")
    exit_.stray("")
    assert not exit_.is_open, "its owner has paused it still"
    exit_.hold(is_held=False)
    assert exit_.is_open
    await device.kill()
    await until(lambda: exit_.is_gone)
    exit_.pause("")
    assert not exit_.is_open, "nothing leads back"


# --- connections that wait ---------------------------------------------------------------------


async def test_one_waits_at_first_with_tickets_to_spare(port: Port) -> None:
    device = await port.parked()
    assert device.wanted == 1
    assert len(device.parked) == 1
    assert len(device.tickets) == pool.TICKETS_SPARE


async def test_a_burst_asks_for_as_many_as_wait_and_all_at_once(port: Port) -> None:
    device = port.unattached()
    device.parks = False
    await device.attach()
    outcomes: list[object] = []
    for _ in range(8):
        port.exits.dial(Wants(), Payer(), "localhost", 80, lambda *each: outcomes.append(each))
    device.obey = answering(DialOutcome.REFUSED)
    await until(lambda: device.wanted >= 9, "it is asked for all of them")
    device.parks = True
    await device.park()
    await until(lambda: len(outcomes) == 8, "all are answered")


async def test_never_more_wait_than_an_exit_may_have(port: Port) -> None:
    device = port.unattached()
    device.parks = False
    await device.attach()
    dials = [port.exits.dial(Wants(), Payer(), "localhost", 80, lambda *_: None) for _ in range(50)]
    await until(lambda: device.wanted == pool.PARKED_MAX)
    for each in dials:
        each.cancel()
    exit_ = exit_of(port)
    device.parks = True
    await device.park()
    await until(lambda: len(exit_.pool) == pool.PARKED_MAX)
    device.parks = False
    sock = await device.work(next(iter(device.tickets)))
    await until(lambda: len(device.parked) == pool.PARKED_MAX - 1, "the oldest was closed")
    assert port.counters.parked == pool.PARKED_MAX
    sock.close()


async def test_fewer_connections_are_requested_when_the_burst_is_over(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await port.parked()
    exit_ = exit_of(port)
    exit_.pool.demand.rate, exit_.pool.demand.rtt = 50.0, 0.1
    exit_.pool.open()
    await until(lambda: len(device.parked) == 11)
    exit_.pool.demand.rate = 0.0
    exit_.pool.tend()
    await until(lambda: device.wanted == 1)
    exit_.pool.demand.used_at -= pool.IDLE_SECONDS + 1
    exit_.pool.tend()
    await until(lambda: device.wanted == 0, "it is unused")


async def test_the_daemon_closes_the_oldest_that_are_too_many_after_a_burst(port: Port) -> None:
    """If the exit closed them, an order for one of them could be on its way."""
    await port.parked()
    exit_ = exit_of(port)
    exit_.pool.demand.rate, exit_.pool.demand.rtt = 50.0, 0.1
    exit_.pool.tend()
    await until(lambda: len(exit_.pool) == 11, "a burst is expected")
    youngest = exit_.pool._parked[-1 - pool.SURPLUS_MAX :]
    exit_.pool.demand.rate = 0.0
    exit_.pool.tend()
    assert exit_.pool._parked == youngest


async def test_a_connection_has_the_options_of_its_listener(port: Port) -> None:
    await port.parked()
    (parked,) = exit_of(port).pool._parked
    option = parked.sock.getsockopt
    assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert option(socket.SOL_SOCKET, socket.SO_OOBINLINE)
    assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == arrivals.KEEPALIVE_SECONDS
    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == arrivals.KEEPALIVE_PAUSE_SECONDS
    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == arrivals.KEEPALIVE_TRIES


def test_connections_are_counted_for_a_second_and_its_predecessor() -> None:
    pace = pool.Pace()
    for now in (10.0, 10.5, 11.9):
        pace.count(now)
    assert [pace.in_last_second(now) for now in (11.9, 12.0, 13.0)] == [3, 1, 0]
    pace.count(20.0)
    assert pace.in_last_second(20.0) == 1


async def test_an_old_parked_connection_is_replaced(port: Port) -> None:
    device = await port.parked()
    exit_ = exit_of(port)
    (old,) = exit_.pool._parked
    old.since -= pool.PARKED_SECONDS + 1
    exit_.pool.tend()
    await until(lambda: len(exit_.pool) == 1, "another one waits")
    assert exit_.pool._parked[0] is not old
    assert list(device.parked) == [exit_.pool._parked[0].number]


async def test_lost_tickets_are_replaced(port: Port) -> None:
    device = port.unattached()
    device.parks = False
    await device.attach()
    await until(lambda: bool(device.tickets))
    device.tickets.clear()
    exit_ = exit_of(port)
    for _ in range(2 * pool.TICKETS_KEPT):
        exit_.pool.tend()
    assert len(exit_.pool.tickets.out) == pool.TICKETS_KEPT
    await until(lambda: len(device.tickets) >= pool.TICKETS_KEPT)
    device.parks = True
    await device.park()
    await until(lambda: port.counters.parked == 1)


async def test_all_exits_together_have_a_bound(tmp_path: Path) -> None:
    port = Port(tmp_path, parked=2, heartbeat_seconds=1.0)
    devices = [await port.device(f"device{number}") for number in range(3)]
    await until(lambda: port.counters.parked == 2)
    await until(lambda: all(any(isinstance(f, Ping) for f in each.frames) for each in devices))
    assert [each.wanted for each in devices] == [1, 1, 0]
    await devices[0].kill()
    await until(lambda: port.counters.parked == 1)
    exit_of(port, "device2").pool.tend()
    await until(lambda: port.counters.parked == 2, "the place is another's")
    await port.close()


# --- heartbeats ----------------------------------------------------------------------------------


async def test_a_dial_is_served_where_other_exits_use_up_the_bound(tmp_path: Path) -> None:
    port = Port(tmp_path, parked=1)
    await port.parked("first")
    device = port.unattached()
    device.obey = answering(DialOutcome.REFUSED)
    await device.attach(hello("second"))
    port.directory.remove(exit_of(port, "first"))
    outcomes: list[object] = []
    port.exits.dial(Wants(), Payer(), "localhost", 80, lambda *each: outcomes.append(each))
    await until(lambda: bool(outcomes))
    assert outcomes == [(Failure.REFUSED, False, None)]
    await until(lambda: device.wanted == 0, "none has to wait any more")
    assert port.base.services.budget.wanted == 1
    port.directory.add(port.listener.roster.by_device["first"])
    await port.close()


async def test_the_round_trip_is_measured(port: Port) -> None:
    await port.parked()
    exit_ = exit_of(port)
    await until(lambda: exit_.pulse._ping is None, "it has answered")
    assert 0 < exit_.pool.demand.rtt < pool.FIRST_RTT_SECONDS
    before = exit_.pool.demand.rtt
    assert not exit_.ponged(b"12345678")
    assert exit_.pool.demand.rtt == before
    pulse = exit_.pulse
    pulse._ping, pulse._pinged_at = b"12345678", pulse.heard_at - 3600  # it has taken its time
    assert exit_.ponged(b"12345678")
    assert exit_.pool.demand.rtt < pool.RTT_MOST_SECONDS


async def test_a_silent_exit_is_cut_with_its_streams(tmp_path: Path) -> None:
    port = Port(tmp_path, heartbeat_seconds=BEAT_SECONDS)
    device = await port.parked()
    exit_, relay = exit_of(port), Relayed()
    exit_.begin(relay)
    await until(lambda: sum(isinstance(each, Ping) for each in device.frames) > 2, "it is asked")
    assert len(port.listener) == 1
    device.answers_pings = False
    await until(lambda: port.counters.cut == {"silent": 1})
    assert relay.was_cut
    await port.close()


async def test_streams_through_an_exit_whose_control_is_lost_go_on(port: Port) -> None:
    device = await port.parked()
    exit_, relay = exit_of(port), Relayed()
    exit_.begin(relay)
    await device.kill()
    await until(lambda: len(port.listener) == 0)
    assert not relay.was_cut
    assert not exit_.has_place


REVOKED = MarketError(Code.WORKER_UNAUTHORIZED)


@pytest.mark.parametrize("refusal", [REVOKED, None], ids=["revoked", "paused"])
@pytest.mark.parametrize("is_back", [False, True], ids=["away", "attached again"])
async def test_streams_without_control_end_when_the_device_may_carry_nothing(
    port: Port, refusal: MarketError | None, is_back: bool
) -> None:
    device = await port.parked()
    exit_, relay = exit_of(port), Relayed()
    exit_.begin(relay)
    await device.kill()
    await until(lambda: len(port.listener) == 0)
    if is_back:
        await port.parked()
    assert [each for each, _ in port.listener.detached.places()] == ["device"]
    port.listener.start()  # an exit that still carries a stream is not forgotten
    port.devices.refusal = StoreError("away")
    port.listener.recheck("device")
    await until(lambda: not port.listener.tasks)
    assert not relay.was_cut
    port.devices.refusal = refusal
    port.devices.grants["device"] = Granted("device", "owner", paused=True)
    port.listener.recheck("device")
    await until(lambda: relay.was_cut)


async def test_an_exit_that_carries_nothing_is_forgotten(port: Port) -> None:
    device = await port.parked()
    exit_, relay = exit_of(port), Relayed()
    exit_.begin(relay)
    await device.kill()
    await until(lambda: len(port.listener) == 0)
    exit_.end(relay)
    port.listener.start()
    assert port.listener.detached.places() == []


# --- permission to carry -------------------------------------------------------------------------


async def test_a_pause_in_the_account_ends_dials_under_way(port: Port) -> None:
    """A target that the device reaches later would be relayed although it may carry nothing."""
    device = await port.parked()
    device.obey = ignore
    outcomes: list[object] = []
    port.exits.dial(Wants(), Payer(), "localhost", 80, lambda *each: outcomes.append(each))
    await until(lambda: bool(device.dials))
    exit_ = exit_of(port)
    port.devices.grants["device"] = Granted("device", "owner", paused=True)
    port.listener.recheck("device")
    await until(lambda: bool(outcomes))
    assert outcomes == [(Failure.NO_EXIT, False, None)]
    assert exit_.dials == {}


async def test_a_device_that_is_paused_in_the_account_stays_and_carries_nothing(port: Port) -> None:
    device = await port.parked()
    exit_, relay = exit_of(port), Relayed()
    exit_.begin(relay)
    port.devices.grants["device"] = Granted("device", "owner", paused=True)
    port.listener.recheck("device")
    await until(lambda: relay.was_cut)
    assert not port.directory.exits
    assert not device.is_over
    port.devices.grants["device"] = Granted("device", "owner")
    port.listener.recheck("device")
    await until(lambda: bool(port.directory.exits))


async def test_a_day_has_its_bytes(port: Port) -> None:
    limits = ServiceLimits(0, 0, 1000, ())
    port.devices.grants["device"] = Granted("device", "owner", 0, limits, bytes_today=400)
    await port.parked()
    exit_, first, second = exit_of(port), Relayed(100, 200), Relayed(0, 200)
    exit_.begin(first)
    exit_.begin(second)
    exit_.end(first)
    assert exit_.has_place
    exit_.spend(0)
    assert exit_.has_place
    second.traffic = (100, 200)
    exit_.spend(0)
    assert not exit_.has_place
    exit_.spend(1)
    assert exit_.has_place
    second.traffic = (100, 1200)
    exit_.spend(1)
    assert not exit_.has_place


async def test_a_device_that_has_carried_its_day_already_carries_nothing(port: Port) -> None:
    limits = ServiceLimits(0, 0, 1000, ())
    port.devices.grants["device"] = Granted("device", "owner", 0, limits, bytes_today=1000)
    await port.device()
    assert not exit_of(port).has_place


async def test_dials_that_wait_count_as_connections(port: Port) -> None:
    port.devices.grants["device"] = Granted("device", "owner", 0, ServiceLimits(2, 0, 0, ()))
    device = port.unattached()
    device.parks, device.obey = False, ignore
    await device.attach()
    exit_ = exit_of(port)
    dials = [port.exits.dial(Wants(), Payer(), "localhost", 80, lambda *_: None) for _ in range(2)]
    await until(lambda: exit_.pool.waiting == 2)
    assert not exit_.has_place
    for each in dials:
        each.cancel()
    assert exit_.has_place


def test_a_buyer_gets_the_place_and_not_the_device() -> None:
    place = Place("de", "be", "berlin", 3320, "residential")
    text = describe("0190-device", place)
    assert text.startswith("country=de; state=be; city=berlin; asn=3320; kind=residential; id=")
    assert "0190" not in text
    assert describe("other", Place()).startswith("id=")
