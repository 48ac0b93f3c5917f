"""Addresses and ports that the policy opens, or never opens."""

import ipaddress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.base.brief import examples
from support.base.cases import cases

from proxyctl.protocol.policy import Policy, embedded_ipv4, is_global

Address = IPv4Address | IPv6Address
DEFAULT = Policy()

# RFC 6890 and the IANA special-purpose address registries, IPv4; and the addresses that clouds
# answer themselves.
SPECIAL_V4 = {
    "0.0.0.0/8": "this network",
    "0.0.0.0/32": "this host",
    "10.0.0.0/8": "private use",
    "100.64.0.0/10": "shared by carriers",
    "127.0.0.0/8": "loopback",
    "161.26.0.0/16": "IBM Cloud's services",
    "166.8.0.0/14": "IBM Cloud's services",
    "168.63.129.16/32": "Azure's WireServer",
    "169.254.0.0/16": "link local",
    "169.254.169.254/32": "the metadata of clouds",
    "172.16.0.0/12": "private use",
    "192.0.0.0/24": "protocol assignments",
    "192.0.0.0/29": "DS-Lite",
    "192.0.0.8/32": "dummy",
    "192.0.0.9/32": "port control anycast",
    "192.0.0.10/32": "TURN anycast",
    "192.0.0.170/31": "NAT64 discovery",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "AMT",
    "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "private use",
    "192.175.48.0/24": "AS112, direct",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "239.255.255.250/32": "discovery in a local network",
    "240.0.0.0/4": "reserved",
    "255.255.255.255/32": "limited broadcast",
}

# The same for IPv6, and the ranges of the architecture (RFC 4291) outside of global unicast.
SPECIAL_V6 = {
    "::/128": "unspecified",
    "::1/128": "loopback",
    "::/96": "IPv4-compatible",
    "::/8": "reserved",
    "64:ff9b::/96": "NAT64",
    "64:ff9b:1::/48": "local NAT64",
    "100::/64": "discard",
    "100:0:0:1::/64": "dummy prefix",
    "200::/7": "reserved, once NSAP",
    "2001::/23": "protocol assignments",
    "2001::/32": "Teredo",
    "2001:1::1/128": "port control anycast",
    "2001:1::2/128": "TURN anycast",
    "2001:1::3/128": "DNS-SD anycast",
    "2001:2::/48": "benchmarks",
    "2001:3::/32": "AMT",
    "2001:4:112::/48": "AS112",
    "2001:10::/28": "ORCHID",
    "2001:20::/28": "ORCHIDv2",
    "2001:30::/28": "drone identifiers",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112, direct",
    "3fff::/20": "documentation",
    "4000::/2": "not assigned",
    "5f00::/16": "segment routing",
    "8000::/1": "not assigned, and everything local",
    "fc00::/7": "unique local",
    "fe80::/10": "link local",
    "fec0::/10": "site local",
    "ff00::/8": "multicast",
    "ff02::1/128": "every node of the link",
}

PUBLIC = (
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "161.25.255.255",
    "161.27.0.0",
    "166.7.255.255",
    "166.12.0.0",
    "168.63.129.15",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "191.255.255.255",
    "192.0.1.0",
    "192.0.3.0",
    "192.88.98.255",
    "192.88.100.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "198.51.99.255",
    "198.51.101.0",
    "203.0.112.255",
    "203.0.114.0",
    "223.255.255.255",
    "2000::",
    "2001:200::",
    "2001:4860:4860::8888",
    "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
    "2001:db9::",
    "2003::",
    "2606:4700:4700::1111",
    "2620:4f:7fff:ffff:ffff:ffff:ffff:ffff",
    "2620:4f:8001::",
    "3ffe:ffff::1",
)


