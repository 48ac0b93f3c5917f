"""The commands of `proxyctl exit`."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.attach.network.lan import NEVER_PORTS, make_guard
from proxyctl.exit.agent.agent import Agent, Stop
from proxyctl.exit.agent.restraints import reason_to_rest
from proxyctl.exit.agent.watcher import STATE_STALE_SECONDS
from proxyctl.exit.base import journal, names, record
from proxyctl.exit.base.limits import DeviceLimits, LimitError, limits_from, size_from
from proxyctl.power import read_power
from proxyctl.status import DONE, FAILED, IN_VAIN
from proxyctl.tokens import read_token

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network
    from typing import Union

    Network = Union[IPv4Network, IPv6Network]


_ACKNOWLEDGED_SECONDS: Final = 5.0  # an agent looks once a second
_STEP_SECONDS: Final = 0.1


def add_commands(topics: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `exit` and its commands to a command line."""
    parser = topics.add_parser("exit", help="let strangers' connections leave from this device")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    agreeing = commands.add_parser("consent", help="read the terms, and agree to them")
    _add_consent_options(agreeing)
    running = commands.add_parser("run", help="carry connections until this program is stopped")
    running.add_argument("--pin", help="SHA-256 of the daemon's certificate, in hexadecimal")
    running.add_argument(
        "--allow",
        action="append",
        default=[],
        type=_network,
        metavar="NETWORK",
        help="open a network near this device to strangers, to try an exit out on one machine",
    )
    running.set_defaults(call=_run)
    for name, call, words in (
        ("pause", _pause, "carry no connections until `resume`"),
        ("resume", _resume, "carry connections again"),
        ("status", _status, "show the state and the journal of this exit"),
        ("revoke", _revoke, "withdraw the consent, here and in the account"),
    ):
        commands.add_parser(name, help=words).set_defaults(call=call)
    for command in commands.choices.values():
        command.add_argument(
            "--folder",
            type=Path,
            default=files.default_folder(),
            help="folder with the files of this exit (%(default)s)",
        )


def _add_consent_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--api", required=True, metavar="URL", help="address of the marketplace")
    parser.add_argument(
        "--token-file", metavar="FILE", help="file with the worker token of this device"
    )
    parser.add_argument(
        "--unless-agreed",
        action="store_true",
        help="show no question if this device has a record of the same agreement",
    )
    for name, words in (
        ("bytes-per-day", "5GB by default; 0 is no limit"),
        ("bytes-per-month", "no limit by default"),
        ("bytes-per-second", "no limit by default; both ways together"),
    ):
        parser.add_argument(f"--{name}", type=_size, metavar="SIZE", help=words)
    parser.add_argument(
        "--connections", type=int, metavar="COUNT", help="most open connections; 16"
    )
    parser.add_argument(
        "--dials-per-second",
        type=int,
        metavar="COUNT",
        help="new connections to the daemon; routers and carriers slow down a line with many; 20",
    )
    parser.add_argument(
        "--hours", type=_hours, metavar="FROM-TO", help="hours of work, like 22:00-07:00"
    )
    parser.add_argument(
        "--port",
        dest="ports",
        type=_port,
        action="append",
        metavar="PORT",
        help="port of targets; may be repeated",
    )
    parser.add_argument(
        "--battery-percent", type=int, metavar="PERCENT", help="rest below this charge; 50"
    )
    parser.add_argument(
        "--on-metered", action="store_true", default=None, help="work on a metered network"
    )
    parser.add_argument(
        "--udp", type=_yes_or_no, metavar="yes|no", help="carry datagrams (UDP); no"
    )
    parser.set_defaults(call=_consent)


def _consent(arguments: argparse.Namespace) -> int:
    # Here, and below: a module that uses HTTP takes 4 MB of memory, which `run` does not need.
    from proxyctl.exit.commands import consent  # noqa: PLC0415 - see above

    path = arguments.folder / names.CONSENT
    limits = _limits(arguments, path)
    is_new = consent.agree(
        path,
        arguments.api,
        limits,
        token=lambda: read_token(arguments.token_file, getpass.getpass),
        show=_show,
        ask=input,
        asks_again=not arguments.unless_agreed,
    )
    run = "proxyctl exit run"
    if arguments.folder != files.default_folder():
        run += f" --folder {arguments.folder}"
    words = f"Agreed, and written to {path}" if is_new else f"Agreed before, as {path} says"
    if arguments.unless_agreed:  # its caller starts the exit
        _show(f"{words}.")
    else:
        _show(f"{words}. It carries connections while this runs: {run}")
    return DONE


