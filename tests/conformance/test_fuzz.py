"""Made-up handshakes over real sockets: a live daemon answers, forgets them, and goes on selling.

Bounded here; `make fuzz-wire` does more (PROXYD_FUZZ_SOCKETS), and others (PROXYD_FUZZ_START).
"""

import asyncio
import gc
import os
import tracemalloc
from collections import Counter
from ipaddress import ip_network
from pathlib import Path

import pytest
from support.base.names import Localhost, look_names_up_by
from support.base.waiting import until
from support.clients.conversations import Conversation, Conversations
from support.clients.socks import Client, tunnel
from support.daemons.process import ROOT
from support.daemons.service import Bought, Service, running_in
from support.targets import targets
from support.targets.targets import Target

HANDSHAKES = int(os.environ.get("PROXYD_FUZZ_SOCKETS", "150"))
START = int(os.environ.get("PROXYD_FUZZ_START", "0"))
WARM_UP = 1_000
AT_ONCE = 40
SEGMENTS_MAX = 20
ANSWER_SECONDS = 30
GROWTH_MAX_BYTES = 200_000
HOST = "127.77.77.1"  # the only address that can be reached: every other target is refused
OTHERS = [
    *(str(each) for each in ip_network("0.0.0.0/0").address_exclude(ip_network(f"{HOST}/32"))),
    "::/0",
]
OURS = ("Handshake", "ClientConnection", "Relay", "Association", "Dial", "Socks5", "Http")


async def speak(port: int, conversation: Conversation, number: int) -> None:
    """Send a conversation, and leave in one of three ways."""
    client = await Client.open(port)
    try:
        *first, last = [*conversation.segments()] or [b""]
        for segment in first[:SEGMENTS_MAX]:
            await client.send(segment)
            await asyncio.sleep(0)
        await client.send(b"".join(first[SEGMENTS_MAX:]) + last)
        if number % 4 == 0:
            client.reset()
        elif number % 4 > 1:
            client.end()
            async with asyncio.timeout(ANSWER_SECONDS):
                await client.rest()
    except TimeoutError as error:
        error.add_note(f"conversation {number}: {conversation}")
        raise
    except ConnectionError:
        pass  # it is turned away before the end of its message
    finally:
        await client.close()


async def speak_all(service: Service, conversations: Conversations, numbers: range) -> None:
    """Let many clients speak, some at once, and wait until none of them is left."""
    left = iter(numbers)

    async def some() -> None:
        for number in left:
            await speak(service.proxy_port, conversations.number(number), number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())
    gateway = service.daemon.gateway
    await until(lambda: gateway.connections == 0, "no connection is left")
    await until(lambda: len(gateway.closer) == 0, "no socket is left to close")


def descriptors() -> int:
    """Count the descriptors that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def held() -> int:
    """Return how many bytes the daemon's own code has allocated, and not let go."""
    gc.collect()
    rooms = tuple(str(ROOT / room) for room in ("proxyd", "market", "storage"))
    found = tracemalloc.take_snapshot().statistics("filename")
    return sum(each.size for each in found if each.traceback[0].filename.startswith(rooms))


def alive() -> Counter[str]:
    """Count the objects of connections that still exist."""
    gc.collect()
    kinds = Counter(
        type(each).__name__
        for each in gc.get_objects()
        if str(getattr(type(each), "__module__", "")).startswith("proxyd.")
    )
    return Counter({kind: kinds[kind] for kind in OURS if kinds[kind]})


async def is_served(service: Service, bought: Bought, target: Target) -> None:
    """See that a good client is served."""
    client = await tunnel(
        service.proxy_port, bought.username, bought.password, target.host, target.port
    )
    await client.send(b"hello")
    assert await client.receive(5) == b"hello"
    client.end()
    assert await client.rest() == b""
    await client.close()


@pytest.mark.long
@pytest.mark.timeout(0)
async def test_made_up_handshakes_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_names_up_by(monkeypatch, Localhost(HOST))
    egress = {"allow": [f"{HOST}/32"], "deny": OTHERS}
    async with running_in(tmp_path, egress=egress) as service, targets.echo(HOST) as target:
        bought = await service.buy(await service.person(usd="10"))
        shown = bought.username.encode(), bought.password.encode()
        conversations = Conversations(*shown, target.host, target.port)
        tracemalloc.start()
        try:
            numbers = range(START, START + WARM_UP + HANDSHAKES)
            await speak_all(service, conversations, numbers[:WARM_UP])
            reached, open_before, held_before = target.accepted, descriptors(), held()
            await speak_all(service, conversations, numbers[WARM_UP:])
            assert target.accepted > reached + HANDSHAKES / 20, "hardly anybody got through"
            await until(lambda: descriptors() <= open_before, "no descriptor is left")
            assert held() <= held_before + GROWTH_MAX_BYTES
        finally:
            tracemalloc.stop()
        assert alive() == {}
        await is_served(service, bought, target)
        await service.assert_audit()
