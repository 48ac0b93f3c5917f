"""Route of answers: a worker says something about the dispute of its work."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from api.http.identifiers import in_path
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.jobs.answers import Answers
from market.jobs.reviews import REASON_MAX_CHARACTERS


class AnswerRequest(Struct):
    """The answer to a dispute, for the operator, who decides."""

    text: Annotated[str, Meta(min_length=1, max_length=REASON_MAX_CHARACTERS)]


class AnswerReply(Reply, kw_only=True):
    """The time of an answer; a later one replaces it until the decision."""

    answered_at: Timestamp


class AnswerRoutes:
    """The route of answers."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/jobs/{job_id}/answer",
                "Answer the dispute of my work at a job, until the decision",
                self.answer,
                AnswerReply,
                scope=Scope.JOBS_WRITE,
                body=AnswerRequest,
                example={"text": "The program printed the sum; the log has it."},
                errors=(Code.JOB_NOT_FOUND, Code.NOT_REVIEWABLE),
            ),
        ]

    async def answer(self, call: Call[AnswerRequest, Any]) -> AnswerReply:
        """Keep the answer for the staff."""
        job_id = in_path(call.path["job_id"], Code.JOB_NOT_FOUND)
        row = await self._answers.answer(call.user_id, job_id, call.body.text)
        return AnswerReply(answered_at=timestamp(row.answered_at))
