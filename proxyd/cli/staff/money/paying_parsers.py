"""Parsers of the commands about payouts; they import no code of a command."""

import argparse

from proxyd.cli.parsing import Commands, Topics, add_limit, amount, commands_of, text
from proxyd.cli.staff.parsers import add_reason, add_user, finish_command

# As in `market.base.states` and `market.payouts`, which no parser waits for.
STATES = ("requested", "cancelled", "approved", "rejected", "sent", "paid", "failed")
REASONS = (
    "method_invalid",
    "name_mismatch",
    "identity_needed",
    "earnings_in_doubt",
    "circular_earnings",
    "terms_broken",
    "not_supported",
)
FORMATS = ("csv", "pain001", "pain001.03")


def add_users(user: Commands) -> None:
    """Add the command that records a check of a user's identity."""
    verify = user.add_parser("verify", help="record that a user's identity was checked")
    add_user(verify)
    verify.add_argument("--undo", action="store_true", help="remove the record")
    add_reason(verify)
    finish_command(verify, "user verify")


def add_topics(topics: Topics) -> None:
    """Add the topic of payouts."""
    topics.add("payouts", "decide about payouts, send and book them", _add_payouts)


def _add_payouts(topic: argparse.ArgumentParser) -> None:
    """Add the commands about payouts."""
    commands = commands_of(topic)
    listed = commands.add_parser("list", help="payouts in a state, the oldest first")
    listed.add_argument("--state", choices=STATES, default="requested")
    listed.add_argument(
        "--after", type=text, default="", metavar="ID", help="only payouts after this one"
    )
    add_limit(listed, "payouts")
    finish_command(listed, "payouts list")
    doubtful = commands.add_parser("doubtful", help="batches that a provider may have sent or not")
    add_limit(doubtful, "batches")
    finish_command(doubtful, "payouts doubtful")
    show = commands.add_parser("show", help="a payout with its details; the log records it")
    _add_payout(show)
    finish_command(show, "payouts show")
    approve = commands.add_parser("approve", help="approve a payout, or ask a second person")
    _add_payout(approve)
    _add_note(approve)
    finish_command(approve, "payouts approve")
    reject = commands.add_parser("reject", help="reject a payout that was not sent")
    _add_payout(reject)
    reject.add_argument("--reason", choices=REASONS, required=True, help="sent to the user")
    _add_note(reject)
    finish_command(reject, "payouts reject")
    export = commands.add_parser("export", help="send the approved payouts: write them to a file")
    export.add_argument("file", type=text, metavar="FILE", help="a new file")
    export.add_argument("--format", choices=FORMATS, help="csv by default")
    export.add_argument(
        "--eur-rate", type=amount, metavar="R", help="EUR for a USD: pain.001 for SEPA"
    )
    export.add_argument(
        "--batch", type=text, default="", metavar="ID", help="write the file of a batch again"
    )
    finish_command(export, "payouts export")
    book = commands.add_parser("import", help="book the outcomes in a list that came back")
    book.add_argument("file", type=text, metavar="FILE", help="the exported table, filled in")
    finish_command(book, "payouts import")


def _add_payout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("payout", type=text, metavar="ID", help="the identifier of the payout")


def _add_note(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--note", type=text, default="", metavar="TEXT", help="kept with the log")
