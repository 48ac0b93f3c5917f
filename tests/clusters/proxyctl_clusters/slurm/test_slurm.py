"""proxyctl_clusters.slurm.slurm: jobs on a node of a real Slurm, by the whole agent."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.base.cases import cases
from support.base.waiting import until_true
from support.clusters import slurm
from support.clusters.slurm import Cluster
from support.workers import battery, launching
from support.workers import process as worker_process
from support.workers.battery import EXPECTED, SECRET, Outcome
from support.workers.bombs import BOMBS
from support.workers.market import TOKEN, Job, WorkerMarket, worker_market
from support.workers.process import WorkerAgent, require_sandbox, until, worker_agent

from proxyctl import files
from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.attempt.endings import report_of
from proxyctl.worker.base import names, record
from proxyctl.worker.base.record import Lend, Sandbox
from proxyctl.worker.executors.base.base import Bounds, Ending, Task, TaskError
from proxyctl_clusters.slurm.slurm import EXCHANGE, OVER_FILE, RUN, Slurm
from proxyctl_clusters.slurm.slurm_calls import Node, parse_nodes
from proxyctl_clusters.slurm.slurm_groups import SlurmGroups

OWN_SECRET = "secret-of-a-buyer-55ab"
WAITS = """
import os, time
print("begun", flush=True)
while not os.path.exists("/work/go"):
    time.sleep(0.01)
print("ended")
"""

FORKS = """
import os, time
count = 0
try:
    while count < 5000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
"""
NOBODY = 65_534


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    """A folder with a name that is short enough for sockets."""
    slurm.require()
    folder = Path(tempfile.mkdtemp(prefix="proxyctl-slurm-"))
    folder.chmod(0o711)  # the socket of munge is for everybody
    yield folder
    battery.remove(folder)


@pytest.fixture(scope="module")
def cluster(top: Path) -> Iterator[Cluster]:
    require_sandbox(top / "none")
    (top / "cluster").mkdir()
    with slurm.cluster(top / "cluster") as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


@pytest.fixture(scope="module")
def agent(cluster: Cluster, market: WorkerMarket, top: Path) -> Iterator[WorkerAgent]:
    """An agent with a secret in its environment, which lends the cluster."""
    with (
        pytest.MonkeyPatch.context() as patch,
        worker_agent(top / "agent", market) as made,
    ):
        plain = worker_process.environment()
        extra = {**cluster.environment, "PROXYD_WORKER_TOKEN": SECRET}
        patch.setattr(worker_process, "environment", lambda: {**plain, **extra})
        path = made.folder / names.CONSENT
        lend = Lend(cores=1, ram_gb=0.5, disk_gb=0.1, max_jobs=1)
        consent = replace(record.load(path), lend=lend, sandbox=Sandbox(executor="slurm"))
        record.save(path, consent)
        made.start()
        yield made


def until_begun(agent: WorkerAgent, job: Job) -> Path:
    """Wait for the first line of its log; return the job's own folder."""
    until(lambda: b"begun" in job.logs.get((1, "out"), b""), agent)
    return agent.folder / names.ATTEMPTS / f"{job.id}-1" / "work"


@pytest.fixture(scope="module")
def outcomes(agent: WorkerAgent) -> dict[str, Outcome]:
    """What the probe reports from a node."""
    return agent.probed(OWN_SECRET)


def by_user(home: Path, program: str, *arguments: str) -> dict[str, Any]:
    """Run a program on a node, as an ordinary user who has no agent but what an agent does."""
    attempt = home / names.ATTEMPTS / "job-1"

    def run_it() -> dict[str, Any]:
        sys.executable = battery.PYTHON  # that of the tests may be in root's own folder
        executor = Slurm(home)
        task = battery.python_task(attempt, program)
        try:
            launch = executor.prepare(replace(task, command=(*task.command, *arguments)))
        except TaskError as error:
            return {"refused": error.message}
        told = {"seconds": 60, "grace_s": 1, "log_bytes": 1 << 26}
        (attempt / names.LAUNCH).write_text(json.dumps(told))
        started = launching.start(task, launch)
        status = started.wait()
        ending = asdict(executor.ended(task.attempt_id))
        executor.clean(task.attempt_id)
        return {"status": status, "out": started.out.decode(), "ending": ending}

    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    told = battery.as_user(NOBODY, run_it)
    assert isinstance(told, dict)
    return told


