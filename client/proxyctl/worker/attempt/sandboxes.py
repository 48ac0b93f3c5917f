"""The executors of this device: the known ones, the usable ones, and the choice for a job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base import plugins
from proxyctl.worker.base.record import GIGABYTE, WITHOUT_IMAGES
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.executors.containers.containers import Containers
from proxyctl.worker.executors.containers.docker import Docker
from proxyctl.worker.executors.containers.gvisor import Gvisor
from proxyctl.worker.executors.containers.podman import Podman
from proxyctl.worker.executors.limits.base import scope_of
from proxyctl.worker.executors.limits.choose import choose
from proxyctl.worker.executors.limits.unbounded import Unbounded
from proxyctl.worker.images.images import ImageLimits, Images
from proxyctl.worker.sensors import host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from proxyctl.protocol.jobspec.payload import Payload
    from proxyctl.worker.base.record import Lend, Sandbox
    from proxyctl.worker.executors.base.base import Executor, Finding
    from proxyctl.worker.executors.bwrap.egress import Egress
    from proxyctl.worker.executors.containers.engine import Engine
    from proxyctl.worker.images.images import Image
    from proxyctl.worker.network.outward import Dial
    from proxyctl.worker.task.patience import Patience

BWRAP: Final = "bwrap"
_ENGINES: Final[dict[str, Callable[[Path], Engine]]] = {
    "podman": lambda _: Podman(),
    "docker": Docker,
    "gvisor": lambda _: Gvisor(),
}
ENGINES: Final = frozenset(_ENGINES)
# Each lends a whole cluster as one device. An owner names it: `auto` never takes a cluster.
CLUSTERS: Final = tuple(plugins.DISTRIBUTIONS)
ALL: Final = (BWRAP, *_ENGINES, *CLUSTERS)


def usable(
    sandbox: Sandbox,
    lend: Lend,
    folder: Path,
    network: Egress | None = None,
    dial: Dial | None = None,
) -> tuple[dict[str, Executor], dict[str, list[Finding]]]:
    """Return the usable executors, and the findings of all of them.

    An agent that fetches images needs one engine: once one works, the others are not tried.

    Args:
        sandbox: the wishes of the owner.
        lend: the same.
        folder: of the agent.
        network: gives jobs a way out; None if the owner does not want that.
        dial: connects to registries; None if no image will be fetched.

    Raises:
        TaskError: the owner wants something that may not be.
    """
    scope = scope_of(folder)
    findings: dict[str, list[Finding]] = {}
    executors: dict[str, Executor] = {}
    wants_engines = sandbox.executor != "auto" or lend.jobs != WITHOUT_IMAGES
    for name in ALL if wants_engines else (BWRAP,):
        if sandbox.executor != name and (sandbox.executor != "auto" or name in CLUSTERS):
            continue
        executor: Executor
        if name == BWRAP:
            limits, findings[name] = choose(sandbox.limits, scope=scope)
            if limits is None:
                # The rest should still be shown.
                rest = BwrapExecutor(Unbounded(), network, scope=scope).check()
                findings[name] = rest + [
                    replace(each, needed=f"{each.needed} (one way to hold limits is enough)")
                    for each in findings[name]
                ]
                continue
            executor = BwrapExecutor(limits, network, scope=scope)
        elif name in CLUSTERS:
            executor = plugins.find(name).make(folder, sandbox)
        else:
            engine = _ENGINES[name](folder)
            images = None
            if dial is not None:
                # gVisor runs the images of podman.
                store = Podman() if name == "gvisor" else engine
                images = Images(store, folder, _image_limits(sandbox), dial)
            executor = Containers(
                engine,
                folder=folder,
                has_gpus=bool(lend.gpus),
                images=images,
                network=network,
            )
        findings[name] = executor.check()
        if all(each.is_met for each in findings[name]):
            executors[name] = executor
            if name != BWRAP and dial is not None:
                break
    return executors, findings


def capacity(sandbox: Sandbox, folder: Path) -> tuple[int, int]:
    """Return the cores and the bytes of memory of the machine or cluster that runs jobs.

    Raises:
        TaskError: the cluster does not report them.
    """
    if sandbox.executor not in CLUSTERS:
        return host.cores(), host.memory_bytes()
    return plugins.find(sandbox.executor).capacity(folder, sandbox)


def fetch_image(executor: Executor, name: str, patience: Patience) -> Image | None:
    """Return the image that a job runs, fetched if need be; None if it runs none.

    Raises:
        TaskError: it is not available.
    """
    if not isinstance(executor, Containers) or executor.images is None or not name:
        return None
    return executor.images.ensure(name, patience)


def _image_limits(sandbox: Sandbox) -> ImageLimits:
    return ImageLimits(
        allowed=sandbox.images,
        registries=sandbox.registries,
        bytes_per_day=int(sandbox.pull_gb_per_day * GIGABYTE),
        cache_bytes=int(sandbox.cache_gb * GIGABYTE),
        image_bytes=int(sandbox.cache_gb * GIGABYTE),
    )


def executor_for(executors: Mapping[str, Executor], payload: Payload) -> Executor:
    """Return the executor for a payload: an engine for an image, otherwise bubblewrap.

    Raises:
        TaskError: no executor fits.
    """
    for name, executor in executors.items():
        if _runs(name, has_image=bool(payload.image)):
            return executor
    wanted = f"the image {payload.image}" if payload.image else "a job without an image"
    raise TaskError("refused", f"nothing on this device can run {wanted}")


def _runs(name: str, *, has_image: bool) -> bool:
    if name in CLUSTERS:
        return not has_image or plugins.find(name).runs_images
    return (name in _ENGINES) == has_image
