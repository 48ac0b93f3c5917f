"""Proofs by mail: that an address is read by its owner, and that a forgotten password was theirs.

A secret goes out by mail, only its hash is kept, it works once and for a while. Asking for a letter
is answered at once, and the same whether or not the address is known: the letter is written later,
by `run`.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable

from market.accounts import (
    LOGIN_WINDOW_SECONDS,
    Accounts,
    Caller,
    LoginLimits,
    replace_password,
)
from market.errors import Code, MarketError
from market.mail import Outbox, password_reset, verification
from market.passwords import Passwords
from market.people import check_password, email_key
from market.throttle import Throttle
from storage import users
from storage.errors import StoreError
from storage.store import Store, Transaction

SECRET_BYTES = 32
VERIFY_SECONDS = 2 * 86_400
RESET_SECONDS = 3_600
REQUESTS_MAX = 1_000
LETTERS_PER_WINDOW = 5
WINDOW_SECONDS = 15 * 60

_logger = logging.getLogger("recovery")


class Recovery:
    """Sends secrets by mail and accepts them back.

    Args:
        store: where accounts are kept.
        passwords: hashes new ones.
        outbox: takes the letters.
        app_url: where the links in them lead.
        now: the wall clock, in UTC seconds.
        accounts: is told whose failed logins are forgotten.
        limits: how often somebody may fail.
    """

    def __init__(
        self,
        store: Store,
        passwords: Passwords,
        outbox: Outbox,
        app_url: str,
        now: Callable[[], int],
        accounts: Accounts,
        limits: LoginLimits,
    ) -> None:
        self._accounts = accounts
        self._failures = Throttle(limits.failures_per_client, LOGIN_WINDOW_SECONDS, now)
        self._store = store
        self._passwords = passwords
        self._outbox = outbox
        self._app_url = app_url
        self._now = now
        self._requests: asyncio.Queue[str] = asyncio.Queue(REQUESTS_MAX)
        self._letters = Throttle(LETTERS_PER_WINDOW, WINDOW_SECONDS, now)

    async def send_verification(self, user_id: str, email: str) -> None:
        """Send the letter with which a user confirms their address.

        Raises:
            MarketError: `too_many_attempts`.
        """
        self._letters.take(user_id)
        secret = await self._new_secret(user_id, "verify", VERIFY_SECONDS)
        self._outbox.put(verification(email, self._app_url, secret))

    async def resend_verification(self, caller: Caller) -> None:
        """Send that letter again, unless the address is confirmed.

        Raises:
            MarketError: `too_many_attempts`.
        """
        if caller.profile.email_verified_at is None:
            await self.send_verification(caller.profile.user_id, caller.profile.email)

    async def verify(self, secret: str) -> None:
        """Confirm the address that a secret was sent to.

        Raises:
            MarketError: `invalid_mail_token`.
        """
        await self._store.write(_verify, _hashed(secret), self._now())

    def forgot(self, email: str) -> None:
        """Have a letter sent to an address, if anybody has it; answers before that is known.

        Raises:
            MarketError: `too_many_attempts`, `too_busy`.
        """
        key = email_key(email)
        self._letters.take(key)
        try:
            self._requests.put_nowait(email)
        except asyncio.QueueFull:
            raise MarketError(Code.TOO_BUSY) from None

    async def reset(self, secret: str, password: str, *, client: str = "") -> None:
        """Replace the password of whoever the secret was sent to; all their login sessions end.

        Args:
            secret: from the letter.
            password: the new one.
            client: the network that they are counted by.

        Raises:
            MarketError: `invalid_mail_token`, `invalid_field`, `too_busy`, `too_many_attempts`.
        """
        check_password(password)
        with self._failures.attempt(client, (Code.INVALID_MAIL_TOKEN,)):
            # Looked up before anything is hashed: hashing is dear, and asking is free.
            await self._store.read(_owner, _hashed(secret), "reset", self._now())
            encoded = await self._passwords.hash(password, client=client)
            email = await self._store.write(_reset, _hashed(secret), encoded, self._now())
        self._accounts.forgive(email)

    async def run(self) -> None:
        """Write the letters that `forgot` was asked for, until cancelled."""
        while True:
            email = await self._requests.get()
            try:
                await self._answer(email)
            except StoreError as error:
                _logger.warning("a letter was not written, the store failed: %s", error)

    async def _answer(self, email: str) -> None:
        user = await self._store.read(users.find_by_email, email_key(email))
        if user is not None:
            secret = await self._new_secret(user.id, "reset", RESET_SECONDS)
            self._outbox.put(password_reset(user.email, self._app_url, secret))

    async def _new_secret(self, user_id: str, purpose: str, lifetime_seconds: int) -> str:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        now = self._now()
        await self._store.write(
            _keep_secret,
            token_hash=_hashed(secret),
            user_id=user_id,
            purpose=purpose,
            now=now,
            expires_at=now + lifetime_seconds,
        )
        return secret


async def _keep_secret(
    tx: Transaction, *, token_hash: str, user_id: str, purpose: str, now: int, expires_at: int
) -> None:
    await users.lock(tx, user_id)
    await users.insert_mail_token(
        tx,
        token_hash=token_hash,
        user_id=user_id,
        purpose=purpose,
        now=now,
        expires_at=expires_at,
    )


async def _owner(tx: Transaction, token_hash: str, purpose: str, now: int) -> str:
    user_id = await users.owner_of_mail_token(tx, token_hash=token_hash, purpose=purpose, now=now)
    if user_id is None:
        raise MarketError(Code.INVALID_MAIL_TOKEN, field="token")
    return user_id


async def _use(tx: Transaction, token_hash: str, purpose: str, now: int) -> str:
    """Use a secret up, and lock whose it was: the user first, as everybody does."""
    await users.lock(tx, await _owner(tx, token_hash, purpose, now))
    user_id = await users.use_mail_token(tx, token_hash=token_hash, purpose=purpose, now=now)
    if user_id is None:
        raise MarketError(Code.INVALID_MAIL_TOKEN, field="token")
    return user_id


async def _verify(tx: Transaction, token_hash: str, now: int) -> None:
    await users.set_email_verified(tx, await _use(tx, token_hash, "verify", now), now)


async def _reset(tx: Transaction, token_hash: str, password_hash: str, now: int) -> str:
    """Replace a password, and return the address that the secret was sent to."""
    user_id = await _use(tx, token_hash, "reset", now)
    await replace_password(tx, user_id, password_hash, keep="", now=now)
    await users.set_email_verified(tx, user_id, now)
    user = await users.find(tx, user_id)
    if user is None:
        raise LookupError(f"the user {user_id} does not exist")
    return user.email


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
