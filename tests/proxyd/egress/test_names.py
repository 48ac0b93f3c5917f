"""The spelling of names, and the names that are addresses."""

from ipaddress import IPv4Address

from support.base.cases import cases

from proxyd.egress.names import address_of_number, canonical, is_number


@cases(
    ("name", "key"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.Com", "example.com"),
        ("example.com.", "example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_dmarc.a-b.example", "_dmarc.a-b.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
        ("localhost", "localhost"),
        ("invalid.example", "invalid.example"),
        (("a" * 49 + ".") * 5 + "abc", ("a" * 49 + ".") * 5 + "abc"),
    ],
)
def test_a_name_has_one_spelling(name: str, key: str) -> None:
    assert canonical(name) == key


@cases(
    "name",
    [
        "",
        ".",
        "..",
        "a..example",
        ".example",
        "example.com..",
        "a" * 64 + ".example",
        ("a" * 49 + ".") * 5 + "abcd",
        "localhost\x00.example",
        "with space.example",
        "example.com\n",
        "bücher.example",
        "\u212aelvin.example\u0130",
        "a/b",
        "[::1]",
        "::1",
        "fe80::1%eth0",
        "nosuch.invalid",
        "INVALID.",
    ],
)
def test_a_name_that_no_name_server_knows_is_not_found(name: str) -> None:
    assert canonical(name) is None


@cases(
    ("key", "address"),
    [
        ("127.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("8.8.8.010", "8.8.8.8"),
        ("1.2.3.4.5", None),
        ("256.0.0.1", None),
        ("4294967296", None),
        ("09.1", None),
        ("example.1", None),
        ("0xg.1", None),
    ],
)
def test_a_name_that_ends_in_a_number_is_an_address_or_nothing(
    key: str, address: str | None
) -> None:
    assert is_number(key)
    assert address_of_number(key) == (None if address is None else IPv4Address(address))


@cases("key", ["1.example", "1a", "127.0.0.1.example", "0xg", "1-2", "a0x7f"])
def test_a_number_elsewhere_makes_no_address(key: str) -> None:
    assert not is_number(key)
