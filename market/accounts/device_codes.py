"""Device authorisation (RFC 8628): a person with a browser lets in a program without one.

The program begins and gets two codes. It shows the short one to its user, who types it into a page
of this service after a login. Meanwhile the program polls with the long code. After the approval,
one poll returns an API key, once. The store keeps only the hashes of both codes, and the key is
made when it is handed over, so the store never holds a usable secret.
"""

import hashlib
import secrets
from collections.abc import Sequence
from ipaddress import ip_network

from msgspec import Struct

from market.accounts.accounts import Caller
from market.accounts.bounds import lock_user
from market.accounts.keys import IssuedKey, NewKey, issue
from market.accounts.letters import Letters
from market.accounts.makers import FRESH_SECONDS
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.base.throttle import Throttle
from market.events.context import Context
from storage.accounts import device_codes as queries
from storage.accounts import users
from storage.accounts.device_codes import DeviceCodeRow
from storage.engines.store import Transaction

LIFETIME_SECONDS = 600
INTERVAL_SECONDS = 5
SLOWER_SECONDS = 5  # added by each request that comes too soon (RFC 8628, section 3.5)
# No vowels, so no words, and no letter that resembles another one: 34 bits in eight letters.
USER_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
USER_CODE_LENGTH = 8
DEVICE_CODE_BYTES = 32
# Wrong codes that a user may type in a minute. At five, a user needs half a million minutes to
# guess one of ten thousand waiting codes, but each code lives ten minutes.
TRIES_MAX, TRIES_SECONDS = 5, 60
BEGUN_MAX, BEGUN_SECONDS = 30, 3_600  # by one network
# Programs that wait for an approval. One more takes the place of the oldest of the network with the
# most, so that one network cannot keep others out: an IPv4 /24, and an IPv6 /32, as providers have.
WAITING_MAX = 10_000
SHARE_BITS = {4: 24, 6: 32}
# How long an expired request is kept, and how many expired ones each new request removes.
KEPT_SECONDS = 3_600
FORGET_MAX = 20
CLIENT_NAME_MAX_CHARACTERS = 64
_DRAWS_MAX = 5  # of a user code that is in use already, once in ten million times


class Begun(Struct, frozen=True):
    """Codes of a program: the one to poll with, and the one to show."""

    device_code: str
    user_code: str


class DeviceCodes:
    """Authorisation of programs that a user has approved.

    Args:
        app_url: the address of the page where people type the code.
        waiting_max: how many programs may wait for an answer.
    """

    def __init__(
        self, context: Context, letters: Letters, app_url: str, waiting_max: int = WAITING_MAX
    ) -> None:
        self.waiting_max = waiting_max
        self._context = context
        self._letters = letters
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._begun = Throttle(BEGUN_MAX, BEGUN_SECONDS, context.now)
        self._tries = Throttle(TRIES_MAX, TRIES_SECONDS, context.now)
        self.verification_uri = f"{app_url}/device"

    async def begin(self, client_name: str, scopes: Sequence[Scope], *, client: str) -> Begun:
        """Register a program that waits for an approval.

        Args:
            client_name: the program's own name; users see it, and the key gets it.
            scopes: the scopes that it requests; the caller has checked them.
            client: the network of the request; users see it as well.

        Raises:
            MarketError: `invalid_field`; `too_many_attempts` from this network; `too_busy`, when
                no code is free.
        """
        name = client_name.strip()
        if not name or len(name) > CLIENT_NAME_MAX_CHARACTERS or not name.isprintable():
            message = (
                f"client_name has 1 to {CLIENT_NAME_MAX_CHARACTERS} characters that can be seen."
            )
            raise MarketError(Code.INVALID_FIELD, message, field="client_name")
        self._begun.take(client)
        now = self._now()
        device_code = secrets.token_urlsafe(DEVICE_CODE_BYTES)
        row = DeviceCodeRow(
            id=self._identifiers.new(),
            device_hash=_hash(device_code),
            user_hash="",
            client_name=name,
            scopes=",".join(dict.fromkeys(scopes)),
            network=client,
            status="pending",
            user_id=None,
            interval_seconds=INTERVAL_SECONDS,
            next_poll_at=now,
            created_at=now,
            expires_at=now + LIFETIME_SECONDS,
            share=_share(client),
        )
        drawn = [_user_code() for _ in range(_DRAWS_MAX)]
        user_code = await self._store.write(_begin, row, drawn, self.waiting_max)
        return Begun(device_code, _shown(user_code))

    async def redeem(self, device_code: str) -> IssuedKey:
        """Make and return the key of an approved program; this works once.

        Raises:
            MarketError: `authorization_pending`, `slow_down`, `access_denied`, `expired_token`; or
                the error that refuses the user another key.
        """
        come = await self._store.write(self._redeem, _hash(device_code))
        if isinstance(come, Code):
            raise MarketError(come)
        self._letters.wake()
        return come

    async def find(self, caller: Caller, user_code: str) -> DeviceCodeRow:
        """Return the program that waits with a code.

        Raises:
            MarketError: `user_code_not_found`; `too_many_attempts` with wrong codes.
        """
        with self._tries.attempt(caller.profile.user_id, {Code.USER_CODE_NOT_FOUND}):
            return await self._store.read(_find, user_code, self._now())

    async def answer(self, caller: Caller, user_code: str, *, is_approved: bool) -> None:
        """Approve or refuse a program.

        Raises:
            MarketError: `user_code_not_found`; `too_many_attempts` with wrong codes;
                `fresh_login_needed` to approve.
        """
        with self._tries.attempt(caller.profile.user_id, {Code.USER_CODE_NOT_FOUND}):
            await self._store.write(_answer, caller, user_code, is_approved, self._now())

    async def _redeem(self, tx: Transaction, device_hash: str) -> IssuedKey | Code:
        """Redeem a code; return a refusal instead of raising it if its changes must be stored."""
        now = self._now()
        row = await queries.find_by_device(tx, device_hash)
        if row is None or row.expires_at <= now or row.status == "redeemed":
            return Code.EXPIRED_TOKEN
        if row.status == "denied":
            return Code.ACCESS_DENIED
        if row.status == "approved" and row.user_id is not None:
            # The account comes before its user. The end of a login also locks the user, and denies
            # the approval.
            await lock_user(tx, row.user_id)
            await users.lock(tx, row.user_id)
            if not await queries.redeem(tx, row.id, now):
                # By another request at the same time, or a login has ended and took it back.
                present = await queries.find_by_device(tx, device_hash)
                is_denied = present is not None and present.status == "denied"
                return Code.ACCESS_DENIED if is_denied else Code.EXPIRED_TOKEN
            scopes = tuple(Scope(scope) for scope in row.scopes.split(","))
            new = NewKey(name=row.client_name, scopes=scopes)
            return await issue(tx, self._context, row.user_id, new, "device", self._letters)
        if await queries.pace(tx, row.id, now):
            return Code.AUTHORIZATION_PENDING
        # Too soon, or another request with the code came at the same time.
        await queries.slow_down(tx, row.id, now, more_seconds=SLOWER_SECONDS)
        return Code.SLOW_DOWN


