"""A port scanner behind an exit is halted by a rule, and a heavy browser is not.

A real daemon, a real agent of an exit, and the commands of the staff beside them.
"""

import json
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import socks
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Process
from support.exits.process import exit_agents
from support.exits.wire import wired
from support.targets import threads
from support.targets.keyed import Tally

TARGETS = 30
RULES = {
    "PROXYD_ABUSE__SCAN_MODE": "act",
    "PROXYD_ABUSE__SCAN_TARGETS": str(TARGETS),
    "PROXYD_ABUSE__SCAN_HALT_SECONDS": "10",
}


def dial(daemon: Process, proxy: dict[str, Any], host: str, port: int) -> bool:
    """Dial through an exit, and return whether the target is reached."""
    client = socks.socksocket()
    client.set_proxy(
        socks.SOCKS5,
        "127.0.0.1",
        daemon.proxy_port,
        username=proxy["username"] + "-country-xx",
        password=proxy["password"],
    )
    with client:
        try:
            client.connect((host, port))
        except socks.ProxyError:
            return False
        return True


@pytest.mark.long
def test_a_scanner_is_halted_and_a_heavy_browser_is_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    people = [process.funded(url, "20", name) for name in ("scanner", "browser")]
    owner, password = process.funded(url, "0.01", "owner")
    with ExitStack() as stack:
        web = stack.enter_context(threads.web())
        closed = socket.create_server(("127.0.0.1", 0))
        ports = [web.port, closed.getsockname()[1]]
        closed.close()
        wire = stack.enter_context(wired(Tally(), 1))
        exits = stack.enter_context(exit_agents(tmp_path, wire, ports))
        daemon = stack.enter_context(process.serving(url, **exits.settings, **RULES))
        (agent,) = exits.agents
        agent.agree(daemon, daemon.log_in(owner, password))
        exits.serve(daemon)
        tokens = [daemon.log_in(email, secret) for email, secret in people]
        scanner, browser = [daemon.buy(token)["proxy"] for token in tokens]

        def listed(token: str) -> Any:
            _, answer = daemon.call("GET", "/api/bandwidth/sessions", None, token)
            return answer["sessions"][0]

        for number in range(2 * TARGETS):  # one failure in ten
            is_up = number % 10 != 9
            assert dial(daemon, browser, "127.0.0.1", ports[not is_up]) is is_up
        for number in range(2 * TARGETS):
            dial(daemon, scanner, f"127.0.7.{number + 1}", ports[1])
        until_true(lambda: "halted" in listed(tokens[0]), "the rule halts the scanner")
        halted = listed(tokens[0])["halted"]
        assert halted["reason"].startswith(f"Rule scan, in a minute: port {ports[1]}, targets")
        assert not dial(daemon, scanner, "127.0.0.1", ports[0])
        assert dial(daemon, browser, "127.0.0.1", ports[0])
        assert "halted" not in listed(tokens[1])
        _, events = daemon.call("GET", "/api/events", None, tokens[0])
        assert "session.halted" in json.dumps(events)
        done = process.run(url, "rule", "list", "--json", **exits.settings, **RULES)
        scan = json.loads(done.stdout)["rules"][0]
        assert (scan["mode"], scan["stops_30_days"], scan["tickets_30_days"]) == ("act", 1, 1)

        def goes_on() -> bool:
            with suppress(OSError):
                return dial(daemon, scanner, "127.0.0.1", ports[0])
            return False

        until_true(goes_on, "the halt ends by itself")
        daemon.stop(signal.SIGKILL)
        exits.lose()
