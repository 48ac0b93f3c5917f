"""Starts the process that unpacks an archive (`unpacker.py`), and checks its answer."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import signal
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxyctl.files import FileError
from proxyctl.worker.beneath import Folder
from proxyctl.worker.executors.base import Finding, TaskError
from proxyctl.worker.executors.ownership import FIRST_UID, give_away
from proxyctl.worker.files import unpacker
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions
from proxyctl.worker.files.outputs import shown
from proxyctl.worker.programs import python
from proxyctl.worker.scratch import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOK_SECONDS: Final = 0.2  # between two looks whether the archive is still wanted
_ANSWER_MAX_BYTES: Final = 64 << 10
_FINDING: Final = "unpacking"


def unpack_confined(
    archive: Path,
    folder: Path,
    options: UnpackOptions,
    *,
    user: int,
    is_stopped: Callable[[], bool],
) -> int:
    """Unpack an archive into a new folder; remove the folder after a failure.

    Args:
        archive: a file of the agent's own.
        folder: does not exist yet; its content belongs to the agent's user afterwards.
        options: bounds and rights.
        user: that the process is, where root runs the agent.
        is_stopped: says whether to give up.

    Returns:
        The bytes of all files together.

    Raises:
        ArchiveError: the archive is not accepted, or not wanted any more.
        OSError: this device cannot store the files.
        TaskError: this device cannot confine such a process.
    """
    folder.mkdir(mode=0o700)
    try:
        answer = _answer_of(archive, folder, options, user, is_stopped)
        size = answer.get(unpacker.SIZE)
        if not isinstance(size, int) or not 0 <= size <= options.max_bytes:
            raise _error_of(answer)
        if os.geteuid() == 0:
            give_away(folder, os.geteuid(), os.getegid())
    except BaseException:
        with suppress(FileError):  # it goes with the folder of the attempt
            remove_tree(folder)
        raise
    return size


def check(folder: Path | None) -> Finding:
    """Unpack a small archive. Return the walls of the process as a finding.

    Args:
        folder: of the agent; None before there is one.
    """
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    try:
        with tempfile.TemporaryDirectory(prefix="unpack-", dir=folder) as place:
            archive = Path(place) / "archive.tar"
            archive.write_bytes(made.getvalue())
            target = Path(place) / "content"
            target.mkdir(mode=0o700)
            options = UnpackOptions(max_bytes=1)
            answer = _answer_of(archive, target, options, FIRST_UID, lambda: False)
        is_met = unpacker.WALLS in answer
        actual = _words_of(answer[unpacker.WALLS]) if is_met else str(_error_of(answer))
    except (OSError, TaskError) as error:
        actual, is_met = str(error), False
    return Finding(
        id=_FINDING,
        is_met=is_met,
        actual=actual,
        needed="Landlock (Linux 5.13), or user namespaces for ordinary users",
        why="archives of strangers are unpacked by a process that can reach nothing else; "
        "jobs that need one are refused without it",
        remedy="" if is_met else "sudo sysctl -w kernel.unprivileged_userns_clone=1",
    )


def _answer_of(
    archive: Path,
    folder: Path,
    options: UnpackOptions,
    user: int,
    is_stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Run the process. Return its answer, empty if that is not an object of JSON."""
    with Folder.at(folder) as target, archive.open("rb") as file:
        request = {
            "folder": target.descriptor,
            "parent": os.getpid(),
            "user": _given(target, user),
            "options": asdict(options),
        }
        with _started(json.dumps(request), file.fileno(), target.descriptor) as process:
            said = _read(process, is_stopped)
    code = process.returncode
    if code < 0 and code != -signal.SIGKILL:  # a fault of a library that the archive has found
        raise ArchiveError(f"it is broken: the unpacker ended by signal {-code}")
    try:
        answer = json.loads(said)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {}


def _given(folder: Folder, user: int) -> int | None:
    """Make a user the owner of a folder. Return None if the agent is not root, or may not."""
    if os.geteuid() != 0:
        return None
    try:
        os.fchown(folder.descriptor, user, user)
    except PermissionError:  # root of a container without that capability, or of a shared disk
        return None
    return user


@contextmanager
def _started(request: str, archive: int, folder: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: S603 - our own program
        [*python("files.unpacker"), request],
        stdin=archive,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(folder,),
        cwd="/",
        env={},
    )
    try:
        yield process
    finally:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        process.stdout.close()
        process.kill()  # harmless once it has ended
        process.wait()


def _read(process: subprocess.Popen[bytes], is_stopped: Callable[[], bool]) -> bytes:
    """Return the output of a process until it closes that, bounded in length."""
    assert process.stdout is not None  # noqa: S101 - it was asked for
    said = b""
    while len(said) < _ANSWER_MAX_BYTES:
        if select.select([process.stdout], [], [], _LOOK_SECONDS)[0]:
            data = os.read(process.stdout.fileno(), _ANSWER_MAX_BYTES)
            if not data:
                break
            said += data
        if is_stopped():
            raise ArchiveError("it is not wanted any more")
    return said


def _error_of(answer: dict[str, Any]) -> Exception:
    """Return the error of an answer; a stranger's archive may have had a say in its words."""
    if unpacker.REFUSED in answer:
        return ArchiveError(shown(str(answer[unpacker.REFUSED])))
    if unpacker.UNCONFINED in answer:
        words = shown(str(answer[unpacker.UNCONFINED]))
        return TaskError("refused", f"an archive cannot be unpacked safely: {words}")
    failed = answer.get(unpacker.FAILED)
    if isinstance(failed, list) and failed and isinstance(failed[0], int):
        return OSError(failed[0], os.strerror(failed[0]))
    return OSError(errno.EIO, "the process that unpacks archives has ended early")


def _words_of(walls: object) -> str:
    fields = walls if isinstance(walls, dict) else {}
    parts = [
        "a root directory of its own" if fields.get("root") else "",
        f"Landlock {fields.get('landlock')}" if fields.get("landlock") else "",
        "no network" if fields.get("network") else "",
        "a filter of system calls",
    ]
    return ", ".join(each for each in parts if each)
