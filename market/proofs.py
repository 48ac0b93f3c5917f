"""Secrets that go out by e-mail, to prove that their bearer reads the mail of an address.

A secret is made before the transaction that keeps it: its hash, and its e-mail, sealed, are stored
together, with whatever else that transaction does.
"""

import hashlib
import secrets
from dataclasses import dataclass

from market.context import Context
from market.mail import Message, encoded, mail_share, password_reset, verification
from market.outbox import Outbox
from market.throttle import Throttle
from storage import outbox as outbox_queries
from storage import users
from storage.outbox import OutboxRow
from storage.store import Transaction

SECRET_BYTES = 32
VERIFY_SECONDS = 2 * 86_400
RESET_SECONDS = 3_600
EMAILS_PER_WINDOW = 5
WINDOW_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True)
class Proof:
    """A new secret: its hash, whose it is, what it is good for, and its e-mail."""

    token_hash: str
    user_id: str
    purpose: str
    created_at: int
    expires_at: int
    email: OutboxRow


class Proofs:
    """Makes secrets and their e-mails, so many for each person and time.

    Args:
        context: the store, identifiers and the time.
        outbox: where e-mails wait.
        app_url: where the links in them lead.
    """

    def __init__(self, context: Context, outbox: Outbox, app_url: str) -> None:
        self._outbox = outbox
        self._app_url = app_url
        self._now = context.now
        self._emails = Throttle(EMAILS_PER_WINDOW, WINDOW_SECONDS, context.now)

    def count(self, key: str) -> None:
        """Count an e-mail against the bound of its user or address.

        Args:
            key: the user, or the address, that it is counted by.

        Raises:
            MarketError: `too_many_attempts`.
        """
        self._emails.take(key)

    def of_address(self, user_id: str, email: str) -> Proof:
        """Return a secret that confirms a user's address.

        Raises:
            MarketError: `too_many_attempts`.
        """
        self.count(user_id)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        message = verification(email, self._app_url, secret)
        return self._proof(user_id, "verify", secret, message, VERIFY_SECONDS)

    def of_ownership(self, user_id: str, email: str) -> Proof:
        """Return a secret that replaces a user's password."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        message = password_reset(email, self._app_url, secret)
        return self._proof(user_id, "reset", secret, message, RESET_SECONDS)

    def wake(self) -> None:
        """Send the e-mails of stored proofs at once."""
        self._outbox.wake()

    def _proof(
        self, user_id: str, purpose: str, secret: str, message: Message, lifetime_seconds: int
    ) -> Proof:
        """Return a proof. Its e-mail takes the place of an earlier one, whose secret is void."""
        now = self._now()
        email = self._outbox.item(
            f"{purpose}:{user_id}",
            share=mail_share(message.to),
            payload=encoded(message),
            lifetime_seconds=lifetime_seconds,
        )
        return Proof(hashed(secret), user_id, purpose, now, now + lifetime_seconds, email)


async def keep(tx: Transaction, proof: Proof) -> None:
    """Store a proof and its e-mail; earlier ones of the user and the purpose are void.

    The caller has locked the user.
    """
    await users.insert_mail_token(
        tx,
        token_hash=proof.token_hash,
        user_id=proof.user_id,
        purpose=proof.purpose,
        now=proof.created_at,
        expires_at=proof.expires_at,
    )
    await outbox_queries.put(tx, proof.email)


def hashed(secret: str) -> str:
    """Return the hash that is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()
