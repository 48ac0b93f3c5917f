"""Members of the support: users, complaints, suspensions and notices."""

from typing import Any

from market.accounts.suspensions import Part
from market.staff.abuse import exit_use, looks, rule_tickets, tickets
from market.staff.abuse.exit_use import Destination, Found, Question, Use
from market.staff.abuse.questions import Figures, Names, facts, question
from market.staff.abuse.tickets import Category, Outcome, State
from market.staff.base.roles import Author
from market.staff.desk import StaffDesk
from market.staff.finding import search, users
from market.staff.money import judging
from market.staff.site import site
from market.staff.stopping import stopping, suspending
from tests.sim.staff.members import WHY, MemberActor

# A day, the longest time for this role.
SUSPENDED_SECONDS = 20
PARTS = (Part.PURCHASES, Part.LOGINS, Part.KEYS, Part.DEVICES)
TEXTS = ("198.51.100.7", "198.51.100.0/24", "@example.org", "person0@example.org", "pk_live", "x")
EXIT_ADDRESS = "203.0.113.9"
_OPEN = "SELECT number FROM tickets ORDER BY number"
_KEYS = "SELECT id FROM api_keys WHERE revoked_at IS NULL AND user_id LIKE '%-%' ORDER BY id"
_SUSPENDED = "SELECT DISTINCT user_id FROM suspended_parts ORDER BY user_id"
_NOTICES = "SELECT id FROM status_notices ORDER BY id"
_JOBS = "SELECT id FROM jobs ORDER BY id"
_SESSIONS = "SELECT id FROM bandwidth_sessions ORDER BY id"