@cases("line", [each for each in EXPECTED if each != "connect abstract"])
def test_nothing_gets_through(line: str, outcomes: dict[str, Outcome]) -> None:
    """On a node there are the same walls as on a device."""
    battery.judge(line, outcomes)


def test_nothing_gets_through_for_an_ordinary_user(cluster: Cluster, top: Path) -> None:
    """On most clusters nobody but an administrator is root, and the agent is not."""
    told = by_user(top / "user", battery.PROBE.read_text(), str(os.getpid()), "nobody-listens")
    assert told.get("status") == 0, told
    reported = battery.reported(told["out"])
    assert "done" in reported
    for line in reported:
        battery.judge(line, reported)


def test_bounds_hold_for_an_ordinary_user(cluster: Cluster, top: Path) -> None:
    told = by_user(top / "user-memory", BOMBS["memory"])
    assert told["ending"]["is_out_of_memory"], told
    told = by_user(top / "user-forks", FORKS)
    assert 50 < int(told["out"]) < 64, told


def test_where_nothing_holds_the_limits_nothing_is_run(cluster: Cluster, top: Path) -> None:
    """A Slurm that merely counts memory is no bound, and this user has no control groups."""
    cluster.constrain(constrains=False)
    cluster.stop("slurmd")
    cluster.start("slurmd")
    cluster.until_ready()
    try:
        told = by_user(top / "user-loose", "print('not reached')")
    finally:
        cluster.constrain(constrains=True)
        cluster.stop("slurmd")
        cluster.start("slurmd")
        cluster.until_ready()
    assert "nothing bounds a job" in told["refused"]
    assert "may use all of memory" in told["refused"]
    assert cluster.jobs() == ""


def test_no_secret_is_in_proc(outcomes: dict[str, Outcome], agent: WorkerAgent) -> None:
    told = outcomes["environments and command lines"].detail
    for secret in (SECRET, TOKEN, OWN_SECRET, str(agent.folder)):
        assert secret not in told


