"""All files of attempts on this device: inputs, outputs, and checkpoints while a job runs."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from contextlib import closing, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final

from proxyctl.files import FileError
from proxyctl.protocol.jobspec import LEFT_OUT, LEFT_OUT_MAX_BYTES, Output
from proxyctl.worker.beneath import Folder
from proxyctl.worker.executors.base import WORK, TaskError
from proxyctl.worker.executors.ownership import uid_of
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions, pack
from proxyctl.worker.files.inputs import INPUT, Inputs, fetch_file
from proxyctl.worker.files.outputs import (
    Collection,
    JobFolder,
    Leaving,
    NotTakenError,
    require_output_name,
)
from proxyctl.worker.files.unpacking import unpack_confined
from proxyctl.worker.files.uploads import Uploader
from proxyctl.worker.files.web import FetchError, Web
from proxyctl.worker.link import LinkError, RefusedError
from proxyctl.worker.record import GIGABYTE
from proxyctl.worker.scratch import remove_tree
from proxyctl.worker.tasks import payload_of_work, resources_wanted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.worker.journal import Entry
    from proxyctl.worker.link import Link

_logger = logging.getLogger("worker")

# Beside the folder of the job, which cannot write there.
CHECKPOINT: Final = "checkpoint.tar"
RESTORED: Final = "restored.tar"
CHECKPOINT_MAX_BYTES: Final = 5 << 30
# Of inputs, where the job does not say how much room it needs.
DISK_BYTES: Final = 20 * GIGABYTE


class FileTransfers:
    """Brings the files of attempts from the marketplace, and back there (`attempt.Transfers`).

    Args:
        link: asks the API.
        web: sends and fetches files.
    """

    def __init__(self, link: Link, web: Web) -> None:
        self._link = link
        self._web = web

    def fetch(self, entry: Entry, folder: Path, is_stopped: Callable[[], bool]) -> None:
        """Bring the inputs, and the checkpoint of an attempt before.

        Raises:
            TaskError: they cannot be had.
            LinkError: it may be tried again.
            RefusedError: it is in vain.
        """
        given = entry.work.get("inputs") or []
        disk_gb = resources_wanted(entry.work).disk_gb
        max_bytes = int(disk_gb * GIGABYTE) if disk_gb else DISK_BYTES
        inputs = Inputs(self._web, folder, max_bytes=max_bytes, is_stopped=is_stopped)
        inputs.fetch(list(given))
        checkpoint, payload = entry.work.get("checkpoint"), payload_of_work(entry.work)
        if checkpoint and payload.checkpoint is not None and not is_stopped():
            self._restore(checkpoint, payload.checkpoint.path, folder, is_stopped)

    def upload(
        self, entry: Entry, folder: Path, is_stopped: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Bring the outputs back; what is not taken of them is said in a file of its own.

        Returns:
            For the report: how many files and bytes were not taken, and why; None where all were.

        Raises:
            TaskError: the folder of the job cannot be used.
            LinkError: it may be tried again.
            RefusedError: it is in vain.
        """
        outputs = payload_of_work(entry.work).outputs
        if not outputs:
            return None
        uploader = Uploader(self._link, self._web, entry.job_id, entry.attempt, is_stopped)
        with _opened(folder / WORK) as work:
            collection = work.collect(outputs)
            for leaving in collection.files:
                reason = _sent(uploader, work, leaving)
                if reason:
                    collection.leave_out_file(leaving.name, reason, leaving.size_bytes)
        _tell_left_out(uploader, collection)
        return collection.summary()

    def begin_checkpoints(self, entry: Entry, folder: Path) -> Checkpoints | None:
        """Begin to send checkpoints of a job that runs; None if it has none. To be closed."""
        checkpoint = payload_of_work(entry.work).checkpoint
        if checkpoint is None:
            return None
        send = partial(self._send_checkpoint, entry, folder, checkpoint.path)
        return Checkpoints(entry.attempt_id, checkpoint.every_s, send)

    def _restore(
        self, checkpoint: dict[str, Any], path: str, folder: Path, is_stopped: Callable[[], bool]
    ) -> None:
        """Put a checkpoint where the job expects it; a job that has begun has its own."""
        archive, unfinished = folder / RESTORED, folder / f"{RESTORED}.d"
        try:
            if _exists(folder / WORK, path.split("/")):
                _discard(archive, unfinished)  # if the agent was killed before it did that
                return
            fetch_file(
                self._web,
                f"/api/worker/artifacts/{checkpoint['artifact_id']}",
                archive,
                str(checkpoint["sha256"]),
                max_bytes=min(int(checkpoint["size_bytes"]), CHECKPOINT_MAX_BYTES),
                is_stopped=is_stopped,
            )
            if is_stopped():
                return
            remove_tree(unfinished)
            # It was made on the machine of a stranger, who may not put files elsewhere. No agent
            # packs a link.
            options = UnpackOptions(CHECKPOINT_MAX_BYTES, writable=True, within=path, links=False)
            user = uid_of(folder.name)
            unpack_confined(archive, unfinished, options, user=user, is_stopped=is_stopped)
            _move_up(unfinished, folder / WORK, path.split("/"))
            _discard(archive, unfinished)
        except (FetchError, ArchiveError) as error:
            raise TaskError(INPUT, f"the checkpoint: {error}") from None
        except FileError as error:
            raise TaskError("host", str(error)) from None
        except OSError as error:
            raise TaskError("host", f"the checkpoint cannot be kept: {error.strerror}") from None

    def _send_checkpoint(
        self, entry: Entry, folder: Path, path: str, is_stopped: Callable[[], bool]
    ) -> str:
        """Send what is in the folder of checkpoints; return in words why not, if it was not sent.

        A file that is being written just now makes this one worthless; the next one may be whole.
        """
        archive = folder / CHECKPOINT
        try:
            with _opened(folder / WORK) as work:
                wanted = Output("checkpoint", path, CHECKPOINT_MAX_BYTES)
                collection = work.collect([wanted])
                if not collection.files or collection.left_out:
                    return "; ".join(collection.sentences()[:3])
                pack(
                    [
                        (each.name, each.size_bytes, partial(_open, work, each))
                        for each in collection.files
                    ],
                    archive,
                )
                for each in collection.files:  # is it still what it was?
                    _open(work, each).close()
            uploader = Uploader(self._link, self._web, entry.job_id, entry.attempt, is_stopped)
            uploader.send(CHECKPOINT, lambda: archive.open("rb"), "checkpoint")
        except (NotTakenError, ArchiveError, TaskError) as error:
            return str(error)
        except OSError as error:
            return f"it cannot be kept here: {error.strerror}"
        finally:
            with suppress(FileNotFoundError):
                archive.unlink()
        return ""


class Checkpoints:
    """Sends checkpoints of a job from time to time, in a thread of its own, until it is closed.

    Args:
        attempt_id: the attempt, for the log.
        every_s: how often.
        send: sends one, if nobody closes this meanwhile; returns why not.
    """

    def __init__(
        self, attempt_id: str, every_s: float, send: Callable[[Callable[[], bool]], str]
    ) -> None:
        self._attempt_id = attempt_id
        self._every_s = every_s
        self._send = send
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"checkpoints of {attempt_id}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End it; one that is being sent is broken off."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                reason = self._send(self._closed.is_set)
            except (LinkError, RefusedError) as error:
                reason = str(error)
            if reason and not self._closed.is_set():
                _logger.info("job %s: no checkpoint this time: %s", self._attempt_id, reason)


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
        # The job may have closed it, for the device to be blamed for what it has lost.
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
    """Tell the buyer what was not taken, where they look for what was."""
    sentences = collection.sentences()
    if not sentences:
        return
    text = "".join(f"{sentence}\n" for sentence in sentences).encode()[:LEFT_OUT_MAX_BYTES]
    with suppress(NotTakenError):  # the report has the first reasons, too
        uploader.send_text(LEFT_OUT, text.decode("utf-8", "ignore"))
