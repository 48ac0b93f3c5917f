"""Logins of the staff: a password and a code give a token, for eight hours at most."""

import hmac

from msgspec import Struct

from market.accounts.passwords import Passwords
from market.accounts.tokens import Claims, Tokens
from market.base.errors import Code, MarketError
from market.base.networks import counted_network
from market.base.sealing import derived
from market.base.throttle import Throttle
from market.base.user_fields import PASSWORD_MAX_CHARACTERS, check_password, email_key
from market.events.context import Context
from market.staff.base.acts import STAFF, Act, Changes, act
from market.staff.base.callers import StaffCaller
from market.staff.base.roles import Action, Member, Role, Via
from market.staff.members import attempts
from market.staff.members.accounts import use_code
from market.staff.members.attempts import WINDOW_SECONDS, WRONG_MAX, Attempt
from market.staff.members.factors import Factors
from storage.engines.store import Transaction
from storage.staff.base import staff as staff_queries
from storage.staff.base import writes
from storage.staff.base.staff import StaffRow
from storage.staff.members import logins as queries

AUDIENCE = "staff"
LIFETIME_SECONDS = 8 * 3_600
IDLE_SECONDS = 30 * 60
WRONG_OF_NETWORK_MAX = 100  # in the same window, over all accounts
PROVED_SECONDS = 5 * 60  # how long a proof of the second factor counts
SEEN_SECONDS = 60  # shortest time between two records that a login is used
KEPT_SECONDS = 90 * 86_400
WRONG = "The e-mail address, the password or the code is wrong."
ENDED = "The login has ended; log in again."
WRONG_CODES = frozenset((Code.INVALID_CREDENTIALS,))
# Every one of these has the same answer, so that no guess is confirmed before all of it is right.
UNPROVED = frozenset((Code.SECOND_FACTOR_WRONG, Code.NOT_PERMITTED, Code.STAFF_NOT_FOUND))


class Proof(Struct, frozen=True):
    """Fields of a login."""

    email: str
    password: str
    code: str


class StaffLogin(Struct, frozen=True):
    """A new login: its token, its member, and its end in UTC seconds."""

    token: str
    staff_id: str
    email: str
    role: Role
    expires_at: int