def test_a_job_runs_on_a_node_and_its_log_comes_while_it_does(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    job = market.post(f"{WAITS}import sys; print('twice', file=sys.stderr); sys.exit(3)")
    work = until_begun(agent, job)
    assert f"{job.id}-1 RUNNING" in cluster.jobs()
    (work / "go").touch()
    until(lambda: job.outcome, agent)
    agent.until_idle()
    assert job.logs == {(1, "out"): b"begun\nended\n", (1, "err"): b"twice\n"}
    [(verb, said)] = job.reports
    assert (verb, said["kind"], said["exit_code"]) == ("fail", "job", 3)
    assert cluster.jobs() == ""


def test_used_resources_are_reported(agent: WorkerAgent, market: WorkerMarket) -> None:
    job = agent.run("x = bytearray(100_000_000); print(sum(range(3_000_000)))")
    [(verb, said)] = job.reports
    assert verb == "complete"
    assert said["usage"]["cpu_seconds"] > 0
    assert 100_000_000 < said["usage"]["max_memory_bytes"] < 600_000_000


@pytest.mark.parametrize(
    ("bomb", "kind", "words"),
    [("memory", "oom", "memory"), ("disk", "job", "wrote")],
)
def test_a_bomb_ends_only_itself_and_its_buyer_gets_the_reason(
    agent: WorkerAgent, market: WorkerMarket, bomb: str, kind: str, words: str
) -> None:
    [(verb, said)] = agent.run(BOMBS[bomb]).reports
    assert (verb, said["kind"]) == ("fail", kind), said
    assert words in said["reason"]


def test_forks_end_at_their_bound(agent: WorkerAgent, market: WorkerMarket) -> None:
    """Slurm has none; a job has one all the same."""
    job = agent.run(FORKS)
    assert job.outcome == "complete"
    assert 500 < int(job.logs[1, "out"]) < 512


def test_a_job_that_is_late_is_asked_first(agent: WorkerAgent, market: WorkerMarket) -> None:
    job = market.post(BOMBS["polite"], payload={"grace_s": 30}, timeout_s=2)
    until(lambda: job.outcome, agent)
    agent.until_idle()
    [(verb, said)] = job.reports
    assert (verb, said["kind"], said["exit_code"]) == ("fail", "timeout", 3), said
    assert b"asked to end" in job.logs[1, "out"]


def test_a_cancelled_job_leaves_nothing_on_its_node(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    deaf = "import signal; signal.signal(15, signal.SIG_IGN)\n" + WAITS
    job = market.post(deaf, payload={"grace_s": 0})
    until_begun(agent, job)
    market.take_back(job)
    agent.until_idle()
    assert cluster.jobs() == ""


def test_an_agent_that_is_killed_adopts_its_job(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    job = market.post(WAITS)
    work = until_begun(agent, job)
    agent.kill()
    before = cluster.jobs()
    agent.start()
    until(lambda: "runs on, and is adopted" in agent.log, agent)
    assert cluster.jobs() == before
    (work / "go").touch()
    until(lambda: job.outcome, agent)
    assert (job.outcome, job.logs[1, "out"]) == ("complete", b"begun\nended\n")
    agent.until_idle()


def test_an_agent_that_is_killed_while_a_job_waits_for_a_node_begins_it_once(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    cluster.call("scontrol", "update", "partitionname=main", "state=down")
    try:
        job = market.post("print('once')")
        until(lambda: f"{job.id}-1 PENDING" in cluster.jobs(), agent)
        agent.kill()
    finally:
        cluster.call("scontrol", "update", "partitionname=main", "state=up")
    agent.start()
    until(lambda: job.outcome, agent)
    assert (job.outcome, job.logs[1, "out"]) == ("complete", b"once\n")
    agent.until_idle()
    assert cluster.jobs() == ""


def test_a_job_whose_supervisor_here_is_killed_is_taken_from_its_node(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    job = market.post(WAITS)
    until_begun(agent, job)
    [supervisor] = agent.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: job.outcome, agent)
    assert job.reports[-1][1]["kind"] == "host"
    agent.until_idle()
    assert cluster.jobs() == ""


def test_a_job_whose_node_goes_away_is_the_devices_failure(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    job = market.post(WAITS)
    until_begun(agent, job)
    cluster.call("scontrol", "update", f"nodename={cluster.host}", "state=down", "reason=test")
    until(lambda: job.outcome, agent)
    [(verb, said)] = job.reports
    assert (verb, said["kind"]) == ("fail", "host")
    assert "NODE_FAIL" in said["reason"]
    agent.until_idle()
    cluster.call("scontrol", "update", f"nodename={cluster.host}", "state=resume")
    cluster.until_ready()


def test_a_controller_that_is_away_costs_no_result(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    """The job ends without it; that nothing runs any more is known when it is back."""
    job = market.post(WAITS)
    work = until_begun(agent, job)
    cluster.stop("slurmctld")
    (work / "go").touch()
    try:
        until(lambda: b"ended" in job.logs.get((1, "out"), b""), agent)
        until_true(lambda: "tried again" in agent.log, lambda: agent.log)
        assert not job.reports
    finally:
        cluster.start("slurmctld")
        cluster.until_ready()
    until(lambda: job.outcome, agent)
    assert job.outcome == "complete"
    agent.until_idle()


def test_the_check_list_looks_at_a_node(agent: WorkerAgent, market: WorkerMarket) -> None:
    until(lambda: market.questions, agent)  # its own look at a node is over
    said = agent.command("check").stdout
    lines = {line.split(":")[0].split()[-1]: line for line in said.splitlines() if ":" in line}
    for each in ("slurm", "slurm-nodes", "slurm-memory", "slurm-cores", "bubblewrap", "prlimit"):
        assert lines.get(f"slurm/{each}", "").startswith("ok"), said
    assert not [each for each in agent.folder.iterdir() if each.name.startswith("proxyd-check")]


def test_a_job_that_a_cluster_cannot_run_is_refused(cluster: Cluster, top: Path) -> None:
    executor = Slurm(top / "agent-2", queue_seconds=10)
    bounds = Bounds(1.0, 64 << 20, 1 << 20, 64, 60)
    plain = Task("job-1", top / "agent-2" / names.ATTEMPTS / "job-1", "script", ("true",), bounds)
    for change, words in (
        ({"image": "debian"}, "no images"),
        ({"network": "egress"}, "no network"),
        ({"gpus": ("GPU-1",)}, "GPUs"),
        ({"bounds": replace(bounds, cores=10_000)}, "no node has 10000 cores"),
    ):
        with pytest.raises(TaskError, match=words):
            executor.prepare(replace(plain, **change))  # type: ignore[arg-type]
    assert cluster.jobs() == ""
    assert not (plain.folder / EXCHANGE).exists()


def test_a_job_for_which_there_is_no_room_is_given_back(cluster: Cluster, top: Path) -> None:
    cluster.call("scontrol", "update", "partitionname=main", "state=down")
    try:
        executor = Slurm(top / "agent-3", queue_seconds=1)
        folder = top / "agent-3" / names.ATTEMPTS / "job-1"
        task = Task("job-1", folder, "script", ("true",), Bounds(1.0, 64 << 20, 1 << 20, 64, 60))
        with pytest.raises(TaskError, match="no room"):
            executor.prepare(task)
        assert cluster.jobs() == ""
    finally:
        cluster.call("scontrol", "update", "partitionname=main", "state=up")


def test_an_owner_cannot_lend_resources_that_a_cluster_lacks(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster, top: Path
) -> None:
    token = top / "token"
    token.write_text("not asked for")
    token.chmod(0o600)
    # One that does not run: what is lent cannot be changed while it does.
    other = WorkerAgent(top / "other", market)
    agreed = record.load(agent.folder / names.CONSENT)
    record.save(other.folder / names.CONSENT, agreed)
    for option, value, words in (
        ("--network", "egress", "cannot be given a network"),
        ("--gpus", "all", "GPUs of a cluster cannot be lent"),
        ("--cores", "1000", f"1000 cores are lent, and {os.cpu_count()} are there"),
        ("--ram-gb", "5", "5 GB of memory are lent, and 4.2 are there"),
    ):
        said = other.command(
            *("setup", "--api", market.url, "--token-file", str(token), option, value),
            typed="yes\n",
        )
        assert said.returncode != 0
        assert words in said.stderr + said.stdout


def test_a_machine_without_slurm_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    [finding] = Slurm(tmp_path).check()
    assert not finding.is_met
    assert "sbatch" in finding.actual
    with pytest.raises(TaskError, match="sinfo is not installed"):
        sandboxes.capacity(Sandbox(executor="slurm"), tmp_path)


def test_limits_that_slurm_does_not_hold_are_found_out() -> None:
    """These tests run in no group of Slurm's: nothing of what it was asked for is held."""
    groups = SlurmGroups(64 << 20, 0)
    unmet = {each.id for each in groups.check() if not each.is_met}
    assert {"slurm-memory", "slurm-cores"} <= unmet
    with pytest.raises(TaskError, match="holds no limits"):
        groups.admit("job-1", Bounds(1.0, 64 << 20, 1 << 20, 64, 60))
    assert groups.ended("job-1").max_memory_bytes is None


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("bwrap: Can't mount proc\n", "host"),
        ("bwrap: execvp nonesuch: No such file or directory\n", "job"),
    ],
)
def test_walls_that_have_started_nothing_are_the_nodes_fault(
    tmp_path: Path, said: str, kind: str
) -> None:
    attempt = tmp_path / names.ATTEMPTS / "job-1"
    exchange = attempt / EXCHANGE
    (exchange / RUN).mkdir(parents=True)
    for log in (exchange / RUN / names.LOGS["err"], attempt / names.LOGS["err"]):
        log.write_text(said)
    here = {
        "status": 1,
        "signal": None,
        "timed_out": False,
        "asked": False,
        "disk_full": False,
        "disk_over": "",
        "cpu_seconds": 0.0,
        "max_memory_bytes": 0,
        "log_kept": {"out": 0, "err": len(said)},
    }
    over = {"ended": {**here, "unstarted": True}, "ending": asdict(Ending())}
    files.write(exchange / OVER_FILE, over)
    ending = Slurm(tmp_path).ended("job-1")
    report = report_of({**here, "unstarted": False}, ending, None, attempt, 60)
    assert (report.verb, report.fields["kind"]) == ("fail", kind)


def test_nodes_are_read_as_slurm_lists_them() -> None:
    said = """
a1|idle|64|257000|gpu:a100:4(S:0-1),gpu:t4:1
a1|idle|64|257000|gpu:a100:4(S:0-1),gpu:t4:1
a2|mixed-|8|16000+|gpu:2
a3|idle*|8|16000|(null)
a4|drained|8|16000|(null)
a5|allocated|8|16000|(null)
"""
    assert parse_nodes(said) == [
        Node("a1", 64, 257000 << 20, {"a100": 4, "t4": 1}),
        Node("a2", 8, 16000 << 20, {"": 2}),
        Node("a5", 8, 16000 << 20),
    ]
