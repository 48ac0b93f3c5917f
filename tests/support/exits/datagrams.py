"""How a device of a test carries datagrams: as an exit should, and as one should not."""

import asyncio
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from proxyctl.exit.carrying.datagrams import unwrapped, wrapped
from proxyctl.protocol.frames import Associate, Dialled, DialOutcome
from proxyd.wire.hosts import address_of

if TYPE_CHECKING:
    from support.exits.device import Device

LARGEST = 65_535


async def carry_datagrams(device: "Device", order: Associate) -> None:
    """Relay every datagram in both directions, without any check."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        work = stack.enter_context(device.take(order.number))
        outer = {}
        for version, family, host in ((4, socket.AF_INET, "0.0.0.0"), (6, socket.AF_INET6, "::")):
            sock = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            sock.setblocking(False)
            if version == 6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, 0))
            outer[version] = sock
        device.send(Dialled(order.number, DialOutcome.CONNECTED, 0, None, 0))
        ways = [loop.create_task(_answers(each, work)) for each in outer.values()]
        try:
            await _orders(work, outer)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _orders(work: socket.socket, outer: dict[int, socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    kept = b""
    with suppress(ConnectionError):
        while data := await loop.sock_recv(work, LARGEST):
            kept += data
            while len(kept) >= 2 and len(kept) >= (end := 2 + int.from_bytes(kept[:2])):
                host, port, payload = unwrapped(kept[2:end])
                kept = kept[end:]
                address = "127.0.0.1" if isinstance(host, str) else str(host)
                with suppress(OSError):
                    outer[6 if ":" in address else 4].sendto(payload, (address, port))


async def _answers(outer: socket.socket, work: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        readable = loop.create_future()
        loop.add_reader(outer, lambda done=readable: done.done() or done.set_result(None))
        try:
            await readable
        finally:
            loop.remove_reader(outer)
        with suppress(BlockingIOError):
            payload, sender = outer.recvfrom(LARGEST)
            await loop.sock_sendall(work, wrapped(address_of(sender[0]), sender[1], payload))
