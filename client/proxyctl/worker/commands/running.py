"""From an owner's consent to the agent that keeps to it."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from proxyctl.power import read_power
from proxyctl.words import OwnerError
from proxyctl.worker.agent.agent import Agent
from proxyctl.worker.agent.device import Device
from proxyctl.worker.agent.rules import Readings, Rules
from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.attempt.log_sender import LogSender
from proxyctl.worker.base import names
from proxyctl.worker.base.link import Link
from proxyctl.worker.base.record import AGREE, ALL_GPUS, GIGABYTE
from proxyctl.worker.commands.setup import not_in_machine
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.bwrap.egress import Egress
from proxyctl.worker.executors.limits.disk import free_bytes
from proxyctl.worker.files import unpacking
from proxyctl.worker.files.transfers import FileTransfers
from proxyctl.worker.files.web import Web
from proxyctl.worker.network.outward import WayOut
from proxyctl.worker.network.ports import Ports
from proxyctl.worker.network.tunnel import job_tunnel
from proxyctl.worker.sensors import host, nvidia
from proxyctl.worker.task.allowance import Allowance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from proxyctl.worker.base.record import Consent
    from proxyctl.worker.executors.base.base import Executor
    from proxyctl.worker.network.outward import Outward
    from proxyctl.worker.sensors.nvidia import Gpu
    from proxyctl.worker.task.journal import Entry

_logger = logging.getLogger("worker")

_MEGABIT_BYTES: Final = 1_000_000 / 8
_NAME_MAX_CHARACTERS: Final = 200  # of a GPU, as the daemon takes it


class CannotWorkError(OwnerError):
    """This device cannot run any job; the message names the missing part."""


def agent_of(consent: Consent, folder: Path) -> Agent:
    """Return the agent of a device.

    Raises:
        CannotWorkError: more is lent than is there, there is no sandbox that could be used, or it
            cannot hold its limits.
    """
    problems = not_in_machine(consent.lend, consent.sandbox, folder)
    if problems:
        raise CannotWorkError(f"{'; '.join(problems)}; {AGREE}")
    way_out = WayOut(consent.api)
    egress = Egress(way_out) if consent.lend.network == "egress" else None

    def close() -> None:
        if egress is not None:
            egress.stop()
        way_out.close()

    try:
        executors = _usable(consent, folder, egress, way_out)
    except CannotWorkError:
        close()
        raise
    return agent_with(consent, folder, executors, way_out, close)


def _usable(
    consent: Consent, folder: Path, egress: Egress | None, outward: Outward
) -> dict[str, Executor]:
    """Return the executors of this device; raises `CannotWorkError`."""
    try:
        executors, findings = sandboxes.usable(
            consent.sandbox, consent.lend, folder, egress, outward.dial
        )
    except TaskError as error:
        raise CannotWorkError(error.message) from None
    if not executors:
        missing = [each for part in findings.values() for each in part if not each.is_met]
        words = "; ".join(f"{each.id}: {each.actual}" for each in missing)
        raise CannotWorkError(f"no job can be walled in here ({words}); run: proxyctl worker check")
    return executors


def agent_with(
    consent: Consent,
    folder: Path,
    executors: Mapping[str, Executor],
    outward: Outward,
    close: Callable[[], None],
) -> Agent:
    """Return an agent that uses these executors, and calls `close` at its end.

    `outward` connects to places of strangers. Its guard judges where the daemon's port for devices
    may be, if not where its API is.
    """
    gpus = lent_gpus(consent)
    link = Link(consent.api, consent.token)

    def log_sender(entry: Entry, attempt_folder: Path) -> LogSender:
        path = f"/api/worker/jobs/{entry.job_id}/log"

        def post(stream: str, offset: int, data: bytes) -> dict[str, Any]:
            query: dict[str, str | int] = {
                "attempt": entry.attempt,
                "offset": offset,
                "stream": stream,
            }
            return link.post_raw(path, query, data)

        return LogSender(attempt_folder, post)

    processor = host.Processor()
    allowance = _allowance(consent, folder)
    unpacks = unpacking.check(folder if folder.is_dir() else None)
    if not unpacks.is_met:
        _logger.warning("no job with archives is taken: %s", unpacks.actual)
    can = {**capabilities(consent, executors, gpus), "archives": unpacks.is_met}
    device = Device(
        executors=executors,
        executor_for=lambda payload: sandboxes.executor_for(executors, payload),
        log_sender=log_sender,
        transfers=FileTransfers(link, Web(consent.api, consent.token, outward), consent.lend),
        ports=Ports(job_tunnel(consent.api, consent.token, link.get, outward.guard, allowance)),
        gpus=gpus,
        capabilities=lambda: {**can, "ports": [] if allowance.is_spent else can["ports"]},
        readings=lambda: {**host.readings(processor), **_gpu_readings(gpus)},
        rules=Rules(
            consent.when,
            _local_time,
            lambda: _readings(consent, gpus, folder),
        ),
        close=close,
    )
    return Agent(consent, folder, link, device)


def _allowance(consent: Consent, folder: Path) -> Allowance:
    lend = consent.lend
    return Allowance(
        folder / names.PORTS,
        int(lend.ports_gb_per_day * GIGABYTE),
        lend.ports_mbps * _MEGABIT_BYTES,
        _local_time,
        time.monotonic,
    )


def _local_time() -> datetime:
    return datetime.now(timezone.utc).astimezone()


def lent_gpus(consent: Consent) -> tuple[Gpu, ...]:
    """Return the GPUs that the owner lends, and that are there."""
    wanted = consent.lend.gpus
    if not wanted:
        return ()
    gpus = tuple(each for each in nvidia.read_gpus() if ALL_GPUS in wanted or each.uuid in wanted)
    missing = set(wanted) - {ALL_GPUS} - {each.uuid for each in gpus}
    if missing or not gpus:
        _logger.warning("lent GPUs that are not in this device: %s", ", ".join(missing) or "all")
    return gpus


def capabilities(
    consent: Consent, executors: Mapping[str, Executor], gpus: tuple[Gpu, ...]
) -> dict[str, Any]:
    """Return the capabilities of a device for the daemon."""
    return {
        "executors": list(executors),
        "ports": [name for name, each in executors.items() if each.can_reach_ports()],
        "job_types": list(consent.lend.jobs),
        "arch": os.uname().machine,
        "gpus": [each.as_fields() for each in gpus],
        "cuda": nvidia.cuda_version() if gpus else "",
        "network": consent.lend.network,
    }


def _gpu_readings(gpus: tuple[Gpu, ...]) -> dict[str, Any]:
    if not gpus:
        return {}
    kinds = {each.name for each in gpus}
    largest = max(gpus, key=lambda each: each.vram_mb)
    count = f"{len(gpus)} x " if len(gpus) > 1 and len(kinds) == 1 else ""
    values: dict[str, Any] = {"gpu_name": f"{count}{largest.name}"[:_NAME_MAX_CHARACTERS]}
    hottest = _hottest(gpus)
    return values if hottest is None else {**values, "gpu_temp": hottest}


def _hottest(gpus: tuple[Gpu, ...]) -> float | None:
    lent = {each.uuid for each in gpus}
    degrees = [each.temperature for each in nvidia.read_gpus() if each.uuid in lent]
    return max((each for each in degrees if each is not None), default=None)


def _readings(consent: Consent, gpus: tuple[Gpu, ...], folder: Path) -> Readings:
    when = consent.when
    return Readings(
        idle_seconds=host.idle_seconds() if when.idle_minutes else None,
        on_battery=None if when.on_battery else read_power().on_battery,
        cpu_temp=host.cpu_temperature() if when.cpu_temp_max else None,
        gpu_temp=_hottest(gpus) if gpus and when.gpu_temp_max else None,
        free_bytes=free_bytes(folder),
    )
