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


@dataclass(frozen=True, slots=True)
class Login:
    """A login that succeeded: the token to show from now on, and whose it is."""

    token: str
    profile: LoginRow


class Accounts:
    """Registers people, lets them in, and knows who is calling.

    Args:
        store: where accounts are kept.
        passwords: hashes and verifies.
        tokens: signs and verifies; None where nobody logs in (the command line).
        identifiers: makes identifiers.
        now: the wall clock, in UTC seconds.
    """

    def __init__(
        self,
        store: Store,
        passwords: Passwords,
        tokens: Tokens,
        identifiers: Identifiers,
        now: Callable[[], int],
    ) -> None:
        self._store = store
        self._passwords = passwords
        self._tokens = tokens
        self._identifiers = identifiers
        self._now = now

    async def register(self, *, username: str, email: str, password: str) -> Login:
        """Open an account and log its owner in.

        Raises:
            MarketError: `invalid_field`, `email_taken`, `username_taken`, `too_busy`.
        """
        user = await prepared_user(
            self._passwords,
            user_id=self._identifiers.new(),
            username=username,
            email=email,
            password=password,
            now=self._now(),
        )
        await self._store.write(add_user, user)
        return await self._logged_in(user.id)

    async def login(self, *, email: str, password: str) -> Login:
        """Let somebody in.

        An address that nobody has is answered like a wrong password, and takes as long.

        Raises:
            MarketError: `invalid_credentials`, `too_busy`.
        """
        user = await self._store.read(queries.find_by_email, email_key(email))
        encoded = user.password_hash if user is not None else None
        right = await self._passwords.verify(password[: PASSWORD_MAX_CHARACTERS + 1], encoded)
        if user is None or not right:
            raise MarketError(Code.INVALID_CREDENTIALS)
        return await self._logged_in(user.id)

    async def authenticate(self, token: str) -> LoginRow:
        """Return whose token this is, as of now.

        Raises:
            MarketError: `unauthorized`.
        """
        now = self._now()
        claims = self._tokens.verify(token, now=now)
        profile = await self._store.read(
            queries.profile_by_login, session_id=claims.session_id, user_id=claims.user_id, now=now
        )
        if profile is None:
            raise MarketError(Code.UNAUTHORIZED, "The login session has ended.")
        return profile

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


def check_password(password: str) -> None:
    """Check the length of a new password.

    Raises:
        MarketError: `invalid_field`.
    """
    if not PASSWORD_MIN_CHARACTERS <= len(password) <= PASSWORD_MAX_CHARACTERS:
        raise MarketError(
            Code.INVALID_FIELD,
            f"A password has {PASSWORD_MIN_CHARACTERS} to {PASSWORD_MAX_CHARACTERS} characters.",
            field="password",
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