def inside(network: str) -> tuple[Address, Address, Address]:
    """Return the first, a middle and the last address of a network."""
    each = ip_network(network)
    return each[0], each[each.num_addresses // 2], each[-1]


def teredo(client: str) -> IPv6Address:
    """Return a Teredo address (RFC 4380) of a client behind a server at 8.8.8.8."""
    flipped = int(IPv4Address(client)) ^ 0xFFFFFFFF
    return IPv6Address(0x20010000 << 96 | int(IPv4Address("8.8.8.8")) << 64 | flipped)


def six_to_four(address: str) -> IPv6Address:
    """Return a 6to4 address (RFC 3056)."""
    return IPv6Address(0x2002 << 112 | int(IPv4Address(address)) << 80 | 1)


def carriers(address: str) -> dict[str, IPv6Address]:
    """Return every form of IPv6 address that carries an IPv4 one."""
    return {
        "mapped": IPv6Address(f"::ffff:{address}"),
        "compatible": IPv6Address(f"::{address}"),
        "NAT64": IPv6Address(f"64:ff9b::{address}"),
        "local NAT64": IPv6Address(f"64:ff9b:1::{address}"),
        "6to4": six_to_four(address),
        "Teredo": teredo(address),
    }


CARRIERS = tuple(carriers("8.8.8.8"))


@cases("network", [*SPECIAL_V4, *SPECIAL_V6])
def test_a_special_range_is_refused_from_its_first_address_to_its_last(network: str) -> None:
    for address in inside(network):
        assert not DEFAULT.permits(address, 443), address


@cases("network", SPECIAL_V4)
def test_a_special_range_is_refused_when_an_ipv6_address_maps_it(network: str) -> None:
    for address in inside(network):
        assert not DEFAULT.permits(IPv6Address(f"::ffff:{address}"), 443), address


@cases("text", PUBLIC)
def test_a_public_address_is_permitted_up_to_the_edge_of_a_special_range(text: str) -> None:
    assert DEFAULT.permits(ip_address(text), 443)
    assert is_global(ip_address(text))


def test_a_mapped_public_address_is_as_good_as_the_address() -> None:
    assert DEFAULT.permits(IPv6Address("::ffff:8.8.8.8"), 443)


@cases("form", [form for form in CARRIERS if form != "mapped"])
@cases("address", ["8.8.8.8", "127.0.0.1", "10.0.0.1"])
def test_every_other_form_that_carries_an_address_is_refused(form: str, address: str) -> None:
    assert not DEFAULT.permits(carriers(address)[form], 443)


@cases("form", CARRIERS)
@cases("address", ["8.8.8.8", "127.0.0.1", "0.0.0.1", "255.255.255.255"])
def test_the_address_inside_a_carrier_is_found(form: str, address: str) -> None:
    assert embedded_ipv4(carriers(address)[form]) == IPv4Address(address)


@cases("text", ["8.8.8.8", "127.0.0.1", "2606:4700::7f00:1", "fe80::7f00:1"])
def test_an_address_that_carries_nothing_has_nothing_inside(text: str) -> None:
    assert embedded_ipv4(ip_address(text)) is None


@cases("form", CARRIERS)
def test_deny_reaches_the_address_inside_a_carrier(form: str) -> None:
    policy = Policy(allow=["::/0", "0.0.0.0/0"], deny=["203.0.113.0/24"])
    assert not policy.permits(carriers("203.0.113.9")[form], 443)
    assert policy.permits(carriers("198.51.100.9")[form], 443)


def test_a_denied_network_is_refused_and_its_neighbours_are_not() -> None:
    policy = Policy(deny=["8.8.8.0/24", "2606:4700::/32"])
    assert not policy.permits(ip_address("8.8.8.8"), 443)
    assert not policy.permits(ip_address("2606:4700::1"), 443)
    assert policy.permits(ip_address("8.8.4.4"), 443)
    assert policy.permits(ip_address("2606:4701::1"), 443)


def test_an_allowed_network_is_reachable_although_it_is_special() -> None:
    policy = Policy(allow=["10.1.0.0/16", "fd00::/8"])
    assert policy.permits(ip_address("10.1.2.3"), 443)
    assert policy.permits(ip_address("fd00::1"), 443)
    assert not policy.permits(ip_address("10.2.0.1"), 443)
    assert not policy.permits(ip_address("fc00::1"), 443)


@cases("network", ["168.63.129.16/32", "161.26.0.0/16", "166.8.0.0/14"])
def test_an_address_that_a_cloud_answers_is_reachable_where_it_is_allowed(network: str) -> None:
    first, _, last = inside(network)
    for address in (first, last):
        assert not DEFAULT.permits(address, 80)
        assert not DEFAULT.permits(IPv6Address(f"::ffff:{address}"), 80)
        assert Policy(allow=[network]).permits(address, 80)


def test_deny_wins_over_allow_whichever_is_the_narrower() -> None:
    narrow_deny = Policy(allow=["10.0.0.0/8"], deny=["10.0.0.1/32"])
    assert not narrow_deny.permits(ip_address("10.0.0.1"), 443)
    assert narrow_deny.permits(ip_address("10.0.0.2"), 443)
    narrow_allow = Policy(allow=["10.0.0.1/32"], deny=["10.0.0.0/8"])
    assert not narrow_allow.permits(ip_address("10.0.0.1"), 443)


def test_an_allowed_ipv4_network_is_allowed_when_mapped() -> None:
    policy = Policy(allow=["127.0.0.0/8"])
    assert policy.permits(ip_address("127.0.0.1"), 443)
    assert policy.permits(ip_address("::ffff:127.0.0.1"), 443)
    assert not policy.permits(ip_address("::1"), 443)


@cases("allow", ["::/0", "::ffff:0:0/96", "::/8"])
@cases("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0"])
def test_allowing_ipv6_opens_no_mapped_ipv4(allow: str, address: str) -> None:
    assert not Policy(allow=[allow]).permits(ip_address(f"::ffff:{address}"), 443)
    assert not Policy(allow=[allow]).permits(ip_address(address), 443)


def test_allowing_all_of_ipv4_opens_no_ipv6() -> None:
    policy = Policy(allow=["0.0.0.0/0"])
    assert policy.permits(ip_address("127.0.0.1"), 443)
    for text in ("::1", "fe80::1", "64:ff9b::7f00:1", "2002:7f00:1::1"):
        assert not policy.permits(ip_address(text), 443), text


