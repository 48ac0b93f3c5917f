"""proxyctl_clusters.kubernetes.kubernetes: jobs in a real Kubernetes, by the whole
agent."""

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.base import waiting
from support.base.cases import cases
from support.base.waiting import until_true
from support.clusters import kubernetes
from support.clusters.kubernetes import CLAIM, IMAGE, NAMESPACE, NODE, OPEN, WALLED, Cluster
from support.workers import battery
from support.workers import process as worker_process
from support.workers.battery import EXPECTED, SECRET, Outcome
from support.workers.bombs import BOMBS
from support.workers.market import TOKEN, Job, WorkerMarket, worker_market
from support.workers.process import WorkerAgent, until, worker_agent

from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.base import names, record
from proxyctl.worker.base.record import Lend, Sandbox
from proxyctl.worker.executors.base.base import Bounds, Task, TaskError
from proxyctl_clusters.kubernetes import kube_settings
from proxyctl_clusters.kubernetes.kube_objects import EXCHANGE
from proxyctl_clusters.kubernetes.kube_settings import Settings
from proxyctl_clusters.kubernetes.kubernetes import Kubernetes

PROBE = Path(battery.__file__).with_name("probe.py")
OWN_SECRET = "secret-of-a-buyer-55ab"
WAITS = """
import os, time
open("/work/beginnings", "a").write("x")
print("begun", flush=True)
while not os.path.exists("/work/go"):
    time.sleep(0.01)
print("ended")
"""
COUNTS = """
import os, time
print("begun", flush=True)
number = 0
while not os.path.exists("/work/go"):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.001)
open("/work/lines", "w").write(str(number))
"""
# Where a device is stricter: there the filter of system calls, the user's name and what of the
# kernel is to be seen are this program's choice, and in a cluster its runtime's.
ALSO = {
    "syscall ptrace": frozenset(("ESRCH",)),
    "syscall io_uring_setup": frozenset(("ok",)),
    "syscall vmsplice": frozenset(("ok",)),
    "syscall modify_ldt": frozenset(("ok",)),
    "read /sys/kernel": frozenset(("ok",)),
    "read /sys/fs/cgroup": frozenset(("ok",)),
    "descriptors": frozenset(("0,1,2,3",)),
    "socket netlink": frozenset(("ok",)),
    "socket vsock": frozenset(("ok",)),
    "user": frozenset(("65532",)),
    "groups": frozenset(("65532",)),
    "core": frozenset(("-1",)),
    "a file of 1 TB": frozenset(("ok",)),  # with nothing in it; what it holds is counted
}
BOUNDS = Bounds(0.1, 64 << 20, 1 << 20, 64, 60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    kubernetes.require()
    folder = Path(tempfile.mkdtemp(prefix="pxk-"))  # short, for sockets
    folder.chmod(0o755)
    try:
        with pytest.MonkeyPatch.context() as patch, kubernetes.cluster(folder) as made:
            # A node takes ten seconds to end a pod and to say so.
            patch.setattr(waiting, "PATIENCE_SECONDS", 60.0)
            config = folder / "kube.json"
            config.write_text(json.dumps(made.config(made.apply())))
            config.chmod(0o600)
            yield made
    finally:
        battery.remove(folder)


@pytest.fixture(scope="module")
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


def sandbox_of(cluster: Cluster) -> Sandbox:
    settings = {
        "kube_config": str(cluster.folder / "kube.json"),
        "kube_claim": f"{CLAIM}:{cluster.shared}",
        "kube_image": IMAGE,
    }
    return Sandbox(executor="kubernetes", settings=settings)


def settings_of(cluster: Cluster) -> Settings:
    return kube_settings.settings_of(sandbox_of(cluster))


@pytest.fixture(scope="module")
def agent(cluster: Cluster, market: WorkerMarket) -> Iterator[WorkerAgent]:
    """An agent with a secret in its environment, which lends the cluster."""
    with (
        pytest.MonkeyPatch.context() as patch,
        worker_agent(cluster.shared / "agent", market) as made,
    ):
        plain = worker_process.environment()
        extra = {"PROXYD_WORKER_TOKEN": SECRET}
        patch.setattr(worker_process, "environment", lambda: {**plain, **extra})
        path = made.folder / names.CONSENT
        lend = Lend(jobs=("script", "docker"), cores=1, ram_gb=0.5, disk_gb=0.1, max_jobs=1)
        record.save(path, replace(record.load(path), lend=lend, sandbox=sandbox_of(cluster)))
        made.start()
        yield made


def run(agent: WorkerAgent, market: WorkerMarket, script: str, **fields: object) -> Job:
    """Have a script run to its end."""
    job = market.post(script, **fields)
    until(lambda: job.outcome, agent)
    agent.until_idle()
    return job


def until_begun(agent: WorkerAgent, job: Job) -> Path:
    """Wait for the first line of its log; return the job's own folder."""
    until(lambda: b"begun" in job.logs.get((1, "out"), b""), agent)
    return agent.folder / names.ATTEMPTS / f"{job.id}-1" / "work"


def until_nothing_is_left(cluster: Cluster) -> None:
    until_true(lambda: not cluster.left(), lambda: str(cluster.left()))


@pytest.fixture(scope="module")
def outcomes(agent: WorkerAgent, market: WorkerMarket, cluster: Cluster) -> dict[str, Outcome]:
    """What the probe reports from within a pod."""
    targets = [f"host's {each}=127.0.0.1={cluster.port}" for each in ("loopback", "address")]
    arguments = ["probe", str(os.getpid()), "", *targets]
    source = f"import sys\nsys.argv = {arguments!r}\n{PROBE.read_text()}"
    job = run(agent, market, source, payload={"secrets": {"HF_TOKEN": OWN_SECRET}})
    rows = [json.loads(line) for line in job.logs[1, "out"].splitlines() if line.startswith(b"{")]
    reported = {row["name"]: Outcome(str(row["outcome"]), row["detail"]) for row in rows}
    assert "done" in reported, (job.reports, job.logs)
    return reported


@cases("line", [each for each in EXPECTED if each != "connect abstract"])
def test_nothing_gets_through(line: str, outcomes: dict[str, Outcome]) -> None:
    battery.judge(line, outcomes, ALSO)


def test_the_check_list_looks_at_a_pod(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    until(lambda: market.questions, agent)  # its own look is over
    said = agent.command("check").stdout
    lines = {line.split(":")[0].split()[-1]: line for line in said.splitlines() if ":" in line}
    for each in ("rights", "claim", "nodes", "walls", "network", "processes"):
        assert lines.get(f"kubernetes/kubernetes-{each}", "").startswith("ok"), said
    assert not list(agent.folder.glob("check-*"))
    until_nothing_is_left(cluster)


def test_a_job_runs_in_a_pod_and_its_log_comes_while_it_does(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    words = "import os, sys; print(sys.argv[1:], os.environ['HF_TOKEN']); sys.exit(3)"
    command = ["python3", "-c", WAITS + words, "$(HOME)", "$$"]
    payload = {"image": IMAGE, "command": command, "secrets": {"HF_TOKEN": OWN_SECRET}}
    job = market.post(job_type="docker", payload=payload)
    work = until_begun(agent, job)
    [pod] = cluster.pods()
    assert pod["metadata"]["annotations"]["proxyd-attempt"] == f"{job.id}-1"
    assert OWN_SECRET not in json.dumps(pod)
    (work / "go").touch()
    until(lambda: job.outcome, agent)
    agent.until_idle()
    told = f"begun\nended\n['$(HOME)', '$$'] {OWN_SECRET}\n".encode()
    assert job.logs == {(1, "out"): told}
    [(verb, said)] = job.reports
    assert (verb, said["kind"], said["exit_code"]) == ("fail", "job", 3)
    until_nothing_is_left(cluster)


@pytest.mark.parametrize(
    ("bomb", "kind", "words"), [("memory", "oom", "memory"), ("disk", "job", "wrote")]
)
def test_a_bomb_ends_only_itself_and_its_buyer_gets_the_reason(
    agent: WorkerAgent, market: WorkerMarket, bomb: str, kind: str, words: str
) -> None:
    [(verb, said)] = run(agent, market, BOMBS[bomb]).reports
    assert (verb, said["kind"]) == ("fail", kind), said
    assert words in said["reason"]


def test_a_job_that_is_late_is_asked_first(agent: WorkerAgent, market: WorkerMarket) -> None:
    job = run(agent, market, BOMBS["polite"], payload={"grace_s": 30}, timeout_s=3)
    [(verb, said)] = job.reports
    assert (verb, said["kind"]) == ("fail", "timeout"), said
    assert b"asked to end" in job.logs[1, "out"]


def test_a_cancelled_job_leaves_nothing_in_the_cluster(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    deaf = "import signal; signal.signal(15, signal.SIG_IGN)\n" + WAITS
    job = market.post(deaf, payload={"grace_s": 0})
    until_begun(agent, job)
    market.take_back(job)
    agent.until_idle()
    until_nothing_is_left(cluster)


def test_an_agent_that_is_killed_adopts_its_job(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    job = market.post(WAITS)
    work = until_begun(agent, job)
    agent.kill()
    [before] = cluster.pods()
    agent.start()
    until(lambda: "runs on, and is adopted" in agent.log, agent)
    assert [each["metadata"]["uid"] for each in cluster.pods()] == [before["metadata"]["uid"]]
    (work / "go").touch()
    until(lambda: job.outcome, agent)
    assert (job.outcome, job.logs[1, "out"]) == ("complete", b"begun\nended\n")
    agent.until_idle()


def test_an_agent_that_is_killed_while_a_job_waits_for_a_node_begins_it_once(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    cluster.stop("kube-scheduler")
    try:
        job = market.post("print('once')")
        until(lambda: any(each.startswith("proxyd-") for each in cluster.left()), agent)
        agent.kill()
    finally:
        cluster.start("kube-scheduler")
    agent.start()
    until(lambda: job.outcome, agent)
    assert (job.outcome, job.logs[1, "out"]) == ("complete", b"once\n")
    agent.until_idle()
    until_nothing_is_left(cluster)


def test_a_job_whose_supervisor_is_killed_is_taken_from_the_cluster(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    job = market.post(WAITS)
    until_begun(agent, job)
    [supervisor] = agent.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: job.outcome, agent)
    assert job.reports[-1][1]["kind"] == "host"
    agent.until_idle()
    until_nothing_is_left(cluster)


def test_a_removed_pod_is_the_devices_failure_and_no_other_begins(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    """The cluster makes another pod in its place, which nobody has given the word."""
    job = market.post(WAITS)
    work = until_begun(agent, job)
    [pod] = cluster.pods()
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
    beginnings = work / "beginnings"
    seen = []
    cluster.ask("DELETE", path, {"gracePeriodSeconds": 1})

    def has_ended() -> bool:
        if beginnings.exists():
            seen.append(beginnings.read_text())
        return bool(job.outcome)

    until(has_ended, agent)
    [(verb, said)] = job.reports
    assert (verb, said["kind"]) == ("fail", "host"), said
    assert set(seen) == {"x"}
    agent.until_idle()
    until_nothing_is_left(cluster)


def test_an_api_server_that_is_away_costs_no_result_and_no_line(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    """The job goes on and ends without it; that nothing runs is known when it is back."""
    job = market.post(COUNTS)
    work = until_begun(agent, job)
    cluster.stop("kube-apiserver")
    try:
        (work / "go").touch()
        until_true((work / "lines").exists, "the job has ended")
        assert not job.reports
    finally:
        cluster.start("kube-apiserver")
        until_true(cluster.is_node_ready, cluster.tell)
    until(lambda: job.outcome, agent)
    assert job.outcome == "complete", job.reports
    numbers = re.findall(rb"line (\d+)\n", job.logs[1, "out"])
    assert [int(each) for each in numbers] == list(range(len(numbers)))
    assert len(numbers) > 10
    agent.until_idle()
    until_nothing_is_left(cluster)


def test_an_api_server_that_is_away_does_not_mean_that_nothing_runs(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    executor = Kubernetes(agent.folder, settings_of(cluster))
    assert executor.running() == set()
    cluster.stop("kube-apiserver")
    try:
        for call in (executor.running, lambda: executor.stop("job-1", 0)):
            with pytest.raises(TaskError, match="does not answer"):
                call()
        with pytest.raises(TaskError, match="does not answer"):
            sandboxes.capacity(sandbox_of(cluster), agent.folder)
    finally:
        cluster.start("kube-apiserver")
        until_true(cluster.is_node_ready, cluster.tell)


def test_an_image_that_is_not_to_be_had_is_no_fault_of_the_device(
    agent: WorkerAgent, market: WorkerMarket, cluster: Cluster
) -> None:
    executor = Kubernetes(cluster.shared / "agent-2", settings_of(cluster))
    folder = cluster.shared / "agent-2" / names.ATTEMPTS / "job-1"
    for each in ("work", "inputs"):
        (folder / each).mkdir(parents=True)
    plain = Task("job-1", folder, "docker", (), BOUNDS, image="127.0.0.1:9/nothing:1")
    with pytest.raises(TaskError) as caught:
        executor.prepare(plain)
    assert caught.value.kind == "image", caught.value.message
    assert not (folder / EXCHANGE).exists()
    until_nothing_is_left(cluster)


def test_a_job_that_a_cluster_cannot_run_is_refused(cluster: Cluster) -> None:
    executor = Kubernetes(cluster.shared / "agent-3", settings_of(cluster))
    folder = cluster.shared / "agent-3" / names.ATTEMPTS / "job-1"
    plain = Task("job-1", folder, "script", ("true",), BOUNDS)
    for change, words in (
        ({"network": "egress"}, "no network"),
        ({"gpus": ("GPU-1",)}, "GPUs"),
        ({"ports": (8888,)}, "ports"),
        ({"bounds": replace(BOUNDS, cores=10_000)}, "no node has 10000 cores"),
    ):
        with pytest.raises(TaskError, match=words):
            executor.prepare(replace(plain, **change))  # type: ignore[arg-type]
    until_nothing_is_left(cluster)


def test_a_job_for_which_there_is_no_room_is_given_back(
    agent: WorkerAgent, cluster: Cluster
) -> None:
    node = f"/api/v1/nodes/{NODE}"
    executor = Kubernetes(cluster.shared / "agent-4", settings_of(cluster), queue_seconds=1)
    folder = cluster.shared / "agent-4" / names.ATTEMPTS / "job-1"
    for each in ("work", "inputs"):
        (folder / each).mkdir(parents=True)
    task = Task("job-1", folder, "script", ("true",), BOUNDS)
    cluster.stop("kube-scheduler")
    try:
        with pytest.raises(TaskError, match="no room"):
            executor.prepare(task)
    finally:
        cluster.start("kube-scheduler")
    assert cluster.ask("GET", node)["metadata"]["name"] == NODE
    until_nothing_is_left(cluster)


def test_an_owner_cannot_lend_resources_that_a_cluster_lacks(
    market: WorkerMarket, cluster: Cluster
) -> None:
    agent = WorkerAgent(cluster.shared / "agent-7", market)
    path = agent.folder / names.CONSENT
    record.save(path, replace(record.load(path), sandbox=sandbox_of(cluster)))
    token = cluster.folder / "token"
    token.write_text("not asked for")
    token.chmod(0o600)
    for option, value, words in (
        ("--network", "egress", "cannot be given a network"),
        ("--gpus", "all", "GPUs of a cluster cannot be lent"),
        ("--cores", "1000", f"1000 cores are lent, and {os.cpu_count()} are there"),
        ("--kube-claim", "shared:/elsewhere", "is not below /elsewhere"),
        ("--kube-image", "", "--kube-image"),
    ):
        said = agent.command(
            *("setup", "--api", market.url, "--token-file", str(token), option, value),
            typed="yes\n",
        )
        assert said.returncode != 0
        assert words in said.stderr + said.stdout


def test_a_network_that_keeps_to_no_rule_is_found_out(cluster: Cluster) -> None:
    """A cluster takes the rule, whether or not there is anybody who enforces it."""
    cluster.set_network(OPEN)
    try:
        folder = cluster.shared / "agent-5"
        folder.mkdir()
        findings = {each.id: each for each in Kubernetes(folder, settings_of(cluster)).check()}
    finally:
        cluster.set_network(WALLED)
    network = findings["kubernetes-network"]
    assert not network.is_met
    assert ":10250" in network.actual  # what runs the pods of the node


def test_an_agent_without_rights_gets_the_missing_ones(cluster: Cluster) -> None:
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    cluster.ask("POST", account, {"metadata": {"name": "nobody"}})
    note = {"kubernetes.io/service-account.name": "nobody"}
    cluster.ask(
        "POST",
        secrets,
        {
            "metadata": {"name": "nobody-token", "annotations": note},
            "type": "kubernetes.io/service-account-token",
        },
    )
    config = cluster.folder / "nobody.json"
    config.write_text(json.dumps(cluster.config(cluster.token_of("nobody-token"))))
    config.chmod(0o600)
    settings = replace(settings_of(cluster), config=str(config))
    findings = {each.id: each for each in Kubernetes(cluster.shared / "agent-6", settings).check()}
    rights = findings["kubernetes-rights"]
    assert not rights.is_met
    assert "create jobs" in rights.actual
    assert "get pods/log" in rights.actual
    assert "list nodes" in rights.actual


def test_no_secret_is_in_proc(outcomes: dict[str, Outcome], agent: WorkerAgent) -> None:
    told = outcomes["environments and command lines"].detail
    for secret in (SECRET, TOKEN, str(agent.folder)):
        assert secret not in told
