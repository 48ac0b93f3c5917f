"""kill -9 of agent, supervisor and marketplace at random moments: every job has one result.

`make crash-jobs` does so for a hundred seeds.
"""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.workers.market import Job, WorkerMarket, worker_market
from support.workers.process import WorkerAgent, require_sandbox, worker_agent

SEED = int(os.environ.get("PROXYD_CRASH_SEED", "0"))
SEEDS = int(os.environ.get("PROXYD_CRASH_KILLS", "2"))
JOBS = 3
FAULTS = 4
FAULT_MAX_SECONDS = 0.4  # from one to the next: a job passes all of its states in that time
SCRIPT = "import time\nprint('begun', flush=True)\ntime.sleep(0.3)\nprint('done')"


@pytest.mark.long  # in `make test`, test_job_kill.py kills the same, with a real daemon
@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_every_job_has_one_result_after_any_kill(tmp_path: Path, seed: int) -> None:
    require_sandbox(tmp_path)
    chance = random.Random(seed)
    with worker_market() as market, worker_agent(tmp_path / "agent", market) as agent:
        market.retries = True
        agent.start()
        jobs = [market.post(SCRIPT) for _ in range(JOBS)]
        for _ in range(FAULTS):
            # Not waiting for a condition: the test needs a random moment.
            time.sleep(chance.uniform(0, FAULT_MAX_SECONDS))
            chance.choice((kill_agent, kill_agent, kill_supervisor, lose_market))(agent, market)
        until_true(lambda: all(job.outcome for job in jobs), lambda: agent.log)
        agent.until_idle()
        for job in jobs:
            assert_one_result(job)


def kill_agent(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.kill()
    agent.start()


def kill_supervisor(agent: WorkerAgent, market: WorkerMarket) -> None:
    for pid in agent.supervisors()[:1]:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)


def lose_market(agent: WorkerAgent, market: WorkerMarket) -> None:
    market.stop()
    market.start()


def assert_one_result(job: Job) -> None:
    assert [verb for verb, _ in job.reports] == ["complete"], job.reports
    assert job.logs[job.attempt, "out"] == b"begun\ndone\n"
