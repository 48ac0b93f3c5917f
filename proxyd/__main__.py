"""The command line: its commands and options. Their code is in `cli.commands`.

The modules of a command are imported after its name is parsed, so that `--version` and `--help`
wait for neither a server nor a database driver.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from proxyd import __version__
from proxyd.compiled import finder

# As in `market.staff`, which no parser waits for.
ROLES = ("support", "finance", "operator")
LOG_MAX = 1_000
NUMBER_MAX = 10**18 - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 called wrongly."""
    options = _parser().parse_args(arguments)
    from proxyd.cli import commands

    return commands.carry_out(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="proxyd", description="A proxy that sells bandwidth by the byte, and its marketplace."
    )
    parser.add_argument("--version", action=_Version, help="print the version, and how it runs")
    topics = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = topics.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument(
        "--demo",
        action="store_true",
        help="open and fund a demonstration account; listen on this machine alone",
    )
    _finish(serve, "serve")

    demo = topics.add_parser("demo", help="how to use the demonstration that runs")
    demo.add_argument(
        "--examples",
        action="store_true",
        required=True,
        help="print more commands to paste: exits, jobs, pages, HTTP, a second demonstration",
    )
    _finish(demo, "demo")

    _add_users(topics)
    _add_staff(topics)

    wallet = topics.add_parser("wallet", help="pay money in").add_subparsers(
        metavar="COMMAND", required=True
    )
    deposit = wallet.add_parser("deposit", help="pay money into an account")
    deposit.add_argument("email", type=_text, metavar="EMAIL", help="address of the account")
    deposit.add_argument(
        "--reference",
        type=_text,
        metavar="TEXT",
        help="names this deposit; repeating the command with the same one changes nothing",
    )
    _add_amounts(deposit)
    _finish(deposit, "wallet deposit")

    exits = topics.add_parser("exits", help="devices that sessions leave through").add_subparsers(
        metavar="COMMAND", required=True
    )
    clawback = exits.add_parser(
        "clawback", help="bar an exit that has cheated, and refund its buyers"
    )
    clawback.add_argument(
        "device", type=_text, metavar="DEVICE", help="the identifier of its worker token"
    )
    clawback.add_argument(
        "--reason", type=_text, required=True, metavar="TEXT", help="kept with the device"
    )
    clawback.add_argument(
        "--owner", action="store_true", help="include all exits of the same owner"
    )
    _finish(clawback, "exits clawback")
    _finish(exits.add_parser("list", help="the exits that are barred"), "exits list")
    for name, words in (
        ("show", "history and findings of an exit"),
        ("pardon", "let a barred exit be an exit again"),
    ):
        command = exits.add_parser(name, help=words)
        command.add_argument(
            "device", type=_text, metavar="DEVICE", help="the identifier of its worker token"
        )
        _finish(command, f"exits {name}")

    jobs = topics.add_parser("jobs", help="jobs whose buyers dispute the result").add_subparsers(
        metavar="COMMAND", required=True
    )
    _finish(jobs.add_parser("disputes", help="the disputes that wait for you"), "jobs disputes")
    for name, words in (
        ("uphold", "decide for the worker: the payment stands"),
        ("reverse", "decide for the buyer: all of the price goes back"),
    ):
        command = jobs.add_parser(name, help=words)
        command.add_argument("job", type=_text, metavar="JOB", help="the identifier of the job")
        _finish(command, f"jobs {name}")

    ledger = topics.add_parser("ledger", help="the double-entry ledger").add_subparsers(
        metavar="COMMAND", required=True
    )
    audit = ledger.add_parser("audit", help="recompute everything and compare")
    _finish(audit, "ledger audit")

    _add_backups(topics)

    config = topics.add_parser("config", help="check the settings").add_subparsers(
        metavar="COMMAND", required=True
    )
    check = config.add_parser("check", help="check the settings, and start nothing")
    check.set_defaults(command="config check")
    check.add_argument(
        "--unit",
        type=Path,
        metavar="FILE",
        help="systemd's unit of the proxy's socket: check also that buyers can reach it",
    )
    either = check.add_mutually_exclusive_group()
    _add_config(either)
    either.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="FILE",
        action=_StoreIfGiven,
        help="the settings file, as with --config",
    )
    return parser


def _add_backups(topics: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands for backups, their restoration, and the move of the database."""
    backup = topics.add_parser("backup", help="copy the database, or everything, while it runs")
    either = backup.add_mutually_exclusive_group(required=True)
    either.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="copy only the SQLite database, into this new file",
    )
    either.add_argument(
        "--all",
        type=Path,
        metavar="DIR",
        help="back up everything, into a new folder in this one: database, keys, certificates, "
        "settings, files of jobs",
    )
    backup.add_argument(
        "--keep", type=_count, metavar="N", help="with --all: remove all but the newest N backups"
    )
    _finish(backup, "backup")

    restore = topics.add_parser("restore", help="restore a backup of everything into a new folder")
    restore.add_argument(
        "backup", nargs="?", type=Path, metavar="BACKUP", help="the folder of the backup"
    )
    restore.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", help="the new folder of the service"
    )
    restore.add_argument(
        "--database",
        metavar="URL",
        help="for a backup of PostgreSQL: an empty database, or @/path of a file with its URL",
    )
    restore.add_argument(
        "--confirm",
        action="store_true",
        help="let the daemon on the restored database of the settings send, pay and sweep again",
    )
    _finish(restore, "restore")

    storage = topics.add_parser("storage", help="the database").add_subparsers(
        metavar="COMMAND", required=True
    )
    move = storage.add_parser("move", help="copy the SQLite database into an empty PostgreSQL")
    move.add_argument(
        "--to",
        required=True,
        metavar="URL",
        help="the empty database: postgresql://…, or @/path of a file with its URL",
    )
    _finish(move, "storage move")


def _add_users(topics: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands about one user."""
    user = topics.add_parser("user", help="open accounts, and look at one").add_subparsers(
        metavar="COMMAND", required=True
    )
    create = user.add_parser("create", help="open an account")
    create.add_argument("email", metavar="EMAIL", help="the address that logs in")
    create.add_argument(
        "--username", required=True, metavar="NAME", help="the name that others see"
    )
    create.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )
    _add_amounts(create)
    _finish(create, "user create")
    show = user.add_parser("show", help="all that the staff sees of a user; the log records it")
    _add_user(show)
    _finish_staff(show, "user show")
    note = user.add_parser("note", help="write a note about a user")
    _add_user(note)
    note.add_argument("text", type=_text, metavar="TEXT", help="read by the staff only")
    _finish_staff(note, "user note")


