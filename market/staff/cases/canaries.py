"""Failed canaries: findings about exits that returned other data than their targets."""

from market.bandwidth.halts import HaltKind
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.exits.consents import BARRED_WORDS
from market.staff.base.acts import Changes
from market.staff.cases.base import (
    HISTORY_MAX,
    Case,
    CaseKind,
    Decision,
    Evidence,
    Fact,
    Kind,
    PastEvent,
)
from market.staff.stopping.suspending import order
from storage.devices import devices as device_queries
from storage.engines.store import Transaction
from storage.exits import exits as queries
from storage.exits.exits import ConsentRow, OwnedFindingRow


class Canaries(CaseKind):
    """Findings about exits; a void finding bars its device no more, unless another one does."""

    async def find(self, tx: Transaction, case_id: str) -> Case | None:
        """Return a finding."""
        row = await queries.find_finding(tx, case_id)
        return None if row is None else _case(row)

    async def page(self, tx: Transaction, *, user_id: str, before: str, limit: int) -> list[Case]:
        """Return the newest findings about the exits of all users."""
        if user_id:
            raise MarketError(Code.INVALID_FIELD, "Failed canaries have no list by user.")
        return [_case(row) for row in await queries.findings_page(tx, before=before, limit=limit)]

    async def evidence(self, tx: Transaction, case: Case) -> Evidence:
        """Return the finding, and the history of its device as an exit."""
        row, device = await queries.find_finding(tx, case.id), str(case.device_id)
        exit_row = await queries.find(tx, device)
        assert row is not None and exit_row is not None  # noqa: S101, PT018 - rows that stay
        past = [
            PastEvent(each.created_at, each.event, each.reason)
            for each in await queries.consents(tx, device)
        ] + [
            PastEvent(each.found_at, f"finding: {each.kind}", _state(each.pardoned_at))
            for each in await queries.findings(tx, device)
            if each.id != case.id
        ]
        facts = [
            Fact("finding", row.kind),
            Fact("in words", BARRED_WORDS.get(row.kind, row.kind)),
            Fact("evidence", row.evidence),
            Fact("state", _state(row.pardoned_at)),
            Fact("exit", "allowed" if exit_row.barred_at is None else "barred"),
            Fact("barred for", exit_row.barred_for or None),
            Fact("country", exit_row.country or None),
            Fact("network", exit_row.asn or None),
        ]
        return Evidence(facts, sorted(past, key=lambda each: each.at)[-HISTORY_MAX:])

    async def void(self, tx: Transaction, context: Context, case: Case) -> Changes:
        """Pardon the finding, and let the device be an exit again if no other finding bars it."""
        device, now = str(case.device_id), context.now()
        await device_queries.lock(tx, device)
        await queries.pardon_finding(tx, case.id, now)
        row = await queries.find(tx, device)
        rest = [each for each in await queries.findings(tx, device) if each.pardoned_at is None]
        # The staff's own bar stays. It has no finding, or is the second event about one bar.
        is_by_staff = row is None or not row.barred_for or await _bars(tx, device) > 1
        if rest or is_by_staff or not await queries.unbar(tx, device):
            return {"finding": ("open", "pardoned")}
        event = ConsentRow(context.identifiers.new(), device, "pardoned", "", "", now)
        await queries.insert_consent(tx, event)
        await order(tx, HaltKind.LOOK, case.user_id, None, now=now)
        return {"finding": ("open", "pardoned"), "barred": (True, False)}

    def words(self, case: Case, decision: Decision) -> str:
        """Return the decision in a sentence for the owner."""
        failed = f"A check of your exit {case.device_id} had failed: {case.summary}"
        if decision is Decision.UPHELD:
            return f"{failed} The staff has looked at it, and upholds the result."
        return f"{failed} The staff has made the result void: it bars the device no more."


async def _bars(tx: Transaction, device_id: str) -> int:
    """Return the number of events that have barred a device since its last pardon.

    Findings add one at most, with the first of them; each bar by the staff adds one.
    """
    events = [each.event for each in await queries.consents(tx, device_id)]
    last = max((at for at, event in enumerate(events) if event == "pardoned"), default=-1)
    return events[last + 1 :].count("barred")


def _case(row: OwnedFindingRow) -> Case:
    return Case(
        Kind.CANARY,
        row.id,
        row.user_id,
        row.found_at,
        BARRED_WORDS.get(row.kind, row.kind),
        device_id=row.device_id,
        is_open=row.pardoned_at is None,
    )


def _state(pardoned_at: int | None) -> str:
    return "open" if pardoned_at is None else "pardoned"
