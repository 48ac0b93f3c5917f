"""Accounts of users: registration, login, and their data."""

import hashlib
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from market.accounts.letters import Letters
from market.accounts.mail import password_changed
from market.accounts.passwords import Passwords
from market.accounts.proofs import Proof, Proofs, keep
from market.accounts.referrals import Rewards, parse_code, refer
from market.accounts.scopes import Grant, Maker, permits
from market.accounts.suspensions import Part
from market.accounts.tokens import Claims, Tokens
from market.base.errors import Code, MarketError
from market.base.networks import site
from market.base.throttle import Throttle
from market.base.user_fields import (
    PASSWORD_MAX_CHARACTERS,
    check_email,
    check_password,
    check_username,
    email_key,
    username_key,
)
from market.events.catalogue import AccountReopened, LoginNewNetwork, PasswordChanged, timestamp
from market.events.context import Context
from market.events.idempotency import Receipt
from market.events.recording import record
from market.money import ledger
from market.money.money import Currency
from market.site.gate import NO_PAPERS, Gate, Papers
from storage.accounts import closures, device_codes
from storage.accounts import keys as key_queries
from storage.accounts import suspensions as suspension_queries
from storage.accounts import users as queries
from storage.accounts.keys import KeyRow
from storage.accounts.users import LoginRow, LoginSessionRow, UserRow
from storage.engines.store import Transaction
from storage.money import ledger as ledger_queries

LOGIN_MAX_SECONDS = 30 * 86_400
LOGIN_WINDOW_SECONDS = 15 * 60
HOUR_SECONDS = 3_600
KNOWN_MAX = 10_000
# Networks that are remembered for each user. A user with more networks is notified again of
# forgotten ones.
NETWORKS_MAX = 50
LOGINS_MAX = 100  # that are listed; older ones are ended with "all others"
ENDED = "The login session has ended; log in again."
TAKEN = frozenset({Code.EMAIL_TAKEN, Code.USERNAME_TAKEN, Code.IDEMPOTENCY_KEY_REUSED})
REFUSED = TAKEN | {Code.INVITATION_INVALID, Code.EMAIL_REFUSED}
WRONG = frozenset({Code.INVALID_CREDENTIALS, Code.WRONG_PASSWORD})


class Login(Struct, frozen=True):
    """A login that succeeded: the token to show from now on, and whose it is.

    `reopened`: it has opened a closed account again.
    """

    token: str
    profile: LoginRow
    reopened: bool = False


class Caller(Struct, frozen=True):
    """The user of a valid session token, and its login session.

    With an API key in the token's place, `session_id` is the key's identifier, `key` has its
    scopes, and `address` is the client's.

    `suspended` is the text for a user whose logins are suspended, None for any other user.
    """

    profile: LoginRow
    session_id: str
    key: Grant | None = None
    address: str = ""
    suspended: str | None = None

    @property
    def user_id(self) -> str:
        """The identifier of the user."""
        return self.profile.user_id

    @property
    def purse_id(self) -> str:
        """The purse of the API key in use, "" for a login."""
        return "" if self.key is None else self.key.purse_id

    @property
    def maker(self) -> Maker:
        """The login or API key of the caller, as the maker of an object."""
        return Maker(self.session_id, self.key)


class _Known(Struct, frozen=True):
    """A caller as of one version of the store, until the login session ends (UTC seconds)."""

    version: bytes
    expires_at: int
    caller: Caller


class LoginLimits(Struct, frozen=True):
    """Limits of failures in a quarter of an hour, and of registrations in an hour.

    A failure is a wrong password, a wrong secret, or a request for a taken name. 0 switches a limit
    off.
    """

    failures_per_email: int = 10
    failures_per_client: int = 100
    registrations_per_client: int = 30


