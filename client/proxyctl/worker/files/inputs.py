"""The inputs of a job: fetched by the agent, checked, and laid where the job can only read them.

A job has no network of its own for this, and files on servers of others are not trusted either: an
input has the size and the hash that the buyer named, or the job does not begin. A fetch that broke
off goes on where it stopped, also with the next agent.

The answer of a buyer's address stays on this device: a status, a hash or an error of the network
would let the buyer look around from the owner's connection.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final

from proxyctl.files import FileError
from proxyctl.protocol.jobspec import SpecError, check_path
from proxyctl.protocol.jobspec.checks import check_apart
from proxyctl.words import short_line
from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.executors.base.base import INPUTS, TaskError
from proxyctl.worker.executors.base.ownership import uid_of
from proxyctl.worker.executors.limits.disk import TooMuchError, measure
from proxyctl.worker.files.archives import DEPTH_MAX, ArchiveError, UnpackOptions
from proxyctl.worker.files.inspection import inspect
from proxyctl.worker.files.room import NoRoomError, failure_of, takes_more
from proxyctl.worker.files.unpacking import unpack_confined
from proxyctl.worker.files.web import FetchError, require_address
from proxyctl.worker.task.patience import INPUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.worker.files.room import Room
    from proxyctl.worker.files.web import Web
    from proxyctl.worker.task.patience import Patience

_logger = logging.getLogger("worker")

# Of a file whose size is not known before; as much as the marketplace keeps of one.
FILE_MAX_BYTES: Final = 5 << 30
# Others' servers may be down for a moment; a job does not wait for them for long.
STRANGERS_TRIES: Final = 3
_NOT_FETCHED: Final = "the file at its address could not be fetched"
READ_BYTES: Final = 1 << 20
# Beside the folder of inputs. Files lie here until they are whole, and archives while they are
# unpacked, so no name of a buyer and no member of an archive is beside them.
FETCHED: Final = "fetched"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FILE_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class WrongFileError(FetchError):
    """A file has come, with another hash or size than that in the request."""


class Inputs:
    """Fetches the inputs of one attempt.

    Args:
        folder: of the attempt; inputs go to `INPUTS` in it.
        room: for all inputs together, unpacked ones included.
    """

    def __init__(self, web: Web, folder: Path, *, room: Room, patience: Patience) -> None:
        self._web = web
        self._folder = folder / INPUTS
        self._fetched = folder / FETCHED
        self._user = uid_of(folder.name)
        self._room = room
        self._patience = patience

    def fetch(self, given: list[dict[str, Any]]) -> None:
        """Fetch all inputs, except those that are here already.

        Args:
            given: `inputs` of the job from the marketplace.

        Raises:
            TaskError: one is not available.
            LinkError: it may be tried again.
            RefusedError: the marketplace does not give one.
        """
        try:
            # The marketplace has checked this. If it had not, an archive could take the place of
            # another input, whose hash would then count for nothing.
            check_apart([str(each.get("path") or each["name"]) for each in given])
        except SpecError as error:
            raise TaskError(INPUT, f"the inputs cannot be used: {error.message}") from None
        for each in given:
            if self._patience.is_over():
                return
            try:
                self._fetch(each)
            except (FetchError, ArchiveError) as error:
                message = f"the input {short_line(str(each.get('name')))}: {error}"
                raise TaskError(INPUT, message) from None
            except TooMuchError as error:
                raise TaskError(INPUT, f"the inputs are too large: {error}") from None
            except FileError as error:
                raise TaskError("host", str(error)) from None
            except (NoRoomError, OSError) as error:
                raise failure_of(error, "an input", INPUT) from None

    def _fetch(self, each: dict[str, Any]) -> None:
        path, digest = str(each.get("path") or each["name"]), str(each["sha256"])
        try:
            check_path("path", path)
        except SpecError as error:
            raise FetchError(f"its path cannot be used: {error.message}") from None
        if not _DIGEST.fullmatch(digest):
            raise FetchError("its SHA-256 is malformed")
        if path.count("/") >= DEPTH_MAX:
            raise FetchError(f"its path is more than {DEPTH_MAX} folders deep")
        is_archive = bool(each.get("unpack"))
        self._fetched.mkdir(mode=0o700, exist_ok=True)
        partial = self._fetched / digest
        if self._is_placed(path, is_archive=is_archive):
            partial.unlink(missing_ok=True)  # if the agent was killed before it did that
            return
        try:
            if each.get("url"):
                self._fetch_from_others(str(each["url"]), partial, digest)
            else:
                url = f"/api/worker/artifacts/{each['artifact_id']}"
                max_bytes = min(int(each["size_bytes"]), self._room.left)
                self._fetch_file(url, partial, digest, max_bytes)
            if not self._patience.is_over():
                self._place(partial, path.split("/"), is_archive=is_archive)
        except (NoRoomError, TooMuchError, OSError):
            partial.unlink(missing_ok=True)  # at once: the report may have to wait
            raise

    def _fetch_file(
        self, url: str, partial: Path, digest: str, max_bytes: int, *, is_strangers: bool = False
    ) -> None:
        fetch_file(
            self._web,
            url,
            partial,
            digest,
            max_bytes=max_bytes,
            patience=self._patience,
            check=self._room.check,
            is_strangers=is_strangers,
        )

    def _fetch_from_others(self, url: str, partial: Path, digest: str) -> None:
        require_address(url)
        with self._patience.waiting(INPUT):
            for _ in range(STRANGERS_TRIES):
                if self._is_fetched_from_others(url, partial, digest) or self._patience.is_over():
                    return
        raise FetchError(_NOT_FETCHED)

    def _is_fetched_from_others(self, url: str, partial: Path, digest: str) -> bool:
        """Try once. Return whether the file has come; the buyer reads one of two errors."""
        max_bytes = min(FILE_MAX_BYTES, self._room.left)
        try:
            self._fetch_file(url, partial, digest, max_bytes, is_strangers=True)
        except WrongFileError as error:
            self._note(error)
            raise FetchError(
                "the file at its address is not the one with this SHA-256, or is larger than "
                f"{max_bytes} bytes"
            ) from None
        except FetchError as error:
            self._note(error)
            raise FetchError(_NOT_FETCHED) from None
        except (LinkError, RefusedError) as error:
            self._note(error)
            return False
        return True

    def _note(self, error: Exception) -> None:
        """Log an error for the owner; the buyer does not read it."""
        _logger.info("job %s: an input: %s", self._folder.parent.name, short_line(str(error)))

    def _is_placed(self, path: str, *, is_archive: bool) -> bool:
        """Return whether an earlier call has completed an input. Count its size if so."""
        *folders, name = path.split("/")
        try:
            with Folder.at(self._folder) as inputs, inputs.folder(folders) as parent:
                status = parent.status(name)
                if status is None:
                    return False
                if is_archive and stat.S_ISDIR(status.st_mode):
                    with parent.folder((name,)) as content:
                        inspect(content, self._room.left)
                elif is_archive or not stat.S_ISREG(status.st_mode):
                    raise FetchError("its path is taken by another file")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _not_a_place(error) from None
        self._room.spend(self._folder.joinpath(*folders, name))
        return True

    def _place(self, partial: Path, parts: list[str], *, is_archive: bool) -> None:
        """Move an input to its path, unpacked if that is wanted."""
        if not is_archive:
            self._room.spend(partial)
            partial.chmod(0o444)
            self._move(partial, parts)
            return
        # Moved once it is whole: an agent that is killed in between begins again.
        unfinished = partial.with_name(f"{partial.name}.d")
        remove_tree(unfinished)
        # Until the end of the unpacking both are on the disk: the archive and its content.
        packed = measure(partial, self._room.left)
        options = UnpackOptions(max_bytes=self._room.left - packed)
        unpack_confined(
            partial,
            unfinished,
            options,
            user=self._user,
            is_stopped=self._patience.is_over,
            check=self._room.check,
        )
        if takes_more(unfinished, self._room.left - packed):
            remove_tree(unfinished)
            raise FetchError(f"it takes more than {self._room.left - packed} bytes on the disk")
        self._room.spend(unfinished)
        unfinished.chmod(0o755)
        self._move(unfinished, parts)
        partial.unlink()

    def _move(self, source: Path, parts: list[str]) -> None:
        """Move a file or folder of this program's own to a path below the inputs."""
        try:
            with Folder.at(self._fetched) as fetched, Folder.at(self._folder) as inputs:
                fetched.move_below(source.name, inputs, parts)
        except OSError as error:
            raise _not_a_place(error) from None


