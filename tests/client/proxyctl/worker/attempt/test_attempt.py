"""Steps of an attempt at moments that real processes meet too seldom, with stand-ins for them."""

import os
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from support.base.waiting import until_true

from proxyctl.files import FileError
from proxyctl.worker.attempt import attempt as attempts
from proxyctl.worker.attempt.attempt import Attempt, AttemptTimes, Tools
from proxyctl.worker.attempt.supervisor import write
from proxyctl.worker.attempt.traces import Traces
from proxyctl.worker.base import names
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.record import Consent
from proxyctl.worker.base.states import AttemptState
from proxyctl.worker.executors.base.base import INPUTS, Ending, Task, TaskError
from proxyctl.worker.network.ports import Served
from proxyctl.worker.task.journal import Entry, Journal, Report, Stop
from proxyctl.worker.task.patience import INPUT, Patience
from proxyctl.worker.task.processes import Identity, boot_id, boot_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

WORK = {
    "job_id": "01234567-89ab-cdef-0123-456789abcdef",
    "attempt": 1,
    "timeout_s": 60,
    "job_type": "script",
    "payload": {"script": "print(1)"},
}
ENDED = {
    "status": 0,
    "signal": None,
    "timed_out": False,
    "asked": False,
    "disk_full": False,
    "disk_over": "",
    "cpu_seconds": 0.1,
    "max_memory_bytes": 1 << 20,
    "log_kept": {"out": 0, "err": 0},
}
BY_OWNER = Stop("the owner has come back", "host")


class DiskJournal(Journal):
    """A journal on a disk that is full from time to time."""

    is_full = False

    def _save(self, entry: Entry) -> None:
        if self.is_full:
            raise FileError("no space")
        super()._save(entry)


class Joinable:
    """A port to connect to."""

    def connect(self, attempt_id: str, port: int) -> None:
        pass


class StandInPorts:
    """Serves nothing, and keeps the requests to serve."""

    def __init__(self) -> None:
        self.served: list[Served] = []
        self.forgotten: list[str] = []

    def serve(self, served: Served) -> None:
        self.served.append(served)

    def forget(self, attempt_id: str) -> None:
        self.forgotten.append(attempt_id)


