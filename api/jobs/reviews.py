"""Routes of reviews: the buyer of a finished job confirms the result, or disputes it."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from api.http.identifiers import in_path
from api.routing.routes import Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.jobs.reviews import REASON_MAX_CHARACTERS, Reviews


class DisputeRequest(Struct):
    """Fault of the result, for the operator, who decides."""

    reason: Annotated[str, Meta(min_length=1, max_length=REASON_MAX_CHARACTERS)]


class ReviewRoutes:
    """The routes of reviews."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews

    def table(self) -> list[Route]:
        """Return the declarations."""
        errors = (Code.JOB_NOT_FOUND, Code.NOT_REVIEWABLE)
        return [
            Route(
                "POST",
                "/api/jobs/{job_id}/confirm",
                "Confirm the result of one of my jobs, and have it paid for",
                self.confirm,
                Reply,
                scope=Scope.JOBS_WRITE,
                errors=errors,
            ),
            Route(
                "POST",
                "/api/jobs/{job_id}/dispute",
                "Dispute the result of one of my jobs",
                self.dispute,
                Reply,
                scope=Scope.JOBS_WRITE,
                body=DisputeRequest,
                example={"reason": "The file is empty."},
                errors=(*errors, Code.ALREADY_DISPUTED),
            ),
        ]

    async def confirm(self, call: Call[Nothing, Any]) -> Reply:
        """Confirm the result of a job, and pay it now."""
        await self._reviews.confirm(call.user_id, _job_id(call))
        return Reply()

    async def dispute(self, call: Call[DisputeRequest, Any]) -> Reply:
        """Stop the payment until the operator has decided."""
        await self._reviews.dispute(call.user_id, _job_id(call), call.body.reason)
        return Reply()


def _job_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["job_id"], Code.JOB_NOT_FOUND)
