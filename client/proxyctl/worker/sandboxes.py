"""The executors of this device: which there are, which can be used, and which one a job gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base import TaskError
from proxyctl.worker.executors.bwrap import BwrapExecutor
from proxyctl.worker.executors.limits.choose import choose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxyctl.protocol.jobspec.payload import Payload
    from proxyctl.worker.executors.base import Executor, Finding
    from proxyctl.worker.record import Sandbox

# Those that run the image that a job names; the others run it on what the device has itself.
_OF_IMAGES: Final = ("podman", "docker", "gvisor")


def usable(sandbox: Sandbox) -> tuple[dict[str, Executor], dict[str, list[Finding]]]:
    """Return the executors that can be used, and what every one of them needs.

    Raises:
        TaskError: the owner wants something that may not be.
    """
    limits, looked = choose(sandbox.limits)
    findings: dict[str, list[Finding]] = {"limits": looked}
    executors: dict[str, Executor] = {}
    if limits is None:
        return executors, findings
    for executor in (BwrapExecutor(limits),):
        if sandbox.executor not in ("auto", executor.name):
            continue
        findings[executor.name] = executor.check()
        if all(each.is_met for each in findings[executor.name]):
            executors[executor.name] = executor
    return executors, findings


def executor_for(executors: Mapping[str, Executor], payload: Payload) -> Executor:
    """Return the executor for a payload.

    Raises:
        TaskError: there is none for it here.
    """
    for name, executor in executors.items():
        if (name in _OF_IMAGES) == bool(payload.image):
            return executor
    wanted = f"the image {payload.image}" if payload.image else "a job without an image"
    raise TaskError("refused", f"nothing on this device can run {wanted}")
