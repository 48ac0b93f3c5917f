"""The parts that all kinds of cases have: a case, its evidence, and the acts of a kind.

A case is a decision about a user: of the service, about a check of a device or a reward, or of the
staff, about a dispute. The staff upholds it, or makes it void.
"""

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.money.money import Currency
from market.staff.base.acts import Changes
from storage.engines.store import Transaction

HISTORY_MAX = 50


class Kind(StrEnum):
    """The kinds of cases; the value is also the word of commands and paths."""

    CANARY = "canary"
    SAMPLE = "sample"
    REWARD = "reward"
    APPEAL = "appeal"


class Decision(StrEnum):
    """A decision about a case."""

    UPHELD = "upheld"
    VOIDED = "voided"


class Case(Struct, frozen=True):
    """A case about a user.

    `void_amount` is what the user gets if it is made void, in micro-units of `currency`: negative
    for an amount that is taken back. `summary` says in a few words what happened. A case that
    `is_open` can be decided, unless it has a decision. `entitled` is the whole claim of an appeal
    about the job `job_id`, which is due at a time (UTC seconds). With `pays_for_work` the amount is
    earned money, which can be paid out.
    """

    kind: Kind
    id: str
    user_id: str
    at: int
    summary: str
    device_id: str | None = None
    void_amount: int = 0
    currency: Currency = Currency.CREDIT
    is_open: bool = True
    entitled: int = 0
    due_at: int | None = None
    job_id: str | None = None
    pays_for_work: bool = False


class Parties(Struct, frozen=True):
    """The users that a case is about, and the authors of an earlier decision (`author_key`)."""

    users: tuple[str, ...] = ()
    judges: frozenset[str] = frozenset()


class Fact(Struct, frozen=True):
    """A part of the evidence about a case."""

    name: str
    value: str | int | float | None


class PastEvent(Struct, frozen=True):
    """An event of before, about the same device or user; `at` is in UTC seconds."""

    at: int
    what: str
    detail: str


class Evidence(Struct, frozen=True):
    """Evidence for a decision about a case: facts, and the history."""

    facts: list[Fact]
    history: list[PastEvent]


class CaseKind(Protocol):
    """The acts of one kind of case."""

    async def find(self, tx: Transaction, case_id: str) -> Case | None:
        """Return a case, None for an unknown one."""

    async def page(self, tx: Transaction, *, user_id: str, before: str, limit: int) -> list[Case]:
        """Return the cases before one, of a user or of all ("") users, newest first.

        Raises:
            MarketError: `invalid_field`, when the cases of this kind have no list by user.
        """

    async def first_due(self, _tx: Transaction, _user_id: str, _limit: int, /) -> list[Case]:
        """Return the open cases, of a user or of all ("") users, the first one that is due first.

        Raises:
            MarketError: `invalid_field`, when the cases of this kind are due at no time.
        """
        raise MarketError(Code.INVALID_FIELD, "Only appeals have a list of open ones.")

    async def evidence(self, tx: Transaction, case: Case) -> Evidence:
        """Return the evidence about a case."""

    async def parties(self, _tx: Transaction, case: Case, /) -> Parties:
        """Return the users and authors that may not decide about a case."""
        return Parties((case.user_id,))

    async def void(self, tx: Transaction, context: Context, case: Case, /) -> Changes:
        """Give back what a case took, but for its amount. No account is locked before this."""

    async def close(self, _tx: Transaction, _case: Case, _now: int, /) -> None:
        """Record in the rows of the kind that a case has its decision, if they need it."""
        return  # most kinds read their open cases without a mark

    def words(self, case: Case, decision: Decision) -> str:
        """Return the decision in a sentence for the user."""
