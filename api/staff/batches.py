"""Routes of files: approved payouts leave in a batch, and a list of their outcomes comes back.

The file of a batch has whole bank accounts. No key of the staff gets one or sends a list, and a
login proves its second factor first. The log records each batch, each download and each list.
"""

from decimal import Decimal
from typing import Any, Literal

from msgspec import Struct, structs

from api.http.identifiers import in_path
from api.routing.codec import Money, money
from api.routing.in_memory import InMemory
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Download, Nothing, Reply, StaffRoute
from api.serving.bodies import RawBody
from api.staff.words import PREFIX, author
from market.base.errors import Code
from market.money.money import MICRO
from market.payouts.files import FILE_MAX_BYTES, FORMATS, Format
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.money import paying
from market.staff.money.paying import Exported, Imported

ALL = f"{PREFIX}/payout_batches"
OUTCOMES = f"{PREFIX}/payout_outcomes"
NO_BATCH = "There is no such batch."
FileFormat = Literal["csv", "pain001", "pain001.03"]


class BatchRequest(Struct):
    """The format of the file; with `eur_rate`, the EUR for a USD, a message to a bank is in EUR."""

    format: FileFormat
    eur_rate: Money | None = None


class BatchItem(Struct):
    """A batch of payouts that were sent."""

    id: str
    payouts: int
    usd: float
    created_at: Timestamp


class BatchReply(Reply, kw_only=True):
    """The new batch; null when no approved payout waits for the format."""

    batch: BatchItem | None


class OutcomeItem(Struct):
    """A line of a list of outcomes: its number, its payout, and the result in words."""

    line: int
    payout_id: str
    state: Literal["booked", "refused", "waits"]
    result: str


class ImportReply(Reply, kw_only=True):
    """The lines with an outcome; a second person decides about `waiting` ones."""

    lines: list[OutcomeItem]
    refused: int
    waiting: int


class StaffBatchRoutes:
    """The routes about batches."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._sealing = desk.methods
        self._debtor = desk.terms.debtor
        self._limits = desk.terms.limits
        self._by_itself = desk.terms.sent_by_itself

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        return [
            StaffRoute(
                "POST",
                ALL,
                "Send the approved payouts in a batch; its file is downloaded",
                self.make,
                BatchReply,
                action=Action.PAYOUT_EXPORT,
                body=BatchRequest,
                idempotent=True,
                example={"format": "csv"},
            ),
            StaffRoute(
                "GET",
                f"{ALL}/{{batch}}/file",
                "Download the file of a batch as it was made; the log records it",
                self.download,
                Reply,
                action=Action.PAYOUT_EXPORT,
                errors=(Code.PAYOUT_BATCH_NOT_FOUND,),
                has_file=True,
            ),
            StaffRoute(
                "POST",
                OUTCOMES,
                "Book a list of outcomes: the exported table, filled in; again it changes nothing",
                self.book,
                ImportReply,
                action=Action.PAYOUT_IMPORT,
                raw_max_bytes=FILE_MAX_BYTES,
                errors=(Code.PAYOUT_FILE_INVALID,),
            ),
        ]

    async def make(self, call: Call[BatchRequest, Any]) -> BatchReply:
        """Send approved payouts."""
        body, debtor = call.body, self._debtor
        if body.eur_rate is not None:
            debtor = structs.replace(debtor, eur_rate=Decimal(body.eur_rate) / MICRO)
        by, form = author(call, _batch), FORMATS[body.format]
        return _batch(
            await paying.export(self._context, by, self._sealing, form, debtor, but=self._by_itself)
        )

    async def book(self, call: Call[RawBody, Any]) -> ImportReply:
        """Book outcomes."""
        by, content = author(call), b"".join([piece async for piece in call.body.pieces()])
        done = await paying.book_file(self._context, by, content, self._limits)
        return ImportReply(
            lines=[_outcome(each) for each in done],
            refused=sum(each.is_refused for each in done),
            waiting=sum(each.waits for each in done),
        )

    async def download(self, call: Call[Nothing, Any]) -> Reply:
        """Send the file of a batch."""
        batch_id = in_path(call.path["batch"], Code.PAYOUT_BATCH_NOT_FOUND, NO_BATCH)
        found = await paying.export_again(self._context, author(call), self._sealing, batch_id)
        content = found.content.encode()
        ending = "csv" if found.batch is not None and found.batch.format == Format.CSV else "xml"
        # An erasure takes lines out of the file: a range of one must not continue another one.
        return Download(
            name=f"payouts-{batch_id}.{ending}",
            etag=f"{batch_id}-{len(content)}",
            content=InMemory(content),
        )


def _outcome(each: Imported) -> OutcomeItem:
    state: Literal["booked", "refused", "waits"] = "booked"
    if each.is_refused or each.waits:
        state = "refused" if each.is_refused else "waits"
    return OutcomeItem(each.line.number, each.line.payout_id, state, each.result)


def _batch(done: Exported) -> BatchReply:
    row = done.batch
    if row is None:
        return BatchReply(batch=None)
    return BatchReply(
        batch=BatchItem(row.id, row.payouts, money(row.net_usd), timestamp(row.created_at))
    )
