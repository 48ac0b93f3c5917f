"""A program of its own: runs an engine's client, and ends the container when the client is gone.

A container is no child of the client that shows its output, and would outlive it. So a guard is
left beside the client: the kernel sends it a signal when the client has ended, for any reason, and
the guard then ends the container as well. The client in its turn is killed with the supervisor that
has started it. The guard ends the container when its time is over, even if no other process is
there to do so.

    python -m proxyctl.worker.executors.containers.guarded 'PLAN' CLIENT...

The plan is JSON: `seconds` after which it is ended, the container's `name`, the `engine`'s program
with its options, `mark` and `gate`. `mark` is a file that is made if the container did not end by
itself. `gate` is a descriptor or null: the client begins after a byte from it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_LOOK_SECONDS: Final = 1.0
_DESCRIPTORS: Final = (
    4096  # more than a client was given; the limit itself may be a thousand million
)
_CALL_SECONDS: Final = 60.0
# A container whose start was under way may still begin to run: an engine takes this time at most.
_STARTING_SECONDS: Final = 15.0
# An engine that was ended for an update is back within minutes; after a reboot nothing runs anyway.
GIVE_UP_SECONDS: Final = 3600.0
_OVER: Final = ("", "exited", "stopped", "dead", "removing")
_RUNNING: Final = ("running", "paused", "stopping", "restarting")


def main(arguments: list[str]) -> NoReturn:
    """Leave a guard behind, and become the client."""
    plan, client = json.loads(arguments[0]), arguments[1:]
    starter = os.getppid()
    if plan["gate"] is not None:
        os.read(plan["gate"], 1)
        os.close(plan["gate"])
    # Blocked before there is a guard, so that it cannot miss the end of its parent.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    me = os.getpid()
    if os.fork() == 0:
        try:
            _guard(me, plan)
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != starter:  # it ended before the kernel had the request
        os._exit(1)
    os.execvp(client[0], client)  # noqa: S606 - an engine's client, without a shell


def _guard(client: int, plan: dict[str, Any]) -> None:
    os.setsid()  # a kill of the client's group leaves the guard alive
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the job's output ends when the client ends
        os.dup2(nothing, descriptor)
    os.closerange(3, _DESCRIPTORS)
    _die_with_parent(signal.SIGUSR1)
    if os.getppid() == client:
        signal.sigtimedwait([signal.SIGUSR1], plan["seconds"])
    name, engine = plan["name"], plan["engine"]
    deadline = time.monotonic() + GIVE_UP_SECONDS
    starting = time.monotonic() + _STARTING_SECONDS
    while time.monotonic() < deadline:
        state = _state(engine, name)
        if state in _OVER:
            return
        if state is None or state in _RUNNING:
            _mark(plan["mark"])  # before its status says that it was killed
        if state in _RUNNING:
            _call(engine, "kill", name)
        elif state is not None and time.monotonic() > starting:
            return  # it was made and never started; its maker removes it
        time.sleep(_LOOK_SECONDS)


def _state(engine: list[str], name: str) -> str | None:
    """Return a container's state; "" if it does not exist, None if the engine does not answer."""
    names = _call(engine, "ps", "--all", "--filter", f"name=^{name}$", "--format", "{{.Names}}")
    if names is None or name not in names.split():
        return None if names is None else ""
    state = _call(engine, "inspect", "--format", "{{.State.Status}}", name)
    return None if state is None else state.strip().lower()


def _mark(path: str) -> None:
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _call(engine: list[str], *arguments: str) -> str | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 - an engine's client, without a shell
            [*engine, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CALL_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
    return None


def _die_with_parent(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
