"""The command line: its commands and options. Their code is in `cli.commands`.

The modules of a command are imported after its name is parsed, so that `--version` and `--help`
wait for neither a server nor a database driver.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from proxyd import __version__
from proxyd.cli.parsing import Topics, add_amounts, add_config, commands_of, count, finish, text
from proxyd.cli.staff import parsers as staff
from proxyd.cli.staff.abuse import abuse_parsers
from proxyd.cli.staff.cases import case_parsers
from proxyd.cli.staff.money import money_parsers, paying_parsers
from proxyd.cli.staff.parsers import finish_command
from proxyd.cli.staff.site import site_parsers
from proxyd.compiled import finder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 called wrongly."""
    try:
        options = _parser().parse_args(arguments)
        from proxyd.cli import commands
    except KeyboardInterrupt:  # as `carry_out` does later
        return 1

    return commands.carry_out(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="proxyd", description="A proxy that sells bandwidth by the byte, and its marketplace."
    )
    parser.add_argument("--version", action=_Version, help="print the version, and how it runs")
    topics = parser.add_subparsers(
        action=Topics, title="commands", metavar="COMMAND", required=True
    )
    assert isinstance(topics, Topics)  # noqa: S101 - mypy knows only the type of argparse
    topics.add("serve", "run the daemon in the foreground", _add_serve)
    topics.add("demo", "print examples for the running demonstration", _add_demo)
    topics.add("user", "open, show, suspend, resume and limit accounts", _add_users)
    staff.add_topics(topics)
    site_parsers.add_topics(topics)
    money_parsers.add_topics(topics)
    paying_parsers.add_topics(topics)
    case_parsers.add_topics(topics)
    abuse_parsers.add_topics(topics)
    topics.add("exits", "bar, show and pardon exit devices", _add_exits)
    topics.add("jobs", "disputed jobs, and the end of a job", _add_jobs)
    topics.add("ledger", "audit the double-entry ledger", _add_ledger)
    topics.add("backup", "copy the database, or everything, while it runs", _add_backup)
    topics.add("restore", "restore a backup of everything into a new folder", _add_restore)
    topics.add("storage", "move the database to PostgreSQL", _add_storage)
    topics.add("health", "request the health of the daemon on this machine", _add_health)
    topics.add("config", "check the settings", _add_settings)
    return parser


def _add_serve(serve: argparse.ArgumentParser) -> None:
    """Add the options of the daemon."""
    serve.add_argument(
        "--demo",
        action="store_true",
        help="open and fund a demonstration account; listen on this machine alone",
    )
    finish(serve, "serve")


def _add_demo(demo: argparse.ArgumentParser) -> None:
    """Add the options of the examples."""
    demo.add_argument(
        "--examples",
        action="store_true",
        required=True,
        help="print more commands to paste: exits, jobs, pages, HTTP, a second demonstration",
    )
    finish(demo, "demo")


def _add_exits(topic: argparse.ArgumentParser) -> None:
    """Add the commands about exits."""
    exits = commands_of(topic)
    finish_command(exits.add_parser("list", help="the exits that are barred"), "exits list")
    show = exits.add_parser("show", help="history and findings of an exit")
    show.add_argument(
        "device", type=text, metavar="DEVICE", help="the identifier of its worker token"
    )
    finish(show, "exits show")
    staff.add_exits(exits)


def _add_jobs(topic: argparse.ArgumentParser) -> None:
    """Add the commands about jobs."""
    jobs = commands_of(topic)
    disputes = jobs.add_parser("disputes", help="the disputes that wait for you")
    finish_command(disputes, "jobs disputes")
    money_parsers.add_jobs(jobs)
    staff.add_jobs(jobs)


def _add_ledger(topic: argparse.ArgumentParser) -> None:
    """Add the command about the ledger."""
    audit = commands_of(topic).add_parser("audit", help="recompute everything and compare")
    finish(audit, "ledger audit")


def _add_health(health: argparse.ArgumentParser) -> None:
    """Add the options of the health."""
    health.add_argument("--json", action="store_true", help="print one JSON document")
    finish(health, "health")


def _add_settings(topic: argparse.ArgumentParser) -> None:
    """Add the command about the settings."""
    check = commands_of(topic).add_parser("check", help="check the settings, and start nothing")
    check.set_defaults(command="config check")
    check.add_argument(
        "--unit",
        type=Path,
        metavar="FILE",
        help="systemd's unit of the proxy's socket: check also that buyers can reach it",
    )
    either = check.add_mutually_exclusive_group()
    add_config(either)
    either.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="FILE",
        action=_StoreIfGiven,
        help="the settings file, as with --config",
    )


def _add_backup(backup: argparse.ArgumentParser) -> None:
    """Add the options of a backup."""
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
        "--keep",
        type=count,
        metavar="N",
        help="with --all: remove all but the newest N backups",
    )
    finish(backup, "backup")


def _add_restore(restore: argparse.ArgumentParser) -> None:
    """Add the options of a restoration."""
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
        "--erasures",
        type=Path,
        metavar="FILE",
        help="the newest erasures.log: its accounts are erased again",
    )
    restore.add_argument(
        "--confirm",
        action="store_true",
        help="let the daemon on the restored database of the settings send, pay and sweep again",
    )
    finish(restore, "restore")


def _add_storage(topic: argparse.ArgumentParser) -> None:
    """Add the command that moves the database."""
    move = commands_of(topic).add_parser(
        "move", help="copy the SQLite database into an empty PostgreSQL"
    )
    move.add_argument(
        "--to",
        required=True,
        metavar="URL",
        help="the empty database: postgresql://…, or @/path of a file with its URL",
    )
    finish(move, "storage move")


def _add_users(topic: argparse.ArgumentParser) -> None:
    """Add the commands about one user."""
    user = commands_of(topic)
    create = user.add_parser("create", help="open an account")
    create.add_argument("email", metavar="EMAIL", help="the address that logs in")
    create.add_argument(
        "--username", required=True, metavar="NAME", help="the name that others see"
    )
    create.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )
    add_amounts(create)
    finish(create, "user create")
    staff.add_users(user)
    money_parsers.add_users(user)
    paying_parsers.add_users(user)


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


if __name__ == "__main__":
    sys.exit(main())
