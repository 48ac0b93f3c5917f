"""A container on trial: started with small limits, and looked at from outside while it waits.

An engine does not always follow its options: rootless podman on control groups v1 ignores limits
with a warning. So each wall is read back from the kernel.
"""

from __future__ import annotations

import io
import os
import platform
import re
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import WORK, Bounds, Finding
from proxyctl.worker.executors.bwrap import machine_code
from proxyctl.worker.executors.containers.engine import (
    PROBE_SECONDS,
    Engine,
    EngineError,
    call,
    remove,
)

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGE: Final = "localhost/proxyd-pause:1"
BOUNDS: Final = Bounds(
    cores=0.5, memory_bytes=64 << 20, disk_bytes=1 << 20, processes=32, seconds=60
)

_NAME: Final = re.compile(r"proxyd-trial-([0-9]{1,10})-[0-9]+")
_TRIES: Final = 100
# An engine that is killed is back after seconds; until it is, nothing can be removed.
_REMOVALS_MAX: Final = 15
_REMOVAL_SECONDS: Final = 1.0
_TRY_SECONDS: Final = 0.05
_GROUPS: Final = Path("/sys/fs/cgroup")
# Machine code that waits for signals for ever.
_WAITS: Final = {
    # pause(): mov eax, 34; syscall; jmp to the start
    "x86_64": bytes.fromhex("b822000000 0f05 ebf7"),
    # ppoll(NULL, 0, NULL, NULL): mov x0..x3, 0; mov x8, 73; svc 0; b to the start
    "aarch64": bytes.fromhex("000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17"),
}


def run(engine: Engine, folder: Path, create: Callable[[str, Bounds], None]) -> Finding:
    """Try an engine out.

    Args:
        engine: which.
        folder: the agent's; for the name of the container.
        create: makes a container of that name, of `IMAGE`, with those bounds.
    """
    name = f"proxyd-trial-{os.getpid()}-{abs(hash(folder)) % 1000}"
    try:
        problems = _problems(engine, name, create)
    except EngineError as error:
        problems = [str(error)]
    finally:
        try:
            _remove(engine, name)
        except SystemExit:  # the agent is to end; the signal comes only once
            _remove(engine, name)
            raise
    return Finding(
        id=f"{engine.name}-trial",
        is_met=not problems,
        actual="; ".join(problems) or "a container on trial was walled in as asked for",
        needed="a container that has every limit it is given",
        why="a job of a stranger could take all of this machine otherwise",
        remedy=f"see `{engine.name} info`, or choose another sandbox" if problems else "",
    )


def _remove(engine: Engine, name: str) -> None:
    """Remove it; if that fails, the next agent that is started here removes it."""
    for _ in range(_REMOVALS_MAX):
        with suppress(EngineError):
            remove(engine, name)
            return
        time.sleep(_REMOVAL_SECONDS)


def maker_of(name: str) -> int | None:
    """Return the process that tries a container of this name out; None if it is no such name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def _problems(engine: Engine, name: str, create: Callable[[str, Bounds], None]) -> list[str]:
    if platform.machine() not in _WAITS:
        return [f"nothing is known of processors of the kind {platform.machine()}"]
    add_image(engine)
    create(name, BOUNDS)
    call(engine, "start", name)
    pid = _pid(engine, name)
    if pid == 0:
        return ["a container on trial ended by itself"]
    return problems_of(pid, BOUNDS, engine.spare_processes())


def add_image(engine: Engine) -> None:
    """Add an image with a program that only waits to an engine.

    Raises:
        EngineError: it does not take it.
    """
    call(engine, "import", "-", IMAGE, data=pause_image(platform.machine()))


def _pid(engine: Engine, name: str) -> int:
    for _ in range(_TRIES):
        text = call(engine, "inspect", "--format", "{{.State.Pid}}", name, seconds=PROBE_SECONDS)
        if text.strip().isdigit() and int(text) > 0:
            return int(text)
        time.sleep(_TRY_SECONDS)
    return 0


def problems_of(pid: int, bounds: Bounds, spare_processes: int) -> list[str]:
    """Return the walls that a process lacks, as the kernel reports them."""
    problems = [
        f"{what} are not limited" if actual is None else f"the limit of {what} is {actual}"
        for what, needed, actual in (
            ("memory", bounds.memory_bytes, group_number(pid, "memory", *_MEMORY)),
            ("processes", bounds.processes + spare_processes, group_number(pid, "pids", *_PIDS)),
        )
        if actual is None or actual > needed
    ]
    share = _cores(pid)
    if share is None or share > bounds.cores * 1.01:
        problems.append(f"the limit of cores is {share}")
    return problems


_MEMORY: Final = ("memory.limit_in_bytes", "memory.max")
_PIDS: Final = ("pids.max", "pids.max")


def group_number(pid: int, controller: str, name_v1: str, name_v2: str) -> int | None:
    """Return a number that the control group of a process has, or None if it has none."""
    text = group_text(pid, controller, name_v1, name_v2)
    return int(text) if text.isdigit() else None


def group_text(pid: int, controller: str, name_v1: str, name_v2: str) -> str:
    """Return the text of a file of a process's control group; "" if it cannot be read."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/cgroup").read_text("ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return _read(_GROUPS / controllers / path[1:] / name_v1)
        return _read(_GROUPS / path[1:] / name_v2)
    return ""


def _cores(pid: int) -> float | None:
    both = group_text(pid, "cpu", "-", "cpu.max").split()
    quota = both or [
        group_text(pid, "cpu", "cpu.cfs_quota_us", "-"),
        group_text(pid, "cpu", "cpu.cfs_period_us", "-"),
    ]
    if len(quota) != 2 or not all(each.isdigit() for each in quota) or quota[1] == "0":
        return None
    return int(quota[0]) / int(quota[1])


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""


def pause_image(machine: str) -> bytes:
    """Return an image as a tar archive, with one small program that waits.

    Raises:
        KeyError: nothing is known of such processors.
    """
    content = machine_code.program(machine, _WAITS[machine])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo(WORK)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        program = tarfile.TarInfo("pause")
        program.size, program.mode = len(content), 0o755
        archive.addfile(program, io.BytesIO(content))
    return buffer.getvalue()
