"""Complaints: from the address of an exit and a minute to one customer.

A real daemon, a real agent of an exit, and the commands of the staff beside them.
"""

import json
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Process
from support.exits.process import exit_agents
from support.exits.wire import wired
from support.targets import threads
from support.targets.keyed import Tally

from proxyd.ops.access_log.access_lines import timestamp

EXIT = "127.0.1.1"  # as `wired` attaches the agent


def asked(url: str, status: int, *words: str, **settings: str) -> Any:
    """Run a command with `--json`, and return its document."""
    done = process.run(url, *words, "--json", **settings)
    assert (done.returncode, done.stderr) == (status, ""), done
    return json.loads(done.stdout)


def fetch(daemon: Process, proxy: dict[str, Any], port: int) -> None:
    """Fetch something through the exit."""
    through = {**proxy, "username": proxy["username"] + "-country-xx"}
    with process.proxied(daemon, through, port) as connection:
        connection.sendall(b"GET /bytes/10 HTTP/1.1\r\nConnection: close\r\n\r\n")
        while connection.recv(65_536):
            pass


@pytest.fixture
async def url(empty_url: str) -> str:
    """The URL of an empty database, on each engine in turn."""
    return empty_url


@pytest.mark.long
@pytest.mark.both_engines
def test_a_spammer_is_found_from_an_exit_address_and_a_minute(url: str, tmp_path: Path) -> None:
    spammer, password = process.funded(url, "20", "spammer")
    other, _ = process.funded(url, "20", "other")
    owner, _ = process.funded(url, "0.01", "owner")
    with ExitStack() as stack:
        victim, elsewhere, slow = [stack.enter_context(threads.web()) for _ in range(3)]
        ports = [victim.port, elsewhere.port, slow.port]
        wire = stack.enter_context(wired(Tally(), 1))
        exits = stack.enter_context(exit_agents(tmp_path, wire, ports))
        folder = tmp_path / "access"
        settings = {
            **exits.settings,
            "PROXYD_ACCESS_LOG__ENABLED": "on",
            "PROXYD_ACCESS_LOG__FOLDER": str(folder),
        }
        daemon = stack.enter_context(process.serving(url, **settings))
        (agent,) = exits.agents
        agent.agree(daemon, daemon.log_in(owner, password))
        exits.serve(daemon)
        tokens = [daemon.log_in(each, password) for each in (spammer, other)]
        proxies = [daemon.buy(each)["proxy"] for each in tokens]
        spammers_id, others_id = [
            daemon.call("GET", "/auth/me", token=each)[1]["id"] for each in tokens
        ]
        complaint = f"spam to {victim.port}, says postmaster@victim.example"
        at = timestamp(int(time.time()))
        for _ in range(3):
            fetch(daemon, proxies[0], victim.port)
        fetch(daemon, proxies[1], elsewhere.port)
        open_ = stack.enter_context(
            process.proxied(
                daemon,
                {**proxies[1], "username": proxies[1]["username"] + "-country-xx"},
                slow.port,
            )
        )

        def written() -> int:
            return sum(
                each.read_text().count(f'"exit_address":"{EXIT}"')
                for each in folder.glob("access-*.jsonl")
            )

        until_true(lambda: written() >= 5, "all connections are recorded")
        assert "127.0.0.1:" not in "".join(each.read_text() for each in folder.iterdir())
        opened = asked(url, 0, "ticket", "open", complaint, "--category", "spam", **settings)[
            "opened"
        ]
        to = ["--to", f"127.0.0.1:{victim.port}", "--ticket", str(opened["number"])]
        who = ["who", "--exit-ip", EXIT, "--at", at]
        found = asked(url, 0, *who, *to, **settings)
        assert found["customer"]["user"] == spammers_id
        assert found["customer"]["email"] == "s…@e…"  # until a reason reveals it
        assert (found["match"], len(found["connections"])) == ("destination and port", 3)
        assert found["connections"][0]["device"]
        ticket = asked(url, 0, "ticket", "show", str(opened["number"]), **settings)
        assert (ticket["ticket"]["state"], ticket["ticket"]["user"]) == (
            "looked_up",
            found["customer"]["user"],
        )
        several = asked(url, 2, *who, **settings)
        assert (several["customer"], several["users"]) == (None, 2)
        assert several["ask"].startswith("Please send the destination")
        assert spammer not in json.dumps(several)
        nobody = asked(url, 1, *who, "--to", "203.0.113.9:22", **settings)
        assert nobody["customer"] is None
        # In the first minutes of an hour, the hour before is a gap as well.
        assert any("all to other destinations" in each for each in nobody["gaps"])
        # An open connection is also found after kill -9.
        daemon.stop(signal.SIGKILL)
        found = asked(url, 0, *who, "--to", f"127.0.0.1:{slow.port}", "--within", "90", **settings)
        assert found["customer"]["user"] == others_id
        assert found["connections"][0]["ended"] is None
        open_.close()
        exits.lose()
