"""Several daemons with exits as processes of their own, on one PostgreSQL, and real agents."""

import json
import re
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Process
from support.database import postgres
from support.exits.process import ExitAgent

from proxyd.exits.attached.certificate import own_certificate

DOOR = re.compile(r"exits on \S+:(\d+)")


@pytest.fixture
async def url(postgres_server: str) -> AsyncIterator[str]:
    """The URL of an empty database on PostgreSQL."""
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as made:
        yield made


def settings(folder: Path, number: int) -> dict[str, str]:
    certificate = str(own_certificate(folder / f"node-{number}", 1_700_000_000))
    return {
        "PROXYD_EXITS__HOST": "127.0.0.1",
        "PROXYD_EXITS__PORT": "0",
        "PROXYD_EXITS__TLS_CERT": certificate,
        "PROXYD_EXITS__TLS_KEY": certificate,
        "PROXYD_GEO__KNOWN": '{"127.0.0.0/8": "xx"}',
    }


@contextmanager
def cluster(url: str, folder: Path, size: int) -> Iterator[list[Process]]:
    """Run daemons that take exits."""
    with ExitStack() as stack:
        daemons = []
        for number in range(size):
            daemon = Process(url, **settings(folder, number))
            stack.callback(daemon.stop, signal.SIGKILL)
            daemons.append(daemon)
        for daemon in daemons:
            daemon.wait_ready()
        yield daemons


def countries(daemon: Process) -> list[str]:
    _, answer = daemon.call("GET", "/api/exits/coverage")
    return [each["country"] for each in answer["countries"]]


def states(daemon: Process, token: str) -> list[str]:
    _, mine = daemon.call("GET", "/api/exits/me", token=token)
    return [row["state"] for row in mine["exits"]]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
async def test_the_exits_of_a_node_that_ends_are_at_another_one(
    url: str, tmp_path: Path, number: int
) -> None:
    with cluster(url, tmp_path, 3) as daemons:
        token = daemons[0].log_in(*process.funded(url))
        door = DOOR.search(daemons[0].output)
        assert door is not None
        agent = ExitAgent(tmp_path / "exit", int(door[1]))
        agent.agree(daemons[0], token)
        agent.start()
        try:
            for each in daemons:
                until_true(lambda each=each: countries(each) == ["xx"], "every node knows it")
            told = tmp_path / "exit" / "exit-nodes.json"
            until_true(
                lambda: told.exists() and len(json.loads(told.read_text())["nodes"]) == 2,
                "it knows the other nodes",
            )
            daemons[0].stop(number)
            lost = "attached to"
            log = tmp_path / "exit" / "log"
            until_true(lambda: log.read_text().count(lost) == 2, "it is attached anew")
            for each in daemons[1:]:
                until_true(lambda each=each: countries(each) == ["xx"], "it is known again")
                until_true(lambda each=each: states(each, token) == ["online"], "its owner sees it")
        finally:
            agent.kill()
