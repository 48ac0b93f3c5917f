"""Files of a job on their way to the buyer: hashed, announced, sent, and finished.

Whole files are not sent again, and partial files go on: so all of this may be done again after it
broke off anywhere.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import time
from typing import IO, TYPE_CHECKING, Any, Final

from proxyctl.words import plain_line
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.files.outputs import NotTakenError
from proxyctl.worker.files.web import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyctl.worker.base.link import Link
    from proxyctl.worker.files.web import Web

READ_BYTES: Final = 1 << 20
FINISH_SECONDS: Final = 300.0  # the marketplace hashes 5 GiB again if it was restarted meanwhile
# Refusals of one file; all others are of the attempt. Its buyer may delete a file that is being
# sent: as a failure of the device that would be a way to have the work for nothing.
_OF_THE_FILE: Final = frozenset(
    (
        "artifact_too_large",
        "artifact_quota_exceeded",
        "artifact_mismatch",
        "artifact_not_found",
        "invalid_field",
    )
)


class StoppedError(LinkError):
    """Error of an upload whose result is not wanted any more."""


class Uploader:
    """Sends the files of one attempt.

    Args:
        is_stopped: returns whether the files are not wanted any more.

    Attributes:
        deadline: after which no file is taken (`time.monotonic`).
    """

    def __init__(
        self, link: Link, web: Web, job_id: str, attempt: int, is_stopped: Callable[[], bool]
    ) -> None:
        self._link = link
        self._web = web
        self._job_id = job_id
        self._attempt = attempt
        self._is_stopped = is_stopped
        self.deadline = math.inf

    def send(self, name: str, opener: Callable[[], IO[bytes]], kind: str = "output") -> None:
        """Send a file.

        Args:
            name: of the file, for the buyer.
            opener: opens it; called twice.
            kind: "output" or "checkpoint".

        Raises:
            NotTakenError: it cannot be read, changes, or is not taken; the others may be.
            LinkError: it may be tried again.
            RefusedError: nothing of this attempt is taken any more.
        """
        self._require_wanted()
        size, digest = self._digest(opener)
        fields = {
            "attempt": self._attempt,
            "name": name,
            "size_bytes": size,
            "sha256": digest,
            "kind": kind,
        }
        try:
            reply = self._link.post(f"/api/worker/jobs/{self._job_id}/artifacts", fields)
            etags = self._send_all(reply, opener, size)
            if etags is None:
                return
            self._link.post(
                f"/api/worker/artifacts/{reply['artifact_id']}/done",
                {"sha256": digest, **({"etags": etags} if etags else {})},
                seconds=FINISH_SECONDS,
            )
        except RefusedError as error:
            if error.code in _OF_THE_FILE:
                raise NotTakenError(f"the marketplace does not take it: {error}") from None
            raise
        except FetchError as error:
            raise NotTakenError(
                f"the marketplace sends it to where it cannot go: {error}"
            ) from None

    def send_text(self, name: str, text: str) -> None:
        """Send a short text as a file; raises as `send`."""
        self.send(name, lambda: io.BytesIO(text.encode()))

    def _send_all(
        self, reply: dict[str, Any], opener: Callable[[], IO[bytes]], size: int
    ) -> list[str] | None:
        """Send the missing bytes; return the tags of parts, None if the file is complete."""
        try:
            if "parts" in reply:
                return [
                    self._send_part(each, opener, int(each["offset"]), int(each["size_bytes"]))
                    for each in reply["parts"]
                ]
            if "upload" not in reply:
                return None
            upload, offset = reply["upload"], int(reply["offset"])
            if str(upload["url"]).startswith("/"):
                upload = {**upload, "url": f"{upload['url']}?offset={offset}"}
            self._send_part(upload, opener, offset, size - offset)
        except (KeyError, TypeError, ValueError) as error:
            raise LinkError("the marketplace says where to send a file, but not how") from error
        return []

    def _require_wanted(self) -> None:
        """Check that the file is still wanted, and that time is left to send it."""
        if self._is_stopped():
            raise StoppedError("the upload was cancelled")
        if time.monotonic() > self.deadline:
            raise NotTakenError("there is no time left to send it")

    def _send_part(
        self, request: dict[str, Any], opener: Callable[[], IO[bytes]], offset: int, size: int
    ) -> str:
        with opener() as file:
            file.seek(offset)

            def read(most: int) -> bytes:
                self._require_wanted()
                return file.read(most)

            headers = {
                str(name): plain_line(str(value)) for name, value in request["headers"].items()
            }
            return self._web.put(str(request["url"]), headers, read, size)

    def _digest(self, opener: Callable[[], IO[bytes]]) -> tuple[int, str]:
        """Return size and hash; never more is read than the file had when it was opened."""
        digest, size = hashlib.sha256(), 0
        with opener() as file:
            most = _size_of(file)
            while data := file.read(READ_BYTES):
                size += len(data)
                if size > most:
                    raise NotTakenError("it grew while it was read")
                digest.update(data)
                self._require_wanted()
        if size < most:
            raise NotTakenError("it became shorter while it was read")
        return size, digest.hexdigest()


def _size_of(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size
