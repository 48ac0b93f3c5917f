"""Parsers of the staff's commands; they import no code of a command."""

import argparse
from functools import partial
from pathlib import Path

from proxyd.cli.parsing import (
    Commands,
    Topics,
    add_limit,
    commands_of,
    count,
    finish,
    number,
    port,
    text,
    within,
)

# As in `market.accounts.suspensions`.
PARTS = ("logins", "keys", "sessions", "devices", "purchases")
ROLES = ("support", "finance", "operator")  # as in `market.staff`, which no parser waits for
SCOPES = ("read", "act", "money", "abuse")  # as above

# Commands about one thing of a user: the topic, its name, and each command with its help.
_ACTS = (
    (
        "session",
        "proxy session",
        {
            "show": "print a session; the log records it",
            "halt": "cut its connections on all nodes, and refuse new ones, until it goes on",
            "go": "let a halted session go on",
            "end": "cut its connections on all nodes, and settle it",
        },
    ),
    ("key", "API key", {"revoke": "revoke a key"}),
)


def add_users(user: Commands) -> None:
    """Add the commands of the staff about one user."""
    show = user.add_parser("show", help="all that the staff sees of a user; the log records it")
    add_user(show)
    finish_command(show, "user show")
    reveal = user.add_parser("reveal", help="show the personal data of a user for an hour")
    add_user(reveal)
    add_reason(reveal)
    finish_command(reveal, "user reveal")
    note = user.add_parser("note", help="write a note about a user")
    add_user(note)
    note.add_argument("text", type=text, metavar="TEXT", help="read by the staff only")
    finish_command(note, "user note")
    suspend = user.add_parser("suspend", help="stop parts of a user on all nodes; undone by resume")
    add_user(suspend)
    _add_parts(suspend)
    suspend.add_argument(
        "--until",
        type=text,
        metavar="TIME",
        help="a span such as 24h or 7d, a UTC time, or none",
    )
    suspend.add_argument(
        "--shown", type=text, required=True, metavar="TEXT", help="the reason, for the user"
    )
    add_reason(suspend)
    finish_command(suspend, "user suspend")
    resume = user.add_parser("resume", help="end the suspension of parts of a user")
    add_user(resume)
    _add_parts(resume)
    add_reason(resume)
    finish_command(resume, "user resume")
    _add_endings(user)


def _add_endings(user: Commands) -> None:
    """Add the commands that export, close and erase an account."""
    export = user.add_parser("export", help="write all data of a user to a ZIP; the log records it")
    add_user(export)
    export.add_argument("file", type=Path, metavar="FILE.zip", help="a new file")
    finish_command(export, "user export")
    close = user.add_parser("close", help="close an account; a login within 14 days opens it again")
    add_user(close)
    _add_waived(close)
    add_reason(close)
    finish_command(close, "user close")
    erase = user.add_parser("erase", help="erase an account for ever; needs a second person")
    add_user(erase)
    _add_waived(erase)
    add_reason(erase)
    finish_command(erase, "user erase")


def _add_waived(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--waived", action="store_true", help="the user has given up the money that is left"
    )


def add_exits(exits: Commands) -> None:
    """Add the acts about exits."""
    for word, words in (
        ("bar", "bar a device from being an exit; its earnings stay"),
        ("pardon", "let a barred device be an exit again"),
        ("clawback", "bar an exit that has cheated, and refund its buyers"),
    ):
        command = exits.add_parser(word, help=words)
        command.add_argument(
            "device", type=text, metavar="DEVICE", help="the identifier of its worker token"
        )
        if word == "clawback":
            command.add_argument(
                "--owner", action="store_true", help="include all exits of the same owner"
            )
        add_reason(command)
        finish_command(command, f"exits {word}")


def add_jobs(jobs: Commands) -> None:
    """Add the act that cancels a job."""
    cancel = jobs.add_parser("cancel", help="cancel a job, as its buyer does")
    cancel.add_argument("job", type=text, metavar="JOB", help="the identifier of the job")
    add_reason(cancel)
    finish_command(cancel, "jobs cancel")


def add_topics(topics: Topics) -> None:
    """Add the topics of staff, their log, and the search."""
    topics.add(
        "who", "find users by an address, a name, an identifier, a key or a payment", _add_who
    )
    topics.add("log", "the newest acts of the staff", _add_log)
    for topic, name, commands in _ACTS:
        topics.add(topic, f"one {name} of any user", partial(_add_acts, topic, name, commands))
    topics.add("staff", "members of the staff", _add_members)


def _add_who(who: argparse.ArgumentParser) -> None:
    """Add the options of the search."""
    who.add_argument(
        "text", type=text, nargs="?", metavar="TEXT", help="a part that is known of a user"
    )
    add_exit_use(who)
    who.add_argument(
        "--within", type=within, default=60, metavar="S", help="error of the time, in seconds"
    )
    who.add_argument("--ticket", type=count, metavar="N", help="the ticket of the complaint")
    finish_command(who, "who")


def _add_log(log: argparse.ArgumentParser) -> None:
    """Add the options of the log."""
    log.add_argument("--user", type=text, metavar="USER", help="only acts about a user")
    log.add_argument("--staff", type=text, metavar="STAFF", help="only acts of one member")
    log.add_argument("--action", type=text, metavar="ACTION", help="such as user.view")
    log.add_argument(
        "--before",
        type=number,
        metavar="NUMBER",
        help="only acts before the one of a number",
    )
    add_limit(log, "acts")
    finish_command(log, "log")


