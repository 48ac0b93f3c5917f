"""Starts the process that unpacks an archive (`unpacker.py`), and checks its work.

An archive may take that process over. So the agent bounds its time, ends it, inspects the folder,
and limits the effect of its answers: a missing wall counts only as the first answer, before the
process reads the archive.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import select
import signal
import subprocess
import tarfile
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxyctl.files import FileError
from proxyctl.words import plain_line, short_line
from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.base.programs import python
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.executors.base.base import Finding, TaskError
from proxyctl.worker.executors.base.ownership import FIRST_UID
from proxyctl.worker.executors.bwrap.bwrap import remedy_for_namespaces
from proxyctl.worker.files import unpacker
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions
from proxyctl.worker.files.inspection import inspect
from proxyctl.worker.files.room import NoRoomError, takes_more

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_logger = logging.getLogger("worker")

_OUTPUT_MAX_BYTES: Final = 64 << 10  # of each of its two streams
_LOGGED_CHARACTERS: Final = 2_000
# Signals that come from outside, such as those at the end of a session. The archive is at fault at
# every other signal, because a stranger could otherwise have the device blamed.
_FROM_OUTSIDE: Final = frozenset((signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT))
# Errors that the agent takes from the process once that has read the archive. A full disk is looked
# at.
_BELIEVED: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE))
_FULL_BYTES: Final = 64 << 20  # free on a disk at most, after an error for want of room
_FULL_FILES: Final = 1_000
_TRIES: Final = 2  # of a process that a signal from outside has ended
# The capabilities that root needs to hand a folder to another user, to become that user and to end
# its processes: CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL, CAP_SETGID and CAP_SETUID of
# capabilities(7).
_CAPABILITIES: Final = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7


@dataclass(frozen=True)
class UnpackTimes:
    """How long the process of an archive may take.

    Attributes:
        look_seconds: between two looks whether the archive is still wanted, and the disk has room.
            An archive that has taken the process over writes less than the reserve of the disk
            meanwhile.
        cpu_seconds: of the processor, and a second for each megabyte (`bytes_per_cpu_second`) of
            the archive. The slowest format (.bz2) takes a fifth of that on a small computer.
        bytes_per_cpu_second: see there.
        most_seconds: from start to end. The marketplace gives a device 30 minutes to begin with a
            job.
    """

    look_seconds: float = 0.1
    cpu_seconds: int = 300
    bytes_per_cpu_second: int = 1 << 20
    most_seconds: float = 1_500.0


USUAL: Final = UnpackTimes()


class _Watch(NamedTuple):
    """Reasons to end the process early; see `unpack_confined`."""

    is_stopped: Callable[[], bool]
    check: Callable[[], None]
    times: UnpackTimes = USUAL


_UNWATCHED: Final = _Watch(lambda: False, lambda: None)  # for an archive of the agent's own


class _SignalError(Exception):
    """A signal from outside has ended the process."""


def unpack_confined(
    archive: Path,
    folder: Path,
    options: UnpackOptions,
    *,
    user: int,
    is_stopped: Callable[[], bool],
    check: Callable[[], None],
    times: UnpackTimes = USUAL,
) -> int:
    """Unpack an archive into a new folder; remove the folder after a failure.

    Args:
        archive: a file of the agent's own.
        folder: does not exist yet; its content belongs to the agent's user afterwards.
        options: bounds and rights.
        user: that the process is, where root runs the agent.
        is_stopped: says whether to give up.
        check: raises `NoRoomError` if the disk has too little room; called while it goes on.
        times: how long it may take.

    Returns:
        The bytes of all files together.

    Raises:
        ArchiveError: the archive is not accepted, or not wanted any more.
        NoRoomError: of `check`, with no more on the disk than the archive may have.
        OSError: this device cannot store the files.
        TaskError: this device cannot confine such a process.
    """
    for tries_left in reversed(range(_TRIES)):
        folder.mkdir(mode=0o700)
        try:
            return _unpack(archive, folder, options, user, _Watch(is_stopped, check, times))[0]
        except _SignalError as error:
            _remove(folder)
            if not tries_left:
                raise OSError(errno.EIO, str(error)) from None
        except (NoRoomError, OSError):
            is_too_much = takes_more(folder, options.max_bytes)
            _remove(folder)
            if is_too_much:  # it has filled the disk itself
                raise ArchiveError(f"it takes more than {options.max_bytes} bytes") from None
            raise
        except BaseException:
            _remove(folder)
            raise
    raise AssertionError("the last try returns or raises")


def _unpack(
    archive: Path, folder: Path, options: UnpackOptions, user: int, watch: _Watch
) -> tuple[int, dict[str, Any]]:
    """Unpack an archive once. Return the bytes of its files, and the walls around the process."""
    with Folder.at(folder) as target, archive.open("rb") as file:
        given_to = _hand_over(target, user)
        answers = _run(file, target, options, given_to, watch)
        if unpacker.DONE not in answers:
            raise _error_of(answers, target)
        owner = None if given_to is None else (os.geteuid(), os.getegid())
        return inspect(target, options.max_bytes, owner), answers[unpacker.WALLS]


def _remove(folder: Path) -> None:
    with suppress(FileError):  # it goes with the folder of the attempt
        remove_tree(folder)


def check(folder: Path | None) -> Finding:
    """Unpack a small archive. Return the walls of the process as a finding.

    Args:
        folder: of the agent; None before it exists.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("folder/empty"))
    is_met, remedy = False, ""
    try:
        with tempfile.TemporaryDirectory(prefix="unpack-", dir=folder) as place:
            archive, target = Path(place) / "archive.tar", Path(place) / "content"
            archive.write_bytes(buffer.getvalue())
            target.mkdir(mode=0o700)
            options = UnpackOptions(max_bytes=1)
            _, walls = _unpack(archive, target, options, FIRST_UID, _UNWATCHED)
        actual, is_met = _words_of(walls), True
    except TaskError as error:
        actual = str(error)
        remedy = remedy_for_namespaces(actual)
    except (OSError, ArchiveError, _SignalError) as error:
        actual = str(error)
    return Finding(
        id="unpacking",
        is_met=is_met,
        actual=actual,
        needed="Landlock (Linux 5.13), or user namespaces for ordinary users",
        why="archives of strangers are unpacked by a process that can change nothing else; "
        "jobs that need one are refused without it",
        remedy=remedy,
    )