class Support(MemberActor):
    """A member of the support."""

    async def do_search(self) -> Any:
        """Search for a user by any text."""
        names = (*TEXTS, self.user(), str(self.some("SELECT username FROM users ORDER BY id")))
        text = names[int(self.draw.random() * len(names))]
        return await self.at_desk(
            "search", lambda market, _, author: search.who(market.context, author, text)
        )

    async def do_view(self) -> Any:
        """Look at the page of a user."""
        user_id = self.user()
        return await self.at_desk(
            "view", lambda market, _, author: users.view(market.context, author, user_id)
        )

    async def do_reveal(self) -> Any:
        """Look at the address of a user."""
        user_id = self.user()
        return await self.once(
            "reveal", lambda market, _, author: users.reveal(market.context, author, user_id, WHY)
        )

    async def do_note(self) -> Any:
        """Write a note about a user."""
        user_id = self.user()
        self._count += 1
        body = f"{self.name} has got call {self._count}"
        return await self.once(
            "note", lambda market, _, author: users.note(market.context, author, user_id, body)
        )

    async def do_suspend(self) -> Any:
        """Suspend a part of a user for a while."""
        user_id = self.user()
        part = PARTS[int(self.draw.random() * len(PARTS))]

        async def make(market: Any, desk: StaffDesk, author: Author) -> Any:
            return await suspending.suspend(
                market.context,
                desk.letters,
                author,
                user_id,
                parts=[part],
                ends_at=market.context.now() + SUSPENDED_SECONDS,
                shown="a question",
                why=WHY,
            )

        return await self.once("suspend", make)

    async def do_resume(self) -> Any:
        """Let a user go on."""
        user_id = self.some(_SUSPENDED) or self.user()
        return await self.once(
            "resume",
            lambda market, desk, author: suspending.resume(
                market.context, desk.letters, author, user_id, why=WHY
            ),
        )

    async def do_revoke(self) -> Any:
        """Revoke a key that was published somewhere."""
        key_id = self.some(_KEYS)
        if not key_id:
            return None
        return await self.once(
            "revoke",
            lambda market, desk, author: stopping.revoke_key(
                market.context, desk.letters, author, key_id, WHY
            ),
        )

    async def do_evidence(self) -> Any:
        """Look at a job, which must be disputed."""
        job_id = self.some(_JOBS)
        if not job_id:
            return None
        return await self.at_desk(
            "evidence",
            lambda market, _, author: judging.evidence(market.context, author, job_id),
        )

    # --- the status ------------------------------------------------------------------------------

    async def do_notice(self) -> Any:
        """Tell visitors about an outage."""

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            await site.notices(market.context, author)
            return await site.notify(
                market.context, author, severity="info", title="Slow", body="Be patient.", why=WHY
            )

        return await self.once("notice", make)

    async def do_finish(self) -> Any:
        """End a notice."""
        notice_id = self.some(_NOTICES)
        if not notice_id:
            return None
        return await self.once(
            "finish",
            lambda market, _, author: site.finish(market.context, author, notice_id, WHY),
        )

    async def do_status(self) -> Any:
        """Look at the status, after the daemon has looked at its parts."""
        is_failing = self.draw.random() < 0.3

        async def look(market: Any) -> Any:
            states = {"api": "working", "proxy": "failing" if is_failing else "working"}
            await market.status.look(states)
            return await market.status.report()

        return await self.insist("status", look)

    # --- complaints ------------------------------------------------------------------------------

    def _question(self, market: Any) -> Question:
        moment = "2027-01-15T08:00:00Z"  # the epoch of all runs
        to = ("", "198.51.100.77:22", "[2001:db8::1]:443", "shop.example")
        figures = Figures(EXIT_ADDRESS, moment, to[int(4 * self.draw.random())], within=60)
        return question(figures, market.context.now(), Names())

    async def do_ticket(self) -> Any:
        """Open a ticket: of a reporter, or of a rule that only observes."""
        category = tuple(Category)[int(self.draw.random() * len(Category))]
        session_id = self.some(_SESSIONS)

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            asked = self._question(market)
            return await tickets.open_ticket(
                market.context, author, category, facts(asked), "Somebody scans us."
            )

        if session_id and self.draw.random() < 0.3:
            return await self.insist(
                "finding",
                lambda market: rule_tickets.report(
                    market.context,
                    rule_tickets.Found("scan", session_id, market.context.now(), {"dials": 900}),
                ),
            )
        return await self.once("ticket", make)

    async def do_look_up(self) -> Any:
        """Look for the customer who used an exit, in the records of all machines."""
        number = self.some(_OPEN)
        if not number:
            return None

        async def make(market: Any, desk: StaffDesk, author: Author) -> Any:
            asked = self._question(market)
            return await exit_use.look_up(
                market.context,
                author,
                asked,
                int(number),
                lambda each: desk.searches.run(self.name, each),
            )

        return await self.at_desk("look up", make)

    async def do_work(self) -> Any:
        """Work on a ticket."""
        number = self.some(_OPEN)
        if not number:
            return None
        state = tuple(State)[int(self.draw.random() * len(State))]
        outcome = tuple(Outcome)[int(self.draw.random() * len(Outcome))]

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            context = market.context
            await tickets.listed(context, author, state=None, limit=10)
            await tickets.listed(context, author, state=state, limit=10)
            await tickets.show(context, author, int(number))
            if state is State.CLOSED:
                return await tickets.close(context, author, int(number), outcome, WHY)
            if state is State.ANSWERED:
                return await tickets.answer(context, author, int(number), "We look at it.")
            return await tickets.move(context, author, int(number), state, WHY)

        return await self.once("work", make)


def records_of(rows: list[tuple[Any, ...]], asked: Question) -> Found:
    """Return the records of a machine: a connection of each session at the time of a question."""
    uses = [
        Use(
            session_id=session_id,
            exit="exit0",
            started=asked.at - 5,
            ended=asked.at + 5,
            protocol="tcp",
            port=asked.port or 22,
            source_port=40_000 + number,
            destination=tuple(Destination)[number % len(Destination)],
            bytes_up=10,
            bytes_down=20,
            reason="complete",
            name=session_id,
        )
        for number, (session_id,) in enumerate(rows)
    ]
    return Found(uses, (), nothing="" if uses else "The records have no connection.")


async def search_everywhere(market: Any, asked: Question, own: Found) -> Found:
    """Ask all machines for their records, as a daemon does."""
    nodes = await market.context.store.read(_nodes)
    return await looks.ask(market.context, asked, nodes, own, seconds=0.5)


async def _nodes(tx: Any) -> list[str]:
    return await tx.all(str, "SELECT id FROM nodes ORDER BY id")
