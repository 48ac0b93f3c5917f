"""The command line: serve, and what an operator does beside a running daemon."""

import argparse
import asyncio
import getpass
import os
import sys
from collections.abc import Coroutine, Sequence
from decimal import Decimal, InvalidOperation
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from config.load import SettingsError, load
from config.settings import Settings
from market.errors import Code, MarketError
from market.money import MICRO, Currency, micro
from proxyd import commands, logs, tasks
from proxyd.access_log import CannotRecordError
from proxyd.listening import CannotListenError, tls_problems
from proxyd.secret import SigningKeyError, key_problems
from storage.errors import AlreadyClaimedError, StoreError

FAILED = 1
MISUSED = 2

_EXPECTED = (
    MarketError,
    StoreError,
    SigningKeyError,
    CannotListenError,
    CannotRecordError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 called wrongly."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config, os.environ, options.checks)
        logs.set_up(settings.log.level, settings.log.format)
        return _run(options.run(settings, options))
    except SettingsError as error:
        for problem in error.problems:
            complain(f"wrong in the settings: {problem}")
        return MISUSED
    except AlreadyClaimedError as error:
        complain(
            f"{error}; stop it, or give this one a database of its own with PROXYD_STORAGE__URL "
            "(the setting storage.url)"
        )
        return FAILED
    except _EXPECTED as error:
        complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        return FAILED


def complain(text: str) -> None:
    """Say what is wrong, on standard error."""
    print(f"proxyd: {text}", file=sys.stderr)  # noqa: T201 - the answer of a command


def _run(command: Coroutine[Any, Any, int]) -> int:
    """Run a command on a loop of its own, and return its exit status.

    Closing a loop waits for every task without a bound: where one ignores its cancellation the loop
    stays open, and the process ends all the same.
    """
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        return runner.run(command)
    finally:
        if not runner.run(_end_others()):
            runner.close()


async def _end_others() -> set[asyncio.Task[Any]]:
    return await tasks.end(asyncio.all_tasks() - {asyncio.current_task()})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="proxyd", description="A proxy that sells bandwidth by the byte, and its marketplace."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('proxyd')}")
    topics = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = topics.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument(
        "--demo",
        action="store_true",
        help="with a funded demonstration account, reachable from this machine alone",
    )
    _finish(
        serve,
        lambda settings, options: commands.serve(settings, options.config, with_demo=options.demo),
    )

    user = topics.add_parser("user", help="accounts of people").add_subparsers(
        metavar="COMMAND", required=True
    )
    create = user.add_parser("create", help="open an account")
    create.add_argument("email", metavar="EMAIL")
    create.add_argument("--username", required=True, metavar="NAME")
    create.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )
    _add_amounts(create)
    _finish(create, _create_user)

    wallet = topics.add_parser("wallet", help="money of people").add_subparsers(
        metavar="COMMAND", required=True
    )
    deposit = wallet.add_parser("deposit", help="pay money into an account")
    deposit.add_argument("email", type=_text, metavar="EMAIL")
    deposit.add_argument(
        "--reference",
        type=_text,
        metavar="TEXT",
        help="names this deposit; repeating the command with the same one changes nothing",
    )
    _add_amounts(deposit)
    _finish(deposit, _deposit)

    ledger = topics.add_parser("ledger", help="the double-entry ledger").add_subparsers(
        metavar="COMMAND", required=True
    )
    audit = ledger.add_parser("audit", help="recompute everything and compare")
    _finish(audit, lambda settings, _: commands.audit(settings))

    backup = topics.add_parser("backup", help="copy the live database into a new file")
    backup.add_argument("file", type=Path, metavar="FILE")
    _finish(backup, lambda settings, options: commands.backup(settings, options.file))

    config = topics.add_parser("config", help="settings").add_subparsers(
        metavar="COMMAND", required=True
    )
    check = config.add_parser("check", help="check the settings, and start nothing")
    named = check.add_mutually_exclusive_group()
    _add_config(named)
    named.add_argument(
        "config", nargs="?", type=Path, metavar="FILE", action=_StoreIfGiven, help="the same"
    )
    check.set_defaults(
        run=lambda _, options: commands.config_check(options.config),
        checks=(tls_problems, key_problems),
    )
    return parser


class _StoreIfGiven(argparse.Action):
    """An argument that may be left away, and then does not undo the option of the same name."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        _option: str | None = None,
    ) -> None:
        if values is not None:
            setattr(namespace, self.dest, values)


def _finish(parser: argparse.ArgumentParser, run: commands.Run) -> None:
    _add_config(parser)
    parser.set_defaults(run=run, checks=())


def _add_config(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, in TOML")


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--usd", type=_amount, default=0, metavar="X", help="dollars")
    parser.add_argument("--credits", type=_amount, default=0, metavar="Y", help="credits")


def _amount(text: str) -> int:
    try:
        amount = Decimal(text)
        exact = micro(amount)
    except (InvalidOperation, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount") from None
    if exact != amount * MICRO:
        raise argparse.ArgumentTypeError(f"{text!r} has more than six decimals")
    return exact


def _amounts(options: argparse.Namespace) -> commands.Amounts:
    return {Currency.USD: options.usd, Currency.CREDIT: options.credits}


def _create_user(settings: Settings, options: argparse.Namespace) -> Coroutine[Any, Any, int]:
    password = _password(from_stdin=options.password_stdin)
    return commands.create_user(
        settings,
        email=options.email,
        username=options.username,
        password=password,
        amounts=_amounts(options),
    )


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
        again = getpass.getpass("The same again: ")
    except EOFError:
        raise MarketError(Code.INVALID_FIELD, "No password was given.") from None
    if password != again:
        raise MarketError(Code.INVALID_FIELD, "The two passwords differ.")
    return password


def _text(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("not UTF-8 text") from None
    return argument


def _deposit(settings: Settings, options: argparse.Namespace) -> Coroutine[Any, Any, int]:
    return commands.deposit(
        settings,
        email=options.email,
        amounts=_amounts(options),
        reference=options.reference,
    )


if __name__ == "__main__":
    sys.exit(main())
