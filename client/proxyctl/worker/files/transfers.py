"""All files of attempts on this device: inputs, outputs, and checkpoints while a job runs."""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, cast

from proxyctl.files import FileError
from proxyctl.protocol.jobspec import LEFT_OUT, LEFT_OUT_MAX_BYTES, Output
from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.executors.base.base import WORK, TaskError
from proxyctl.worker.executors.base.ownership import uid_of
from proxyctl.worker.executors.limits.disk import TooMuchError
from proxyctl.worker.files.archives import OF_THE_BYTES, ArchiveError, UnpackOptions
from proxyctl.worker.files.inputs import Inputs, WrongFileError, fetch_file
from proxyctl.worker.files.notes import Notes
from proxyctl.worker.files.outputs import (
    NAMES_MAX,
    Collection,
    JobFolder,
    Leaving,
    NotTakenError,
    require_output_name,
)
from proxyctl.worker.files.packing import Content, Packed
from proxyctl.worker.files.room import NoRoomError, Room, failure_of
from proxyctl.worker.files.unpacking import unpack_confined
from proxyctl.worker.files.uploads import Uploader
from proxyctl.worker.files.web import FetchError, Web
from proxyctl.worker.task.patience import INPUT
from proxyctl.worker.task.tasks import disk_bytes_of, payload_of_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.worker.base.link import Link
    from proxyctl.worker.base.record import Lend
    from proxyctl.worker.task.journal import Entry
    from proxyctl.worker.task.patience import Patience

_logger = logging.getLogger("worker")

CHECKPOINT: Final = "checkpoint.tar"
# Beside the folder of the job, which cannot write there.
RESTORED: Final = "restored.tar"
_BEYOND_DISK: Final = "the outputs have more bytes than this job may have on the disk"


@dataclass(frozen=True)
class TransferBounds:
    """Limits of the transfer of files and checkpoints.

    Attributes:
        checkpoint_max_bytes: of one checkpoint.
        bytes_per_second: of checkpoints, on average: 20 Mbit/s, which many homes can send. It also
            bounds reading and hashing.
        names_max: that are looked at for a checkpoint.
    """

    checkpoint_max_bytes: int = 5 << 30
    bytes_per_second: int = 2_500_000
    names_max: int = NAMES_MAX


USUAL: Final = TransferBounds()