def _add_acts(
    topic: str, name: str, commands: dict[str, str], parser: argparse.ArgumentParser
) -> None:
    """Add the commands about one thing of a user."""
    parsers = commands_of(parser)
    for word, words in commands.items():
        command = parsers.add_parser(word, help=words)
        command.add_argument(
            topic, type=text, metavar=topic.upper(), help=f"the identifier of the {name}"
        )
        if word != "show":
            add_reason(command)
        finish_command(command, f"{topic} {word}")


def _add_members(topic: argparse.ArgumentParser) -> None:
    """Add the commands about the accounts of members."""
    staff = commands_of(topic)
    create = staff.add_parser("create", help="add a member, and print a new second factor")
    create.add_argument("email", type=text, metavar="EMAIL", help="the address that logs in")
    create.add_argument("--role", required=True, choices=ROLES, help="what the member may do")
    create.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )
    add_reason(create)
    finish_command(create, "staff create")
    finish_command(staff.add_parser("list", help="all members, and their roles"), "staff list")
    role = staff.add_parser("role", help="give a member another role")
    _add_member(role)
    role.add_argument("role", choices=ROLES, help="the new role")
    add_reason(role)
    finish_command(role, "staff role")
    for name, words in (
        ("lock", "lock a member"),
        ("unlock", "unlock a member"),
        ("reset-factor", "replace the second factor and the recovery codes of a member"),
    ):
        command = staff.add_parser(name, help=words)
        _add_member(command)
        add_reason(command)
        finish_command(command, f"staff {name}")
    declare = staff.add_parser("declare", help="note that a user is a member's own account")
    _add_member(declare)
    add_user(declare)
    add_reason(declare)
    finish_command(declare, "staff declare")
    rescue = staff.add_parser(
        "rescue", help="make a login of an operator for 30 minutes, and notify every operator"
    )
    _add_member(rescue)
    add_reason(rescue)
    finish_command(rescue, "staff rescue")
    finish_command(
        staff.add_parser("rescues", help="the newest rescues, and who acknowledged them"),
        "staff rescues",
    )
    check = staff.add_parser(
        "check", help="check a password and a code, two lines of standard input; uses up the code"
    )
    _add_member(check)
    finish_command(check, "staff check")
    _add_keys(staff)


def _add_keys(staff: Commands) -> None:
    """Add the commands about keys of the staff, and about the attempts to log in."""
    attempts = staff.add_parser("attempts", help="the newest attempts to log in or to check")
    add_limit(attempts, "attempts")
    finish_command(attempts, "staff attempts")
    key = commands_of(staff.add_parser("key", help="keys of the staff API"))
    create = key.add_parser("create", help="make a key of a member, and print it once")
    _add_member(create)
    create.add_argument("--name", type=text, required=True, metavar="TEXT", help="what it is for")
    create.add_argument(
        "--scope", action="append", required=True, choices=SCOPES, help="may be repeated"
    )
    create.add_argument(
        "--allow-ip",
        action="append",
        type=text,
        required=True,
        metavar="NETWORK",
        help="an address or network that may use it; may be repeated",
    )
    create.add_argument(
        "--days", type=count, default=90, metavar="N", help="its lifetime, 90 at most"
    )
    add_reason(create)
    finish_command(create, "staff key create")
    finish_command(key.add_parser("list", help="the newest keys of all members"), "staff key list")
    revoke = key.add_parser("revoke", help="end a key")
    revoke.add_argument("key", type=text, metavar="KEY", help="its identifier")
    add_reason(revoke)
    finish_command(revoke, "staff key revoke")


def finish_command(parser: argparse.ArgumentParser, command: str) -> None:
    """Complete the parser of a command of the staff."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    finish(parser, command)


def add_user(parser: argparse.ArgumentParser) -> None:
    """Add the user that a command is about."""
    parser.add_argument(
        "user",
        type=text,
        metavar="USER",
        help="an identifier, an e-mail address or a user name",
    )


def _add_parts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts",
        type=_parts,
        default=list(PARTS),
        metavar="LIST",
        help=f"of {','.join(PARTS)}; all by default",
    )


def _parts(argument: str) -> list[str]:
    """Return the parts of a user in a list with commas."""
    parts = argument.split(",")
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"{part!r} is not one of {', '.join(PARTS)}")
    return parts


def _add_member(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "staff",
        type=text,
        metavar="STAFF",
        help="the member's e-mail address or identifier",
    )


def add_reason(parser: argparse.ArgumentParser) -> None:
    """Add the reason of an act."""
    parser.add_argument(
        "--reason", type=text, required=True, metavar="TEXT", help="kept with the log"
    )


def add_exit_use(parser: argparse.ArgumentParser) -> None:
    """Add the figures of a complaint about an exit."""
    parser.add_argument("--exit-ip", type=text, metavar="A", help="the source of the traffic")
    parser.add_argument("--at", type=text, metavar="T", help="its time, 2026-11-23T14:03:22Z")
    parser.add_argument("--to", type=text, metavar="B[:PORT]", help="the destination")
    parser.add_argument(
        "--source-port", type=port, metavar="N", help="the source port that the target saw"
    )
