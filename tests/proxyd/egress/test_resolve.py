"""Looking names up, at a real name server on loopback."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from dnslib import RCODE
from support.base.waiting import until
from support.targets.nameserver import NameServer, nameserver

from proxyd.egress import resolve
from proxyd.egress.dns_cache import NEGATIVE_SECONDS
from proxyd.egress.resolve import (
    ADDRESSES_MAX,
    DnsResolver,
    LookupFailedError,
    LookupTimedOutError,
    NameNotFoundError,
)

ONE = IPv4Address("192.0.2.1")
TWO = IPv4Address("192.0.2.2")
ENVIRONMENT_HOSTS = 1 << 8  # ARES_AI_ENVHOSTS: the hosts file is the one that CARES_HOSTS names


class Asking:
    """A name server, a resolver that asks it, and the resolver's clock."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.at = 1000.0
        self.resolver = DnsResolver([server.address], now=lambda: self.at)


@asynccontextmanager
async def asking_with(**bounds: float) -> AsyncIterator[Asking]:
    """Build one whose resolver has these bounds."""
    async with nameserver() as server:
        made = Asking(server)
        made.resolver = DnsResolver([server.address], now=lambda: made.at, **bounds)
        try:
            yield made
        finally:
            await made.resolver.close()


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    async with asking_with() as made:
        yield made


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hosts file in the place of the machine's own."""
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n")
    monkeypatch.setenv("CARES_HOSTS", str(path))
    monkeypatch.setattr(resolve, "_ADDRINFO_FLAGS", ENVIRONMENT_HOSTS)
    return path


async def test_both_families_are_found_and_ipv6_comes_first(asking: Asking) -> None:
    asking.server.has("a.example", "192.0.2.1", "192.0.2.2", "2001:db8::1", ttl=60)
    found = await asking.resolver.resolve("a.example")
    assert found[0] == IPv6Address("2001:db8::1")
    assert set(found[1:]) == {ONE, TWO}
    assert sorted(asking.server.asked) == [("a.example", "A"), ("a.example", "AAAA")]


async def test_case_and_the_last_dot_make_no_other_name(asking: Asking) -> None:
    asking.server.has("xn--bcher-kva.example", "192.0.2.1", ttl=60)
    for name in ("XN--bcher-kva.EXAMPLE", "xn--bcher-kva.example.", "xn--BCHER-kva.example"):
        assert await asking.resolver.resolve(name) == [ONE]
        assert asking.resolver.cached(name) == [ONE]
    assert asking.server.times("xn--bcher-kva.example") == 1


async def test_a_name_that_leads_over_another_holds_as_long_as_both(asking: Asking) -> None:
    asking.server.has("end.example", "192.0.2.1", ttl=600)
    asking.server.has("alias.example", cname="end.example", ttl=30)
    assert await asking.resolver.resolve("alias.example") == [ONE]
    asking.at += 29.9
    assert asking.resolver.cached("alias.example") == [ONE]
    asking.at += 0.1
    assert asking.resolver.cached("alias.example") is None


async def test_a_known_name_is_not_asked_for_again_until_its_time_is_over(asking: Asking) -> None:
    asking.server.has("a.example", "192.0.2.1", ttl=0)
    assert asking.resolver.cached("a.example") is None
    assert await asking.resolver.resolve("a.example") == [ONE]
    asking.server.has("a.example", "192.0.2.2", ttl=0)
    asking.at += 0.9  # an answer is kept a second at least
    assert await asking.resolver.resolve("a.example") == [ONE]
    assert asking.server.times("a.example") == 1
    asking.at += 0.1
    assert await asking.resolver.resolve("a.example") == [TWO]
    assert asking.server.times("a.example") == 2


async def test_a_missing_name_is_remembered_for_a_moment(asking: Asking) -> None:
    for _ in range(2):
        with pytest.raises(NameNotFoundError, match=r"no\.example"):
            await asking.resolver.resolve("no.example")
    with pytest.raises(NameNotFoundError):
        asking.resolver.cached("no.example")
    assert asking.server.times("no.example") == 1
    asking.server.has("no.example", "192.0.2.1")
    asking.at += NEGATIVE_SECONDS
    assert asking.resolver.cached("no.example") is None
    assert await asking.resolver.resolve("no.example") == [ONE]


async def test_a_name_without_addresses_is_not_found(asking: Asking) -> None:
    asking.server.has("mail.example")
    with pytest.raises(NameNotFoundError):
        await asking.resolver.resolve("mail.example")


async def test_the_memory_of_the_library_is_soon_cleared() -> None:
    async with asking_with(forget_seconds=0.05) as asking:
        asking.server.has("late.example")  # no address yet: the library alone would keep it an hour

        async def appears() -> bool:
            asking.at += NEGATIVE_SECONDS
            try:
                return await asking.resolver.resolve("late.example") == [ONE]
            except NameNotFoundError:
                return False

        assert not await appears()
        asking.server.has("late.example", "192.0.2.1")
        await until(appears, "the address is seen")


