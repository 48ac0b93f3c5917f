"""User names, e-mail addresses and passwords: valid ones, and equal ones."""

from collections.abc import Callable

import pytest
from support.base.cases import cases

from market.base.errors import Code, MarketError
from market.base.user_fields import (
    EMAIL_MAX_CHARACTERS,
    PASSWORD_MAX_CHARACTERS,
    PASSWORD_MIN_CHARACTERS,
    USERNAME_MAX_CHARACTERS,
    check_email,
    check_password,
    check_reference,
    check_username,
    email_key,
    username_key,
)

DOMAIN = "@example.com"


@cases(
    ("check", "value"),
    [
        (check_username, "a"),
        (check_username, "Ådä_\N{GRINNING FACE}"),
        (check_username, "a" * USERNAME_MAX_CHARACTERS),
        (check_email, "a@b.c"),
        (check_email, "first.last+tag@mail.example.com"),
        (check_email, "ä@exämple.com"),
        (check_email, "a" * (EMAIL_MAX_CHARACTERS - len(DOMAIN)) + DOMAIN),
        (check_password, "a" * PASSWORD_MIN_CHARACTERS),
        (check_password, " " * PASSWORD_MAX_CHARACTERS),
    ],
)
def test_proper_ones_are_taken(check: Callable[[str], None], value: str) -> None:
    check(value)


@cases(
    ("check", "field", "value"),
    [
        *[
            (check_username, "username", value)
            for value in ("", "two words", "tab\t", "\0", "\u200b", "a\u2028b")
        ],
        (check_username, "username", "a" * (USERNAME_MAX_CHARACTERS + 1)),
        (check_username, "username", "\u3164"),
        *[
            (check_email, "email", value)
            for value in (
                *("", "a", "@", "a@", "@b.c", "a@b..c", ".a@b.c", "a.@b.c", "a@b.c.", "a@b@c.d"),
                *("a b@c.d", "a@b.c\r\nBcc: d@e.f", "a@b.c,d@e.f", "<a@b.c>", '"a"@b.c', "a@[::1]"),
            )
        ],
        (check_email, "email", "a" * (EMAIL_MAX_CHARACTERS - len(DOMAIN) + 1) + DOMAIN),
        (check_password, "password", "a" * (PASSWORD_MIN_CHARACTERS - 1)),
        (check_password, "password", "a" * (PASSWORD_MAX_CHARACTERS + 1)),
    ],
)
def test_others_are_refused_by_their_field(
    check: Callable[[str], None], field: str, value: str
) -> None:
    with pytest.raises(MarketError) as refused:
        check(value)
    assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, field)


def test_a_password_in_another_field_is_refused_by_that_one() -> None:
    with pytest.raises(MarketError) as refused:
        check_password("short", field="new_password")
    assert refused.value.field == "new_password"


def test_names_that_look_alike_are_the_same() -> None:
    assert username_key("Ada") == username_key("ADA") == username_key("\uff21da")
    assert username_key("stra\u00dfe") == username_key("STRASSE")
    assert username_key("ada") != username_key("ad\u00e4")


def test_addresses_are_the_same_in_any_case_and_composition() -> None:
    assert email_key("ADA@Example.COM") == "ada@example.com"
    assert email_key("\u00e4@b.c") == email_key("a\u0308@b.c")
    assert email_key("\uff41@b.c") != email_key("a@b.c")


@cases("reference", ["a", "INV-7", "stripe/cs_1:usd", "a.b_c", "9" * 64])
def test_a_reference_of_letters_digits_and_few_signs_is_permitted(reference: str) -> None:
    check_reference(reference)


@cases("reference", ["", "a b", "eve@example.com", "é", "a\n", "a\x00", "9" * 65, "a,b", "٣"])
def test_a_reference_has_no_room_for_a_person(reference: str) -> None:
    with pytest.raises(MarketError) as refused:
        check_reference(reference)
    assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, "reference")
