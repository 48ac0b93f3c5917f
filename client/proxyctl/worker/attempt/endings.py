"""Makes the report about the end of an attempt."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Final

from proxyctl.words import plain_text
from proxyctl.worker.base import names
from proxyctl.worker.executors.base.base import CANNOT_BE_RUN, names_no_program
from proxyctl.worker.task.journal import Report

if TYPE_CHECKING:
    from pathlib import Path

    from proxyctl.worker.executors.base.base import Ending
    from proxyctl.worker.task.journal import Stop

RESULT_MAX_CHARACTERS: Final = 4_000  # the end of the job's output; the whole is its log
_REASON_MAX_CHARACTERS: Final = 1_900  # the daemon takes 2,000
_LAST_WORDS_CHARACTERS: Final = 500
# The exit status of the client of docker or podman for an error of the engine, such as a restart.
_CLIENT_FAILED: Final = 125


def report_of(
    ended: dict[str, Any] | None, ending: Ending, stop: Stop | None, folder: Path, seconds: int
) -> Report:
    """Return the report for the daemon.

    Args:
        ended: the record of the supervisor; None if it was killed before it could.
        ending: the executor's knowledge of the end.
        stop: why the job was ended early, if it was.
        folder: of the attempt.
        seconds: the job's time limit.
    """
    if ended is None:
        kind, reason = "host", "its supervisor on the device was killed, and the job with it"
        return failed(stop.kind if stop else kind, stop.reason if stop else reason)
    if ended.get("failed"):
        return failed("host", str(ended["failed"]))
    if stop is None and _is_unstarted(ended, ending, folder):
        words = _tail(folder / names.LOGS["err"], _LAST_WORDS_CHARACTERS).strip()
        return failed("host", f"the sandbox could not be started: {words}".rstrip(": "))
    facts = _facts(ended, ending)
    verdict = _verdict(ended, ending, stop, seconds)
    if verdict is None:
        result = _tail(folder / names.LOGS["out"], RESULT_MAX_CHARACTERS)
        return Report("complete", {"result": result, **facts})
    kind, reason = verdict
    if kind == "job":
        last = _tail(folder / names.LOGS["err"], _LAST_WORDS_CHARACTERS).strip()
        reason = f"{reason}; its last words: {last}" if last else reason
    return failed(kind, reason, {"exit_code": facts["exit_code"]} if "exit_code" in facts else {})


def failed(kind: str, reason: str, facts: dict[str, Any] | None = None) -> Report:
    """Return the report of a failure; `kind` names its owner."""
    return Report(
        "fail", {"kind": kind, "reason": reason[:_REASON_MAX_CHARACTERS] or kind, **(facts or {})}
    )


def _is_unstarted(ended: dict[str, Any], ending: Ending, folder: Path) -> bool:
    """Return whether a sandbox has failed that has started nothing: the job cannot be to blame.

    It is where the buyer has named a program that is not there, or a `PATH` without one.
    """
    status = ended["status"]
    if not status or ended["timed_out"] or ending.is_out_of_memory or ending.lost:
        return False
    if ended.get("unstarted"):
        return not names_no_program(folder / names.LOGS["err"])
    return ending.is_unstarted and status not in CANNOT_BE_RUN


def _verdict(
    ended: dict[str, Any], ending: Ending, stop: Stop | None, seconds: int
) -> tuple[str, str] | None:
    """Return the kind of a failure and its reason; None if the job did not fail."""
    if stop is not None:
        return stop.kind or "host", stop.reason
    number, status = ended["signal"], ended["status"]
    causes = (
        (ended["timed_out"], "timeout", f"it ran for longer than {seconds} s"),
        (ending.is_out_of_memory, "oom", "it used up the memory that it may have"),
        (ending.is_out_of_disk, "job", "it wrote more to the disk than it may"),
        (ended["disk_full"], "host", "the disk of the device is full"),
        (ended["disk_over"], "job", f"it wrote to the disk {ended['disk_over']}"),
        (ending.lost, "host", ending.lost),
        (
            ending.exit_code not in (None, status) and status == _CLIENT_FAILED,
            "host",
            f"the client of {ending.client} lost its engine",
        ),
        # Not by the agent, whose stops are handled above: by the end of the machine, or by another
        # process.
        (ended["asked"], "host", "its supervisor on the device was asked to end it"),
        (number is not None and ending.client, "host", f"the client of {ending.client} was killed"),
        (number is not None, "job", f"it was ended by the signal {_signal_name(number)}"),
        (status != 0, "job", f"it ended with the status {status}"),
    )
    return next(((kind, words) for applies, kind, words in causes if applies), None)


def _facts(ended: dict[str, Any], ending: Ending) -> dict[str, Any]:
    cpu, memory = ending.cpu_seconds, ending.max_memory_bytes
    facts: dict[str, Any] = {
        "usage": {
            "cpu_seconds": round(ended["cpu_seconds"] if cpu is None else cpu, 3),
            "max_memory_bytes": ended["max_memory_bytes"] if memory is None else memory,
        },
        "log_bytes": dict(ended["log_kept"]),
    }
    if ended["status"] is not None:
        facts["exit_code"] = ended["status"]
    return facts


def _signal_name(number: int | None) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number or 0, str(number))  # real-time signals have no names


def _tail(path: Path, characters: int) -> str:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - 4 * characters))
            data = file.read(4 * characters)
    except OSError:
        return ""
    return plain_text(data.decode("utf-8", "replace"))[-characters:]