class _Throttles:
    """Recent attempts of each e-mail address, client and user.

    `failures_by_user` counts wrong passwords of authenticated callers: they must not be locked out
    by others who fail at their e-mail address.
    """

    def __init__(self, limits: LoginLimits, now: Callable[[], int]) -> None:
        self.failures_by_email = Throttle(limits.failures_per_email, LOGIN_WINDOW_SECONDS, now)
        self.failures_by_client = Throttle(limits.failures_per_client, LOGIN_WINDOW_SECONDS, now)
        self.failures_by_user = Throttle(limits.failures_per_email, LOGIN_WINDOW_SECONDS, now)
        self.refusals = Throttle(limits.failures_per_client, LOGIN_WINDOW_SECONDS, now)
        self.registrations = Throttle(limits.registrations_per_client, HOUR_SECONDS, now)


class Accounts:
    """Registration and login of users, and the lookup of callers.

    Args:
        rewards: the bonuses of a referral for the newcomer and for the owner of the code.
        proofs: makes the e-mail that asks a newcomer to confirm their address.
        gate: the conditions of an account.
    """

    def __init__(
        self,
        context: Context,
        passwords: Passwords,
        tokens: Tokens,
        limits: LoginLimits,
        rewards: Rewards,
        proofs: Proofs,
        letters: Letters,
        gate: Gate,
    ) -> None:
        self._gate = gate
        self._context = context
        self._rewards = rewards
        self._proofs = proofs
        self._letters = letters
        self._store = context.store
        self._passwords = passwords
        self._tokens = tokens
        self._identifiers = context.identifiers
        self._now = context.now
        self._known: dict[str, _Known] = {}  # by token
        self._throttles = _Throttles(limits, context.now)

    async def register(
        self,
        *,
        username: str,
        email: str,
        password: str,
        ref: str = "",
        client: str = "",
        user_agent: str = "",
        papers: Papers = NO_PAPERS,
        receipt: Receipt[tuple[Login, bool]] | None = None,
    ) -> tuple[Login, bool]:
        """Open an account and log its owner in. Return also whether the referral code was applied.

        This also sends the e-mail that asks the owner to confirm the address.

        Args:
            username: the name that other users see.
            email: the address for the login.
            password: the password for the login.
            ref: a referral code; a wrong one does not stop the registration.
            client: the network that counts the attempts.
            user_agent: the name of the program in use.
            papers: the code of an invitation, and the accepted texts.
            receipt: stores the reply, for a request that must take effect once.

        Raises:
            MarketError: `invalid_field`, `email_taken`, `username_taken`, `too_busy`,
                `too_many_attempts`, `idempotency_key_reused`, `registration_closed`,
                `invitation_required`, `invitation_invalid`, `terms_not_accepted`,
                `email_refused`.
            Replayed: this was answered before.
        """
        _check_user(username, email, password)
        self._throttles.registrations.take(client)
        try:
            with self._throttles.refusals.attempt(client, REFUSED):
                if not await self._gate.check(papers):
                    if receipt is not None:  # an earlier attempt may have used the invitation
                        await self._store.read(_replay, email, receipt)
                    raise MarketError(Code.INVITATION_INVALID, field="invitation")
                # Looked up before anything is hashed: hashing is dear, and asking is free.
                await self._refuse_taken(username, email, receipt)
                await self._gate.check_email(email)
                user = await prepared_user(
                    self._passwords,
                    user_id=self._identifiers.new(),
                    username=username,
                    email=email,
                    password=password,
                    now=self._now(),
                    client=client,
                )
                origin = _Origin(client, user_agent, papers)
                return await self._add(user, ref, receipt, origin)
        except Exception:
            self._throttles.registrations.take_back(client)
            raise

    async def login(
        self,
        *,
        email: str,
        password: str,
        client: str = "",
        user_agent: str = "",
        papers: Papers = NO_PAPERS,
    ) -> Login:
        """Log a user in; failures count against the address and against the network `client`.

        A login opens an account again that its owner or the staff has closed.

        The reply to an unknown e-mail address equals the reply to a wrong password, and takes the
        same time.

        Raises:
            MarketError: `invalid_credentials`, `too_busy`, `too_many_attempts`,
                `terms_not_accepted`.
        """
        key = email_key(email)
        with (
            self._throttles.failures_by_email.attempt(key, WRONG),
            self._throttles.failures_by_client.attempt(client, WRONG),
        ):
            user = await self._store.read(queries.find_by_email, key)
            encoded = user.password_hash if user is not None else None
            right = await self._passwords.verify(
                password[: PASSWORD_MAX_CHARACTERS + 1], encoded, client=client
            )
            if user is None or not right:
                raise MarketError(Code.INVALID_CREDENTIALS)
            login = await self._logged_in(user, _Origin(client, user_agent, papers))
        self._throttles.failures_by_email.forget(key)
        return login

    async def logout(self, caller: Caller) -> None:
        """End the caller's login session and invalidate its tokens."""

        async def unit(tx: Transaction) -> None:
            await self._take_back(tx, caller)
            await queries.end_login(tx, caller.session_id, self._now())

        await self._store.write(unit)

    async def logins(self, caller: Caller) -> list[LoginSessionRow]:
        """Return the caller's login sessions that are valid, newest first, a hundred at most."""
        return await self._store.read(
            queries.logins, caller.profile.user_id, now=self._now(), limit=LOGINS_MAX
        )

    async def end_login(self, caller: Caller, session_id: str) -> None:
        """End a login session of the caller and invalidate its tokens.

        Raises:
            MarketError: `login_not_found`.
        """
        user_id, now = caller.profile.user_id, self._now()

        async def unit(tx: Transaction) -> None:
            await self._take_back(tx, caller)
            if not await queries.end_login_of(tx, session_id, user_id=user_id, now=now):
                raise MarketError(Code.LOGIN_NOT_FOUND)

        await self._store.write(unit)

    async def end_other_logins(self, caller: Caller) -> None:
        """End every login session of the caller except the requesting one."""
        user_id = caller.profile.user_id

        async def unit(tx: Transaction) -> None:
            await self._take_back(tx, caller)
            await queries.end_logins(tx, user_id, but=caller.session_id, now=self._now())

        await self._store.write(unit)

    async def _take_back(self, tx: Transaction, caller: Caller) -> None:
        """Deny programs that a login of a user has approved and that have no key yet.

        The login may be the one that ends, and a thief's. The user is locked, so that an approval
        at the same time comes before, or finds that its login has ended.
        """
        await queries.lock(tx, caller.profile.user_id)
        await device_codes.deny_approved(tx, caller.profile.user_id)

    async def refresh(self, caller: Caller) -> str:
        """Return a new token of the same login session; the old one stays valid until it expires.

        A token is void once its session has ended, thirty days after the login.
        """
        claims = Claims(caller.profile.user_id, caller.session_id, self._now())
        return self._tokens.sign(claims, token_id=self._identifiers.new())

    async def change_password(
        self, caller: Caller, *, old: str, new: str, client: str = ""
    ) -> None:
        """Replace the caller's password; every other login session of theirs ends.

        Raises:
            MarketError: `wrong_password`, `invalid_field`, `too_busy`, `too_many_attempts`;
                `unauthorized`, when this login session was ended meanwhile.
        """
        check_password(new, field="new_password")
        user_id = caller.profile.user_id
        with self._throttles.failures_by_user.attempt(user_id, WRONG):
            user = await self._verified(user_id, old, "old_password", client)
            encoded = await self._passwords.hash(new, client=client)
            new_password = NewPassword(encoded, caller.session_id)
            await self._store.write(
                _change_password, self._context, self._letters, user, new_password
            )
        self._letters.wake()

    async def require_password(self, caller: Caller, password: str, *, client: str = "") -> UserRow:
        """Return the caller's row, if this is their password; failures count as for a change.

        Raises:
            MarketError: `wrong_password`, `too_busy`, `too_many_attempts`, `unauthorized`.
        """
        with self._throttles.failures_by_user.attempt(caller.user_id, WRONG):
            return await self._verified(caller.user_id, password, "password", client)

    async def _verified(self, user_id: str, password: str, field: str, client: str) -> UserRow:
        user = await self._store.read(queries.find, user_id)
        if user is None:
            raise MarketError(Code.UNAUTHORIZED)
        shown = password[: PASSWORD_MAX_CHARACTERS + 1]
        if not await self._passwords.verify(shown, user.password_hash, client=client):
            raise MarketError(Code.WRONG_PASSWORD, field=field)
        return user

    def forgive(self, email: str) -> None:
        """Forget the failed logins at an address whose owner has proved who they are."""
        self._throttles.failures_by_email.forget(email_key(email))

    async def authenticate(self, token: str) -> Caller:
        """Return the caller whose token this is, as of now.

        Raises:
            MarketError: `unauthorized`.
        """
        now, version = self._now(), self._store.version()
        claims = self._tokens.verify(token, now=now)
        known = self._known.get(token)
        if known is not None and known.version == version and now < known.expires_at:
            return known.caller
        login = await self._store.read(
            queries.profile_by_login, session_id=claims.session_id, user_id=claims.user_id, now=now
        )
        if login is None:
            raise MarketError(Code.UNAUTHORIZED, ENDED)
        profile, expires_at, suspended = login
        caller = Caller(profile, claims.session_id, suspended=suspended)
        if version is not None:  # without a version, a stale cached caller would be accepted
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[token] = _Known(version, expires_at, caller)
        return caller

    async def is_current(self, caller: Caller) -> bool:
        """Return whether the login or key of a caller has neither ended nor expired.

        Neither may be suspended, and a key must also permit the caller's address still. A login
        that was suspended when the request began stays current: its path is open meanwhile.

        Raises:
            StoreError: the database is unavailable.
        """
        now = self._now()
        if caller.key is not None:
            key = await self._store.read(_usable_key, caller.key.key_id, now)
            return key is not None and permits(key.allow_ips, caller.address)
        login = await self._store.read(
            queries.profile_by_login,
            session_id=caller.session_id,
            user_id=caller.profile.user_id,
            now=now,
        )
        return login is not None and (login[2] is None or caller.suspended is not None)

    async def _refuse_taken(
        self, username: str, email: str, receipt: Receipt[tuple[Login, bool]] | None
    ) -> None:
        """Refuse a name or an address that is taken; replay the request that took the address."""
        refusal = await self._store.read(_refusal, username, email)
        if refusal is Code.EMAIL_TAKEN and receipt is not None:
            await self._store.read(_replay, email, receipt)
        if refusal is not None:
            raise MarketError(refusal, field="email" if refusal is Code.EMAIL_TAKEN else "username")

    async def _add(
        self,
        user: UserRow,
        ref: str,
        receipt: Receipt[tuple[Login, bool]] | None,
        origin: "_Origin",
    ) -> tuple[Login, bool]:
        """Store a user with a login. Return whether the referral code was applied."""
        claims = Claims(user.id, self._identifiers.new(), user.created_at)
        token = self._tokens.sign(claims, token_id=self._identifiers.new())
        proof = self._proofs.of_address(user.id, user.email)
        new = _Registration(
            user, claims, token, ref, self._rewards, self._identifiers.new(), proof, receipt, origin
        )
        try:
            try:
                added = await self._store.write(_register, self._context, self._gate, new)
            except _NotReferredError:
                new = replace(new, ref="")
                added = await self._store.write(_register, self._context, self._gate, new)
        except MarketError as error:
            if error.code in TAKEN:  # by a registration at the same time, perhaps this very request
                await self._refuse_taken(user.username, user.email, receipt)
            raise
        self._proofs.wake()
        return added

    async def _logged_in(self, user: UserRow, origin: "_Origin") -> Login:
        """Begin a login session of a user, if the verified password is still the user's."""
        claims = Claims(user.id, self._identifiers.new(), self._now())
        profile, reopened = await self._store.write(
            _begin_login, self._context, self._gate, claims, user.password_hash, origin
        )
        token = self._tokens.sign(claims, token_id=self._identifiers.new())
        return Login(token, profile, reopened)


