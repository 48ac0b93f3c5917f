"""Exits of a daemon of several processes, each a real process, with real agents.

The kernel chooses the process for a client; there are enough clients for all of them.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.base.brief import brief
from support.base.waiting import PATIENCE_SECONDS, until_true
from support.clients.downloads import Download, downloading
from support.daemons import process
from support.daemons.process import PROCESSES, Process
from support.exits.process import ExitAgents, exit_agents
from support.exits.wire import wired
from support.targets import threads
from support.targets.keyed import Tally

NUMBER = 3
# 40 clients leave a process without one once in three million runs.
CLIENTS = 40
ENOUGH_BYTES = 100_000
# Transfers continue, and leave the processor to the rest of the test.
SETTINGS = {
    PROCESSES: str(NUMBER),
    "PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": "20000000",
    "PROXYD_LIMITS__DRAIN_SECONDS": "30",
}


class Running:
    """A daemon of several processes with an exit, and a session that leaves through it."""

    def __init__(self, daemon: Process, exits: ExitAgents, owner: str, buyer: str) -> None:
        self.daemon = daemon
        self.exits = exits
        self.owner = owner
        self.buyer = buyer
        self.bought = daemon.buy(daemon.log_in(buyer, "long enough"), gb=50)
        proxy: dict[str, Any] = self.bought["proxy"]
        self.proxy = {**proxy, "username": proxy["username"] + "-country-xx"}

    def pause(self) -> None:
        """Pause the exit in its owner's account."""
        token = self.daemon.log_in(self.owner, "long enough")
        _, mine = self.daemon.call("GET", "/api/exits/me", token=token)
        for each in mine["exits"]:
            body = {"token_id": each["device_id"]}
            status, answer = self.daemon.call("POST", "/api/worker/exit/pause", body, token)
            assert status == 200, answer


@contextmanager
def running(url: str, folder: Path, port: int) -> Iterator[Running]:
    """Run it; nothing of it is left when the test is over."""
    buyer, _ = process.funded(url)
    owner, password = process.funded(url, "0.01", "owner")
    with wired(Tally(), 1) as wire, exit_agents(folder, wire, [port]) as exits:
        with process.serving(url, **exits.settings, **SETTINGS) as daemon:
            children = daemon.children()
            (agent,) = exits.agents
            agent.agree(daemon, daemon.log_in(owner, password))
            exits.serve(daemon)
            yield Running(daemon, exits, owner, buyer)
            with suppress(psutil.NoSuchProcess):  # it has stopped already
                children += daemon.children()
            assert daemon.stop() == 0, daemon.output
            _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
            assert alive == []
            assert "Traceback" not in daemon.output, daemon.output
        exits.lose()
    process.assert_audit(url)


def from_exits(it: Running, index: int) -> int:
    """Count the connections of exits that one of the processes has."""
    pid, port = it.daemon.pid_of(index), it.exits.wire.daemon_port
    return sum(
        each.laddr.port == port and each.status != psutil.CONN_LISTEN
        for each in psutil.Process(pid).net_connections("tcp")
    )


def all_flow(made: list[Download]) -> bool:
    return all(each.received > ENOUGH_BYTES for each in made)


def test_clients_of_every_process_leave_through_the_exit(store_url: str, tmp_path: Path) -> None:
    with threads.endless() as target, running(store_url, tmp_path, target.port) as it:
        others = range(1, NUMBER)
        assert [from_exits(it, index) for index in others] == [0, 0]
        with downloading([it.daemon] * CLIENTS, it.proxy, target.port) as made:
            until_true(lambda: all_flow(made), "all of them flow")
            relayed = [from_exits(it, index) for index in others]
            assert all(relayed)
            assert sum(relayed) < CLIENTS
            it.pause()
            until_true(lambda: all(each.is_over for each in made), "all are cut")
        until_true(lambda: not any(from_exits(it, index) for index in others), "none is left")


@pytest.mark.long
@pytest.mark.parametrize("index", brief([0, 1]))
def test_when_a_process_is_killed_the_others_relays_go_on(
    store_url: str, tmp_path: Path, index: int
) -> None:
    with threads.endless() as target, running(store_url, tmp_path, target.port) as it:
        daemon = it.daemon
        with downloading([daemon] * CLIENTS, it.proxy, target.port) as made:
            until_true(lambda: all_flow(made), "all of them flow")
            pid = daemon.pid_of(index)
            daemon.kill(index)
            until_true(lambda: any(each.is_over for each in made), "those of the dead are cut")
            daemon.wait_renewed(index, pid or 0)
            left = [each for each in made if not each.is_over]
            assert left
            earlier = [each.received for each in left]
            until_true(
                lambda: all(
                    each.received > before + ENOUGH_BYTES
                    for each, before in zip(left, earlier, strict=True)
                ),
                "the others' go on",
            )
            it.exits.wait_attached(daemon)
            with downloading([daemon] * CLIENTS, it.proxy, target.port) as more:
                until_true(lambda: all_flow(more), "new ones flow in every process")
                it.pause()
                until_true(lambda: all(each.is_over for each in (*left, *more)), "all are cut")


def test_exits_serve_every_process_until_all_have_drained(store_url: str, tmp_path: Path) -> None:
    with threads.endless() as target, running(store_url, tmp_path, target.port) as it:
        daemon = it.daemon
        with downloading([daemon] * CLIENTS, it.proxy, target.port) as made:
            until_true(lambda: all_flow(made), "all of them flow")
            daemon.process.send_signal(signal.SIGTERM)
            until_true(lambda: "draining" in daemon.output, "it drains")
            for each in made:
                each.close()
            until_true(lambda: daemon.process.poll() is not None, "it has ended")
        assert "go through exits still" not in daemon.output, daemon.output
