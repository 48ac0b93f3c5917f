"""The device nodes of GPUs, so that a job gets exactly its granted GPUs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from proxyctl.worker.executors.base.base import TaskError

_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
# Of the driver as a whole: the nodes that every program needs beside the card, where they exist.
_SHARED: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def gpu_nodes(
    uuids: tuple[str, ...], driver: Path = _DRIVER, devices: Path = Path("/dev")
) -> list[str]:
    """Return the nodes of some GPUs; none for none.

    Args:
        uuids: as the driver names them ("GPU-…").
        driver: where it tells of them.
        devices: where the nodes are.

    Raises:
        TaskError: one of them is not there, or has no node.
    """
    if not uuids:
        return []
    minors = _minors(driver)
    nodes = []
    for uuid in uuids:
        node = devices / f"nvidia{minors.get(uuid, '')}"
        if uuid not in minors or not node.exists():
            raise TaskError("host", f"the driver knows no GPU {uuid}, or it has no device node")
        nodes.append(node)
    nodes += [devices / name for name in _SHARED if (devices / name).exists()]
    return [str(node) for node in nodes]


def _minors(driver: Path) -> dict[str, str]:
    """Return the number of each GPU's node."""
    minors = {}
    with suppress(OSError):
        for information in driver.glob("*/information"):
            fields = {}
            for line in information.read_text().splitlines():
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
            if fields.get("Device Minor", "").isdecimal():
                minors[fields.get("GPU UUID", "")] = fields["Device Minor"]
    return minors
