"""proxyd's proxy beside dante, microsocks, pproxy and any other given server, in one run.

The servers take turns, the median of the rounds counts, and only ratios mean anything. Passwords
are on everywhere; proxyd runs with all its features, metering and durable commits included.

proxyd takes part in each way that it can run in here (`bench.bought`). The environment chooses:
ROUNDS=5, ONLY=bulk,echo, RIVALS="name=command {config:PATH}", and BUFFERS=default for bulk with
the socket buffers that Linux before 6.18 allows.
"""

import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bench import (
    bought,
    buffers,
    bulk,
    connections,
    console,
    exits,
    flush,
    latency,
    longpath,
    memory,
    metering,
    report,
    rivals,
    startup,
)
from bench.report import Part, progress
from bench.servers import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

ROUNDS = 5
PARTS = (
    "bulk",
    "connections",
    "echo",
    "memory",
    "startup",
    "metering",
    "flush",
    "longpath",
    "exits",
    "console",
)


def main() -> None:
    """Measure the wanted parts, print the results, and write them into the documentation."""
    rounds = _rounds(os.environ.get("ROUNDS") or str(ROUNDS))
    with_buffers = _buffers()
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    unknown = set(only) - set(PARTS)
    if unknown:
        sys.exit(f"ONLY knows {', '.join(PARTS)}, and not {', '.join(sorted(unknown))}")
    if with_buffers is not nullcontext:
        if set(only) - {"bulk"}:
            sys.exit("BUFFERS=default is for ONLY=bulk")
        only = ["bulk"]
    try:
        others = rivals.named(os.environ.get("RIVALS", ""))
    except rivals.RivalError as error:
        sys.exit(str(error))
    tunnels = [each for each in others if rivals.is_tunnel(each)]
    others = [each for each in others if not rivals.is_tunnel(each)]
    rivals.install()
    beside, reasons = rivals.usual()
    for reason in reasons:
        progress(f"skipped: {reason}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = bought.all_ways(folder)
        kinds = [*(each.kind for each in ours), *beside, *others]
        parts: dict[str, Callable[[], Part]] = {
            "bulk": lambda: bulk.measure(kinds, rounds),
            "connections": lambda: connections.measure(kinds, rounds, folder),
            "echo": lambda: latency.measure(kinds, rounds, folder),
            "memory": lambda: memory.measure(kinds, ours[0], folder),
            "startup": lambda: startup.measure(kinds, rounds, ours),
            "metering": lambda: metering.measure(rounds),
            "flush": lambda: flush.measure(rounds),
            "longpath": lambda: longpath.measure(kinds, rounds, folder),
            "exits": lambda: exits.measure(ours[0], tunnels, rounds, folder),
            "console": lambda: console.measure(rounds, folder),
        }
        report.rewrite("bench-proxy-machine", report.machine())
        way = "compiled" if bought.is_compiled() else "interpreted"
        failed = []
        for each in only or PARTS:
            try:
                with with_buffers():
                    part = parts[each]()
            except (ServerError, buffers.BuffersError) as error:
                failed.append(each)
                progress(str(error))
                continue
            if each != "metering":  # this one has only the relay, always interpreted
                part.notes.append(f"proxyd runs {way}, in one process unless its column says more.")
            print(f"\n{each}\n\n{part.markdown()}", flush=True)
            suffix = "" if with_buffers is nullcontext else "-default"
            report.rewrite(f"bench-proxy-{each}{suffix}", part.markdown())
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def _buffers() -> "Callable[[], AbstractContextManager[None]]":
    """Return the context of bulk measurements: an earlier kernel's limits, or those of this one."""
    text = os.environ.get("BUFFERS", "")
    if text not in ("", "default"):
        sys.exit(f"BUFFERS is default or nothing, and not {text!r}")
    return buffers.default if text else nullcontext


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        sys.exit(f"ROUNDS is a number from 1 on, and not {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
