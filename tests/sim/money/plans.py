"""Plans of the money of a run: the lies of the bank, the payers, and the jumps of the clocks."""

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from market.money.money import MICRO

if TYPE_CHECKING:
    from tests.sim.loop import World

# The name of a run that has nothing else.
SUBJECT = "money"
# Of all runs, and the part of them in which nothing else happens.
SHARE, ALONE_SHARE = 0.12, 0.6
PAYERS = 3
# The most payments that one user begins by hand, and the users with a card.
PAYMENTS, CARD_SHARE = 4, 0.6
CENT = MICRO // 100
# Lies of a bank and failures on the way to it; each is left out of half of the runs.
LIES = (
    "amount",  # a look names another amount, once
    "currency",  # a look names another currency, once
    "dispute",  # payers dispute payments, and banks decide
    "error",  # a request fails before it has an effect
    "late",  # a request or its answer takes longer than the patience of its sender
    "lost",  # the answer to a request that took effect is lost
    "outside",  # the operator refunds payments at the bank
    "pending",  # refunds wait, and some fail later, even after they were made
    "refused",  # the bank refuses requests for good
    "silent",  # the bank sends no notices
    "stale",  # a look shows an earlier state
    "twice",  # a request takes effect twice
    "unknown",  # a look shows a state without a meaning
    "wrong",  # payers pay another amount than they should
)
# Failures of the payment service that sends payouts.
FAILURES = ("error", "late", "lost", "refused", "stale", "twice", "unknown")
EARNERS = 2
# The share of users with earnings that have an account at a payment service.
CONNECTS_SHARE = 0.4
EARNED = 3_000 * MICRO
EARNER_STEPS = (
    "request",
    "request",
    "request",
    "request",
    "cancel",
    "cancel",
    "look",
    "spend",
    "unspend",
)
PARTS = (("purchases",), ("purchases", "logins"), ("sessions",), ("devices", "keys"))
# Steps that may follow the begin of a payment: their share, and the longest pause before each.
AFTER_PAYMENT = (
    ("pay", 0.85, 1.0),
    ("return", 0.5, 2.0),
    ("spend", 0.5, 4.0),
    ("spend", 0.3, 6.0),
    ("refund", 0.4, 6.0),
    ("refund", 0.2, 8.0),
    ("dispute", 0.3, 8.0),
    ("outside", 0.3, 8.0),
    ("decide", 0.4, 10.0),
    ("decide", 0.4, 14.0),
    ("offer", 0.2, 6.0),
)
# The same for a card.
AFTER_SAVE = (
    ("top_up", 0.95, 2.0),
    ("top_up", 0.6, 4.0),
    ("spend", 0.6, 6.0),
    ("spend", 0.6, 9.0),
    ("refund", 0.3, 9.0),
    ("dispute", 0.3, 9.0),
    ("decide", 0.3, 12.0),
    ("off", 0.15, 9.0),
    ("remove", 0.15, 9.0),
    ("save", 0.2, 9.0),
    ("top_up", 0.4, 12.0),
)
# The monthly ceiling of automatic top-ups: one to five of them.
CEILING = 25 * MICRO
JUMPS = (3.0, 130.0, 700.0, 4_000.0, 90_000.0, 90_000.0)


@dataclass(frozen=True, slots=True)
class PayerPlan:
    """A user who pays.

    Attributes:
        threshold: of the automatic top-up, in micro-USD.
        amount: of each automatic payment, in micro-USD.
        card: the outcomes of the payments by card, in turn; "" for payments that succeed.
        steps: the actions: time and kind.
    """

    threshold: int
    amount: int
    card: tuple[str, ...]
    steps: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class EarnerPlan:
    """A user with earned money.

    Attributes:
        steps: the actions: time and kind.
        connects: whether the user has an account at a payment service.
    """

    steps: tuple[tuple[float, str], ...]
    connects: bool = False


@dataclass(frozen=True, slots=True)
class MoneyPlan:
    """The money of a run.

    Attributes:
        lies: of the bank.
        payers: the users who pay.
        jumps: the times at which all wall clocks jump forward, and by how many seconds.
        is_alone: whether nothing else happens in the run.
        earners: the users with earned money; none without payouts.
        failures: of the payment service that sends payouts.
        suspensions: the time of each, its user, its parts, and the seconds until its end.
    """

    lies: frozenset[str]
    payers: tuple[PayerPlan, ...]
    jumps: tuple[tuple[float, float], ...]
    is_alone: bool
    earners: tuple[EarnerPlan, ...] = ()
    failures: frozenset[str] = frozenset()
    suspensions: tuple[tuple[float, str, tuple[str, ...], float], ...] = ()

    def __str__(self) -> str:
        return (
            f"{len(self.payers)} payers, a bank with {', '.join(sorted(self.lies)) or 'no lies'},"
            f" {len(self.earners)} earners, a service with"
            f" {', '.join(sorted(self.failures)) or 'no failures'},"
            f" {len(self.suspensions)} suspensions"
        )


