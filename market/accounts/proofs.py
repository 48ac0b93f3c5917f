"""Secrets that are sent by e-mail: the use of one proves that its user reads that address.

A secret is made before the transaction that stores it. That transaction stores the secret's hash,
the sealed e-mail and its other changes together (`keep`).
"""

import hashlib
import secrets

from msgspec import Struct

from market.accounts.mail import (
    Message,
    encoded,
    mail_share,
    password_reset,
    signed,
    verification,
)
from market.accounts.outbox import Outbox
from market.base.throttle import Throttle
from market.events.context import Context
from storage.accounts import outbox as outbox_queries
from storage.accounts import users
from storage.accounts.outbox import OutboxRow
from storage.engines.store import Transaction

SECRET_BYTES = 32  # 256 bits: not guessable, and its hash needs no salt
# A new user can read the e-mail on the next day. A password reset opens the account to every reader
# of the e-mail, and its user waits for it.
VERIFY_SECONDS = 2 * 86_400
RESET_SECONDS = 3_600
# Limit against a flood of e-mails to an address; five are enough for a user whose e-mails are late.
EMAILS_PER_WINDOW = 5
WINDOW_SECONDS = 15 * 60


class Proof(Struct, frozen=True):
    """A new secret's hash, its user, its purpose ("verify" or "reset") and its e-mail."""

    token_hash: str
    user_id: str
    purpose: str
    created_at: int
    expires_at: int
    email: OutboxRow


class Proofs:
    """Generator of secrets and their e-mails, `EMAILS_PER_WINDOW` for each user or address.

    Args:
        app_url: the prefix of the links in e-mails.
        signature: the last lines of each e-mail.
    """

    def __init__(self, context: Context, outbox: Outbox, app_url: str, signature: str = "") -> None:
        self._signature = signature
        self._outbox = outbox
        self._app_url = app_url
        self._now = context.now
        self._emails = Throttle(EMAILS_PER_WINDOW, WINDOW_SECONDS, context.now)

    def count(self, key: str) -> None:
        """Count an e-mail against the limit.

        Args:
            key: the user, or the address, that it counts for.

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
        """Wake the sender for the e-mails of proofs that were stored."""
        self._outbox.wake()

    def _proof(
        self, user_id: str, purpose: str, secret: str, message: Message, lifetime_seconds: int
    ) -> Proof:
        """Return a proof; its e-mail replaces a waiting one, whose secret `keep` makes void."""
        now = self._now()
        email = self._outbox.item(
            f"{purpose}:{user_id}",
            share=mail_share(message.to),
            payload=encoded(signed(message, self._signature)),
            lifetime_seconds=lifetime_seconds,
        )
        return Proof(hashed(secret), user_id, purpose, now, now + lifetime_seconds, email)


async def keep(tx: Transaction, proof: Proof) -> None:
    """Store a proof and its e-mail; earlier secrets of its user and purpose become void.

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
    """Return the hash under which a secret is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()