def _limits(arguments: argparse.Namespace, path: Path) -> DeviceLimits:
    """Return the present limits, with the changes of the command line."""
    stored = files.read(path) or {}
    fields: dict[str, Any] = dict(stored.get("limits") or {})
    for name in DeviceLimits().as_fields():
        value = getattr(arguments, name, None)
        if value is not None:
            fields[name] = value
    return limits_from(fields)


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    agreement = record.load(arguments.folder / names.CONSENT)
    if not agreement.terms:
        raise record.ConsentError(f"the consent of this device was withdrawn; {record.AGREE}")
    if arguments.pin is not None:
        if not record.is_digest(arguments.pin.lower()):
            raise record.ConsentError("--pin must have 64 hexadecimal digits")
        agreement = replace(agreement, pin=arguments.pin.lower())
    pid = _running(arguments.folder)
    if pid is not None:
        raise files.FileError(f"this exit runs already, as process {pid}")
    for network in arguments.allow:
        logging.getLogger("exit").warning(
            "STRANGERS MAY REACH %s THROUGH THIS DEVICE, because of --allow", network
        )
    stop = asyncio.run(_work(agreement, arguments.folder, arguments.allow))
    # The log has just named the reason of the refusal.
    words = "a new start would fail in the same way" if stop.in_vain else stop.words
    logging.getLogger("exit").info("ended: %s", words)
    return IN_VAIN if stop.in_vain else DONE


async def _work(agreement: record.Consent, folder: Path, allow: list[Network]) -> Stop:
    guard, routes = make_guard(allow, must_know=True)
    try:
        agent = Agent(
            agreement,
            folder,
            guard=guard,
            now=lambda: datetime.now(timezone.utc).astimezone(),
            read_power=lambda: reason_to_rest(read_power(), agreement.limits),
        )
        # Where there are no such signals, Ctrl-C ends the loop with KeyboardInterrupt.
        with suppress(NotImplementedError, AttributeError):
            loop = asyncio.get_running_loop()
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(each, agent.stop, "stopped")
        return await agent.run()
    finally:
        if routes is not None:
            routes.close()


def _pause(arguments: argparse.Namespace) -> int:
    return _ask(arguments.folder, paused=True)


def _resume(arguments: argparse.Namespace) -> int:
    return _ask(arguments.folder, paused=False)


def _ask(folder: Path, *, paused: bool) -> int:
    files.write(folder / names.CONTROL, {"paused": paused})
    if _running(folder) is None:
        _show(f"No exit runs here; the next one begins {'paused' if paused else 'working'}.")
        return DONE
    deadline = time.monotonic() + _ACKNOWLEDGED_SECONDS
    while time.monotonic() < deadline:
        state = files.read(folder / names.STATE) or {}
        by_owner = "by the owner" in str(state.get("paused", ""))
        if by_owner == paused:
            _show("Paused." if paused else "Resumed.")
            if not paused and state.get("paused"):
                _show(f"Still resting: {state['paused']}.")
            return DONE
        time.sleep(_STEP_SECONDS)
    raise files.FileError("the exit that runs here did not answer; end it by its process id")


def _status(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    pid = _running(folder)
    if pid is None:
        _show("not running")
    else:
        state = files.read(folder / names.STATE) or {}
        _show(f"running as process {pid}: {state.get('words')}")
        if state.get("paused"):
            _show(f"resting: {state['paused']}")
        _show(f"connections: {state.get('connections')}, waiting: {state.get('parked')}")
    _show("\n".join(journal.describe(folder / names.JOURNAL)))
    _show("earned: the account that this device belongs to shows it")
    return DONE if pid is not None else FAILED


def _revoke(arguments: argparse.Namespace) -> int:
    from proxyctl.exit.commands import consent  # noqa: PLC0415 - see `_consent`

    _show(consent.withdraw(arguments.folder))
    return DONE


def _running(folder: Path) -> int | None:
    """Return the process that runs in this folder, by its state file."""
    path = folder / names.STATE
    state = files.read(path)
    if state is None or not isinstance(state.get("pid"), int):
        return None
    pid = int(state["pid"])
    if os.name == "posix":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
    written = files.stamp(path)[0] / 1e9
    age = datetime.now(timezone.utc).timestamp() - written
    return pid if -STATE_STALE_SECONDS < age < STATE_STALE_SECONDS else None


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError("must be yes or no")
    return text == "yes"


def _port(text: str) -> int:
    """Return a port; one that no exit ever uses is refused, so that its owner does not wait."""
    try:
        port = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no port") from None
    if port in NEVER_PORTS:
        raise argparse.ArgumentTypeError(f"no exit ever uses the port {port}")
    return port


def _hours(text: str) -> str:
    """Return a span of hours; one that ends when it begins would be no time at all."""
    begin, _, end = text.partition("-")
    if text and begin == end:
        raise argparse.ArgumentTypeError(f"{text!r} begins and ends at the same time")
    return text


def _size(text: str) -> int:
    try:
        return size_from(text)
    except LimitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
