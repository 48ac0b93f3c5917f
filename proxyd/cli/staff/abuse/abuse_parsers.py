"""Parsers of the commands about abuse: tickets, and the figures of a complaint."""

from typing import TYPE_CHECKING

from proxyd.cli.parsing import Topics, add_limit, commands_of, count, text
from proxyd.cli.staff.parsers import add_exit_use, add_reason, finish_command

if TYPE_CHECKING:
    import argparse

# As in `market.staff.abuse.tickets`, which no parser waits for.
CATEGORIES = ("abuse", "scan", "spam", "break_in", "phishing", "child_abuse")
STATES = ("new", "looked_up", "contacted", "suspended", "answered", "legal", "closed")
OUTCOMES = ("no_match", "not_ours", "unfounded", "customer_warned", "customer_closed")


def add_topics(topics: Topics) -> None:
    """Add the topics of complaints, and of rules against abuse."""
    topics.add("ticket", "complaints about traffic", _add_tickets)
    topics.add("rule", "rules against scans and spam", _add_rules)


def _add_tickets(topic: "argparse.ArgumentParser") -> None:
    """Add the commands about complaints."""
    ticket = commands_of(topic)
    opened = ticket.add_parser("open", help="open a ticket with the text of a complaint")
    opened.add_argument("text", type=text, metavar="TEXT", help="the complaint, and its reporter")
    opened.add_argument(
        "--category",
        choices=CATEGORIES,
        default="abuse",
        help="two are due soon",
    )
    add_exit_use(opened)
    opened.set_defaults(within=60)
    finish_command(opened, "ticket open")
    listed = ticket.add_parser("list", help="open tickets, the first due one first")
    listed.add_argument("--state", choices=STATES, help="the newest tickets in this state instead")
    add_limit(listed, "tickets")
    finish_command(listed, "ticket list")
    for name, words in (
        ("show", "a ticket, its figures and its history"),
        ("move", "bring a ticket into another state"),
        ("answer", "record the answer to the reporter; it never names the customer"),
        ("close", "close a ticket"),
    ):
        command = ticket.add_parser(name, help=words)
        command.add_argument("ticket", type=count, metavar="N", help="the number of the ticket")
        if name == "move":
            command.add_argument("state", choices=STATES[2:-1], help="the new state")
        if name == "answer":
            command.add_argument("text", type=text, metavar="TEXT", help="the answer that was sent")
        if name == "close":
            command.add_argument("--outcome", choices=OUTCOMES, required=True, help="the result")
        if name in ("move", "close"):
            add_reason(command)
        finish_command(command, f"ticket {name}")


def _add_rules(topic: "argparse.ArgumentParser") -> None:
    """Add the commands about rules against abuse."""
    rule = commands_of(topic)
    listed = rule.add_parser("list", help="the rules, and their tickets and stops of 30 days")
    finish_command(listed, "rule list")
    trial = rule.add_parser("trial", help="sessions of 30 days that other figures would have found")
    for option, words in (
        ("--scan-targets", "targets on one port in a minute"),
        ("--scan-failed-percent", "share of failed dials"),
        ("--mail-refusals", "refused dials to mail ports in a minute"),
        ("--login-connections", "connections to one login port in a minute"),
    ):
        trial.add_argument(option, type=count, metavar="N", help=words)
    finish_command(trial, "rule trial")
