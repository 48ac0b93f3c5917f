"""Several processes on the ports of one daemon (`proxy.processes`), each a real process.

The kernel chooses the process for a client. So there are enough clients for all of them, and the
checks hold for any process.
"""

import json
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from support.base.brief import brief
from support.base.waiting import PATIENCE_SECONDS, until_true
from support.clients.downloads import Download, completed, downloading, received
from support.clients.story import INSTANT_BYTES
from support.daemons import process
from support.daemons.process import PROCESSES, Process, begin
from support.daemons.supervisor import supervising
from support.targets import threads
from support.targets.tls import make_certificate

MB = 1_000_000
GB = 1_000 * MB
# Transfers continue, and leave the processor to the rest of the test.
PACED = {"PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": str(40 * MB)}
# With this number of clients, one of a few processes is left without any once in ten thousand
# times.
CLIENTS = 40
# Processes without connections log that they drain only at this level.
DEBUG = {"PROXYD_LOG__LEVEL": "debug"}
# A drain ends with its last connection, however long a busy machine takes.
PATIENT = {"PROXYD_LIMITS__DRAIN_SECONDS": "3600"}
DRAINING = re.compile(r"\[\d+\] daemon: (?:draining|stopping): ")


@contextmanager
def serving(url: str, number: int = 3, **settings: str) -> Iterator[Process]:
    """Run a daemon of several processes; none is left when the test is over."""
    with process.serving(url, **{PROCESSES: str(number)}, **settings) as daemon:
        children = daemon.children()
        try:
            yield daemon
        finally:
            with suppress(psutil.NoSuchProcess):
                children += daemon.children()
            daemon.stop(signal.SIGKILL)
            _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
            assert alive == [], daemon.output


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an SQLite database that is not there yet."""
    return f"sqlite:///{tmp_path}/proxyd.db"


@contextmanager
def downloads(daemon: Process, proxy: dict[str, Any], number: int) -> Iterator[list[Download]]:
    """Have clients read for as long as they are let."""
    with threads.endless() as target, downloading([daemon] * number, proxy, target.port) as made:
        yield made


class Load(NamedTuple):
    """A daemon of three processes, and clients that read through it."""

    daemon: Process
    email: str
    token: str
    bought: dict[str, Any]
    downloads: list[Download]


@contextmanager
def loaded(url: str, clients: int, **settings: str) -> Iterator[Load]:
    """Have a daemon with clients of one session, who all have read something."""
    with serving(url, **settings) as daemon:
        email, password = process.funded(url)
        token = daemon.log_in(email, password)
        bought = daemon.buy(token, gb=50)
        with downloads(daemon, bought["proxy"], clients) as made:
            until_true(lambda: all(each.received > MB for each in made), "all of them flow")
            yield Load(daemon, email, token, bought, made)


def metrics(daemon: Process) -> dict[str, float]:
    """Return every number that a scrape shows."""
    with urllib.request.urlopen(f"{daemon.api}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def listening(daemon: Process) -> int:
    """Return how many of the processes listen at the proxy's port."""
    supervisor = psutil.Process(daemon.process.pid)
    return sum(
        (each.status, each.laddr.port) == (psutil.CONN_LISTEN, daemon.proxy_port)
        for each in supervisor.net_connections("tcp")
    )


