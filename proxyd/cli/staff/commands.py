"""Commands of the operator about staff and users, for people and, with `--json`, for programs.

Each command prints lists of rows: as columns, or as one JSON document with the same names.
"""

import importlib
import json
import sys
from argparse import Namespace
from collections.abc import Callable

from config.settings import Settings
from market.base.errors import Code, MarketError
from proxyd.cli.staff.base.desk import MISUSED, WAITS, Command, Desk, Ended, Report
from proxyd.cli.staff.base.words import in_words
from proxyd.loop import runner
from proxyd.ops.base.books import context_of, opened

# Refusals of a command that was called wrongly; a repetition fails as well.
MISUSES = frozenset((Code.INVALID_FIELD, Code.AMBIGUOUS))
SECOND_PERSON = "\nanother person decides: proxyd approve ID, or proxyd refuse ID --reason TEXT"

# The module of a command, by the command or by its first words. Only this one is imported: others
# would make each command wait for libraries that it does not need.
MODULES = {
    "approvals": "money.money",
    "approve": "money.money",
    "case": "cases.cases",
    "exits": "stopping.stopping",
    "jobs": "money.judging",
    "jobs cancel": "stopping.stopping",
    "key": "stopping.stopping",
    "log": "finding.finding",
    "money": "money.money",
    "payments": "money.payments",
    "payouts": "money.paying",
    "refuse": "money.money",
    "rule": "abuse.abuse",
    "session": "stopping.stopping",
    "site": "site.site",
    "staff": "members.members",
    "staff attempts": "members.keys",
    "staff key": "members.keys",
    "staff rescue": "members.rescue",
    "staff rescues": "members.rescue",
    "status": "site.site",
    "ticket": "abuse.abuse",
    "user": "finding.finding",
    "user close": "erasure.erasure",
    "user erase": "erasure.erasure",
    "user export": "erasure.erasure",
    "user limit": "money.limits",
    "user resume": "stopping.stopping",
    "user suspend": "stopping.stopping",
    "user verify": "money.paying",
    "wallet": "money.money",
    "who": "finding.finding",
}


def command_of(name: str) -> Command:
    """Return the function of a command."""
    prefix = name
    while prefix not in MODULES:
        prefix = prefix.rpartition(" ")[0]
    module = importlib.import_module(f"proxyd.cli.staff.{MODULES[prefix]}")
    command: Command = module.COMMANDS[name]
    return command


def carry_out(
    settings: Settings,
    options: Namespace,
    *,
    read_password: Callable[..., str],
    say: Callable[[str], None],
    complain: Callable[[str], None],
) -> int:
    """Run a command, and print its report. Return the exit status.

    Args:
        settings: the settings of the daemon.
        options: the command line.
        read_password: returns a new password, from standard input or the terminal.
        say: prints the report.
        complain: prints an error.

    Raises:
        MarketError: the command failed.
        StoreError: the database cannot be used.
    """
    if options.command == "staff create":
        options.password = read_password(from_stdin=options.password_stdin)
    elif options.command == "staff check":
        options.password, options.code = _credentials()
    try:
        ended = runner.run(_run(settings, options))
    except MarketError as error:
        if error.code not in MISUSES:
            raise
        complain(error.message)
        return MISUSED
    report, status = ended if isinstance(ended, Ended) else (ended, 0)
    words = report.pop("words", None)
    text = words or in_words(report)
    if status == WAITS:
        text += SECOND_PERSON
    say(json.dumps(report) if options.json else text)
    return status


def _credentials() -> tuple[str, str]:
    """Return a password and a code, each a line of standard input."""
    try:
        lines = [sys.stdin.buffer.readline().decode().rstrip("\r\n") for _ in range(2)]
    except UnicodeDecodeError:
        raise MarketError(Code.INVALID_FIELD, "The input is not UTF-8 text.") from None
    if not all(lines):
        raise MarketError(
            Code.INVALID_FIELD, "The input has two lines: the password, then the code."
        )
    return lines[0], lines[1]


async def _run(settings: Settings, options: Namespace) -> Report | Ended:
    # A mistyped path makes no database; the first member may come before the daemon's first start.
    async with opened(settings, create=options.command == "staff create") as store:
        desk = Desk(settings, context_of(store))
        try:
            return await command_of(options.command)(desk, options)
        finally:
            desk.passwords.close()
