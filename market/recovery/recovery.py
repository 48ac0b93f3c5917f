"""Proofs by e-mail: of an address, and of the right to replace a forgotten password.

A secret is sent by e-mail; only its hash is kept; it is valid once, for a limited time. A request
for a forgotten password gets the same reply at once, whether or not the address is known: until
then it is only written to the store. `run` looks up later whose address it is.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from market.accounts.accounts import (
    LOGIN_WINDOW_SECONDS,
    Accounts,
    Caller,
    LoginLimits,
    NewPassword,
    replace_password,
)
from market.accounts.keys import end_all
from market.accounts.letters import Letters
from market.accounts.mail import mail_share
from market.accounts.outbox import Outbox
from market.accounts.passwords import Passwords
from market.accounts.proofs import RESET_SECONDS, Proof, Proofs, hashed, keep
from market.base.errors import Code, MarketError
from market.base.throttle import Throttle
from market.base.user_fields import check_password, email_key
from market.devices.devices import Revoked
from market.events.context import Context
from market.notify.webhooks import disable_all
from market.recovery.made_by_keys import revoke_made
from storage.accounts import closures, users
from storage.accounts import outbox as outbox_queries
from storage.accounts.outbox import OutboxRow
from storage.deploys import apps
from storage.engines.errors import StoreError, level_of
from storage.engines.store import Transaction

# The daemon that took a request answers it immediately; others look for its unanswered requests.
LOOK_SECONDS = 5.0
# Few enough that one look costs the store little.
LOOK_MAX_REQUESTS = 100

_logger = logging.getLogger("recovery")


class Recovery:
    """Sends secrets by mail and accepts them back.

    Args:
        requests: the queue of requests whose address is not looked up yet.
        accounts: forgets the failed logins of users who prove their address.
        on_revoked: called with the worker tokens that a reset has revoked.
    """

    def __init__(
        self,
        context: Context,
        passwords: Passwords,
        proofs: Proofs,
        requests: Outbox,
        letters: Letters,
        accounts: Accounts,
        limits: LoginLimits,
        on_revoked: Callable[[Sequence[Revoked]], Awaitable[None]],
    ) -> None:
        self._on_revoked = on_revoked
        self._letters = letters
        self._accounts = accounts
        self._failures = Throttle(limits.failures_per_client, LOGIN_WINDOW_SECONDS, context.now)
        self._context = context
        self._store = context.store
        self._passwords = passwords
        self._proofs = proofs
        self._requests = requests
        self._now = context.now

    async def resend_verification(self, caller: Caller) -> None:
        """Send the e-mail that confirms an address again, unless it is confirmed.

        Raises:
            MarketError: `too_many_attempts`.
        """
        profile = caller.profile
        if profile.email_verified_at is None:
            proof = self._proofs.of_address(profile.user_id, profile.email)
            await self._store.write(_renew, proof)
            self._proofs.wake()

    async def verify(self, secret: str) -> None:
        """Confirm the address that received a secret.

        Raises:
            MarketError: `invalid_mail_token`.
        """
        await self._store.write(_verify, hashed(secret), self._now())

    async def forgot(self, email: str) -> None:
        """Send an e-mail to the user of an address, if one exists; return before that is known.

        Raises:
            MarketError: `too_many_attempts`.
        """
        key = email_key(email)
        self._proofs.count(key)
        request = self._requests.item(
            hashlib.sha256(key.encode()).hexdigest(),
            share=mail_share(email),
            payload=key.encode(),
            lifetime_seconds=RESET_SECONDS,
        )
        await self._store.write(outbox_queries.put, request)
        self._requests.wake()

    async def reset(self, secret: str, password: str, *, client: str = "") -> None:
        """Replace the password of the user the secret was sent to; all their login sessions end.

        Args:
            secret: the secret from the e-mail.
            password: the new one.
            client: the network that they are counted by.

        Raises:
            MarketError: `invalid_mail_token`, `invalid_field`, `too_busy`, `too_many_attempts`.
        """
        check_password(password)
        with self._failures.attempt(client, (Code.INVALID_MAIL_TOKEN,)):
            # Looked up before anything is hashed: hashing is dear, and asking is free.
            await self._store.read(_owner, hashed(secret), "reset", self._now())
            encoded = await self._passwords.hash(password, client=client)
            email, revoked = await self._store.write(
                _reset, self._context, self._letters, hashed(secret), encoded
            )
        self._accounts.forgive(email)
        self._letters.wake()
        await self._on_revoked(revoked)

    async def run(self) -> None:
        """Answer the requests that `forgot` has stored, until this task is cancelled."""
        while True:
            try:
                await self._requests.tidy()
                while await self._answer_some():
                    pass
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "forgotten passwords wait for the store to return: %s",
                    error,
                )
            await self._requests.wait(LOOK_SECONDS)

    async def _answer_some(self) -> int:
        """Answer the requests that have waited longest. Return their number."""
        rows = await self._requests.due(again=False, limit=LOOK_MAX_REQUESTS)
        for row in rows:
            await self._answer(row)
        return len(rows)

    async def _answer(self, request: OutboxRow) -> None:
        proof, key = None, self._requests.opened(request)
        if key is None:
            _logger.error(
                "a request for a forgotten password is dropped: it was sealed under another key"
            )
        else:
            user = await self._store.read(users.find_by_email, key.decode())
            if user is not None:
                proof = self._proofs.of_ownership(user.id, user.email)
        await self._store.write(_answer, request, proof)
        if proof is not None:
            self._proofs.wake()


async def _renew(tx: Transaction, proof: Proof) -> None:
    """Keep a proof, unless its user was erased after the look for their address."""
    await users.lock(tx, proof.user_id)  # as an erasure does, which deletes the e-mail otherwise
    if not await closures.is_erased(tx, proof.user_id):
        await keep(tx, proof)


async def _answer(tx: Transaction, request: OutboxRow, proof: Proof | None) -> None:
    """Keep the requested proof, unless another daemon has answered the request."""
    if proof is not None:
        await users.lock(tx, proof.user_id)  # before the request, as an erasure does
    if await outbox_queries.delete(tx, request.id) and proof is not None:
        await _renew(tx, proof)


async def _owner(tx: Transaction, token_hash: str, purpose: str, now: int) -> str:
    user_id = await users.owner_of_mail_token(tx, token_hash=token_hash, purpose=purpose, now=now)
    if user_id is None:
        raise MarketError(Code.INVALID_MAIL_TOKEN, field="token")
    return user_id


async def _use(tx: Transaction, token_hash: str, purpose: str, now: int) -> str:
    """Use a secret up, and lock its user; every transaction locks the user first."""
    await users.lock(tx, await _owner(tx, token_hash, purpose, now))
    user_id = await users.use_mail_token(tx, token_hash=token_hash, purpose=purpose, now=now)
    if user_id is None:
        raise MarketError(Code.INVALID_MAIL_TOKEN, field="token")
    return user_id


async def _verify(tx: Transaction, token_hash: str, now: int) -> None:
    await users.set_email_verified(tx, await _use(tx, token_hash, "verify", now), now)


async def _reset(
    tx: Transaction, context: Context, letters: Letters, token_hash: str, password_hash: str
) -> tuple[str, list[Revoked]]:
    """Replace a password, and end all objects that a thief may have made.

    Returns:
        The address which the secret was sent to, and the worker tokens that were revoked.
    """
    now = context.now()
    user_id = await _use(tx, token_hash, "reset", now)
    await users.set_email_verified(tx, user_id, now)  # first: only then is there an e-mail
    await replace_password(tx, context, letters, user_id, NewPassword(password_hash))
    # A thief with the old one may have made keys, read keys of apps, and led events elsewhere.
    await end_all(tx, context, user_id)
    await apps.forget_of(tx, user_id)
    await disable_all(tx, context, user_id)
    revoked = await revoke_made(tx, context, user_id)
    user = await users.find(tx, user_id)
    if user is None:
        raise LookupError(f"the user {user_id} does not exist")
    return user.email, revoked
