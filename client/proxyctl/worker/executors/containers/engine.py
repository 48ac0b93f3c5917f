"""Container engines by their command line: the common part, and the interface to the rest.

Nothing goes through a shell, an engine's program gets an environment of a few names, and no call
of it is waited for without a limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from proxyctl.words import plain_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from proxyctl.worker.executors.base.base import Finding

CALL_SECONDS: Final = 60.0  # a loaded machine takes ten to make a container
PROBE_SECONDS: Final = 20.0  # for queries, which an engine answers in a moment
_MESSAGE_MAX_CHARACTERS: Final = 500
# The first words of docker's error when its daemon is not there, or has ended in the middle.
_NO_DAEMON: Final = (
    b"error during connect: ",
    b"Cannot connect to the Docker daemon",
    b"failed to connect to the docker API",
)

# Where an engine finds its own files and its owner's session. Nothing else of the agent's
# environment reaches it: engines hand their own variables (proxies, for instance) to the job.
_PASSED_ON: Final = (
    "HOME",
    "USER",
    "LOGNAME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
)
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


NO_DEVICES: Final = "/sys:ro,nosuid,nodev,noexec,size=64k"  # instead of the host's devices


class EngineError(Exception):
    """An engine could not do a request; the message is in its own words.

    Args:
        message: for a person.
        is_gone: it did not answer, or its program is not there.
    """

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone


@dataclass(frozen=True)
class Owner:
    """The owner of a job's files outside, and the options of an engine for that.

    Attributes:
        options: for `create`.
        uid: of the job's processes, as the kernel sees them.
        gid: of them.
        changes_owner: the folders of the attempt have to be given to that user first.
    """

    options: tuple[str, ...]
    uid: int
    gid: int
    changes_owner: bool


class Engine(Protocol):
    """The differences between engines."""

    name: str

    def command(self) -> tuple[str, ...]:
        """Return the engine's program with the options that go before its commands."""

    def environment(self) -> Mapping[str, str]:
        """Return the complete environment of its program."""

    def can_share_network(self) -> bool:
        """Return whether a container can be given the network of another, as a way out needs it."""

    def can_reach_ports(self) -> bool:
        """Return whether the agent can connect to ports on which a container listens."""

    def options(self, *, shows_devices: bool, has_network: bool = False) -> tuple[str, ...]:
        """Return the options of `create` that this engine alone has or needs.

        Args:
            shows_devices: leave /sys as it is, which libraries for GPUs need; else it is empty.
            has_network: it has the network of another container, whose options also hold for it.
        """

    def profile(self) -> dict[str, Any]:
        """Return the filter of system calls, as this engine reads it."""

    def owner(self) -> Owner:
        """Return the owner of a job's files."""

    def spare_processes(self) -> int:
        """Return how many processes and threads the sandbox itself needs in the job's group."""

    def needs(self) -> list[Finding]:
        """Return its needs, without starting a container."""

    def end_in_runtime(self, container: str) -> None:
        """End and remove a container in its runtime, even if the engine has forgotten it.

        Args:
            container: its identifier.
        """


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of an engine's program."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": _PATH, **kept, **(extra or {})}


def call(
    engine: Engine,
    *arguments: str,
    data: bytes = b"",
    stdin: Path | None = None,
    seconds: float = CALL_SECONDS,
) -> str:
    """Run one command of an engine, and return its output.

    Args:
        engine: which.
        arguments: the command and its own.
        data: for its standard input; small.
        stdin: a file for its standard input, instead.
        seconds: after which it is ended.

    Raises:
        EngineError: it failed, does not answer, or is not there.
    """
    argv = [*engine.command(), *arguments]
    try:
        with stdin.open("rb") if stdin is not None else tempfile.TemporaryFile() as file:
            if stdin is None:
                file.write(data)
                file.seek(0)
            done = _run(engine, argv, seconds, file)
    except subprocess.TimeoutExpired:
        message = f"{engine.name} {arguments[0]} did not end within {seconds:g} s"
        raise EngineError(message, is_gone=True) from None
    except OSError as error:
        message = f"{argv[0]} cannot be run: {error.strerror}"
        raise EngineError(message, is_gone=True) from None
    if done.returncode < 0:  # a signal says nothing about the request
        message = f"{engine.name} {arguments[0]} was ended by the signal {-done.returncode}"
        raise EngineError(message, is_gone=True)
    if done.returncode:
        # At the very beginning: further on it may be the words of an image, or of a job.
        is_gone = done.stderr.startswith(_NO_DAEMON)
        raise EngineError(_words(engine, done.stderr or done.stdout), is_gone=is_gone)
    return done.stdout.decode(errors="replace")


def remove(engine: Engine, name: str) -> None:
    """Remove a container immediately, with the volumes that no other container uses.

    Raises:
        EngineError: it is still there, or its state is unknown.
    """
    identifier = _identifier(engine, name)
    if not identifier:
        with suppress(EngineError):  # but podman may have storage for one that it does not know of
            call(engine, "rm", "--force", "--volumes", name)
        return
    with suppress(EngineError):  # it does not run; its end is not waited for
        call(engine, "kill", name, seconds=PROBE_SECONDS)
    engine.end_in_runtime(identifier)
    call(engine, "rm", "--force", "--volumes", name)


def _identifier(engine: Engine, name: str) -> str:
    """Return the identifier of a container; an empty text if the container does not exist."""
    text = call(
        engine,
        *("ps", "--all", "--no-trunc", "--filter", f"name=^{name}$"),
        *("--format", "{{.Names}} {{.ID}}"),
        seconds=PROBE_SECONDS,
    )
    lines = (line.split() for line in text.splitlines())
    return next((each[1] for each in lines if len(each) == 2 and each[0] == name), "")


def call_for_json(engine: Engine, *arguments: str, seconds: float = PROBE_SECONDS) -> Any:  # noqa: ANN401 - JSON
    """Run one command of an engine that prints JSON, and return the value.

    Raises:
        EngineError: it failed, or printed something else.
    """
    text = call(engine, *arguments, seconds=seconds)
    try:
        return json.loads(text)
    except ValueError:
        raise EngineError(f"{engine.name} {arguments[0]} did not print JSON") from None


def _run(
    engine: Engine, argv: Sequence[str], seconds: float, stdin: IO[bytes]
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 - no shell; each argument is one word
        argv,
        stdin=stdin,
        env=dict(engine.environment()),
        cwd="/",
        capture_output=True,
        timeout=seconds,
        check=False,
        start_new_session=True,
    )


def _words(engine: Engine, output: bytes) -> str:
    lines = [plain_line(each) for each in output.decode(errors="replace").splitlines()]
    said = [each for each in lines if each and "level=warning" not in each]
    return f"{engine.name}: {' '.join(said) or 'failed without a word'}"[:_MESSAGE_MAX_CHARACTERS]
