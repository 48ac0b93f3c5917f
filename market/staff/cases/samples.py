"""Failed samples: jobs with a known answer, and another result of a device."""

import hashlib

from market.base.errors import Code, MarketError
from market.events.context import Context
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
from market.trust import sample_checks, trust
from market.trust.reputation import NEW, WHOLE
from storage.engines.store import Transaction
from storage.staff.money import judging as judging_queries
from storage.trust import samples as queries
from storage.trust.samples import WrongRow


class Samples(CaseKind):
    """Wrong results of samples; a void one gives back reputation, reviews and the price."""

    async def find(self, tx: Transaction, case_id: str) -> Case | None:
        """Return a sample with a wrong result."""
        row = await queries.find_wrong(tx, case_id)
        return None if row is None else _case(row)

    async def page(self, tx: Transaction, *, user_id: str, before: str, limit: int) -> list[Case]:
        """Return the newest samples with a wrong result, of the devices of all users."""
        if user_id:
            raise MarketError(Code.INVALID_FIELD, "Failed samples have no list by user.")
        return [_case(row) for row in await queries.wrong_page(tx, before=before, limit=limit)]

    async def evidence(self, tx: Transaction, case: Case) -> Evidence:
        """Return the hashes of both results, and the history of the device."""
        row, device = await _wrong(tx, case.id), str(case.device_id)
        history = await judging_queries.device_history(tx, device)
        reputation = (await trust.of_devices(tx, [device])).get(device, NEW)
        taken = {each.reputation_id: each for each in await queries.losses(tx, case.id)}
        loss = taken.get(device)
        facts = [
            Fact("sha256 of its result", _digest(row.result)),
            Fact("sha256 of the right result", _digest(row.answer)),
            Fact("characters of its result", len((row.result or "").strip())),
            Fact("correctness taken", None if loss is None else loss.correctness / WHOLE),
            Fact("correctness", reputation.correctness / WHOLE),
            Fact("reliability", reputation.reliability / WHOLE),
            *(Fact(name.replace("_", " "), value) for name, value in history._asdict().items()),
        ]
        past = [
            PastEvent(each.ended_at or 0, f"sample: {each.outcome}", each.job_id)
            for each in await queries.ended_on(tx, device, limit=HISTORY_MAX)
            if each.job_id != case.id
        ]
        return Evidence(facts, sorted(past, key=lambda each: each.at))

    async def void(self, tx: Transaction, context: Context, case: Case) -> Changes:
        """Give back the reputation, and let the reviews of the device's other work go on."""
        row = await _wrong(tx, case.id)
        resumed = await sample_checks.void(tx, row, now=context.now())
        return {"reputation": ("lowered", "restored"), "reviews": (None, len(resumed))}

    def words(self, case: Case, decision: Decision) -> str:
        """Return the decision in a sentence for the owner."""
        failed = (
            f"The job {case.id} on your device {case.device_id} was a check with a known result, "
            "and the result of your device was another one."
        )
        if decision is Decision.UPHELD:
            return f"{failed} The staff has looked at it, and upholds the check."
        return (
            f"{failed} The staff has made the check void: your device has its reputation back, and "
            "you get the price of the job."
        )


async def _wrong(tx: Transaction, job_id: str) -> WrongRow:
    row = await queries.find_wrong(tx, job_id)
    assert row is not None  # noqa: S101 - an ended sample keeps its outcome
    return row


def _case(row: WrongRow) -> Case:
    return Case(
        Kind.SAMPLE,
        row.job_id,
        row.owner_id,
        row.failed_at,
        sample_checks.NOT_RIGHT,
        device_id=row.device_id,
        void_amount=row.price,
        pays_for_work=True,
    )


def _digest(result: str | None) -> str | None:
    """Return the SHA-256 of a result as it is compared: without the spaces around it."""
    return None if result is None else hashlib.sha256(result.strip().encode()).hexdigest()
