"""The services of the staff for one command, and the rows of its report."""

import os
import pwd
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from config.settings import Settings
from market.accounts.passwords import Passwords
from market.base.sealing import Sealing
from market.events.context import Context
from market.money.money import as_decimal
from market.staff.base.columns import Column, author_of, written_changes
from market.staff.base.columns import written as columns_written
from market.staff.base.roles import Machine
from market.staff.members.factors import Factors
from proxyd.cli.output import moment
from proxyd.ops.base.signing_key import signing_key
from storage.staff.base.log import ShownLogRow

FAILED = 1
MISUSED = 2
WAITS = 3  # for a second person
# The list of a report with the logs of attempts: each row has lists of lines by stream.
LOGS = "logs"

Row = Mapping[str, Any]
# Lists of rows by name. `words` is a sentence for people, in the place of the columns.
Report = dict[str, Any]


class Ended(NamedTuple):
    """The report of a command that ends with another exit status than 0."""

    report: Report
    status: int


class Desk:
    """The staff's services for one command.

    Args:
        settings: the settings of the daemon.
        context: the open store.
    """

    def __init__(self, settings: Settings, context: Context) -> None:
        auth = settings.auth
        self.settings = settings
        self.context = context
        self.author = Machine(unix_user())
        self.passwords = Passwords(
            time_cost=auth.argon2_time_cost, memory_kib=auth.argon2_memory_kib
        )

    def factors(self) -> Factors:
        """Return the second factors; a command that needs none reads no signing key."""
        return Factors(Sealing(signing_key(self.settings), b"staff factors"))


Command = Callable[[Desk, Namespace], Awaitable[Report | Ended]]


def unix_user() -> str:
    """Return the name of the user that runs this command, or the number of a user without one."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def act_row(row: ShownLogRow) -> Row:
    """Return an act of the log as a row of a report."""
    return {
        "number": row.number,
        "at": when(row.at),
        "author": author_of(row),
        "action": row.action,
        "subject": f"{row.subject_kind} {row.subject_id or ''}".strip(),
        "changes": written_changes(row.changes, write_money=as_decimal),
        "text": row.text,
    }


def table(rows: Iterable[Any], columns: Sequence[Column]) -> list[Row]:
    """Return rows by the names of columns; a time is `created`, and not `created_at`."""
    written = columns_written(rows, columns, write_time=when, write_money=as_decimal)
    return [{name.removesuffix("_at"): value for name, value in row.items()} for row in written]


def when(seconds: int | None) -> str | None:
    """Return a time of a report, or None for a time that is absent."""
    return None if seconds is None else moment(seconds)
