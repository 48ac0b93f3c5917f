"""A home in network namespaces: a device, a router, another machine, and the internet.

    device 192.168.1.10 ---+
                           +--- router 192.168.1.1 ... 93.184.220.2 --- internet
    storage 192.168.1.20 --+

The IPv6 network at home has global addresses, and the router has a second network of them, and no
link-local ones, so that the address of each packet identifies its target. The router also answers
at its public address from inside, and is the home's name server. Everything at home listens on port
80, and a sniffer on the device sees every packet that it sends.
"""

import asyncio
import ctypes
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest

from support.targets.nameserver import NameServer

NAMES = {
    room: f"exit{os.getpid()}{room[0]}" for room in ("device", "router", "storage", "internet")
}
PUBLIC = "93.184.220.2"  # the router's
DAEMON, DAEMON_V6 = "93.184.220.1", "2a02:26f0:10::1"
TARGETS = ("45.33.32.156", "2600:3c01::f03c")
ROUTER, STORAGE = "192.168.1.1", "192.168.1.20"
PREFIX = "2a02:2455:1234:5600:"
ROUTER_V6, STORAGE_V6 = f"{PREFIX}:1", f"{PREFIX}:20"
OTHER_LAN_V6 = "2a02:2455:1234:5601::1"

_SETTING = """
device link add uplink type veth peer name device netns {router}
storage link add uplink type veth peer name storage netns {router}
internet link add uplink type veth peer name wan netns {router}
router link add lan type bridge
router link set dev device master lan
router link set dev storage master lan
router link set dev lan addrgenmode none
device link set dev uplink addrgenmode none
device link set dev lo up
router link set dev lo up
storage link set dev lo up
internet link set dev lo up
router link set dev device up
router link set dev storage up
router link set dev lan up
router link set dev wan up
device link set dev uplink up
storage link set dev uplink up
internet link set dev uplink up
router address add 192.168.1.1/24 dev lan
router address add {prefix}:1/64 dev lan nodad
router address add 2a02:2455:1234:5601::1/64 dev lo nodad
router address add 93.184.220.2/24 dev wan
router address add 2a02:26f0:10::2/64 dev wan nodad
device address add 192.168.1.10/24 dev uplink
device address add {prefix}:10/64 dev uplink nodad
device route add default via 192.168.1.1
device route add default via {prefix}:1
storage address add 192.168.1.20/24 dev uplink
storage address add {prefix}:20/64 dev uplink nodad
storage route add default via 192.168.1.1
internet address add 93.184.220.1/24 dev uplink
internet address add 2a02:26f0:10::1/64 dev uplink nodad
internet address add 45.33.32.156/32 dev lo
internet address add 2600:3c01::f03c/128 dev lo nodad
internet route add 192.168.1.0/24 via 93.184.220.2
internet route add 2a02:2455:1234:5600::/56 via 2a02:26f0:10::2
router route add default via 93.184.220.1
router route add default via 2a02:26f0:10::1
"""
_FORWARDING = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 3
_OUTGOING = 4  # packet(7): a frame that this machine sends
# ICMPv6 about the links of a machine (RFC 4861, RFC 3810): it has no target.
_LINK_TALK = (133, 136, 143)
_SOLICITATION = 135


class Packet(NamedTuple):
    """A packet that the device sent: its address, its protocol, and its port (0: none)."""

    to: str
    protocol: str
    port: int


class Sniffer:
    """Everything that left the device, loopback included."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._packets: list[Packet] = []

    def sent(self) -> set[Packet]:
        """Return the packets that were sent since it began."""
        with suppress(BlockingIOError):
            while True:
                data, about = self._socket.recvfrom(65_536)
                if about[2] == _OUTGOING:
                    self._packets += [each for each in [_packet(about[1], data)] if each]
        return set(self._packets)


class Home:
    """The namespaces, while they are there."""

    def __init__(self, nameserver: NameServer, sniffer: Sniffer) -> None:
        self.names = nameserver
        self.sniffer = sniffer
        self.reached: list[str] = []

    def command(self, *command: str) -> list[str]:
        """Return a command that runs on the device."""
        return ["ip", "netns", "exec", NAMES["device"], *command]


def within(room: str, make: Callable[[], socket.socket]) -> socket.socket:
    """Make a socket inside a namespace, by a thread that goes there."""
    made: list[socket.socket] = []

    def go() -> None:
        descriptor = os.open(f"/run/netns/{NAMES[room]}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            made.append(make())
        finally:
            os.close(descriptor)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    return made[0]


def listener(room: str, host: str, port: int) -> socket.socket:
    """Listen inside a namespace."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return within(room, lambda: socket.create_server((host, port), family=family))


