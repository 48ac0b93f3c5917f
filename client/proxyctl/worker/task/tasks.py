"""Makes the task for an executor from the daemon's work, if the owner lends enough for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from proxyctl.protocol.jobspec.checks import check
from proxyctl.protocol.jobspec.errors import SpecError
from proxyctl.protocol.jobspec.payload import Payload, Resources, payload_of, resources_of
from proxyctl.worker.base import names
from proxyctl.worker.base.record import GIGABYTE
from proxyctl.worker.base.references import is_allowed
from proxyctl.worker.base.shares import Share, share_of
from proxyctl.worker.executors.base.base import INPUTS, Bounds, Task, TaskError

if TYPE_CHECKING:
    from pathlib import Path

    from proxyctl.worker.base.record import Consent, Lend
    from proxyctl.worker.task.journal import Entry

_PROCESSES: Final = 512  # and threads, of one job: many programs start one for each core
INPUTS_BYTES: Final = 64 << 10  # a script, as a rule
_INTERPRETERS: Final = {"python3": ("python3", "-u"), "bash": ("bash",)}


def resources_wanted(work: dict[str, object]) -> Resources:
    """Return the needs of a job; none if they cannot be understood."""
    stored = work.get("resources")
    try:
        return resources_of(stored) if isinstance(stored, dict) else Resources()
    except SpecError:
        return Resources()


def disk_bytes_of(work: dict[str, object], lend: Lend) -> int:
    """Return the bytes of disk of one attempt, for its inputs and all that it writes."""
    return int(share_of(resources_wanted(work), lend).disk_gb * GIGABYTE)


def payload_of_work(work: dict[str, object]) -> Payload:
    """Return the payload of a job.

    Raises:
        TaskError: it cannot be understood here.
    """
    stored = work.get("payload")
    if not isinstance(stored, dict):
        raise TaskError("refused", "the job names no program to run")
    try:
        payload = payload_of(stored)
        check(payload, str(work.get("job_type")))
    except SpecError as error:
        raise TaskError("refused", f"the job cannot be understood here: {error}") from None
    return payload


def task_of(entry: Entry, payload: Payload, folder: Path, consent: Consent) -> Task:
    """Return the task for an executor.

    Raises:
        TaskError: the owner of this device does not lend that.
    """
    work, lend = entry.work, consent.lend
    job_type = str(work.get("job_type"))
    if job_type not in lend.jobs:
        raise TaskError("refused", f"this device takes no jobs of the type {job_type}")
    if payload.network != "none" and lend.network == "none":
        raise TaskError("refused", "this device lends no network")
    if payload.image and not is_allowed(payload.image, consent.sandbox.images):
        raise TaskError("refused", f"this device does not run the image {payload.image}")
    share = share_of(resources_wanted(work), lend)
    return Task(
        attempt_id=entry.place,
        folder=folder,
        job_type=job_type,
        command=_command(payload),
        bounds=_bounds(share, int(work["timeout_s"])),
        image=payload.image,
        env={**payload.env, **payload.secrets},
        network=payload.network,
        gpus=entry.gpus,
        ports=tuple(each.port for each in payload.ports),
    )


def task_ahead(name: str, folder: Path, lend: Lend) -> Task:
    """Return the task of a sandbox that is made before its attempt comes.

    It has the share of a job that names no amounts, as most jobs do, without the room for the
    inputs of most jobs: no file in it may be larger than the rest of the disk of such a job.

    Args:
        name: of the sandbox.
        folder: where it is made.
        lend: the owner's loan.
    """
    bounds = _bounds(share_of(Resources(), lend), seconds=0)
    bounds = replace(bounds, disk_bytes=max(1, bounds.disk_bytes - INPUTS_BYTES))
    return Task(attempt_id=name, folder=folder, job_type="script", command=(), bounds=bounds)


def _bounds(share: Share, seconds: int) -> Bounds:
    return Bounds(
        cores=share.cores,
        memory_bytes=int(share.ram_gb * GIGABYTE),
        disk_bytes=int(share.disk_gb * GIGABYTE),
        processes=_PROCESSES,
        seconds=seconds,
    )


def _command(payload: Payload) -> tuple[str, ...]:
    """Return the program; a script is a file among the inputs, which the agent has put there."""
    if payload.script:
        return (*_INTERPRETERS[payload.interpreter], f"/{INPUTS}/{names.SCRIPT}", *payload.command)
    return payload.command
