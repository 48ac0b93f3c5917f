"""What the marketplace writes to people, and to whom it hands the letters."""

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Message:
    """A letter in plain text."""

    to: str
    subject: str
    text: str


class Outbox(Protocol):
    """Takes letters to be sent, without making anybody wait."""

    def put(self, message: Message) -> None:
        """Take a letter; sending it is tried for a while, and may fail."""


def verification(to: str, app_url: str, token: str) -> Message:
    """Return the letter that asks its reader to confirm the address."""
    link = f"{app_url}/verify?token={quote(token)}"
    return Message(
        to,
        "Please confirm your e-mail address",
        f"Welcome.\n\nOpen this link within two days to confirm your e-mail address:\n\n{link}\n\n"
        "If you did not open an account, ignore this letter.\n",
    )


def password_reset(to: str, app_url: str, token: str) -> Message:
    """Return the letter with which a forgotten password is replaced."""
    link = f"{app_url}/reset?token={quote(token)}"
    return Message(
        to,
        "Choose a new password",
        f"Somebody asked to replace your password.\n\nIf it was you, open this link within an hour:"
        f"\n\n{link}\n\nIf not, ignore this letter; nothing has changed.\n",
    )
