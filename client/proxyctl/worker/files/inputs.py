"""The inputs of a job: fetched by the agent, checked, and laid where the job can only read them.

A job has no network of its own for this, and what others have put somewhere is not trusted either:
it has the size and the hash that the buyer named, or the job does not begin. What is half fetched
goes on where it stopped, also with the next agent.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, Final

from proxyctl.protocol.jobspec import SpecError, check_path
from proxyctl.worker.executors.base import TaskError
from proxyctl.worker.files.archives import ArchiveError, Unpacking, unpack
from proxyctl.worker.files.outputs import shown
from proxyctl.worker.files.web import FetchError
from proxyctl.worker.link import LinkError, RefusedError
from proxyctl.worker.scratch import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.worker.files.web import Web

INPUT: Final = "input"  # whose fault it is that a job cannot begin
# Of a file whose size is not known before; as much as the marketplace keeps of one.
FILE_MAX_BYTES: Final = 5 << 30
# Others' servers may be down for a moment; a job does not wait for them for long.
STRANGERS_TRIES: Final = 3
READ_BYTES: Final = 1 << 20
PARTIAL: Final = ".part-"


class Inputs:
    """Fetches the inputs of one attempt.

    Args:
        web: fetches files.
        folder: where the inputs go.
        max_bytes: of all inputs together, unpacked ones included.
        is_stopped: says whether nobody wants them any more.
    """

    def __init__(
        self, web: Web, folder: Path, *, max_bytes: int, is_stopped: Callable[[], bool]
    ) -> None:
        self._web = web
        self._folder = folder
        self._left = max_bytes
        self._is_stopped = is_stopped

    def fetch(self, given: list[dict[str, Any]]) -> None:
        """Fetch all; what is there already is not fetched again.

        Args:
            given: `inputs` of what the marketplace has given.

        Raises:
            TaskError: one cannot be had.
            LinkError: it may be tried again.
            RefusedError: the marketplace does not give one.
        """
        for each in given:
            if self._is_stopped():
                return
            try:
                self._fetch(each)
            except (FetchError, ArchiveError) as error:
                message = f"the input {shown(str(each.get('name')))}: {error}"
                raise TaskError(INPUT, message) from None
            except OSError as error:
                raise TaskError("host", f"an input cannot be kept: {error.strerror}") from None

    def _fetch(self, each: dict[str, Any]) -> None:
        path, digest = str(each.get("path") or each["name"]), str(each["sha256"])
        try:
            check_path("path", path)
        except SpecError as error:
            raise FetchError(f"its path cannot be used: {error.message}") from None
        target = self._folder / path
        partial = self._folder / f"{PARTIAL}{digest}"
        if target.exists():  # it was completed, and its size counts
            if not each.get("unpack"):
                self._count(target.stat().st_size)
            return
        if each.get("url"):
            self._fetch_from_others(str(each["url"]), partial, digest)
        else:
            url = f"/api/worker/artifacts/{each['artifact_id']}"
            fetch_file(
                self._web,
                url,
                partial,
                digest,
                max_bytes=min(int(each["size_bytes"]), self._left),
                is_stopped=self._is_stopped,
            )
        if self._is_stopped():
            return
        self._place(partial, target, is_archive=bool(each.get("unpack")))

    def _fetch_from_others(self, url: str, partial: Path, digest: str) -> None:
        tries = STRANGERS_TRIES
        while not self._is_fetched_from_others(url, partial, digest, is_last=tries == 1):
            tries -= 1

    def _is_fetched_from_others(
        self, url: str, partial: Path, digest: str, *, is_last: bool
    ) -> bool:
        """Try once; False if it may be tried again."""
        try:
            fetch_file(
                self._web,
                url,
                partial,
                digest,
                max_bytes=min(FILE_MAX_BYTES, self._left),
                is_stopped=self._is_stopped,
                is_strangers=True,
            )
        except (LinkError, RefusedError) as error:
            if is_last:
                raise FetchError(str(error)) from None
            return False
        return True

    def _place(self, partial: Path, target: Path, *, is_archive: bool) -> None:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not is_archive:
            self._count(partial.stat().st_size)
            partial.chmod(0o444)
            partial.rename(target)
            return
        # Under another name until it is whole: an agent that is killed in between begins again.
        unfinished = partial.with_name(f"{partial.name}.d")
        remove_tree(unfinished)
        unpacking = Unpacking(unfinished, self._left, is_stopped=self._is_stopped)
        unpack(partial, unpacking)
        self._count(unpacking.size_bytes)
        unfinished.rename(target)
        partial.unlink()

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise FetchError("the inputs have more bytes than this job may have on the disk")


def fetch_file(
    web: Web,
    url: str,
    target: Path,
    digest: str,
    *,
    max_bytes: int,
    is_stopped: Callable[[], bool],
    is_strangers: bool = False,
) -> None:
    """Fetch a file of which the hash is known, going on behind what is there of it.

    It is incomplete if it was stopped.

    Raises:
        FetchError: it is not that file, too large, or cannot be had.
        LinkError: it may be tried again.
        RefusedError: the marketplace does not give it.
        OSError: this device cannot hold it.
    """
    with target.open("a+b") as file:
        file.seek(0)
        hashed = hashlib.sha256()
        while data := file.read(READ_BYTES):
            hashed.update(data)
        offset = file.tell()
        if hashed.hexdigest() == digest:
            return
        if offset >= max_bytes:  # nothing that could still become right
            offset = 0
        with web.get(url, offset, is_strangers=is_strangers) as body:
            if body.offset != offset or not offset:
                offset = body.offset
                hashed = hashlib.sha256()
                file.truncate(0)
            if body.left is not None and offset + body.left > max_bytes:
                raise FetchError(f"it has more than {max_bytes} bytes")
            for piece in body.pieces():
                offset += len(piece)
                if offset > max_bytes:
                    file.truncate(0)
                    raise FetchError(f"it has more than {max_bytes} bytes")
                hashed.update(piece)
                file.write(piece)
                if is_stopped():
                    return
        if hashed.hexdigest() != digest:
            file.truncate(0)
            raise FetchError(f"its SHA-256 is {hashed.hexdigest()}, and should be {digest}")
        file.flush()
        os.fsync(file.fileno())
