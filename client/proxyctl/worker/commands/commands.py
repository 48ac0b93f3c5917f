"""The commands of `proxyctl worker`."""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from proxyctl import files
from proxyctl.status import DONE, FAILED, IN_VAIN
from proxyctl.tokens import TOKEN_VARIABLE, TokenError, read_token
from proxyctl.words import plain_line
from proxyctl.worker.attempt.supervisors import is_running
from proxyctl.worker.base import lock, names, plugins, record
from proxyctl.worker.base.private import require_private
from proxyctl.worker.base.states import HANDED_OVER
from proxyctl.worker.commands import setup
from proxyctl.worker.task.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxyctl.worker.agent.agent import End


class _OneLine(logging.Formatter):
    """Writes one line for each record: text of strangers' jobs must not look like a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        record.message = plain_line(record.message)
        return super().formatMessage(record)


def default_folder() -> Path:
    """Return where the agent keeps everything, unless the command line names another place."""
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "proxyctl-worker"


class _CommandParser(argparse.ArgumentParser):
    """A parser of one command.

    Attributes:
        complete: adds options once, when this command is the one of the command line.
    """

    complete: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(  # type: ignore[override]  # it needs one of three overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the command line, with the options of `complete`."""
        if self.complete is not None:
            complete, self.complete = self.complete, None
            complete(self)
        return super().parse_known_args(args, namespace)


