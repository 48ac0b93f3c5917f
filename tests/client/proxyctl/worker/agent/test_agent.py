"""The agent as its owner runs it: real processes and sandboxes, beside a marketplace over HTTP."""

import fcntl
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from support.base.brief import brief
from support.base.mounts import fill, small_disk
from support.base.pythons import pythons
from support.base.waiting import until_true
from support.workers.market import TOKEN, Job, WorkerMarket, worker_market
from support.workers.outward import to_loopback
from support.workers.process import WorkerAgent, require_sandbox, until, worker_agent

from proxyctl.worker.agent import sweeping
from proxyctl.worker.agent.lifecycle import AgentError
from proxyctl.worker.base import lock, names
from proxyctl.worker.base.link import LinkError
from proxyctl.worker.base.record import Consent, Lend
from proxyctl.worker.base.states import AttemptState
from proxyctl.worker.commands.running import agent_with
from proxyctl.worker.executors.base.base import WORK, TaskError
from proxyctl.worker.files import unpacking

# Every state but one that ends by itself; `make test` kills in the first two.
KILLED_IN = [
    AttemptState.RUNNING,
    AttemptState.REPORTING,
    *(
        each
        for each in AttemptState
        if each not in (AttemptState.RUNNING, AttemptState.REPORTING, AttemptState.STOPPING)
    ),
]
UNTIL_TOLD = """
import os, time
print("begun", flush=True)
while not os.path.exists("told"):
    time.sleep(0.05)
print("done")
"""
FOR_A_SECOND = "import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('done')"
FOR_EVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)"
WHOLE = b"begun\ndone\n"
# In these the job was handed over to a supervisor already, or is over.
AFTER_THE_START = (
    AttemptState.RUNNING,
    AttemptState.ENDED,
    AttemptState.UPLOADING,
    AttemptState.REPORTING,
    AttemptState.DONE,
)


@pytest.fixture(scope="module", autouse=True)
def _sandbox(tmp_path_factory: pytest.TempPathFactory) -> None:
    require_sandbox(tmp_path_factory.mktemp("agent"))


@pytest.fixture
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


@pytest.fixture
def agent(market: WorkerMarket, tmp_path: Path) -> Iterator[WorkerAgent]:
    with worker_agent(tmp_path / "agent", market) as made:
        yield made


def tell(agent: WorkerAgent, job: Job) -> None:
    """Have a job go on that waits `UNTIL_TOLD`."""
    (agent.folder / names.ATTEMPTS / f"{job.id}-1" / WORK / "told").touch()


@pytest.mark.parametrize("python", brief(pythons()))
def test_a_job_runs_and_is_reported(market: WorkerMarket, tmp_path: Path, python: str) -> None:
    with worker_agent(tmp_path / "agent", market, python=python) as agent:
        agent.start()
        job = market.post("import os\nprint(6 * int(os.environ['N']))", payload={"env": {"N": "7"}})
        until(lambda: job.outcome, agent)
        agent.until_idle()
        [(verb, fields)] = job.reports
        assert (verb, fields["exit_code"], fields["result"]) == ("complete", 0, "42\n")
        assert fields["log_bytes"] == {"out": 3, "err": 0}
        assert fields["usage"]["max_memory_bytes"] > 0
        assert job.started == [1]
        assert job.logs[1, "out"] == b"42\n"
        assert agent.kill(signal.SIGTERM) == 0
        assert market.is_offline
        assert not agent.processes()


