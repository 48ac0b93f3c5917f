"""Operators: members, keys of programs, published texts, devices, and the ends of accounts."""

from typing import Any

from market.staff import rule_stops
from market.staff.abuse.rule_tickets import RuleSetting
from market.staff.base.roles import Author, Role
from market.staff.desk import StaffDesk
from market.staff.finding import history, users
from market.staff.leaving import closing, erasing
from market.staff.members import accounts, attempts, keys, rescue
from market.staff.members.accounts import Created
from market.staff.members.keys import NewStaffKey
from market.staff.members.rescue import Post
from market.staff.money import user_limits
from market.staff.money.user_limits import NewLimits
from market.staff.rule_stops import thresholds
from market.staff.site import site
from market.staff.site.alerts import Alerts
from market.staff.site.site import Publication, TextKind
from market.staff.stopping import stopping
from tests.sim.staff.finance import Finance
from tests.sim.staff.members import ADDRESS, LIMITS, ROOT, WHY, MemberActor

CAUSES = ("content", "certificate", "name")
LIMITED_SECONDS = 3_600
_EXITS = "SELECT device_id FROM exits ORDER BY device_id"
_BARRED = "SELECT device_id FROM exits WHERE barred_at IS NOT NULL ORDER BY device_id"
_JOBS = "SELECT id FROM jobs WHERE status IN ('waiting', 'running') ORDER BY id"
_LEAVERS = "SELECT id FROM users WHERE username LIKE 'leaver%' ORDER BY id"
_INVITATIONS = "SELECT id FROM invitations ORDER BY id"
_RESCUES = "SELECT id FROM staff_rescues WHERE acknowledged_at IS NULL ORDER BY id"
_KEYS = "SELECT id FROM staff_keys WHERE revoked_at IS NULL ORDER BY id"
RULES = (RuleSetting("scan", "observe", 100, "ports", 50, 60),)


