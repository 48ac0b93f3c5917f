"""Runs the benchmark of the marketplace on this device."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from proxyctl.protocol.benchmarks import Chains, Walk, block, chain, walk
from proxyctl.worker.base.link import LinkError
from proxyctl.worker.base.record import GIGABYTE
from proxyctl.worker.sensors import host

if TYPE_CHECKING:
    from proxyctl.worker.base.link import Link
    from proxyctl.worker.base.record import Lend

_PATH: Final = "/api/worker/benchmark"
# Of the memory that is free now: other programs of the owner's are not to be pushed out.
_FREE_PART: Final = 0.8
# The most rounds of a link, four times the usual number: an agent that is to end waits for its
# threads.
_ROUNDS_MAX: Final = 200_000
_SECONDS: Final = 120.0  # that an answer may take: others may be checked before it


def show(link: Link, lend: Lend, *, is_short: bool = False) -> dict[str, Any]:
    """Do all tasks, and return the results that the marketplace has seen.

    Args:
        link: with the marketplace.
        lend: the loan of the owner; no more is tried.
        is_short: whether memory is left out. It takes some seconds then.

    Raises:
        LinkError: the marketplace was not reached, or it asked for more than was offered; it may be
            tried again.
        RefusedError: it did not take an answer, or there were too many today.
    """
    cores = max(1, min(int(lend.cores), host.cores()))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _FREE_PART
    memory_bytes = int(min(lend.ram_gb * GIGABYTE, free))
    fields: dict[str, Any] = {"cores": cores, "memory_bytes": memory_bytes}
    if is_short:
        fields = {"cores": cores, "is_short": True}
        memory_bytes = 0
    reply = link.post(_PATH, fields)
    memory: mmap.mmap | None = None
    try:
        while "task" in reply:
            task = reply["task"]
            _require_offered(task, cores, memory_bytes)
            if task["kind"] == "fill":
                if memory is not None:  # it is not held twice
                    memory.close()
                memory = _filled(_walk(task))
            values = _done(task, memory)
            answer = {"task_id": task["id"], "values": [value.hex() for value in values]}
            reply = link.post(f"{_PATH}/answer", answer, seconds=_SECONDS)
    finally:
        if memory is not None:
            memory.close()
    shown: dict[str, Any] = reply["benchmark"]
    return shown


def _require_offered(task: dict[str, Any], cores: int, memory_bytes: int) -> None:
    """Refuse a task that would take more of the device than its owner lends."""
    if task["kind"] == "chains":
        is_offered = task["chains"] <= cores and task["rounds"] <= _ROUNDS_MAX
    else:
        is_offered = task["blocks"] * task["block_bytes"] <= memory_bytes
    if not is_offered:
        raise LinkError("the marketplace asks for more than was offered")


def _done(task: dict[str, Any], memory: mmap.mmap | None) -> list[bytes]:
    if task["kind"] == "chains":
        chains = Chains(bytes.fromhex(task["seed"]), task["chains"], task["rounds"])
        with ThreadPoolExecutor(chains.chains) as threads:  # hashing holds no lock of Python's
            done = threads.map(lambda number: chain(chains, number), range(chains.chains))
            return [link for links in done for link in links]
    if task["kind"] == "fill" or memory is None:
        return []
    wanted = _walk(task)

    def read(number: int, offset: int, size: int) -> bytes:
        begin = number * wanted.block_bytes + offset
        return memory[begin : begin + size]

    return walk(wanted, read)


def _walk(task: dict[str, Any]) -> Walk:
    return Walk(
        bytes.fromhex(task["seed"]),
        task["blocks"],
        task["block_bytes"],
        bytes.fromhex(task.get("start", "")),
        task.get("steps", 0),
    )


def _filled(task: Walk) -> mmap.mmap:
    memory = mmap.mmap(-1, task.blocks * task.block_bytes)
    for number in range(task.blocks):
        memory.write(block(task.seed, number, task.block_bytes))
    return memory
