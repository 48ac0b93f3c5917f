"""The chain of the log: the hash of each row, and the audit that computes it again."""

import hashlib
import json

from msgspec import Struct

from market.money.audit import Check
from storage.engines.store import Store, Transaction
from storage.staff.base import log as queries
from storage.staff.base import staff as staff_queries
from storage.staff.base.log import CheckedLogRow, DecisionRow, HeadRow, LogRow
from storage.staff.base.staff import LISTED_MAX

ROWS_PER_QUERY = 5_000
DIFFERENCES_MAX = 20

CHAIN = "every act of staff is in the log, in one unbroken chain"
TEXTS = "the texts of the acts are as they were written, or erased"
STATES = "roles and locks of the staff are as the log has them"


class LogReport(Struct, frozen=True):
    """Outcome of an audit of the log: its newest row, and every check."""

    head: HeadRow
    checks: tuple[Check, ...]


def digest(row: LogRow, previous: str) -> str:
    """Return the hash of a row.

    Args:
        row: the row; its own `hash` does not count. A column without a value does not count, so a
            later migration may add columns.
        previous: the hash of the row before it, "" for the first.
    """
    fields = {
        name: value for name, value in row._asdict().items() if name != "hash" and value is not None
    }
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{canonical}".encode()).hexdigest()


def text_digest(salt: str, body: str) -> str:
    """Return the hash of a text; the salt has a fixed length, so one hash has one reading."""
    return hashlib.sha256(f"{salt}{body}".encode()).hexdigest()


async def audit_log(store: Store) -> LogReport:
    """Compute the chain of the log again, over one snapshot, and compare it.

    Raises:
        UnavailableError: the store did not answer.
    """
    return await store.read(_audit)


async def _audit(tx: Transaction) -> LogReport:
    walk = _Walk()
    while rows := await queries.after(tx, walk.number, limit=ROWS_PER_QUERY):
        for checked in rows:
            walk.step(checked)
    last = HeadRow(walk.number, walk.hash)
    head = await queries.find_head(tx)
    if head is None:
        walk.broken.append("the head is missing")
        head = last
    elif head != last:
        walk.broken.append(f"the head is at row {head.number}, the log ends at row {walk.number}")
    after = ""
    while decisions := await queries.decisions(tx, after, limit=ROWS_PER_QUERY):
        for decision in decisions:
            walk.compare_decision(decision)
        after = decisions[-1].id
    for text_id in await queries.texts_without_act(tx, limit=DIFFERENCES_MAX):
        walk.texts.append(f"text {text_id}: no act of the log has it")
    checks = (
        Check(CHAIN, tuple(walk.broken[:DIFFERENCES_MAX])),
        Check(TEXTS, tuple(walk.texts[:DIFFERENCES_MAX])),
        Check(STATES, tuple(await _changed_states(tx, walk.states))),
    )
    return LogReport(head, checks)


class _Walk:
    """A walk along the log, from its first row to its last."""

    def __init__(self) -> None:
        self.number = 0
        self.hash = ""
        self.broken: list[str] = []
        self.texts: list[str] = []
        self.states: dict[str, dict[str, object]] = {}

    def step(self, checked: CheckedLogRow) -> None:
        """Compare the next row with the chain so far."""
        row = checked.row
        if row.number != self.number + 1:
            self._report(self.broken, f"row {self.number + 1} is missing")
        elif row.hash != digest(row, self.hash):
            self._report(self.broken, f"row {row.number} was changed")
        self.number, self.hash = row.number, row.hash
        if row.text_id is not None:
            self._compare_text(checked)
        if row.subject_kind == "staff" and row.subject_id is not None:
            state = self.states.setdefault(row.subject_id, {})
            state.update({name: new for name, (_, new) in _changes(row.changes).items()})

    def compare_decision(self, row: DecisionRow) -> None:
        """Compare a text that the subject of an act reads with its hash among the changes."""
        _, expected = _changes(row.changes).get("shown", (None, None))
        if row.erased_at is None and expected != text_digest(row.salt, row.body):
            self._report(self.texts, f"row {row.number}: the text that was shown was changed")

    def _compare_text(self, checked: CheckedLogRow) -> None:
        number = checked.row.number
        if checked.body is None or checked.salt is None:
            self._report(self.texts, f"row {number}: its text is missing")
        elif checked.erased_at is None and checked.row.text_hash != text_digest(
            checked.salt, checked.body
        ):
            self._report(self.texts, f"row {number}: its text was changed")

    def _report(self, lines: list[str], line: str) -> None:
        if len(lines) < DIFFERENCES_MAX:
            lines.append(line)


def _changes(text: str) -> dict[str, tuple[object, object]]:
    """Return the old and the new value of each changed field; none for a text that is no JSON."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: (values[0], values[1])
        for name, values in found.items()
        if isinstance(values, list) and len(values) == 2
    }


async def _changed_states(tx: Transaction, states: dict[str, dict[str, object]]) -> list[str]:
    """Return the members of the staff whose role or lock is not what the log has last."""
    found = []
    members = await staff_queries.all_staff(tx)
    if len(members) < LISTED_MAX:
        gone = states.keys() - {member.id for member in members}
        found += [f"{staff_id}: the log has this member, who is missing" for staff_id in gone]
    for member in members:
        state = states.get(member.id, {})
        for name, actual in (("role", member.role), ("locked", member.locked_at is not None)):
            if state.get(name) != actual:
                expected = state.get(name)
                found.append(f"{member.id}: {name} is {actual}, the log has {expected}")
    return found[:DIFFERENCES_MAX]