def fetch(daemon: Process, proxy: dict[str, Any], port: int, size: int = 100) -> None:
    """Fetch something over a connection of its own."""
    with process.proxied(daemon, proxy, port) as connection:
        connection.sendall(f"GET /bytes/{size} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        while connection.recv(65_536):
            pass


@pytest.mark.both_engines
def test_sixty_downloads_of_one_session_stop_at_the_last_byte_on_four_processes(
    store_url: str,
) -> None:
    url, quota = store_url, 200 * MB + 1
    email, password = process.funded(url)
    with serving(url, 4) as daemon:
        token = daemon.log_in(email, password)
        bought = daemon.buy(token, gb=quota / GB)
        with downloads(daemon, bought["proxy"], 60) as made:
            assert completed(made) == quota
        until_true(lambda: daemon.used(token, bought["session_id"]) == quota, "all is billed")
        _, body = daemon.call("GET", "/api/bandwidth/sessions?status=exhausted", token=token)
        assert [each["id"] for each in body["sessions"]] == [bought["session_id"]]
        assert daemon.stop() == 0
    process.assert_audit(url)


def test_an_end_cuts_on_every_process_and_bills_the_delivered_bytes(url: str) -> None:
    with loaded(url, 20) as (daemon, _, token, bought, made):
        status, body = daemon.call(
            "POST", "/api/bandwidth/end", {"session_id": bought["session_id"]}, token
        )
        assert (status, body) == (200, {"ok": True})
        until_true(lambda: all(each.is_over for each in made), "all are cut")
        billed = process.bytes_used(url, bought["session_id"])
        assert billed >= received(made) - len(made) * INSTANT_BYTES
        with pytest.raises(OSError):
            begin(daemon, bought["proxy"], 9)
        assert daemon.stop() == 0
    process.assert_audit(url)


@pytest.mark.parametrize("index", brief([0, 1]))
def test_a_process_that_is_killed_under_load_is_started_again_and_the_rest_is_usable(
    url: str, index: int
) -> None:
    quota = 150 * MB  # the target is slow: the quota must outlast the start of a process
    email, password = process.funded(url)
    with threads.endless(is_slow=True) as target, serving(url, **PACED) as daemon:
        bought = daemon.buy(daemon.log_in(email, password), gb=quota / GB)
        pids = [daemon.pid_of(each) for each in range(3)]
        clients = partial(downloading, [daemon] * 20, bought["proxy"], target.port)
        with clients() as made:
            until_true(lambda: all(each.received > 10_000 for each in made), "all of them flow")
            daemon.kill(index)
            daemon.wait_renewed(index, pids[index] or 0)
            until_true(lambda: any(each.is_over for each in made), "those of the dead are cut")
            with clients() as more:
                target.hurry()
                delivered = completed(made) + completed(more)
        until_true(lambda: process.bytes_used(url, bought["session_id"]) == quota, "all is used")
        # All that is billed was delivered; the unreported bytes of the dead process are given away.
        assert quota <= delivered
        assert [daemon.pid_of(each) == pids[each] for each in range(3)] == [
            each != index for each in range(3)
        ]
        assert f"process {index} (pid {pids[index]}) was killed by SIGKILL" in daemon.output
        assert daemon.stop() == 0
    process.assert_audit(url)


@pytest.mark.long
def test_without_the_supervisor_the_processes_write_their_counts_and_leave(url: str) -> None:
    with loaded(url, 12) as (daemon, _, token, bought, made):
        children = daemon.children()
        os.kill(daemon.process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
        assert alive == []
        delivered, instant = completed(made), len(made) * INSTANT_BYTES
        assert daemon.wait() == -signal.SIGKILL
        said = re.findall(
            r"the supervisor is gone; this process cuts (\d+) connections and stops", daemon.output
        )
        assert len(said) == 3
        assert sum(map(int, said)) == len(made)
        assert "drain" not in daemon.output
    assert delivered - instant <= process.bytes_used(url, bought["session_id"])
    with serving(url) as successor:  # neither the ports nor the claim are held
        assert successor.used(token, bought["session_id"]) <= delivered + instant
        assert successor.stop() == 0
    process.assert_audit(url)


def test_live_transfers_of_every_process_finish_when_it_drains(url: str) -> None:
    email, password = process.funded(url)
    with threads.web() as target, serving(url, **DEBUG, **PATIENT) as daemon:
        bought = daemon.buy(daemon.log_in(email, password), gb=10)
        live = [begin(daemon, bought["proxy"], target.port) for _ in range(12)]
        daemon.process.send_signal(signal.SIGTERM)
        until_true(lambda: len(DRAINING.findall(daemon.output)) == 3, "all drain")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", daemon.proxy_port))
        for connection in live:
            with connection:
                size = 1
                while data := connection.recv(262_144):
                    size += len(data)
                assert size > process.DOWNLOAD_BYTES
        assert daemon.wait() == 0
        assert len(re.findall(r"\[\d+\] daemon: stopped\n", daemon.output)) == 3
        assert process.bytes_used(url, bought["session_id"]) == target.received + target.sent
    process.assert_audit(url)


def test_ctrl_c_reaches_each_process_once_and_a_second_one_cuts(url: str) -> None:
    """A terminal signals the whole process group, the supervisor's."""
    email, password = process.funded(url)
    with threads.web() as target, serving(url, 2, **PATIENT) as daemon:
        bought = daemon.buy(daemon.log_in(email, password))
        with begin(daemon, bought["proxy"], target.port):
            os.killpg(daemon.process.pid, signal.SIGINT)
            until_true(lambda: "draining: 1 connections" in daemon.output, "it drains")
            assert "cut short" not in daemon.output
            os.killpg(daemon.process.pid, signal.SIGINT)
            assert daemon.wait() == 0
        assert "draining cut short by a second signal: 1 connections" in daemon.output


def test_a_service_manager_that_signals_every_process_cuts_nothing(url: str) -> None:
    """As systemd does: SIGTERM goes to all, and the supervisor passes on its own."""
    email, password = process.funded(url)
    with threads.web() as target, serving(url, 2, **PATIENT) as daemon:
        bought = daemon.buy(daemon.log_in(email, password))
        connection = begin(daemon, bought["proxy"], target.port)
        for child in daemon.children():
            child.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGTERM)
        until_true(lambda: "draining: 1 connections" in daemon.output, "it drains")
        with connection:
            size = 1
            while data := connection.recv(262_144):
                size += len(data)
        assert size > process.DOWNLOAD_BYTES
        assert daemon.wait() == 0


def test_a_reload_reaches_every_process_and_the_successors_of_the_killed(
    url: str, tmp_path: Path
) -> None:
    path = tmp_path / "proxyd.toml"
    path.write_text("[proxy]\nprocesses = 2\n[limits]\nconnections_per_address = 100\n")
    email, password = process.funded(url)
    with process.serving(url, "--config", str(path)) as daemon:
        until_true(lambda: "2 of 2 processes are ready" in daemon.output, "both are ready")
        bought = daemon.buy(daemon.log_in(email, password))
        path.write_text("[proxy]\nprocesses = 9\n[limits]\nconnections_per_address = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        until_true(lambda: "only: proxy.processes" in daemon.output, "both have reloaded")
        assert daemon.output.count("reloaded: limits.connections_per_address") == 1
        pid = daemon.pid_of(1)
        daemon.kill(1)
        daemon.wait_renewed(1, pid or 0)
        live = []
        with threads.web() as target:
            for _ in range(CLIENTS):
                with suppress(OSError):
                    live.append(begin(daemon, bought["proxy"], target.port))
            assert len(live) == 2  # one in each process
            for connection in live:
                connection.close()
        path.write_text("[limits]\nnonsense = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        refused = "not reloaded, the old settings stay"
        until_true(lambda: refused in daemon.output, "the supervisor says so")
        assert daemon.stop() == 0
        assert daemon.output.count(refused) == 1


def test_the_log_has_the_common_lines_of_all_processes_once(url: str) -> None:
    with serving(url) as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        until_true(lambda: "reloaded: nothing has changed" in daemon.output, "it is reloaded")
        killed = daemon.pid_of(2)
        daemon.kill(2)
        daemon.wait_renewed(2, killed or 0)
        assert daemon.stop() == 0
    said = [line.split(" ", 2)[2] for line in daemon.lines if " INFO " in line]
    begins = (
        "supervisor: this is proxyd ",
        "supervisor: 3 of 3 processes are ready: API on ",
        "reload: reloaded: nothing has changed",
        "supervisor: process 2 (pid ",
        "supervisor: draining: 3 processes have 5 seconds",
        "supervisor: stopped",
    )
    said = [line for line in said if "whose leases are taken back" not in line]
    assert len(said) == len(begins), daemon.output
    for line, begin_of_line in zip(said, begins, strict=True):
        assert line.startswith(begin_of_line), daemon.output


def test_a_certificate_that_is_wrong_leaves_every_process_at_the_old_settings(
    url: str, tmp_path: Path
) -> None:
    path, chain, key = tmp_path / "proxyd.toml", make_certificate(tmp_path).path, "key.pem"
    right = chain.read_bytes()
    text = f'[api]\ntls_cert = "{chain}"\ntls_key = "{tmp_path / key}"\n'
    text += "[proxy]\nprocesses = 2\n[limits]\n"
    path.write_text(text + "connections_per_address = 100\n")
    with process.serving(url, "--config", str(path)) as daemon:
        until_true(lambda: "2 of 2 processes are ready" in daemon.output, "both are ready")
        path.write_text(text + "connections_per_address = 1\n")
        chain.write_text("no certificate")
        daemon.process.send_signal(signal.SIGHUP)
        refused = "supervisor: not reloaded, the old settings stay: cannot use the certificate"
        until_true(lambda: refused in daemon.output, "it is refused")
        chain.write_bytes(right)
        daemon.process.send_signal(signal.SIGHUP)
        done = "reload: reloaded: limits.connections_per_address"
        until_true(lambda: done in daemon.output, "both have reloaded now")
        assert daemon.output.count("not reloaded") == 1
        assert daemon.stop() == 0


def test_metrics_are_those_of_all_processes_and_no_counter_falls(url: str) -> None:
    email, password = process.funded(url)
    with threads.web() as target, serving(url) as daemon:
        bought = daemon.buy(daemon.log_in(email, password))
        for _ in range(CLIENTS):
            fetch(daemon, bought["proxy"], target.port)
        sent = target.received + target.sent

        def relayed() -> bool:
            seen = metrics(daemon)
            total = sum(seen[f'proxyd_bytes_total{{direction="{way}"}}'] for way in ("up", "down"))
            return (seen["proxyd_connections_total"], total) == (CLIENTS, sent)

        until_true(relayed, "all are counted")
        before = metrics(daemon)
        assert (before["proxyd_processes"], before["proxyd_process_restarts_total"]) == (3, 0)
        assert before["proxyd_build_info" + build_labels(before)] == 1
        for index in (2, 0):
            pid = daemon.pid_of(index)
            daemon.kill(index)
            daemon.wait_renewed(index, pid or 0)
        after = metrics(daemon)
        assert (after["proxyd_processes"], after["proxyd_process_restarts_total"]) == (3, 2)
        assert [
            name
            for name, value in before.items()
            if re.search("_(total|bucket|count|sum)", name) and after[name] < value
        ] == []
        assert after["proxyd_connections_total"] == CLIENTS
        assert daemon.stop() == 0


def build_labels(numbers: dict[str, float]) -> str:
    [name] = [name for name in numbers if name.startswith("proxyd_build_info")]
    return name.removeprefix("proxyd_build_info")


def test_one_process_has_no_metrics_about_several(url: str) -> None:
    with process.serving(url) as daemon:
        assert not [name for name in metrics(daemon) if "proxyd_process" in name]


def test_every_process_records_and_the_files_are_the_same(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "access"
    email, password = process.funded(url)
    with (
        threads.web() as target,
        serving(url, PROXYD_ACCESS_LOG__FOLDER=str(folder)) as daemon,
    ):
        bought = daemon.buy(daemon.log_in(email, password))
        for _ in range(CLIENTS):
            fetch(daemon, bought["proxy"], target.port)
        until_true(lambda: metrics(daemon)["proxyd_access_records_total"] == CLIENTS, "counted")
        assert daemon.stop() == 0
    [file] = folder.iterdir()
    every = [json.loads(line) for line in file.read_text().splitlines()]
    assert {each["process"] for each in every if each["event"] == "hour"} == {0, 1, 2}
    records = [each for each in every if each["event"] == "ended"]
    assert {each["session"] for each in records} == {bought["session_id"]}
    assert {each["process"] for each in records} == {0, 1, 2}
    total = sum(each["bytes_up"] + each["bytes_down"] for each in records)
    assert (len(records), total) == (CLIENTS, target.received + target.sent)


@pytest.mark.long
def test_the_operators_commands_work_beside_the_processes(url: str, tmp_path: Path) -> None:
    with loaded(url, 12, **PACED) as (daemon, email, token, _, _):
        copy = tmp_path / "copy.db"
        for command in (["backup", str(copy)], ["wallet", "deposit", email, "--usd", "7"]):
            done = process.run(url, *command)
            assert done.returncode == 0, done.stderr
        process.assert_audit(url)
        process.assert_audit(f"sqlite:///{copy}")
        _, me = daemon.call("GET", "/auth/me", token=token)
        assert me["usd_balance"] == 100 + 7 - 50
        assert daemon.stop() == 0


def test_a_process_with_a_stop_signal_drains_and_has_a_successor(url: str) -> None:
    with serving(url, 2) as daemon:
        pid = daemon.pid_of(1)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        daemon.wait_renewed(1, pid)
        assert f"process 1 (pid {pid}) has stopped; it is started again" in daemon.output
        assert daemon.stop() == 0
        assert daemon.output.count("stopped\n") == 1  # all of them, at the end
        assert daemon.lines[-1].endswith(" supervisor: stopped\n")


def test_the_database_is_claimed_by_the_processes_together(url: str) -> None:
    with serving(url, 2):
        for number in ("1", "2"):
            second = Process(url, **{PROCESSES: number})
            assert second.wait() == 1
            assert second.output.count("another proxyd serves from this database") == 1
            second.stop()


def test_a_failure_of_the_first_process_before_it_was_ready_is_the_daemons(tmp_path: Path) -> None:
    """The same message and status as one process has."""
    key = tmp_path / "signing.key"
    key.write_text("too short")
    url = f"sqlite:///{tmp_path}/proxyd.db"
    settings = {"PROXYD_AUTH__SIGNING_KEY": "", "PROXYD_AUTH__SIGNING_KEY_FILE": str(key)}
    outcomes = []
    for number in ("1", "3"):
        daemon = Process(url, **{PROCESSES: number}, **settings)
        status = daemon.wait()
        [message] = {line for line in daemon.lines if line.startswith("proxyd: the signing key")}
        outcomes.append((status, message))
        daemon.stop()
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 1


def test_a_first_process_that_is_killed_while_it_starts_is_not_started_again(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        database.execute("BEGIN EXCLUSIVE")  # so that it cannot open it
        daemon = Process(url, **{PROCESSES: "2"})
        until_true(lambda: daemon.pid_of(0) is not None, "it starts")
        pid = daemon.pid_of(0)
        daemon.kill(0)
        assert daemon.wait() == 1
    assert f"process 0 (pid {pid}) was killed by SIGKILL while it started" in daemon.output
    assert daemon.output.count("process 0") == 1
    daemon.stop()


def test_a_process_that_is_killed_while_all_drain_changes_the_exit_status(url: str) -> None:
    email, password = process.funded(url)
    limits = {"PROXYD_LIMITS__DRAIN_SECONDS": "3600"}
    with threads.web() as target, serving(url, 2, **limits) as daemon:
        bought = daemon.buy(daemon.log_in(email, password), gb=10)
        live = [begin(daemon, bought["proxy"], target.port) for _ in range(20)]
        pid = daemon.pid_of(1)
        daemon.process.send_signal(signal.SIGTERM)
        until_true(lambda: len(DRAINING.findall(daemon.output)) == 2, "both drain")
        daemon.kill(1)
        until_true(lambda: daemon.pid_of(1) is None, "it is seen to be dead")
        for connection in live:
            connection.close()
        assert daemon.wait() == 1
        assert daemon.output.count(f"process 1 (pid {pid}) was killed by SIGKILL\n") == 1
    process.assert_audit(url)


@pytest.mark.parametrize("number", brief(["0", "65"]))
def test_a_number_that_cannot_be_is_wrong_in_the_settings(url: str, number: str) -> None:
    daemon = Process(url, **{PROCESSES: number})
    assert daemon.wait() == 2
    assert "wrong in the settings: PROXYD_PROXY__PROCESSES" in daemon.output
    daemon.stop()


def test_more_processes_than_cores_are_warned_of_and_serve(url: str) -> None:
    number = len(os.sched_getaffinity(0)) + 1
    with serving(url, number) as daemon:
        assert f"proxy.processes is {number}, and this daemon may use {number - 1}" in daemon.output
        assert f"{number} of {number} processes are ready" in daemon.output


@pytest.mark.long
@pytest.mark.parametrize("index", brief([0, 2]))
def test_a_process_that_cannot_start_again_costs_no_client_and_the_rest_serves(
    url: str, index: int
) -> None:
    """Its successors inherit a limit of descriptors from the supervisor that opens no store."""
    email, password = process.funded(url)
    with threads.web() as target, serving(url) as daemon:
        bought = daemon.buy(daemon.log_in(email, password))
        supervisor, killed = daemon.process.pid, daemon.pid_of(index)
        soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (little_of(supervisor), hard))
        daemon.kill(index)
        failed = re.compile(
            rf"process {index} \(pid \d+\) ended with status 1; it is started again"
        )
        until_true(lambda: failed.search(daemon.output), "it fails")
        while len(failed.findall(daemon.output)) < 4:  # through a few attempts
            fetch(daemon, bought["proxy"], target.port)
        for _ in range(CLIENTS):
            fetch(daemon, bought["proxy"], target.port)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
        daemon.wait_renewed(index, killed or 0)
        assert daemon.call("GET", "/readyz")[0] == 200
        for _ in range(CLIENTS):
            fetch(daemon, bought["proxy"], target.port)
        assert daemon.stop() == 0


def test_without_a_descriptor_the_supervisor_tries_to_start_a_process_again(url: str) -> None:
    with serving(url, 2) as daemon:
        supervisor, killed = daemon.process.pid, daemon.pid_of(1)
        soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, hard))
        daemon.kill(1)
        refused = "process 1 could not be started: Too many open files; next attempt"
        until_true(lambda: daemon.output.count(refused) >= 2, "it tries")
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
        daemon.wait_renewed(1, killed or 0)
        assert daemon.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("index", brief([0, 1]))
def test_clients_go_to_the_others_while_one_process_drains(url: str, index: int) -> None:
    email, password = process.funded(url)
    limits = {"PROXYD_LIMITS__DRAIN_SECONDS": "3600"}
    with threads.web() as target, serving(url, 2, **limits) as daemon:
        bought = daemon.buy(daemon.log_in(email, password), gb=10)
        live = [begin(daemon, bought["proxy"], target.port) for _ in range(20)]
        pid = daemon.pid_of(index)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        until_true(lambda: "draining: " in daemon.output, "it drains")
        until_true(lambda: listening(daemon) == 1, "the others alone listen")
        for _ in range(CLIENTS):
            fetch(daemon, bought["proxy"], target.port)
        assert daemon.pid_of(index) == pid  # it drains still
        for connection in live:
            connection.close()
        daemon.wait_renewed(index, pid)
        for _ in range(CLIENTS):
            fetch(daemon, bought["proxy"], target.port)
        assert daemon.stop() == 0


def little_of(supervisor: int) -> int:
    """Return a limit of descriptors in which a process is forked, and cannot serve."""
    return 8 + max(int(each.name) for each in Path(f"/proc/{supervisor}/fd").iterdir())


def nodes_of(url: str) -> int:
    """Return how many nodes the database has."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)) as database:
        return int(database.execute("SELECT COUNT(*) FROM nodes").fetchone()[0])


@pytest.mark.long
def test_dead_processes_are_reaped_while_process_0_cannot_come_back(url: str) -> None:
    with serving(url) as daemon:
        supervisor = daemon.process.pid
        soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (little_of(supervisor), hard))
        for number in (0, 2):
            daemon.kill(number)
        until_true(lambda: nodes_of(url) == 1, "the two that were killed are reaped")
        said = "processes that have ended, whose leases are taken back"
        until_true(lambda: said in daemon.output, "it is said")
        assert "were not seen" not in daemon.output
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
        until_true(lambda: nodes_of(url) == 3, "all are back")
        assert daemon.stop() == 0


@pytest.mark.long
def test_a_successor_runs_the_code_of_the_others_after_a_change_on_the_disk(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    packages = ("proxyd", "api", "market", "storage", "config")
    for package in packages:
        shutil.copytree(
            process.ROOT / package,
            installed / package,
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )
    monkeypatch.setattr(process, "ROOT", installed)
    with serving(
        url,
        PROXYD_INTERPRETED="1",
        PYTHONPROFILEIMPORTTIME="1",
        PROXYD_MAIL__HOST="127.0.0.1",
        PROXYD_MAIL__SENDER="proxyd@example.com",
        PROXYD_ASSISTANT__MODEL="tiny",
        PROXYD_ASSISTANT__BASE_URL="http://127.0.0.1:9/v1",
    ) as daemon:
        assert str(installed) in psutil.Process(daemon.process.pid).cwd()
        step = installed / "storage" / "migrations" / "9001_next.sql"
        step.write_text("CREATE TABLE of_the_next_version (a TEXT NOT NULL);\n")
        for number in (1, 0):
            killed, before = daemon.pid_of(number), len(daemon.lines)
            daemon.kill(number)
            daemon.wait_renewed(number, killed or 0)
            imported = re.findall(r"\|\s+(\S+)\n", "".join(daemon.lines[before:]))
            assert [name for name in imported if name.partition(".")[0] in packages] == []
        database = sqlite3.connect(url.removeprefix("sqlite:///"))
        with closing(database):
            (version,) = database.execute("SELECT MAX(version) FROM schema_versions").fetchone()
        assert version < 9001


@pytest.mark.long
def test_a_process_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with supervising(tmp_path) as manager:
        manager.watchdog_seconds = 3.0
        manager.start(**{PROCESSES: "2"})
        assert manager.process is not None
        children = {child.name(): child for child in psutil.Process(manager.process.pid).children()}
        children["proxyd-1"].send_signal(signal.SIGSTOP)
        until_true(lambda: "timed out" in manager.log, "it is noticed")
        ready = re.compile(r"process 1 \(pid \d+\) is ready; 2 of 2 processes are ready")
        until_true(lambda: ready.search(manager.log), "it is started again")
        fed = manager.count("WATCHDOG=1")
        until_true(lambda: manager.count("WATCHDOG=1") > fed, "the supervisor is well")
        manager.signal(signal.SIGTERM)
        assert manager.wait() == 0


@pytest.mark.long
def test_none_is_taken_for_hanging_after_all_of_them_stood_still(tmp_path: Path) -> None:
    """As a machine does that is suspended, or a service that is frozen."""
    with supervising(tmp_path) as manager:
        manager.watchdog_seconds = 2.0
        manager.start(**{PROCESSES: "2"})
        assert manager.process is not None
        supervisor = psutil.Process(manager.process.pid)
        processes = supervisor.children()
        for each in (supervisor, *processes):
            each.suspend()
        stopped_at = time.monotonic()
        until_true(lambda: time.monotonic() > stopped_at + 1.1 * manager.watchdog_seconds)
        supervisor.resume()
        fed = manager.count("WATCHDOG=1")
        until_true(lambda: manager.count("WATCHDOG=1") > fed + 1, "it has looked at them")
        for each in processes:
            each.resume()
        fed = manager.count("WATCHDOG=1")
        until_true(lambda: manager.count("WATCHDOG=1") > fed + 2, "and again")
        assert "timed out" not in manager.log
        assert supervisor.children() == processes
        manager.signal(signal.SIGTERM)
        assert manager.wait() == 0


@pytest.mark.long
def test_the_service_managers_sockets_and_notifications_work_as_with_one(tmp_path: Path) -> None:
    with supervising(tmp_path) as manager:
        manager.watchdog_seconds = 30.0
        email, password = process.funded(manager.url)
        manager.start(**{PROCESSES: "3"})
        daemon = process.Api(f"http://127.0.0.1:{manager.port('api')}", manager.port("proxy"))
        bought = daemon.buy(daemon.log_in(email, password))
        with threads.web() as target:
            for _ in range(CLIENTS):
                fetch(daemon, bought["proxy"], target.port)
            manager.signal(signal.SIGHUP)
            until_true(lambda: manager.count("READY=1") == 2, "all have reloaded")
            assert manager.count("RELOADING=1") == 1
            assert any(
                each.startswith("STATUS=3 of 3 processes are ready: API on")
                for each in manager.told
            )
            manager.signal(signal.SIGTERM)
            assert manager.wait() == 0
            assert manager.count("STOPPING=1") == 1
            # The next daemon serves the clients that came meanwhile.
            waiting = socket.create_connection(("127.0.0.1", manager.port("proxy")))
            manager.start(**{PROCESSES: "2"})
            with waiting:
                waiting.sendall(b"\x05\x01\x02")
                assert waiting.recv(2) == b"\x05\x02"
            fetch(daemon, bought["proxy"], target.port)
            manager.signal(signal.SIGTERM)
            assert manager.wait() == 0


@pytest.mark.long
def test_a_socket_without_a_service_manager_refuses_clients_while_all_drain(tmp_path: Path) -> None:
    """The socket units of systemd hold only the ports of the API and the proxy."""
    with supervising(tmp_path) as manager, threads.web() as target:
        manager.watchdog_seconds = 30.0
        email, password = process.funded(manager.url)
        manager.start(**{PROCESSES: "2"}, **DEBUG)
        daemon = process.Api(f"http://127.0.0.1:{manager.port('api')}", manager.port("proxy"))
        bought = daemon.buy(daemon.log_in(email, password))
        [port] = set(re.findall(r"without passwords on 127.0.0.1:(\d+)", manager.log))
        socket.create_connection(("127.0.0.1", int(port))).close()
        with begin(daemon, bought["proxy"], target.port):
            manager.signal(signal.SIGTERM)
            until_true(lambda: len(DRAINING.findall(manager.log)) == 2, "all drain")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(port)))
        assert manager.wait() == 0


def test_the_demonstration_works_with_several(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    with process.serving(url, "--demo", **{PROCESSES: "2"}) as daemon:
        until_true(lambda: "Each start ends" in daemon.output, "it says how to use it")
        [(username, password)] = re.findall(r"socks5h://(\w+):(\S+)@", daemon.output)
        with threads.web() as target:
            for _ in range(CLIENTS):
                fetch(daemon, {"username": username, "password": password}, target.port)
            pid = daemon.pid_of(0)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            daemon.wait_renewed(0, pid)
            for _ in range(CLIENTS):  # the pasted session is still good
                fetch(daemon, {"username": username, "password": password}, target.port)
        assert daemon.output.count("Each start ends") == 1
        # The files of the demonstration outlive the process that was killed.
        more = process.run(url, "demo", "--examples")
        assert f"http://{username}:{password}@" in more.stdout
        assert daemon.stop() == 0