class Operator(Finance):
    """An operator."""

    def _member(self) -> MemberActor:
        members = self.house.members
        return members[int(self.draw.random() * len(members))]

    # --- members ---------------------------------------------------------------------------------

    async def do_lock(self) -> Any:
        """Lock a member."""
        email = self._member().email
        return await self.once(
            "lock", lambda market, _, author: accounts.lock(market.context, author, email, WHY)
        )

    async def do_unlock(self) -> Any:
        """Unlock a member."""
        email = self._member().email
        return await self.once(
            "unlock", lambda market, _, author: accounts.unlock(market.context, author, email, WHY)
        )

    async def do_role(self) -> Any:
        """Give a member another role; a command on the machine gives those that move money."""
        member = self._member()
        roles = (Role(member.plan.role), *Role)
        role = roles[int(self.draw.random() * len(roles))]
        if self.draw.random() < 0.5:
            return await self.insist(
                "role",
                lambda market: accounts.set_role(market.context, ROOT, member.email, role, WHY),
            )
        return await self.once(
            "role",
            lambda market, _, author: accounts.set_role(
                market.context, author, member.email, role, WHY
            ),
        )

    async def do_factor(self) -> Any:
        """Replace the second factor that a member has lost."""
        member = self._member()
        made = await self.at_desk(
            "factor",
            lambda market, desk, author: accounts.reset_factor(
                market.context, desk.factors, author, member.email, WHY
            ),
        )
        if isinstance(made, Created):
            member.is_hired(made)
        return made

    async def do_declare(self) -> Any:
        """Declare an account of one's own; then it is another member's business."""
        user_id = self.user()
        return await self.once(
            "declare",
            lambda market, _, author: accounts.declare(
                market.context, author, self.email, user_id, WHY
            ),
        )

    async def do_attempts(self) -> Any:
        """Look at the members and the attempts to log in."""

        async def look(market: Any, _: StaffDesk, author: Author) -> Any:
            await accounts.listed(market.context, author)
            return await attempts.listed(market.context, author, limit=20)

        return await self.at_desk("attempts", look)

    async def do_rescue(self) -> Any:
        """Be let in by a command on the machine; another operator acknowledges it."""

        async def let_in(market: Any) -> Any:
            desk, post = self.house.desks[market], Post(market.emails, "proxyd")
            return await rescue.rescue(market.context, desk.logins, post, ROOT, self.email, WHY)

        waiting = self.some(_RESCUES)
        if not waiting:
            return await self.insist("rescue", let_in)

        async def acknowledge(market: Any, _: StaffDesk, author: Author) -> Any:
            await rescue.listed(market.context, author)
            return await rescue.acknowledge(market.context, author, waiting, WHY)

        return await self.at_desk("acknowledge", acknowledge)

    # --- keys of programs ------------------------------------------------------------------------

    async def do_issue(self) -> Any:
        """Make a key for a program of a member."""
        member = self._member()
        scopes = ("read", "act") if self.draw.random() < 0.6 else ("read",)
        new = NewStaffKey(name="a program", scopes=scopes, allow_ips=(ADDRESS,), days=30)
        made = await self.at_desk(
            "issue",
            lambda market, _, author: keys.create(market.context, author, member.email, new, WHY),
        )
        if hasattr(made, "text"):
            member.keys.append(made.text)
        return made

    async def do_use(self) -> Any:
        """Let a program look at a user, and write a note."""
        texts = [each for member in self.house.members for each in member.keys]
        if not texts:
            return None
        text, user_id = texts[int(self.draw.random() * len(texts))], self.user()

        async def use(market: Any, desk: StaffDesk, author: Author) -> Any:
            caller = await desk.authenticate(text, ADDRESS, author.via)
            await desk.is_current(caller)
            await users.view(market.context, author, user_id)
            return await users.note(market.context, author, user_id, "a program was here")

        return await self.at_desk("use", use, text)

    async def do_stop_key(self) -> Any:
        """Revoke a key of a program."""
        key_id = self.some(_KEYS)
        if not key_id:
            return None

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            await keys.listed(market.context, author)
            return await keys.revoke(market.context, author, key_id, WHY)

        return await self.at_desk("stop key", make)

    # --- the site --------------------------------------------------------------------------------

    async def do_invite(self) -> Any:
        """Make an invitation."""
        return await self.at_desk(
            "invite",
            lambda market, _, author: site.invite(market.context, author, uses=2, days=3, why=WHY),
        )

    async def do_withdraw(self) -> Any:
        """Withdraw an invitation."""
        invitation_id = self.some(_INVITATIONS)
        if not invitation_id:
            return None

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            await site.invited(market.context, author)
            return await site.withdraw(market.context, author, invitation_id, WHY)

        return await self.at_desk("withdraw", make)

    async def do_publish(self) -> Any:
        """Publish a text, a new version, or a translation."""
        kind = tuple(TextKind)[int(self.draw.random() * len(TextKind))]
        locale = ("en", "de")[self.draw.random() < 0.3]
        version = 1 if self.draw.random() < 0.3 else None

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            now = market.context.now()
            new = Publication(kind, locale, f"# {kind}\n\nBe kind.", now, version)
            return await site.publish(market.context, author, new, WHY)

        return await self.once("publish", make)

    async def do_texts(self) -> Any:
        """Look at the texts, as a member and as a visitor."""

        async def look(market: Any, _: StaffDesk, author: Author) -> Any:
            for row in await site.published(market.context, author):
                await site.text(market.context, author, TextKind(row.kind), row.version, row.locale)
            for each in await market.texts.versions():
                found = await market.texts.find(each.kind, each.version)
                await market.texts.body(found, found.locale("de-AT, en;q=0.5"))

        return await self.at_desk("texts", look)

    # --- users -----------------------------------------------------------------------------------

    async def do_limit(self) -> Any:
        """Give a user other limits for a while."""
        user_id, most = self.user(), 1 + int(5 * self.draw.random())

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            until = market.context.now() + LIMITED_SECONDS
            new = NewLimits(sessions=most, jobs=20 + most, devices=most, until=until)
            return await user_limits.change(market.context, author, user_id, new, WHY)

        return await self.once("limit", make)

    async def do_close(self) -> Any:
        """Close the account of a user, as asked for by a letter."""
        user_id = self.some(_LEAVERS)
        if not user_id:
            return None
        waives = self.draw.random() < 0.7
        return await self.once(
            "close",
            lambda market, desk, author: closing.close(
                market.context, desk.letters, LIMITS, author, user_id, waives=waives, why=WHY
            ),
        )

    async def do_erase(self) -> Any:
        """Ask a second person to erase an account."""
        user_id = self.some(_LEAVERS)
        if not user_id:
            return None
        return await self.once(
            "erase",
            lambda market, _, author: erasing.erase(
                market.context,
                self.house.tools(market),
                author,
                user_id,
                waives=True,
                needs_second=True,
                limits=LIMITS,
                why=WHY,
            ),
        )

    async def do_export(self) -> Any:
        """Export the data of a user."""
        user_id = self.some(_LEAVERS)
        if not user_id:
            return None

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            await closing.export(market.context, author, user_id)
            return await self.house.export(market, user_id)

        return await self.at_desk("export", make)

    # --- devices, jobs and rules -----------------------------------------------------------------

    async def do_bar(self) -> Any:
        """Bar an exit, or let the watch of the daemon find it."""
        device_id, cause = self.some(_EXITS), CAUSES[int(self.draw.random() * len(CAUSES))]
        if self.draw.random() < 0.5:
            return await self.insist(
                "finding",
                lambda market: market.exit_canaries.bar(device_id, cause, "other bytes"),
            )
        return await self.once(
            "bar",
            lambda market, _, author: stopping.bar_device(market.context, author, device_id, WHY),
        )

    async def do_pardon(self) -> Any:
        """Let an exit be one again."""
        device_id = self.some(_BARRED) or self.some(_EXITS)
        return await self.once(
            "pardon",
            lambda market, _, author: stopping.pardon_device(
                market.context, author, device_id, WHY
            ),
        )

    async def do_stop_job(self) -> Any:
        """Cancel a job."""
        job_id = self.some(_JOBS)
        if not job_id:
            return None
        return await self.once(
            "stop job",
            lambda market, desk, author: stopping.cancel_job(
                market.context, desk.terms.outcomes, author, job_id, WHY
            ),
        )

    async def do_trial(self) -> Any:
        """Look at what other thresholds of the rules would have stopped."""
        return await self.at_desk(
            "trial",
            lambda market, _, author: rule_stops.trial(market.context, author, thresholds(RULES)),
        )

    async def do_log(self) -> Any:
        """Read the log of all acts."""
        return await self.at_desk(
            "log", lambda market, _, author: history.read(market.context, author, limit=20)
        )

    async def do_alerts(self) -> Any:
        """Let the daemon send the alerts that are due."""

        async def look(market: Any) -> Any:
            alerts = Alerts(market.context, market.emails, (self.email,), "proxyd", 0)
            return await alerts.look(())

        return await self.insist("alerts", look)
