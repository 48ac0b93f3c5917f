"""kill -9 of a real marketplace, its database and a device at random moments, again and again.

Every job comes to its result once, or is given away again, and nothing is left behind; the books
agree after each seed. `make crash-jobs` does so for a hundred seeds of each database.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.base.mounts import fill, small_disk
from support.database import postgres, sqlite
from support.workers.crash_site import CrashSite, crash_site, until_begun
from support.workers.process import WorkerAgent, require_sandbox, until

from proxyctl.worker.base import names
from proxyctl.worker.base.states import AttemptState

SEED = int(os.environ.get("PROXYD_CRASH_SEED", "0"))
SEEDS = int(os.environ.get("PROXYD_CRASH_KILLS", "1"))
JOBS = 3
FAULTS = 4
FAULT_MAX_SECONDS = 0.6  # from one to the next: a job passes all of its states in that time
AWAY_MAX_SECONDS = 0.5
STOP_SECONDS = float(os.environ.get("PROXYD_CRASH_STOP", "0"))
DISK_MEGABYTES = 700  # jobs are ended where less than 512 are free
FULL_SECONDS = 8.0  # longer than the agent's wait until it writes again


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)]
)
def shared_site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CrashSite]:
    folder = tmp_path_factory.mktemp("site")
    require_sandbox(folder)
    if request.param == "sqlite":
        with crash_site(folder, sqlite.database(folder)) as made:
            yield made
        return
    with postgres.killable_server() as database:
        with crash_site(folder, database.url, database) as made:
            yield made


@pytest.fixture
def site(shared_site: CrashSite) -> Iterator[CrashSite]:
    """The same for each test, whose agents end with it."""
    yield shared_site
    for agent in shared_site.agents:
        agent.kill_if_started()


@pytest.mark.timeout(60 + 60 * SEEDS)
def test_every_job_has_one_result_after_any_kill(site: CrashSite) -> None:
    site.agents[0].start()
    for seed in range(SEED, SEED + SEEDS):
        run_seed(site, random.Random(seed))


@pytest.mark.long
def test_an_hour_without_the_marketplace_loses_no_result(site: CrashSite) -> None:
    agent = site.agents[0]
    agent.start()
    job = site.post()
    until_begun(site, job)
    site.stop_daemon()
    until(lambda: list((agent.folder / names.ATTEMPTS).glob(f"*/{names.ENDED}")), agent)
    site.let_pass(3_600)
    site.start_daemon()
    site.finish([job])
    assert len(site.last_attempts[job]) == 1


@pytest.mark.long
def test_a_token_that_is_revoked_in_mid_job_gives_the_job_to_another_device(
    site: CrashSite,
) -> None:
    agent = site.agents[0]
    agent.start()
    job = site.post()
    until_begun(site, job)
    site.revoke(agent)
    assert agent.wait() == 2  # starting it again is in vain
    assert "token of this device was revoked" in agent.log
    site.finish([job])
    first, second = site.last_attempts[job]
    assert (first["outcome"], second["outcome"]) == ("lost", "completed")
    site.agree(agent)  # later tests use the same agents


def stopped(site: CrashSite, who: str) -> list[int]:
    """Return the processes that are stopped with one of the three."""
    if who == "agent":
        return [site.agents[0].pid]
    if who == "daemon":
        return [site.daemon.process.pid]
    assert site.database is not None
    return site.database.pids()


@pytest.mark.skipif(not STOP_SECONDS, reason="make crash-jobs")
@pytest.mark.timeout(300 + 2 * STOP_SECONDS)
@pytest.mark.parametrize("who", ["agent", "daemon", "database"])
def test_a_process_that_stands_still_for_minutes_goes_on(site: CrashSite, who: str) -> None:
    """As a machine that sleeps: no connection is closed, and no answer comes."""
    if who == "database" and site.database is None:
        pytest.skip("SQLite is in the daemon")
    agent = site.agents[0]
    agent.start()
    job = site.post(seconds=3)  # so that it ends during the stop
    until_begun(site, job)
    pids = stopped(site, who)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STOP_SECONDS)  # not waiting for a condition: it is the time that is tried here
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    site.finish([job])
    assert len(site.last_attempts[job]) == 1


@pytest.mark.long
def test_a_device_that_was_restarted_in_mid_job_gives_it_back(site: CrashSite) -> None:
    agent = site.agents[0]
    agent.start()
    job = site.post(seconds=5)
    until_begun(site, job)
    agent.lose_power()
    agent.start()
    site.finish([job])
    first, second = site.last_attempts[job]
    assert first["kind"] == "host"
    assert "restarted" in first["reason"]
    assert second["outcome"] == "completed"


@pytest.mark.skipif("PROXYD_CRASH_KILLS" not in os.environ, reason="make crash-jobs")
def test_a_disk_that_fills_under_agent_and_daemon_loses_no_job(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_MEGABYTES) as disk:
        require_sandbox(tmp_path)
        with crash_site(disk, sqlite.database(disk)) as site:
            agent = site.agents[0]
            agent.start()
            for _ in range(2):
                jobs = [site.post() for _ in range(JOBS)]
                until_begun(site, jobs[0])
                before = len(agent.log)
                filler = fill(disk)
                # One tells of its disk, the other one of a marketplace that cannot write.
                until(lambda before=before: len(agent.log) > before, agent)  # type: ignore[misc]
                time.sleep(FULL_SECONDS)  # not for a condition: every attempt meanwhile fails
                filler.unlink()
                site.finish(jobs)


def run_seed(site: CrashSite, chance: random.Random) -> None:
    jobs = [site.post() for _ in range(JOBS)]
    faults = [kill_daemon, kill_agent, kill_agent, kill_supervisor, kill_waiting_supervisor]
    faults += [kill_database, kill_database] if site.database is not None else [kill_daemon]
    done = []
    try:
        for _ in range(FAULTS):
            # Not waiting for a condition: the test needs a random moment.
            time.sleep(chance.uniform(0, FAULT_MAX_SECONDS))
            fault: Callable[[CrashSite, random.Random], None] = chance.choice(faults)
            done.append(fault.__name__)
            fault(site, chance)
        site.finish(jobs)
    except BaseException as error:
        error.add_note(f"after {done}")
        raise


def kill_daemon(site: CrashSite, chance: random.Random) -> None:
    site.kill_daemon(chance.uniform(0, AWAY_MAX_SECONDS))


def kill_database(site: CrashSite, chance: random.Random) -> None:
    assert site.database is not None
    site.database.kill()
    time.sleep(chance.uniform(0, AWAY_MAX_SECONDS))
    site.database.start()


def kill_agent(site: CrashSite, chance: random.Random) -> None:
    """Kill it now, or have it kill itself when it comes to a state that it may never come to."""
    agent = site.agents[0]
    agent.kill()
    agent.start(die_at=chance.choice(["", *(each.value for each in AttemptState)]))


def kill_supervisor(site: CrashSite, chance: random.Random) -> None:
    kill(site.agents[0].supervisors(), chance)


def kill_waiting_supervisor(site: CrashSite, chance: random.Random) -> None:
    agent = site.agents[0]
    kill(waiting(agent), chance)


def waiting(agent: WorkerAgent) -> list[int]:
    """Return the supervisors that have no attempt yet."""
    working = agent.supervisors()
    return [pid for pid in agent.supervising() if pid not in working]


def kill(pids: list[int], chance: random.Random) -> None:
    if pids:
        try:
            os.kill(chance.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return  # it has just ended
