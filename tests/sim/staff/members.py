"""A member of the staff: hired at the machine, logged in with a second factor, and acting."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import structs
from pyotp import TOTP, parse_uri

from market.base.errors import Code, MarketError
from market.events.idempotency import Replayed
from market.money.money import MICRO, Currency
from market.staff.base.roles import Author, Machine, Member, Role, Via
from market.staff.desk import StaffDesk
from market.staff.members import accounts
from market.staff.members.accounts import Created
from market.staff.members.logins import Proof
from storage.engines.errors import ConstraintError
from tests.sim.clients import receipt_of
from tests.sim.jobs import Actor
from tests.sim.staff.plans import MemberPlan
from tests.sim.store import EPOCH

if TYPE_CHECKING:
    from random import Random

    from tests.sim.staff.house import House

ROOT = Machine("root")
WHY = "it was asked for"
ADDRESS = "192.0.2.9"
# The amounts that one member moves without a second person.
LIMITS = {Currency.USD: 5 * MICRO, Currency.CREDIT: 500 * MICRO}
USERS = "SELECT id FROM users WHERE password_hash <> 'erased' ORDER BY id"

# Does something at the desk of a daemon, as a member or a program of theirs.
Deed = Callable[[Any, StaffDesk, Author], Coroutine[Any, Any, Any]]


class MemberActor(Actor):
    """A member of the staff, with acts that their role permits, and with others.

    Args:
        house: has the desks, and the other members.
        plan: the actions.
        number: of the member.
        until: when it stops.
    """

    def __init__(self, house: "House", plan: MemberPlan, number: int, until: float) -> None:
        super().__init__(house.network, f"{plan.role}{number}", number, until)
        self.house = house
        self.plan = plan
        self.hired: Created | None = None
        self.draw: Random = house.network.world.draw("member", number)
        self.keys: list[str] = []
        self._password = "a long first password"
        self._token = ""
        self._codes: list[str] = []
        self._step = 0
        self._count = 0

    @property
    def email(self) -> str:
        """The address of the member."""
        return f"{self.name}@staff.example.com"

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return rows of the database."""
        return self.network.books.database.rows(sql, **values)

    def some(self, sql: str, **values: Any) -> Any:
        """Return the first column of one row, drawn from several; "" without rows."""
        rows = self.rows(sql, **values)
        return rows[int(self.draw.random() * len(rows))][0] if rows else ""

    def user(self) -> str:
        """Return a user."""
        return str(self.some(USERS))

    def reference(self) -> str:
        """Return a new reference, or an earlier one of this member."""
        if self.draw.random() < 0.8:
            self._count += 1
        return f"{self.name}-{self._count}"

    async def run(self) -> None:
        """Be hired, log in, and do all of it."""
        world = self.network.world
        while self.hired is None and world.now < self.until:
            await self._hire()
        await self.log_in()
        for at, what in self.plan.steps:
            await asyncio.sleep(max(0.0, at - world.now))
            done = await getattr(self, f"do_{what}")()
            shown = done.code if isinstance(done, MarketError) else "done"
            world.say(f"{self.name} {what}: {shown}")

    # --- the account -----------------------------------------------------------------------------

    async def _hire(self) -> None:
        """Be hired by a command; if its answer was lost, the second factor is replaced."""

        async def create(market: Any) -> Created:
            desk = self.house.desks[market]
            return await accounts.create(
                market.context,
                market.passwords,
                desk.factors,
                ROOT,
                email=self.email,
                password=self._password,
                role=Role(self.plan.role),
                why=WHY,
            )

        made = await self.insist("hire", create)
        if isinstance(made, MarketError) and made.code is Code.EMAIL_TAKEN:
            made = await self.insist(
                "factor",
                lambda market: accounts.reset_factor(
                    market.context, self.house.desks[market].factors, ROOT, self.email, WHY
                ),
            )
        if isinstance(made, Created):
            self.is_hired(made)

    def is_hired(self, made: Created) -> None:
        """Keep a new second factor."""
        self.hired = made
        self._codes = list(made.factor.codes)
        self._step = 0

    def code(self) -> str:
        """Return the code that the authenticator shows; a recovery code if it was used."""
        if self.hired is None:
            return ""
        now = EPOCH + int(self.network.world.now + self.network.books.database.leapt)
        if now // 30 == self._step and self._codes:
            return self._codes.pop()
        self._step = now // 30
        authenticator = parse_uri(self.hired.factor.uri)
        assert isinstance(authenticator, TOTP)
        return str(authenticator.at(now))

    async def log_in(self) -> Any:
        """Log in; each try has a code of its own, because one may have been used."""
        for _ in range(3):
            proof = Proof(self.email, self._password, self.code())
            login = await self.insist(
                "login",
                lambda market, proof=proof: self.house.desks[market].logins.login(
                    proof, address=ADDRESS, via=Via.API
                ),
            )
            if hasattr(login, "token"):
                self._token = login.token
                return login
        return login

    async def do_prove(self) -> Any:
        """Prove the second factor again, and look for the login."""

        async def prove(market: Any, desk: StaffDesk, code: str) -> Any:
            caller = await desk.authenticate(self._token, ADDRESS, Via.API)
            await desk.logins.prove(caller, code, address=ADDRESS)
            return await desk.is_current(caller)

        code = self.code()
        return await self.insist("prove", lambda m: prove(m, self.house.desks[m], code))

    async def do_password(self) -> Any:
        """Choose another password, log out, and log in."""
        self._count += 1
        new, proof = f"a long password {self._count}", Proof("", self._password, self.code())

        async def change(market: Any) -> Any:
            desk = self.house.desks[market]
            caller = await desk.authenticate(self._token, ADDRESS, Via.API)
            await desk.logins.change_password(caller, proof, new, address=ADDRESS)
            await desk.logins.logout(caller)

        before = self._password
        done = await self.insist("password", change)
        for self._password in (new, before):
            if hasattr(await self.log_in(), "token"):
                break
        return done

    # --- acts ------------------------------------------------------------------------------------

    async def at_desk(self, what: str, deed: Deed, token: str = "") -> Any:
        """Do something with the token of the login, or with a key; log in again if it has ended."""

        async def call(market: Any) -> Any:
            desk = self.house.desks[market]
            caller = await desk.authenticate(token or self._token, ADDRESS, Via.API)
            try:
                return await deed(market, desk, caller.member)
            except ConstraintError as error:  # it would be tried again, in vain
                self.network.world.fail(f"{self.name} {what}: {error}", error)
                raise

        done = await self.insist(what, call)
        if isinstance(done, MarketError) and done.code is Code.UNAUTHORIZED and not token:
            await self.log_in()
        return done

    async def once(self, what: str, deed: Deed) -> Any:
        """Do something with an Idempotency-Key: repeated, it acts once."""
        self._count += 1
        key = f"{self.name} {what} {self._count}"

        async def with_key(market: Any, desk: StaffDesk, author: Author) -> Any:
            assert isinstance(author, Member)
            receipt = receipt_of(market, author.staff_id, key)
            try:
                return await deed(market, desk, structs.replace(author, receipt=receipt))
            except Replayed:
                return None

        return await self.at_desk(what, with_key)