def _run(
    archive: io.BufferedReader,
    folder: Folder,
    options: UnpackOptions,
    user: int | None,
    watch: _Watch,
) -> dict[str, Any]:
    """Run the process, as a user or as the agent's own. Return its answers, by name.

    Raises:
        ArchiveError: the archive has crashed it, takes too long, or is not wanted any more.
        _SignalError: a signal from outside has ended it.
    """
    size, times = os.fstat(archive.fileno()).st_size, watch.times
    request = {
        "folder": folder.descriptor,
        "parent": os.getpid(),
        "user": user,
        "bounds": {
            "file_bytes": options.max_bytes,
            "cpu_seconds": times.cpu_seconds + size // times.bytes_per_cpu_second,
        },
        "options": asdict(options),
    }
    with _started(json.dumps(request), archive.fileno(), folder.descriptor) as process:
        out, err = _read(process, watch)
    if err:
        text = plain_line(err.decode(errors="replace"))
        _logger.warning("unpacker: %s", text[-_LOGGED_CHARACTERS:])
    answers = _answers_of(out)
    if answers.keys() & {unpacker.DONE, unpacker.REFUSED, unpacker.FAILED}:
        return answers
    number = -process.returncode
    if number in _FROM_OUTSIDE:
        raise _SignalError(f"signal {number} has ended the process that unpacks archives")
    if unpacker.WALLS in answers:
        reason = f"signal {number}" if number > 0 else "no answer"
        raise ArchiveError(f"it is broken, or takes too much: {reason} at the end of the unpacking")
    return answers