class Device:
    """Everything that an attempt uses, and the attempt's requests to it."""

    def __init__(self, folder: Path) -> None:
        self.journal = DiskJournal(folder)
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.given: list[Path] = []
        self.is_over = threading.Event()
        self.fetch: Callable[[Attempt], None] = lambda _: None
        self.patience = Patience()
        self.times = AttemptTimes(look_seconds=0.01, end_seconds=0.05, journal_seconds=0.01)
        self.clean: Callable[[], None] = lambda: None
        self.prepared: list[Task] = []
        self.ending = Ending()
        self.post_fails: Callable[[], None] = lambda: None
        self.engine_fails: Callable[[], None] = lambda: None
        self.ports = StandInPorts()
        self.has_more_log = False

    def attempt(
        self,
        state: AttemptState = AttemptState.TAKEN,
        *,
        work: dict[str, Any] = WORK,
        **changes: Any,
    ) -> Attempt:
        """Make one that is in some state, by an agent of before."""
        entry = self.journal.note(self.journal.add(dict(work), ()), state=state, **changes)
        consent = Consent("http://127.0.0.1:1", "token", "2026-01-01T00:00:00+00:00")
        self.made = Attempt(entry, self._tools(consent), is_adopted=state is not AttemptState.TAKEN)
        return self.made

    def write(self, name: str, fields: dict[str, Any]) -> None:
        write(str(self.journal.folder_of(self.made.entry) / name), fields)

    def _tools(self, consent: Consent) -> Tools:
        device = self

        class Executor(Joinable):
            name = "stand-in"

            def stop(self, attempt_id: str, grace_s: float) -> None:
                pass

            def clean(self, attempt_id: str) -> None:
                device.clean()

            def ended(self, attempt_id: str) -> Ending:
                return device.ending

            def prepare(self, task: Task) -> None:
                device.prepared.append(task)
                raise TaskError("refused", "the test starts nothing")

        class Link:
            def post(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
                device.post_fails()
                device.posted.append((path.rpartition("/")[2], fields))
                return {}

        class Sender:
            sent: ClassVar = {"out": 5, "err": 0}

            def send(self) -> bool:
                return device.has_more_log

        class Transfers:
            def fetch(self, _entry: object, _folder: object, patience: Patience) -> None:
                device.patience = patience
                device.fetch(device.made)

            def upload(self, *_: object) -> None:
                pass

            def begin_checkpoints(self, *_: object) -> None:
                pass

        return Tools(
            consent=consent,
            link=Link(),  # type: ignore[arg-type]
            journal=self.journal,
            supervisors=None,  # type: ignore[arg-type]
            executor_for=lambda _: device.engine_fails() or Executor(),  # type: ignore[arg-type, func-returns-value, return-value]
            log_sender=lambda *_: Sender(),
            transfers=Transfers(),
            ports=self.ports,  # type: ignore[arg-type]
            ended=lambda _: self.is_over.set(),
            revoked=lambda: None,
            times=self.times,
        )


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def run(device: Device) -> None:
    device.made.start()
    assert device.is_over.wait(20), device.made.entry.state
    assert device.made.join(20)


def test_a_stop_that_comes_after_the_end_takes_no_result_away(device: Device) -> None:
    attempt = device.attempt(AttemptState.ENDED)
    device.write(names.ENDED, ENDED)
    attempt.stop(BY_OWNER)
    run(device)
    [(verb, fields)] = device.posted
    assert (verb, fields["exit_code"]) == ("complete", 0)


def test_a_sandbox_that_could_not_be_started_is_the_devices_failure(device: Device) -> None:
    device.attempt(AttemptState.ENDED)
    device.write(names.ENDED, {**ENDED, "status": 1, "unstarted": True})
    folder = device.journal.folder_of(device.made.entry)
    (folder / names.LOGS["err"]).write_text("bwrap: Can't mount proc\n")
    run(device)
    [(verb, fields)] = device.posted
    assert (verb, fields["kind"]) == ("fail", "host")
    assert fields["reason"] == "the sandbox could not be started: bwrap: Can't mount proc"


def test_a_program_that_cannot_be_run_is_the_jobs_failure(device: Device) -> None:
    """However long its name is: else who names none has devices blamed, one after the other."""
    device.attempt(AttemptState.ENDED)
    device.write(names.ENDED, {**ENDED, "status": 1, "unstarted": True})
    folder = device.journal.folder_of(device.made.entry)
    words = f"Running scope as unit\nbwrap: execvp {'x' * 30_000}: File name too long\n"
    (folder / names.LOGS["err"]).write_text(words)
    run(device)
    [(verb, fields)] = device.posted
    assert (verb, fields["kind"], fields["exit_code"]) == ("fail", "job", 1)
    assert fields["reason"].endswith("xxx: File name too long")


@pytest.mark.parametrize(
    ("ending", "ended", "kind"),
    [
        (Ending(), {"signal": 9}, "job"),
        (Ending(client="podman"), {"signal": 9}, "host"),
        (Ending(client="podman"), {"status": 137}, "job"),
        (Ending(client="docker", exit_code=137), {"status": 125}, "host"),
        (Ending(client="docker", exit_code=125), {"status": 125}, "job"),
        (Ending(client="docker", exit_code=137), {"status": 1}, "job"),
        (Ending(client="podman", is_out_of_memory=True), {"signal": 9}, "oom"),
        (Ending(), {"signal": 15, "asked": True}, "host"),
        (Ending(), {"status": 0, "asked": True}, "host"),
        (Ending(), {"signal": 15, "asked": True, "timed_out": True}, "timeout"),
    ],
)
def test_an_end_from_outside_is_not_the_jobs_own_failure(
    device: Device, ending: Ending, ended: dict[str, Any], kind: str
) -> None:
    device.ending = ending
    device.attempt(AttemptState.ENDED)
    device.write(names.ENDED, {**ENDED, "status": None, **ended})
    run(device)
    assert device.posted[-1][1].get("kind") == kind


def test_a_job_that_was_stopped_and_ended_well_is_not_complete(device: Device) -> None:
    device.attempt(AttemptState.ENDED, stop=BY_OWNER)
    device.write(names.ENDED, ENDED)
    run(device)
    [(verb, fields)] = device.posted
    assert (verb, fields["kind"], fields["reason"]) == ("fail", "host", BY_OWNER.reason)


def test_an_attempt_that_is_not_wanted_is_never_reported(device: Device) -> None:
    attempt = device.attempt(AttemptState.ENDED)
    device.write(names.ENDED, ENDED)
    attempt.stop(Stop("cancelled"))
    run(device)
    assert not device.posted


def test_a_disk_that_is_full_at_any_moment_does_not_end_the_thread_of_an_attempt(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def claim(*_: object) -> bool:
        tries.append(1)
        if device.journal.is_full:
            raise OSError(28, "No space left on device")
        return True

    monkeypatch.setattr(attempts, "claim", claim)
    attempt = device.attempt(AttemptState.STARTING)
    device.journal.is_full = True
    attempt.start()
    until_true(lambda: len(tries) > 2 * attempts._MISTAKES_MAX, "it is tried again")
    device.journal.is_full = False
    assert device.is_over.wait(20), attempt.entry.state
    assert [verb for verb, _ in device.posted] == ["fail"]


def test_a_mistake_with_a_full_disk_is_not_the_end_of_a_thread(device: Device) -> None:
    report = Report("complete", {"result": ""})
    attempt = device.attempt(AttemptState.REPORTING, report=report)
    failures = []

    def post_fails() -> None:
        if device.journal.is_full:
            failures.append(1)
            raise RuntimeError("a mistake of this program")

    device.post_fails = post_fails
    device.journal.is_full = True
    attempt.start()
    until_true(lambda: len(failures) > attempts._MISTAKES_MAX, "it is tried again")
    device.journal.is_full = False
    assert device.is_over.wait(20), attempt.entry.state
    assert len(device.posted) == 1


def test_a_long_log_holds_a_slot_for_a_bounded_time(device: Device) -> None:
    """The report announces the sent part of the log, so that the daemon accepts it."""
    device.times = replace(device.times, log_seconds=0.01)
    device.has_more_log = True
    said = Report("complete", {"result": "", "log_bytes": {"out": 9_000_000, "err": 0}})
    attempt = device.attempt(AttemptState.UPLOADING, report=said)
    attempt.start()
    assert device.is_over.wait(20)
    attempt.join(20)
    assert device.posted == [
        ("complete", {"attempt": 1, **said.fields, "log_bytes": {"out": 5, "err": 0}})
    ]


def test_an_ended_attempt_is_not_reported_again_if_it_cannot_be_removed(device: Device) -> None:
    device.attempt(AttemptState.DONE)
    failures = []

    def clean() -> None:
        if len(failures) <= attempts._MISTAKES_MAX:
            failures.append(1)
            raise RuntimeError("a mistake of this program")

    device.clean = clean
    run(device)
    assert not device.posted


def test_an_agent_that_leaves_while_it_prepares_starts_nothing_and_reports_nothing(
    device: Device,
) -> None:
    for failure in (None, TaskError("image", "it was cancelled")):

        def fetch(attempt: Attempt, failure: TaskError | None = failure) -> None:
            attempt.leave()  # from here on inputs are fetched no more
            if failure is not None:
                raise failure

        attempt = device.attempt(AttemptState.PREPARING)
        device.fetch = fetch
        attempt.start()
        assert attempt.join(20)
        assert attempt.entry.state is AttemptState.PREPARING
        assert not device.posted


def test_a_job_may_write_the_disk_that_its_inputs_leave(device: Device) -> None:
    """One bound for both; a job whose inputs take all of it may write hardly anything."""
    left = []
    for size in (0, 300_000_000, 30_000_000_000):

        def fetch(attempt: Attempt, size: int = size) -> None:
            with (device.journal.folder_of(attempt.entry) / INPUTS / "large").open("wb") as file:
                file.truncate(size)  # a file counts with its size, as if it had no holes

        device.attempt(AttemptState.PREPARING)
        device.fetch = fetch
        device.is_over.clear()
        run(device)
        left.append(device.prepared[-1].bounds.disk_bytes)
    lent = int(device.made._tools.consent.lend.disk_gb * 1e9)
    assert 0 <= lent - left[0] <= 8_192  # the folder itself, and the script
    assert left[0] - left[1] == 300_000_000
    assert left[2] == 1
    assert {fields["kind"] for _, fields in device.posted} == {"refused"}


def test_an_agent_that_leaves_throws_no_result_away(device: Device) -> None:
    for state in (AttemptState.UPLOADING, AttemptState.REPORTING):
        attempt = device.attempt(state, report=Report("complete", {"result": ""}))
        attempt._interruption.leave()  # between two looks at it
        attempt._STEPS[state](attempt)
        assert attempt.entry.state is not AttemptState.DONE or device.posted


def test_inputs_that_are_refused_are_a_failure_and_not_asked_for_again(device: Device) -> None:
    asked = []

    def fetch(_: Attempt) -> None:
        asked.append(1)
        raise RefusedError("There is no such artifact.", "artifact_not_found", 404)

    device.attempt(AttemptState.PREPARING)
    device.fetch = fetch
    run(device)
    assert len(asked) == 1
    [(verb, fields)] = device.posted
    assert (verb, fields["kind"]) == ("fail", "input")


@pytest.mark.parametrize(
    "state",
    [AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.ENDED],
)
def test_an_attempt_whose_engine_was_removed_is_the_devices_failure(
    device: Device, state: AttemptState
) -> None:
    def fail() -> None:
        raise TaskError("refused", "nothing on this device can run the image a/b:c")

    device.engine_fails = fail
    device.attempt(state)
    run(device)
    verb, fields = device.posted[-1]
    assert (verb, fields["kind"]) == ("fail", "host")
    if state in (AttemptState.RUNNING, AttemptState.ENDED):
        assert "image a/b:c" in fields["reason"] or "supervisor" in fields["reason"]


def test_an_attempt_that_goes_on_without_its_engine_is_ended(
    device: Device, tmp_path: Path
) -> None:
    """Its program is ended by its supervisor, the one that can still be reached."""

    def fail() -> None:
        raise TaskError("refused", "nothing on this device can run the image a/b:c")

    device.engine_fails = fail
    device.attempt(AttemptState.RUNNING)
    with subprocess.Popen(["sleep", "600"]) as program:
        identity = Identity.of(program.pid)
        assert identity is not None
        for name in (names.BEGUN, names.RUNNING):
            device.write(name, identity.as_fields())
        run(device)
        assert program.wait(20) == -signal.SIGTERM
    verb, fields = device.posted[-1]
    assert (verb, fields["kind"]) == ("fail", "host")
    assert "is not on this device any more" in fields["reason"]


def test_a_bell_that_rings_while_the_log_is_closed_is_harmless(device: Device) -> None:
    class Pump:
        def ring(self) -> None:
            rung.append(1)

    class Sending:
        log = Pump()

    rung: list[int] = []
    looks = iter((Sending(), None))  # it is let go of between two looks

    class Closing(Attempt):
        _sending = property(lambda _: next(looks))  # type: ignore[assignment]

    attempt = device.attempt()
    attempt.__class__ = Closing
    attempt.ring()
    assert rung


def prepared(device: Device, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    """Let an attempt prepare for a second at most; return its report."""
    monkeypatch.setitem(WORK, "prepare_s", 1)
    device.attempt(AttemptState.PREPARING, **changes)
    run(device)
    [(verb, fields)] = device.posted
    assert verb == "fail"
    assert device.prepared == []
    return fields


def until_over(device: Device) -> None:
    until_true(device.patience.is_over, "there is no bound")


def test_a_slow_server_of_an_input_is_reported_before_the_attempt_is_ended(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_: Attempt) -> None:
        with device.patience.waiting(INPUT):
            until_over(device)

    device.fetch = fetch
    assert prepared(device, monkeypatch)["kind"] == "input"


def test_a_fetch_that_fails_at_the_end_of_the_time_has_the_reason_of_the_time(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_: Attempt) -> None:
        with device.patience.waiting(INPUT):
            until_over(device)
        raise TaskError("host", "the watch has cut the connection")

    device.fetch = fetch
    assert prepared(device, monkeypatch)["kind"] == "input"


def test_a_device_that_is_slow_itself_refuses(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.fetch = lambda _: until_over(device)
    assert prepared(device, monkeypatch)["kind"] == "refused"


def test_a_marketplace_that_is_away_for_too_long_is_not_the_buyers_fault(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_: Attempt) -> None:
        if not device.patience.is_over():
            raise LinkError("the marketplace is away")

    device.fetch = fetch
    assert prepared(device, monkeypatch)["kind"] == "refused"


def test_an_agent_that_is_started_again_does_not_begin_the_time_anew(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORK, "prepare_s", 3_600)
    device.attempt(AttemptState.PREPARING, taken_at=boot_seconds() - 3_601)
    run(device)
    [(_, fields)] = device.posted
    assert fields["kind"] == "refused"


@pytest.mark.parametrize("changes", [{"taken_at": None}, {"taken_at": 0.0, "boot": "another"}])
def test_where_the_duration_is_unknown_the_time_begins_anew(
    device: Device, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setitem(WORK, "prepare_s", 3_600)
    device.attempt(AttemptState.PREPARING, **changes)
    run(device)
    assert len(device.prepared) == 1


LISTENING = {
    **WORK,
    "payload": {
        "script": "print(1)",
        "ports": [{"name": "web", "port": 8888}],
        "ready": {"port": 8888, "http": "/"},
    },
}


def running(device: Device, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Attempt:
    """Return an attempt that runs, and goes on to do so."""
    monkeypatch.setitem(WORK, "payload", LISTENING["payload"])
    monkeypatch.setattr(Traces, "is_unended", True)
    return device.attempt(AttemptState.RUNNING, **changes)


def test_the_readiness_of_a_job_is_reported_until_it_is_acknowledged_and_once(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = running(device, monkeypatch, is_start_known=True)
    tries = []

    def post_fails() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise LinkError("the marketplace is away")

    device.post_fails = post_fails
    attempt.start()
    until_true(lambda: bool(device.ports.served), "its ports are served")
    [served] = device.ports.served
    assert (served.attempt_id, served.ports) == (attempt.attempt_id, (8888,))
    assert served.ready is not None
    assert not tries
    served.became_ready()
    until_true(lambda: attempt.entry.is_ready_known, "it is told")
    assert device.posted == [("ready", {"attempt": 1})]
    served.became_ready()
    attempt.stop(Stop("cancelled"))
    attempt.leave()
    assert attempt.join(20)
    assert device.ports.forgotten == [attempt.attempt_id]
    assert len(device.posted) == 1


def test_a_ready_job_is_not_probed_again(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = running(device, monkeypatch, is_start_known=True, is_ready_known=True)
    attempt.start()
    until_true(lambda: bool(device.ports.served), "its ports are served by the next agent, too")
    assert device.ports.served[0].ready is None
    assert device.journal.kept()[0].is_ready_known
    attempt.leave()
    assert attempt.join(20)


@pytest.mark.parametrize(
    ("said", "ran_s", "given"),
    [
        (0, 9_000, 0),
        (10, 9_000, 10),
        (60, 9_000, 60),
        (600, 9_000, 60),
        (600, 100, 10),  # a tenth of its time: else a minute of work would cost nothing
        (600, 1, 2),
        (600, None, 2),
        (1, None, 1),
    ],
)
def test_cancelled_work_does_not_go_on_unpaid_for_longer_than_a_minute(
    device: Device, said: int, ran_s: int | None, given: float
) -> None:
    work = {**WORK, "payload": {"script": "print(1)", "grace_s": said}}
    attempt = device.attempt(work=work)
    if ran_s is not None:
        started = int((boot_seconds() - ran_s) * os.sysconf("SC_CLK_TCK"))
        device.write(names.RUNNING, Identity(os.getpid(), started, boot_id()).as_fields())
        assert attempt.cancelled_grace_s == pytest.approx(given, abs=0.05)
        # The wait of a sandbox for its attempt does not count.
        waited = Identity(os.getpid(), 0, boot_id()).as_fields()
        device.write(names.RUNNING, {**waited, "begun_at": boot_seconds() - ran_s})
    assert attempt.cancelled_grace_s == pytest.approx(given, abs=0.05)
