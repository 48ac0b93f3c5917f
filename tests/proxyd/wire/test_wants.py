"""Wishes behind a user name; `tests/market/exits/test_wants.py` tests their meaning."""

import pytest
from support.base.cases import cases

from proxyd.wire.wants import Wants, WantsError, split, wanted

GERMAN = Wants(countries=("de",))


@cases(
    ("username", "parts"),
    [
        (b"abcdefgh", (b"abcdefgh", b"")),
        (b"abcdefgh-", (b"abcdefgh", b"-")),
        (b"abcdefgh-country-de", (b"abcdefgh", b"country-de")),
        (b"-country-de", (b"", b"country-de")),
        (b"", (b"", b"")),
    ],
)
def test_the_first_separator_ends_the_user_name(
    username: bytes, parts: tuple[bytes, bytes]
) -> None:
    assert split(username) == parts


def test_without_parameters_the_sale_decides() -> None:
    assert wanted(b"", None) is None
    assert wanted(b"", GERMAN) is GERMAN


def test_parameters_come_before_the_sale() -> None:
    assert wanted(b"session-a", GERMAN) == Wants(countries=("de",), session="a")
    assert wanted(b"country-fr", None) == Wants(countries=("fr",))


@cases("parameters", [b"country-\xff", b"\xc3\xbc", b"c\r\nX: y", b"-"])
def test_bytes_that_are_no_parameters_are_refused(parameters: bytes) -> None:
    with pytest.raises(WantsError):
        wanted(parameters, GERMAN)