async def _usable_key(tx: Transaction, key_id: str, now: int) -> KeyRow | None:
    """Return a key, unless it has ended or is suspended."""
    key = await key_queries.find_live(tx, key_id, now)
    if key is None or await suspension_queries.shown(tx, key.user_id, Part.KEYS) is not None:
        return None
    return key


async def prepared_user(
    passwords: Passwords,
    *,
    user_id: str,
    username: str,
    email: str,
    password: str,
    now: int,
    client: str = "",
) -> UserRow:
    """Check the fields of a new user, and hash the password.

    Raises:
        MarketError: `invalid_field` naming the field, `too_busy`.
    """
    _check_user(username, email, password)
    encoded = await passwords.hash(password, client=client)
    return UserRow(user_id, username, email, encoded, None, now)


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
        if await queries.find_by_email(tx, folded) is not None:
            raise MarketError(Code.EMAIL_TAKEN, field="email")
        raise MarketError(Code.USERNAME_TAKEN, field="username")
    await ledger.open_accounts(tx, user.id)


# The beginning of the references of deposits by a payment provider.
OF_PAYMENT = "payment:"


def deposit_key(reference: str, currency: Currency) -> str:
    """Return the business key of a deposit."""
    return f"deposit:{reference}:{currency}"


async def spendable(tx: Transaction, user_id: str) -> tuple[str, dict[Currency, int]]:
    """Return a user's e-mail address, and the spendable money in micro-units by currency.

    Raises:
        MarketError: `user_not_found`.
    """
    user = await queries.find(tx, user_id)
    if user is None:
        raise MarketError(Code.USER_NOT_FOUND)
    return user.email, {
        currency: await ledger_queries.balance(tx, ledger.available(user.id, currency)) or 0
        for currency in Currency
    }


