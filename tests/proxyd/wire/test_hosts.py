"""A host in text is an address or a name, and nothing that would mean something else elsewhere."""

from ipaddress import IPv4Address, IPv6Address

from support.base.cases import cases

from proxyd.wire.hosts import address_of, host_from_text, unmapped


@cases(
    ("encoded", "host"),
    [
        (b"192.0.2.1", IPv4Address("192.0.2.1")),
        (b"2001:db8::1", IPv6Address("2001:db8::1")),
        (b"[2001:db8::1]", IPv6Address("2001:db8::1")),
        (b"::ffff:192.0.2.1", IPv6Address("::ffff:192.0.2.1")),
        (b"example.com", "example.com"),
        (b"example.com.", "example.com"),
        (b"127.1", "127.1"),
        (b"0x7f000001", "0x7f000001"),
        (b"host-1", "host-1"),
    ],
)
def test_a_host_is_an_address_or_a_name(encoded: bytes, host: object) -> None:
    assert host_from_text(encoded) == host


@cases("encoded", [b"", b".", b"two words", b"line\n", b"nul\0", "größe".encode(), b"fe80::1%eth0"])
def test_neither_an_address_nor_a_name_is_no_host(encoded: bytes) -> None:
    assert host_from_text(encoded) is None


@cases(
    ("text", "plain"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_of_a_socket_is_unmapped_and_without_its_scope(text: str, plain: str) -> None:
    assert str(address_of(text)) == unmapped(text) == plain