async def test_the_remembered_names_are_bounded() -> None:
    async with asking_with(names_max=2) as asking:
        for name in ("a.example", "b.example", "c.example"):
            asking.server.has(name, "192.0.2.1", ttl=60)
            await asking.resolver.resolve(name)
        known = [asking.resolver.cached(f"{letter}.example") for letter in "abc"]
        assert known == [None, [ONE], [ONE]]


async def test_the_taken_addresses_are_bounded(asking: Asking) -> None:
    many = [f"192.0.2.{n}" for n in range(1, 101)]
    asking.server.has("many.example", *many, truncated=True)
    assert len(await asking.resolver.resolve("many.example")) == ADDRESSES_MAX


async def test_look_ups_of_one_name_that_come_together_are_one(asking: Asking) -> None:
    zone = asking.server.has("a.example", "192.0.2.1", held=True)
    async with asyncio.TaskGroup() as group:
        names = ["a.example", "A.example", "a.example."] * 10
        tasks = [group.create_task(asking.resolver.resolve(name)) for name in names]
        await until(lambda: asking.server.times("a.example") == 1)
        assert asking.resolver.lookups == 1
        zone.held.set()
    assert [task.result() for task in tasks] == [[ONE]] * 30
    assert asking.server.times("a.example") == 1
    assert asking.resolver.lookups == 0


async def test_a_caller_that_leaves_does_not_disturb_the_others(asking: Asking) -> None:
    zone = asking.server.has("a.example", "192.0.2.1", held=True)
    first, second, third = (
        asyncio.create_task(asking.resolver.resolve("a.example")) for _ in range(3)
    )
    await until(lambda: asking.server.times("a.example") == 1)
    first.cancel()
    third.cancel()
    zone.held.set()
    assert await second == [ONE]
    assert (await asyncio.gather(first, third, return_exceptions=True))[0].__class__ is (
        asyncio.CancelledError
    )


async def test_an_answer_without_waiting_callers_is_still_remembered(asking: Asking) -> None:
    for name, outcome in (("a.example", [ONE]), ("failing.example", None)):
        rcode = RCODE.NOERROR if outcome else RCODE.SERVFAIL
        zone = asking.server.has(name, "192.0.2.1", ttl=60, rcode=rcode, held=True)
        waiting = asyncio.create_task(asking.resolver.resolve(name))
        await until(lambda name=name: asking.server.times(name) == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        zone.held.set()
        await until(lambda: asking.resolver.lookups == 0)
        assert asking.resolver.cached(name) == outcome


async def test_more_look_ups_than_are_allowed_fail_and_the_others_go_on() -> None:
    async with asking_with(lookups_max=1) as asking:
        zone = asking.server.has("a.example", "192.0.2.1", held=True)
        asking.server.has("b.example", "192.0.2.2")
        waiting = [asyncio.create_task(asking.resolver.resolve("a.example")) for _ in range(2)]
        await until(lambda: asking.server.times("a.example") == 1)
        with pytest.raises(LookupFailedError, match="1 names are being looked up"):
            await asking.resolver.resolve("b.example")
        zone.held.set()
        assert await asyncio.gather(*waiting) == [[ONE], [ONE]]
        assert await asking.resolver.resolve("b.example") == [TWO]


@pytest.mark.parametrize("rcode", [RCODE.SERVFAIL, RCODE.REFUSED, RCODE.NOTIMP])
async def test_a_failing_name_server_is_no_missing_name_and_forgotten(
    rcode: int, asking: Asking
) -> None:
    asking.server.has("a.example", rcode=rcode)
    with pytest.raises(LookupFailedError, match=r"a\.example"):
        await asking.resolver.resolve("a.example")
    asking.server.has("a.example", "192.0.2.1")
    assert asking.resolver.cached("a.example") is None
    assert await asking.resolver.resolve("a.example") == [ONE]


async def test_a_silent_name_server_times_out_and_others_are_served_meanwhile() -> None:
    async with asking_with(lookup_seconds=1.0) as asking:
        asking.server.has("mute.example", mute=True)
        asking.server.has("a.example", "192.0.2.1")
        waiting = asyncio.create_task(asking.resolver.resolve("mute.example"))
        await until(lambda: asking.server.times("mute.example") == 1)
        assert await asking.resolver.resolve("a.example") == [ONE]
        with pytest.raises(LookupTimedOutError, match=r"mute\.example"):
            await waiting
        assert asking.resolver.cached("mute.example") is None


async def test_a_late_answer_serves_the_next_caller() -> None:
    async with asking_with(lookup_seconds=0.1) as asking:
        zone = asking.server.has("slow.example", "192.0.2.1", ttl=60, held=True)
        with pytest.raises(LookupTimedOutError):
            await asking.resolver.resolve("slow.example")
        zone.held.set()
        await until(lambda: asking.resolver.lookups == 0)
        assert asking.resolver.cached("slow.example") == [ONE]


async def test_the_library_gives_up_by_itself() -> None:
    async with asking_with(try_seconds=0.05) as asking:
        asking.server.has("mute.example", mute=True)
        with pytest.raises(LookupTimedOutError):
            await asking.resolver.resolve("mute.example")
        assert asking.resolver.lookups == 0


async def test_a_dead_name_server_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "resolver")
    at = 1000.0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dead:
        dead.bind(("127.0.0.1", 0))
        resolver = DnsResolver([f"127.0.0.1:{dead.getsockname()[1]}"], now=lambda: at)
    for name in ("a.example", "b.example"):
        with pytest.raises(LookupFailedError):
            await resolver.resolve(name)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "no name server answers"
    ]
    at += resolve.COMPLAINT_PAUSE_SECONDS
    with pytest.raises(LookupFailedError):
        await resolver.resolve("a.example")
    assert len(caplog.records) == 2
    await resolver.close()


