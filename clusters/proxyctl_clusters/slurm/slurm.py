"""The executor for a cluster under Slurm: an attempt is a job of Slurm, walled in on its node.

`prepare` puts the job into the queue and waits until it has a node: so the job does not pay for the
time in the queue. There `slurm_node` builds the walls of `bwrap`, and waits. The supervisor starts
`slurm_client` here, which lets the job begin, and shows its output. The two speak by files in the
attempt's folder, which every node must have under the same path.

Slurm holds a job to its memory and cores; where the node finds that it does not, nothing is run.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.worker.base import names
from proxyctl.worker.base.programs import python
from proxyctl.worker.executors.base.base import (
    Ending,
    Finding,
    Launch,
    Task,
    TaskError,
    names_no_program,
)
from proxyctl.worker.executors.limits.base import scope_of
from proxyctl_clusters.slurm import slurm_calls
from proxyctl_clusters.slurm.slurm_calls import (
    OUT_OF_MEMORY,
    OVER,
    PENDING,
    SlurmError,
    Wish,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

_CLIENT: Final = "proxyctl_clusters.slurm.slurm_client"
_NODE: Final = "proxyctl_clusters.slurm.slurm_node"
EXCHANGE: Final = "slurm"  # in the attempt's folder; no job sees it
# In there, in the order in which they are written.
TASK: Final = "task.json"  # the task for the node, with the job's secrets
SCRIPT_LOG: Final = "script.log"  # failures on the node before it can report
READY: Final = "ready.json"  # the node's: the walls stand, or why not
GO: Final = "go.json"  # this side's: begin
RUN: Final = "run"  # a folder, in which the node's supervisor works as ours does
OVER_FILE: Final = "over.json"  # the node's last words
LOST: Final = "lost.json"  # this side's: the job is gone, and has left no last words

NODE_MEMORY_BYTES: Final = 64 << 20  # of the node's supervisor, beside the job's own memory
GO_SECONDS: Final = 120.0  # a node waits this long for the order to begin
_MARGIN_SECONDS: Final = 120  # for the node and the agent to end the job before Slurm does
_QUEUE_SECONDS: Final = 300.0  # for a node; the daemon has given up after half an hour
_ASK_SECONDS: Final = 2.0  # between two questions to the controller, which has others to serve
_LOOK_SECONDS: Final = 0.02  # between two looks into a folder
_BY_ITSELF_SECONDS: Final = 3.0  # for a job whose last words are there
_END_SECONDS: Final = 60.0  # for Slurm to clear up after a job; it kills remaining processes
_TRIAL_SECONDS: Final = 60.0  # for a job that does nothing, from the queue to its end
_TRIAL_BYTES: Final = 64 << 20
_LOG_MAX_BYTES: Final = 2_000  # of the node's own output, in a message

_NO_PORTS: Final = "ports of a job under Slurm cannot be reached: it runs on another machine"


class Slurm:
    """Jobs on the nodes of a cluster.

    Args:
        folder: of the agent, which all nodes share.
        limits: "auto" to have Slurm or the node hold them; or one of the latter.
        queue_seconds: after which a job that has no node is given back.
    """

    name = "slurm"

    def __init__(
        self, folder: Path, *, limits: str = "auto", queue_seconds: float = _QUEUE_SECONDS
    ) -> None:
        self._folder = folder
        self._scope = scope_of(folder)
        self._limits = limits
        self._queue_seconds = queue_seconds

    def check(self) -> list[Finding]:
        """Return the needs here and on a node, by a job that checks its own walls."""
        missing = slurm_calls.missing()
        findings = [
            Finding(
                "slurm",
                not missing,
                f"not installed: {', '.join(missing)}" if missing else "installed",
                "the commands of Slurm",
                "jobs are handed to it by them",
                "sudo apt-get install slurm-client" if missing else "",
            )
        ]
        if not missing:
            findings.append(_check_nodes())
        if all(each.is_met for each in findings):
            findings += self._try_one()
        return findings

    def prepare(self, task: Task) -> Launch:
        """Make a node prepare the job, and return the launch that starts it."""
        _require_possible(task)
        name = self._name(task.attempt_id)
        self.clean(task.attempt_id)
        exchange = task.folder / EXCHANGE
        wanted = {"task": {**asdict(task), "folder": str(task.folder)}}
        _require_node(task)
        try:
            self._submit(exchange, name, wanted, task.bounds.memory_bytes, _cores_of(task))
            self._await_node(exchange, name)
        except TaskError:
            with suppress(TaskError):  # of the two, the first says more
                self.clean(task.attempt_id)
            raise
        return Launch(
            argv=(*python(_CLIENT), str(exchange), name),
            env=slurm_calls.environment(),
            disk_bytes=task.bounds.disk_bytes,
        )

    def attach(self, task: Task, pid: int) -> None:
        """Do nothing: the program that the supervisor started orders the node to begin."""

    def can_reach_ports(self) -> bool:
        """Return False."""
        return False

    def connect(self, attempt_id: str, port: int) -> socket.socket:  # noqa: ARG002 - as others
        """Refuse: the job is on a node, and the agent is not."""
        raise TaskError("refused", _NO_PORTS)

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Ask the job to end, and kill it after the grace.

        Raises:
            TaskError: the controller does not answer, so the state is unknown.
        """
        name = self._name(attempt_id)
        try:
            over = self._exchange(attempt_id) / OVER_FILE
            waiting = _unended(name)
            if grace_s > 0 and waiting:
                for number in waiting:
                    slurm_calls.ask(number)
                _until(over.exists, grace_s)
                waiting = _unended(name)
            if waiting and over.exists():  # it ends by itself, as Slurm's own books should have it
                _until(lambda: not _unended(name), _BY_ITSELF_SECONDS, 0.1)
                waiting = _unended(name)
            for number in waiting:
                slurm_calls.kill(number)
            has_ended = not waiting or _until(lambda: not _unended(name), _END_SECONDS, 0.1)
        except SlurmError as error:
            raise TaskError("host", f"Slurm: {error}") from None
        if not has_ended:
            raise TaskError("host", f"Slurm: the job of attempt {attempt_id} does not end")

    def running(self) -> set[str]:
        """Return the attempts of this agent that Slurm runs, or will.

        Raises:
            TaskError: the controller does not answer, so the state is unknown.
        """
        try:
            return slurm_calls.attempts(self._scope)
        except SlurmError as error:
            raise TaskError("host", f"Slurm: {error}") from None

    def left(self) -> set[str]:
        """Return the result of `running`; Slurm forgets ended jobs by itself."""
        return self.running()

    def ended(self, attempt_id: str) -> Ending:
        """Return the node's record of the end, or the reason for a missing one."""
        exchange = self._exchange(attempt_id)
        over = files.read(exchange / OVER_FILE)
        if over is not None:
            ending = _ending_of(over, exchange / RUN / names.LOGS["err"])
            # Where it was this side that has asked, the agent knows so, and goes by that.
            if over["ended"].get("asked") and not ending.lost:
                return replace(ending, lost=f"Slurm has ended the job: {self._state(attempt_id)}")
            return ending
        lost = files.read(exchange / LOST)
        if lost is None:
            return Ending(lost="what watched the job on its node was killed")
        if lost["state"] == OUT_OF_MEMORY:
            return Ending(is_out_of_memory=True)
        return Ending(lost=f"Slurm has ended the job: {lost['state']}")

    def clean(self, attempt_id: str) -> None:
        """Take the job from Slurm, and remove its files."""
        self.stop(attempt_id, 0)
        shutil.rmtree(self._exchange(attempt_id), ignore_errors=True)

    def close(self) -> None:
        """Hold nothing: the jobs run on."""

    def _name(self, attempt_id: str) -> str:
        return slurm_calls.name_of(self._scope, attempt_id)

    def _state(self, attempt_id: str) -> str:
        try:
            return slurm_calls.last_state(self._name(attempt_id)) or "it is gone"
        except SlurmError as error:
            return str(error)

    def _exchange(self, attempt_id: str) -> Path:
        return self._folder / names.ATTEMPTS / attempt_id / EXCHANGE

    def _submit(
        self, exchange: Path, name: str, wanted: dict[str, Any], memory_bytes: int, cores: int
    ) -> None:
        memory_bytes += NODE_MEMORY_BYTES
        seconds = int(wanted["task"]["bounds"]["seconds"] if "task" in wanted else _TRIAL_SECONDS)
        wish = Wish(
            name=name,
            folder=str(exchange),
            cores=cores,
            memory_bytes=memory_bytes,
            minutes=-(-int(seconds + GO_SECONDS + _MARGIN_SECONDS) // 60),
            log=str(exchange / SCRIPT_LOG),
        )
        fields = {
            **wanted,
            "scope": self._scope,
            "limits": self._limits,
            "memory_bytes": memory_bytes,
            "cores": cores,
        }
        try:
            exchange.mkdir(mode=0o700, parents=True)
            files.write(exchange / TASK, fields)
            slurm_calls.submit(wish, script_of(exchange))
        except SlurmError as error:
            raise TaskError("host", f"Slurm does not take the job: {error}") from None
        except OSError as error:
            raise TaskError("host", f"{exchange}: {error.strerror}") from None

    def _await_node(self, exchange: Path, name: str) -> None:
        """Wait until the walls stand.

        Raises:
            TaskError: they do not.
        """
        state, told = _answer(exchange / READY, name, self._queue_seconds)
        if told is None:
            if state == PENDING:
                raise TaskError("host", "the cluster has had no room for the job")
            raise TaskError("host", f"Slurm: {state or 'the job is gone'}; {_words(exchange)}")
        if told.get("error"):
            raise TaskError(str(told.get("kind")), str(told["error"]))

    def _try_one(self) -> list[Finding]:
        """Run a Slurm job that checks the walls of its node."""
        name = f"proxyd-check-{secrets.token_hex(4)}"  # no attempt: no sweep ends it
        exchange = self._folder / name
        try:
            self._submit(exchange, name, {}, _TRIAL_BYTES, 1)
            state, told = _answer(exchange / READY, name, _TRIAL_SECONDS)
            for number in _unended(name) if told is None else ():
                slurm_calls.kill(number)
            if told is not None:
                return [Finding(**each) for each in told["findings"]]
            said = f"{state or 'gone without a word'}; {_words(exchange)}"
        except TaskError as error:
            said = error.message
        except SlurmError as error:
            said = str(error)
        finally:
            shutil.rmtree(exchange, ignore_errors=True)
        return [
            Finding(
                "slurm-trial",
                False,
                f"a job that does nothing: {said}",
                f"a node that has {self._folder} and {sys.executable}, and runs it within a minute",
                "jobs run on nodes, and their files lie in that folder",
                "share that folder with all nodes under the same path, as this user's",
            )
        ]


def script_of(exchange: Path) -> str:
    """Return the script that Slurm runs."""
    words = (*python(_NODE), str(exchange))
    return "#!/bin/sh\nexec " + " ".join(_quoted(each) for each in words) + "\n"


def capacity() -> tuple[int, int]:
    """Return the cores and the bytes of memory of all nodes together.

    Raises:
        TaskError: the controller does not answer.
    """
    try:
        nodes = slurm_calls.nodes()
    except SlurmError as error:
        raise TaskError("host", f"Slurm: {error}") from None
    return sum(each.cores for each in nodes), sum(each.memory_bytes for each in nodes)


def _require_possible(task: Task) -> None:
    if task.image:
        raise TaskError("refused", "Slurm runs no images; podman or docker does")
    if task.network != "none":
        # The way out is served by the agent, which is not where the job is.
        raise TaskError("refused", "a job under Slurm has no network here")
    if task.ports:
        raise TaskError("refused", _NO_PORTS)
    if task.gpus:
        raise TaskError("refused", "GPUs of a cluster are not lent")


def _require_node(task: Task) -> None:
    """Refuse a job that fits no node: Slurm would let it wait for ever."""
    try:
        nodes = slurm_calls.nodes()
    except SlurmError as error:
        raise TaskError("host", f"Slurm: {error}") from None
    cores, memory = _cores_of(task), task.bounds.memory_bytes + NODE_MEMORY_BYTES
    if not any(each.cores >= cores and each.memory_bytes >= memory for each in nodes):
        words = f"no node has {cores} cores and {memory >> 20} MiB of memory for one job"
        raise TaskError("refused" if nodes else "host", f"Slurm: {words}")


def _cores_of(task: Task) -> int:
    """Return whole cores, as Slurm gives them."""
    return max(1, int(-(-task.bounds.cores // 1)))


def _check_nodes() -> Finding:
    try:
        nodes, said = slurm_calls.nodes(), ""
    except SlurmError as error:
        nodes, said = [], str(error)
    cores = sum(each.cores for each in nodes)
    largest = max((each.memory_bytes for each in nodes), default=0)
    words = f"{len(nodes)} nodes with {cores} cores; the largest has {largest >> 20} MiB of memory"
    return Finding(
        "slurm-nodes",
        bool(nodes),
        said or words,
        "a controller that answers, and a node that takes jobs",
        "jobs run there",
        "" if nodes else "sinfo --Node --long, and look for what it says",
    )


def _answer(path: Path, name: str, seconds: float) -> tuple[str, dict[str, Any] | None]:
    """Return the last state of a node's job, and the node's answer; None for no answer."""
    deadline = time.monotonic() + seconds
    state, ask_at = PENDING, 0.0
    while True:
        told = files.read(path)
        now = time.monotonic()
        if told is not None or now >= deadline:
            return state, told
        if now >= ask_at:
            ask_at = now + _ASK_SECONDS
            with suppress(SlurmError):  # it may be back before the time is over
                state = slurm_calls.last_state(name)
                if state in OVER or not state:
                    return state, files.read(path)
        time.sleep(_LOOK_SECONDS)


def _unended(name: str) -> list[str]:
    return [number for number, state in slurm_calls.jobs(name).items() if state not in OVER]


def _ending_of(over: dict[str, Any], log: Path) -> Ending:
    """Return the ending that a node's supervisor and kernel counted; `log` is its stderr.

    Walls that have started nothing are the node's fault, unless there is no such program.
    """
    ended, ending = over["ended"], over["ending"]
    if ended.get("failed"):
        return Ending(lost=str(ended["failed"]))
    cpu, memory = ending["cpu_seconds"], ending["max_memory_bytes"]
    return Ending(
        is_out_of_memory=bool(ending["is_out_of_memory"]),
        is_out_of_disk=bool(ended["disk_over"]),
        is_unstarted=bool(ended.get("unstarted")) and not names_no_program(log),
        cpu_seconds=ended["cpu_seconds"] if cpu is None else cpu,
        max_memory_bytes=ended["max_memory_bytes"] if memory is None else memory,
        lost="the disk of the node is full" if ended["disk_full"] else "",
    )


def _words(exchange: Path) -> str:
    """Return the script's output, for failures before the node could report."""
    try:
        text = (exchange / SCRIPT_LOG).read_bytes()[-_LOG_MAX_BYTES:].decode("utf-8", "replace")
    except OSError:
        return "it has said nothing"
    return " ".join(text.split()) or "it has said nothing"


def _until(condition: Callable[[], bool], seconds: float, pause: float = _LOOK_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
