"""Rules about the staff: the log, second persons, tickets, and accounts that end."""

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

from market.staff.audit import audit_all
from market.staff.money.approvals import Outcome, State
from storage.erasure.treatment import TREATMENT
from tests.sim.checks import run_now
from tests.sim.staff.members import LIMITS
from tests.sim.store import Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

_LOG = """
    SELECT number, via, staff_id, role, action, subject_id FROM staff_log
    WHERE number > :last ORDER BY number
"""
# Things of a user that end with the account: the table, and the condition while a thing goes on.
_ENDING = {
    "a login": ("login_sessions", "ended_at IS NULL"),
    "a key": ("api_keys", "revoked_at IS NULL"),
    "a device": ("devices", "revoked_at IS NULL"),
    "a session": ("bandwidth_sessions", "status = 'active'"),
}
_GOING_ON = """
    SELECT t.id FROM {table} AS t JOIN closures AS c ON c.user_id = t.user_id
    WHERE c.state <> 'taken_back' AND t.{condition}
"""
# Amounts that one member has moved without a second person, or one user has got so. All are of one
# day, because no run takes longer.
_ALONE = """
    SELECT author, SUM(ABS(amount)) FROM staff_money
    WHERE approval_id IS NULL AND currency = :currency AND author NOT LIKE 'rule:%'
    GROUP BY author HAVING SUM(ABS(amount)) > :most
    UNION SELECT user_id, SUM(ABS(amount)) FROM staff_money
    WHERE approval_id IS NULL AND currency = :currency AND author NOT LIKE 'rule:%'
    GROUP BY user_id HAVING SUM(ABS(amount)) > :most
"""
_TWICE = """
    SELECT body, COUNT(*) FROM texts WHERE kind = 'note' AND body LIKE '%has got call%'
    GROUP BY body HAVING COUNT(*) > 1
"""
# The buyer gets the price in all, and the worker the pay.
_OVERPAID = """
    SELECT p.id, p.given, r.refunded, r.price FROM appeals AS p JOIN jobs AS j ON j.id = p.job_id
    JOIN job_reviews AS r ON r.job_id = p.job_id AND r.disputed_at IS NOT NULL
    WHERE p.user_id = j.user_id AND p.given + r.refunded > r.price
    UNION SELECT p.id, p.given, r.earned - r.withheld, r.earned FROM appeals AS p
    JOIN job_reviews AS r ON r.job_id = p.job_id AND r.user_id = p.user_id
    WHERE r.state = 'upheld' AND p.given + r.earned - r.withheld > r.earned
"""
_APPROVED = """
    SELECT id, asked_by FROM approvals WHERE decision = 'approved' AND decided_by = asked_by
"""
_AGREED = """
    SELECT u.username, c.kind, c.version FROM consents AS c JOIN users AS u ON u.id = c.user_id
    WHERE u.username LIKE 'leaver%'
"""
_UNAGREED = """
    SELECT u.username, t.kind, t.version FROM users AS u, site_texts AS t
    WHERE u.username LIKE 'leaver%' AND t.kind <> 'imprint' AND t.valid_from < u.created_at
    AND NOT EXISTS (
        SELECT 1 FROM consents AS c
        WHERE c.user_id = u.id AND c.kind = t.kind AND c.version >= t.version
    )
"""


