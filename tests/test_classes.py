"""Sizes of classes: an object with many fields has several jobs.

A record (a row of a table, a body of the API, a section of the settings) has one field per column
or name of its format, so it does not count. `LARGER` lists the other classes above the limit; the
list only becomes shorter.
"""

import ast
import re
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

# Each exception has its reason. There are ten at most.
LARGER = {
    # The state of one direction of a connection: each access to another object costs time for each
    # segment, and Python 3.9 runs this interpreted.
    "client/proxyctl/attach/relay/halfpipe.py:HalfPipe": 24,
    # Counts and limits the bytes of all connections, and is called for each piece of them.
    "client/proxyctl/exit/carrying/carrier.py:Carrier": 24,
    # Moves the datagrams of one association, with all state of a turn in one object.
    "client/proxyctl/exit/carrying/datagrams.py:DatagramRelay": 17,
    # Names each part of the marketplace once, for `build`, the routes and the sweeps.
    "market/market.py:Market": 50,
    # The state of a connection from its request to its end; its transfer has the bytes. A further
    # object would be made for each connection that is dialled. Both of its access records need the
    # target, which is made once.
    "proxyd/connection.py:ClientConnection": 16,
    # The four counters belong to one invariant, and `allowance`, `take` and `deliver` run for each
    # read of each relay.
    "proxyd/metering/session.py:LiveSession": 15,
    # The state of a socket that is being closed. A flood of clients makes thousands of them, so
    # each is one small object with slots.
    "proxyd/relay/closing.py:_Closing": 17,
    # The state of the datagrams of one association on their way through an exit: each access to
    # another object costs time for each datagram.
    "proxyd/relay/exit_datagrams.py:ExitWay": 18,
    # The state of one direction of a connection: each access to another object costs time for each
    # segment.
    "proxyd/relay/halfpipe.py:HalfPipe": 29,
    # The state of an association: each access to another object costs time for each datagram. Two
    # fields are for the records of its destinations.
    "proxyd/relay/udp.py:Association": 25,
}


def is_record(node: ast.ClassDef) -> bool:
    """Return whether the fields of a class are those of a format."""
    frozen = any("frozen=True" in ast.unparse(each) for each in node.decorator_list)
    return frozen or any(ast.unparse(each).split(".")[-1] in RECORDS for each in node.bases)


def may_have_many(source: str) -> list[ast.stmt]:
    """Return the statements of a module, unless all of it names too few fields for one class.

    Most modules do, and to parse one takes far longer than a search.
    """
    names = set(re.findall(r"self\.(\w+)", source)) | set(re.findall(r"(?m)^    (\w+):", source))
    return ast.parse(source).body if len(names) > FIELDS_MAX else []


def test_no_class_has_many_fields() -> None:
    sizes = {
        f"{path.relative_to(ROOT)}:{node.name}": len(fields_of(node))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in may_have_many(path.read_text())
        if isinstance(node, ast.ClassDef) and not is_record(node)
    }
    assert {name: size for name, size in sizes.items() if size > FIELDS_MAX} == LARGER


def test_the_fields_of_a_class_are_counted() -> None:
    methods = "    def f(self):\n        self.c, self.d = 1, 2\n        self.e.g = 3"
    [node] = ast.parse(f"class A:\n    b: int\n{methods}").body
    assert isinstance(node, ast.ClassDef)
    assert fields_of(node) == {"b", "c", "d"}
