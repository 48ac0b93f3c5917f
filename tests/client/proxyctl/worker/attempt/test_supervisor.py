"""The supervisor by itself: programs without a sandbox, in a folder of the test's."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.base.mounts import small_disk
from support.base.waiting import until_true

from proxyctl.worker.agent.bell import Bell
from proxyctl.worker.attempt import streams, supervisor
from proxyctl.worker.attempt.supervisor import _Disk, claim
from proxyctl.worker.attempt.supervisors import Supervisors
from proxyctl.worker.base import names
from proxyctl.worker.executors.base.base import Launch
from proxyctl.worker.executors.limits import disk
from proxyctl.worker.executors.limits.disk import Free
from proxyctl.worker.task.processes import Identity

SHELL = "/bin/sh"


def prepared(
    agent: Path, script: str, *, launch: dict[str, Any] | None = None, **task: Any
) -> Path:
    folder = agent / "attempts" / "one"
    folder.mkdir(parents=True)
    what = Launch((SHELL, "-c", script), env={"PATH": os.environ["PATH"]}, **(launch or {}))
    fields = {"seconds": 60, "grace_s": 0.2, "log_bytes": 1_000_000, **task}
    (folder / names.LAUNCH).write_text(json.dumps({"launch": what.as_fields(), **fields}))
    return folder


def run(agent: Path, script: str, **options: Any) -> dict[str, Any]:
    """Have a program supervised to its end. Return the record of that end."""
    return supervised(agent, prepared(agent, script, **options))


def supervised(agent: Path, folder: Path) -> dict[str, Any]:
    """Have the program of a folder supervised to its end. Return the record of that end."""
    supervisors = Supervisors(agent)
    supervisors.give(folder)
    until_true((folder / names.ENDED).exists, "it has ended")
    supervisors.close()
    ended: dict[str, Any] = json.loads((folder / names.ENDED).read_text())
    return {
        **ended,
        **{
            name: (folder / path).read_bytes()
            for name, path in names.LOGS.items()
            if (folder / path).exists()
        },
    }


def test_the_output_and_the_end_of_a_program_are_recorded(tmp_path: Path) -> None:
    ended = run(tmp_path, "echo out; echo err >&2; exit 3")
    assert (ended["status"], ended["signal"], ended["timed_out"]) == (3, None, False)
    assert (ended["out"], ended["err"]) == (b"out\n", b"err\n")
    assert ended["log_bytes"] == ended["log_kept"] == {"out": 4, "err": 4}


def test_a_program_has_nothing_of_the_agents(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "env; ls -l /proc/self/fd | sed 's/.*-> //'; cat <&9",
        launch={"files": {9: b"given"}},
    )
    lines = ended["out"].decode().splitlines()
    assert [each for each in lines if "PROXY" in each or "TOKEN" in each] == []
    places = [each for each in lines if each.startswith(("/", "pipe:", "socket:"))]
    assert [
        each for each in places if not each.startswith(("/dev/null", "pipe:", "/memfd:", "/proc/"))
    ] == []
    assert lines[-1] == "given"


def test_a_sandbox_that_has_started_nothing_says_so(tmp_path: Path) -> None:
    launch = {"status": 9}
    ended = run(tmp_path / "one", "echo no mount >&2; exit 1", launch=launch)
    assert (ended["status"], ended["unstarted"]) == (1, True)
    script = """echo '{ "exit-code": 1 }' >&9; exit 1"""
    assert not run(tmp_path / "other", script, launch=launch)["unstarted"]
    assert not run(tmp_path / "third", "exit 1")["unstarted"]


def test_a_program_that_ignores_its_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    script = "trap '' TERM; setsid sleep 1000 & echo $!; while true; do sleep 1; done"
    ended = run(tmp_path, script, seconds=3, launch={"sweep_seconds": 0.1})
    assert ended["timed_out"]
    assert ended["signal"] == signal.SIGKILL
    pid = int(ended["out"])
    until_true(lambda: Identity.of(pid) is None, "what had a session of its own is gone, too")


def test_the_end_of_an_orphan_is_seen_while_the_program_runs(tmp_path: Path) -> None:
    """Engines ask the kernel whether a container runs; an unreaped zombie counts as running."""
    # The outer shell is gone before its background process ends, which is the supervisor's child
    # then.
    folder = prepared(tmp_path, "sh -c 'sleep 0.2 & echo $!'; sleep 1000")
    supervisors = Supervisors(tmp_path)
    supervisors.give(folder)
    out = folder / names.LOGS["out"]
    until_true(lambda: out.exists() and out.read_text().endswith("\n"), "it runs")
    until_true(lambda: not psutil.pid_exists(int(out.read_text())), "it has been reaped")
    assert Identity.of_fields(json.loads((folder / names.RUNNING).read_text())).is_alive()
    Identity.of_fields(json.loads((folder / names.BEGUN).read_text())).send(signal.SIGKILL)
    until_true(lambda: not supervisors.reap(), "nothing runs")
    supervisors.close()


def test_output_is_announced_apart_from_the_start_and_the_end(tmp_path: Path) -> None:
    """A job that prints wakes only the thread that sends its log."""
    heard: list[str] = []
    bell = Bell(tmp_path, heard.append)
    run(tmp_path, "sleep 0.1; echo out; sleep 0.1")
    until_true(lambda: heard.count("one") == 2, lambda: str(heard))
    bell.close()
    assert heard.count("one+") == 1


def test_the_first_output_is_announced_without_a_wait() -> None:
    """The announcement of the start, some moments before, does not delay it."""
    bell = streams.Bell("one")
    with closing(bell._socket):
        bell.ring()
        bell.ring_soon()
        assert bell.seconds_left(60) == 0
        bell.ring_if_due()
        assert bell.seconds_left(60) == 60


def test_no_more_is_kept_than_the_bound(tmp_path: Path) -> None:
    ended = run(tmp_path, "head -c 300000 /dev/zero", log_bytes=1_000)
    assert ended["log_bytes"]["out"] == 300_000
    assert ended["log_kept"]["out"] == len(ended["out"]) == 1_000


@pytest.mark.parametrize(
    "launch", [{"cwd": "/nowhere"}, {"cgroups": ("/nowhere/cgroup.procs",)}, {"gate": 12}]
)
def test_a_program_that_cannot_be_started_says_why(tmp_path: Path, launch: dict[str, Any]) -> None:
    ended = run(tmp_path, "true", launch=launch)
    assert "could not be started: No such file or directory" in ended["failed"]


def test_orders_without_the_sandbox_that_they_are_for_start_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, "echo ran", orders="echo ran\n")
    assert "the sandbox that waited for it has ended" in ended["failed"]
    assert "out" not in ended


def test_a_supervisor_without_an_agent_ends_and_its_program_with_it(tmp_path: Path) -> None:
    folder = prepared(tmp_path, "sleep 1000")
    supervisors = Supervisors(tmp_path)
    supervisors.give(folder)
    until_true((folder / names.RUNNING).exists, "it runs")
    program = Identity.of_fields(json.loads((folder / names.RUNNING).read_text()))
    supervisor = Identity.of_fields(json.loads((folder / names.BEGUN).read_text()))
    assert program.is_alive()
    supervisor.send(signal.SIGKILL)
    until_true(lambda: not program.is_alive(), "its program is gone")
    assert not (folder / names.ENDED).exists()
    supervisors.close()


def test_an_attempt_is_begun_once(tmp_path: Path) -> None:
    folder = prepared(tmp_path, "echo ran")
    assert claim(str(folder), None)
    assert not claim(str(folder), Identity.of(os.getpid()))
    supervisors = Supervisors(tmp_path)
    supervisors.give(folder)
    until_true(lambda: not supervisors.reap(), "it has ended")
    supervisors.close()
    assert not (folder / names.ENDED).exists()


def test_a_supervisor_that_is_killed_before_it_has_read_its_order_can_be_replaced(
    tmp_path: Path,
) -> None:
    def started() -> set[psutil.Process]:
        return set(psutil.Process().children()) - before

    before = set(psutil.Process().children())
    folder = prepared(tmp_path, "echo ran")
    supervisors = Supervisors(tmp_path)
    [waiting] = started()
    waiting.send_signal(signal.SIGSTOP)
    supervisors.give(folder)
    assert not supervisors.has_ended(folder)
    waiting.kill()
    until_true(lambda: supervisors.has_ended(folder), "it is gone")
    assert not (folder / names.BEGUN).exists()
    supervisors.give(folder)  # no process waits, so another one is started
    until_true((folder / names.ENDED).exists, "it has ended")
    supervisors.replenish()
    supervisors.replenish()
    until_true(lambda: not supervisors.reap(), "nothing runs")
    assert len(started()) == 1
    supervisors.close()
    assert not started()


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_the_name_of_a_process_may_be_given_to_another(
    monkeypatch: pytest.MonkeyPatch, *, has_descriptors: bool
) -> None:
    if not has_descriptors:  # Linux before 5.3

        def fails(_: int) -> int:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", fails)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = Identity.of(process.pid)
        assert identity is not None
        assert identity.is_alive()
        other = Identity(identity.pid, identity.started - 1, identity.boot)
        other.send(signal.SIGKILL)
        assert not other.is_alive()
        assert not Identity(identity.pid, identity.started, "another boot").is_alive()
        assert process.poll() is None
        identity.send(signal.SIGKILL)
    assert not identity.is_alive()
    assert Identity.of(process.pid) is None


def test_a_machine_that_can_start_nothing_for_a_while_runs_jobs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    supervisors = Supervisors(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(supervisors, "_start", fails)
        folder = prepared(tmp_path, "sleep 1000")
        supervisors.give(folder)  # it waits already
        until_true((folder / names.RUNNING).exists, "it runs")
        with pytest.raises(OSError, match="temporarily"):
            supervisors.give(tmp_path)
    second = tmp_path / "attempts" / "two"
    second.mkdir()
    (second / names.LAUNCH).write_text((folder / names.LAUNCH).read_text().replace("1000", "0"))
    supervisors.give(second)
    until_true((second / names.ENDED).exists, "the second one has run")
    Identity.of_fields(json.loads((folder / names.BEGUN).read_text())).send(signal.SIGKILL)
    supervisors.close()


def test_of_several_jobs_one_is_ended_when_the_disk_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on, if its end makes room: or each would pass for the one that hid it."""
    free = 100
    monkeypatch.setattr(disk, "free_of", lambda _: Free(free))
    monkeypatch.setattr(disk, "RESERVE_BYTES", 150)
    monkeypatch.setattr(supervisor, "_OTHERS_SECONDS", 0)
    both = [_Disk(str(tmp_path)), _Disk(str(tmp_path))]
    for number, each in enumerate(both):
        work = tmp_path / str(number)
        work.mkdir()
        each.watch(str(work), 1 << 20)
    assert both[0].is_over(math.inf)
    assert not both[1].is_over(math.inf)
    free = 20  # too little to wait any longer
    assert both[1].is_over(math.inf)
    both[1].judge(0)
    free = 100
    third = _Disk(str(tmp_path))
    third.watch(str(tmp_path / "1"), 1 << 20)
    assert not third.is_over(math.inf)
    free += 2 << 20
    both[0].judge(0)
    assert "bytes that the job may write" in both[0].over
    assert not both[0].is_full
    assert not third.is_over(math.inf)
    free = 100
    assert third.is_over(math.inf)
    third.judge(0)
    assert third.is_full


