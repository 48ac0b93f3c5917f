"""Callers are counted by address, and by network where addresses cost nothing."""

from ipaddress import ip_address

from support.base.cases import cases

from market.base.networks import (
    NetworkCounts,
    counted_network,
    crowded,
    enclosing,
    plain,
    site,
    text_of,
)


@cases(
    ("address", "same"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::192.0.2.1", "::192.0.2.1"),
        ("64:ff9b::192.0.2.1", "64:ff9b::192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_an_ipv4_address_that_is_mapped_is_that_address(address: str, same: str) -> None:
    assert plain(ip_address(address)) == ip_address(same)


@cases("text", ["192.0.2.1", "0.0.0.0", "255.255.255.255", "2001:db8::1", "::ffff:192.0.2.1"])
def test_an_address_has_one_text(text: str) -> None:
    address = ip_address(text)
    assert text_of(address) == text_of(address) == str(address)


@cases(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("unix", "unix"),
    ],
)
def test_an_address_is_counted_as_its_network(address: str, network: str) -> None:
    assert counted_network(address) == network


def test_a_network_counts_for_the_larger_ones_around_it() -> None:
    assert enclosing("2001:db8:1:2ff::/64") == (
        ("2001:db8:1:2ff::/64", 1),
        ("2001:db8:1:200::/56", 4),
        ("2001:db8:1::/48", 16),
    )


@cases("name", ["192.0.2.1", "", "unix", "ada@example.com", "a:b", "2001:db8::/32", "2001:db8::1"])
def test_an_address_in_no_ipv6_network_of_a_subscriber_is_alone(name: str) -> None:
    assert enclosing(name) == ((name, 1),)


def test_an_owner_of_a_sites_addresses_has_sixteen_times_the_share_of_a_subscriber() -> None:
    counts = NetworkCounts()
    taken = 0
    for subnet in range(0, 65_536, 16):
        network = f"2001:db8:1:{subnet:x}::/64"
        while not crowded(network, 5, counts):
            counts.add(network)
            taken += 1
    assert taken == counts.total == 5 * 16
    assert crowded("2001:db8:1:ffff::/64", 5, counts) == "2001:db8:1::/48"
    assert not crowded("2001:db8:2:ffff::/64", 5, counts)


def test_an_owner_of_a_households_addresses_has_four_times_the_share() -> None:
    counts = NetworkCounts()
    for subnet in range(4):
        counts.add(f"2001:db8:1:{subnet}::/64", 5)
    assert crowded("2001:db8:1:3::/64", 5, counts) == "2001:db8:1:3::/64"
    assert crowded("2001:db8:1:4::/64", 5, counts) == "2001:db8:1::/56"
    assert not crowded("2001:db8:1:100::/64", 5, counts)


@cases(
    ("address", "expected"),
    [
        ("8.8.8.8", "8.8.8.0/24"),
        ("::ffff:8.8.8.9", "8.8.8.0/24"),
        ("2a00:1450:4001:81b::200e", "2a00:1450:4001::/48"),
        ("2a00:1450:4001:81b::200e%eth0", "2a00:1450:4001::/48"),
        ("127.0.0.1", ""),
        ("10.1.2.3", ""),
        ("100.64.1.1", ""),
        ("192.0.2.1", ""),
        ("fe80::1%eth0", ""),
        ("::1", ""),
        ("", ""),
        ("nonsense", ""),
    ],
)
def test_a_site_is_the_place_of_a_user_on_the_internet(address: str, expected: str) -> None:
    assert site(address) == expected


def test_a_returned_share_is_forgotten() -> None:
    counts = NetworkCounts()
    for network in ("2001:db8:1:2::/64", "192.0.2.1"):
        counts.add(network, 3)
        counts.add(network, -3)
    assert not counts
    assert counts.total == 0