def _add_staff(topics: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands about staff, their log, and the search."""
    who = topics.add_parser(
        "who", help="find users by an address, a name, an identifier, a key or a payment"
    )
    who.add_argument("text", type=_text, metavar="TEXT", help="a part that is known of a user")
    _finish_staff(who, "who")

    log = topics.add_parser("log", help="the newest acts of the staff")
    log.add_argument("--user", type=_text, metavar="USER", help="only acts about a user")
    log.add_argument("--staff", type=_text, metavar="STAFF", help="only acts of one member")
    log.add_argument("--action", type=_text, metavar="ACTION", help="such as user.view")
    log.add_argument(
        "--before", type=_number, metavar="NUMBER", help="only acts before the one of a number"
    )
    log.add_argument(
        "--limit", type=_limit, default=50, metavar="N", help="number of acts, 50 by default"
    )
    _finish_staff(log, "log")

    staff = topics.add_parser("staff", help="members of the staff").add_subparsers(
        metavar="COMMAND", required=True
    )
    create = staff.add_parser("create", help="add a member, and print a new second factor")
    create.add_argument("email", type=_text, metavar="EMAIL", help="the address that logs in")
    create.add_argument("--role", required=True, choices=ROLES, help="what the member may do")
    create.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )
    _add_reason(create)
    _finish_staff(create, "staff create")
    _finish_staff(staff.add_parser("list", help="all members, and their roles"), "staff list")
    role = staff.add_parser("role", help="give a member another role")
    _add_member(role)
    role.add_argument("role", choices=ROLES, help="the new role")
    _add_reason(role)
    _finish_staff(role, "staff role")
    for name, words in (
        ("lock", "lock a member"),
        ("unlock", "unlock a member"),
        ("reset-factor", "replace the second factor and the recovery codes of a member"),
    ):
        command = staff.add_parser(name, help=words)
        _add_member(command)
        _add_reason(command)
        _finish_staff(command, f"staff {name}")
    check = staff.add_parser(
        "check", help="check a password and a code, two lines of standard input; uses up the code"
    )
    _add_member(check)
    _finish_staff(check, "staff check")


def _finish_staff(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    _finish(parser, command)


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "user", type=_text, metavar="USER", help="an identifier, an e-mail address or a user name"
    )


def _add_member(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "staff", type=_text, metavar="STAFF", help="the member's e-mail address or identifier"
    )


def _add_reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason", type=_text, required=True, metavar="TEXT", help="kept with the log"
    )


class _Version(argparse.Action):
    """Prints the version, and whether compiled files are used; checks this only when requested."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=settings.get("help"))

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        _values: object,
        _option: str | None = None,
    ) -> None:
        print(f"{parser.prog} {__version__} ({finder.description()})")  # noqa: T201 - its purpose
        parser.exit()


class _StoreIfGiven(argparse.Action):
    """An optional argument; without it the option of the same name keeps its value."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        _option: str | None = None,
    ) -> None:
        if values is not None:
            setattr(namespace, self.dest, values)


def _finish(parser: argparse.ArgumentParser, command: str) -> None:
    """Store the key of `commands.COMMANDS` in a parser."""
    _add_config(parser)
    parser.set_defaults(command=command)


def _add_config(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, in TOML")


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--usd", type=_amount, default=0, metavar="X", help="US dollars, such as 20 or 0.5"
    )
    parser.add_argument(
        "--credits", type=_amount, default=0, metavar="Y", help="credits, such as 100"
    )


def _amount(text: str) -> int:
    from decimal import Decimal, InvalidOperation

    from market.money.money import MICRO, micro

    try:
        amount = Decimal(text)
        exact = micro(amount)
    except (InvalidOperation, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an amount: a number from 0, with at most six decimals"
        ) from None
    if exact != amount * MICRO:
        raise argparse.ArgumentTypeError(f"{text!r} has more than six decimals")
    return exact


def _count(text: str) -> int:
    return _whole_number(text, NUMBER_MAX, "a number from 1")


def _number(text: str) -> int:
    return _whole_number(text, NUMBER_MAX, "the number of an act")


def _limit(text: str) -> int:
    return _whole_number(text, LOG_MAX, f"a number from 1 to {LOG_MAX}")


def _whole_number(text: str, most: int, words: str) -> int:
    """Return a number from 1 to `most`, whose description for an error is `words`."""
    is_short = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    if not is_short or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")
    return int(text)


def _text(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("not UTF-8 text") from None
    return argument


if __name__ == "__main__":
    sys.exit(main())