def test_a_job_waits_for_the_end_of_the_one_that_has_filled_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when half of the reserve is gone; and not for ever, if nothing makes room."""
    now, free = 1000.0, 1_000_000
    monkeypatch.setattr(supervisor, "_now", lambda: now)
    monkeypatch.setattr(disk, "free_of", lambda _: Free(free))
    monkeypatch.setattr(disk, "RESERVE_BYTES", 100_000)
    idle, busy = _Disk(str(tmp_path)), _Disk(str(tmp_path))
    for name, each in (("idle", idle), ("busy", busy)):
        (tmp_path / name).mkdir()
        each.watch(str(tmp_path / name), 10 << 20)
        now += 1
        assert not each.is_over(now)
        assert each.look_at <= now + 1
    (tmp_path / "busy" / "file").write_bytes(bytes(980_000))
    free = 20_000
    now += 1
    assert not idle.is_over(now)
    assert busy.is_over(now)
    now += 2
    assert not idle.is_over(now)
    free = 1_000_000
    busy.judge(0)
    now += 2
    assert not idle.is_over(now)
    free = 20_000
    now += 2
    assert not idle.is_over(now)
    now += 4
    assert idle.is_over(now)
    idle.judge(0)
    assert idle.is_full


def test_output_that_has_no_room_has_the_end_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room that comes back by the end was the job's, in files that no look has found."""
    free = 100
    monkeypatch.setattr(disk, "free_of", lambda _: Free(free))
    one = _Disk(str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(disk, "RESERVE_BYTES", 0)
    one.watch(str(tmp_path / "work"), 1 << 20)
    assert not one.is_over(math.inf)
    one.fill()
    free += 2 << 20
    one.judge(0)
    assert not one.is_full
    assert "bytes that the job may write" in one.over


def test_a_job_that_fills_the_disk_is_to_blame_for_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 16) as small:
        script = (
            f"cd {small}/attempts/one && head -c 40000000 /dev/zero > work/all;"
            "while true; do echo and on it goes; done"
        )
        folder = prepared(small, script, launch={"disk_bytes": 4 << 20})
        # More than the job may use, before the first look: this disk never has the room that a
        # device keeps free.
        (folder / "work").mkdir()
        (folder / "work" / "more").write_bytes(bytes(6 << 20))
        ended = supervised(small, folder)
        assert "more than the 4194304 bytes" in ended["disk_over"]
        assert not ended["disk_full"]