def test_a_job_that_fails_says_why(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    for script, fields, kind, reason in (
        ("import sys\nsys.exit('no data')", {}, "job", "status 1; its last words: no data"),
        ("import os\nos.kill(os.getpid(), 11)", {}, "job", "SIGSEGV|139|status -11|245"),
        ("while True: pass", {"timeout_s": 1}, "timeout", "longer than 1 s"),
        ("x", {"payload": {"env": {"PATH": "/no/such"}}}, "job", "execvp python3: No such file"),
        ("x", {"payload": {"network": "egress"}}, "refused", "lends no network"),
        ("x", {"job_type": "training"}, "refused", "takes no jobs of the type training"),
        ("x", {"payload": {"image": "a/b:c"}}, "refused", "can run the image a/b:c"),
        ("x", {"payload": {"env": 3}}, "refused", "cannot be understood here"),
        ("x", {"resources": {"cores": 64}}, "refused", "is not free here"),
    ):
        job = market.post(script, **fields)
        until(lambda job=job: job.outcome, agent)
        agent.until_idle()
        [(verb, report)] = job.reports
        assert (verb, report["kind"]) == ("fail", kind), report
        assert any(words in report["reason"] for words in reason.split("|")), report


@pytest.mark.parametrize("state", brief(KILLED_IN, 2))
def test_an_agent_that_is_killed_goes_on_where_it_was(
    agent: WorkerAgent, market: WorkerMarket, state: AttemptState
) -> None:
    market.retries = True
    job = market.post(FOR_A_SECOND)
    agent.start(die_at=state.value)
    assert agent.wait() == -signal.SIGKILL
    agent.start()
    until(lambda: job.outcome, agent)
    agent.until_idle()
    assert [verb for verb, _ in job.reports] == ["complete"]
    assert job.logs[job.attempt, "out"] == WHOLE
    assert job.started == ([1] if job.attempt == 1 else job.started)
    if state in AFTER_THE_START:
        assert job.attempt == 1
    assert not market.stale, market.stale


def lose_power(agent: WorkerAgent, job: Job, **fields: Any) -> Path:
    """Leave the files of a disk after a loss of power; return the folder of the attempt."""
    for pid in agent.processes():
        with suppress(ProcessLookupError):  # one of them ends with another one
            os.kill(pid, signal.SIGKILL)
    until_true(lambda: not agent.processes(), "nothing runs")
    folder = agent.folder / names.ATTEMPTS / f"{job.id}-1"
    entry = json.loads((folder / names.ENTRY).read_text())
    (folder / names.ENTRY).write_text(json.dumps({**entry, "boot": "another", **fields}))
    return folder


@pytest.mark.long
def test_a_start_that_is_lost_with_the_power_has_never_been(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    job = market.post(FOR_A_SECOND)
    agent.start(die_at=AttemptState.RUNNING.value)
    assert agent.wait() == -signal.SIGKILL
    folder = lose_power(agent, job, state=AttemptState.PREPARING.value)
    assert (folder / names.BEGUN).exists()
    (folder / "work" / "left").write_text("x")
    agent.start()
    until(lambda: job.outcome, agent)
    agent.until_idle()
    assert [verb for verb, _ in job.reports] == ["complete"]
    assert job.logs[1, "out"] == WHOLE
    assert not market.stale, market.stale


def test_a_job_that_a_loss_of_power_has_ended_is_the_devices_failure(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    job = market.post(FOR_A_SECOND)
    agent.start(die_at=AttemptState.RUNNING.value)
    assert agent.wait() == -signal.SIGKILL
    folder = lose_power(agent, job, state=AttemptState.STARTING.value)
    for name in (names.BEGUN, names.RUNNING):
        (folder / name).write_bytes(b"")
    agent.start()
    until(lambda: job.outcome, agent)
    [(verb, fields)] = job.reports
    assert (verb, fields["kind"]) == ("fail", "host")
    assert "restarted" in fields["reason"]


def test_an_agent_that_is_killed_while_it_stops_a_job_stops_it(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start(die_at=AttemptState.STOPPING.value)
    job = market.post(FOR_EVER)
    until(lambda: job.logs.get((1, "out")), agent)
    market.take_back(job)
    assert agent.wait() == -signal.SIGKILL
    agent.start()
    agent.until_idle()
    assert not job.reports


def test_a_cancelled_job_is_ended_and_nothing_is_reported(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.logs.get((1, "out")), agent)
    market.take_back(job)
    agent.until_idle()
    assert not job.reports
    second = market.post("print(1)")
    until(lambda: second.outcome == "complete", agent)


@pytest.mark.long
def test_a_cancelled_job_has_the_time_of_grace_that_its_buyer_wants(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    script = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(0.5)\n"
        "    pathlib.Path('kept').write_text('x')\n"
        "    time.sleep(600)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)"
    )
    patient = market.post(script, payload={"grace_s": 60})
    until(lambda: patient.logs.get((1, "out")), agent)
    work = agent.folder / names.ATTEMPTS / f"{patient.id}-1" / "work"
    market.take_back(patient)
    until((work / "kept").exists, agent)
    other = market.post(script, payload={"grace_s": 0})
    until(lambda: other.logs.get((1, "out")), agent)
    market.take_back(other)
    attempts = work.parent.parent
    until(lambda: not (attempts / f"{other.id}-1").exists(), agent)
    # It has run for a moment, so it gets two seconds and not the minute.
    until(lambda: not work.exists(), agent)


def test_a_job_outlives_its_agent_and_is_adopted(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.logs.get((1, "out")), agent)
    assert agent.kill(signal.SIGHUP) == 0
    supervisors = agent.supervisors()
    assert supervisors
    agent.start()
    until(lambda: "is adopted" in agent.log, agent)
    assert agent.supervisors() == supervisors
    market.take_back(job)
    agent.until_idle()
    assert job.started == [1]
    assert job.logs[1, "out"] == b"begun\n"


@pytest.mark.long
def test_a_draining_agent_stays_with_its_job_while_the_marketplace_is_away(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.logs.get((1, "out")), agent)
    market.stop()
    agent.send(signal.SIGTERM)
    until(lambda: "draining: 1 jobs continue" in agent.log, agent)
    supervisors = agent.supervisors()
    assert not agent.has_ended
    assert agent.kill(signal.SIGHUP) == 0
    assert supervisors
    assert agent.supervisors() == supervisors
    market.start()
    agent.start()
    until(lambda: "is adopted" in agent.log, agent)
    market.take_back(job)
    agent.until_idle()
    assert job.started == [1]


def test_a_job_whose_supervisor_is_killed_is_the_devices_failure(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.logs.get((1, "out")), agent)
    [supervisor] = agent.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: job.outcome, agent)
    agent.until_idle()
    [(verb, fields)] = job.reports
    assert (verb, fields["kind"]) == ("fail", "host")
    assert "supervisor" in fields["reason"]


def test_a_supervisor_that_is_killed_while_it_waits_is_replaced(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    until(lambda: market.syncs and agent.processes(), agent)
    for pid in agent.processes():
        with suppress(ProcessLookupError):  # one of them ends with another one
            os.kill(pid, signal.SIGKILL)
    job = market.post("print(1)")
    until(lambda: job.outcome == "complete", agent)


def test_a_job_runs_on_while_the_marketplace_is_away_and_its_result_waits(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post(UNTIL_TOLD)
    until(lambda: job.logs.get((1, "out")), agent)
    market.stop()
    tell(agent, job)
    until(lambda: list((agent.folder / names.ATTEMPTS).glob(f"*/{names.ENDED}")), agent)
    agent.kill()
    agent.start()
    until(lambda: "next try in" in agent.log, agent)
    market.start()
    until(lambda: job.outcome == "complete", agent)
    agent.until_idle()
    assert job.logs[1, "out"] == WHOLE


@pytest.mark.long
def test_an_attempt_that_was_given_to_another_device_is_dropped(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.logs.get((1, "out")), agent)
    agent.kill()
    market.take_back(job, "another device has it")
    agent.start()
    agent.until_idle()
    assert not job.reports


def test_a_revoked_token_ends_jobs_and_agent(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.logs.get((1, "out")), agent)
    market.is_revoked = True
    with market.changed:
        market.changed.notify_all()
    assert agent.wait() == 2
    assert "token of this device was revoked" in agent.log
    assert not agent.processes()
    assert not list((agent.folder / names.ATTEMPTS).iterdir())


@pytest.mark.long
def test_two_agents_in_one_folder(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    until(lambda: market.syncs, agent)
    second = agent.command("run")
    assert second.returncode == 1
    assert "works in" in second.stderr
    assert "already, as process" in second.stderr
    assert agent.command("status").stdout.startswith("running as process")


def test_a_reader_does_not_keep_an_agent_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / names.LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as `worker status` has it for a moment
        # It has looked when the agent tries again, and not before.
        monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=lambda _: leave(file)))
        held = lock.Lock(tmp_path)
    held.close()


def leave(file: TextIO) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)


@pytest.mark.long
def test_an_agent_in_whose_place_another_one_works_says_so_and_waits(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    def give(fields: dict[str, Any], is_there: object) -> dict[str, Any]:
        market.questions.append(fields)
        return {"ok": True, "jobs": [], "actions": [], "lease_s": 4, "seen": 0, "replaced": True}

    market._next = give  # type: ignore[method-assign]
    agent.start()
    until(lambda: "another agent with this device's token" in agent.log, agent)
    until(lambda: "another agent" in agent.command("status").stdout, agent)
    name = market.questions[0]["agent"]
    assert agent.kill(signal.SIGTERM) == 0  # and does not wait for its minute to be over
    asked = len(market.questions)
    assert asked == 1
    agent.start()
    until(lambda: len(market.questions) > asked, agent)
    assert market.questions[-1]["agent"] == name


@pytest.mark.long
def test_a_drain_waits_for_running_jobs(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post(UNTIL_TOLD)
    until(lambda: job.started, agent)
    assert "takes no more work" in agent.command("drain").stdout
    until(lambda: market.questions[-1]["capacity"]["slots"] == 0, agent)
    late = market.post("print(1)")
    tell(agent, job)
    assert agent.wait() == 0
    assert job.outcome == "complete"
    assert not late.attempt
    assert agent.command("status").stdout == "not running\n"


@pytest.mark.long
def test_a_drain_at_once_stops_running_jobs(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.started, agent)
    agent.command("drain", "--now")
    assert agent.wait() == 0
    [(verb, fields)] = job.reports
    assert (verb, fields["kind"]) == ("fail", "host")
    assert not agent.processes()


@pytest.mark.long
def test_a_drain_at_once_without_an_agent_ends_its_left_jobs(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post(FOR_EVER, title="for\x1bever")
    until(lambda: job.started, agent)
    agent.kill()
    listed = agent.command("jobs").stdout
    assert listed.startswith("not running\n")
    assert f"{job.id}-1  runs on" in listed
    assert "for ever" in listed
    waited = agent.command("drain")
    assert (waited.returncode, "drain --now" in waited.stdout) == (1, True)
    market.post("print()")
    ended = agent.command("drain", "--now")
    assert ended.returncode == 0, ended.stderr
    assert not agent.processes()
    assert [verb for verb, _ in job.reports] == ["fail"]
    assert agent.command("jobs").stdout == "not running\n"
    assert [each.attempt for each in market.jobs.values()] == [1, 0]  # nothing new was taken


@pytest.mark.long
def test_an_owner_that_ends_it_is_shown_the_jobs_that_go_on(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.started, agent)
    agent.send(signal.SIGINT)
    until(
        lambda: "draining: 1 jobs continue; repeat the signal to stop them now" in agent.log, agent
    )
    assert agent.kill(signal.SIGINT) == 0
    assert not agent.processes()


@pytest.mark.long
def test_it_says_that_it_takes_work_before_there_is_any(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    until(lambda: "takes work" in agent.log, agent)
    assert market.questions[0]["wait_s"] == 0
    until(lambda: len(market.questions) > 1, agent)
    assert market.questions[1]["wait_s"] > 0
    market.stop()
    until(lambda: f"{market.url[7:]} cannot be reached" in agent.command("status").stdout, agent)
    market.start()
    until(lambda: "takes work" in agent.command("status").stdout, agent)


@pytest.mark.long
def test_setup_changes_nothing_beside_an_agent(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    until(lambda: market.questions, agent)
    before = (agent.folder / names.CONSENT).read_bytes()
    done = agent.command("setup", "--api", market.url, "--cores", "0.5", typed="yes\n")
    assert done.returncode == 1
    assert "an agent works in" in done.stderr
    assert "End it first: proxyctl worker drain --folder" in done.stderr
    assert (agent.folder / names.CONSENT).read_bytes() == before


def test_the_last_output_of_a_job_is_one_line_of_the_log(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.start()
    job = market.post("import sys\nsys.exit('no\\n2026-01-01 00:00:00,000 job x: \\x1b[31mpaid')")
    until(lambda: job.outcome, agent)
    agent.until_idle()
    assert "\n2026-01-01" not in agent.log
    assert "\x1b" not in agent.log
    assert "no 2026-01-01 00:00:00,000 job x: " in agent.log


def test_an_agent_that_was_asleep_goes_on(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post(UNTIL_TOLD)
    until(lambda: job.logs.get((1, "out")), agent)
    agent.send(signal.SIGSTOP)
    tell(agent, job)
    until(lambda: list((agent.folder / names.ATTEMPTS).glob(f"*/{names.ENDED}")), agent)
    agent.send(signal.SIGCONT)
    until(lambda: job.outcome == "complete", agent)
    agent.until_idle()


@pytest.mark.long
def test_a_flood_of_output_is_bounded_on_the_disk(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post("import sys\nfor _ in range(80): sys.stdout.write('x' * (1 << 20))")
    until(lambda: job.outcome, agent)
    assert job.outcome == "complete"
    assert job.reports[0][1]["log_bytes"]["out"] == 64 << 20
    agent.until_idle()


def test_a_disk_that_is_full_costs_a_job_and_not_the_agent(
    market: WorkerMarket, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", 24) as folder, worker_agent(folder, market) as agent:
        agent.start()
        job = market.post("import sys\nfor _ in range(40): sys.stdout.write('x' * (1 << 20))")
        until(lambda: job.outcome, agent)
        agent.until_idle()
        assert job.reports[0][1]["kind"] == "host"
        assert "disk of the device is full" in job.reports[0][1]["reason"]
        filler = fill(folder)
        until(lambda: "takes no work: the disk of the device is full" in agent.log, agent)
        until(lambda: market.questions[-1]["capacity"]["slots"] == 0, agent)
        second = market.post("print(1)")
        filler.unlink()
        until(lambda: second.outcome == "complete", agent)
        assert "not taken" not in agent.log


def test_a_job_that_cannot_be_recorded_is_not_taken(market: WorkerMarket, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 24) as folder, worker_agent(folder, market) as agent:
        agent.start()
        until(lambda: market.questions, agent)
        filler, job = fill(folder), market.post("print(1)")  # sooner than the next look at the disk
        until(lambda: "not taken" in agent.log or "takes no work" in agent.log, agent)
        filler.unlink()
        until(lambda: job.outcome == "complete", agent)


def test_without_consent_nothing_runs(agent: WorkerAgent) -> None:
    (agent.folder / names.CONSENT).unlink()
    done = agent.command("run")
    assert done.returncode == 2
    assert "no user has agreed to lend anything yet" in done.stderr
    assert str(agent.folder / names.CONSENT) in done.stderr, "the folder may be a wrong one"


def test_the_daemon_gets_the_devices_report(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post(FOR_EVER)
    until(lambda: job.started, agent)
    until(lambda: market.questions[-1]["attempts"], agent)
    question = market.questions[-1]
    assert question["attempts"] == [{"job_id": job.id, "attempt": 1}]
    assert question["capacity"]["slots"] == 1
    assert question["capacity"]["cores"] == 0.5
    assert question["capabilities"]["executors"] == ["bwrap"]
    assert question["capabilities"]["ports"] == ["bwrap"]
    until(lambda: {"running"} == {each["state"] for each in market.syncs[-1]["attempts"]}, agent)
    # The command reads the file of the agent's state, which follows the report.
    until(lambda: re.search(f"{job.id}.* running ", agent.command("jobs").stdout), agent)
    assert json.loads((agent.folder / names.STATE).read_text())["words"] == "takes work"


def test_an_agent_of_which_a_thread_fails_ends_and_says_so(
    market: WorkerMarket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def readings() -> dict[str, Any]:
        raise RuntimeError("an unknown sensor")

    consent = Consent(market.url, TOKEN, "2026-01-01T00:00:00+00:00")
    agent = agent_with(consent, tmp_path, {}, to_loopback(), lambda: None)
    agent._syncer._readings = readings
    with pytest.raises(AgentError, match="start it again"):
        agent.run()
    assert "an unknown sensor" in caplog.text


def test_an_agent_asks_more_often_only_while_a_slow_answer_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marketplace that hangs for a while is no proxy that keeps its spaces back."""
    silence = LinkError("silent", is_silence=True)
    answers: list[LinkError | None] = [silence, None, None, silence, None, None]
    waits = []

    def poll(path: str, fields: dict[str, Any], wait_s: float, is_stale: object) -> dict[str, Any]:
        waits.append(wait_s)
        answer = answers.pop(0)
        if not answers:
            agent._lifecycle.end()
        if answer is not None:
            raise answer
        return {"ok": True, "jobs": [], "actions": [], "lease_s": 4, "seen": 0}

    consent = Consent("http://127.0.0.1:9", TOKEN, "2026-01-01T00:00:00+00:00")
    agent = agent_with(consent, tmp_path, {}, to_loopback(), lambda: None)
    monkeypatch.setattr(agent._link, "poll", poll)
    monkeypatch.setattr(agent._lifecycle, "pause", lambda _: None)
    agent._asker.run()
    assert waits == [0, 0, 300, 300, 0, 25]


def test_an_agent_that_cannot_list_running_jobs_does_not_begin(
    market: WorkerMarket, tmp_path: Path
) -> None:
    class Silent:
        def can_reach_ports(self) -> bool:
            return True

        def left(self) -> set[str]:
            raise TaskError("host", "podman ps did not end within 20 s")

    consent = Consent(market.url, TOKEN, "2026-01-01T00:00:00+00:00")
    agent = agent_with(consent, tmp_path, {"podman": Silent()}, to_loopback(), lambda: None)  # type: ignore[dict-item]
    with pytest.raises(AgentError, match=r"under podman cannot be found out.* did not end within"):
        agent.run()
    assert not market.questions


def test_a_device_without_a_door_is_given_no_job_that_listens(tmp_path: Path) -> None:
    class Serving:
        def can_reach_ports(self) -> bool:
            return True

    def told(lend: Lend) -> object:
        consent = Consent("http://127.0.0.1:1", TOKEN, "2026-01-01T00:00:00+00:00", lend)
        agent = agent_with(consent, tmp_path, {"podman": Serving()}, to_loopback(), lambda: None)  # type: ignore[dict-item]
        return agent._device.capabilities()["ports"]

    assert told(Lend()) == ["podman"]
    assert told(Lend(ports_gb_per_day=0)) == []
    spent = {"day": datetime.now(UTC).astimezone().date().isoformat(), "spent_bytes": 10**9}
    (tmp_path / names.PORTS).write_text(json.dumps(spent))
    assert told(Lend(ports_gb_per_day=1)) == []
    assert told(Lend(ports_gb_per_day=2)) == ["podman"]


def test_a_device_that_cannot_unpack_safely_takes_no_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would fail at each of them, one after the other."""
    consent = Consent("http://127.0.0.1:1", TOKEN, "2026-01-01T00:00:00+00:00")
    able = agent_with(consent, tmp_path, {}, to_loopback(), lambda: None)
    assert able._device.capabilities()["archives"] is True
    program = 'import os; os.write(1, b\'{"unconfined": "no walls"}\\n\')'
    monkeypatch.setattr(unpacking, "python", lambda _: (sys.executable, "-c", program))
    agent = agent_with(consent, tmp_path, {}, to_loopback(), lambda: None)
    assert agent._device.capabilities()["archives"] is False
    assert "no job with archives is taken" in caplog.text


def test_a_container_that_appears_after_the_removal_is_removed(
    market: WorkerMarket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late:
        has_it = True
        answers = [None, OSError("device busy"), TaskError("host", "docker ps did not end")]
        calls: list[str] = []

        def can_reach_ports(self) -> bool:
            return True

        def left(self) -> set[str]:
            if error := self.answers.pop():
                raise error
            self.answers.append(None)
            return {"late-1"} if self.has_it else set()

        def stop(self, attempt_id: str, grace_s: float) -> None:
            self.calls.append(f"stop {attempt_id} {grace_s}")

        def clean(self, attempt_id: str) -> None:
            self.calls.append(f"clean {attempt_id}")
            self.has_it = False
            agent._lifecycle.end()

    late = Late()
    consent = Consent(market.url, TOKEN, "2026-01-01T00:00:00+00:00")
    agent = agent_with(consent, tmp_path, {"docker": late}, to_loopback(), lambda: None)  # type: ignore[dict-item]
    monkeypatch.setattr(sweeping, "_SWEEP_SECONDS", 0)
    agent._sweeper.run()  # it ends, and not before it has answered
    assert late.calls == ["stop late-1 0", "clean late-1"]


def test_a_sweep_that_the_end_overtakes_touches_nothing(
    market: WorkerMarket, tmp_path: Path
) -> None:
    """Its findings may belong to the next agent in this folder."""

    class Slow:
        def can_reach_ports(self) -> bool:
            return True

        def left(self) -> set[str]:
            agent._lifecycle.end()
            return {"next-1"}

        def stop(self, attempt_id: str, grace_s: float) -> None:
            pytest.fail(f"{attempt_id} is stopped")

    consent = Consent(market.url, TOKEN, "2026-01-01T00:00:00+00:00")
    agent = agent_with(consent, tmp_path, {"docker": Slow()}, to_loopback(), lambda: None)  # type: ignore[dict-item]
    agent._sweeper.sweep(set())


def test_a_free_slot_is_offered_at_once(agent: WorkerAgent, market: WorkerMarket) -> None:
    agent.start()
    job = market.post(UNTIL_TOLD)
    until(lambda: job.started and market.questions[-1]["attempts"], agent)
    assert market.questions[-1]["capacity"]["slots"] == 1
    market._stops = lambda _: []  # type: ignore[assignment, method-assign]  # it holds the question
    tell(agent, job)
    until(lambda: job.outcome, agent)
    until(lambda: market.questions[-1]["capacity"]["slots"] == 2, agent)


def test_a_marketplace_that_gives_more_than_was_asked_for_is_not_obeyed(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    flood = [market.post(FOR_EVER, attempt=1).work for _ in range(200)]
    with market.changed:
        market.jobs.clear()
    given: list[int] = []

    def give(fields: dict[str, Any], is_there: object) -> dict[str, Any]:
        market.questions.append(fields)
        given.append(len(given))
        jobs = [{**each, "lease_s": 4} for each in flood] if len(given) == 1 else []
        return {"ok": True, "jobs": jobs, "actions": [], "lease_s": 4, "seen": len(given)}

    market._next = give  # type: ignore[method-assign]
    market.stop()
    agent.start()
    market.start()
    until(lambda: "far more than requested" in agent.log, agent)
    until(lambda: len(market.questions) > 1, agent)
    assert len(market.questions[-1]["attempts"]) <= 2 + 16
