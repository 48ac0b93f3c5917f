"""Parsers of the commands about money and approvals; they import no code of a command."""

import argparse

from proxyd.cli.parsing import (
    Commands,
    Topics,
    add_amounts,
    add_limit,
    amount,
    bound,
    commands_of,
    count,
    identifier,
    part,
    percent,
    signed_amount,
    text,
)
from proxyd.cli.staff.parsers import add_reason, add_user, finish_command

CURRENCIES = ("usd", "credit")  # as in `market.money`, which no parser waits for
PAYMENT_STATUSES = ("open", "paid", "expired", "failed", "doubtful")


def add_users(user: Commands) -> None:
    """Add the command that changes limits and the price of one user."""
    limits = user.add_parser("limit", help="change limits and the price of one user")
    add_user(limits)
    for name, words in (
        ("sessions", "active sessions"),
        ("jobs", "waiting and running jobs"),
        ("devices", "worker tokens"),
    ):
        limits.add_argument(
            f"--{name}", type=bound, metavar="N", help=f"{words}: a number, none, or default"
        )
    limits.add_argument(
        "--price-percent",
        type=percent,
        metavar="P",
        help="part of the service's prices per GB: a number from 1, or default",
    )
    limits.add_argument(
        "--level",
        choices=("new", "known", "default"),
        help="whether the account has the limits of new ones; default: by its age",
    )
    limits.add_argument(
        "--until",
        type=text,
        metavar="TIME",
        help="the end: a span such as 24h or 7d, or a UTC time such as 2027-01-31; or none",
    )
    limits.add_argument(
        "--clear", action="store_true", help="first take all of the user's own values away"
    )
    add_reason(limits)
    finish_command(limits, "user limit")


def add_jobs(jobs: Commands) -> None:
    """Add the commands that show a disputed job, and decide about it."""
    show = jobs.add_parser("show", help="all evidence about a job; the log records it")
    _add_job(show)
    show.add_argument(
        "--search", type=text, default="", metavar="TEXT", help="only lines of the log around it"
    )
    show.add_argument("--stream", choices=("stdout", "stderr"))
    show.add_argument("--attempt", type=count, metavar="N", help="the log of this attempt")
    finish_command(show, "jobs show")
    for name, words in (
        ("uphold", "decide for the worker: the payment stands"),
        ("reverse", "decide for the buyer: all of the price goes back"),
        ("split", "decide for both: a part of the price goes back"),
    ):
        command = jobs.add_parser(name, help=words)
        _add_job(command)
        if name == "split":
            command.add_argument(
                "percent", type=part, metavar="PERCENT", help="the buyer's part, from 1 to 99"
            )
        command.add_argument(
            "--reason",
            type=text,
            required=True,
            metavar="TEXT",
            help="sent to the buyer and workers",
        )
        finish_command(command, f"jobs {name}")


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=text, metavar="JOB", help="the identifier of the job")


def add_topics(topics: Topics) -> None:
    """Add the topics that move money, and those of the second person."""
    topics.add("wallet", "pay money in", _add_wallet)
    topics.add("money", "refund, correct, and list a user's money", _add_money)
    topics.add("payments", "payments by a provider: list, show, refund", _add_payments)
    topics.add("approvals", "acts that wait for a second person", _add_approvals)
    topics.add("approve", "carry out an act that another person asked for", _add_approve)
    topics.add("refuse", "refuse an act that waits, or withdraw your own", _add_refuse)


def _add_wallet(topic: argparse.ArgumentParser) -> None:
    """Add the command that pays money in."""
    deposit = commands_of(topic).add_parser("deposit", help="pay money into an account")
    add_user(deposit)
    deposit.add_argument(
        "--reference",
        type=text,
        metavar="TEXT",
        help="names this deposit; repeating the command with the same one changes nothing",
    )
    deposit.add_argument(
        "--reason", type=text, default="", metavar="TEXT", help="kept with the log"
    )
    add_amounts(deposit)
    finish_command(deposit, "wallet deposit")


def _add_money(topic: argparse.ArgumentParser) -> None:
    """Add the commands about the money of a user."""
    commands = commands_of(topic)
    refund = commands.add_parser(
        "refund", help="book a part of a deposit out of the service; pay it back by hand"
    )
    add_user(refund)
    refund.add_argument("amount", type=amount, metavar="AMOUNT", help="such as 7.42")
    refund.add_argument(
        "--deposit", type=text, required=True, metavar="REFERENCE", help="names the deposit"
    )
    _add_names(refund)
    refund.set_defaults(currency="usd")
    finish_command(refund, "money refund")
    correct = commands.add_parser("correct", help="add money to a user's balance, or take some")
    add_user(correct)
    correct.add_argument(
        "amount", type=signed_amount, metavar="AMOUNT", help="such as 5 or -0.5; never below zero"
    )
    _add_names(correct, needs_currency=True)
    correct.add_argument(
        "--debt",
        action="store_true",
        help="take earnings back; the part that was paid out becomes a debt",
    )
    finish_command(correct, "money correct")
    history = commands.add_parser("history", help="a user's balances and transactions")
    add_user(history)
    history.add_argument(
        "--before",
        type=identifier,
        metavar="ID",
        help="only transactions before this one",
    )
    add_limit(history, "transactions")
    finish_command(history, "money history")


