"""A suspension cuts a user's connections on every node within a second, and a resumption undoes it.

The command is another process than the daemons, as an operator runs it.
"""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import PROCESSES, Process, serving
from support.targets import threads

SUSPEND = ["user", "suspend", "--shown", "spam was sent", "--reason", "ticket A-17", "--json"]
RESUME = ["user", "resume", "--reason", "resolved", "--json"]
# The bound of the product.
CUT_SECONDS = 1.0
# A slow transfer leaves the processor to the rest of the test.
PACED = {"PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": "50000"}


@pytest.fixture
async def url(empty_url: str) -> str:
    """The URL of an empty database, on each engine in turn."""
    return empty_url


@contextmanager
def connections(
    daemons: Sequence[Process], bought: dict[str, Any], each: int
) -> Iterator[list[socket.socket]]:
    """Open connections of one session, on each daemon in turn, that have relayed something."""
    with threads.endless() as target, ExitStack() as stack:
        made = [
            stack.enter_context(process.proxied(daemon, bought["proxy"], target.port))
            for daemon in daemons
            for _ in range(each)
        ]
        for connection in made:
            assert connection.recv(1)
        yield made


def drain(connection: socket.socket) -> bool:
    """Read the remaining bytes. Return whether the connection has ended."""
    connection.settimeout(CUT_SECONDS)
    try:
        while connection.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def carried_out(url: str, *arguments: str) -> Any:
    done = process.run(url, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def is_refused(daemon: Process, bought: dict[str, Any]) -> bool:
    try:
        process.proxied(daemon, bought["proxy"], 9).close()
    except OSError as error:
        return process.is_refused(error)
    return False


def suspended_and_resumed(
    url: str, daemons: Sequence[Process], each: int, *, nodes: int = 0
) -> None:
    """Suspend and resume a user with connections on all daemons.

    Args:
        url: the database of the daemons.
        daemons: all daemons, of one process each.
        each: the number of connections on each of them.
        nodes: the number of processes of the daemons, if one has several.
    """
    nodes = nodes or len(daemons)
    email, password = process.funded(url)
    token = daemons[0].log_in(email, password)
    bought = daemons[0].buy(token, gb=50)
    number = each * len(daemons)
    with connections(daemons, bought, each) as made:
        began = time.monotonic()
        cut = carried_out(url, *SUSPEND, email)["cut"]
        assert (cut["nodes"], cut["answered"]) == (nodes, nodes)
        assert cut["connections"] == number
        assert cut["seconds"] < CUT_SECONDS
        assert all(map(drain, made)), f"{time.monotonic() - began} s"
    assert all(is_refused(daemon, bought) for daemon in daemons)
    for daemon in daemons:
        status, body = daemon.call("POST", "/api/bandwidth/create", {"gb": 1}, token)
        assert (status, body["error"]["code"]) == (400, "account_suspended")
        assert "spam was sent" in body["error"]["message"]
        again = daemon.log_in(email, password)
        assert daemon.call("GET", "/auth/me", token=again)[0] == 200
        assert daemon.call("POST", "/auth/logout", {}, again)[0] == 200
    done = carried_out(url, *RESUME, email)
    assert done["effective"]["answered"] == nodes
    for daemon in daemons:
        assert not is_refused(daemon, bought)
        _, body = daemon.call("GET", "/api/bandwidth/sessions", token=token)
        [session] = body["sessions"]
        assert (session["id"], session["status"]) == (bought["session_id"], "active")
    with connections(daemons, bought, 1):
        pass
    until_true(lambda: daemons[0].used(token, bought["session_id"]) > 0, "the use is known")


@pytest.mark.both_engines
def test_a_suspension_cuts_the_connections_of_one_daemon(url: str) -> None:
    with serving(url, **PACED) as daemon:
        suspended_and_resumed(url, [daemon], 4)
        assert daemon.stop() == 0
    process.assert_audit(url)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["postgres"])
def test_a_suspension_cuts_a_hundred_connections_on_three_nodes_within_a_second(url: str) -> None:
    with ExitStack() as stack:
        daemons = [stack.enter_context(serving(url, **PACED)) for _ in range(3)]
        suspended_and_resumed(url, daemons, 34)
        assert [each.stop() for each in daemons] == [0, 0, 0]
    process.assert_audit(url)


@pytest.mark.long
@pytest.mark.both_engines
def test_a_suspension_cuts_a_hundred_connections_on_three_processes_within_a_second(
    url: str,
) -> None:
    """Three nodes of one daemon: on SQLite only one daemon has the database."""
    with serving(url, **{PROCESSES: "3"}, **PACED) as daemon:
        suspended_and_resumed(url, [daemon], 102, nodes=3)
        assert daemon.stop() == 0
    process.assert_audit(url)