class HouseBooks:
    """Rules about the staff, after each commit and at the end.

    Args:
        network: has the database.
    """

    def __init__(self, network: "Network") -> None:
        self.network = network
        self.has_clocks = False
        # By transfer or subject, and user: the amount in the answer to a member.
        self._told: dict[tuple[str, str], int] = {}
        # By user name: the kind and the version of each text in a consent.
        self._agreed: set[tuple[str, str, int]] = set()
        # By member: the role, and whether they are locked, before the present commit.
        self._members: dict[str, tuple[str, bool]] = {}
        self._last = 0
        self._closed: set[int] = set()

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql, **values)

    def _fail(self, text: str) -> None:
        self.network.world.fail(text)

    def moved(self, outcome: Outcome) -> None:
        """Record the amount in the answer to a member."""
        if outcome.state is not State.WAITS and outcome.moves_money and outcome.amount:
            self._told[outcome.id, outcome.user_id] = outcome.amount

    def agrees(self, name: str, accepted: dict[str, int]) -> None:
        """Record the texts that a user agrees to in a request."""
        self._agreed |= {(name, kind, version) for kind, version in accepted.items()}

    def committed(self, _: Commit) -> None:
        """Look at the acts of a commit, and at the accounts that are closed."""
        members = {
            staff_id: (role, locked_at is not None)
            for staff_id, role, locked_at in self._rows("SELECT id, role, locked_at FROM staff")
        }
        for number, via, staff_id, role, action, subject in self._rows(_LOG, last=self._last):
            if number != self._last + 1:
                self._fail(f"the log has no row {self._last + 1}")
            self._last = number
            if staff_id is None:
                continue
            before, is_locked = self._members.get(staff_id, (role, False))
            if is_locked:
                self._fail(f"a locked member does {action} by {via}")
            if before != role:
                self._fail(f"a {before} does {action} as {role}")
            if subject == staff_id and action in ("staff.lock", "staff.role", "staff.unlock"):
                self._fail(f"a member does {action} on their own account")
        self._members = members
        for word, (table, condition) in _ENDING.items():
            for (found,) in self._rows(_GOING_ON.format(table=table, condition=condition)):
                self._fail(f"a closed account has {word}: {found[-6:]}")
        closed = {
            number for (number,) in self._rows("SELECT number FROM tickets WHERE state = 'closed'")
        }
        for number in self._closed - closed:
            self._fail(f"the ticket {number} was closed, and is open again")
        self._closed = closed

    def read(self, content: bytes, user_id: str) -> None:
        """Fail if the export of a user has the address of another one."""
        emails = {
            email
            for other, email in self._rows("SELECT id, email FROM users")
            if other != user_id and "@" in email
        }
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                text = archive.read(name).decode()
                if name.endswith(".jsonl"):
                    for line in text.splitlines():
                        json.loads(line)
                if any(f'"{each}"' in text for each in emails):
                    self._fail(f"{name} of an export has the address of another user")

    def check(self) -> None:
        """Compare the money, the log and the erased accounts at the end."""
        self._look_at_persons()
        self._look_at_told()
        for body, count in self._rows(_TWICE):
            self._fail(f"a repeated request has written {body!r} {count} times")
        for appeal_id, given, had, most in self._rows(_OVERPAID):
            self._fail(f"an appeal gives {given} beside {had} of {most}: {appeal_id[-6:]}")
        for username, kind, version in () if self.has_clocks else self._rows(_UNAGREED):
            self._fail(f"{username} has not agreed to the {kind} {version}")
        for username, kind, version in set(self._rows(_AGREED)) - self._agreed:
            self._fail(f"{username} has never agreed to the {kind} {version}")
        self._look_at_erased()
        report = run_now(audit_all, self.network.books.database)
        for check in report.checks:
            for difference in check.differences:
                self._fail(f"audit: {check.promise}: {difference}")

    def _look_at_persons(self) -> None:
        """Fail if one person has moved more than one may."""
        for currency, most in () if self.has_clocks else LIMITS.items():
            for name, amount in self._rows(_ALONE, currency=currency, most=most):
                self._fail(f"{amount} {currency} were moved alone by or for {name}")
        for approval_id, asked_by in self._rows(_APPROVED):
            self._fail(f"{asked_by} has approved their own request {approval_id[-6:]}")

    def _look_at_told(self) -> None:
        """Fail if the answer to a member has another amount than the database."""
        recorded = {
            (name, user_id): amount
            for act_id, key, user_id, amount in self._rows(
                "SELECT id, business_key, user_id, amount FROM staff_money"
            )
            for name in (act_id, key)
        }
        for (act_id, user_id), amount in self._told.items():
            known = recorded.get((act_id, user_id), recorded.get((f"case:{act_id}", user_id)))
            if known is not None and known != amount:
                self._fail(f"{amount} of {act_id[-6:]} were moved, and {known} are recorded")

    def _look_at_erased(self) -> None:
        """Fail if a text names a user whose account is erased."""
        living = {name for (name,) in self._rows("SELECT username FROM users")}
        names = {f"leaver{number}" for number in range(9)} - living
        for table in TREATMENT:
            for row in self._rows(f"SELECT * FROM {table}"):
                for name in names:
                    if name in repr(row):
                        self._fail(f"a row of {table} names {name}, who is erased: {row!r}")
