"""The e-mails of the marketplace."""

from urllib.parse import quote

import msgspec
from msgspec import Struct, structs

from market.base.user_fields import email_key

SHARE_MAX_CHARACTERS = 64  # so that a long domain does not make the outbox's index large


class Message(Struct, frozen=True):
    """An e-mail in plain text."""

    to: str
    subject: str
    text: str

    @property
    def links(self) -> list[str]:
        """The URLs in the text."""
        return [word for word in self.text.split() if "://" in word]


def signed(message: Message, signature: str) -> Message:
    """Return an e-mail that ends with the name and the contact of the service."""
    return structs.replace(message, text=message.text + signature)


def encoded(message: Message) -> bytes:
    """Return an e-mail as the payload of an outbox item."""
    return msgspec.json.encode(message)


def decoded(payload: bytes) -> Message:
    """Return the e-mail in an outbox item's payload.

    Raises:
        msgspec.DecodeError: the payload is not an e-mail.
    """
    return msgspec.json.decode(payload, type=Message)


def mail_share(address: str) -> str:
    """Return the share of the outbox that counts an e-mail: the domain's last two labels.

    So a domain with all its subdomains is one share.
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
    """Return the e-mail with the link to choose a new password."""
    link = f"{app_url}/reset?token={quote(token)}"
    return Message(
        to,
        "Choose a new password",
        "A replacement of your password was requested.\n\n"
        "If you requested it, open this link within an hour:"
        f"\n\n{link}\n\nIf not, ignore this e-mail; nothing has changed.\n",
    )


def password_changed(to: str, app_url: str) -> Message:
    """Return the e-mail that reports a changed password."""
    return Message(
        to,
        "Your password was changed",
        "The password of your account was changed just now, and other logins have ended.\n\n"
        "If it was not you, choose a new one now, which also revokes all API keys:"
        f"\n\n{app_url}/forgot\n",
    )


def account_suspended(to: str, app_url: str, parts: str, reason: str, until: str) -> Message:
    """Return the e-mail about suspended parts of an account."""
    return Message(
        to,
        "Parts of your account are suspended",
        f"The service has suspended these parts of your account {until}: {parts}.\n\n"
        f"The reason: {reason}\n\n"
        "Bought sessions keep their price and their end, and go on when the suspension is over. "
        f"You can log in to read this:\n\n{app_url}/console\n",
    )


def session_halted(to: str, app_url: str, name: str, reason: str, until: str) -> Message:
    """Return the e-mail about a session that a rule has halted for a time."""
    return Message(
        to,
        "A proxy session is halted",
        f"The service has halted your proxy session {name} until {until}.\n\n"
        f"The reason: {reason}\n\n"
        "The session keeps its price and its end, and goes on by itself. If the traffic is not "
        "yours, end the session and look for the program that has its password. Several halts in "
        f"a day suspend all your sessions and API keys:\n\n{app_url}/console\n",
    )


def account_resumed(to: str, app_url: str, parts: str) -> Message:
    """Return the e-mail about parts of an account that are not suspended any more."""
    return Message(
        to,
        "Your account is resumed",
        f"These parts of your account are not suspended any more: {parts}.\n\n{app_url}/console\n",
    )


def case_decided(to: str, app_url: str, words: str, reason: str) -> Message:
    """Return the e-mail about a decision of the staff; `words` name the decision."""
    return Message(
        to,
        "A decision about your account",
        f"{words}\n\nThe reason: {reason}\n\n{app_url}/console\n",
    )


def job_disputed(to: str, app_url: str, job_id: str) -> Message:
    """Return the e-mail to a worker about the dispute of a job."""
    return Message(
        to,
        "The pay for a job is disputed",
        f"The buyer of the job {job_id} disputes your pay for it. Your pay waits until the service "
        "decides.\n\nUntil then you can answer: tell the service what your device did, on the page "
        "of the device. The answer is for the service alone, and a later one replaces it."
        f"\n\n{app_url}/console\n",
    )


def account_closed(to: str, app_url: str, until: str) -> Message:
    """Return the e-mail about an account that was closed."""
    return Message(
        to,
        "Your account is closed",
        f"Your account was closed just now. It is erased after {until}.\n\n"
        "Until then a login opens it again. If it was not you, log in and change your password:"
        f"\n\n{app_url}/console\n",
    )


def account_erased(to: str, app_url: str) -> Message:
    """Return the last e-mail to a user, about the erasure of the account."""
    return Message(
        to,
        "Your account is erased",
        f"Your account at {app_url} is erased, with its files and texts. The books keep amounts, "
        "times and identifiers, without your name. This is the last e-mail to your address.\n",
    )


def strong_key_created(to: str, app_url: str, name: str) -> Message:
    """Return the e-mail about a new API key for everything, or without an end."""
    return Message(
        to,
        "A strong API key was made",
        f"An API key with all rights, or without an expiry, was made for your account:\n\n"
        f"{name}\n\nIf it was not you, revoke it and change your password:"
        f"\n\n{app_url}/console/keys\n",
    )


def key_revoked(to: str, app_url: str, name: str) -> Message:
    """Return the e-mail about an API key that the service has revoked."""
    return Message(
        to,
        "An API key was revoked",
        f"The service has revoked an API key of your account:\n\n{name}\n\n"
        "Programs with this key are refused. Check what the key has made, and make a new key:"
        f"\n\n{app_url}/console/keys\n",
    )


def payout_method_added(to: str, app_url: str, shown: str, usable_at: str) -> Message:
    """Return the e-mail about a new payout method."""
    return Message(
        to,
        "A payout method was added",
        f"A payout method was added to your account: {shown}\n\nPayouts can go there from "
        f"{usable_at} on.\n\nIf it was not you, remove it before then and change your password:"
        f"\n\n{app_url}/console/wallet\n",
    )


def payout_method_removed(to: str, app_url: str, shown: str) -> Message:
    """Return the e-mail about a removed payout method."""
    return Message(
        to,
        "A payout method was removed",
        f"A payout method was removed from your account: {shown}\n\nIf it was not you, change "
        f"your password:\n\n{app_url}/forgot\n",
    )


def webhook_disabled(to: str, app_url: str, url: str, reason: str) -> Message:
    """Return the e-mail that reports a disabled endpoint of webhooks."""
    return Message(
        to,
        "An endpoint of your webhooks was disabled",
        f"This endpoint does not receive events any more, because {reason}:\n\n{url}\n\n"
        "Missed events are kept for thirty days. When the endpoint works again, enable it and have "
        f"them sent:\n\n{app_url}/console/webhooks\n",
    )
