"""/metrics: permitted readers, content, and no further queries by the dashboard."""

import asyncio
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.base.cases import cases
from support.base.ports import closed_port
from support.base.waiting import until
from support.clients.socks import GREETING, Client, plain_tunnel, tunnel
from support.daemons.process import ROOT
from support.daemons.service import Service, running_in
from support.targets import targets

from api.http import request_id
from api.http.allowed import FORWARDED
from api.ops.metrics import Exposition
from proxyd import __version__
from proxyd.compiled import finder
from proxyd.ops.metrics import process_metrics

DAY = 86_400

Samples = dict[tuple[str, str], float]


async def scrape(service: Service) -> Samples:
    async with service.http.get(f"{service.url}/metrics") as response:
        assert response.status == 200
        text = await response.text()
    return {
        (sample.name, ",".join(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_program_and_its_way_of_running_are_shown(service: Service) -> None:
    assert (await scrape(service))["proxyd_build_info", f"{__version__},{finder.way()}"] == 1


async def test_the_work_of_the_proxy_is_counted(service: Service) -> None:
    person = await service.person(usd="10")
    bought = await service.buy(person)
    async with targets.echo() as target:
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, "127.0.0.1", target.port
        )
        await client.send(b"hello")
        assert await client.receive(5) == b"hello"
        live = await scrape(service)
        assert live["proxyd_connections_open", ""] == 1
        assert live["proxyd_bytes_total", "up"] == live["proxyd_bytes_total", "down"] == 5
        assert live["proxyd_sessions_live", ""] == 1
        assert (live["proxyd_tcp_relays", ""], live["proxyd_relays_total", "tcp"]) == (1, 1)
        assert (live["proxyd_udp_associations", ""], live["proxyd_relays_total", "udp"]) == (0, 0)
        assert live["proxyd_handshakes_waiting", ""] == 0
        client.end()
        await client.rest()
        await client.close()
    with closed_port() as port:
        client = await Client.open(service.proxy_port)
        await client.log_in(bought.username, bought.password)
        assert await client.connect("127.0.0.1", port) == 5
        await client.close()
    wrong = await Client.open(service.proxy_port)
    assert await wrong.log_in(bought.username, "wrong") == 1
    await wrong.close()
    await until(lambda: service.daemon.gateway.connections == 0)
    await until(lambda: bool(service.daemon.helpers.metrics._ledger))
    after = await scrape(service)
    assert after["proxyd_connections_open", ""] == after["proxyd_tcp_relays", ""] == 0
    assert after["proxyd_relays_total", "tcp"] == 1
    assert after["proxyd_connections_total", ""] == 3
    assert after["proxyd_bytes_total", "up"] == after["proxyd_bytes_total", "down"] == 5
    assert after["proxyd_dial_failures_total", "refused"] == 1
    assert after["proxyd_handshake_failures_total", "wrong"] == 1
    assert after["proxyd_dial_seconds_count", ""] == 2
    assert after["proxyd_store_seconds_count", "write"] > 0
    assert ("proxyd_ledger_balance", "deposits,usd") in after
    assert after["proxyd_attempts_total", "completed"] == 0
    assert after["proxyd_artifact_bytes_total", "received"] == 0
    assert after["proxyd_artifacts_total", "whole"] == 0
    assert after["proxyd_jobs", "waiting"] == after["proxyd_review_credits", "held"] == 0
    assert after["proxyd_log_bytes_total", ""] == after["proxyd_log_readers", ""] == 0


async def test_clients_are_counted_at_each_step_of_their_way(service: Service) -> None:
    bought = await service.buy(await service.person(usd="10"), quota=200_000)
    silent = await Client.open(service.proxy_port)
    await silent.send(GREETING)
    assert await silent.receive(2) == b"\x05\x02"
    datagrams = await Client.open(service.proxy_port)
    assert await datagrams.log_in(bought.username, bought.password) == 0
    assert await datagrams.connect("0.0.0.0", 0, command=3) == 0
    seen = await scrape(service)
    assert seen["proxyd_handshakes_waiting", ""] == 1
    assert (seen["proxyd_udp_associations", ""], seen["proxyd_relays_total", "udp"]) == (1, 1)
    assert (seen["proxyd_tcp_relays", ""], seen["proxyd_relays_total", "tcp"]) == (0, 0)
    async with targets.source(None) as target:
        slow = await plain_tunnel(service, bought, target.port, receive_buffer=16_384)
        with closing(slow):
            await until(lambda: service.daemon.core.meter.live == 0, "the session is used up")
            seen = await scrape(service)
            assert seen["proxyd_sockets_closing", ""] >= 1
            assert seen["proxyd_tcp_relays", ""] == seen["proxyd_udp_associations", ""] == 0
    for client in (silent, datagrams):
        await client.close()
    await until(lambda: len(service.daemon.gateway.closer) == 0)
    assert (await scrape(service))["proxyd_sockets_closing", ""] == 0


async def test_descriptors_are_counted_and_not_listed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: object) -> NoReturn:
        raise AssertionError("the descriptors are listed")

    before = await scrape(service)
    monkeypatch.setattr("os.listdir", listed)
    with ExitStack() as opened:
        for _ in range(50):
            opened.enter_context(socket.socket())
        seen = await scrape(service)
    assert seen["process_open_fds", ""] == before["process_open_fds", ""] + 50
    assert seen["process_max_fds", ""] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert seen["process_resident_memory_bytes", ""] > 10_000_000
    assert seen["process_cpu_seconds_total", ""] > 0
    assert 0 < time.time() - seen["process_start_time_seconds", ""] < DAY


async def test_on_an_older_kernel_descriptors_are_counted_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Older(type(process_metrics._DESCRIPTORS)):  # type: ignore[misc]
        def stat(self, **_: object) -> os.stat_result:
            return os.stat_result((0,) * 10)

    monkeypatch.setattr(process_metrics, "_DESCRIPTORS", Older("/proc/self/fd"))
    made = process_metrics.ProcessMetrics()
    assert made.descriptors() == 0
    watching = asyncio.create_task(made.watch_descriptors())
    await until(lambda: made.descriptors() > 3, "they are counted")
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


async def test_every_metric_of_the_dashboard_is_there(tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "grafana" / "proxyd.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = set(re.findall(r"\b(?:proxyd|process)_\w+", " ".join(expressions)))
    port = {"host": "127.0.0.1", "port": 0}
    async with running_in(tmp_path, exits=port, apps=port) as service:
        await until(lambda: bool(service.daemon.helpers.metrics._ledger))
        async with service.http.get(f"{service.url}/metrics") as response:
            text = await response.text()
    told = {
        name
        for family in text_string_to_metric_families(text)
        for name in (
            family.name,
            f"{family.name}_total" if family.type == "counter" else "",
            f"{family.name}_bucket" if family.type == "histogram" else "",
        )
    }
    assert len(named) > 15
    assert named - told == set()
    families = {
        family.name
        for family in text_string_to_metric_families(text)
        if family.name.startswith("proxyd_")
    }
    shown = {re.sub(r"_(total|bucket)$", "", name) for name in named}
    assert sorted(families - shown) == []


def test_every_metric_of_the_alert_rules_is_documented() -> None:
    """Check names and fields; promtool also checks the grammar where it is installed."""
    path = ROOT / "grafana" / "proxyd.rules.yml"
    rules = path.read_text()
    alerts = re.findall(r"^ +- alert: (Proxyd\w+)$", rules, re.MULTILINE)
    expressions = re.findall(r"^ +expr: '(.+)'$", rules, re.MULTILINE)
    severities = re.findall(r"^ +severity: (?:warning|critical)$", rules, re.MULTILINE)
    assert len(alerts) == len(set(alerts)) == len(expressions) == len(severities) > 15
    documented = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = set(re.findall(r"\b(?:proxyd|process)_\w+", " ".join(expressions)))
    missing = {name for name in named if f"`{re.sub('_bucket$', '', name)}`" not in documented}
    assert missing == set()
    if (promtool := shutil.which("promtool")) is not None:
        subprocess.run([promtool, "check", "rules", str(path)], check=True)


async def test_the_documentation_names_every_metric(service: Service) -> None:
    await until(lambda: bool(service.daemon.helpers.metrics._ledger))
    async with service.http.get(f"{service.url}/metrics") as response:
        told = set(re.findall(r"^# TYPE (proxyd_\w+)", await response.text(), re.MULTILINE))
    documented = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert {name for name in told if f"`{name}`" not in documented} == set()


@cases(
    ("client", "forwarded", "permitted"),
    [
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("::ffff:127.0.0.1", False, True),
        ("127.0.0.1", True, False),
        ("10.1.2.3", False, True),
        ("10.1.2.3", True, False),
        ("192.0.2.1", False, False),
        ("", False, False),
    ],
)
def test_only_this_machine_and_named_networks_read(
    client: str, forwarded: bool, permitted: bool
) -> None:
    exposition = Exposition(lambda: b"", ["10.0.0.0/8"])
    assert exposition.permits(client, "localhost:8080", forwarded=forwarded) is permitted


@cases(
    ("host", "permitted"),
    [
        ("127.0.0.1:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("localhost", True),
        ("api.example.com", False),
        ("localhost.example.com:80", False),
        ("[2001:db8::1]", False),
        ("[::1].example.com", False),
        ("a[::1]", False),
        ("127.0.0.1@example.com", False),
        ("", False),
    ],
)
def test_a_request_with_another_host_name_comes_through_a_web_server(
    host: str, permitted: bool
) -> None:
    exposition = Exposition(lambda: b"", ["10.0.0.0/8"])
    assert exposition.permits("127.0.0.1", host, forwarded=False) is permitted
    assert exposition.permits("10.1.2.3", host, forwarded=False)


async def test_a_request_through_a_web_server_finds_no_metrics(tmp_path: Path) -> None:
    for trusted in ([], ["127.0.0.1/32"]):
        async with running_in(tmp_path, api={"trusted_proxies": trusted}) as service:
            headers = {"X-Forwarded-For": "198.51.100.7"}
            answer = await service.call("GET", "/metrics", headers=headers)
            assert (answer.status, answer.code) == (404, "no_such_path")
            for name in [*sorted(FORWARDED - {"X-Forwarded-For"}), "Host"]:
                answer = await service.call("GET", "/metrics", headers={name: "api.example.com"})
                assert (answer.status, answer.code) == (404, "no_such_path"), name


async def test_every_answer_names_its_request(service: Service) -> None:
    answer = await service.call("GET", "/healthz", headers={"X-Request-Id": "abc-1.2"})
    assert answer.headers["X-Request-Id"] == "abc-1.2"
    for offered in ("x" * 65, "two words", "a!b", ""):
        answer = await service.call("GET", "/nowhere", headers={"X-Request-Id": offered})
        assert re.fullmatch(r"[\w-]{16}", answer.headers["X-Request-Id"])


async def test_lines_about_a_request_are_logged_within_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def fail(*_: object) -> None:
        seen.append(request_id.current.get())
        raise RuntimeError("a mistake")

    monkeypatch.setattr(service.daemon.http, "_router", SimpleNamespace(find=fail))
    answer = await service.call("GET", "/auth/me", headers={"X-Request-Id": "mine"})
    assert (answer.status, answer.code, seen) == (500, "internal_error", ["mine"])
    assert answer.headers["X-Request-Id"] == "mine"


async def test_bytes_that_are_given_back_do_not_make_the_counter_fall(service: Service) -> None:
    gateway = service.daemon.gateway
    for now, told in (((10, 20), (10, 20)), ((5, 25), (10, 25)), ((11, 24), (11, 25))):
        gateway.counters.bytes_up, gateway.counters.bytes_down = now
        after = await scrape(service)
        moved = after["proxyd_bytes_total", "up"], after["proxyd_bytes_total", "down"]
        assert moved == told


async def test_a_stream_names_its_request(service: Service) -> None:
    async with service.http.post(
        f"{service.url}/api/assistant/chat",
        json={"message": "hello", "stream": True},
        headers={"X-Request-Id": "streamed"},
    ) as answer:
        await answer.read()
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers.getall("X-Request-Id") == ["streamed"]