@asynccontextmanager
async def home() -> AsyncIterator[Home]:
    """Build the home, and take it down; skips the test where that is not possible."""
    with _namespaces(), ExitStack() as stack:
        sniffing = stack.enter_context(within("device", _sniffing))
        built = Home(NameServer(), Sniffer(sniffing))

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            built.reached.append(writer.get_extra_info("sockname")[0])
            writer.write(b"hello")
            writer.close()

        servers = [
            await asyncio.start_server(answer, sock=listener(room, host, 80))
            for room, host in (
                *(("internet", target) for target in TARGETS),
                *((room, host) for room in ("router", "storage", "device") for host in ("::", "")),
            )
        ]
        asked = within("router", _resolving)
        try:
            async with built.names.answering(asked):
                yield built
        finally:
            for server in servers:
                server.close()


@contextmanager
def _namespaces() -> Iterator[None]:
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs Linux, root and iproute2: network namespaces")
    try:
        for name in NAMES.values():
            done = subprocess.run(
                ["ip", "netns", "add", name], capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        _furnish()
        yield
    finally:
        for name in NAMES.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        shutil.rmtree(f"/etc/netns/{NAMES['device']}", ignore_errors=True)
        with suppress(OSError):
            Path("/etc/netns").rmdir()


def _furnish() -> None:
    for line in _SETTING.format(router=NAMES["router"], prefix=PREFIX).strip().splitlines():
        room, *words = line.split()
        version = ["-6"] if ":" in line else []
        subprocess.run(["ip", "-n", NAMES[room], *version, *words], check=True)
    for setting in _FORWARDING:
        switch = f"echo 1 > /proc/sys/{setting}"
        subprocess.run(["ip", "netns", "exec", NAMES["router"], "sh", "-c", switch], check=True)
    resolver = Path("/etc/netns") / NAMES["device"]
    resolver.mkdir(parents=True)
    (resolver / "resolv.conf").write_text(f"nameserver {ROUTER}\noptions timeout:1 attempts:2\n")
    (resolver / "nsswitch.conf").write_text("hosts: files dns\n")


def _sniffing() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    sock.setblocking(False)
    return sock


def _resolving() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((ROUTER, 53))
    sock.setblocking(False)
    return sock


def _packet(protocol: int, frame: bytes) -> Packet | None:
    """Return the packet of a frame, or None for a frame that concerns only the machine's links."""
    data = frame[14:]
    if protocol == 0x0806:
        return Packet(str(ip_address(data[24:28])), "arp", 0)
    if protocol == 0x0800:
        size = (data[0] & 15) * 4
        return _transport(str(ip_address(data[16:20])), data[9], data[size:])
    if protocol == 0x86DD:
        to, number, rest = str(ip_address(data[24:40])), data[6], data[40:]
        if number == 0:  # hop-by-hop options, of a multicast report
            number, rest = rest[0], rest[(rest[1] + 1) * 8 :]
        if number == 58 and rest[0] in _LINK_TALK:
            return None
        if number == 58 and rest[0] == _SOLICITATION:
            return Packet(str(ip_address(rest[8:24])), "solicitation", 0)
        return _transport(to, number, rest)
    return None


def _transport(to: str, number: int, rest: bytes) -> Packet:
    name = {6: "tcp", 17: "udp"}.get(number, str(number))
    port = struct.unpack_from("!H", rest, 2)[0] if number in (6, 17) else 0
    return Packet(to, name, port)