class NewPassword(Struct, frozen=True):
    """A password that replaces one: its hash, and the login that goes on ("" for none)."""

    password_hash: str
    keep: str = ""


async def replace_password(
    tx: Transaction, context: Context, letters: Letters, user_id: str, new: NewPassword
) -> None:
    """Replace a user's password; the caller has locked the user, and wakes the sender of e-mails.

    Every login session of theirs but `new.keep` ends, approved programs without a key are denied,
    and every link that was sent to replace the old password is void. An event and an e-mail follow,
    because a thief may have done it.
    """
    now = context.now()
    await queries.set_password(tx, user_id, new.password_hash)
    await queries.end_logins(tx, user_id, but=new.keep, now=now)
    await device_codes.deny_approved(tx, user_id)
    await queries.void_mail_tokens(tx, user_id, purpose="reset", now=now)
    await record(tx, context, user_id, PasswordChanged(by_email=not new.keep))
    await letters.put(tx, user_id, f"password changed:{user_id}", password_changed)


def _check_user(username: str, email: str, password: str) -> None:
    check_username(username)
    check_email(email)
    check_password(password)


async def _refusal(tx: Transaction, username: str, email: str) -> Code | None:
    if await queries.find_by_email(tx, email_key(email)) is not None:
        return Code.EMAIL_TAKEN
    if await queries.is_name_taken(tx, username_key(username)):
        return Code.USERNAME_TAKEN
    return None


