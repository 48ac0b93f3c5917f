"""The service manager gets notifications in the protocol of sd_notify, if it runs."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.descriptors import none_left

from proxyd.ops.processes.sd_notify import service_manager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        yield sock


def told(sock: socket.socket) -> list[str]:
    return sock.recv(4096).decode().split("\n")


def test_each_state_is_notified(manager: socket.socket) -> None:
    service = service_manager({"NOTIFY_SOCKET": manager.getsockname()})
    service.ready("serving")
    assert told(manager) == ["READY=1", "STATUS=serving"]
    service.reloading()
    first, second = told(manager)
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    service.stopping("draining")
    assert told(manager) == ["STOPPING=1", "STATUS=draining"]


def test_an_abstract_address_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0proxyd-test-" + os.urandom(8).hex())
        sock.settimeout(10)
        service_manager({"NOTIFY_SOCKET": "@" + sock.getsockname()[1:].decode()}).ready("x")
        assert told(sock)[0] == "READY=1"


async def test_the_watchdog_is_fed_again_when_there_are_descriptors_again(
    manager: socket.socket,
) -> None:
    service = service_manager(
        {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000"},
    )
    with none_left():
        service.ready("serving")
        feeding = asyncio.get_running_loop().create_task(service.feed())
        await asyncio.sleep(0)
    assert await asyncio.to_thread(told, manager) == ["WATCHDOG=1"]
    feeding.cancel()
    await asyncio.wait([feeding])


@cases("address", ["", "/nowhere/at/all"])
def test_without_a_manager_nothing_fails(address: str) -> None:
    service_manager({"NOTIFY_SOCKET": address}).ready("serving")


async def test_the_watchdog_is_fed_again_and_again(manager: socket.socket) -> None:
    service = service_manager(
        {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000"},
    )
    feeding = asyncio.get_running_loop().create_task(service.feed())
    for _ in range(3):
        assert await asyncio.to_thread(told, manager) == ["WATCHDOG=1"]
    feeding.cancel()
    await asyncio.wait([feeding])


@cases(
    "environment",
    [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1"}],
)
async def test_a_service_without_a_watchdog_is_not_fed(environment: dict[str, str]) -> None:
    await service_manager(environment).feed()
