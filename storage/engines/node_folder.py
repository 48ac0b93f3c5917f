"""The folder beside an SQLite database in which the processes meet that share it.

It lies at `DATABASE.nodes`, is its owner's alone, and holds for each node a named pipe (fifo(7))
that this node alone reads:

- A notice is a line that is written into the pipe of every node. At most `PIPE_BUF` bytes are
  written at once, so that lines of several writers never mix. Opening and writing never block.
- Where a pipe is full, a file beside it (`.missed`) says that notices were lost; its node then
  reads the missed changes from the database.
- A pipe without a reader cannot be opened for writing (ENXIO): so the others see at once that a
  process has ended, however it did. A pipe that is missing says nothing: an operator may have
  removed it, and its node may live.

The locks of the sweeper, of writers and of openers of the database are also files there.
"""

import fcntl
import logging
import os
import select
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import ENOENT, ENXIO
from pathlib import Path
from typing import NamedTuple

from storage.engines.errors import CannotOpenError

# Some 2,500 notices, so that a node that stands still for seconds loses none; and a small part of
# the memory for all of a user's pipes (fs.pipe-user-pages-soft, 64 MiB), which bulk transfers need.
PIPE_BYTES = 256 * 1024

_PIPE = ".pipe"
_MISSED = ".missed"
_logger = logging.getLogger("node")


class Presence(NamedTuple):
    """State of nodes, as their pipes show it; a node without a pipe is in neither set."""

    living: frozenset[str]
    ended: frozenset[str]


class NodeFolder:
    """See above.

    Args:
        database: the file that is shared.
    """

    def __init__(self, database: Path) -> None:
        self.path = Path(f"{database}.nodes")
        self.sweeper = self.path / "sweeper"
        # As they were found last: a process that has no descriptor left cannot look.
        self._pipes: Sequence[Path] = ()

    @property
    def known(self) -> int:
        """The number of nodes at the last look."""
        return len(self._pipes)

    def make(self) -> None:
        """Make the folder if it is missing.

        Raises:
            CannotOpenError: it cannot be made.
        """
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CannotOpenError(f"{self.path}: {error.strerror or error}") from error

    # --- pipes -----------------------------------------------------------------------------------

    def open_pipe(self, node_id: str) -> int:
        """Create the pipe of a node and open it; return its descriptor for reading notices.

        Raises:
            OSError: it cannot be made.
        """
        pipe, draft = self._pipe(node_id), self.path / f".{node_id}"
        draft.unlink(missing_ok=True)  # of an attempt that failed; a node's name is its own
        os.mkfifo(draft, 0o600)
        try:
            # It gets its name once it is read: under its name, a pipe without a reader belongs to a
            # dead node. Opened for both, so that it never ends while no other process writes.
            descriptor = os.open(draft, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                draft.rename(pipe)
            except OSError:
                os.close(descriptor)
                raise
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:  # this user's pipes hold as much as they may: it is of 64 KiB, or a page
            _logger.warning("the pipe of node %s is small", node_id)
        return descriptor

    def is_pipe_of(self, node_id: str, descriptor: int) -> bool:
        """Return whether others find the pipe that a node reads."""
        try:
            return os.path.samestat(self._pipe(node_id).stat(), os.fstat(descriptor))
        except OSError:
            return False

    def remove_pipe(self, node_id: str) -> None:
        """Remove a node's pipe, and the note of missed notices."""
        self._pipe(node_id).unlink(missing_ok=True)
        self._missed(node_id).unlink(missing_ok=True)

    def look(self) -> "Presence":
        """Return the nodes with a process, and the nodes whose process left its pipe behind."""
        living, ended = set(), set()
        for pipe in self._find_pipes():
            try:
                os.close(_open_to_write(pipe))
            except OSError as error:
                if error.errno == ENXIO:
                    ended.add(pipe.stem)
            else:
                living.add(pipe.stem)
        return Presence(frozenset(living), frozenset(ended))

    # --- notices ---------------------------------------------------------------------------------

    def post(self, texts: Sequence[str]) -> None:
        """Send notices to every node, and never wait; called by any thread.

        A notice that cannot be sent is noted for the node that misses it.
        """
        chunks = tuple(_chunks(texts))
        for pipe in self._find_pipes():
            try:
                descriptor = _open_to_write(pipe)
            except OSError as error:
                if error.errno not in (ENOENT, ENXIO):  # its process lives, and got nothing
                    self._note_missed(pipe.stem)
                continue
            try:
                for chunk in chunks:
                    os.write(descriptor, chunk)
            except BrokenPipeError:
                _logger.debug("node %s ended before the notices arrived", pipe.stem)
            except OSError:  # the pipe is full
                self._note_missed(pipe.stem)
                # It may have been emptied before the note was there. Now its reader is woken by
                # this, or it has still to read, and finds the note then.
                with suppress(OSError):
                    os.write(descriptor, b"\n")
            finally:
                os.close(descriptor)

    def take_missed(self, node_id: str) -> bool:
        """Return whether a node has missed notices since the last call."""
        try:
            self._missed(node_id).unlink()
        except OSError:
            return False
        return True

    def _note_missed(self, node_id: str) -> None:
        """Note it without a descriptor: there may be none left."""
        try:
            os.mknod(self._missed(node_id), stat.S_IFREG | 0o600)
        except FileExistsError:
            pass
        except OSError as error:
            _logger.error("node %s: notices lost: %s", node_id, error)

    # --- locks -----------------------------------------------------------------------------------

    def open_lock(self, name: str, *, create: bool = True) -> int:
        """Open the file of a lock, or `create` it; return its descriptor.

        Raises:
            OSError: it cannot be opened.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(self.path / name, flags, 0o600)

    # --- names -----------------------------------------------------------------------------------

    def _find_pipes(self) -> Sequence[Path]:
        try:
            self._pipes = [each for each in self.path.iterdir() if each.suffix == _PIPE]
        except OSError as error:
            _logger.warning("%s cannot be read: %s", self.path, error.strerror)
        return self._pipes

    def _pipe(self, node_id: str) -> Path:
        return self.path / f"{node_id}{_PIPE}"

    def _missed(self, node_id: str) -> Path:
        return self.path / f"{node_id}{_MISSED}"


def checked(text: str) -> str:
    """Return a notice that can be sent.

    Raises:
        ValueError: it has several lines, or more bytes than one write takes.
    """
    if "\n" in text or len(text.encode()) >= select.PIPE_BUF:
        raise ValueError("a notice is one line, shorter than one write to a pipe")
    return text


def lock_within(seconds: float, descriptor: int, *, step_seconds: float) -> bool:
    """Lock an open file; False when another process has it for all that time.

    It is tried again and again, because flock(2) itself knows no limit.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(step_seconds)
        else:
            return True


def _open_to_write(pipe: Path) -> int:
    return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _chunks(texts: Sequence[str]) -> Iterator[bytes]:
    """Join notices into the fewest pieces that are short enough for one atomic write each."""
    chunk = b""
    for text in texts:
        line = text.encode() + b"\n"
        if len(chunk) + len(line) > select.PIPE_BUF:
            yield chunk
            chunk = b""
        chunk += line
    yield chunk
