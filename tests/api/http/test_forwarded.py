"""Clients are distinguished by address, through any number of proxies and in any notation."""

from ipaddress import ip_address

from support.base.cases import cases

from api.http import forwarded
from api.http.forwarded import Clients

CLIENTS = Clients(["127.0.0.1/32", "10.0.0.0/8", "2001:db8:1::/48", "::ffff:172.16.0.0/108"])


@cases(
    ("peer", "lines", "identity"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7, 10.0.0.1"], "198.51.100.7"),
        ("127.0.0.1", ["203.0.113.9", "198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["203.0.113.9, 198.51.100.7", "10.0.0.1", "10.0.0.2"], "198.51.100.7"),
        ("127.0.0.1", ["10.0.0.1"], "10.0.0.1"),
        ("127.0.0.1", ["", "198.51.100.7,, "], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7:4711"], "198.51.100.7"),
        ("127.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::7"),
        ("127.0.0.1", ["[2001:DB8::7]"], "2001:db8::7"),
        ("127.0.0.1", ["2001:db8:0:0::7"], "2001:db8::7"),
        ("127.0.0.1", ["198.51.100.7, 10.0.0.1:80"], "198.51.100.7"),
        ("127.0.0.1", ["unknown"], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.7, unknown, 10.0.0.1"], "10.0.0.1"),
        ("127.0.0.1", ["198.51.100.7, _hidden"], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.7:port"], "127.0.0.1"),
        ("127.0.0.1", ["\udcff\udcfe"], "127.0.0.1"),
        ("::ffff:127.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("::ffff:192.0.2.1", ["198.51.100.7"], "192.0.2.1"),
        ("127.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["198.51.100.7, ::ffff:10.0.0.1"], "198.51.100.7"),
        ("172.16.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("2001:db8:1::1", ["198.51.100.7"], "198.51.100.7"),
        ("", ["198.51.100.7"], ""),
    ],
)
def test_a_client_is_the_last_hop_that_a_trusted_one_names(
    peer: str, lines: list[str], identity: str
) -> None:
    assert CLIENTS.identify(peer, lines) == identity


def test_without_trusted_proxies_the_header_is_nothing() -> None:
    assert Clients([]).identify("127.0.0.1", ["198.51.100.7"]) == "127.0.0.1"


@cases(
    ("peer", "spelling"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::FFFF:C000:201", "192.0.2.1"),
        ("2001:DB8:0:0::7", "2001:db8::7"),
        ("2001:0db8::0007", "2001:db8::7"),
        ("not an address", "not an address"),
        ("", ""),
    ],
)
def test_a_peer_has_one_spelling_with_the_header_and_without(peer: str, spelling: str) -> None:
    """Otherwise it would have two allowances; a repeated call returns the same."""
    assert [CLIENTS.identify(peer, []) for _ in range(3)] == [spelling] * 3
    assert CLIENTS.identify(peer, ["unknown"]) == spelling


def test_no_more_spellings_are_remembered_than_some_thousands() -> None:
    spelled = forwarded._spelled
    for number in range(spelled.cache_parameters()["maxsize"] + 100):
        address = str(ip_address(number))
        assert CLIENTS.identify(address, []) == address
    assert spelled.cache_info().currsize == 4096
