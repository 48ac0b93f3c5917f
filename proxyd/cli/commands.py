"""Work and output of each command of the command line.

Each imports only the modules that it uses, so that no command waits for modules of another:
settings are checked without a database driver, and only `serve` loads the servers.
"""

import gc
import getpass
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from config.load import Check, SettingsError, load
from config.settings import Settings
from market.base.errors import Code, MarketError
from proxyd.cli.output import OutputError, complain, say
from proxyd.ops.base import logs
from proxyd.ops.base.errors import CannotServeError
from storage.engines.errors import AlreadyClaimedError, StoreError

if TYPE_CHECKING:
    from proxyd.cli.bookkeeping import Amounts

FAILED = 1
MISUSED = 2

# Objects that the daemon allocates, less the freed ones, between two looks for garbage. At the
# default of 700 the looks were a fifth of its processor time when devices take jobs: each answer
# has hundreds of objects, which are in use. A look at this number takes about 0.3 ms.
NEW_OBJECTS = 10_000


def carry_out(options: Namespace) -> int:
    """Run the command of the command line. Return the exit status: 0 done, 1 failed, 2 misused.

    An act that waits for a second person has the status 3.
    """
    return reporting(lambda: _carry_out(options))


def _carry_out(options: Namespace) -> int:
    settings = load(options.config, os.environ, _checks(options))
    logs.set_up(settings.log.level, settings.log.format)
    return COMMANDS.get(options.command, _staff)(settings, options)


def reporting(work: Callable[[], int], source: str = "") -> int:
    """Run some work, write the reason of a failure to standard error, and return the exit status.

    Args:
        work: returns its own exit status.
        source: prefix of each message.
    """
    try:
        return work()
    except SettingsError as error:
        for problem in error.problems:
            complain(f"{source}wrong in the settings: {problem}")
        return MISUSED
    except AlreadyClaimedError as error:
        complain(
            f"{source}{error}; stop it, or give this one a database of its own with "
            "PROXYD_STORAGE__URL (the setting storage.url)"
        )
        return FAILED
    except (MarketError, StoreError, CannotServeError, OutputError) as error:
        complain(f"{source}{error}")
        return FAILED
    except KeyboardInterrupt:
        return FAILED


def _checks(options: Namespace) -> Sequence[Check]:
    """Return further checks of the settings, for a command that only checks them."""
    if options.command != "config check":
        return ()
    from proxyd.exits.attached.certificate import next_certificate_problems
    from proxyd.exits.choosing.geography import geography_problems
    from proxyd.ops.base.logo import logo_problems
    from proxyd.ops.base.signing_key import key_problems
    from proxyd.ops.checks.reachability import problems_of_unit
    from proxyd.ops.processes.listening import tls_problems

    unit = partial(problems_of_unit, options.unit, os.environ)
    return (
        tls_problems,
        next_certificate_problems,
        key_problems,
        geography_problems,
        logo_problems,
        unit,
    )


def import_servers() -> None:
    """Import all that `serve` works with, once.

    It stays for good. Looking for garbage in it takes a tenth of a start, and later every full
    collection would hold the loop up to look through it again. The collector of the daemon runs
    after `NEW_OBJECTS`.
    """
    gc.disable()
    from proxyd.cli import deferred

    for package in ("aiohttp", "prometheus_client"):
        deferred.defer(package)
    from proxyd.cli import serving  # noqa: F401 - later imports find it loaded

    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    gc.enable()


def _serve(settings: Settings, options: Namespace) -> int:
    import_servers()
    from proxyd.cli import serving

    return serving.run(settings, options.config, reporting, with_demo=options.demo)


def _demo(settings: Settings, _options: Namespace) -> int:
    from proxyd.cli import demo_files

    say(demo_files.examples(settings).rstrip("\n"))
    return 0


def _answer(work: Coroutine[Any, Any, str]) -> int:
    """Run a command, and print its report; return its exit status."""
    from proxyd.loop import runner

    say(runner.run(work))
    return 0


def _create_user(settings: Settings, options: Namespace) -> int:
    from proxyd.cli import bookkeeping
    from proxyd.cli.staff.base.desk import WAITS
    from proxyd.loop import runner

    work = bookkeeping.create_user(
        settings,
        email=options.email,
        username=options.username,
        password=_password(from_stdin=options.password_stdin),
        amounts=_amounts(options),
    )
    report, waits = runner.run(work)
    say(report)
    return WAITS if waits else 0