def add_commands(topics: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `worker` and its commands to a command line."""
    parser = topics.add_parser("worker", help="run strangers' jobs on this device, walled in")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser
    )
    agreeing = commands.add_parser("setup", help="choose the loan of this device, and agree to it")
    agreeing.complete = setup.add_options  # loads plug-ins, which no other command needs
    agreeing.add_argument(
        "--token-file", metavar="FILE", help="file with this device's worker token"
    )
    agreeing.add_argument(
        "--unless-agreed",
        action="store_true",
        help="show no question if this device has a record of the same agreement",
    )
    agreeing.set_defaults(call=_setup)
    draining = commands.add_parser("drain", help="take no more work, and end after the last job")
    draining.add_argument("--now", action="store_true", help="stop the running jobs")
    draining.set_defaults(call=_drain)
    appealing = commands.add_parser(
        "appeal", help="ask for another decision about the pay for a disputed job"
    )
    appealing.add_argument("job", metavar="JOB", help="identifier of the job")
    appealing.add_argument("--reason", required=True, help="objection to the decision")
    appealing.set_defaults(call=_appeal)
    for name, call, words in (
        ("check", _check, "list the needs of jobs, their state on this device, and the remedies"),
        ("run", _run, "take jobs until this program is stopped"),
        ("status", _status, "show the state of this device"),
        ("jobs", _jobs, "list the jobs on this device"),
    ):
        commands.add_parser(name, help=words).set_defaults(call=call)
    for command in commands.choices.values():
        command.add_argument(
            "--folder",
            type=Path,
            default=default_folder(),
            help="folder with the files of this agent (%(default)s)",
        )


def _setup(arguments: argparse.Namespace) -> int:
    from proxyctl.worker.commands import checks  # noqa: PLC0415 - it imports all executors

    path = arguments.folder / names.CONSENT
    is_new = setup.agree(
        path,
        arguments,
        require=lambda lend, sandbox: checks.requirements(lend, sandbox, arguments.folder),
        token=lambda before: read_token(
            arguments.token_file, lambda prompt: before or _ask_token(prompt)
        ),
        show=_show,
        ask=input,
    )
    run = _command("run", arguments.folder)
    words = f"Agreed, and written to {path}" if is_new else f"Agreed before, as {path} says"
    if arguments.unless_agreed:  # its caller starts the agent
        _show(f"{words}.")
    else:
        _show(f"{words}. It takes jobs while this runs: {run}")
    return DONE


def _ask_token(prompt: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(prompt)
        except getpass.GetPassWarning:
            raise TokenError(
                "there is no terminal to ask for the token at; name a file that has it"
                f" (--token-file), or set {TOKEN_VARIABLE}"
            ) from None


def _check(arguments: argparse.Namespace) -> int:
    from proxyctl.worker.commands import checks  # noqa: PLC0415 - it imports all executors

    path = arguments.folder / names.CONSENT
    consent = record.load(path) if files.read(path) is not None else None
    if consent is None:
        _show(f"{record.no_consent(path)}\n")
    findings = checks.everything(consent, arguments.folder)
    for part, each in findings:
        _show(checks.line_of(part, each))
    if consent is None:
        _show(f"\nnothing is done before that was agreed to; {record.AGREE}")
        return FAILED
    return DONE if checks.can_work(findings) else FAILED


def _run(arguments: argparse.Namespace) -> int:
    end = _work(arguments.folder, drains=0)
    return IN_VAIN if end.in_vain else DONE


def _work(folder: Path, *, drains: int) -> End:
    """Run the agent of a folder; `drains` asks it to end before it begins."""
    from proxyctl.worker.commands import running  # noqa: PLC0415 - it imports all executors

    shown = logging.StreamHandler()
    shown.setFormatter(_OneLine("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[shown])
    folder = folder.expanduser().absolute()
    consent = record.load(folder / names.CONSENT)
    if plugins.needs_private_folder(consent.sandbox.executor):
        require_private(folder)
    held = lock.Lock(folder)
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _end_early)
        files.remove(folder / names.CONTROL)  # a drain of before
        agent = running.agent_of(consent, folder)
        for _ in range(drains):
            agent.drain()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.drain())
        signal.signal(signal.SIGHUP, lambda *_: agent.leave())
        end: End = agent.run()
    finally:
        held.close()
    logging.getLogger("worker").info("ended: %s", end.words)
    return end


def _end_early(number: int, _: object) -> NoReturn:
    """End an agent that tries its sandboxes; the trials remove their containers."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number if number == signal.SIGINT else DONE)


def _drain(arguments: argparse.Namespace) -> int:
    if lock.holder(arguments.folder) is None:
        return _drain_without_agent(arguments)
    files.write(arguments.folder / names.CONTROL, {"drains": 2 if arguments.now else 1})
    words = "stops what runs" if arguments.now else "ends when what runs has ended"
    _show(f"the agent takes no more work, and {words}")
    return DONE


def _drain_without_agent(arguments: argparse.Namespace) -> int:
    """End the remains of a killed agent, as the next agent would."""
    count = len(Journal(arguments.folder).kept())
    if not count:
        _show("no agent runs here")
        return DONE
    if not arguments.now:
        _show(
            f"no agent runs here, and {count} of its jobs are left; they are ended by:"
            f" {_command('drain --now', arguments.folder)}"
        )
        return FAILED
    _show(f"no agent runs here; {count} of its jobs are left, and are ended now")
    _work(arguments.folder, drains=2)
    left = len(Journal(arguments.folder).kept())
    if left:
        _show(f"{left} of them could not be reported; the next agent in this folder does it")
    return FAILED if left else DONE


def _command(words: str, folder: Path) -> str:
    """Return a command for the same folder, to be typed."""
    place = "" if folder == default_folder() else f" --folder {folder}"
    return f"proxyctl worker {words}{place}"


def _status(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    pid = lock.holder(folder)
    if pid is None:
        _show("not running")
        return FAILED
    state = files.read(folder / names.STATE) or {}
    _show(f"running as process {pid}: {state.get('words', 'starting')}")
    if state.get("resting"):
        _show(f"resting: {state['resting']}")
    _show(f"jobs: {len(state.get('attempts', []))}")
    return DONE


def _jobs(arguments: argparse.Namespace) -> int:
    if lock.holder(arguments.folder) is None:
        _show("not running")
        journal = Journal(arguments.folder)
        for entry in journal.kept():
            runs = is_running(journal.folder_of(entry))
            words = "runs on" if runs else "is over" if entry.state in HANDED_OVER else "waits"
            _show_job(entry.attempt_id, words, str(entry.work.get("title", "")))
        return FAILED
    state = files.read(arguments.folder / names.STATE) or {}
    for each in state.get("attempts", []):
        _show_job(each["attempt_id"], each["state"], each["title"])
    return DONE


def _appeal(arguments: argparse.Namespace) -> int:
    from proxyctl.worker.base.link import Link  # noqa: PLC0415 - other commands need no network

    consent = record.load(arguments.folder / names.CONSENT)
    path = f"/api/worker/jobs/{quote(arguments.job, safe='')}/appeal"
    link = Link(consent.api, consent.token)
    try:
        answer = link.post(path, {"reason": arguments.reason})
    finally:
        link.close()
    _show(f"appealed; another person decides until {plain_line(str(answer.get('due_at')))}")
    return DONE


def _show_job(attempt_id: str, state: str, title: str) -> None:
    _show(f"{attempt_id}  {state:10}  {plain_line(title)}")


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
