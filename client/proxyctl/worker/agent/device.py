"""The device that an agent works on: its executors, files, ports, GPUs and rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from proxyctl.protocol.jobspec.payload import Payload
    from proxyctl.worker.agent.rules import Rules
    from proxyctl.worker.attempt.log_sender import LogSender
    from proxyctl.worker.executors.base.base import Executor
    from proxyctl.worker.files.transfers import FileTransfers
    from proxyctl.worker.network.ports import Ports
    from proxyctl.worker.sensors.nvidia import Gpu
    from proxyctl.worker.task.journal import Entry


@dataclass(frozen=True)
class Device:
    """The parts of a device that an agent works with.

    Attributes:
        executors: the usable ones, by name, in the order of preference.
        executor_for: returns the executor for a payload; raises TaskError if no executor fits.
        log_sender: makes the sender of an attempt's log.
        capabilities: returns the capabilities of the device, for the daemon.
        readings: returns the readings of the sensors, for every heartbeat.
        close: closes the parts that executors share, at the very end.
    """

    executors: Mapping[str, Executor]
    executor_for: Callable[[Payload], Executor]
    log_sender: Callable[[Entry, Path], LogSender]
    transfers: FileTransfers
    ports: Ports
    gpus: tuple[Gpu, ...]
    capabilities: Callable[[], Mapping[str, Any]]
    readings: Callable[[], dict[str, Any]]
    rules: Rules
    close: Callable[[], None]
