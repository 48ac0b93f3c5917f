"""Plans of the staff, and of the users whose accounts end."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.sim.people import PersonPlan

if TYPE_CHECKING:
    from tests.sim.loop import World

# The name of a run that has nothing but jobs beside it.
SUBJECT = "staff"
# Two operators and two members for money: some acts need a second person.
ROLES = ("operator", "operator", "finance", "finance", "support")
FINANCE = (
    *("deposit", "deposit", "deposit", "refund", "refund", "correct", "correct", "correct"),
    *("forgive", "approve", "approve", "approve", "approve", "refuse", "judge", "judge", "judge"),
    *("case", "case", "case", "price", "payments", "verify", "history"),
)
SUPPORT = (
    *("search", "view", "reveal", "note", "ticket", "ticket", "work", "work", "work", "look_up"),
    *("suspend", "suspend", "resume", "revoke", "notice", "finish", "evidence", "status"),
)
OPERATORS = (
    *("invite", "withdraw", "publish", "publish", "texts", "role", "lock", "lock", "unlock"),
    *("unlock", "factor", "issue", "issue", "use", "use", "rescue", "limit", "close", "erase"),
    *("erase", "export", "log", "bar", "pardon", "stop_job", "case", "trial", "alerts", "attempts"),
    *("approve", "approve", "declare", "password", "prove", "stop_key", "texts", "erase"),
)
STEPS = {"operator": OPERATORS, "finance": FINANCE, "support": SUPPORT}
LEAVER_STEPS = (
    *("verify", "key", "buy", "device", "export", "export", "close", "login", "wallet", "roll"),
    *("session", "session", "read", "cancel", "cancel", "forgot", "login"),
)
# The share of leavers that do nothing after the end of their accounts.
GONE_SHARE = 0.7
APPEAL_SHARE = 0.8
# The share of runs with texts from the start.
EARLY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A member of the staff.

    Attributes:
        role: at the start.
        steps: the actions: time and kind.
    """

    role: str
    steps: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class HousePlan:
    """The staff of a run, and the users whose accounts end.

    Attributes:
        members: of the staff.
        leavers: the users whose accounts end.
        appeals: the times at which sides of disputes appeal.
    """

    members: tuple[MemberPlan, ...]
    leavers: tuple[PersonPlan, ...]
    appeals: tuple[float, ...]

    def __str__(self) -> str:
        return f"{len(self.members)} members, {len(self.leavers)} leavers"


def house_of(world: "World", seconds: float, subject: str | None) -> HousePlan | None:
    """Return the staff of a run; None for a run without it."""
    if subject != SUBJECT:
        return None
    draw = world.draw("house")
    members = tuple(MemberPlan(role, _steps(draw, STEPS[role], seconds, 4)) for role in ROLES)
    if draw.random() < EARLY_SHARE:  # before anybody registers
        first = MemberPlan(ROLES[0], ((0.0, "publish"), (0.1, "publish"), *members[0].steps))
        members = (first, *members[1:])
    leavers = tuple(_leaver(draw, seconds) for _ in range(1 + int(draw.random() * 3)))
    appeals = tuple(sorted(round(2.0 + seconds * draw.random(), 3) for _ in range(6)))
    return HousePlan(members, leavers, appeals if draw.random() < APPEAL_SHARE else ())


def _steps(
    draw: Random, kinds: tuple[str, ...], seconds: float, least: int
) -> tuple[tuple[float, str], ...]:
    return tuple(
        sorted(
            (round(0.6 + seconds * draw.random(), 3), kinds[int(draw.random() * len(kinds))])
            for _ in range(least + int(draw.random() * 16))
        )
    )


def _leaver(draw: Random, seconds: float) -> PersonPlan:
    steps = _steps(draw, LEAVER_STEPS, seconds, 3)
    if draw.random() < GONE_SHARE:
        last = steps[-1][0]
        steps += ((last + 0.2, "cancel"), (last + 0.5, "close"))
    return PersonPlan(
        at=round(0.8 + 0.4 * seconds * draw.random(), 3),
        referrer=int(draw.random() * 3) if draw.random() < 0.4 else None,
        limit=int(40_000_000 * draw.random()),
        deviates=0.0,
        steps=steps,
    )
