"""Samples: rules about jobs whose answer the operator knows."""

from decimal import Decimal
from typing import TYPE_CHECKING

from market.dispatch.samples import OWNER_PARTS, allowed_by
from tests.sim.jobs import CREDIT, Records
from tests.sim.store import EPOCH

if TYPE_CHECKING:
    from tests.sim.clients import Network

# The operator's own user, and the money for each day: plenty, or enough for five samples.
ACCOUNT = "user5@example.com"
SAMPLE_CREDITS = (Decimal(40), Decimal("0.5"))
DAY_SECONDS = 86_400
# The latest sample of a run.
UNTIL = EPOCH % DAY_SECONDS + 400
_SAMPLES = """
    SELECT s.job_id, s.device_id, s.owner_id, s.answer, s.price, s.outcome, j.status, j.result,
        h.captured, (SELECT COUNT(*) FROM job_attempts AS a WHERE a.job_id = s.job_id),
        (SELECT COUNT(*) FROM job_attempts AS a
            WHERE a.job_id = s.job_id AND a.device_id <> s.device_id)
    FROM job_samples AS s JOIN jobs AS j ON j.id = s.job_id
    LEFT JOIN holds AS h ON h.id = 'job:' || s.job_id
"""


class SampleBooks:
    """Compares the verdicts of samples with the reports of devices.

    Args:
        network: has the database.
        money: the operator's money for each day.
    """

    def __init__(self, network: "Network", money: Decimal) -> None:
        self.network = network
        self._money = money

    def check(self, records: Records, *, has_clocks: bool) -> None:
        """Each verdict is that of the result, and the day's money was enough."""
        fail = self.network.world.fail
        total, dearest, of_owners = 0, 0, {}
        for row in self.network.books.database.rows(_SAMPLES):
            job_id, _, owner, answer, price, outcome, status, result, captured, count, other = row
            name = f"sample {job_id[-6:]}"
            if outcome in (None, "right"):  # a buyer pays for no other result
                total, dearest = total + price, max(dearest, price)
                of_owners[owner] = of_owners.get(owner, 0) + price
            if count != 1 or other:
                fail(f"{name} had {count} attempts, {other} of them by another device")
            told = records.completed.get(job_id, {}).get(1)
            if told is not None and (outcome == "right") != (told == answer):
                fail(f"{name} with the answer {answer} got {told}, and is {outcome}")
            if outcome == "right" and (status != "completed" or result.strip() != answer):
                fail(f"{name} is right, {status}, with {result} for {answer}")
            if outcome == "wrong" and (status != "failed" or captured):
                fail(f"{name} is wrong, {status}, and {captured} was paid")
        most = allowed_by(int(self._money * CREDIT), UNTIL)
        if total > most and not has_clocks:
            fail(f"samples have cost {total} of {most}")
        for owner, spent in of_owners.items():
            if spent > max(most // OWNER_PARTS, dearest) and not has_clocks:
                fail(f"samples of {owner} have cost {spent}")