def _password(*, from_stdin: bool) -> str:
    if from_stdin:
        try:
            return sys.stdin.buffer.readline().decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise MarketError(Code.INVALID_FIELD, "The password is not UTF-8 text.") from None
    if not sys.stdin.isatty():
        raise MarketError(
            Code.INVALID_FIELD, "There is no terminal to ask for a password: use --password-stdin."
        )
    try:
        password = getpass.getpass("Password: ")
        again = getpass.getpass("Repeat the password: ")
    except EOFError:
        raise MarketError(Code.INVALID_FIELD, "No password was given.") from None
    if password != again:
        raise MarketError(Code.INVALID_FIELD, "The two passwords differ.")
    return password


def _list_exits(settings: Settings, options: Namespace) -> int:
    from proxyd.cli import bookkeeping

    return _answer(bookkeeping.list_exits(settings, as_json=options.json))


def _show_exit(settings: Settings, options: Namespace) -> int:
    from proxyd.cli import bookkeeping

    return _answer(bookkeeping.show_exit(settings, device_id=options.device))


def _list_disputes(settings: Settings, options: Namespace) -> int:
    from proxyd.cli import bookkeeping

    return _answer(bookkeeping.list_disputes(settings, as_json=options.json))


def _audit(settings: Settings, _options: Namespace) -> int:
    from proxyd.cli import bookkeeping

    return _answer_with_audit(bookkeeping.audit(settings))


def _backup(settings: Settings, options: Namespace) -> int:
    if options.all is not None:
        from proxyd.cli import backups

        work = backups.back_up_all(settings, options.config, options.all, options.keep)
        return _answer(work)
    if options.keep is not None:
        complain("--keep needs --all")
        return MISUSED
    from storage.engines.backup import back_up
    from storage.engines.place import place

    size = back_up(settings.storage.url, options.file)
    say(f"{options.file}: {size} bytes, a copy of {place(settings.storage.url)}")
    return 0


def _restore(settings: Settings, options: Namespace) -> int:
    from proxyd.cli import backups

    if options.confirm and options.backup is None:
        return _answer(backups.confirm(settings))
    if options.confirm or options.folder is None:
        complain("expected the folder of a backup and a new folder, or --confirm without them")
        return MISUSED
    return _answer_with_audit(
        backups.restore(
            options.backup, options.folder, options.database, os.environ, options.erasures
        )
    )


def _move(settings: Settings, options: Namespace) -> int:
    from proxyd.cli import backups

    return _answer_with_audit(backups.move(settings, options.to, os.environ))


def _answer_with_audit(work: Coroutine[Any, Any, tuple[bool, str]]) -> int:
    """Run a command that ends with an audit; print its report, and return its exit status."""
    from proxyd.loop import runner

    agrees, report = runner.run(work)
    say(report)
    return 0 if agrees else FAILED


def _health(settings: Settings, options: Namespace) -> int:
    from proxyd.cli.health import health_of

    health = health_of(settings)
    if options.json:
        say(json.dumps({"ready": health.is_ready, "words": health.words}))
    elif health.is_ready:
        say(health.words)
    else:
        complain(health.words)
    return 0 if health.is_ready else FAILED


def _config_check(settings: Settings, options: Namespace) -> int:
    """Report correct settings: reading them would have reported an error."""
    from proxyd.ops.checks.cautions import cautions

    for warning in cautions(settings):
        complain(f"warning: {warning}")
    say(f"the settings are right: {options.config or 'defaults and environment'}")
    return 0


def _staff(settings: Settings, options: Namespace) -> int:
    from proxyd.cli.staff import commands

    return commands.carry_out(
        settings, options, read_password=_password, say=say, complain=complain
    )


def _amounts(options: Namespace) -> "Amounts":
    from market.money.money import Currency

    return {Currency.USD: options.usd, Currency.CREDIT: options.credits}


# All other commands are those of the staff, with a table in `cli.staff.commands`.
COMMANDS: dict[str, Callable[[Settings, Namespace], int]] = {
    "serve": _serve,
    "demo": _demo,
    "user create": _create_user,
    "exits list": _list_exits,
    "exits show": _show_exit,
    "jobs disputes": _list_disputes,
    "ledger audit": _audit,
    "backup": _backup,
    "restore": _restore,
    "storage move": _move,
    "config check": _config_check,
    "health": _health,
}
