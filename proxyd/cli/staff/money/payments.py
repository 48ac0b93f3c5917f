"""Commands about payments by a provider."""

from argparse import Namespace

from market.money.money import Currency, as_decimal
from market.staff.money import doubts, forgiving, payments
from proxyd.cli.staff.base.desk import Command, Desk, Ended, Report, Row, when
from proxyd.cli.staff.money.money import report
from proxyd.ops.base.books import approval_limits
from storage.payments.payments import PaymentRow


async def _list(desk: Desk, options: Namespace) -> Report:
    rows = await payments.listed(
        desk.context,
        desk.author,
        options.user,
        status=options.status,
        before=options.before or "",
        limit=options.limit,
    )
    return {"payments": [_row(row) for row in rows]}


async def _show(desk: Desk, options: Namespace) -> Report:
    found = await payments.shown(desk.context, desk.author, options.payment)
    row = found.row
    return {
        "payment": {
            **_row(row),
            "username": found.username,
            "provider_id": row.provider_id,
            "charge": row.charge_id,
            "doubt": row.doubt,
            "closed": when(row.closed_at),
            "looked": when(row.looked_at or None),
            "next_look": when(row.next_look_at),
            "receipt": None if found.receipt is None else found.receipt.number,
        },
        "returns": [
            {
                "id": each.id,
                "kind": each.kind,
                "status": each.status,
                "amount": as_decimal(each.amount),
                "held": as_decimal(each.held),
                "provider_ref": each.provider_ref,
                "began": when(each.created_at),
                "closed": when(each.closed_at),
            }
            for each in found.returns
        ],
    }


async def _refund(desk: Desk, options: Namespace) -> Report | Ended:
    outcome = await payments.refund(
        desk.context,
        desk.author,
        options.payment,
        approval_limits(desk.settings),
        amount=options.amount,
        reference=options.reference,
        why=options.reason,
    )
    return report(outcome, "refunded")


async def _look(desk: Desk, options: Namespace) -> Report:
    row = await payments.look(desk.context, desk.author, options.payment, options.reason)
    return {"looking": _row(row)}


async def _doubtful(desk: Desk, options: Namespace) -> Report:
    rows = await payments.listed(
        desk.context,
        desk.author,
        options.user,
        status="doubtful",
        before=options.before or "",
        limit=options.limit,
    )
    return {
        "payments": [
            {
                **_row(row),
                "doubt": row.doubt,
                "accepted": None if row.accepted is None else as_decimal(row.accepted),
            }
            for row in rows
        ]
    }


async def _credit(desk: Desk, options: Namespace) -> Report | Ended:
    outcome = await doubts.credit(
        desk.context,
        desk.author,
        options.payment,
        approval_limits(desk.settings),
        amount=options.amount,
        why=options.reason,
    )
    return report(outcome, "accepted")


async def _give_up(desk: Desk, options: Namespace) -> Report:
    row = await doubts.give_up(desk.context, desk.author, options.payment, options.reason)
    return {"given up": _row(row)}


async def _forgive(desk: Desk, options: Namespace) -> Report | Ended:
    outcome = await forgiving.forgive(
        desk.context,
        desk.author,
        options.user,
        approval_limits(desk.settings),
        amount=options.amount,
        reference=options.reference,
        why=options.reason,
        currency=Currency(options.currency),
    )
    return report(outcome, "forgiven")


def _row(row: PaymentRow) -> Row:
    return {
        "id": row.id,
        "began": when(row.created_at),
        "user": row.user_id,
        "provider": row.provider,
        "status": row.status,
        "amount": as_decimal(row.amount),
    }


COMMANDS: dict[str, Command] = {
    "payments list": _list,
    "payments show": _show,
    "payments refund": _refund,
    "payments look": _look,
    "payments doubtful": _doubtful,
    "payments credit": _credit,
    "payments give-up": _give_up,
    "payments forgive": _forgive,
}
