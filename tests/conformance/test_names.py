"""Targets given by name, with a real name server: what a client is told, what is never dialled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dnslib import RCODE
from support.base.waiting import until
from support.clients.socks import Client, tunnel
from support.daemons.service import Bought, Service, running_in
from support.targets import targets
from support.targets.nameserver import NameServer, nameserver

ALLOWED = ["127.0.0.0/8", "::1/128"]
FORBIDDEN = "127.0.0.66"
SUCCEEDED, GENERAL, NOT_ALLOWED, HOST_UNREACHABLE, TIMED_OUT = 0, 1, 2, 4, 6


class Named:
    """A running daemon that asks a name server of ours, and a session."""

    def __init__(self, service: Service, names: NameServer, bought: Bought) -> None:
        self.service = service
        self.names = names
        self.bought = bought

    async def outcome(self, host: str, port: int) -> int:
        """Ask for a target, and return the reply code."""
        client = await Client.open(self.service.proxy_port)
        try:
            assert await client.log_in(self.bought.username, self.bought.password) == 0
            return await client.connect(host, port)
        finally:
            await client.close()


@asynccontextmanager
async def named_in(folder: Path, **egress: object) -> AsyncIterator[Named]:
    """Run a daemon with these egress settings."""
    async with nameserver() as names:
        settings = {"allow": ALLOWED, "nameservers": [names.address], **egress}
        async with running_in(folder, egress=settings) as service:
            person = await service.person(usd="10")
            yield Named(service, names, await service.buy(person))
            await service.assert_audit()


@pytest.fixture
async def named(tmp_path: Path) -> AsyncIterator[Named]:
    async with named_in(tmp_path, deny=[f"{FORBIDDEN}/32"]) as made:
        yield made


async def test_a_name_is_reached_in_any_case_of_letters(named: Named) -> None:
    named.names.has("target.example", "127.0.0.1", ttl=60)
    async with targets.echo() as target:
        for name in ("target.example", "TARGET.example", "target.example."):
            bought = named.bought
            client = await tunnel(
                named.service.proxy_port, bought.username, bought.password, name, target.port
            )
            await client.send(b"ping")
            assert await client.receive(4) == b"ping"
            await client.close()
    assert named.names.times("target.example") == 1


async def test_the_family_without_a_listener_is_passed_over(named: Named) -> None:
    named.names.has("target.example", "127.0.0.1", "::1", ttl=60)
    async with targets.echo() as target:
        assert await named.outcome("target.example", target.port) == SUCCEEDED


async def test_a_name_that_turns_to_a_forbidden_address_gets_nowhere(named: Named) -> None:
    named.names.has("rebound.example", "127.0.0.1", ttl=0)
    async with targets.echo() as target, targets.echo(FORBIDDEN) as inside:
        assert await named.outcome("rebound.example", target.port) == SUCCEEDED
        named.names.has("rebound.example", FORBIDDEN, ttl=0)

        async def is_refused() -> bool:
            return await named.outcome("rebound.example", inside.port) == NOT_ALLOWED

        await until(is_refused, "the new address is seen")
        assert inside.accepted == 0


async def test_forbidden_addresses_among_permitted_ones_are_never_dialled(named: Named) -> None:
    async with targets.echo(FORBIDDEN) as inside:
        named.names.has("mixed.example", FORBIDDEN, "169.254.169.254", "127.0.0.5", "fe80::1")
        assert await named.outcome("mixed.example", inside.port) == 5  # 127.0.0.5 refused
        assert inside.accepted == 0


@pytest.mark.parametrize(
    "name", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "0x7f000001", "127.0.0.1.", "0"]
)
async def test_no_spelling_of_an_address_slips_past_the_policy(name: str, tmp_path: Path) -> None:
    async with named_in(tmp_path, allow=[]) as named, targets.echo() as target:
        assert await named.outcome(name, target.port) == NOT_ALLOWED
        assert target.accepted == 0
        assert named.names.asked == []


async def test_each_way_that_a_look_up_fails_has_its_reply(tmp_path: Path) -> None:
    async with named_in(tmp_path, lookup_seconds=3.0) as named:
        named.names.has("broken.example", rcode=RCODE.SERVFAIL)
        named.names.has("mute.example", mute=True)
        assert await named.outcome("nosuch.example", 80) == HOST_UNREACHABLE
        assert await named.outcome("broken.example", 80) == GENERAL
        assert await named.outcome("mute.example", 80) == TIMED_OUT


async def test_a_silent_name_server_holds_up_neither_addresses_nor_known_names(
    named: Named,
) -> None:
    named.names.has("known.example", "127.0.0.1", ttl=60)
    named.names.has("mute.example", mute=True)
    async with targets.echo() as target:
        assert await named.outcome("known.example", target.port) == SUCCEEDED
        stuck = [asyncio.create_task(named.outcome("mute.example", 80)) for _ in range(20)]
        await until(lambda: named.service.daemon.gateway.dialing == 20, "all of them wait")
        assert await named.outcome("127.0.0.1", target.port) == SUCCEEDED
        assert await named.outcome("known.example", target.port) == SUCCEEDED
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_the_look_ups_of_one_session_leave_room_for_those_of_another(named: Named) -> None:
    service, resolver = named.service, named.service.daemon.helpers.resolver
    resolver._slots.most = 4
    other = await service.buy(await service.person(usd="10"))
    held = [named.names.has(f"{number}.example", held=True) for number in range(4)]
    waiting = [asyncio.create_task(named.outcome(f"{number}.example", 80)) for number in range(2)]
    await until(lambda: resolver.lookups == 2, "both are looked up")
    assert await named.outcome("2.example", 80) == GENERAL
    named.names.has("target.example", "127.0.0.1")
    async with targets.echo() as target:
        client = await tunnel(
            service.proxy_port, other.username, other.password, "target.example", target.port
        )
        await client.close()
    for zone in held:
        zone.held.set()
    assert await asyncio.gather(*waiting) == [HOST_UNREACHABLE] * 2
    assert resolver._slots.taken == 0


async def test_a_daemon_closes_while_names_are_looked_up(tmp_path: Path) -> None:
    async with named_in(tmp_path) as named:
        named.names.has("mute.example", mute=True)
        stuck = asyncio.create_task(named.outcome("mute.example", 80))
        await until(lambda: named.names.times("mute.example") == 1)
        await named.service.daemon.helpers.resolver.close()
        assert await stuck == GENERAL
