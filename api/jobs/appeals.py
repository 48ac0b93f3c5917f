"""Routes of appeals: either side of a decided dispute asks once for another decision."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from api.http.identifiers import in_path
from api.routing.codec import money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.jobs.appeals import Appeals
from market.jobs.reviews import REASON_MAX_CHARACTERS
from storage.jobs.appeals import AppealRow, DecidedRow


class AppealRequest(Struct):
    """The objection to a decision, for another person of the operator."""

    reason: Annotated[str, Meta(min_length=1, max_length=REASON_MAX_CHARACTERS)]


class AppealReply(Reply, kw_only=True):
    """An appeal that waits; it is decided by `due_at`."""

    appeal_id: str
    due_at: Timestamp


class AppealItem(Struct, omit_defaults=True):
    """An appeal of the caller. Without a `decision` it waits.

    `upheld`: the first decision stays. `voided`: the service has paid `amount`, to a buyer in the
    currency of the job, to a worker in credits.
    """

    appeal_id: str
    job_id: str
    created_at: Timestamp
    due_at: Timestamp
    decision: str | None = None
    decided_at: Timestamp | None = None
    amount: float = 0


class AppealsReply(Listed[AppealItem], kw_only=True):
    """The caller's appeals, newest first; `next_cursor` is there when there are more."""

    items: list[AppealItem] = field(name="appeals")


class AppealRoutes:
    """The routes of appeals."""

    def __init__(self, appeals: Appeals) -> None:
        self._appeals = appeals

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/jobs/{job_id}/appeal",
                "Appeal against the decision of a dispute, as its buyer or worker, within 14 days",
                self.appeal,
                AppealReply,
                scope=Scope.JOBS_WRITE,
                body=AppealRequest,
                example={"reason": "The log shows the missing files."},
                errors=(Code.JOB_NOT_FOUND, Code.NOT_REVIEWABLE, Code.ALREADY_APPEALED),
            ),
            Route(
                "POST",
                "/api/worker/jobs/{job_id}/appeal",
                "Appeal against the decision of a dispute about the work of this device",
                self.appeal_of_device,
                AppealReply,
                auth=Auth.WORKER,
                body=AppealRequest,
                example={"reason": "The log shows the expected sum."},
                errors=(Code.JOB_NOT_FOUND, Code.NOT_REVIEWABLE, Code.ALREADY_APPEALED),
            ),
            Route(
                "GET",
                "/api/appeals",
                "My appeals, newest first",
                self.listed,
                AppealsReply,
                scope=Scope.JOBS_READ,
                query=Page,
            ),
        ]

    async def appeal(self, call: Call[AppealRequest, Any]) -> AppealReply:
        """Ask for another decision."""
        job_id = in_path(call.path["job_id"], Code.JOB_NOT_FOUND)
        return _reply(await self._appeals.appeal(call.user_id, job_id, call.body.reason))

    async def appeal_of_device(self, call: Call[AppealRequest, Any]) -> AppealReply:
        """Ask for another decision about the work of a device, for its owner."""
        job_id = in_path(call.path["job_id"], Code.JOB_NOT_FOUND)
        reason = call.body.reason
        return _reply(await self._appeals.appeal_of_device(call.device, job_id, reason))

    async def listed(self, call: Call[Nothing, Page]) -> AppealsReply:
        """List the appeals of the caller."""
        query = call.query
        rows = await self._appeals.listed(
            call.user_id, before=query.before, limit=query.fetch_limit
        )
        return AppealsReply.of(query, rows, _item)


def _reply(row: AppealRow) -> AppealReply:
    return AppealReply(appeal_id=row.id, due_at=timestamp(row.due_at))


def _item(row: DecidedRow) -> AppealItem:
    return AppealItem(
        appeal_id=row.id,
        job_id=row.job_id,
        created_at=timestamp(row.created_at),
        due_at=timestamp(row.due_at),
        decision=row.decision,
        decided_at=None if row.decided_at is None else timestamp(row.decided_at),
        amount=money(row.given),
    )