class FileTransfers:
    """Brings the files of attempts from the marketplace, and back there.

    Args:
        lend: the loan of the owner; each attempt has its share of the disk.
    """

    def __init__(self, link: Link, web: Web, lend: Lend, bounds: TransferBounds = USUAL) -> None:
        self._bounds = bounds
        self._link = link
        self._web = web
        self._lend = lend

    def fetch(self, entry: Entry, folder: Path, patience: Patience) -> None:
        """Bring the inputs, and the checkpoint of an attempt before; not all once it is over.

        Raises:
            TaskError: they are not available.
            LinkError: it may be tried again.
            RefusedError: a retry is useless.
        """
        given = entry.work.get("inputs") or []
        room = Room(folder, disk_bytes_of(entry.work, self._lend))
        inputs = Inputs(self._web, folder, room=room, patience=patience)
        try:
            inputs.fetch(list(given))
        except (TaskError, LinkError, RefusedError, FileError, OSError):
            raise
        except Exception:  # an answer of a stranger has led to a mistake of ours
            _logger.exception("job %s: its inputs cannot be fetched", folder.name)
            raise TaskError(INPUT, "the inputs cannot be fetched") from None
        checkpoint, payload = entry.work.get("checkpoint"), payload_of_work(entry.work)
        if checkpoint and payload.checkpoint is not None and not patience.is_over():
            self._restore(checkpoint, payload.checkpoint.path, folder, room, patience)

    def upload(
        self, entry: Entry, folder: Path, is_stopped: Callable[[], bool], seconds: float
    ) -> dict[str, Any] | None:
        """Send the outputs, and a file that lists the omitted ones.

        Files that are not sent within `seconds` are left out.

        Returns:
            For the report: how many files and bytes were not taken, and why; None where all were.

        Raises:
            TaskError: the folder of the job cannot be used.
            LinkError: it may be tried again.
            RefusedError: a retry is useless.
        """
        outputs = payload_of_work(entry.work).outputs
        if not outputs:
            return None
        left = disk_bytes_of(entry.work, self._lend)
        uploader = Uploader(self._link, self._web, entry.job_id, entry.attempt, is_stopped)
        uploader.deadline = time.monotonic() + seconds
        with _opened(folder / WORK) as work:
            collection = work.collect(outputs)
            for leaving in collection.files:
                # Holes of files take no disk, and are sent all the same.
                is_too_large = leaving.size_bytes > left
                reason = _BEYOND_DISK if is_too_large else _sent(uploader, work, leaving)
                if reason:
                    collection.leave_out_file(leaving.name, reason, leaving.size_bytes)
                else:
                    left -= leaving.size_bytes
        uploader.deadline = math.inf
        _tell_left_out(uploader, collection)
        return collection.summary()

    def begin_checkpoints(self, entry: Entry, folder: Path) -> Checkpoints | None:
        """Begin to send checkpoints of a job that runs; None if it has none. To be closed."""
        checkpoint = payload_of_work(entry.work).checkpoint
        if checkpoint is None:
            return None
        send = partial(self._send_checkpoint, entry, folder, checkpoint.path)
        note, speed = Notes(folder).write, self._bounds.bytes_per_second
        return Checkpoints(entry.attempt_id, checkpoint.every_s, send, note, speed)

    def _restore(
        self,
        checkpoint: dict[str, Any],
        path: str,
        folder: Path,
        room: Room,
        patience: Patience,
    ) -> None:
        """Put a checkpoint where the job expects it; a job that has begun has its own.

        Another worker made the checkpoint. One that cannot be restored does not fail the job, or
        every worker could end the jobs of others: the job begins anew, and its log says why.
        """
        archive, unfinished = folder / RESTORED, folder / f"{RESTORED}.d"
        try:
            if _exists(folder / WORK, path.split("/")):
                _discard(archive, unfinished)  # if the agent was killed before it did that
            else:
                self._lay_down(checkpoint, path, folder, room, patience)
        except (WrongFileError, ArchiveError, TooMuchError) as error:
            reason = str(error)
        except FetchError as error:
            raise TaskError(INPUT, f"the checkpoint: {error}") from None
        except FileError as error:
            raise TaskError("host", str(error)) from None
        except (NoRoomError, OSError) as error:
            raise failure_of(error, "the checkpoint", INPUT) from None
        except OF_THE_BYTES as error:
            _logger.exception("job %s: its checkpoint cannot be restored", folder.name)
            reason = type(error).__name__
        else:
            return
        if patience.is_over():  # that stopped the unpacking; the checkpoint may be good
            return
        _discard(archive, unfinished)
        note = f"the checkpoint is not restored, the job begins anew: {reason}"
        Notes(folder, creates=True).write([note])

    def _lay_down(
        self,
        checkpoint: dict[str, Any],
        path: str,
        folder: Path,
        room: Room,
        patience: Patience,
    ) -> None:
        """Fetch a checkpoint, unpack it beside the folder of the job, and move it there whole."""
        archive, unfinished = folder / RESTORED, folder / f"{RESTORED}.d"
        most = self._bounds.checkpoint_max_bytes
        fetch_file(
            self._web,
            f"/api/worker/artifacts/{checkpoint['artifact_id']}",
            archive,
            str(checkpoint["sha256"]),
            max_bytes=min(int(checkpoint["size_bytes"]), most, room.left),
            patience=patience,
            check=room.check,
        )
        if patience.is_over():
            return
        remove_tree(unfinished)
        # It was made on the machine of a stranger, who may not put files elsewhere. No agent
        # packs a link.
        most = min(most, room.left - archive.stat().st_size)
        options = UnpackOptions(most, writable=True, within=path, links=False)
        unpack_confined(
            archive,
            unfinished,
            options,
            user=uid_of(folder.name),
            is_stopped=patience.is_over,
            check=room.check,
        )
        room.spend(unfinished)
        _move_up(unfinished, folder / WORK, path.split("/"))
        _discard(archive, unfinished)

    def _send_checkpoint(
        self, entry: Entry, folder: Path, path: str, sending: Checkpoints
    ) -> list[str]:
        """Send the folder of checkpoints; return sentences about files that were not sent.

        A file that is being written just now makes this one worthless; the next one may be whole.
        It is read twice, for its hash and to be sent, and is at no time on the disk.
        """
        most = min(self._bounds.checkpoint_max_bytes, disk_bytes_of(entry.work, self._lend))
        try:
            with _opened(folder / WORK) as work:
                collection = work.collect(
                    [Output("checkpoint", path, most)], self._bounds.names_max
                )
                left_out = collection.sentences()
                if not collection.files or not collection.is_complete:  # a part is no checkpoint
                    return ["no checkpoint this time", *left_out]
                files = [
                    Content(each.name, each.size_bytes, partial(_open, work, each))
                    for each in collection.files
                ]
                with Packed(files) as packed:
                    sending.spend(packed.size_bytes)
                uploader = Uploader(
                    self._link, self._web, entry.job_id, entry.attempt, sending.is_closed
                )
                uploader.send(CHECKPOINT, lambda: cast("IO[bytes]", Packed(files)), "checkpoint")
        except (NotTakenError, ArchiveError, TaskError) as error:
            return [f"no checkpoint this time: {error}"]
        except OSError as error:
            return [f"no checkpoint this time: it cannot be read: {error.strerror}"]
        return [f"left out of the checkpoint: {each}" for each in left_out]


