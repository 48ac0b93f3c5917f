"""What the marketplace writes to people."""

from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from market.user_fields import email_key

SHARE_MAX_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Message:
    """An e-mail in plain text."""

    to: str
    subject: str
    text: str

    @property
    def links(self) -> list[str]:
        """The links in it."""
        return [word for word in self.text.split() if "://" in word]


def encoded(message: Message) -> bytes:
    """Return an e-mail as it waits in the outbox."""
    return msgspec.json.encode(message)


def decoded(payload: bytes) -> Message:
    """Return an e-mail that waited in the outbox.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(payload, type=Message)


def mail_share(address: str) -> str:
    """Return whose part of the queue an e-mail takes: that of the last two labels of its domain.

    So one domain is one share however many names it has below it.
    """
    domain = email_key(address).rpartition("@")[2]
    return ".".join(domain.split(".")[-2:])[-SHARE_MAX_CHARACTERS:]


def verification(to: str, app_url: str, token: str) -> Message:
    """Return the e-mail that asks its reader to confirm the address."""
    link = f"{app_url}/verify?token={quote(token)}"
    return Message(
        to,
        "Please confirm your e-mail address",
        f"Welcome.\n\nOpen this link within two days to confirm your e-mail address:\n\n{link}\n\n"
        "If you did not open an account, ignore this e-mail.\n",
    )


def password_reset(to: str, app_url: str, token: str) -> Message:
    """Return the e-mail with which a forgotten password is replaced."""
    link = f"{app_url}/reset?token={quote(token)}"
    return Message(
        to,
        "Choose a new password",
        f"Somebody asked to replace your password.\n\nIf it was you, open this link within an hour:"
        f"\n\n{link}\n\nIf not, ignore this e-mail; nothing has changed.\n",
    )
