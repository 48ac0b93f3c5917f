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

from bench import bought, bulk, connections, latency, memory, report, rivals
from bench.report import Part, progress
from bench.servers import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5


def main() -> None:
    """Measure what is wanted, print it, and write it into the documentation."""
    rounds = int(os.environ.get("ROUNDS") or ROUNDS)
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
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
        }
        unknown = set(only) - set(parts)
        if unknown:
            sys.exit(f"ONLY knows {', '.join(parts)}, and not {', '.join(sorted(unknown))}")
        report.rewrite("bench-proxy-machine", report.machine())
        for each in only or parts:
            try:
                part = parts[each]()
            except StartError as error:
                sys.exit(str(error))
            print(f"\n{each}\n\n{part.markdown()}", flush=True)
            report.rewrite(f"bench-proxy-{each}", part.markdown())


if __name__ == "__main__":
    main()