def test_denying_all_of_ipv4_leaves_ipv6() -> None:
    policy = Policy(deny=["0.0.0.0/0"])
    assert not policy.permits(ip_address("8.8.8.8"), 443)
    assert not policy.permits(ip_address("::ffff:8.8.8.8"), 443)
    assert policy.permits(ip_address("2606:4700::1"), 443)


@cases("text", ["8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8", "10.0.0.1"])
def test_a_blocked_port_is_refused_everywhere(text: str) -> None:
    policy = Policy(allow=["10.0.0.0/8"], blocked_ports=[25, 465, 587])
    for port in (25, 465, 587):
        assert not policy.permits(ip_address(text), port)
    for port in (1, 24, 26, 80, 443, 65535):
        assert policy.permits(ip_address(text), port)


def test_port_zero_is_never_dialled() -> None:
    assert not Policy().permits(ip_address("8.8.8.8"), 0)
    assert not Policy(blocked_ports=[25]).permits(ip_address("8.8.8.8"), 0)
    assert not Policy(allow=["0.0.0.0/0"]).permits(ip_address("127.0.0.1"), 0)


def test_without_blocked_ports_mail_is_reachable() -> None:
    assert Policy().permits(ip_address("8.8.8.8"), 25)


@cases("text", ["fe80::1%eth0", "::1%1", "::ffff:127.0.0.1%lo"])
def test_a_zone_opens_nothing(text: str) -> None:
    assert not DEFAULT.permits(ip_address(text), 443)


def test_a_network_with_host_bits_is_a_mistake() -> None:
    with pytest.raises(ValueError):
        Policy(allow=["10.0.0.1/8"])


# Addresses near the edges of every special range, which a generator alone would hardly meet.
EDGES = tuple(
    int(edge) + step
    for network in (*SPECIAL_V4, *SPECIAL_V6)
    for edge in (ip_network(network)[0], ip_network(network)[-1])
    for step in (-1, 0, 1)
)
addresses = st.one_of(
    st.ip_addresses(v=4),
    st.ip_addresses(v=6),
    st.sampled_from([edge for edge in EDGES if 0 <= edge < 2**32]).map(IPv4Address),
    st.sampled_from([edge for edge in EDGES if 0 <= edge < 2**128]).map(IPv6Address),
    st.ip_addresses(v=4).map(lambda address: IPv6Address(f"::ffff:{address}")),
)


@settings(max_examples=examples(1000), deadline=None)
@given(addresses, st.integers(1, 65535))
def test_an_address_that_python_does_not_call_public_is_refused(
    address: Address, port: int
) -> None:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    judged = mapped or address
    special = (
        judged.is_private
        or judged.is_loopback
        or judged.is_link_local
        or judged.is_multicast
        or judged.is_reserved
        or judged.is_unspecified
        or (judged.version == 6 and judged.is_site_local)
    )
    if special or not judged.is_global:
        assert not DEFAULT.permits(address, port)


@settings(max_examples=examples(1000), deadline=None)
@given(addresses)
def test_a_permitted_address_lies_in_no_special_range(address: Address) -> None:
    if not DEFAULT.permits(address, 443):
        return
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    judged = mapped or address
    table = SPECIAL_V4 if judged.version == 4 else SPECIAL_V6
    assert not [name for name in table if judged in ipaddress.ip_network(name)]


@settings(max_examples=examples(300), deadline=None)
@given(st.ip_addresses(v=4))
def test_a_mapped_address_fares_as_the_address_does(address: IPv4Address) -> None:
    policy = Policy(allow=["10.0.0.0/8"], deny=["8.0.0.0/8"])
    assert policy.permits(IPv6Address(f"::ffff:{address}"), 443) == policy.permits(address, 443)


OWN = ("8.8.8.8", "2606:4700::1")


def is_own(address: Address) -> bool:
    return str(address) in OWN


@cases("text", [*OWN, "::ffff:8.8.8.8"])
def test_a_global_address_of_this_machine_is_refused_unless_it_is_configured(text: str) -> None:
    address = ip_address(text)
    assert Policy().permits(address, 443)
    assert not Policy(is_own=is_own).permits(address, 443)
    assert Policy(is_own=is_own, allow=["8.8.8.8/32", "2606:4700::/32"]).permits(address, 443)
    assert Policy(is_own=is_own).permits(ip_address("8.8.4.4"), 443)


def test_an_address_that_becomes_this_machines_own_is_refused_from_then_on() -> None:
    own: set[Address] = set()
    policy = Policy(is_own=own.__contains__)
    assert policy.permits(ip_address("8.8.8.8"), 443)
    own.add(ip_address("8.8.8.8"))
    assert not policy.permits(ip_address("8.8.8.8"), 443)


def test_a_port_may_be_checked_by_itself() -> None:
    policy = Policy(blocked_ports=[25])
    assert [policy.permits_port(port) for port in (0, 25, 443)] == [False, False, True]


def test_an_ipv6_address_with_the_number_of_an_ipv4_one_has_a_verdict_of_its_own() -> None:
    policy = Policy()
    for _ in range(2):
        assert policy.permits(IPv4Address("8.8.8.8"), 80)
        assert not policy.permits(IPv6Address(int(IPv4Address("8.8.8.8"))), 80)
