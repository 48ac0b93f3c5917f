"""Parts that the routes of the staff share: reasons, authors, and acts of the log."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, convert, structs

from api.openapi import STAFF_PREFIX as PREFIX
from api.routing.codec import money
from api.routing.listing import Limit, Page, Timestamp, timestamp
from api.routing.routes import Call, Reply
from market.staff.base.acts import NAME_MAX_CHARACTERS, REASON_MAX_CHARACTERS
from market.staff.base.columns import Column, written, written_changes
from market.staff.base.roles import Member
from storage.staff.base.log import ShownLogRow

__all__ = [
    "PREFIX",
    "ActItem",
    "Changed",
    "Name",
    "Reason",
    "ReasonRequest",
    "StaffPage",
    "act_item",
    "author",
    "items",
    "moment",
]

Reason = Annotated[str, Meta(max_length=REASON_MAX_CHARACTERS)]
Name = Annotated[str, Meta(max_length=NAME_MAX_CHARACTERS)]
Value = str | int | float | bool | None
_Outcome = TypeVar("_Outcome")
_Item = TypeVar("_Item", bound=Struct)


class StaffPage(Page, kw_only=True):
    """A part of a list of the staff."""

    limit: Limit = 50
    cursor: Annotated[str, Meta(max_length=64)] = ""


class ReasonRequest(Struct):
    """The reason of an act, which is kept with the log."""

    reason: Reason


class Changed(Struct):
    """The old and the new value of a field; amounts are in USD or credits."""

    old: Value
    new: Value


class ActItem(Struct):
    """An act of the log. `text` is its reason or note, "" if it was erased."""

    number: int
    at: Timestamp
    via: str
    staff: str | None
    unix_user: str | None
    action: str
    subject_kind: str
    subject_id: str | None
    user_id: str | None
    changes: dict[str, Changed]
    text: str | None


def act_item(row: ShownLogRow) -> ActItem:
    """Return an act of the log as a list shows it."""
    changes = written_changes(row.changes, write_money=money)
    return ActItem(
        number=row.number,
        at=timestamp(row.at),
        via=row.via,
        staff=row.staff_email,
        unix_user=row.unix_user,
        action=row.action,
        subject_kind=row.subject_kind,
        subject_id=row.subject_id,
        user_id=row.user_id,
        changes={name: Changed(*values) for name, values in changes.items()},
        text=row.text,
    )


def author(call: Call[Any, Any], reply: Callable[[_Outcome], Reply] | None = None) -> Member:
    """Return the author of an act that a request asks for.

    Args:
        call: the request.
        reply: makes the answer of the outcome of the act. With it, a request with an
            Idempotency-Key acts once: the outcome that `act` returns must be the one that the
            handler answers with.
    """
    member = call.staff.member
    return member if reply is None else structs.replace(member, receipt=call.receipt(reply))


def items(rows: Iterable[Any], columns: Sequence[Column], item: type[_Item]) -> list[_Item]:
    """Return rows as items whose fields have the names of the columns."""
    found = written(rows, columns, write_time=moment, write_money=money)
    return [convert(row, item) for row in found]


def moment(seconds: int | None) -> str | None:
    """Return a time of an answer, or None for a time that is absent."""
    return None if seconds is None else timestamp(seconds)