def _add_approvals(approvals: argparse.ArgumentParser) -> None:
    """Add the options of the list of requests."""
    approvals.add_argument("--all", action="store_true", help="include the decided ones")
    approvals.add_argument(
        "--before", type=identifier, metavar="ID", help="only requests before this one"
    )
    add_limit(approvals, "requests")
    finish_command(approvals, "approvals")


def _add_approve(approve: argparse.ArgumentParser) -> None:
    """Add the options of an approval."""
    _add_approval(approve)
    approve.add_argument(
        "--reason", type=text, default="", metavar="TEXT", help="kept with the log"
    )
    finish_command(approve, "approve")


def _add_refuse(refuse: argparse.ArgumentParser) -> None:
    """Add the options of a refusal."""
    _add_approval(refuse)
    add_reason(refuse)
    finish_command(refuse, "refuse")


def _add_payments(topic: argparse.ArgumentParser) -> None:
    """Add the commands about payments by a provider."""
    commands = commands_of(topic)
    listed = commands.add_parser("list", help="the newest payments")
    listed.add_argument(
        "--status", choices=PAYMENT_STATUSES, default="", help="only payments in this state"
    )
    _add_part(listed)
    finish_command(listed, "payments list")
    show = commands.add_parser("show", help="a payment with its refunds and disputes")
    _add_payment(show)
    finish_command(show, "payments show")
    refund = commands.add_parser("refund", help="send unspent money back through the provider")
    _add_payment(refund)
    refund.add_argument("amount", type=amount, metavar="AMOUNT", help="such as 7.42")
    _add_reference(refund, "refund")
    add_reason(refund)
    finish_command(refund, "payments refund")
    look = commands.add_parser("look", help="have the daemon ask the provider about a payment")
    _add_payment(look)
    add_reason(look)
    finish_command(look, "payments look")
    _add_doubts(commands)


def _add_part(listed: argparse.ArgumentParser) -> None:
    """Add the options that choose a part of a list of payments."""
    listed.add_argument(
        "--user", type=text, default="", metavar="USER", help="only payments of this user"
    )
    listed.add_argument(
        "--before", type=identifier, metavar="ID", help="only payments before this one"
    )
    add_limit(listed, "payments")


def _add_doubts(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands about doubtful payments and debts."""
    doubtful = commands.add_parser("doubtful", help="payments that wait for your decision")
    _add_part(doubtful)
    finish_command(doubtful, "payments doubtful")
    credit = commands.add_parser("credit", help="credit a doubtful payment at its next look")
    _add_payment(credit)
    credit.add_argument(
        "--amount", type=amount, metavar="AMOUNT", help="another amount than that of the payment"
    )
    add_reason(credit)
    finish_command(credit, "payments credit")
    give_up = commands.add_parser("give-up", help="give a doubtful payment up: nothing is credited")
    _add_payment(give_up)
    add_reason(give_up)
    finish_command(give_up, "payments give-up")
    forgive = commands.add_parser("forgive", help="forgive a part of a user's debts")
    add_user(forgive)
    forgive.add_argument("amount", type=amount, metavar="AMOUNT", help="such as 7.42")
    forgive.add_argument(
        "--currency", choices=CURRENCIES, default="usd", help="the currency of the debts"
    )
    _add_reference(forgive, "act")
    add_reason(forgive)
    finish_command(forgive, "payments forgive")


def _add_reference(parser: argparse.ArgumentParser, named: str) -> None:
    """Add the name of an act; a repetition has the same name."""
    parser.add_argument(
        "--reference",
        type=text,
        required=True,
        metavar="TEXT",
        help=f"names this {named}; repeating the command with the same one changes nothing",
    )


def _add_payment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "payment", type=text, metavar="PAYMENT", help="the identifier of the payment"
    )


def _add_names(parser: argparse.ArgumentParser, *, needs_currency: bool = False) -> None:
    parser.add_argument(
        "--currency", choices=CURRENCIES, required=needs_currency, help="the currency of the amount"
    )
    _add_reference(parser, "act")
    add_reason(parser)


def _add_approval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("approval", type=text, metavar="ID", help="the identifier of the request")