def money_of(world: "World", seconds: float, subject: str | None) -> MoneyPlan | None:
    """Return the money of a run; None for most runs.

    Wall clocks jump only where nothing else happens: sessions and jobs would expire.

    Args:
        world: of the draws.
        seconds: how long things go wrong.
        subject: of the run; None for a mix.
    """
    draw = world.draw("payments")
    has_money, is_alone = draw.random() < SHARE, draw.random() < ALONE_SHARE
    if subject is not None:
        has_money = is_alone = subject == SUBJECT
    if not has_money:
        return None
    share = (0.1, 0.3, 0.5)[int(draw.random() * 3)]
    lies = frozenset(each for each in LIES if draw.random() < share)
    payers = tuple(_payer(draw, seconds) for _ in range(1 + int(draw.random() * PAYERS)))
    jumps = tuple(
        sorted(
            (round(seconds * draw.random(), 3), JUMPS[int(draw.random() * len(JUMPS))])
            for _ in range(int(draw.random() * 8))
        )
    )
    earners, failures = _earners(world.draw("payouts"), seconds)
    accounts = world.draw("accounts")
    earners = tuple(replace(each, connects=accounts.random() < CONNECTS_SHARE) for each in earners)
    suspensions = _suspensions(world.draw("suspensions"), seconds)
    jumps = jumps if is_alone else ()
    return MoneyPlan(lies, payers, jumps, is_alone, earners, failures, suspensions)


def _suspensions(
    draw: Random, seconds: float
) -> tuple[tuple[float, str, tuple[str, ...], float], ...]:
    """Return the suspensions of users, none in half of the runs."""
    if draw.random() < 0.5:
        return ()
    users = [payer_name(each) for each in range(PAYERS)]
    users += [earner_name(each) for each in range(EARNERS)]
    return tuple(
        sorted(
            (
                round(0.5 + seconds * draw.random(), 3),
                users[int(draw.random() * len(users))],
                PARTS[int(draw.random() * len(PARTS))],
                round(0.5 + 8 * draw.random(), 3),
            )
            for _ in range(1 + int(draw.random() * 4))
        )
    )


def _earners(draw: Random, seconds: float) -> tuple[tuple[EarnerPlan, ...], frozenset[str]]:
    """Return the users with earned money, none in half of the runs, and the service's failures."""
    if draw.random() < 0.5:
        return (), frozenset()
    share = (0.1, 0.3, 0.5)[int(draw.random() * 3)]
    failures = frozenset(each for each in FAILURES if draw.random() < share)
    return tuple(
        EarnerPlan(
            tuple(
                sorted(
                    (
                        round(0.5 + seconds * draw.random(), 3),
                        EARNER_STEPS[int(draw.random() * len(EARNER_STEPS))],
                    )
                    for _ in range(3 + int(draw.random() * 12))
                )
            )
        )
        for _ in range(1 + int(draw.random() * EARNERS))
    ), failures


def _payer(draw: Random, seconds: float) -> PayerPlan:
    steps: list[tuple[float, str]] = []
    if draw.random() < CARD_SHARE:
        steps += _chain(draw, 0.3 + 0.3 * seconds * draw.random(), "save", AFTER_SAVE)
    for _ in range(1 + int(draw.random() * PAYMENTS)):
        steps += _chain(draw, 0.3 + 0.8 * seconds * draw.random(), "create", AFTER_PAYMENT)
    outcomes = ("", "", "", "", "refused", "authentication")
    return PayerPlan(
        threshold=(5 + int(draw.random() * 40)) * MICRO,
        amount=(5 + int(draw.random() * 15)) * MICRO,
        card=tuple(outcomes[int(draw.random() * len(outcomes))] for _ in range(6)),
        steps=tuple(sorted(steps)),
    )


def _chain(
    draw: Random, at: float, first: str, rest: tuple[tuple[str, float, float], ...]
) -> list[tuple[float, str]]:
    """Return a step, and some that follow it."""
    steps = [(round(at, 3), first)]
    for what, share, most in rest:
        if draw.random() < share:
            steps.append((round(at + 0.1 + most * draw.random(), 3), what))
    return steps


def earner_name(number: int) -> str:
    """Return the identifier of a user with earned money."""
    return f"earner{number}"


def payer_name(number: int) -> str:
    """Return the identifier of a payer."""
    return f"payer{number}"
