"""One attempt on this device, from the moment when it was given to the end of its report.

A thread goes from state to state, and another one sends the logs. Every step can be done again,
after the agent was killed in the middle of it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from proxyctl import files
from proxyctl.worker.attempt.delivery import Delivery
from proxyctl.worker.attempt.endings import failed, report_of
from proxyctl.worker.attempt.interruption import Interruption
from proxyctl.worker.attempt.listening import Listening
from proxyctl.worker.attempt.pump import Pump
from proxyctl.worker.attempt.sandboxes import fetch_image
from proxyctl.worker.attempt.supervisor import claim
from proxyctl.worker.attempt.traces import Traces
from proxyctl.worker.base import names
from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.retries import Retries
from proxyctl.worker.base.states import TOLD, AttemptState
from proxyctl.worker.executors.base.base import INPUTS, WORK, TaskError
from proxyctl.worker.executors.base.none import NoExecutor
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.files.room import used_bytes
from proxyctl.worker.task.journal import Stop
from proxyctl.worker.task.patience import Patience, seconds_of
from proxyctl.worker.task.processes import Identity, boot_id, boot_seconds
from proxyctl.worker.task.tasks import payload_of_work, task_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.protocol.jobspec.payload import Payload
    from proxyctl.worker.attempt.log_sender import LogSender
    from proxyctl.worker.attempt.ready import Ready
    from proxyctl.worker.attempt.supervisors import Supervisors
    from proxyctl.worker.base.link import Link
    from proxyctl.worker.base.record import Consent
    from proxyctl.worker.executors.base.base import Executor, Launch, Task
    from proxyctl.worker.files.transfers import Checkpoints, FileTransfers
    from proxyctl.worker.network.ports import Ports
    from proxyctl.worker.task.journal import Entry, Journal, Report

_logger = logging.getLogger("worker")

# Of one stream, on disk: four times the bytes that the daemon keeps of its beginning and its end
# together.
LOG_MAX_BYTES: Final = 64 << 20
# Grace of cancelled work. The buyer does not pay for that time, so it is at most a tenth of the
# time before, or two seconds: work of a minute that is cancelled as it begins would otherwise cost
# nothing.
CANCELLED_GRACE_SECONDS: Final = 60.0
CANCELLED_GRACE_PARTS: Final = 10
CANCELLED_GRACE_LEAST_SECONDS: Final = 2.0
_START_SECONDS: Final = 30.0  # for a supervisor to say that it has begun
_MISTAKES_MAX: Final = 3  # of one step, before the attempt is given up


@dataclass(frozen=True)
class AttemptTimes:
    """The waits of the steps of an attempt.

    Attributes:
        log_seconds: of a log that is on its way when the job has ended: a slot is not held for all
            that it printed.
        look_seconds: between two looks for changes that the bell has not announced.
        end_seconds: for a supervisor to say that its job has ended, once that was killed.
        journal_seconds: between two attempts to write to a full disk.
    """

    log_seconds: float = 30.0
    look_seconds: float = 1.0
    end_seconds: float = 10.0
    journal_seconds: float = 5.0


USUAL: Final = AttemptTimes()


@dataclass(frozen=True)
class Tools:
    """The tools that attempts share.

    Attributes:
        supervisors: that wait.
        executor_for: returns the one for a payload; raises TaskError if no executor fits.
        log_sender: makes the one of an attempt, which has this folder.
        ended: is called at the very end of an attempt, with its identifier.
        revoked: is called when the daemon does not know this device any more.
    """

    consent: Consent
    link: Link
    journal: Journal
    supervisors: Supervisors
    executor_for: Callable[[Payload], Executor]
    log_sender: Callable[[Entry, Path], LogSender]
    transfers: FileTransfers
    ports: Ports
    ended: Callable[[str], None]
    revoked: Callable[[], None]
    times: AttemptTimes = USUAL


@dataclass(frozen=True)
class _Sending:
    """The senders beside a job that runs: of its log, and of its checkpoints if it has any."""

    log: Pump
    checkpoints: Checkpoints | None

    def close(self) -> None:
        """End both."""
        if self.checkpoints is not None:
            self.checkpoints.close()
        self.log.close()


class Attempt:
    """One attempt.

    Args:
        is_adopted: an agent before this one has taken it.
    """

    def __init__(self, entry: Entry, tools: Tools, *, is_adopted: bool = False) -> None:
        self.entry = entry
        self._tools = tools
        self._traces = Traces(tools.journal.folder_of(entry))
        self._is_adopted = is_adopted
        self._interruption = Interruption(entry.stop)
        self._retries = Retries()
        self._patience: Patience | None = None  # from the first step of its preparation
        self._ready: tuple[Ready, str] | None = None  # the sandbox that it has taken, and orders
        self._delivery = Delivery(self._traces.folder, tools.transfers, self._interruption)
        self._sending: _Sending | None = None
        self._listening = Listening(entry.attempt_id, tools.ports, self._interruption.ring)
        self._thread = threading.Thread(target=self._run, name=entry.attempt_id, daemon=True)

    @property
    def attempt_id(self) -> str:
        """Its name on this device."""
        return self.entry.attempt_id

    @property
    def cancelled_grace_s(self) -> float:
        """The seconds that it may continue after the marketplace has given it up."""
        try:
            said = payload_of_work(self.entry.work).grace_s
            ran_s = 0.0 if self._is_of_another_boot() else self._traces.ran_seconds()
        except (TaskError, files.FileError):  # it will not run, or its time is not known
            return 0.0
        earned_s = max(ran_s / CANCELLED_GRACE_PARTS, CANCELLED_GRACE_LEAST_SECONDS)
        return min(said, earned_s, CANCELLED_GRACE_SECONDS)

    def start(self) -> None:
        """Continue from its present state."""
        self._thread.start()

    def ring(self) -> None:
        """Wake its threads, because the supervisor has news."""
        self._interruption.ring()
        self.ring_for_log()

    def ring_for_log(self) -> None:
        """Wake the thread that sends the logs: one that prints wakes no other thread."""
        sending = self._sending  # the attempt's own thread may close it at this moment
        if sending is not None:
            sending.log.ring()

    def stop(self, stop: Stop) -> None:
        """Stop it before its own end, unless it is over or an earlier reason prevails."""
        if self.entry.state is AttemptState.DONE or not self._interruption.request(stop):
            return
        _logger.info("job %s: to be stopped: %s", self.attempt_id, stop.reason)
        self._interruption.ring()

    def leave(self) -> None:
        """End its threads and let the job run on: the next agent adopts it."""
        self._interruption.leave()
        self.ring()

    def join(self, seconds: float) -> bool:
        """Wait for its thread; return False if the thread still runs."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def said(self) -> dict[str, Any] | None:
        """Return its state for `sync`; None once the daemon has the report."""
        entry = self.entry
        if entry.state is AttemptState.DONE:
            return None
        return {"job_id": entry.job_id, "attempt": entry.attempt, "state": TOLD[entry.state]}

    # The methods from here on run in the thread of the attempt.

    def _run(self) -> None:
        mistakes = 0
        while not self._interruption.is_leaving:
            state = self.entry.state
            try:
                self._STEPS[state](self)
            except (files.FileError, TaskError, OSError) as error:
                # A full disk, or an engine that does not answer: the state of the job is unknown.
                _logger.warning("job %s: %s; tried again", self.attempt_id, error)
                self._interruption.wait(self._tools.times.journal_seconds)
                continue
            except Exception:
                # After any exception, no job may run on unseen, and its buyer must get the end.
                _logger.exception("job %s: %s did not succeed", self.attempt_id, state.value)
                mistakes += 1
                self._interruption.wait(mistakes * self._tools.times.look_seconds)
                if mistakes >= _MISTAKES_MAX and self._give_up():
                    mistakes = 0
                continue
            mistakes = 0
            if state is AttemptState.DONE:
                break
        self._end_sending()

    def _taken(self) -> None:
        if not self._is_over_early():
            self._move(AttemptState.PREPARING)

    def _prepare(self) -> None:
        if self._is_over_early():
            return
        if self._patience is None:
            self._patience = Patience(self._seconds_left(), lambda: self._interruption.ends_work)
        patience = self._patience
        try:
            is_ready = self._make_ready(patience)
        except TaskError as error:
            self._fail_early(patience.failure() or error)
            return
        except LinkError as error:
            self._wait_for_link(error)
            return
        except RefusedError as error:
            if not self._heed(error, "the marketplace refuses its inputs"):
                reason = f"the marketplace does not give its inputs: {error}"
                self._move(AttemptState.REPORTING, report=failed("input", reason))
            return
        failure = patience.failure()
        if is_ready:
            self._move(AttemptState.STARTING)
            self._is_adopted = False
            has_taken = self._ready is not None
            self._tools.supervisors.give(self._traces.folder, has_taken=has_taken)
        elif failure is not None:
            self._fail_early(failure)

    def _make_ready(self, patience: Patience) -> bool:
        """Prepare the files for the supervisor; return False if some are missing."""
        folder = self._traces.folder
        payload = payload_of_work(self.entry.work)
        task = task_of(self.entry, payload, folder, self._tools.consent)
        executor = self._tools.executor_for(payload)
        if self._is_adopted:
            executor.stop(self.entry.place, 0)
            executor.clean(self.entry.place)
            self.entry = replace(self.entry, sandbox="")
            self._begin_anew()
        for name in (WORK, INPUTS):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        if payload.script:
            _write_script(folder / INPUTS, payload.script)
        self._tools.transfers.fetch(self.entry, folder, patience)
        if patience.is_over():  # the fetch has ended before all is there
            return False
        task = self._with_image(executor, self._beside_inputs(task), patience)
        if patience.is_over():
            return False
        self._write_launch(task, payload, *self._launch(executor, task))
        return True

    def _write_launch(
        self, task: Task, payload: Payload, launch: Launch, orders: str | None
    ) -> None:
        files.write(
            self._traces.folder / names.LAUNCH,
            {
                "launch": launch.as_fields(),
                "orders": orders,
                "seconds": task.bounds.seconds,
                "grace_s": payload.grace_s,
                "log_bytes": LOG_MAX_BYTES,
            },
        )

    def _launch(self, executor: Executor, task: Task) -> tuple[Launch, str | None]:
        """Return the launch, and the orders for a sandbox that has waited, if it is used."""
        if self._ready is None and isinstance(executor, BwrapExecutor):
            self._ready = self._tools.supervisors.take(
                self._traces.folder, task, self.attempt_id, self._note_sandbox
            )
        if self._ready is None:
            return executor.prepare(task), None
        ready, orders = self._ready
        return ready.settle(task), orders

    def _note_sandbox(self, name: str) -> None:
        self.entry = replace(self.entry, sandbox=name)

    def _beside_inputs(self, task: Task) -> Task:
        """Return a task whose disk limit is the part that its inputs have left."""
        most = task.bounds.disk_bytes
        left = max(1, most - used_bytes(self._traces.folder / INPUTS, most))  # 0 would be no bound
        return replace(task, bounds=replace(task.bounds, disk_bytes=left))

    def _with_image(self, executor: Executor, task: Task, patience: Patience) -> Task:
        """Return a task that names the image that is here, by the digest that was resolved."""
        image = fetch_image(executor, task.image, patience)
        if image is None:
            return task
        files.write(self._traces.folder / names.IMAGE, {"digest": image.digest})
        return replace(task, image=image.name)

    def _start(self) -> None:
        """Wait until the supervisor has begun; after a crash, find out whether one will."""
        stop = self._interruption.stop
        if (self._is_adopted or stop is not None) and claim(str(self._traces.folder), None):
            # No supervisor has it, and none will.
            stop = self._interruption.stop or Stop("the agent was killed", "host")
            self._move(AttemptState.STOPPING, stop=stop)
            return
        for _ in range(int(_START_SECONDS / self._tools.times.look_seconds)):
            running, ended = self._traces.read(names.RUNNING), self._traces.read(names.ENDED)
            if running is not None and ended is None:
                self._move(AttemptState.RUNNING)  # before it can reach anybody
                self._attach(Identity.of_fields(running))
                return
            is_lost = self._is_of_another_boot() or (
                self._traces.supervisor is not None and not self._traces.is_supervised
            )
            if ended is not None or is_lost:
                self._move(AttemptState.ENDED)
                return
            has_ended = self._tools.supervisors.has_ended(self._traces.folder)
            if has_ended and not (self._traces.folder / names.BEGUN).exists():
                # It was killed before it had read its launch file, and its sandbox with it.
                self._give_again()
            self._wait()
            if self._interruption.is_leaving:
                return
        self.stop(Stop("no supervisor has begun with it", "host"))

    def _give_again(self) -> None:
        if self.entry.sandbox:
            executor = self._executor()
            executor.clean(self.entry.place)
            self._ready = None
            self.entry = self._tools.journal.note(self.entry, sandbox="")
            task = self._beside_inputs(self._task())
            payload = payload_of_work(self.entry.work)
            self._write_launch(task, payload, executor.prepare(task), None)
        self._tools.supervisors.give(self._traces.folder)

    def _look(self) -> None:
        """Watch the attempt while it runs."""
        self._begin_sending()
        if self._is_adopted:
            self._is_adopted = False
            running = self._traces.read(names.RUNNING)
            if running is not None and self._traces.is_supervised:
                self._attach(Identity.of_fields(running))
                _logger.info("job %s: runs on, and is adopted", self.attempt_id)
        self._tell_start()
        self._listening.begin(self.entry, self._executor)
        self._tell_ready()
        if not self._traces.is_unended:
            self._move(AttemptState.ENDED)
        elif self._interruption.stop is not None:
            self._move(AttemptState.STOPPING, stop=self._interruption.stop)
        else:
            self._wait()

    def _end(self) -> None:
        """End the running program by the executor, and by the kernel if that is not enough."""
        stop = self.entry.stop
        self._executor().stop(self.entry.place, 0 if stop is None else stop.grace_s)
        supervisor = self._traces.supervisor
        waited = 0.0
        while supervisor is not None and self._traces.is_unended:
            if self._interruption.is_leaving:
                return
            if waited >= self._tools.times.end_seconds:
                supervisor.send(signal.SIGTERM)  # the second one has it kill all it knows of
            self._wait()
            waited += self._tools.times.look_seconds
        if not self._interruption.is_leaving:
            self._move(AttemptState.ENDED)

    def _ended(self) -> None:
        self._end_sending()
        executor = self._executor()
        ended = self._traces.read(names.ENDED)
        executor.stop(self.entry.place, 0)  # nothing runs on, even if its supervisor is dead
        if self._interruption.is_unwanted:
            self._move(AttemptState.DONE)
            return
        # A stop that came after the end of the job does not count: the result is whole, and is
        # paid.
        stop = self.entry.stop
        if ended is None and self._is_of_another_boot():
            stop = Stop("the device was restarted", "host")
        seconds = int(self.entry.work["timeout_s"])
        ending = executor.ended(self.entry.place)
        report = report_of(ended, ending, stop, self._traces.folder, seconds)
        self._move(AttemptState.UPLOADING, report=report)

    def _upload(self) -> None:
        report = self.entry.report
        assert report is not None  # noqa: S101 - it is written with this state
        if self._interruption.is_unwanted:
            self._move(AttemptState.DONE)
            return
        try:
            sender = self._tools.log_sender(self.entry, self._traces.folder)
            seconds = self._tools.times.log_seconds
            report = self._delivery.send_log(sender, self.attempt_id, report, seconds)
            if report.verb == "complete":
                left_out = self._delivery.send_outputs(self.entry)
                if left_out is not None:
                    fields = {**report.fields, "outputs_left_out": left_out}
                    report = replace(report, fields=fields)
        except TaskError as error:
            report = failed(error.kind, error.message)
        except LinkError as error:
            self._wait_for_link(error)
            return
        except RefusedError as error:
            if self._heed(error, "the marketplace refuses its results"):
                return
            report = failed("host", f"the marketplace refuses its results: {error}")
        if not self._interruption.is_leaving:
            self._move(AttemptState.REPORTING, report=report)

    def _report(self) -> None:
        """Send the report until the daemon has it: a result that is paid for is never lost."""
        report = self.entry.report
        assert report is not None  # noqa: S101 - it is written with this state
        if self._interruption.is_unwanted:
            self._move(AttemptState.DONE)
            return
        try:
            self._post(report.verb, report.fields)
        except LinkError as error:
            self._wait_for_link(error)
            return
        except RefusedError as error:
            if error.code == "log_incomplete" and self.entry.state is AttemptState.REPORTING:
                self._move_back(report)
                return
            if not self._heed(error, "the marketplace refuses its report"):
                self._move(AttemptState.DONE)
            return
        _logger.info("job %s: %s", self.attempt_id, _words_of(report))
        self._move(AttemptState.DONE)

    def _done(self) -> None:
        self._executor().clean(self.entry.place)
        self._tools.journal.forget(self.entry)
        self._tools.ended(self.attempt_id)

    _STEPS: ClassVar[dict[AttemptState, Callable[[Attempt], None]]] = {
        AttemptState.TAKEN: _taken,
        AttemptState.PREPARING: _prepare,
        AttemptState.STARTING: _start,
        AttemptState.RUNNING: _look,
        AttemptState.STOPPING: _end,
        AttemptState.ENDED: _ended,
        AttemptState.UPLOADING: _upload,
        AttemptState.REPORTING: _report,
        AttemptState.DONE: _done,
    }

    # Smaller steps of those above.

    def _is_over_early(self) -> bool:
        """Report an end before the beginning, if the attempt has one."""
        stop = self._interruption.stop
        if stop is None:
            return False
        if stop.kind:
            self._move(AttemptState.REPORTING, report=failed(stop.kind, stop.reason))
        else:
            self._move(AttemptState.DONE)
        return True

    def _fail_early(self, error: TaskError) -> None:
        """Report that the attempt cannot run here, unless its end is already decided."""
        if self._interruption.stop is None and not self._interruption.is_leaving:
            self._move(AttemptState.REPORTING, report=failed(error.kind, error.message))

    def _seconds_left(self) -> float:
        """Return the seconds left for the preparation; the time of agents before this one counts.

        After a restart of the machine the time begins anew, because the length of the pause is not
        known: if the daemon ends the attempt, that is the device's own fault.
        """
        entry, seconds = self.entry, seconds_of(self.entry.work)
        if entry.taken_at is None or self._is_of_another_boot():
            return seconds
        return seconds - (boot_seconds() - entry.taken_at)

    def _attach(self, program: Identity) -> None:
        try:
            self._executor().attach(self._task(), program.pid)
        except TaskError as error:
            if program.is_alive():  # else it has just ended, which is no fault of anybody's
                self.stop(Stop(error.message, error.kind))

    def _tell_start(self) -> None:
        if self.entry.is_start_known:
            return
        try:
            image = self._traces.read(names.IMAGE)
            self._post("started", {} if image is None else {"image_digest": image["digest"]})
        except LinkError:
            return  # the next look sends it again
        except RefusedError as error:
            self._heed(error, "the marketplace refuses the report of its start")
        self.entry = self._tools.journal.note(self.entry, is_start_known=True)

    def _tell_ready(self) -> None:
        if not self._listening.is_ready or self.entry.is_ready_known:
            return
        try:
            self._post("ready", {})
        except LinkError:
            return  # the next look sends it again
        except RefusedError as error:
            self._heed(error, "the marketplace refuses the report that it is ready")
        self.entry = self._tools.journal.note(self.entry, is_ready_known=True)

    def _post(self, verb: str, fields: dict[str, Any]) -> None:
        entry = self.entry
        path = f"/api/worker/jobs/{entry.job_id}/{verb}"
        self._tools.link.post(path, {"attempt": entry.attempt, **fields})
        self._retries.succeeded()

    def _heed(self, error: RefusedError, words: str) -> bool:
        """Act on a refusal; return True if the attempt must stop."""
        if error.is_revoked:
            self._tools.revoked()
            return True
        if error.is_gone:
            self.stop(Stop("the marketplace has given it to somebody else, or ended it"))
            return True
        _logger.warning("job %s: %s: %s", self.attempt_id, words, error)
        return False

    def _wait_for_link(self, error: LinkError) -> None:
        seconds = self._retries.failed(error.after)
        _logger.info("job %s: %s; next try in %.0f s", self.attempt_id, error, seconds)
        self._interruption.wait(seconds)

    def _move(self, state: AttemptState, **changes: object) -> None:
        self.entry = self._tools.journal.move(self.entry, state, **changes)

    def _move_back(self, report: Report) -> None:
        """Send the bytes of the logs that the daemon misses, and report again."""
        self.entry = replace(self.entry, state=AttemptState.UPLOADING, report=report)
        self._interruption.wait(self._tools.times.look_seconds)

    def _give_up(self) -> bool:
        """Report a failure; return False if the journal cannot keep it. An attempt stays done."""
        if self.entry.state is AttemptState.DONE:
            return False
        with suppress(Exception):
            self._executor().stop(self.entry.place, 0)
        report = failed("host", "the agent of this device has failed")
        with suppress(files.FileError):  # the disk is full; it is tried again
            self.entry = self._tools.journal.note(
                self.entry, state=AttemptState.REPORTING, report=report
            )
            return True
        return False

    def _begin_sending(self) -> None:
        if self._sending is None:
            sender = self._tools.log_sender(self.entry, self._traces.folder)
            checkpoints = self._tools.transfers.begin_checkpoints(self.entry, self._traces.folder)
            log = Pump(
                self.attempt_id,
                sender,
                lambda error: self._heed(error, "the marketplace refuses its log"),
            )
            self._sending = _Sending(log, checkpoints)

    def _end_sending(self) -> None:
        self._listening.end()
        if self._sending is not None:
            self._sending.close()
            self._sending = None

    def _wait(self) -> None:
        self._interruption.wait(self._tools.times.look_seconds)

    def _is_of_another_boot(self) -> bool:
        return self.entry.boot != boot_id()

    def _begin_anew(self) -> None:
        """Leave no trace of a start that the journal has lost together with the power."""
        if not self._is_of_another_boot():
            return
        self._traces.remove()
        self.entry = self._tools.journal.note(self.entry, boot=boot_id(), taken_at=boot_seconds())

    def _executor(self) -> Executor:
        try:
            return self._tools.executor_for(payload_of_work(self.entry.work))
        except TaskError as error:
            return NoExecutor(error.message)

    def _task(self) -> Task:
        payload = payload_of_work(self.entry.work)
        return task_of(self.entry, payload, self._traces.folder, self._tools.consent)


def _write_script(inputs: Path, text: str) -> None:
    with Folder.at(inputs) as folder:
        folder.remove(names.SCRIPT)
        with os.fdopen(folder.create(names.SCRIPT), "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o444)  # each user that the job may be can read it


def _words_of(report: Report) -> str:
    if report.verb == "complete":
        return "completed"
    return f"failed ({report.fields.get('kind')}): {report.fields.get('reason')}"
