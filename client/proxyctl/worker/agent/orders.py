"""Reads the daemon's answers to `next` and `sync`; invalid parts are skipped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from proxyctl.words import OwnerError, plain_line

_JOB_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT_MAX: Final = 999_999
_LEASE_SECONDS: Final = 60  # where the daemon says nothing of its leases
_LEASE_MIN_SECONDS: Final = 4.0
_SECONDS_MAX: Final = 366 * 86_400


class NotUnderstoodError(OwnerError):
    """The daemon has sent an impossible order; the message names it."""


@dataclass(frozen=True)
class StopOrder:
    """An attempt that the daemon does not want any more."""

    attempt_id: str
    reason: str


@dataclass(frozen=True)
class Order:
    """An answer.

    Attributes:
        jobs: that are given to this device, not looked at yet.
        stops: the attempts to stop now.
        lease_s: for how long the attempts are this device's.
        seen: the number of the answer.
        is_replaced: another agent with the same token gets the jobs.
    """

    jobs: tuple[object, ...]
    stops: tuple[StopOrder, ...]
    lease_s: float
    seen: int
    is_replaced: bool = False


def orders_of(reply: dict[str, Any]) -> Order:
    """Return the order in an answer; parts that make no sense are skipped."""
    jobs, actions = reply.get("jobs", []), reply.get("actions", [])
    seen = _whole(reply.get("seen"), 0)
    lease_s = float(_whole(reply.get("lease_s"), _LEASE_SECONDS))
    return Order(
        jobs=tuple(jobs) if isinstance(jobs, list) else (),
        stops=tuple(_stops(actions if isinstance(actions, list) else [])),
        lease_s=max(_LEASE_MIN_SECONDS, lease_s),
        seen=seen,
        is_replaced=reply.get("replaced") is True,
    )


def work_of(work: object) -> dict[str, Any]:
    """Return a job that was given, once everything is there that the journal needs.

    Its identifier becomes the name of a folder: it is one, or nothing is done with it.

    Raises:
        NotUnderstoodError: something is missing, or cannot be.
    """
    if not isinstance(work, dict):
        raise NotUnderstoodError("it is no object")
    job_id, attempt, seconds = (work.get(name) for name in ("job_id", "attempt", "timeout_s"))
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        raise NotUnderstoodError("its job_id is no identifier")
    if not _is_number(attempt) or not 1 <= attempt <= _ATTEMPT_MAX:  # type: ignore[operator]
        raise NotUnderstoodError(f"{job_id}: its attempt is no number")
    if not _is_number(seconds) or not 1 <= seconds <= _SECONDS_MAX:  # type: ignore[operator]
        raise NotUnderstoodError(f"{job_id}: its timeout_s is out of range")
    return work


def _stops(actions: list[object]) -> list[StopOrder]:
    stops = []
    for each in actions:
        if isinstance(each, dict) and each.get("action") == "stop":
            reason = plain_line(str(each.get("reason") or "the marketplace wants it no more"))
            stops.append(StopOrder(f"{each.get('job_id')}-{each.get('attempt')}", reason))
    return stops


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
