"""Commands about payouts: list, decide, send, and book their outcomes."""

import os
from argparse import Namespace
from decimal import Decimal
from pathlib import Path

from msgspec import structs

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.states import PayoutStatus
from market.money.money import as_decimal
from market.payouts import files
from market.payouts.details import METHODS_PURPOSE
from market.payouts.rules import Earnings
from market.payouts.terms import RejectReason
from market.staff.money import paying
from proxyd.cli.output import OutputError
from proxyd.cli.staff.base.desk import FAILED, WAITS, Command, Desk, Ended, Report, Row, when
from proxyd.cli.staff.money.money import report
from proxyd.ops.base.books import approval_limits
from proxyd.ops.base.signing_key import signing_key
from proxyd.wiring import slices
from storage.payouts.payouts import PayoutRow

TABLE = "csv"


async def _list(desk: Desk, options: Namespace) -> Report:
    rows = await paying.listed(
        desk.context,
        desk.author,
        PayoutStatus(options.state),
        after=options.after,
        limit=options.limit,
    )
    return {"payouts": [_row(row) for row in rows]}


async def _doubtful(desk: Desk, options: Namespace) -> Report:
    found = await paying.doubtful(desk.context, desk.author, limit=options.limit)
    return {
        "batches": [
            {
                "batch": each.batch.id,
                "provider": each.batch.format,
                "usd": as_decimal(each.batch.net_usd),
                "tried": when(each.batch.tried_at),
                "doubtful": when(each.batch.doubtful_at),
            }
            for each in found
        ],
        "payouts": [_row(row) for each in found for row in each.rows],
    }


async def _show(desk: Desk, options: Namespace) -> Report:
    found = await paying.show(desk.context, desk.author, options.payout, _sealing(desk))
    details = {
        name: getattr(found.details, name)
        for name in found.details.__struct_fields__
        if getattr(found.details, name)
    }
    return {
        "payout": _row(found.row),
        "method": {
            "kind": found.method.kind,
            "added": when(found.method.created_at),
            **details,
        },
        "user": {"id": found.row.user_id, "verified": found.is_verified},
        "earnings": [
            {"currency": currency, **_earnings(each)} for currency, each in found.earnings.items()
        ],
        "sources": [
            {
                "buyer": each.buyer.buyer_id,
                "payments": each.buyer.payments,
                "earned": as_decimal(each.buyer.earned),
                "has_deposited": each.has_deposited,
                "has_bonus": bool(each.signs.has_bonus),
                "signs": " ".join(each.signs.names),
                "circular": each.signs.is_circular,
            }
            for each in found.sources
        ],
    }


async def _approve(desk: Desk, options: Namespace) -> Report | Ended:
    outcome = await paying.approve(
        desk.context,
        desk.author,
        options.payout,
        approval_limits(desk.settings),
        options.note,
    )
    return report(outcome, "approved")


async def _reject(desk: Desk, options: Namespace) -> Report:
    row = await paying.reject(
        desk.context, desk.author, options.payout, RejectReason(options.reason), options.note
    )
    return {"rejected": _row(row)}


async def _export(desk: Desk, options: Namespace) -> Report:
    _require_matching(options)
    path, done = Path(options.file), None
    # Before the payouts are marked as sent: a folder that is not there must not cost a batch.
    handle = _begun(path)
    try:
        done = await _exported(desk, options)
    finally:
        _finish(path, handle, done)
    batch = done.batch
    if batch is None:
        return {"exported": None, "words": "no approved payout waits for this format"}
    return {
        "exported": {
            "batch": batch.id,
            "format": batch.format,
            "payouts": batch.payouts,
            "usd": as_decimal(batch.net_usd),
            "file": str(path),
        }
    }


def _require_matching(options: Namespace) -> None:
    """Refuse options that would have no effect: the file would be another one than they name.

    Raises:
        MarketError: `invalid_field`.
    """
    if options.batch and (options.format or options.eur_rate is not None):
        message = "A batch keeps its format and its rate: --batch takes neither of them."
        raise MarketError(Code.INVALID_FIELD, message)


async def _exported(desk: Desk, options: Namespace) -> paying.Exported:
    sealing = _sealing(desk)
    if options.batch:
        return await paying.export_again(desk.context, desk.author, sealing, options.batch)
    rate = None if options.eur_rate is None else Decimal(options.eur_rate) / 1_000_000
    debtor = structs.replace(slices.debtor(desk.settings), eur_rate=rate)
    form, by_itself = files.FORMATS[options.format or TABLE], slices.sent_by_itself(desk.settings)
    return await paying.export(desk.context, desk.author, sealing, form, debtor, but=by_itself)


async def _import(desk: Desk, options: Namespace) -> Report | Ended:
    content, limits = _content(Path(options.file)), approval_limits(desk.settings)
    results = await paying.book_file(desk.context, desk.author, content, limits)
    rows = [
        {"line": each.line.number, "payout": each.line.payout_id, "result": each.result}
        for each in results
    ]
    refused = sum(each.is_refused for each in results)
    done: Report = {"imported": rows, "refused_lines": refused}
    if refused:
        return Ended(done, FAILED)
    return Ended(done, WAITS) if any(each.waits for each in results) else done


async def _verify(desk: Desk, options: Namespace) -> Report:
    is_new = await paying.verify(
        desk.context, desk.author, options.user, options.reason, is_checked=not options.undo
    )
    word = "not verified" if options.undo else "verified"
    return {word if is_new else f"{word} before": {"user": options.user}}


def _begun(path: Path) -> int:
    """Make a new file that only its owner can read, and return its handle."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}."
        raise MarketError(Code.INVALID_FIELD, message) from error


def _finish(path: Path, handle: int, done: paying.Exported | None) -> None:
    """Write a batch to its file, or remove the file without one.

    Raises:
        OutputError: it cannot be written; the payouts are marked as sent by then.
    """
    batch = None if done is None else done.batch
    try:
        with os.fdopen(handle, "wb") as file:
            if done is not None:
                file.write(done.content.encode())
    except OSError as error:
        path.unlink()
        again = f"; write it again: proxyd payouts export FILE --batch {batch.id}" if batch else ""
        raise OutputError(f"{path} cannot be written: {error.strerror}{again}") from error
    if batch is None:
        path.unlink()


def _content(path: Path) -> bytes:
    """Return a file, or a little more of it than is accepted."""
    try:
        with path.open("rb") as file:
            return file.read(files.FILE_MAX_BYTES + 1)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}."
        raise MarketError(Code.INVALID_FIELD, message) from error


def _sealing(desk: Desk) -> Sealing:
    return Sealing(signing_key(desk.settings), METHODS_PURPOSE)


def _row(row: PayoutRow) -> Row:
    return {
        "id": row.id,
        "state": row.state,
        "user": row.user_id,
        "amount": as_decimal(row.amount),
        "currency": row.currency,
        "usd": as_decimal(row.usd),
        "fee": as_decimal(row.fee),
        "net": as_decimal(row.net),
        "reason": row.reason,
        "requested": when(row.requested_at),
        "decide_by": when(row.decide_by),
        "sent": when(row.sent_at),
        "ended": when(row.ended_at),
        "batch": row.batch_id,
    }


def _earnings(found: Earnings) -> Row:
    names = (*found.__struct_fields__, "spent")
    return {name: as_decimal(getattr(found, name)) for name in names}


COMMANDS: dict[str, Command] = {
    "payouts list": _list,
    "payouts doubtful": _doubtful,
    "payouts show": _show,
    "payouts approve": _approve,
    "payouts reject": _reject,
    "payouts export": _export,
    "payouts import": _import,
    "user verify": _verify,
}
