"""Measures the use of a container from outside while it runs."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.family import is_alive
from proxyctl.worker.executors.containers.engine import PROBE_SECONDS, EngineError, call
from proxyctl.worker.executors.containers.trial import group_text

if TYPE_CHECKING:
    from proxyctl.worker.executors.containers.engine import Engine

_LOOK_SECONDS: Final = 1.0  # the use since the last look is unknown after the end
_GONE_LOOKS: Final = 10  # at a container that is gone, before its client is given up
_STARTING_LOOKS: Final = 60  # the same before it is there; a busy engine takes seconds
_NANOSECONDS: Final = 10**9
_MICROSECONDS: Final = 10**6


@dataclass(frozen=True)
class Usage:
    """The use of a container at the last look; None for unreadable values."""

    cpu_seconds: float | None = None
    max_memory_bytes: int | None = None


class ContainerWatch:
    """A thread that looks at one container every second.

    Args:
        name: of the container.
        client: process of the client that is attached to it.
    """

    def __init__(self, engine: Engine, name: str, client: int) -> None:
        self.usage = Usage()
        self.has_ended_client = False  # since that did not see that the container was gone
        self._engine = engine
        self._name = name
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, and wait for that."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def has_client(self) -> bool:
        """Return whether the client that is attached still runs."""
        with suppress(OSError):
            return self._name.encode() in Path(f"/proc/{self._client}/cmdline").read_bytes()
        return False

    def _run(self) -> None:
        pid = looks = 0
        while not self._ended.wait(_LOOK_SECONDS):
            pid = pid or self._pid()
            if pid:
                self.usage = usage_of(pid, self.usage)
            # Whose monitor was killed would be waited for until its time is over.
            looks = 0 if pid and is_alive(Path("/proc", str(pid))) else looks + 1
            if looks > (_GONE_LOOKS if pid else _STARTING_LOOKS) and self.has_client():
                self.has_ended_client = True
                with suppress(ProcessLookupError):
                    os.kill(self._client, signal.SIGKILL)

    def _pid(self) -> int:
        try:
            text = call(
                *(self._engine, "inspect", "--format", "{{.State.Pid}}", self._name),
                seconds=PROBE_SECONDS,
            )
        except EngineError:
            return 0
        return int(text) if text.strip().isdigit() else 0


def usage_of(pid: int, before: Usage) -> Usage:
    """Return the use of a process's control group; the earlier values if the group is gone."""
    nanoseconds = group_text(pid, "cpuacct", "cpuacct.usage", "-")
    lines = dict(
        line.split() for line in group_text(pid, "cpu", "-", "cpu.stat").splitlines() if " " in line
    )
    microseconds = lines.get("usage_usec", "")
    memory = group_text(pid, "memory", "memory.max_usage_in_bytes", "memory.peak")
    cpu_seconds = before.cpu_seconds
    if nanoseconds.isdigit():
        cpu_seconds = int(nanoseconds) / _NANOSECONDS
    elif microseconds.isdigit():
        cpu_seconds = int(microseconds) / _MICROSECONDS
    max_memory_bytes = int(memory) if memory.isdigit() else before.max_memory_bytes
    return Usage(cpu_seconds, max_memory_bytes)
