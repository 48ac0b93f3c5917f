import sys
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
from support.base.cases import cases

from proxyctl.attach.network import netlink, surroundings
from proxyctl.attach.network.surroundings import Surroundings, read_networks


@cases(
    "text",
    [
        "10.1.2.3", "127.0.0.1", "192.168.1.1", "100.64.0.1", "224.0.0.251", "255.255.255.255",
        "0.0.0.0", "::", "::1", "fe80::1", "fec0::1", "fd00::1", "ff02::1", "::ffff:10.0.0.1",
        "::10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "64:ff9b:1::a00:1",
    ],
)  # fmt: skip
def test_private_addresses_are_always_near(text: str) -> None:
    assert Surroundings(set).contains(ip_address(text))


def test_read_networks_are_near_until_the_next_reading() -> None:
    networks = {ip_network("45.33.32.0/24"), ip_network("2600:3c01::/64")}
    near = Surroundings(lambda: networks)
    assert near.contains(ip_address("45.33.32.156"))
    assert near.contains(ip_address("2600:3c01::f03c"))
    assert near.contains(ip_address("2002:2d21:209c::1"))
    assert not near.contains(ip_address("45.33.33.1"))
    networks.clear()
    assert near.contains(ip_address("45.33.32.156"))
    near.refresh()
    assert not near.contains(ip_address("45.33.32.156"))


def test_the_public_address_is_near_and_so_is_all_of_a_customers_ipv6() -> None:
    near = Surroundings(set)
    near.learn_public("93.184.220.2")
    near.learn_public("2a02:2455:1234:5600::10")
    near.learn_public("::ffff:45.33.32.156")
    near.learn_public("no address")
    near.refresh()
    assert near.contains(ip_address("93.184.220.2"))
    assert near.contains(ip_address("45.33.32.156"))
    assert near.contains(ip_address("2a02:2455:1234:ffff::1"))
    assert not near.contains(ip_address("93.184.220.3"))
    assert not near.contains(ip_address("2a02:2455:1235::1"))


def test_addresses_that_a_stranger_chooses_for_their_hash_are_as_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hash of an IPv6 address is a remainder, so a stranger finds addresses with one hash."""
    first, period = int(ip_address("2600::")), sys.hash_info.modulus
    chosen = [IPv6Address(first + count * period) for count in range(500)]
    assert len(set(map(hash, chosen))) == 1
    compared: list[object] = []

    def compare(one: IPv6Address, other: object) -> bool:
        compared.append(other)
        return int(one) == other

    near = Surroundings(set, list)
    monkeypatch.setattr(IPv6Address, "__eq__", compare)
    assert not any(near.contains(each) for each in chosen)
    assert len(compared) < len(chosen)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no netlink")
def test_the_kernel_is_asked_without_a_time_limit_of_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 32-bit systems that limit has two forms; a guard without the kernel permits more."""
    monkeypatch.setattr("socket.SO_RCVTIMEO", 9999)
    routes = netlink.Routes()
    try:
        assert not routes.leads_out(ip_address("127.0.0.1"))
    finally:
        routes.close()
    assert ip_network("127.0.0.0/8") in netlink.networks()


def test_an_answer_is_kept_no_longer_than_it_is_right() -> None:
    networks = {ip_network("45.33.32.0/24")}
    near = Surroundings(lambda: networks, list)
    texts = ("45.33.32.1", "93.184.220.2", "2002:5db8:dc02::1", "2a02:2455:1234:5600::1")
    assert [near.contains(ip_address(text)) for text in texts] == [True, False, False, False]
    near.learn_public("93.184.220.2")
    near.learn_public("2a02:2455:1234::10")
    networks.clear()
    near.refresh()
    assert [near.contains(ip_address(text)) for text in texts] == [False, True, True, True]


def test_kept_answers_are_bounded() -> None:
    near = Surroundings(set, list)
    for number in range(surroundings.ANSWERS_KEPT + 10):
        assert not near.contains(ip_address("45.0.0.0") + number)
    assert len(near._answers) <= surroundings.ANSWERS_KEPT


def test_a_family_is_known_by_the_daemons_word_or_by_an_own_public_address() -> None:
    v4, v6 = ip_address("93.184.215.14"), ip_address("2600:3c01::f03c")
    own = [ip_address("192.168.1.10"), ip_address("fd00::10")]
    near = Surroundings(set, lambda: own)
    assert not near.knows(v4)
    assert not near.knows(v6)
    near.learn_public("2a02:2455:1234:5600::10")
    assert near.knows(v6)
    assert not near.knows(v4)
    assert not near.knows(ip_address("::ffff:93.184.215.14"))
    own[0] = ip_address("45.33.32.156")
    assert not near.knows(v4), "it has not looked again"
    near.refresh()
    assert near.knows(v4)


def test_networks_of_another_line_are_forgotten() -> None:
    """A laptop that is carried elsewhere has another router, with another IPv4 address."""
    v4 = ip_address("93.184.215.14")
    near = Surroundings(set, list)
    near.attached_from("2a02:2455:1234:5600::10")
    near.learn_public("45.33.32.1")
    assert near.knows(v4)
    near.attached_from("2a02:2455:1234:5600::11")
    assert near.knows(v4), "it has attached again by the same line"
    near.attached_from("2a09:8280:1::10")
    assert not near.knows(v4)
    assert near.knows(ip_address("2600:3c01::f03c"))
    assert near.contains(ip_address("45.33.32.1")), "it may be on both lines"
    near.learn_public("45.33.32.9")
    assert near.knows(v4)


def test_the_last_public_addresses_are_kept() -> None:
    near = Surroundings(set)
    near.learn_public("45.33.32.1")
    for _ in range(3):
        for number in range(surroundings.PUBLIC_KEPT - 1):
            near.learn_public(f"93.184.220.{number}")
    assert near.contains(ip_address("45.33.32.1"))
    near.learn_public("93.184.221.1")
    assert not near.contains(ip_address("45.33.32.1"))
    assert near.contains(ip_address("93.184.220.0"))


def test_name_servers_are_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# a comment\nnameserver 9.9.9.9\nnameserver fe80::1%eth0\nnameserver\n"
        "nameserver nonsense\nsearch lan\n"
    )
    monkeypatch.setattr(surroundings, "_RESOLVER_FILES", (str(file), str(tmp_path / "none")))
    near = Surroundings(read_networks)
    assert near.contains(ip_address("9.9.9.9"))
    assert not near.contains(ip_address("9.9.9.10"))


def test_without_the_kernels_word_it_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> set:
        raise OSError

    monkeypatch.setattr(netlink, "networks", refused)
    own = [ip_address("45.33.32.156"), ip_address("2a02:2455:1234:5600::10")]
    monkeypatch.setattr(surroundings, "_own_addresses", lambda: own)
    monkeypatch.setattr(surroundings, "_RESOLVER_FILES", ())
    assert read_networks() == {ip_network("45.33.32.0/24"), ip_network("2a02:2455:1234::/48")}


@pytest.mark.skipif(sys.platform != "linux", reason="rtnetlink is Linux'")
def test_the_kernel_lists_its_own_networks() -> None:
    networks = netlink.networks()
    assert ip_network("127.0.0.0/8") in networks
    assert ip_network("127.0.0.1/32") in networks
    assert ip_network("0.0.0.0/0") not in networks
