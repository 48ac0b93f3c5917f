"""People: they register, confirm their addresses, make keys and devices, and lose their passwords.

The product's own mailer sends their letters; only the mail server is simulated.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from market.accounts.keys import KeyChange, NewKey
from market.accounts.scopes import Scope
from market.accounts.spending import LimitsChange, SpendLimits
from market.base.errors import Code, MarketError
from market.events.idempotency import Replayed
from market.jobs.postings import NewJob
from market.jobs.specs import Spec
from market.site.gate import NO_PAPERS, Papers
from proxyctl.protocol.jobspec import payload_of, resources_of
from tests.sim.clients import receipt_of
from tests.sim.deploys import ReplicaAgent
from tests.sim.jobs import CREDIT, Actor, AgentPlan, Records
from tests.sim.letters import MailServer, PeopleBooks

if TYPE_CHECKING:
    from tests.sim.clients import Network

NETWORK = "198.51.100.0/24"
STEPS = (
    *("verify", "key", "key", "buy", "buy", "buy", "buy", "roll", "revoke", "limit", "device"),
    *("device", "remove", "pair", "refer", "wallet", "password", "forgot", "login", "logout"),
)
# No user has it.
NO_CODE = "ZZZZZZZZ"
MAIL_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class PersonPlan:
    """A person.

    Attributes:
        at: when they register.
        referrer: the number of the user whose code they give; None for no code.
        limit: of their keys, in micro-credits.
        deviates: the share of wrong results of their devices.
        steps: their actions: time and kind.
    """

    at: float
    referrer: int | None
    limit: int
    deviates: float
    steps: tuple[tuple[float, str], ...]


def people_of(draw: Random, seconds: float) -> tuple[PersonPlan, ...]:
    """Return the people of a run."""
    people = []
    for _ in range(1 + int(draw.random() * 3)):
        at = 0.3 + 0.3 * seconds * draw.random()
        steps = [
            (round(at + seconds * draw.random(), 3), STEPS[int(draw.random() * len(STEPS))])
            for _ in range(3 + int(draw.random() * 12))
        ]
        people.append(
            PersonPlan(
                at=round(at, 3),
                referrer=int(draw.random() * 3) if draw.random() < 0.6 else None,
                limit=int(40 * CREDIT * draw.random()),
                deviates=draw.random() ** 3,
                steps=tuple(sorted(steps)),
            )
        )
    return tuple(people)


class Person(Actor):
    """Registers, and uses an account.

    Args:
        network: leads to the daemons.
        plan: their actions.
        number: of the person.
        until: when they stop.
        mail: has their letters.
        books: note what their keys buy.
        records: of the answers to their devices.
    """

    def __init__(
        self,
        network: "Network",
        plan: PersonPlan,
        number: int,
        until: float,
        mail: MailServer,
        books: PeopleBooks,
        records: Records,
    ) -> None:
        super().__init__(network, f"person{number}", number, until)
        self.plan = plan
        self.agents: list[PersonalAgent] = []
        # `_number` changes with each try of a request.
        self._first_device = 10 * number + 10
        self._mail = mail
        self._books = books
        self._records = records
        self._password = "a first password"
        self._token = ""
        self._keys: list[Any] = []
        self._count = 0

    @property
    def _email(self) -> str:
        return f"{self.name}@example.org"

    async def run(self) -> None:
        """Do all of it."""
        plan, world = self.plan, self.network.world
        await asyncio.sleep(plan.at)
        if not await self._register():
            world.say(f"{self.name} not registered")
            return
        for at, what in plan.steps:
            await asyncio.sleep(max(0.0, at - world.now))
            done = await getattr(self, f"do_{what}")()
            world.say(f"{self.name} {what}: {done if isinstance(done, MarketError) else 'done'!r}")
        await asyncio.sleep(max(0.0, self.until - world.now))

    async def _register(self) -> bool:
        code = NO_CODE
        if self.plan.referrer is not None:
            user_id = f"user{self.plan.referrer}"
            standing = await self.insist("code", lambda market: market.referrals.standing(user_id))
            code = getattr(standing, "code", NO_CODE)

        async def register(market: Any) -> str:
            login, _ = await market.accounts.register(
                username=self.name,
                email=self._email,
                password=self._password,
                ref=code,
                client=NETWORK,
                user_agent="simulated",
                papers=await self.papers(market),
            )
            return str(login.token)

        token = await self.insist("register", register)
        if isinstance(token, str):
            self._token = token
            return True
        # The answer to an earlier try was lost.
        return bool(await self.do_login())

    async def papers(self, _: Any) -> Papers:
        """Return the texts that the person agrees to."""
        return NO_PAPERS

    async def do_login(self) -> Any:
        async def login(market: Any) -> str:
            made = await market.accounts.login(
                email=self._email,
                password=self._password,
                client=NETWORK,
                user_agent="simulated",
                papers=await self.papers(market),
            )
            return str(made.token)

        token = await self.insist("login", login)
        if isinstance(token, str):
            self._token = token
            return token
        return None

    async def _as_caller(self, what: str, make: Callable[[Any, Any], Any]) -> Any:
        """Send a request with the token of the login; log in again when that has ended."""

        async def call(market: Any) -> Any:
            return await make(market, await market.accounts.authenticate(self._token))

        done = await self.insist(what, call)
        if isinstance(done, MarketError) and done.code is Code.UNAUTHORIZED:
            await self.do_login()
        return done

    # --- the account -----------------------------------------------------------------------------

    async def do_verify(self) -> Any:
        """Confirm the address, or ask for another letter."""
        secret = self._mail.secret(self._email, "verify")
        if not secret:
            return await self._as_caller("resend", lambda m, c: m.recovery.resend_verification(c))
        return await self.insist("verify", lambda market: market.recovery.verify(secret))

    async def do_password(self) -> Any:
        """Choose another password."""
        self._count += 1
        old, new = self._password, f"password {self._count} of {self.name}"

        async def change(market: Any, caller: Any) -> None:
            await market.accounts.change_password(caller, old=old, new=new, client=NETWORK)

        done = await self._as_caller("password", change)
        # If an answer was lost, the next try fails by the old password.
        if done is None or (isinstance(done, MarketError) and done.code is Code.WRONG_PASSWORD):
            self._password = new
        return done

    async def do_forgot(self) -> Any:
        """Replace the password by a letter, which also ends keys and devices made by keys."""
        await self.insist("forgot", lambda market: market.recovery.forgot(self._email))
        await asyncio.sleep(MAIL_SECONDS)
        secret = self._mail.secret(self._email, "reset")
        if not secret:
            return None
        self._count += 1
        new = f"password {self._count} of {self.name}"
        done = await self.insist(
            "reset", lambda market: market.recovery.reset(secret, new, client=NETWORK)
        )
        self._password = new
        await self.do_login()
        return done

    async def do_logout(self) -> Any:
        """End all logins, and begin another."""

        async def end(market: Any, caller: Any) -> None:
            for login in await market.accounts.logins(caller):
                if login.id != caller.session_id:
                    await market.accounts.end_login(caller, login.id)
                    break
            await market.accounts.end_other_logins(caller)
            await market.accounts.refresh(caller)
            await market.accounts.is_current(caller)
            await market.accounts.logout(caller)

        done = await self._as_caller("logout", end)
        await self.do_login()
        return done

    async def do_wallet(self) -> Any:
        """Look at everything."""

        async def look(market: Any, caller: Any) -> None:
            user_id = caller.profile.user_id
            await market.wallet.page(user_id, before="", limit=20)
            await market.referrals.referred(user_id)
            await market.keys.all_of(user_id)
            await market.jobs.page_of_user(user_id, status=None, before="", limit=20)
            await market.jobs.earned_today(user_id)
            rows = await market.devices.page(user_id, before="", limit=20)
            await market.device_work.states(rows)
            for row in rows[:1]:
                await market.device_work.find(user_id, row.id)
                await market.device_work.jobs(user_id, row.id, before="", limit=5)
                await market.device_work.earned(user_id, row.id, 3)

        return await self._as_caller("wallet", look)

    async def do_refer(self) -> Any:
        """Apply another user's code."""

        async def apply(market: Any, caller: Any) -> Any:
            standing = await market.referrals.standing("user3")
            receipt = receipt_of(market, caller.profile.user_id, f"{self.name} code")
            try:
                return await market.referrals.apply(caller.profile.user_id, standing.code, receipt)
            except Replayed:
                return None

        return await self._as_caller("refer", apply)

    # --- keys ------------------------------------------------------------------------------------

    async def do_key(self) -> Any:
        """Make a key."""
        scopes = tuple(Scope) if self._count % 2 else (Scope.JOBS_WRITE, Scope.DEVICES_WRITE)
        new = NewKey(
            name=self.name,
            scopes=scopes,
            expires_in_days=(None, 1, 90)[self._count % 3],
            allow_ips=() if self._count % 2 else (NETWORK,),
            spend_limits=SpendLimits(credit=self.plan.limit, period="lifetime"),
        )
        self._count += 1

        async def make(market: Any, caller: Any) -> Any:
            user_id, login_id = caller.profile.user_id, caller.session_id
            return await market.keys.create(user_id, new, login_id=login_id)

        return self._keep_key(await self._as_caller("key", make))

    def _keep_key(self, issued: Any) -> Any:
        if hasattr(issued, "key"):
            self._keys.append(issued)
        return issued

    async def do_roll(self) -> Any:
        """Replace the last key."""
        if not self._keys:
            return None
        key_id, hours = self._keys[-1].row.id, len(self._keys) % 2

        async def roll(market: Any, caller: Any) -> Any:
            return await market.keys.roll(
                caller.profile.user_id, key_id, overlap_hours=hours, login_id=caller.session_id
            )

        return self._keep_key(await self._as_caller("roll", roll))

    async def do_revoke(self) -> Any:
        """Revoke the last key while it buys a job, and go on to use it."""
        if not self._keys:
            return None
        key_id = self._keys[-1].row.id
        buying = asyncio.get_running_loop().create_task(self.do_buy())
        done = await self._as_caller(
            "revoke", lambda market, caller: market.keys.revoke(caller.profile.user_id, key_id)
        )
        await buying
        return done

    async def do_limit(self) -> Any:
        """Change the limit of the last key."""
        if not self._keys:
            return None
        key_id = self._keys[-1].row.id
        change = KeyChange(
            name="another name", spend_limits=LimitsChange(credit=self.plan.limit // 2)
        )
        return await self._as_caller(
            "limit",
            lambda market, caller: market.keys.change(caller.profile.user_id, key_id, change),
        )

    async def do_buy(self) -> Any:
        """Post a job with the last key."""
        if not self._keys:
            return None
        key, self._count = self._keys[-1], self._count + 1
        title = f"{self.name}-{self._count}"
        price = int(CREDIT * (0.5 + self.network.world.numbers(title)[0] * 8))
        spec = Spec(payload_of({"script": "print(6 * 7)"}), resources_of({}), timeout_seconds=600)
        new = NewJob(title, "script", price, 1, "", "", spec)
        self._books.bought_by[title] = key.row.id, key.row.purse_id

        async def buy(market: Any) -> Any:
            caller = await market.keys.authenticate(key.key, "198.51.100.7")
            receipt = receipt_of(market, caller.profile.user_id, title)
            try:
                return await market.jobs.create(
                    caller.profile.user_id, new, receipt, caller.key.spender
                )
            except Replayed:
                return title

        return await self.insist("buy", buy)

    async def do_pair(self) -> Any:
        """Let a program on another machine in."""

        async def begin(market: Any) -> Any:
            return await market.device_codes.begin("a tool", [Scope.JOBS_READ], client=NETWORK)

        begun = await self.insist("begin", begin)
        if not hasattr(begun, "user_code"):
            return begun

        async def redeem(market: Any) -> Any:
            return await market.device_codes.redeem(begun.device_code)

        async def answer(market: Any, caller: Any) -> Any:
            await market.device_codes.find(caller, begun.user_code)
            is_approved = self._count % 4 != 3
            await market.device_codes.answer(caller, begun.user_code, is_approved=is_approved)

        await self.insist("redeem", redeem)
        await self._as_caller("approve", answer)
        return self._keep_key(await self.insist("redeem", redeem))

    # --- devices ---------------------------------------------------------------------------------

    async def do_device(self) -> Any:
        """Make a device, and let it work."""
        self._count += 1
        key = f"{self.name} device {self._count}"

        async def make(market: Any, caller: Any) -> Any:
            return await market.devices.create(
                caller.profile.user_id,
                name=key,
                device_type="mini_pc",
                min_price_usd=None,
                maker=caller.maker,
            )

        made = await self._as_caller("device", make)
        if hasattr(made, "device_id"):
            number = self._first_device + len(self.agents)
            plan = AgentPlan(number, 0.0, 1.5, 0.1, None, False, self.plan.deviates)
            agent = PersonalAgent(self.network, plan, self._records, self.until, made)
            self.agents.append(agent)
            agent.task = asyncio.get_running_loop().create_task(agent.run())
        return made

    async def do_remove(self) -> Any:
        """Remove a device."""
        if not self.agents:
            return None
        device_id = self.agents[-1].device_id

        async def remove(market: Any, caller: Any) -> Any:
            await market.devices.revoke(caller.profile.user_id, device_id)

        return await self._as_caller("remove", remove)


class PersonalAgent(ReplicaAgent):
    """The agent of a person's device, which shows its token.

    Args:
        network: leads to the daemons.
        plan: its actions.
        records: of the answers that it gets.
        until: when it stops to ask for work.
        token: of the device.
    """

    def __init__(
        self,
        network: "Network",
        plan: AgentPlan,
        records: Records,
        until: float,
        token: Any,
    ) -> None:
        super().__init__(network, plan, records, until)
        self.name = f"device{plan.device}"
        self.device_id = token.device_id
        self.task: asyncio.Task[None] | None = None
        self._token = token.token

    async def _device(self, market: Any) -> Any:
        return await market.devices.authenticate(self._token)
