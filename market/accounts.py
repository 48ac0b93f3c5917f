"""Accounts of people: registering, logging in, and what they own."""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from market import ledger
from market.errors import Code, MarketError
from market.ids import Identifiers
from market.ledger import Movement, Transfer
from market.money import Currency
from market.passwords import Passwords
from market.referrals import Rewards, parse_code, refer
from market.throttle import Throttle
from market.tokens import Claims, Tokens
from storage import ledger as ledger_queries
from storage import users as queries
from storage.store import Store, Transaction
from storage.users import LoginRow, UserRow

USERNAME_MAX_CHARACTERS = 50
EMAIL_MAX_CHARACTERS = 254
PASSWORD_MIN_CHARACTERS = 8
PASSWORD_MAX_CHARACTERS = 128
LOGIN_MAX_SECONDS = 30 * 86_400
LOGIN_WINDOW_SECONDS = 15 * 60
HOUR_SECONDS = 3_600
KNOWN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Login:
    """A login that succeeded: the token to show from now on, and whose it is."""

    token: str
    profile: LoginRow


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever shows a valid session token, and the login session it belongs to."""

    profile: LoginRow
    session_id: str


@dataclass(frozen=True, slots=True)
class LoginLimits:
    """How often somebody may fail to log in within a quarter of an hour, and register in an hour.

    0 switches a limit off.
    """

    failures_per_email: int = 10
    failures_per_client: int = 100
    registrations_per_client: int = 30


class Accounts:
    """Registers people, lets them in, and knows who is calling.

    Args:
        store: where accounts are kept.
        passwords: hashes and verifies.
        tokens: signs and verifies.
        identifiers: makes identifiers.
        now: the wall clock, in UTC seconds.
        limits: how often somebody may try.
        rewards: what somebody earns who comes by another's code, and that other.
    """

    def __init__(
        self,
        store: Store,
        passwords: Passwords,
        tokens: Tokens,
        identifiers: Identifiers,
        now: Callable[[], int],
        limits: LoginLimits,
        rewards: Rewards,
    ) -> None:
        self._rewards = rewards
        self._store = store
        self._passwords = passwords
        self._tokens = tokens
        self._identifiers = identifiers
        self._now = now
        # By token: who it was, as of a version of the store and a second, and no longer.
        self._known: dict[str, tuple[bytes | None, int, Caller]] = {}
        self._failures_by_email = Throttle(limits.failures_per_email, LOGIN_WINDOW_SECONDS, now)
        self._failures_by_client = Throttle(limits.failures_per_client, LOGIN_WINDOW_SECONDS, now)
        self._registrations = Throttle(limits.registrations_per_client, HOUR_SECONDS, now)

    async def register(
        self, *, username: str, email: str, password: str, ref: str = "", client: str = ""
    ) -> tuple[Login, bool]:
        """Open an account and log its owner in; say too whether the referral code was applied.

        Args:
            username: how others see them.
            email: how they log in.
            password: what nobody else knows.
            ref: the referral code of whoever sent them; one that is no good stops nothing.
            client: the network address they come from.

        Raises:
            MarketError: `invalid_field`, `email_taken`, `username_taken`, `too_busy`,
                `too_many_attempts`.
        """
        self._registrations.check(client)
        user = await prepared_user(
            self._passwords,
            user_id=self._identifiers.new(),
            username=username,
            email=email,
            password=password,
            now=self._now(),
        )
        referred = bool(ref)
        try:
            await self._store.write(_register, user, ref, self._rewards, self._identifiers.new())
        except _NotReferredError:
            referred = False
            await self._store.write(add_user, user)
        self._registrations.count(client)
        return await self._logged_in(user.id), referred

    async def login(self, *, email: str, password: str, client: str = "") -> Login:
        """Let somebody in; `client` is the address they come from.

        An e-mail address that nobody has is answered like a wrong password, and takes as long.

        Raises:
            MarketError: `invalid_credentials`, `too_busy`, `too_many_attempts`.
        """
        self._failures_by_email.check(email_key(email))
        self._failures_by_client.check(client)
        user = await self._store.read(queries.find_by_email, email_key(email))
        encoded = user.password_hash if user is not None else None
        right = await self._passwords.verify(password[: PASSWORD_MAX_CHARACTERS + 1], encoded)
        if user is None or not right:
            self._failures_by_email.count(email_key(email))
            self._failures_by_client.count(client)
            raise MarketError(Code.INVALID_CREDENTIALS)
        self._failures_by_email.forget(email_key(email))
        return await self._logged_in(user.id)

    async def logout(self, caller: Caller) -> None:
        """End the login session of whoever calls; its tokens are worth nothing at once."""
        await self._store.write(queries.end_login, caller.session_id, self._now())

    async def refresh(self, caller: Caller) -> str:
        """Return a new token of the same login session; the old one lives out its time.

        Raises:
            MarketError: `login_too_old`, when the session ends before such a token could be used.
        """
        now = self._now()
        expires_at = await self._store.read(queries.login_expires_at, caller.session_id)
        if expires_at is None or expires_at <= now:
            raise MarketError(Code.LOGIN_TOO_OLD)
        claims = Claims(caller.profile.user_id, caller.session_id, now)
        return self._tokens.sign(claims, token_id=self._identifiers.new())

    async def change_password(self, caller: Caller, *, old: str, new: str) -> None:
        """Replace the password of whoever calls; every other login session of theirs ends.

        Raises:
            MarketError: `wrong_password`, `invalid_field`, `too_busy`, `too_many_attempts`.
        """
        check_password(new, field="new_password")
        user = await self._store.read(queries.find, caller.profile.user_id)
        if user is None:
            raise MarketError(Code.UNAUTHORIZED)
        self._failures_by_email.check(email_key(user.email))
        if not await self._passwords.verify(old, user.password_hash):
            self._failures_by_email.count(email_key(user.email))
            raise MarketError(Code.WRONG_PASSWORD, field="old_password")
        encoded = await self._passwords.hash(new)
        await self._store.write(
            replace_password, user.id, encoded, keep=caller.session_id, now=self._now()
        )

    async def authenticate(self, token: str) -> Caller:
        """Return whose token this is, as of now.

        Raises:
            MarketError: `unauthorized`.
        """
        now, version = self._now(), self._store.version()
        known = self._known.get(token)
        if known is not None and version is not None and known[:2] == (version, now):
            return known[2]
        claims = self._tokens.verify(token, now=now)
        profile = await self._store.read(
            queries.profile_by_login, session_id=claims.session_id, user_id=claims.user_id, now=now
        )
        if profile is None:
            raise MarketError(Code.UNAUTHORIZED, "The login session has ended.")
        caller = Caller(profile, claims.session_id)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[token] = (version, now, caller)
        return caller

    async def _logged_in(self, user_id: str) -> Login:
        now = self._now()
        claims = Claims(user_id, self._identifiers.new(), now)
        profile = await self._store.write(_begin_login, claims)
        return Login(self._tokens.sign(claims, token_id=self._identifiers.new()), profile)


async def prepared_user(
    passwords: Passwords, *, user_id: str, username: str, email: str, password: str, now: int
) -> UserRow:
    """Check what a new user gave, and hash the password.

    Raises:
        MarketError: `invalid_field` naming the field, `too_busy`.
    """
    _check_username(username)
    _check_email(email)
    check_password(password)
    return UserRow(user_id, username, email, await passwords.hash(password), None, now)


async def add_user(tx: Transaction, user: UserRow) -> None:
    """Store a user with empty accounts.

    Raises:
        MarketError: `email_taken`, `username_taken`.
    """
    folded = email_key(user.email)
    added = await queries.insert(
        tx, user, username_key=username_key(user.username), email_key=folded
    )
    if not added:
        taken = await queries.find_by_email(tx, folded)
        if taken is not None:
            raise MarketError(Code.EMAIL_TAKEN, field="email")
        raise MarketError(Code.USERNAME_TAKEN, field="username")
    await ledger.open_accounts(tx, user.id)


async def deposit(
    tx: Transaction,
    *,
    email: str,
    currency: Currency,
    amount: int,
    reference: str,
    transfer_id: str,
    now: int,
) -> bool:
    """Pay money into a user's wallet; False when this reference was deposited before.

    Args:
        tx: the transaction.
        email: whose wallet.
        currency: in which currency.
        amount: micro-units, above zero.
        reference: names this deposit, once and for all.
        transfer_id: the identifier of the transfer.
        now: UTC seconds.

    Raises:
        MarketError: `user_not_found`, `invalid_field`, `amount_too_large`; `reference_reused`, when
            it named another deposit.
    """
    user = await queries.find_by_email(tx, email_key(email))
    if user is None:
        raise MarketError(Code.USER_NOT_FOUND, f"There is no user with the address {email}.")
    if amount <= 0:
        raise MarketError(Code.INVALID_FIELD, "A deposit must be above zero.", field=str(currency))
    movement = Movement(ledger.deposits(currency), ledger.available(user.id, currency), amount)
    key = f"deposit:{reference}:{currency}"
    if await ledger.post(tx, Transfer(transfer_id, key, currency, (movement,), now)):
        return True
    if await ledger.posted(tx, key) != [movement]:
        raise MarketError(Code.REFERENCE_REUSED)
    return False


async def spendable(tx: Transaction, email: str) -> dict[Currency, int]:
    """Return what a user can spend, in micro-units by currency.

    Raises:
        MarketError: `user_not_found`.
    """
    user = await queries.find_by_email(tx, email_key(email))
    if user is None:
        raise MarketError(Code.USER_NOT_FOUND, f"There is no user with the address {email}.")
    return {
        currency: await ledger_queries.balance(tx, ledger.available(user.id, currency)) or 0
        for currency in Currency
    }


def email_key(email: str) -> str:
    """Return how e-mail addresses compare: without case."""
    return unicodedata.normalize("NFC", email).casefold()


def username_key(username: str) -> str:
    """Return how user names compare: without case, look-alike forms folded together."""
    return unicodedata.normalize("NFKC", username).casefold()


async def replace_password(
    tx: Transaction, user_id: str, password_hash: str, *, keep: str, now: int
) -> None:
    """Replace a password and end every login session of the user but `keep` ("" for none)."""
    await queries.set_password(tx, user_id, password_hash)
    await queries.end_logins(tx, user_id, but=keep, now=now)


def check_password(password: str, *, field: str = "password") -> None:
    """Check the length of a new password, given in `field`.

    Raises:
        MarketError: `invalid_field`.
    """
    if not PASSWORD_MIN_CHARACTERS <= len(password) <= PASSWORD_MAX_CHARACTERS:
        raise MarketError(
            Code.INVALID_FIELD,
            f"A password has {PASSWORD_MIN_CHARACTERS} to {PASSWORD_MAX_CHARACTERS} characters.",
            field=field,
        )


def _check_username(username: str) -> None:
    if not 1 <= len(username) <= USERNAME_MAX_CHARACTERS:
        raise MarketError(
            Code.INVALID_FIELD,
            f"A user name has 1 to {USERNAME_MAX_CHARACTERS} characters.",
            field="username",
        )
    if any(character.isspace() or not character.isprintable() for character in username):
        raise MarketError(
            Code.INVALID_FIELD, "A user name has no spaces or control characters.", field="username"
        )


def _check_email(email: str) -> None:
    local, _, domain = email.rpartition("@")
    printable = email.isprintable() and not any(character.isspace() for character in email)
    dotted = all(domain.split(".")) and "@" not in local
    if not (local and domain and printable and dotted and len(email) <= EMAIL_MAX_CHARACTERS):
        raise MarketError(
            Code.INVALID_FIELD,
            "This is not an e-mail address like name@example.com.",
            field="email",
        )


class _NotReferredError(Exception):
    """The referral code is no good; all of it is rolled back, and done again without."""


async def _register(
    tx: Transaction, user: UserRow, ref: str, rewards: Rewards, transfer_id: str
) -> None:
    await add_user(tx, user)
    if not ref:
        return
    try:
        await refer(
            tx,
            user.id,
            parse_code(ref),
            rewards=rewards,
            transfer_id=transfer_id,
            now=user.created_at,
        )
    except MarketError as error:
        raise _NotReferredError from error


async def _begin_login(tx: Transaction, claims: Claims) -> LoginRow:
    await queries.insert_login(
        tx,
        session_id=claims.session_id,
        user_id=claims.user_id,
        created_at=claims.issued_at,
        expires_at=claims.issued_at + LOGIN_MAX_SECONDS,
    )
    profile = await queries.profile(tx, claims.user_id)
    if profile is None:
        raise MarketError(Code.UNAUTHORIZED)
    return profile
