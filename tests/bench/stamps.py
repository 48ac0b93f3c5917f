"""Time stamps of the steps of a job: a daemon or an agent whose methods write when they are called.

`python -m bench.stamps serve …` is the daemon, and `python -m bench.stamps worker …` the agent. The
product has no such stamps: this module wraps its methods.
"""

import inspect
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

FILE = "BENCH_STAMPS"  # the environment variable with the path of the file

# The imports of each program come after its name is known: a supervisor must not load the daemon.
_SUPERVISOR = """\
import sys
sys.path[:0] = [{{root!r}}, {tests!r}]
from bench.stamps import stamp_supervisor
stamp_supervisor({file!r})
from proxyctl.worker.attempt.supervisor import main
main()
"""


class Stamps:
    """Appends stamps to a file, which several processes share.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, step: str) -> None:
        """Append a stamp: the nanoseconds of the machine's clock, and the step."""
        os.write(self._file, b"%d %s\n" % (time.monotonic_ns(), step.encode()))

    def wrap(self, owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        """Have a function of a class or module write a stamp before or after each call."""
        setattr(owner, name, self.wrapped(getattr(owner, name), before=before, after=after))

    def wrapped(
        self, function: Callable[..., Any], *, before: str = "", after: str = ""
    ) -> Callable[..., Any]:
        """Return a function that writes a stamp before or after each call."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.write(before)
            result = function(*args, **kwargs)
            if after:
                self.write(after)
            return result

        @wraps(function)
        async def call_later(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.write(before)
            result = await function(*args, **kwargs)
            if after:
                self.write(after)
            return result

        return call_later if inspect.iscoroutinefunction(function) else call


def read(path: Path, since: int) -> dict[str, int]:
    """Return the first stamp of each step since a time, both in nanoseconds."""
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        at, _, step = line.partition(" ")
        if int(at) >= since:
            found.setdefault(step, int(at))
    return found


def stamp_daemon(path: str) -> None:
    """Wrap the methods of a daemon."""
    from api.jobs.work import WorkRoutes  # noqa: PLC0415 - see above
    from market.dispatch.claims import Claims  # noqa: PLC0415
    from market.jobs.jobs import Jobs  # noqa: PLC0415
    from market.logs.logs import Logs  # noqa: PLC0415

    stamps = Stamps(path)
    stamps.wrap(Jobs, "_put_up", before="daemon: post read", after="daemon: post committed")
    stamps.wrap(Claims, "_outcomes", before="daemon: claim begun", after="daemon: claim committed")
    stamps.wrap(WorkRoutes, "next", after="daemon: work answered")
    stamps.wrap(Logs, "append", before="daemon: log read")
    stamps.wrap(Logs, "_write", before="daemon: log checked", after="daemon: log written")


def stamp_agent(path: str) -> None:
    """Wrap the methods of an agent, and of its supervisors."""
    from proxyctl.worker.agent import asking  # noqa: PLC0415 - see above
    from proxyctl.worker.attempt import supervisors  # noqa: PLC0415
    from proxyctl.worker.attempt.attempt import Attempt  # noqa: PLC0415
    from proxyctl.worker.attempt.log_sender import LogSender  # noqa: PLC0415
    from proxyctl.worker.attempt.ready import Ready  # noqa: PLC0415
    from proxyctl.worker.base.states import AttemptState  # noqa: PLC0415

    tests = str(Path(__file__).parent.parent)
    supervisors._PROGRAM = _SUPERVISOR.format(tests=tests, file=path)  # type: ignore[misc]
    stamps = Stamps(path)
    stamps.wrap(asking, "orders_of", before="agent: work read")
    steps = Attempt._STEPS
    steps[AttemptState.PREPARING] = stamps.wrapped(Attempt._prepare, before="agent: preparing")
    stamps.wrap(supervisors.Supervisors, "take", before="agent: folders made")
    stamps.wrap(Ready, "settle", before="agent: sandbox taken", after="agent: folders settled")
    stamps.wrap(
        supervisors.Supervisors,
        "give",
        before="agent: start written",
        after="agent: supervisor called",
    )
    stamps.wrap(Attempt, "_tell_start", before="agent: running", after="agent: start reported")
    stamps.wrap(LogSender, "_send", before="agent: log sent")


def stamp_supervisor(path: str) -> None:
    """Wrap the methods of a supervisor."""
    from proxyctl.worker.attempt import streams, supervisor  # noqa: PLC0415 - see above

    stamps = Stamps(path)
    stamps.wrap(supervisor.Supervisor, "run", before="supervisor: called")
    stamps.wrap(supervisor, "claim", after="supervisor: attempt claimed")
    stamps.wrap(supervisor.Supervisor, "_start", before="supervisor: launch read")
    stamps.wrap(supervisor._Waiting, "order", after="supervisor: sandbox ordered")
    stamps.wrap(streams._Log, "append", before="supervisor: output read")


def main() -> None:
    """Run a daemon or an agent with stamps."""
    if sys.argv[1] == "serve":
        from proxyd.__main__ import main as serve  # noqa: PLC0415 - see above

        stamp_daemon(os.environ[FILE])
        sys.exit(serve())
    from proxyctl.__main__ import main as work  # noqa: PLC0415 - see above

    stamp_agent(os.environ[FILE])
    work()


if __name__ == "__main__":
    main()
