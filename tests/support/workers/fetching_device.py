"""A program: an agent without a network for jobs, which fetches an input from each URL given.

    python -m support.workers.fetching_device FOLDER API URL...

The API is one that tells the device's public address.

Prints the words that the buyer would read, a line of JSON for each; "" for a file that came.
"""

import json
import sys
from pathlib import Path

from proxyctl.worker.base.record import Consent
from proxyctl.worker.base.states import AttemptState
from proxyctl.worker.commands.running import agent_with
from proxyctl.worker.executors.base.base import INPUTS, WORK, TaskError
from proxyctl.worker.network.outward import WayOut
from proxyctl.worker.task.journal import Entry
from proxyctl.worker.task.patience import Patience


def main(folder: Path, api: str, *urls: str) -> None:
    way_out = WayOut(api)
    consent = Consent("https://market.example", "token", "")
    agent = agent_with(consent, folder, {}, way_out, way_out.close)
    for number, url in enumerate(urls):
        attempt = folder / f"attempt{number}"
        for name in (WORK, INPUTS):
            (attempt / name).mkdir(parents=True)
        given = {"name": "x", "url": url, "sha256": "0" * 64}
        work = {"job_id": "a", "attempt": 1, "payload": {"command": ["true"]}, "inputs": [given]}
        entry = Entry(work=work, state=AttemptState.PREPARING, boot="")
        try:
            agent._device.transfers.fetch(entry, attempt, Patience())
            words = ""
        except TaskError as error:
            words = f"{error.kind}: {error.message}"
        sys.stdout.write(f"{json.dumps(words)}\n")
    way_out.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
