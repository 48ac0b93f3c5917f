"""The walls around a job as it comes by the whole agent: the battery, the bombs, the way out."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.mounts import small_disk
from support.workers import battery
from support.workers import process as worker_process
from support.workers.battery import EXPECTED, SECRET, Outcome
from support.workers.bombs import BOMBS
from support.workers.market import TOKEN, WorkerMarket, worker_market
from support.workers.process import WorkerAgent, require_sandbox, until, worker_agent

from proxyctl.worker.base.record import Lend

OWN_SECRET = "secret-of-a-buyer-2f90"
WAY_OUT = """
import os, socket, urllib.error, urllib.request
print(os.environ["HTTPS_PROXY"], sorted(os.listdir("/proc/self/fd")))
for url in ("http://169.254.169.254/latest", "http://10.0.0.1/", "http://router.lan/"):
    try:
        print(urllib.request.urlopen(url, timeout=30).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.fixture(scope="module")
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


@pytest.fixture(scope="module")
def agent(market: WorkerMarket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerAgent]:
    """An agent with a secret in its environment, which gives jobs a way out."""
    folder = tmp_path_factory.mktemp("walls")
    require_sandbox(folder)
    with (
        pytest.MonkeyPatch.context() as patch,
        worker_agent(folder / "agent", market) as made,
    ):
        plain = worker_process.environment()
        patch.setattr(
            worker_process, "environment", lambda: {**plain, "PROXYD_WORKER_TOKEN": SECRET}
        )
        lend = Lend(cores=1, ram_gb=0.5, disk_gb=0.1, max_jobs=1, network="egress")
        made.agree(market.url, lend)
        made.start()
        yield made


@pytest.fixture(scope="module")
def outcomes(agent: WorkerAgent) -> dict[str, Outcome]:
    """Outcomes of the probe inside a job, in a sandbox that has waited for it."""
    waiting = agent.wait_ready()
    probed = agent.probed(OWN_SECRET)
    agent.wait_ready(after=waiting)
    return probed


@cases("line", [each for each in EXPECTED if each != "connect abstract"])
def test_nothing_gets_through_by_the_agent(line: str, outcomes: dict[str, Outcome]) -> None:
    """The bounds of an executor also hold with the agent around it."""
    battery.judge(line, outcomes)


def test_neither_the_agents_token_nor_its_folder_is_in_proc(
    outcomes: dict[str, Outcome], agent: WorkerAgent
) -> None:
    """Nor is a secret of the job where another user of the device could read it."""
    told = outcomes["environments and command lines"].detail
    for secret in (SECRET, TOKEN, OWN_SECRET, str(agent.folder)):
        assert secret not in told


@pytest.mark.parametrize(
    ("bomb", "kind", "words"),
    [
        ("memory", "oom", "memory"),
        ("disk", "job", "bytes that the job may write"),
        ("hidden disk", "job", "bytes that the job may write"),
        ("removed disk", "job", "bytes that the job may write"),
        ("mapped disk", "job", "bytes that the job may write"),
        ("deep", "job", "folders within folders"),
    ],
)
def test_a_bomb_ends_only_itself_and_its_buyer_gets_the_reason(
    agent: WorkerAgent, market: WorkerMarket, bomb: str, kind: str, words: str
) -> None:
    """The agent goes on, and takes the next one."""
    [(verb, fields)] = agent.run(BOMBS[bomb]).reports
    assert (verb, fields["kind"]) == ("fail", kind), fields
    assert words in fields["reason"]
    [(verb, fields)] = agent.run("print('hello')").reports
    assert verb == "complete"


@pytest.mark.long
def test_a_job_that_fills_the_hidden_disk_is_to_blame(tmp_path: Path) -> None:
    """Removed files in flight in a socket are in no table. They come back by the job's end."""
    with (
        small_disk(tmp_path / "small", 570) as folder,
        worker_market() as market,
        worker_agent(folder, market) as agent,
    ):
        require_sandbox(folder)
        agent.agree(market.url, Lend(cores=1, ram_gb=1.5, disk_gb=0.1, max_jobs=5))
        agent.start()
        [(verb, fields)] = agent.run(BOMBS["disk in flight"]).reports
        assert (verb, fields["kind"]) == ("fail", "job"), fields
        assert "bytes that the job may write" in fields["reason"]
        agent.until_idle()
        with (folder / "owners").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 100 << 20)
        [(verb, fields)] = agent.run("import time; time.sleep(600)").reports
        assert (verb, fields["kind"]) == ("fail", "host"), fields
        agent.until_idle()


def test_a_job_with_hardly_any_disk_runs_and_its_device_is_not_blamed(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    """The sandbox itself writes a few lines under the bound of one file before the job runs."""
    for script, verb in (("print('hello')", "complete"), (BOMBS["disk"], "fail")):
        job = market.post(script, resources={"disk_gb": 1e-9})
        until(lambda job=job: job.outcome, agent)
        agent.until_idle()
        [(said, fields)] = job.reports
        assert (said, fields.get("kind", "job")) == (verb, "job"), fields


def test_the_disk_is_bounded_while_the_agent_is_away(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    """The supervisor adds it up, and tells the agent that comes after."""
    job = market.post(f"import time\nprint('begun', flush=True)\ntime.sleep(1)\n{BOMBS['disk']}")
    until(lambda: b"begun" in job.logs.get((1, "out"), b""), agent)
    agent.kill()
    until(lambda: not agent.supervisors(), agent)
    agent.start()
    until(lambda: job.outcome, agent)
    agent.until_idle()
    [(verb, fields)] = job.reports
    assert (verb, fields["kind"]) == ("fail", "job")
    assert "bytes that the job may write" in fields["reason"]


def test_a_job_that_is_late_is_asked_first(agent: WorkerAgent, market: WorkerMarket) -> None:
    """At its timeout the job gets its grace, though its sandbox ends immediately on a signal."""
    # Time for Python to begin and to catch the signal, also on a machine with other work.
    job = market.post(BOMBS["polite"], payload={"grace_s": 30}, timeout_s=4)
    until(lambda: job.outcome, agent)
    agent.until_idle()
    [(verb, fields)] = job.reports
    assert (verb, fields["kind"], fields["exit_code"]) == ("fail", "timeout", 3)
    assert b"asked to end" in job.logs[1, "out"]


def test_a_way_out_is_there_for_jobs_that_want_it(agent: WorkerAgent, market: WorkerMarket) -> None:
    """It is served before the job begins, and judges; the gate is not the job's."""
    job = agent.run(WAY_OUT, network="egress")
    lines = job.logs[1, "out"].decode().splitlines()
    # The fourth is the listing's own.
    assert lines[0] == "http://127.0.0.1:1080 ['0', '1', '2', '3']", job.reports
    assert lines[1:] == ["403", "403", "403"]
