"""Parsers of the commands about cases; they import no code of a command."""

import argparse

from proxyd.cli.parsing import Topics, add_limit, claimed_part, commands_of, identifier, text
from proxyd.cli.staff.parsers import finish_command

KINDS = ("canary", "sample", "reward", "appeal")  # as in `market.staff`, which no parser waits for


def add_topics(topics: Topics) -> None:
    """Add the topic of cases."""
    topics.add("case", "failed checks of devices, rewards for photos, and appeals", _add_cases)


def _add_cases(topic: argparse.ArgumentParser) -> None:
    """Add the commands about cases."""
    case = commands_of(topic)
    listed = case.add_parser("list", help="the newest cases of a kind")
    _add_kind(listed)
    listed.add_argument(
        "--user", type=text, default="", metavar="USER", help="only rewards or appeals of this user"
    )
    listed.add_argument(
        "--open", action="store_true", help="only appeals without a decision, the first due first"
    )
    listed.add_argument(
        "--before", type=identifier, metavar="ID", help="only cases before this one"
    )
    add_limit(listed, "cases")
    finish_command(listed, "case list")
    for name, words in (
        ("show", "a case with its evidence; the log records it"),
        ("uphold", "decide that the failure, the reward or the first decision stands"),
        ("void", "undo a failure, take a reward back, or let an appeal succeed"),
    ):
        command = case.add_parser(name, help=words)
        _add_kind(command)
        command.add_argument("case", type=text, metavar="ID", help="the identifier of the case")
        if name == "void":
            command.add_argument(
                "--percent",
                type=claimed_part,
                default=100,
                metavar="P",
                help="part of the whole claim that a successful appellant gets in all",
            )
        if name != "show":
            command.add_argument(
                "--reason", type=text, required=True, metavar="TEXT", help="sent to the user"
            )
        finish_command(command, f"case {name}")


def _add_kind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, help="the kind of the case")
