"""E-mails carry their secret in one link, and wait in the outbox as they were written."""

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from support.base.cases import cases

from market.accounts.mail import (
    SHARE_MAX_CHARACTERS,
    Message,
    decoded,
    encoded,
    mail_share,
    password_reset,
    verification,
)

TOKEN = "a+b/c=&d e"


@cases(("write", "page"), [(verification, "/verify"), (password_reset, "/reset")])
def test_the_link_leads_to_the_application_with_the_secret(
    write: Callable[[str, str, str], Message], page: str
) -> None:
    message = write("ada@example.com", "https://app.example.com", TOKEN)
    (link,) = message.links
    parts = urlsplit(link)
    assert (message.to, parts.netloc, parts.path) == ("ada@example.com", "app.example.com", page)
    assert parse_qs(parts.query, strict_parsing=True) == {"token": [TOKEN]}


def test_an_email_is_read_as_it_was_written() -> None:
    message = Message("ä@example.com", "Grüße", "two\nlines")
    assert decoded(encoded(message)) == message
    with pytest.raises(msgspec.DecodeError):
        decoded(b'{"to": 1}')


@cases(
    ("address", "share"),
    [
        ("ada@example.com", "example.com"),
        ("ada@Mail.EXAMPLE.com", "example.com"),
        ("ada@a.b.c.d.example.com", "example.com"),
        ("ada@localhost", "localhost"),
        (f"ada@{'x' * 200}.com", ("x" * 200 + ".com")[-SHARE_MAX_CHARACTERS:]),
    ],
)
def test_a_domain_is_one_share_of_the_queue(address: str, share: str) -> None:
    assert mail_share(address) == share
