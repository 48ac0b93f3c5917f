"""Credentials of a session: random, fit for a URL, kept only as a hash."""

import base64
import hashlib
import re
from urllib.parse import quote, urlsplit

import pytest
from support.base.cases import cases

from market.bandwidth.credentials import hash_password, is_username, matches, new_credentials

MANY = [new_credentials() for _ in range(200)]


def test_a_user_name_has_eighty_random_bits_and_no_look_alikes() -> None:
    for made in MANY:
        assert re.fullmatch(r"[a-z2-7]{16}", made.username)
        assert is_username(made.username)
    assert len({made.username for made in MANY}) == len(MANY)


def test_a_password_has_a_hundred_and_twenty_eight_random_bits() -> None:
    for made in MANY:
        assert len(base64.urlsafe_b64decode(made.password + "==")) == 16
    assert len({made.password for made in MANY}) == len(MANY)


def test_every_letter_of_the_alphabet_is_used() -> None:
    assert len(set("".join(made.username for made in MANY))) == 32
    assert len(set("".join(made.password for made in MANY))) == 64


def test_credentials_need_no_escaping_in_a_url() -> None:
    for made in MANY:
        assert quote(made.username, safe="") == made.username
        assert quote(made.password, safe="") == made.password
        url = urlsplit(f"socks5h://{made.username}:{made.password}@127.0.0.1:1080")
        assert (url.username, url.password) == (made.username, made.password)
        assert (url.hostname, url.port) == ("127.0.0.1", 1080)


def test_credentials_fit_in_the_negotiation() -> None:
    for made in MANY:
        assert len(made.username) <= 255
        assert len(made.password) <= 255


def test_the_hash_belongs_to_the_password_and_does_not_hold_it() -> None:
    for made in MANY:
        assert made.password not in made.password_hash
        assert made.password_hash == hashlib.sha256(made.password.encode()).hexdigest()
        assert matches(made.password.encode(), made.password_hash)


def test_another_password_does_not_match() -> None:
    one, other = MANY[:2]
    assert not matches(one.password.encode(), other.password_hash)


@cases("password", [b"", b"secre", b"secret ", b"Secret", b"secret\x00", b"\xff" * 255])
def test_nothing_but_the_password_matches(password: bytes) -> None:
    assert not matches(password, hash_password(b"secret"))


@cases("password", [b"", b"\x00", b"\xff\xfe", b"p" * 255, "größe".encode()])
def test_any_bytes_can_be_hashed_and_compared(password: bytes) -> None:
    assert matches(password, hash_password(password))


def test_a_hash_is_no_password() -> None:
    made = MANY[0]
    assert not matches(made.password_hash.encode(), made.password_hash)
    assert not matches(made.password.encode(), "")


def test_passwords_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return False

    made = new_credentials()
    monkeypatch.setattr("hmac.compare_digest", compare)
    assert not matches(made.password.encode(), made.password_hash)
    assert compared == [(made.password_hash, made.password_hash)]