class StaffLogins:
    """Logins of the staff.

    Args:
        key: the signing key of the service; the key of the tokens is derived from it.
    """

    def __init__(
        self, context: Context, passwords: Passwords, factors: Factors, key: bytes
    ) -> None:
        self._context = context
        self._store = context.store
        self._passwords = passwords
        self._factors = factors
        self._tokens = Tokens(
            derived(key, b"staff signing"), lifetime_seconds=LIFETIME_SECONDS, audience=AUDIENCE
        )
        self._accounts_key = derived(key, b"staff attempts")
        # Refuse a flood of guesses before it costs a transaction; the table is exact. The second
        # throttle bounds the rows that a network adds with ever new addresses.
        self._throttle = Throttle(WRONG_MAX, WINDOW_SECONDS, context.now)
        self._throttle_of_networks = Throttle(WRONG_OF_NETWORK_MAX, WINDOW_SECONDS, context.now)

    async def login(self, proof: Proof, *, address: str, via: Via) -> StaffLogin:
        """Log a member in.

        Every wrong proof has the same answer, and a locked member gets it also.

        Raises:
            MarketError: `invalid_credentials`, `too_busy`, `too_many_attempts`.
        """
        network = counted_network(address)
        key = email_key(proof.email)
        found = await self._store.read(staff_queries.find_by_email, key)
        account = found.id if found is not None else self._unknown(key)
        with (
            self._throttle_of_networks.attempt(network, WRONG_CODES),
            self._throttle.attempt(f"{account} {network}", WRONG_CODES),
        ):
            attempt = Attempt(account, None if found is None else found.id, network, via)
            attempt_id = await attempts.begin(self._context, attempt)
            encoded = found.password_hash if found is not None else None
            is_right = await self._passwords.verify(
                proof.password[: PASSWORD_MAX_CHARACTERS + 1], encoded, client=network
            )
            try:
                return await self._log_in(found, proof, attempt_id, attempt, is_right=is_right)
            except MarketError as error:
                if error.code in UNPROVED:
                    raise MarketError(Code.INVALID_CREDENTIALS, WRONG) from None
                raise

    async def _log_in(
        self,
        found: StaffRow | None,
        proof: Proof,
        attempt_id: str,
        attempt: Attempt,
        *,
        is_right: bool,
    ) -> StaffLogin:
        """Use up the code and add the login, in one transaction.

        A wrong password also begins the transaction, so that it takes as long as a wrong code.
        """
        context, login_id, now = self._context, self._context.identifiers.new(), self._context.now()
        staff_id = "" if found is None else found.id
        role = Role.SUPPORT if found is None else Role(found.role)

        async def change(tx: Transaction) -> tuple[None, Changes]:
            changes = await use_code(tx, context, self._factors, staff_id, proof.code)
            if not is_right:
                raise MarketError(Code.SECOND_FACTOR_WRONG)
            await attempts.end(tx, context, attempt_id)
            await queries.insert_login(
                tx,
                login_id=login_id,
                staff_id=staff_id,
                network=attempt.network,
                now=now,
                expires_at=now + LIFETIME_SECONDS,
                kept_since=now - KEPT_SECONDS,
                factor_at=now,
            )
            return None, {**changes, "login": (None, login_id)}

        new = Act(Member(staff_id, role, attempt.via), Action.STAFF_LOGIN, STAFF, staff_id)
        await self._store.write(act, context, new, change)
        token = self.token(staff_id, login_id, now)
        email = "" if found is None else found.email
        return StaffLogin(token, staff_id, email, role, now + LIFETIME_SECONDS)

    def token(self, staff_id: str, login_id: str, now: int) -> str:
        """Return the token of a login."""
        return self._tokens.sign(Claims(staff_id, login_id, now), token_id=login_id)

    def _unknown(self, key: str) -> str:
        """Return the account of an address without a member: people type passwords there."""
        return hmac.digest(self._accounts_key, key.encode(errors="replace"), "sha256").hex()

    async def authenticate(self, token: str, via: Via) -> StaffCaller:
        """Return the member whose token this is, as of now.

        Raises:
            MarketError: `unauthorized`.
        """
        now = self._context.now()
        claims = self._tokens.verify(token, now=now)
        row = await self._store.read(
            queries.live, claims.session_id, now=now, seen_since=now - IDLE_SECONDS
        )
        if row is None or row.staff_id != claims.user_id:
            raise MarketError(Code.UNAUTHORIZED, ENDED)
        if row.seen_at <= now - SEEN_SECONDS:
            await self._store.write(queries.see, row.id, now)
        return StaffCaller(
            row.id,
            row.staff_id,
            row.email,
            Role(row.role),
            via,
            row.expires_at,
            is_proved=row.factor_at > now - PROVED_SECONDS,
        )

    async def is_current(self, caller: StaffCaller) -> bool:
        """Return whether a login is still valid, without a note of its use."""
        now = self._context.now()
        row = await self._store.read(
            queries.live, caller.session_id, now=now, seen_since=now - IDLE_SECONDS
        )
        return row is not None and row.role == caller.role

    async def prove(self, caller: StaffCaller, code: str, *, address: str) -> None:
        """Prove the second factor of a login again, for acts that want it (`PROVED`).

        Raises:
            MarketError: `second_factor_wrong`, `too_many_attempts`.
        """
        attempt = Attempt(caller.staff_id, caller.staff_id, counted_network(address), caller.via)
        attempt_id = await attempts.begin(self._context, attempt)

        async def change(tx: Transaction) -> tuple[None, Changes]:
            changes = await use_code(tx, self._context, self._factors, caller.staff_id, code)
            await attempts.end(tx, self._context, attempt_id)
            await queries.prove(tx, caller.session_id, self._context.now())
            return None, changes

        new = Act(caller.member, Action.STAFF_CHECK, STAFF, caller.staff_id)
        await self._store.write(act, self._context, new, change)

    async def logout(self, caller: StaffCaller) -> None:
        """End the login of a caller."""
        now = self._context.now()

        async def change(tx: Transaction) -> tuple[None, Changes]:
            await queries.end(tx, caller.session_id, now)
            return None, {"login": (caller.session_id, None)}

        new = Act(caller.member, Action.STAFF_LOGOUT, STAFF, caller.staff_id)
        await self._store.write(act, self._context, new, change)

    async def change_password(
        self, caller: StaffCaller, proof: Proof, new_password: str, *, address: str
    ) -> None:
        """Replace the password of a caller, who proves the old one and a code.

        Every other login of the member ends.

        Raises:
            MarketError: `invalid_credentials`, `invalid_field`, `too_busy`, `too_many_attempts`.
        """
        check_password(new_password, field="new_password")
        network = counted_network(address)
        attempt = Attempt(caller.staff_id, caller.staff_id, network, caller.via)
        attempt_id = await attempts.begin(self._context, attempt)
        row = await self._store.read(staff_queries.find, caller.staff_id)
        encoded = None if row is None else row.password_hash
        old = proof.password[: PASSWORD_MAX_CHARACTERS + 1]
        if not await self._passwords.verify(old, encoded, client=network):
            raise MarketError(Code.INVALID_CREDENTIALS, WRONG)
        password_hash = await self._passwords.hash(new_password, client=network)

        async def change(tx: Transaction) -> tuple[None, Changes]:
            changes = await use_code(tx, self._context, self._factors, caller.staff_id, proof.code)
            await attempts.end(tx, self._context, attempt_id)
            await writes.set_password(tx, caller.staff_id, password_hash)
            await queries.end_all(tx, caller.staff_id, self._context.now(), but=caller.session_id)
            return None, {**changes, "password": (None, "changed")}

        new = Act(caller.member, Action.STAFF_PASSWORD, STAFF, caller.staff_id)
        try:
            await self._store.write(act, self._context, new, change)
        except MarketError as error:
            if error.code is Code.SECOND_FACTOR_WRONG:
                raise MarketError(Code.INVALID_CREDENTIALS, WRONG) from None
            raise
