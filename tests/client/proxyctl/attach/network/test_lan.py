"""Nothing ever reaches the network at home, counted by a sniffer; the daemon judges nothing.

The home is real as far as the kernel goes (`support/exits/home.py`), and so is the agent: a program
of its own that dials every target that its daemon orders.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.base.pythons import pythons
from support.base.waiting import until
from support.clients.datagrams import wrapped as wrapped_for_proxy
from support.daemons.process import ROOT
from support.exits.daemon import ExitDaemon
from support.exits.home import (
    DAEMON,
    DAEMON_V6,
    OTHER_LAN_V6,
    PREFIX,
    PUBLIC,
    ROUTER,
    ROUTER_V6,
    STORAGE,
    STORAGE_V6,
    TARGETS,
    Home,
    Packet,
    home,
    listener,
)

from proxyctl.attach.network import netlink
from proxyctl.attach.network.lan import NEVER_PORTS, Guard, make_guard, public_name
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.attach.relay.relays import CHOICE
from proxyctl.exit.base import names, record
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.protocol.frames import CALL, Call, DialOutcome, Seen
from proxyctl.protocol.policy import Policy

HOME_ADDRESSES = (
    ROUTER,
    STORAGE,
    "192.168.1.10",
    "192.168.1.255",
    PUBLIC,
    "0.0.0.0",
    "127.0.0.1",
    "10.0.0.1",
    "100.64.0.1",
    "169.254.169.254",
    "224.0.0.251",
    "255.255.255.255",
    ROUTER_V6,
    STORAGE_V6,
    f"{PREFIX}:10",
    OTHER_LAN_V6,
    "::",
    "::1",
    "fe80::1",
    "ff02::1",
    f"::ffff:{STORAGE}",
    "::ffff:10.0.0.1",
    f"::{STORAGE}",
    "64:ff9b::c0a8:114",
    "64:ff9b:1::c0a8:114",
    "2002:c0a8:114::1",
    "2001:0:4136:e378:8000:63bf:3f57:feeb",
    f"::ffff:{PUBLIC}",
)
HOME_NAMES = {
    "router.evil.net": [ROUTER],
    "storage.evil.net": [STORAGE],
    "zero.evil.net": ["0.0.0.0"],
    "loopback.evil.net": ["127.0.0.1", "::1"],
    "public.evil.net": [PUBLIC],
    "mapped.evil.net": ["::ffff:10.0.0.1", f"::ffff:{STORAGE}"],
    "nat64.evil.net": ["64:ff9b::c0a8:114"],
    "sixtofour.evil.net": ["2002:c0a8:114::1"],
    "global.evil.net": [STORAGE_V6, ROUTER_V6, OTHER_LAN_V6],
}
LOCAL_NAMES = (
    "router", "storage.local", "localhost", "x.localhost", "printer.lan", "fritz.home.arpa",
    "wpad", "192.168.1.20", "0xc0.0xa8.1.20", "3232235796", "127.1", "storage.evil.net.local",
)  # fmt: skip
# Only the daemon knows the public address, and no judge knows the other networks at home, which are
# assumed from the device's own: the judge that learns of these is the only one.
FROM_OUTSIDE = (
    PUBLIC, f"::ffff:{PUBLIC}", "public.evil.net", OTHER_LAN_V6, "global.evil.net"
)  # fmt: skip
REFUSED, REFUSED_NAME = DialOutcome.NOT_ALLOWED, DialOutcome.NAME_UNKNOWN
# Packets that the device must send to do its work; everything else is a finding.
RIGHTFUL = {
    Packet(ROUTER, "arp", 0),
    Packet(ROUTER, "udp", 53),
    Packet(ROUTER_V6, "solicitation", 0),
    *(Packet(each, "tcp", 80) for each in TARGETS),
}


class Alternating(Sequence[str]):
    """Another address with each look-up, which is two questions: A and AAAA."""

    def __init__(self, *answers: str) -> None:
        self.answers = [answer for answer in answers for _ in range(2)]

    def __iter__(self) -> Iterator[str]:
        self.answers.append(self.answers.pop(0))
        return iter(self.answers[-1:])

    def __getitem__(self, index):
        return self.answers[index]

    def __len__(self) -> int:
        return 1


@asynccontextmanager
async def agent(
    around: Home, folder: Path, *command: str, at: str = DAEMON, public: str = PUBLIC
) -> AsyncIterator[ExitDaemon]:
    """Run an agent on the device, attached to a daemon at an address on the internet."""
    daemon = ExitDaemon(folder, public=public)
    async with daemon.serving(listener("internet", at, 0)):
        consent = Consent(
            api="https://market.example",
            host=at,
            port=daemon.port,
            pin=daemon.pin,
            token="a worker token",
            terms="ab" * 32,
            agreed_at="",
            limits=DeviceLimits(udp=True),
        )
        record.save(folder / names.CONSENT, consent)
        process = await asyncio.create_subprocess_exec(
            *around.command(*command),
            cwd=ROOT / "client",
            env={"PATH": "/usr/sbin:/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/client:{ROOT}/tests"},
        )
        try:
            await daemon.attached()
            await daemon.park(1)
            yield daemon
        finally:
            process.terminate()
            await process.wait()


async def outcomes(daemon: ExitDaemon, hosts: Sequence[str]) -> dict[str, DialOutcome]:
    """Dial each host, as an address where it is one. Return the outcomes."""
    found = {}
    for host in hosts:
        try:
            target = (ip_address(host),)
        except ValueError:
            target = host
        dialled, (_, writer) = await daemon.dial(target, 80)
        writer.close()
        found[host] = dialled.outcome
        if len(daemon.dialled) % 16 == 0:
            daemon.give_tickets(32)
    return found


def findings(around: Home, daemon: ExitDaemon) -> set[Packet]:
    return around.sniffer.sent() - RIGHTFUL - {Packet(DAEMON, "tcp", daemon.port)}


async def besiege(around: Home, daemon: ExitDaemon, spared: Collection[str] = ()) -> None:
    """Try everything. Nothing may come through, except the targets on the internet."""
    for name, addresses in HOME_NAMES.items():
        around.names.has(name, *addresses)
    hosts = [each for each in (*HOME_ADDRESSES, *HOME_NAMES, *LOCAL_NAMES) if each not in spared]
    refused = await outcomes(daemon, hosts)
    # A name that is only known at home is answered as one that does not exist.
    expected = {host: REFUSED_NAME if host in HOME_NAMES else REFUSED for host in hosts}
    assert refused == expected
    around.names.has("mixed.evil.net", TARGETS[0], STORAGE)
    around.names.has("rebind.evil.net").addresses = Alternating(TARGETS[0], STORAGE)
    reached = await outcomes(daemon, (*TARGETS, "mixed.evil.net"))
    assert set(reached.values()) == {DialOutcome.CONNECTED}
    rebound = [await outcomes(daemon, ["rebind.evil.net"]) for _ in range(8)]
    assert {outcome for each in rebound for outcome in each.values()} == {
        DialOutcome.CONNECTED,
        REFUSED_NAME,
    }
    assert set(around.reached) == set(TARGETS)
    assert findings(around, daemon) == set()
    asked = {name for name, _ in around.names.asked}
    assert asked == {*HOME_NAMES, "mixed.evil.net", "rebind.evil.net"} - set(spared)


@pytest.mark.parametrize("python", brief(pythons()), ids=lambda path: Path(path).name)
async def test_nothing_reaches_the_home(tmp_path: Path, python: str) -> None:
    command = (python, "-m", "proxyctl", "exit", "run", "--folder", str(tmp_path))
    async with home() as around, agent(around, tmp_path, *command) as daemon:
        await besiege(around, daemon)


async def test_nothing_reaches_the_home_through_asyncio(tmp_path: Path) -> None:
    python = ("env", f"{CHOICE}=asyncio", sys.executable)
    command = (*python, "-m", "proxyctl", "exit", "run", "--folder", str(tmp_path))
    async with home() as around, agent(around, tmp_path, *command) as daemon:
        await besiege(around, daemon)


async def test_the_router_is_not_reached_at_an_address_that_is_not_known_yet(
    tmp_path: Path,
) -> None:
    command = (sys.executable, "-m", "proxyctl", "exit", "run", "--folder", str(tmp_path))
    async with (
        home() as around,
        agent(around, tmp_path, *command, at=DAEMON_V6, public=f"{PREFIX}:10") as daemon,
    ):
        around.names.has("public.evil.net", PUBLIC)
        unknown = (PUBLIC, f"::ffff:{PUBLIC}", "public.evil.net", TARGETS[0])
        assert await outcomes(daemon, (*unknown, TARGETS[1])) == {
            **dict.fromkeys(unknown, DialOutcome.NETWORK_UNREACHABLE),
            TARGETS[1]: DialOutcome.CONNECTED,
        }
        _, (_, writer) = await daemon.associate()
        for host in (PUBLIC, TARGETS[0], TARGETS[1]):
            writer.write(order(host, 80))
        last = Packet(TARGETS[1], "udp", 80)
        await until(lambda: last in around.sniffer.sent(), "the last one has left")
        assert not {each.to for each in around.sniffer.sent()} & {PUBLIC, TARGETS[0]}
        with listener("internet", DAEMON, daemon.port) as doorstep:
            await called(daemon, doorstep)
        daemon.control.send(Seen(PUBLIC))  # as behind the translator that such homes have
        assert await outcomes(daemon, (PUBLIC, "public.evil.net", *TARGETS)) == {
            PUBLIC: REFUSED,
            "public.evil.net": REFUSED_NAME,
            **dict.fromkeys(TARGETS, DialOutcome.CONNECTED),
        }
        assert PUBLIC not in {each.to for each in around.sniffer.sent()}


async def called(daemon: ExitDaemon, doorstep: socket.socket) -> None:
    """Have the daemon be called in the other family of addresses."""
    loop = asyncio.get_running_loop()
    doorstep.setblocking(False)
    daemon.control.send(Call(b"n" * 16, ip_address(DAEMON), daemon.port))
    caller, _ = await loop.sock_accept(doorstep)
    with caller:
        assert await loop.sock_recv(caller, 64) == CALL + b"n" * 16


@pytest.mark.parametrize("judge", ["policy", "surroundings", "kernel"])
async def test_the_other_judges_hold_the_targets_that_one_lets_through(
    tmp_path: Path, judge: str
) -> None:
    command = (sys.executable, "-m", "support.exits.agent", str(tmp_path), judge)
    async with home() as around, agent(around, tmp_path, *command) as daemon:
        await besiege(around, daemon, FROM_OUTSIDE if judge == "surroundings" else ())


async def test_the_sniffer_sees_the_packets_of_an_agent_without_judges(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "support.exits.agent", str(tmp_path), "all")
    async with home() as around, agent(around, tmp_path, *command) as daemon:
        reached = await outcomes(daemon, (STORAGE, PUBLIC, STORAGE_V6, "127.0.0.1"))
        assert set(reached.values()) == {DialOutcome.CONNECTED}
        assert {packet.to for packet in findings(around, daemon)} >= set(reached)


@pytest.mark.parametrize("python", brief(pythons()), ids=lambda path: Path(path).name)
async def test_no_datagram_reaches_the_home(tmp_path: Path, python: str) -> None:
    command = (python, "-m", "proxyctl", "exit", "run", "--folder", str(tmp_path))
    async with home() as around, agent(around, tmp_path, *command) as daemon:
        sent = await datagrams_to_everybody(around, daemon)
        assert findings(around, daemon) - sent == set()
        assert {name for name, _ in around.names.asked} == {*HOME_NAMES, "last.evil.net"}


@pytest.mark.parametrize("judge", ["policy", "kernel"])
async def test_the_others_hold_the_datagrams_that_one_judge_lets_through(
    tmp_path: Path, judge: str
) -> None:
    command = (sys.executable, "-m", "support.exits.agent", str(tmp_path), judge)
    async with home() as around, agent(around, tmp_path, *command) as daemon:
        sent = await datagrams_to_everybody(around, daemon)
        assert findings(around, daemon) - sent == set()


async def test_the_sniffer_sees_the_datagrams_of_an_agent_without_judges(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "support.exits.agent", str(tmp_path), "all")
    async with home() as around, agent(around, tmp_path, *command) as daemon:
        sent = await datagrams_to_everybody(around, daemon)
        found = {packet.to for packet in findings(around, daemon) - sent}
        assert {STORAGE, ROUTER, PUBLIC, STORAGE_V6} <= found


async def datagrams_to_everybody(around: Home, daemon: ExitDaemon) -> set[Packet]:
    """Send to everything at home, and last to the internet. Return the packets that may be sent."""
    for name, addresses in HOME_NAMES.items():
        around.names.has(name, *addresses)
    around.names.has("last.evil.net", TARGETS[0])
    dialled, (_, writer) = await daemon.associate()
    assert dialled.outcome is DialOutcome.CONNECTED
    hosts = (*HOME_ADDRESSES, *LOCAL_NAMES)
    orders = [order(host, port) for host in hosts for port in (80, 53, 1900, 5353)]
    # In one piece with a name that is looked up: names without a look-up must not take its room.
    first, *others = (*HOME_NAMES, "last.evil.net")
    writer.write(b"".join([*orders, order(first, 80)]))
    for name in (first, *others):
        if name != first:
            writer.write(order(name, 80))
        await until(lambda name=name: any(each == name for each, _ in around.names.asked))
    last = Packet(TARGETS[0], "udp", 80)
    await until(lambda: last in around.sniffer.sent(), "the last one has left")
    writer.write(order(TARGETS[1], 80))
    await until(lambda: Packet(TARGETS[1], "udp", 80) in around.sniffer.sent())
    writer.close()
    return {last, Packet(TARGETS[1], "udp", 80)}


def order(host: str, port: int) -> bytes:
    data = wrapped_for_proxy(host, port, b"are you there?")
    return len(data).to_bytes(2, "big") + data


def guard_at(*networks: str, allow: tuple[str, ...] = ()) -> Guard:
    surroundings = Surroundings(lambda: {ip_network(each) for each in networks}, list)
    surroundings.learn_public(PUBLIC)
    return Guard(
        policy=Policy(blocked_ports=NEVER_PORTS),
        surroundings=surroundings,
        kernel=None,
        allow=[ip_network(each) for each in allow],
    )


@cases("port", sorted(NEVER_PORTS))
def test_some_ports_are_never_dialled(port: int) -> None:
    opened = guard_at(allow=("45.33.32.0/24",))
    assert not opened.permits(ip_address("45.33.32.156"), port)
    assert not guard_at().permits(ip_address("45.33.32.156"), port)
    assert guard_at().permits(ip_address("45.33.32.156"), 443)


def test_an_opened_network_is_that_one_and_no_other() -> None:
    opened = guard_at("192.168.1.0/24", allow=("127.0.0.0/8",))
    assert opened.permits(ip_address("127.0.0.1"), 9_999)
    assert opened.permits(ip_address("::ffff:127.0.0.1"), 9_999)
    assert not opened.permits(ip_address("192.168.1.1"), 443)
    assert not opened.permits(ip_address("::1"), 443)


def test_a_connected_socket_is_judged_by_its_peer() -> None:
    guard = guard_at("45.33.32.0/24")
    assert not guard.permits_peer("45.33.32.156", 80)
    assert not guard.permits_peer("fe80::1%eth0", 80)
    assert not guard.permits_peer("no address", 80)
    assert guard.permits_peer("93.184.215.14", 80)


def test_a_kernel_that_cannot_answer_permits_nothing() -> None:
    class Mute:
        def leads_out(self, address: object) -> bool:
            raise OSError

    guard = Guard(policy=Policy(), surroundings=Surroundings(set), kernel=Mute(), allow=())
    assert not guard.permits(ip_address("45.33.32.156"), 443)


def test_a_kernel_that_may_not_be_asked_is_not_among_the_judges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> bool:
        raise PermissionError

    monkeypatch.setattr(netlink.Routes, "leads_out", refused)
    guard, routes = make_guard()
    assert routes is None
    guard.surroundings.learn_public(PUBLIC)
    assert guard.permits(ip_address("45.33.32.156"), 443)
    assert not guard.permits(ip_address("192.168.1.1"), 443)


def test_this_machine_is_behind_its_own_guard() -> None:
    guard, routes = make_guard()
    try:
        assert not guard.permits(ip_address("127.0.0.1"), 80)
        assert not guard.permits(ip_address("10.0.0.1"), 80)
    finally:
        if routes is not None:
            routes.close()


@cases("name", LOCAL_NAMES)
def test_names_of_the_home_are_not_looked_up(name: str) -> None:
    assert public_name(name) is None


ODD_NAMES = (
    "", ".", "..", "a..b", "-a.net", "a-.net", "a b.net", "\u00e4.net", "a.net\0",
    "a" * 64 + ".net", ".".join(["abcdefg"] * 32) + ".net", "x.onion", "1.in-addr.arpa", "a.test",
)  # fmt: skip


@cases("name", ODD_NAMES)
def test_a_local_name_is_not_looked_up(name: str) -> None:
    assert public_name(name) is None


def test_a_public_name_is_looked_up_as_it_is() -> None:
    assert public_name("WWW.Example.org") == "www.example.org."
    assert public_name("_dmarc.example.org.") == "_dmarc.example.org."
