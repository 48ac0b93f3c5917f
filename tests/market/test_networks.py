"""One client is an IPv4 address, or a /64 of IPv6."""

import pytest

from market.networks import network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::", "2001:db8::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff:ffff:ffff:ffff", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("nobody", "nobody"),
    ],
)
def test_an_address_counts_for_its_network(address: str, network: str) -> None:
    assert network_of(address) == network
