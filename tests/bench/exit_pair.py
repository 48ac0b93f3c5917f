"""A daemon and a device that carries its connections, as one server to measure.

`python -m bench.exit_pair ORDER`, a JSON object of `exits_port`, `checkout` (whose daemon runs),
`has_agent` (false for the daemon alone), `device` (the folder of the exit), `prefix` (the words
before the device's command, so that it runs elsewhere) and `environment` (of the device). The
environment of this program is the daemon's. Both end with it.
"""

import json
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

from bench.servers import ROOT

OPEN = ("--allow", "127.0.0.0/8", "--allow", "10.0.0.0/8")


def main(order: dict[str, Any]) -> None:
    """Run both until one of them ends, or a signal arrives."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", "proxyd", "serve"],
        cwd=order["checkout"],
        env={**os.environ, "PROXYD_EXITS__PORT": str(order["exits_port"])},
    )
    device = None
    if order["has_agent"]:
        device = subprocess.Popen(
            [
                *order["prefix"],
                *(sys.executable, "-m", "proxyctl", "exit", "run"),
                *("--folder", order["device"], *OPEN),
            ],
            env={**os.environ, "PYTHONPATH": os.fspath(ROOT / "client"), **order["environment"]},
        )

    def end(_number: int, _frame: FrameType | None) -> None:
        if device is not None:
            device.kill()
        daemon.terminate()

    signal.signal(signal.SIGTERM, end)
    daemon.wait()
    if device is not None:
        device.kill()
        device.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
