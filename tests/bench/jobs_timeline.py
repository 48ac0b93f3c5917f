"""Where the time of a job goes between its post and the first line of its log.

The daemon, the agent and the supervisor write time stamps (`stamps.py`). JOBS=60 jobs, one at a
time. The table has medians: the time of each step since the post, and since the step before.
"""

import os
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from support.daemons import process
from support.daemons.process import Process

from bench import stamps
from bench.api import UNBOUNDED
from bench.jobs_whole import REST_SECONDS, Buyer, working
from bench.report import progress

JOBS = int(os.environ.get("JOBS", "60"))
QUICK_PART = 10  # a quick step is one of the quickest tenth: a busy machine changes it less
SCRIPT = "import time\nprint(time.monotonic_ns())\n"
ANSWERED, PRINTED, CAME = "buyer: post answered", "job: printed", "buyer: line came"


class Stamped(Process):
    """A daemon that writes time stamps."""

    program = "bench.stamps"


def measured(buyer: Buyer, path: Path) -> dict[str, float]:
    """Return when each step of a job was, in milliseconds since its post."""
    began = time.monotonic_ns()
    job_id = buyer.job(SCRIPT, "python3")
    answered = time.monotonic_ns()
    with closing(buyer.lines(job_id)) as lines:
        line, came = next(lines)
        for _ in lines:
            pass  # to its end
    steps = {ANSWERED: answered, **stamps.read(path, began), PRINTED: int(line), CAME: came}
    return {step: (at - began) / 1e6 for step, at in steps.items()}


def measure(folder: Path) -> dict[str, list[float]]:
    """Run the jobs, and return when each step was."""
    path = folder / "stamps"
    url = f"sqlite:///{folder}/proxyd.db"
    email, password = process.funded(url, credit="1000")
    found: dict[str, list[float]] = defaultdict(list)
    variables = {stamps.FILE: str(path)}
    with process.running(Stamped(url, **UNBOUNDED, **variables)) as daemon:
        daemon.wait_ready()
        token = daemon.log_in(email, password)
        agent = working(daemon, token, folder / "agent", program="bench.stamps", **variables)
        with agent, closing(Buyer(daemon, token)) as buyer:
            for number in range(JOBS + 1):
                steps = measured(buyer, path)
                if number:  # the first one has found nothing warm
                    for step, at in steps.items():
                        found[step].append(at)
                time.sleep(REST_SECONDS)
    return found


def table(found: dict[str, list[float]]) -> str:
    """Return the times as Markdown, the earliest step first."""
    lines = ["| step | since the post, ms | step, ms | quick step, ms |", "|---|---|---|---|"]
    medians = {step: statistics.median(values) for step, values in found.items()}
    last = [0.0] * len(found[CAME])
    for step, at in sorted(medians.items(), key=lambda each: each[1]):
        whole = len(found[step]) == len(last)  # else some jobs have taken another way
        if at <= medians[CAME] and whole:
            own = sorted(now - before for now, before in zip(found[step], last, strict=True))
            quick = own[len(own) // QUICK_PART]
            lines.append(f"| {step} | {at:.2f} | {statistics.median(own):.2f} | {quick:.2f} |")
            last = found[step]
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        found = measure(Path(folder))
    progress(f"jobs: {len(found[CAME])} are measured")
    print(table(found))


if __name__ == "__main__":
    main()