def _hand_over(folder: Folder, user: int) -> int | None:
    """Make a user the owner of a folder. Return None if the agent is not root, or may not."""
    if os.geteuid() != 0 or _capabilities() & _CAPABILITIES != _CAPABILITIES:
        return None
    try:
        os.fchown(folder.descriptor, user, user)
    except OSError as error:
        # Root of a user namespace that has no such user, or of a file system without owners.
        if error.errno in (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP):
            return None
        raise
    return user


def _capabilities() -> int:
    """Return the effective capabilities of this process, a bit each."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


@contextmanager
def _started(request: str, archive: int, folder: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process, and end it afterwards."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        [*python("proxyctl.worker.files.unpacker"), request],
        stdin=archive,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(folder,),
        cwd="/",
        env={},
        start_new_session=True,  # a Ctrl-C for the agent is not for it
    )
    try:
        yield process
    finally:
        try:
            process.kill()  # harmless once it has ended
        finally:
            process.wait()
            for stream in (process.stdout, process.stderr):
                assert stream is not None  # noqa: S101 - both were asked for
                stream.close()


def _read(process: subprocess.Popen[bytes], watch: _Watch) -> tuple[bytes, bytes]:
    """Return the output of a process on its two streams until it closes the first one."""
    assert process.stdout is not None  # noqa: S101 - as above
    assert process.stderr is not None  # noqa: S101 - as above
    out, err = process.stdout.fileno(), process.stderr.fileno()
    streams = {out: b"", err: b""}
    poll = select.poll()  # select() takes no descriptor above 1,023
    for descriptor in streams:
        poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + watch.times.most_seconds
    while True:
        for descriptor, _ in poll.poll(watch.times.look_seconds * 1000):
            data = os.read(descriptor, _OUTPUT_MAX_BYTES)
            streams[descriptor] += data
            if not data or len(streams[descriptor]) > _OUTPUT_MAX_BYTES:
                poll.unregister(descriptor)
                if descriptor == out:
                    return streams[out], streams[err]
        watch.check()
        if watch.is_stopped():
            raise ArchiveError("it was cancelled")
        if time.monotonic() > deadline:
            raise ArchiveError(f"it takes more than {watch.times.most_seconds:.0f} seconds")


def _answers_of(output: bytes) -> dict[str, Any]:
    """Return the answers of the process: the first one, and one more if it was confined."""
    answers: dict[str, Any] = {}
    for line in output.split(b"\n")[:2]:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(answer, dict) or len(answer) != 1:
            break
        name, value = next(iter(answer.items()))
        is_first = name in (unpacker.WALLS, unpacker.UNCONFINED)
        if is_first != (not answers):
            break
        answers[name] = value
        if name == unpacker.UNCONFINED:
            break
    return answers


def _error_of(answers: dict[str, Any], folder: Folder) -> Exception:
    """Return the error of answers without `DONE`; the archive may have chosen the last one."""
    if unpacker.UNCONFINED in answers:
        words = short_line(str(answers[unpacker.UNCONFINED]))
        return TaskError("refused", f"an archive cannot be unpacked safely: {words}")
    if unpacker.REFUSED in answers:
        words = answers[unpacker.REFUSED]
        return ArchiveError(short_line(words) if isinstance(words, str) else "it is broken")
    answer = answers.get(unpacker.FAILED)
    number = next((each for each in _BELIEVED if each == answer), 0)
    if number and (number != errno.ENOSPC or _is_full(folder)):
        return OSError(number, os.strerror(number))
    if unpacker.FAILED in answers:
        return ArchiveError("it is broken: the unpacking has failed")
    return OSError(errno.EIO, "the process that unpacks archives has ended early")


def _is_full(folder: Folder) -> bool:
    """Return whether the disk of a folder has hardly any room, or room for files."""
    disk = os.fstatvfs(folder.descriptor)
    has_few_files = disk.f_files > 0 and disk.f_favail < _FULL_FILES
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or has_few_files


def _words_of(walls: object) -> str:
    fields = walls if isinstance(walls, dict) else {}
    parts = [
        "a root directory of its own" if fields.get("root") else "",
        f"Landlock {fields.get('landlock')}" if fields.get("landlock") else "",
        "no network" if fields.get("network") else "",
        "a filter of system calls",
    ]
    return ", ".join(each for each in parts if each)