async def _replay(tx: Transaction, email: str, receipt: Receipt[tuple[Login, bool]]) -> None:
    user = await queries.find_by_email(tx, email_key(email))
    if user is not None:
        await receipt.replay(tx, user.id)


async def _change_password(
    tx: Transaction, context: Context, letters: Letters, verified: UserRow, new: NewPassword
) -> None:
    """Replace the verified password, if it has not changed and this login session lives."""
    await queries.lock(tx, verified.id)
    if not await queries.is_live(tx, new.keep, context.now()):
        raise MarketError(Code.UNAUTHORIZED, ENDED)
    user = await queries.find(tx, verified.id)
    if user is None or user.password_hash != verified.password_hash:
        raise MarketError(Code.WRONG_PASSWORD, field="old_password")
    await replace_password(tx, context, letters, user.id, new)


class _NotReferredError(Exception):
    """The referral code is invalid; the registration is rolled back, and repeated without it."""


class _Origin(Struct, frozen=True):
    """Where a login comes from, "" if not known, and the papers that its client shows."""

    client: str
    user_agent: str
    papers: Papers

    @property
    def network(self) -> str:
        """The network of the client."""
        return site(self.client) or self.client


class _Registration(Struct, frozen=True):
    """A user to be stored, and everything that is stored with them."""

    user: UserRow
    claims: Claims
    token: str
    ref: str
    rewards: Rewards
    transfer_id: str
    proof: Proof
    receipt: Receipt[tuple[Login, bool]] | None
    origin: _Origin