class Checkpoints:
    """Sends checkpoints of a job from time to time, in a thread of its own, until it is closed.

    Args:
        attempt_id: the attempt, for the log.
        every_s: how often, at most.
        send: sends one, if this is not closed meanwhile; returns sentences about the files that it
            has not sent.
        note: shows sentences to the buyer.
        bytes_per_second: that they have of the owner's line, on average.
    """

    def __init__(
        self,
        attempt_id: str,
        every_s: float,
        send: Callable[[Checkpoints], list[str]],
        note: Callable[[list[str]], None],
        bytes_per_second: int,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._attempt_id = attempt_id
        self._every_s = every_s
        self._send = send
        self._note = note
        self._pause_seconds = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"checkpoints of {attempt_id}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End it; one that is being sent is broken off."""
        self._closed.set()
        self._thread.join()

    def is_closed(self) -> bool:
        """Return whether the rest of one is useless."""
        return self._closed.is_set()

    def spend(self, size: int) -> None:
        """Delay the next one, by the time that this one takes of the owner's line."""
        self._pause_seconds = max(self._every_s, size / self._bytes_per_second)

    def _run(self) -> None:
        while not self._closed.wait(self._pause_seconds):
            self._pause_seconds = self._every_s
            try:
                sentences = self._send(self)
            except (LinkError, RefusedError) as error:
                _logger.info("job %s: no checkpoint this time: %s", self._attempt_id, error)
                continue
            if sentences and not self._closed.is_set():
                _logger.info("job %s: %s", self._attempt_id, "; ".join(sentences[:3]))
                self._note(sentences)


def _discard(archive: Path, unfinished: Path) -> None:
    remove_tree(unfinished)
    archive.unlink(missing_ok=True)


def _exists(folder: Path, parts: list[str]) -> bool:
    """Return whether something has a path below a folder; a path behind a link counts as taken."""
    try:
        with Folder.at(folder) as top, top.folder(parts[:-1]) as parent:
            return parent.status(parts[-1]) is not None
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return True
        raise


def _move_up(source: Path, target: Path, parts: list[str]) -> None:
    """Move a path from one folder to the same path in another, if it exists."""
    if not _exists(source, parts):
        return
    with Folder.at(source) as old, Folder.at(target) as new, old.folder(parts[:-1]) as parent:
        parent.move_below(parts[-1], new, parts)


def _opened(folder: Path) -> closing[JobFolder]:
    try:
        # The job may have closed it, so that the device would be blamed for the lost files.
        folder.chmod(stat.S_IRWXU)
        return closing(JobFolder(folder))
    except OSError as error:
        reason = f"the folder of the job cannot be opened: {error.strerror}"
        raise TaskError("host", reason) from None


def _sent(uploader: Uploader, work: JobFolder, leaving: Leaving) -> str:
    """Send a file; return in words why not, if it is not taken."""
    try:
        require_output_name(leaving.name)
        uploader.send(leaving.name, partial(_open, work, leaving))
    except NotTakenError as error:
        return str(error)
    return ""


def _open(work: JobFolder, leaving: Leaving) -> IO[bytes]:
    return os.fdopen(work.open_file(leaving), "rb", buffering=0)


def _tell_left_out(uploader: Uploader, collection: Collection) -> None:
    """Send the buyer a list of the files that were not taken, beside the taken ones."""
    sentences = collection.sentences()
    if not sentences:
        return
    text = "".join(f"{sentence}\n" for sentence in sentences).encode()[:LEFT_OUT_MAX_BYTES]
    with suppress(NotTakenError):  # the report also has the first reasons
        uploader.send_text(LEFT_OUT, text.decode("utf-8", "ignore"))
