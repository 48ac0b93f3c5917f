"""Reload, restart and stop by systemctl, with the sockets held by systemd, under load."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.base.waiting import until, until_true
from support.clients.socks import tunnel
from support.daemons.process import DOWNLOAD_BYTES, begin
from support.machines.installed import EMAIL, PASSWORD, Service, block
from support.targets import targets, threads

PER_SECOND = 300
# A session may have 1,000 connections at once (`limits.connections_per_session`): on a machine that
# serves fewer clients than come, the daemon would refuse the next one with reason.
AT_ONCE_MAX = 900
LATE_SECONDS_MAX = 60
PASSWORDLESS_PORT = 1081


class Load:
    """Clients that come at their times, also while earlier ones wait, each over a connection of its
    own; none comes while `AT_ONCE_MAX` are there."""

    def __init__(self, proxy: dict[str, Any], target: targets.Target) -> None:
        self._proxy = proxy
        self._target = target
        self.served = 0
        self.present = 0
        self.failures: list[str] = []

    async def run(self, over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        began, number = loop.time(), 0
        async with asyncio.TaskGroup() as group:
            while not over.is_set():
                while number < (loop.time() - began) * PER_SECOND:
                    if self.present < AT_ONCE_MAX:
                        self.present += 1
                        group.create_task(self._visit())
                    number += 1
                await asyncio.sleep(1 / PER_SECOND)

    async def _visit(self) -> None:
        try:
            async with asyncio.timeout(LATE_SECONDS_MAX):
                client = await tunnel(
                    self._proxy["port"],
                    *(self._proxy["username"], self._proxy["password"]),
                    *(self._target.host, self._target.port),
                )
                await client.send(b"hello")
                assert await client.receive(5) == b"hello"
                await client.close()
        except (OSError, EOFError, AssertionError, TimeoutError) as error:
            self.failures.append(repr(error))
        else:
            self.served += 1
        finally:
            self.present -= 1


async def test_a_restart_under_load_refuses_no_client(running: Service, token: str) -> None:
    await restart_under_load(running, token)


async def test_several_processes_are_one_service(running: Service, token: str) -> None:
    machine = running.machine
    with running.changed(proxy__processes="2"):
        assert machine.show("StatusText").startswith("2 of 2 processes are ready: API on")
        await restart_under_load(running, token)
        cursor, main_pid = machine.journal_cursor(), running.main_pid
        await asyncio.to_thread(machine.run, block("systemctl reload"))
        line = "reload: reloaded: nothing has changed"
        await asyncio.to_thread(running.wait_for_line, line, cursor)
        children = f"cat /proc/{main_pid}/task/{main_pid}/children"
        for process in machine.says(children).split():
            cursor = machine.journal_cursor()
            machine.run(f"kill -KILL {process}")
            for line in (f"(pid {process}) was killed by SIGKILL", "is ready; 2 of 2"):
                await asyncio.to_thread(running.wait_for_line, line, cursor)
        assert (running.main_pid, running.state) == (main_pid, "active")
        assert await asyncio.to_thread(running.log_in, EMAIL, PASSWORD)


@contextmanager
def knocking(port: int) -> Iterator[list[str]]:
    """Connect to a port again and again, and say nothing; yield the refusals."""
    over = threading.Event()
    refused: list[str] = []

    def knock() -> None:
        while not over.wait(0.02):
            try:
                socket.create_connection(("127.0.0.1", port), LATE_SECONDS_MAX).close()
            except OSError as error:
                refused.append(repr(error))

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield refused
    finally:
        over.set()
        thread.join()


async def restart_under_load(running: Service, token: str) -> None:
    """Restart it twice while clients come; none may notice."""
    bought = await asyncio.to_thread(running.buy, token)
    over = asyncio.Event()
    async with targets.echo() as target:
        load = Load(bought["proxy"], target)
        task = asyncio.create_task(load.run(over))
        with knocking(PASSWORDLESS_PORT) as refused:
            for _ in range(2):
                enough = load.served + 2 * PER_SECOND
                await until(lambda enough=enough: load.served >= enough, "served")
                before = running.main_pid
                command = "systemctl restart proxyd.service"
                await asyncio.to_thread(running.machine.run, command)
                assert running.main_pid != before
        enough = load.served + 2 * PER_SECOND
        await until(lambda: load.served >= enough, "served")
        over.set()
        await task
    assert (load.failures, refused) == ([], [])


def test_a_reload_takes_limits_and_refuses_wrong_settings(running: Service) -> None:
    machine = running.machine
    before, cursor = running.main_pid, machine.journal_cursor()
    try:
        running.configure(limits__idle_seconds='"long"')
        machine.run(block("systemctl reload"))
        running.wait_for_line("not reloaded, the old settings stay: limits.idle_seconds", cursor)
        running.configure(limits__idle_seconds="7.0", market__session_days="3")
        machine.run(block("systemctl reload"))
        running.wait_for_line("these change with a restart only: market.session_days", cursor)
        assert "reloaded: limits.idle_seconds" in machine.journal(cursor)
    finally:
        running.configure()
        machine.run(block("systemctl reload"))
    until_true(lambda: running.state == "active")
    assert running.main_pid == before


def test_a_stop_waits_for_a_transfer_to_end(running: Service, token: str) -> None:
    cursor = running.machine.journal_cursor()
    with threads.web() as target:
        bought = running.buy(token)
        connection = begin(running, bought["proxy"], target.port)
        stopping = threading.Thread(
            target=running.machine.run, args=("systemctl stop proxyd.service",)
        )
        stopping.start()
        until_true(lambda: running.state == "deactivating")
        running.wait_for_line("draining: 1 connections", cursor)
        assert running.machine.show("StatusText") == "draining 1 connections"
        with connection, connection.makefile("rb") as file:
            assert file.read().endswith(targets.pattern(DOWNLOAD_BYTES))
        stopping.join()
    assert (running.state, running.machine.show("Result")) == ("inactive", "success")
    # The sockets still listen: a new connection starts it.
    with socket.create_connection(("127.0.0.1", 8080)):
        until_true(lambda: running.state == "active", "started by a client")
    assert running.log_in(EMAIL, PASSWORD)


def test_a_stop_cuts_connections_that_do_not_end_in_time(running: Service, token: str) -> None:
    cursor = running.machine.journal_cursor()
    with running.changed(limits__drain_seconds="1.0"), threads.web() as target:
        with begin(running, running.buy(token)["proxy"], target.port):
            running.machine.run("systemctl stop proxyd.service")
        assert (running.state, running.machine.show("Result")) == ("inactive", "success")
    assert "cutting 1 connections" in running.machine.journal(cursor)


def test_stopped_with_its_sockets_it_stays_stopped(running: Service) -> None:
    running.machine.run("systemctl stop proxyd.service 'proxyd*.socket'")
    for port in (1080, PASSWORDLESS_PORT, 8080):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
    assert running.state == "inactive"
    # Its sockets come with it.
    running.machine.run("systemctl start proxyd.service")
    for port in (1080, PASSWORDLESS_PORT, 8080):
        socket.create_connection(("127.0.0.1", port)).close()


async def test_the_ports_of_devices_and_pages_are_held_where_their_units_are_enabled(
    running: Service,
) -> None:
    machine = running.machine
    units = "proxyd-exits.socket proxyd-apps.socket"
    parts = {"exits__host": '"127.0.0.1"', "exits__public_host": '"127.0.0.1"'}
    running.configure(**parts, apps__host='"127.0.0.1"', apps__domain='"localhost"')
    machine.run(f"systemctl enable {units}; systemctl restart proxyd.service")
    try:
        with knocking(1090) as devices, knocking(8081) as visitors:
            await asyncio.to_thread(machine.run, "systemctl restart proxyd.service")
            assert running.state == "active"
    finally:
        machine.run(f"systemctl disable --now {units}")
        running.configure()
        machine.run("systemctl restart proxyd.service")
    assert (devices, visitors) == ([], [])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", 1090)) != 0