async def test_the_next_name_server_is_asked_when_one_is_dead() -> None:
    async with nameserver() as server:
        server.has("a.example", "192.0.2.1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dead:
            dead.bind(("127.0.0.1", 0))
            gone = f"127.0.0.1:{dead.getsockname()[1]}"
        resolver = DnsResolver([gone, server.address])
        assert await resolver.resolve("a.example") == [ONE]
        await resolver.close()


async def test_a_truncated_answer_is_asked_for_again_over_tcp(asking: Asking) -> None:
    asking.server.has("long.example", "192.0.2.1", truncated=True)
    assert await asking.resolver.resolve("long.example") == [ONE]
    assert ("long.example", "A") in asking.server.asked
    assert ("long.example", "A") in asking.server.asked_tcp


@pytest.mark.usefixtures("hosts")
async def test_localhost_is_this_machine_without_a_query(asking: Asking) -> None:
    for name in ("localhost", "LOCALHOST.", "printer.localhost"):
        found = await asking.resolver.resolve(name)
        assert found == [IPv6Address("::1"), IPv4Address("127.0.0.1")]
    assert asking.server.asked == []


async def test_the_hosts_file_wins_without_a_query(asking: Asking, hosts: Path) -> None:
    hosts.write_text("192.0.2.2 a.example printer\n2001:db8::2 six.example\n")
    asking.server.has("a.example", "192.0.2.1", "2001:db8::1")
    for name in ("a.example", "printer"):
        assert await asking.resolver.resolve(name) == [TWO]
    assert await asking.resolver.resolve("six.example") == [IPv6Address("2001:db8::2")]
    assert asking.server.asked == []


async def test_search_domains_are_not_applied(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALDOMAIN", "corp.example")
    asking.server.has("printer.corp.example", "192.0.2.1")
    with pytest.raises(NameNotFoundError):
        await asking.resolver.resolve("printer")
    assert {name for name, _ in asking.server.asked} == {"printer"}


async def test_aliases_of_the_environment_are_not_applied(
    asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aliases = tmp_path / "aliases"
    aliases.write_text("printer a.example\n")
    monkeypatch.setenv("HOSTALIASES", str(aliases))
    asking.server.has("a.example", "192.0.2.1")
    with pytest.raises(NameNotFoundError):
        await asking.resolver.resolve("printer")


@pytest.mark.parametrize("name", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "0X7F000001"])
async def test_the_old_spellings_of_an_address_are_that_address(name: str, asking: Asking) -> None:
    asking.server.has(name.lower(), "192.0.2.1")
    assert asking.resolver.cached(name) == [IPv4Address("127.0.0.1")]
    assert await asking.resolver.resolve(name) == [IPv4Address("127.0.0.1")]
    assert asking.server.asked == []


@pytest.mark.parametrize("name", ["1.2.3.4.5", "example.1", "nosuch.invalid", "a\0b", "ü.example"])
async def test_a_text_that_cannot_be_a_name_is_not_looked_up(name: str, asking: Asking) -> None:
    with pytest.raises(NameNotFoundError):
        await asking.resolver.resolve(name)
    assert asking.server.asked == []


async def test_a_name_may_have_any_address_policy_judges_it_later(asking: Asking) -> None:
    inside = ["127.0.0.1", "169.254.169.254", "::1", "fe80::1", "::ffff:10.0.0.1"]
    asking.server.has("rebound.example", *inside)
    assert set(await asking.resolver.resolve("rebound.example")) == set(map(ip_address, inside))


async def test_closing_ends_every_look_up() -> None:
    async with nameserver() as server:
        server.has("mute.example", mute=True)
        resolver = DnsResolver([server.address])
        waiting = [asyncio.create_task(resolver.resolve("mute.example")) for _ in range(3)]
        await until(lambda: server.times("mute.example") == 1)
        await resolver.close()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, LookupFailedError)
        assert resolver.lookups == 0
        with pytest.raises(LookupFailedError):
            await resolver.resolve("mute.example")
        await resolver.close()


async def test_a_resolver_that_was_never_used_has_nothing_to_close() -> None:
    resolver = DnsResolver(["127.0.0.1"])
    await resolver.close()
