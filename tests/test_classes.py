"""Sizes of classes: an object with many fields has several jobs.

A record (a row of a table, a body of the API, a section of the settings) has one field per column
or name of its format, so it does not count. `LARGER` lists the other classes above the limit; the
list only becomes shorter.
"""

import ast
from pathlib import Path

from support.base.fields import fields_of

ROOT = Path(__file__).parent.parent
ROOMS = (
    "api",
    "client/proxyctl",
    "clusters/proxyctl_clusters",
    "config",
    "market",
    "proxyd",
    "storage",
)
FIELDS_MAX = 12
RECORDS = {"NamedTuple", "Struct", "TypedDict"}

# The streams of bytes keep the state of a connection in one object, because each access to another
# object costs time per segment. `Market` names each part of the marketplace once. The others wait
# for a split.
LARGER = {
    "api/server.py:HttpServer": 18,
    "client/proxyctl/attach/relay/halfpipe.py:HalfPipe": 22,
    "client/proxyctl/exit/agent/agent.py:Agent": 20,
    "client/proxyctl/exit/agent/watcher.py:Watcher": 13,
    "client/proxyctl/exit/carrying/carrier.py:Carrier": 22,
    "client/proxyctl/exit/carrying/datagrams.py:DatagramRelay": 17,
    "client/proxyctl/exit/carrying/pool.py:Pool": 14,
    "client/proxyctl/worker/agent/agent.py:Agent": 15,
    "client/proxyctl/worker/agent/agent.py:_Orders": 14,
    "client/proxyctl/worker/attempt/attempt.py:Attempt": 15,
    "client/proxyctl/worker/attempt/supervisor.py:Supervisor": 16,
    "client/proxyctl/worker/executors/containers/containers.py:Containers": 13,
    "client/proxyctl/worker/network/tunnel.py:JobTunnel": 14,
    "market/deploys/rollouts.py:Rollouts": 13,
    "market/devices/devices.py:Devices": 14,
    "market/files/logs.py:Logs": 14,
    "market/jobs/jobs.py:Jobs": 16,
    "market/jobs/waiting_jobs.py:WaitingJobs": 14,
    "market/market.py:Market": 37,
    "proxyd/connection.py:ClientConnection": 14,
    "proxyd/daemon.py:Daemon": 13,
    "proxyd/gateway.py:Gateway": 13,
    "proxyd/metering/cluster_writer.py:ClusterWriter": 14,
    "proxyd/metering/node.py:Node": 15,
    "proxyd/metering/session.py:LiveSession": 15,
    "proxyd/ops/access_log.py:AccessLog": 17,
    "proxyd/relay/closing.py:_Closing": 17,
    "proxyd/relay/exit_datagrams.py:ExitWay": 18,
    "proxyd/relay/halfpipe.py:HalfPipe": 29,
    "proxyd/relay/udp.py:Association": 23,
    "proxyd/supervisor/child.py:Child": 16,
    "proxyd/supervisor/supervisor.py:Supervisor": 13,
}


def is_record(node: ast.ClassDef) -> bool:
    """Return whether the fields of a class are those of a format."""
    frozen = any("frozen=True" in ast.unparse(each) for each in node.decorator_list)
    return frozen or any(ast.unparse(each).split(".")[-1] in RECORDS for each in node.bases)


def test_no_class_has_many_fields() -> None:
    sizes = {
        f"{path.relative_to(ROOT)}:{node.name}": len(fields_of(node))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not is_record(node)
    }
    assert {name: size for name, size in sizes.items() if size > FIELDS_MAX} == LARGER


def test_the_fields_of_a_class_are_counted() -> None:
    methods = "    def f(self):\n        self.c, self.d = 1, 2\n        self.e.g = 3"
    [node] = ast.parse(f"class A:\n    b: int\n{methods}").body
    assert isinstance(node, ast.ClassDef)
    assert fields_of(node) == {"b", "c", "d"}
