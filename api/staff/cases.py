"""Routes that judge cases: failed canaries, failed samples, rewards for photos, and appeals."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api.routing.codec import money
from api.routing.listing import Limit, Listing, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.money import OutcomeReply, outcome_reply
from api.staff.users import FINDING
from api.staff.words import PREFIX, Name, Reason, ReasonRequest, StaffPage, author, moment
from market.base.errors import Code, MarketError
from market.staff.base.roles import Action
from market.staff.cases.base import Decision, Kind
from market.staff.cases.cases import Cases, JudgedCase
from market.staff.desk import StaffDesk

ALL = f"{PREFIX}/cases/{{kind}}"
ONE = f"{ALL}/{{case}}"
OPEN = f"{PREFIX}/appeals"


class CaseQuery(StaffPage, kw_only=True):
    """Cases older than one; rewards also of one user."""

    user: Name = ""


class OpenQuery(Listing, Struct):
    """The number of open cases."""

    limit: Limit = 50


class VoidRequest(Struct):
    """The reason of a decision; a successful appellant gets `percent` of the whole claim in all."""

    reason: Reason
    percent: Annotated[int, Meta(ge=1, le=100)] = 100


class CaseItem(Struct):
    """A case: the user gets `amount` if it is made void; below zero it is taken back.

    A case that `is_open` waits for a decision.
    """

    id: str
    kind: Literal["canary", "sample", "reward", "appeal"]
    user_id: str
    device: str | None
    at: Timestamp
    summary: str
    amount: float
    currency: str
    is_open: bool
    due_at: Timestamp | None
    decision: str | None
    decided_at: Timestamp | None


class FactItem(Struct):
    """A part of the evidence."""

    name: str
    value: str | int | float | None


class PastItem(Struct):
    """An event of before, about the same device or user."""

    at: Timestamp
    what: str
    detail: str


class CasesReply(Reply, kw_only=True):
    """Cases of a kind, the newest first; `next_cursor` continues them."""

    cases: list[CaseItem]
    next_cursor: str | None


class CaseReply(Reply, kw_only=True):
    """A case with its evidence and the history of its device or user."""

    case: CaseItem
    facts: list[FactItem]
    history: list[PastItem]


class CaseRoutes:
    """The routes of cases."""

    def __init__(self, desk: StaffDesk) -> None:
        self._cases = Cases(desk.context, desk.letters)
        self._limits = desk.terms.limits

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        why = {"reason": "the site had a new page"}
        decided = (Code.CASE_NOT_FOUND, Code.CASE_DECIDED, Code.INSUFFICIENT_FUNDS)
        return [
            StaffRoute(
                "GET",
                ALL,
                "Cases of a kind (canary, sample, reward or appeal), the newest first",
                self.listed,
                CasesReply,
                action=Action.CASE_VIEW,
                query=CaseQuery,
                errors=(*FINDING, Code.CASE_NOT_FOUND),
            ),
            StaffRoute(
                "GET",
                ONE,
                "A case with its evidence; the log records the view",
                self.show,
                CaseReply,
                action=Action.CASE_VIEW,
                errors=(Code.CASE_NOT_FOUND,),
            ),
            StaffRoute(
                "GET",
                OPEN,
                "Appeals without a decision, the first one that is due first",
                self.first_due,
                CasesReply,
                action=Action.CASE_VIEW,
                query=OpenQuery,
            ),
            *(
                StaffRoute(
                    "POST",
                    f"{ONE}/{word}",
                    summary,
                    handler,
                    OutcomeReply,
                    action=Action.CASE_DECIDE,
                    body=body,
                    idempotent=True,
                    errors=decided,
                    example=why,
                )
                for word, summary, handler, body in (
                    (
                        "uphold",
                        "Decide that the failure, the reward or the first decision stands",
                        self.uphold,
                        ReasonRequest,
                    ),
                    (
                        "void",
                        "Undo a failure, take a reward back, or let an appeal succeed",
                        self.void,
                        VoidRequest,
                    ),
                )
            ),
        ]

    async def listed(self, call: Call[Nothing, CaseQuery]) -> CasesReply:
        """List the cases of a kind."""
        query = call.query
        rows = await self._cases.listed(
            author(call),
            _kind(call),
            user=query.user,
            before=query.before,
            limit=query.fetch_limit,
        )
        part = rows[: query.limit]
        return CasesReply(
            cases=[_item(row) for row in part],
            next_cursor=part[-1].case.id if len(rows) > query.limit else None,
        )

    async def first_due(self, call: Call[Nothing, OpenQuery]) -> CasesReply:
        """List the appeals that wait; their decisions make room for the next ones."""
        rows = await self._cases.first_due(author(call), Kind.APPEAL, limit=call.query.limit)
        return CasesReply(cases=[_item(row) for row in rows], next_cursor=None)

    async def show(self, call: Call[Nothing, Any]) -> CaseReply:
        """Return a case with its evidence."""
        shown = await self._cases.shown(author(call), _kind(call), call.path["case"])
        return CaseReply(
            case=_item(shown.judged),
            facts=[FactItem(each.name, each.value) for each in shown.evidence.facts],
            history=[
                PastItem(timestamp(each.at), each.what, each.detail)
                for each in shown.evidence.history
            ],
        )

    async def uphold(self, call: Call[ReasonRequest, Any]) -> OutcomeReply:
        """Uphold a case."""
        return await self._decide(call, Decision.UPHELD)

    async def void(self, call: Call[VoidRequest, Any]) -> OutcomeReply:
        """Make a case void."""
        return await self._decide(call, Decision.VOIDED, percent=call.body.percent)

    async def _decide(
        self, call: Call[Any, Any], decision: Decision, *, percent: int = 100
    ) -> OutcomeReply:
        outcome = await self._cases.decide(
            author(call, outcome_reply),
            _kind(call),
            call.path["case"],
            decision,
            self._limits,
            call.body.reason,
            percent=percent,
        )
        return outcome_reply(outcome)


def _kind(call: Call[Any, Any]) -> Kind:
    """Return the kind in a path.

    Raises:
        MarketError: `case_not_found`.
    """
    try:
        return Kind(call.path["kind"])
    except ValueError:
        raise MarketError(Code.CASE_NOT_FOUND, "There is no such kind of case.") from None


def _item(row: JudgedCase) -> CaseItem:
    case, decision = row.case, row.decision
    return CaseItem(
        id=case.id,
        kind=case.kind.value,
        user_id=case.user_id,
        device=case.device_id,
        at=timestamp(case.at),
        summary=case.summary,
        amount=money(case.void_amount),
        currency=case.currency,
        is_open=case.is_open and decision is None,
        due_at=moment(case.due_at),
        decision=None if decision is None else decision.decision,
        decided_at=None if decision is None else moment(decision.decided_at),
    )