async def _register(
    tx: Transaction, context: Context, gate: Gate, new: _Registration
) -> tuple[Login, bool]:
    user = new.user
    await add_user(tx, user)
    await gate.enter(tx, user.id, new.origin.papers, new.origin.network)
    if new.ref:
        try:
            await refer(
                tx,
                context,
                user.id,
                parse_code(new.ref),
                rewards=new.rewards,
                transfer_id=new.transfer_id,
                now=user.created_at,
                is_new=True,
            )
        except MarketError as error:
            raise _NotReferredError from error
    profile, _ = await _begin_login(tx, context, gate, new.claims, user.password_hash, new.origin)
    login = Login(new.token, profile)
    await keep(tx, new.proof)
    if new.receipt is not None:
        await new.receipt.keep_for(tx, user.id, (login, bool(new.ref)))
    return login, bool(new.ref)


async def _begin_login(
    tx: Transaction, context: Context, gate: Gate, claims: Claims, verified: str, origin: _Origin
) -> tuple[LoginRow, bool]:
    """Begin a login. Return its user, and whether it has opened a closed account again."""
    await queries.lock(tx, claims.user_id)
    user = await queries.find(tx, claims.user_id)
    if user is None or user.password_hash != verified:
        raise MarketError(Code.INVALID_CREDENTIALS)
    await gate.log_in(tx, user.id, origin.papers, origin.network)
    reopened = await closures.take_back(tx, user.id)
    if reopened:
        closure = await closures.find(tx, user.id)
        assert closure is not None  # noqa: S101 - it was changed just now
        event = AccountReopened(timestamp(closure.closed_at))
        await record(tx, context, user.id, event)
    await queries.insert_login(
        tx,
        session_id=claims.session_id,
        user_id=claims.user_id,
        created_at=claims.issued_at,
        expires_at=claims.issued_at + LOGIN_MAX_SECONDS,
        network=origin.network,
        user_agent=origin.user_agent,
    )
    await _note_network(tx, context, claims.user_id, origin.client)
    profile = await queries.profile(tx, claims.user_id)
    if profile is None:
        raise MarketError(Code.UNAUTHORIZED)
    return profile, reopened


async def _note_network(tx: Transaction, context: Context, user_id: str, client: str) -> None:
    """Notify a locked user of a login from a network without an earlier login of the user.

    Internet addresses count by their site, because providers change them. The first network of an
    account causes no notification.
    """
    if not client:
        return
    network = site(client) or client
    digest = hashlib.sha256(f"{user_id} {network}".encode()).hexdigest()
    is_news = await queries.note_network(
        tx, user_id=user_id, network_hash=digest, now=context.now(), keep=NETWORKS_MAX
    )
    if is_news:
        await record(tx, context, user_id, LoginNewNetwork(network))
