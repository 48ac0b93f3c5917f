"""On a node of a cluster: builds the walls around one job, and sees it to its end.

Slurm runs this as the script of a job. It does the same as the agent and the supervisor on a device
of their own; it speaks with them by files in a folder that both have.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.worker.attempt.supervisor import supervise, write
from proxyctl.worker.base import names
from proxyctl.worker.executors.base.base import WORK, Bounds, Finding, Task, TaskError
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.executors.limits.choose import choose
from proxyctl_clusters.slurm.slurm import GO, GO_SECONDS, OVER_FILE, READY, RUN, TASK
from proxyctl_clusters.slurm.slurm_groups import SlurmGroups

if TYPE_CHECKING:
    from proxyctl.worker.executors.base.base import Launch
    from proxyctl.worker.executors.limits.base import LimitHolder

_LOOK_SECONDS: Final = 0.01  # between two looks for the word to begin
_LATER_SECONDS: Final = 10  # the supervisor at the agent's side says first that the time is over
_PRLIMIT: Final = "/usr/bin/prlimit"


def main(arguments: list[str]) -> None:
    """Run the job that the files in a folder describe."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    exchange = Path(arguments[0])
    wanted = files.read(exchange / TASK)
    if wanted is None:
        sys.exit(f"{exchange} is not here")
    limits, findings = limits_for(wanted)
    if "task" not in wanted:
        if limits is not None:
            findings = BwrapExecutor(limits).check()
        findings = [*findings, _check_prlimit()]
        write(str(exchange / READY), {"findings": [asdict(each) for each in findings]})
        return
    task = task_of(wanted["task"])
    try:
        if limits is None:
            missing = "; ".join(each.actual for each in findings if not each.is_met)
            raise TaskError("refused", f"nothing bounds a job on {socket.gethostname()}: {missing}")
        executor = BwrapExecutor(limits, scope=str(wanted["scope"]))
        launch = executor.prepare(_counted(task) if limits.name == SlurmGroups.name else task)
    except TaskError as error:
        write(str(exchange / READY), {"kind": error.kind, "error": error.message})
        return
    try:
        over = _run(exchange, task, launch, executor)
    finally:
        executor.clean(task.attempt_id)
    write(str(exchange / OVER_FILE), over)  # the last thing: then this job of Slurm may be ended


def limits_for(wanted: dict[str, Any]) -> tuple[LimitHolder | None, list[Finding]]:
    """Return the mechanism that limits a job here: Slurm, or a mechanism of any device."""
    findings: list[Finding] = []
    if wanted["limits"] == "auto":
        given = int(os.environ.get("SLURM_CPUS_ON_NODE", wanted["cores"]))
        slurm = SlurmGroups(int(wanted["memory_bytes"]), given)
        findings = slurm.check()
        if all(each.is_met for each in findings):
            return slurm, findings
    limits, others = choose(str(wanted["limits"]), scope=str(wanted["scope"]))
    return limits, others if limits is not None else [*findings, *others]


def task_of(fields: dict[str, Any]) -> Task:
    """Return a task from the agent's record of it."""
    return Task(
        attempt_id=str(fields["attempt_id"]),
        folder=Path(fields["folder"]),
        job_type=str(fields["job_type"]),
        command=tuple(fields["command"]),
        bounds=Bounds(**fields["bounds"]),
        env=dict(fields["env"]),
        ports=tuple(fields["ports"]),
    )


def _counted(task: Task) -> Task:
    """Bound the processes of a job, which Slurm does not, from within its sandbox.

    There they are counted for the sandbox alone, and no request can get more.
    """
    most = f"--nproc={task.bounds.processes}:{task.bounds.processes}"
    return replace(task, command=(_PRLIMIT, most, "--", *task.command))


def _run(exchange: Path, task: Task, launch: Launch, executor: BwrapExecutor) -> dict[str, Any]:
    folder = exchange / RUN
    folder.mkdir(mode=0o700)
    write(str(exchange / READY), {"node": socket.gethostname()})
    go = _await_go(exchange / GO)
    if go is None:
        sys.exit("nobody has said that it may begin")
    fields = {
        "launch": launch.as_fields(),
        "seconds": float(go["seconds"]) + _LATER_SECONDS,
        "grace_s": go["grace_s"],
        "log_bytes": go["log_bytes"],
    }
    write(str(folder / names.LAUNCH), fields)
    supervise(str(folder), str(task.folder / WORK))
    ended = files.read(folder / names.ENDED)
    return {"ended": ended, "ending": asdict(executor.ended(task.attempt_id))}


def _await_go(path: Path) -> dict[str, Any] | None:
    deadline = time.monotonic() + GO_SECONDS
    while time.monotonic() < deadline:
        go = files.read(path)
        if go is not None:
            return go
        time.sleep(_LOOK_SECONDS)
    return None


def _check_prlimit() -> Finding:
    is_met = os.access(_PRLIMIT, os.X_OK)
    return Finding(
        "prlimit",
        is_met,
        _PRLIMIT if is_met else f"no {_PRLIMIT}",
        "prlimit of util-linux on each node",
        "it bounds the processes of a job",
        "" if is_met else "install util-linux on the nodes",
    )
