"""Slurm's own commands: requests to its controller, and the answers.

A job of Slurm is found by its name, which says whose attempt it is: its number is of no use to an
agent that was killed before it could write that down.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.limits.base import attempts_of, group_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS: Final = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")
# A job in any other state has processes, or may get some.
OVER: Final = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    )
)
OUT_OF_MEMORY: Final = "OUT_OF_MEMORY"
PENDING: Final = "PENDING"

_PREFIX: Final = "proxyd."  # of a job's name, before the agent's scope and the attempt
# A controller that is busy answers within seconds; one that is away, after its own ten.
_CALL_SECONDS: Final = 30.0
_WORDS_MAX_CHARACTERS: Final = 500  # of a command's output about its failure
_WORKING: Final = frozenset(("allocated", "completing", "idle", "mixed", "planned"))
_GPU: Final = re.compile(r"gpu(?::(?P<type>[^:(,]+))?:(?P<count>\d+)(?:\([^)]*\))?")


class SlurmError(Exception):
    """A command of Slurm did not succeed; the message is its output."""


@dataclass(frozen=True)
class Node:
    """A node that takes jobs.

    Attributes:
        name: as Slurm has it.
        cores: that Slurm may give to jobs.
        memory_bytes: the same.
        gpus: how many there are, by the type that Slurm knows; "" where it knows none.
    """

    name: str
    cores: int
    memory_bytes: int
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """A request for a job of Slurm.

    Attributes:
        name: of the job.
        folder: where it begins, which every node has under the same path.
        cores: whole ones.
        memory_bytes: of all its processes together.
        minutes: after which Slurm ends it, if everything else has failed.
        log: the output of the script itself, which is empty unless something fails.
    """

    name: str
    folder: str
    cores: int
    memory_bytes: int
    minutes: int
    log: str


def name_of(scope: str, attempt_id: str) -> str:
    """Return the name of an attempt's job.

    Raises:
        TaskError: the attempt has no identifier.
    """
    return _PREFIX + group_of(scope, attempt_id)


def missing() -> list[str]:
    """Return the commands of Slurm that are not on this machine."""
    return [each for each in PROGRAMS if shutil.which(each) is None]


def environment() -> dict[str, str]:
    """Return the environment of Slurm's commands; jobs of Slurm inherit it."""
    kept = {"PATH", "HOME", "LANG", "LOGNAME", "USER"}
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or name.startswith(("SLURM_CONF", "SBATCH_"))
    }


def submit(wish: Wish, script: str) -> None:
    """Put a job into the queue.

    Raises:
        SlurmError: it is not taken.
    """
    _call(
        "sbatch",
        "--parsable",
        "--no-requeue",
        "--export=ALL",
        "--nodes=1",
        "--ntasks=1",
        f"--job-name={wish.name}",
        f"--chdir={wish.folder}",
        f"--cpus-per-task={wish.cores}",
        f"--mem={-(-wish.memory_bytes // (1 << 20))}M",
        f"--time={wish.minutes}",
        f"--output={wish.log.replace('%', '%%')}",
        stdin=script,
    )


def jobs(name: str) -> dict[str, str]:
    """Return the states of our jobs of one name, by number: all that the controller remembers.

    Raises:
        SlurmError: the controller does not answer.
    """
    said = _call("squeue", "--me", "--noheader", "--states=all", f"--name={name}", "--format=%A|%T")
    rows = (line.split("|") for line in said.split())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def last_state(name: str) -> str:
    """Return the state of our latest job of a name; "" where the controller knows of none.

    Raises:
        SlurmError: the controller does not answer.
    """
    states = jobs(name)
    return states[max(states, key=int)] if states else ""


def attempts(scope: str) -> set[str]:
    """Return the attempts of an agent whose Slurm jobs are not over.

    Raises:
        SlurmError: the controller does not answer.
    """
    said = _call("squeue", "--me", "--noheader", "--format=%T|%j")
    names = []
    for line in said.splitlines():
        state, _, name = line.strip().partition("|")
        if state not in OVER and name.startswith(_PREFIX):
            names.append(name[len(_PREFIX) :])
    return attempts_of(scope, names)


def ask(number: str) -> None:
    """Send SIGTERM to the script of a job; one that has ended is not an error.

    Raises:
        SlurmError: the controller does not answer.
    """
    _call("scancel", "--quiet", "--batch", "--signal=TERM", number)


def kill(number: str) -> None:
    """End all of a job at once, or take it out of the queue; one that has ended is not an error.

    Raises:
        SlurmError: the controller does not answer.
    """
    # By itself scancel leaves a job half a minute between SIGTERM and SIGKILL.
    _call("scancel", "--quiet", "--full", "--signal=KILL", "--state=RUNNING", number)
    _call("scancel", "--quiet", number)


def nodes() -> list[Node]:
    """Return the nodes that take jobs.

    Raises:
        SlurmError: the controller does not answer.
    """
    return parse_nodes(_call("sinfo", "--noheader", "--Node", "--format=%N|%T|%c|%m|%G"))


def parse_nodes(said: str) -> list[Node]:
    """Return the nodes of a list of sinfo; a node in two partitions stands there twice."""
    found: dict[str, Node] = {}
    for line in said.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5 or fields[1].rstrip("~#!%$@^-+") not in _WORKING:
            continue
        name, _, cores, megabytes, resources = fields
        gpus: dict[str, int] = {}
        for each in _GPU.finditer(resources):
            kind = each["type"] or ""
            gpus[kind] = gpus.get(kind, 0) + int(each["count"])
        found[name] = Node(name, int(cores), int(megabytes.rstrip("+")) << 20, gpus)
    return list(found.values())


def _call(program: str, *arguments: str, stdin: str = "") -> str:
    path = shutil.which(program)
    if path is None:
        raise SlurmError(f"{program} is not installed")
    try:
        done = subprocess.run(  # noqa: S603 - a command of Slurm, without a shell
            (path, *arguments),
            input=stdin,
            env=environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{program}: {error}") from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split())[:_WORDS_MAX_CHARACTERS]
        raise SlurmError(words or f"{program} ended with the status {done.returncode}")
    return done.stdout
