"""The attempts that this device has taken, and the state of each: on disk before the work is done.

Each attempt has a folder, and its entry is a file there that is replaced whole. A folder without an
entry was made by an agent that was killed right then, before it had sent anything: it is removed.
The program waits for the disk only once the daemon or the buyer knows of the attempt.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.worker.base import names
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.base.states import UNHEARD, AttemptState, may_follow
from proxyctl.worker.task.processes import boot_id, boot_seconds

if TYPE_CHECKING:
    from pathlib import Path

_logger = logging.getLogger("worker")

_VERSION: Final = 1
# Of a job as it was given, written down. The largest that a buyer may describe has half of it, with
# six bytes for each character that is not ASCII.
WORK_MAX_BYTES: Final = 4 << 20
_ENTRY_MAX_BYTES: Final = WORK_MAX_BYTES + (1 << 20)  # with the report, which is short
_FOLDER: Final = re.compile(r"[0-9a-f-]{36}-\d{1,6}")
_GONE: Final = ".gone-"


@dataclass(frozen=True)
class Stop:
    """The reason why an attempt should end before its own end.

    Attributes:
        reason: in words.
        kind: the kind of the failure for the daemon; empty if the daemon wants no report of it any
            more.
        grace_s: how long the job may take to end by itself.
    """

    reason: str
    kind: str = ""
    grace_s: float = 0.0


@dataclass(frozen=True)
class Report:
    """The last report to the daemon, which is sent until the daemon has it.

    Attributes:
        verb: "complete" or "fail".
        fields: of the request, without the attempt's number.
    """

    verb: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One attempt.

    Attributes:
        work: the job as the daemon gave it.
        state: how far it is.
        boot: `boot_id` of when it was taken.
        taken_at: `boot_seconds` of when it was taken; None as agents before did not write it.
        gpus: identifiers of the granted GPUs.
        sandbox: the name of the sandbox that was made before the attempt came; empty if none was.
        is_start_known: the daemon knows that it has started.
        is_ready_known: the daemon knows that it can be used.
        stop: why it is to end, if it is.
        report: the report for the daemon, once it is known.
    """

    work: dict[str, Any] = field(repr=False)
    state: AttemptState
    boot: str
    taken_at: float | None = None
    gpus: tuple[str, ...] = ()
    sandbox: str = ""
    is_start_known: bool = False
    is_ready_known: bool = False
    stop: Stop | None = None
    report: Report | None = field(default=None, repr=False)

    @property
    def job_id(self) -> str:
        """The job."""
        return str(self.work["job_id"])

    @property
    def attempt(self) -> int:
        """The number of this attempt at the job, from 1."""
        return int(self.work["attempt"])

    @property
    def attempt_id(self) -> str:
        """Its name on this device, also of its folder."""
        return _attempt_id(self.work)

    @property
    def place(self) -> str:
        """Its name for an executor."""
        return self.sandbox or self.attempt_id


