"""Looking names up with the machine's own resolver."""

import socket
import types
from ipaddress import IPv4Address, IPv6Address

import pytest

from proxyd.egress import resolve
from proxyd.egress.resolve import NameNotFoundError, SystemResolver

Entry = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


def found(*texts: str) -> list[Entry]:
    """Return what `getaddrinfo` returns for these addresses."""
    return [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (text, 0, 0, 0))
        if ":" in text
        else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, 0))
        for text in texts
    ]


def answer_with(monkeypatch: pytest.MonkeyPatch, outcome: list[Entry] | Exception) -> list[str]:
    """Let the machine's resolver answer as a test wants; return the names it is asked for."""
    asked: list[str] = []

    async def getaddrinfo(name: str, port: None, **hints: int) -> list[Entry]:
        asked.append(name)
        assert hints == {"type": socket.SOCK_STREAM}
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    loop = types.SimpleNamespace(getaddrinfo=getaddrinfo)
    monkeypatch.setattr(resolve, "asyncio", types.SimpleNamespace(get_running_loop=lambda: loop))
    return asked


async def test_localhost_is_this_machine() -> None:
    addresses = await SystemResolver().resolve("localhost")
    assert addresses
    assert all(address.is_loopback for address in addresses)


async def test_the_old_spellings_of_an_address_are_resolved_to_it() -> None:
    assert await SystemResolver().resolve("127.1") == [IPv4Address("127.0.0.1")]
    assert await SystemResolver().resolve("2130706433") == [IPv4Address("127.0.0.1")]


@pytest.mark.parametrize(
    "name",
    [
        "nosuch.invalid",
        "a" * 64 + ".example",
        "a..example",
        "ü" * 64,
        ("a" * 63 + ".") * 4 + "a",
        "nul\x00.example",
    ],
)
async def test_a_name_that_nobody_knows_is_not_found(name: str) -> None:
    with pytest.raises(NameNotFoundError):
        await SystemResolver().resolve(name)


async def test_the_order_is_kept_and_repetitions_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(
        monkeypatch, found("2606:4700::2", "8.8.8.8", "2606:4700::2", "1.1.1.1", "8.8.8.8")
    )
    assert await SystemResolver().resolve("example.com") == [
        IPv6Address("2606:4700::2"),
        IPv4Address("8.8.8.8"),
        IPv4Address("1.1.1.1"),
    ]
    assert asked == ["example.com"]


async def test_a_zone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, found("fe80::1%eth0", "fe80::1%eth1"))
    assert await SystemResolver().resolve("printer") == [IPv6Address("fe80::1")]


@pytest.mark.parametrize(
    "outcome",
    [[], socket.gaierror(socket.EAI_NONAME, "unknown"), OSError(5, "I/O"), UnicodeError("label")],
)
async def test_whatever_goes_wrong_the_name_is_not_found(
    outcome: list[Entry] | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, outcome)
    with pytest.raises(NameNotFoundError, match=r"example\.com"):
        await SystemResolver().resolve("example.com")


async def test_a_mistake_of_ours_is_not_a_missing_name(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await SystemResolver().resolve("example.com")