async def _begin(
    tx: Transaction, row: DeviceCodeRow, drawn: Sequence[str], waiting_max: int
) -> str:
    await queries.delete_before(tx, row.created_at - KEPT_SECONDS, limit=FORGET_MAX)
    if await queries.count_waiting(tx, row.created_at) >= waiting_max:
        await queries.drop_waiting(tx, row.created_at)
    for user_code in drawn:
        if await queries.insert(tx, row._replace(user_hash=_hash(user_code))):
            return user_code
    raise MarketError(Code.TOO_BUSY)


async def _find(tx: Transaction, user_code: str, now: int) -> DeviceCodeRow:
    typed = "".join(user_code.upper().replace("-", "").split())
    row = await queries.find_waiting(tx, _hash(typed), now)
    if row is None:
        raise MarketError(Code.USER_CODE_NOT_FOUND)
    return row


async def _answer(
    tx: Transaction, caller: Caller, user_code: str, is_approved: bool, now: int
) -> None:
    row = await _find(tx, user_code, now)
    # The end of the login finds the approval. A denial refers to the user as well, which locks that
    # row after the request's: two answers at the same time would wait for each other.
    await users.lock(tx, caller.profile.user_id)
    if is_approved:
        began_at = await users.login_began_at(tx, caller.session_id, now)
        if began_at is None or now - began_at >= FRESH_SECONDS:
            raise MarketError(Code.FRESH_LOGIN_NEEDED)
    status, user_id = "approved" if is_approved else "denied", caller.profile.user_id
    if not await queries.answer(tx, row.id, status=status, user_id=user_id, now=now):
        raise MarketError(Code.USER_CODE_NOT_FOUND)


def _share(client: str) -> str:
    """Return the network that a client counts for when too many wait; "" if it has no address."""
    try:
        network = ip_network(client, strict=False)
    except ValueError:
        return ""
    address, bits = network.network_address, SHARE_BITS[network.version]
    return str(ip_network((address, bits), strict=False))


def _user_code() -> str:
    return "".join(secrets.choice(USER_CODE_LETTERS) for _ in range(USER_CODE_LENGTH))


def _shown(user_code: str) -> str:
    """Return a code as people read it out."""
    half = USER_CODE_LENGTH // 2
    return f"{user_code[:half]}-{user_code[half:]}"


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
