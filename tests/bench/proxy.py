"""proxyd's proxy beside dante, microsocks, pproxy and any other server that is named, in one run.

The servers take turns, the median of the rounds counts, and only ratios mean anything. Passwords
are on everywhere; proxyd does what it always does, metering and durable commits included.

The environment chooses: ROUNDS=5, ONLY=bulk,echo and RIVALS="name=command {config:PATH}".
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench import (
    bought,
    bulk,
    connections,
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

ROUNDS = 5
PARTS = ("bulk", "connections", "echo", "memory", "startup", "metering", "flush", "longpath")


def main() -> None:
    """Measure what is wanted, print it, and write it into the documentation."""
    rounds = _rounds(os.environ.get("ROUNDS") or str(ROUNDS))
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    unknown = set(only) - set(PARTS)
    if unknown:
        sys.exit(f"ONLY knows {', '.join(PARTS)}, and not {', '.join(sorted(unknown))}")
    try:
        others = rivals.named(os.environ.get("RIVALS", ""))
    except rivals.RivalError as error:
        sys.exit(str(error))
    rivals.install()
    beside, reasons = rivals.usual()
    for reason in reasons:
        progress(f"skipped: {reason}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = bought.proxyd(folder)
        kinds = [ours.kind, *beside, *others]
        parts: dict[str, Callable[[], Part]] = {
            "bulk": lambda: bulk.measure(kinds, rounds),
            "connections": lambda: connections.measure(kinds, rounds, folder),
            "echo": lambda: latency.measure(kinds, rounds, folder),
            "memory": lambda: memory.measure(kinds, ours, folder),
            "startup": lambda: startup.measure(kinds, rounds, ours),
            "metering": lambda: metering.measure(rounds),
            "flush": lambda: flush.measure(rounds),
            "longpath": lambda: longpath.measure(kinds, rounds, folder),
        }
        report.rewrite("bench-proxy-machine", report.machine())
        failed = []
        for each in only or PARTS:
            try:
                part = parts[each]()
            except ServerError as error:
                failed.append(each)
                progress(str(error))
                continue
            print(f"\n{each}\n\n{part.markdown()}", flush=True)
            report.rewrite(f"bench-proxy-{each}", part.markdown())
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        sys.exit(f"ROUNDS is a number from 1 on, and not {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