def _not_a_place(error: OSError) -> Exception:
    """Return the error of a path that collides with other inputs of the buyer."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY):
        return FetchError("its path is taken by another input")
    return error


def _opened(target: Path) -> int:
    """Open a file to continue it. Return its descriptor."""
    try:
        return os.open(target, _FILE_FLAGS, 0o600)
    except PermissionError:
        # It was complete and read-only when the agent was killed.
        target.unlink()
        return os.open(target, _FILE_FLAGS, 0o600)


def fetch_file(
    web: Web,
    url: str,
    target: Path,
    digest: str,
    *,
    max_bytes: int,
    patience: Patience,
    check: Callable[[], None],
    is_strangers: bool = False,
) -> None:
    """Fetch a file with a known hash, behind the part that is there.

    It is incomplete if the patience of the attempt is over. `check` is called before each piece is
    written.

    Raises:
        FetchError: another file has come, a larger one, or none.
        LinkError: it may be tried again.
        RefusedError: the marketplace does not give it.
        OSError: this device cannot hold it.
    """
    with os.fdopen(_opened(target), "r+b") as file:
        hashed = hashlib.sha256()
        while data := file.read(READ_BYTES):
            hashed.update(data)
        offset = file.tell()
        if hashed.hexdigest() == digest:
            return
        if offset >= max_bytes:  # nothing that could still become right
            offset = 0
        is_over = patience.is_over
        with web.get(url, offset, is_strangers=is_strangers, is_stopped=is_over) as body:
            if body.offset != offset or not offset:
                offset = body.offset
                hashed = hashlib.sha256()
                file.truncate(0)
            if body.left is not None and offset + body.left > max_bytes:
                raise WrongFileError(f"it has more than {max_bytes} bytes")
            for piece in body.pieces():
                offset += len(piece)
                if offset > max_bytes:
                    file.truncate(0)
                    raise WrongFileError(f"it has more than {max_bytes} bytes")
                patience.came(len(piece))
                hashed.update(piece)
                check()
                file.write(piece)
                if is_over():
                    return
        if hashed.hexdigest() != digest:
            file.truncate(0)
            raise WrongFileError(f"its SHA-256 is {hashed.hexdigest()}, and should be {digest}")
        file.flush()
        os.fsync(file.fileno())