class Journal:
    """The attempts of this device.

    Args:
        folder: of the agent.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / names.ATTEMPTS

    def folder_of(self, entry: Entry) -> Path:
        """Return the folder of an attempt."""
        return self._folder / entry.attempt_id

    def kept(self) -> list[Entry]:
        """Return all entries that can be read, and change nothing: also beside an agent."""
        entries = []
        for folder in sorted(self._folder.glob("*")):
            with suppress(files.FileError):
                fields = files.read(folder / names.ENTRY, _ENTRY_MAX_BYTES)
                entry = None if fields is None else _entry_of(fields)
                if entry is not None and _attempt_id(entry.work) == folder.name:
                    entries.append(entry)
        return entries

    def load(self) -> list[Entry]:
        """Return all entries, and remove the folders without an entry.

        Raises:
            FileError: an entry cannot be read. It is not passed over: a job may run there.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = []
        for folder in sorted(self._folder.iterdir()):
            path, fields = folder / names.ENTRY, None
            # An empty one was made just before the power was lost, and never written.
            if _FOLDER.fullmatch(folder.name) and not files.is_empty(path):
                fields = files.read(path, _ENTRY_MAX_BYTES)
            if fields is None:
                try:
                    remove_tree(folder)
                except files.FileError as error:
                    # Nothing runs there, so the device can work; its owner has to make room.
                    _logger.warning("%s", error)
                continue
            entry = _entry_of(fields)
            if entry is None or _attempt_id(entry.work) != folder.name:
                raise files.FileError(
                    f"{folder / names.ENTRY} is of another version of this program, or broken; "
                    f"if nothing of that job runs any more, remove {folder}"
                )
            entries.append(entry)
        return entries

    def add(self, work: dict[str, Any], gpus: tuple[str, ...]) -> Entry:
        """Take an attempt on.

        Raises:
            FileError: it cannot be written down, or not so that it could be read again.
        """
        try:
            size = len(json.dumps(work))
        except RecursionError:
            size = WORK_MAX_BYTES + 1
        if size > WORK_MAX_BYTES:
            raise files.FileError("it is larger than any job may be")
        taken_at = boot_seconds()
        entry = Entry(
            work=work, state=AttemptState.TAKEN, boot=boot_id(), taken_at=taken_at, gpus=gpus
        )
        if not _FOLDER.fullmatch(entry.attempt_id):
            raise files.FileError(f"{entry.attempt_id!r} is no name of an attempt")
        self._save(entry)
        return entry

    def move(self, entry: Entry, state: AttemptState, **changes: object) -> Entry:
        """Return the entry of the next state, once it is in its file.

        It also outlives a loss of power, unless the state is one of `UNHEARD`. PREPARING is not
        written: after a crash the preparation begins anew, as it does from TAKEN.

        Raises:
            FileError: it cannot be written down.
        """
        assert may_follow(entry.state, state), (entry.state, state)  # noqa: S101 - the one table
        changed = replace(entry, state=state, **changes)  # type: ignore[arg-type]
        if state is not AttemptState.PREPARING:
            self._save(changed)
        return changed

    def note(self, entry: Entry, **changes: object) -> Entry:
        """Return the entry with something that is known now; raises as `move` does."""
        changed = replace(entry, **changes)  # type: ignore[arg-type]
        self._save(changed)
        return changed

    def forget(self, entry: Entry) -> None:
        """Remove the folder of an attempt. `load` finishes this for an agent that was killed.

        A file that cannot be removed is left to `load` and to the owner of the device: the attempt
        is over, and its slot must not stay taken for ever.

        Raises:
            FileError: the entry itself cannot be removed.
        """
        folder = self.folder_of(entry)
        gone = self._folder / f"{_GONE}{entry.attempt_id}"
        try:
            folder.rename(gone)
        except FileNotFoundError:
            return
        except OSError as error:
            raise files.FileError(f"{folder} cannot be removed: {error.strerror}") from None
        try:
            remove_tree(gone)
        except files.FileError as error:
            _logger.warning("job %s: %s", entry.attempt_id, error)

    def _save(self, entry: Entry) -> None:
        # `asdict` of the entry would copy all of the work.
        fields = {
            "version": _VERSION,
            **vars(entry),
            "stop": entry.stop and asdict(entry.stop),
            "report": entry.report and asdict(entry.report),
        }
        is_durable = entry.state not in UNHEARD
        files.write(self.folder_of(entry) / names.ENTRY, fields, durable=is_durable)


def _entry_of(fields: dict[str, Any]) -> Entry | None:
    """Return the entry that a file holds, or None if it was not written by this version."""
    try:
        if fields["version"] != _VERSION:
            return None
        stop, report = fields["stop"], fields["report"]
        entry = Entry(
            work=dict(fields["work"]),
            state=AttemptState(fields["state"]),
            boot=str(fields["boot"]),
            taken_at=None if fields.get("taken_at") is None else float(fields["taken_at"]),
            gpus=tuple(map(str, fields["gpus"])),
            sandbox=str(fields.get("sandbox", "")),  # as agents before did not write it
            is_start_known=bool(fields["is_start_known"]),
            is_ready_known=bool(fields.get("is_ready_known")),  # as agents before did not write it
            stop=None if stop is None else Stop(**stop),
            report=None if report is None else Report(**report),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return entry


def _attempt_id(work: dict[str, Any]) -> str:
    return f"{work.get('job_id')}-{work.get('attempt')}"
