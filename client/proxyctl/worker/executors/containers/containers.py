"""The executor for container engines: an attempt is a container with its identifier as its name.

`prepare` makes the container and starts nothing. The supervisor starts it, by the engine's own
client, which stays attached and so hands the job's output to the supervisor's pipes; `guarded.py`
ends the container when that client has ended. The executor finds leftovers of an attempt by name
and label. It does not touch those of another agent on the machine, which has another folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import proxyctl
from proxyctl.worker.base import names
from proxyctl.worker.executors.base.base import (
    CANNOT_BE_RUN,
    Ending,
    Finding,
    Launch,
    Task,
    TaskError,
)
from proxyctl.worker.executors.bwrap.netns import Spaces
from proxyctl.worker.executors.containers.container_watch import Usage
from proxyctl.worker.executors.containers.creation import Creation
from proxyctl.worker.executors.containers.engine import (
    CALL_SECONDS,
    PROBE_SECONDS,
    Engine,
    EngineError,
    call,
    call_for_json,
    remove,
)
from proxyctl.worker.executors.containers.guarded import GIVE_UP_SECONDS
from proxyctl.worker.executors.containers.naming import (
    AGENT_LABEL,
    NETWORK_PREFIX,
    PREFIX,
    is_network,
    name_of,
)
from proxyctl.worker.executors.containers.networks import Networks
from proxyctl.worker.executors.containers.suitability import Suitability
from proxyctl.worker.executors.containers.watches import Watches
from proxyctl.worker.executors.limits.base import require_sane

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from proxyctl.worker.executors.bwrap.egress import Egress
    from proxyctl.worker.images.images import Images

_GUARD_SECONDS: Final = 60  # after the supervisor would have ended it
# States of a container whose program has not run.
_NEVER_RAN: Final = frozenset(("created", "configured", "initialized"))
_GATE: Final = 12  # a descriptor of the launch
_KILLED: Final = 128 + 9  # the status after SIGKILL
# docker reports an end after the attached client has seen it: on a busy machine, a second later.
_EVENT_LOOKS: Final = 10
_EVENT_SECONDS: Final = 0.2
_OVER: Final = ("exited", "stopped", "dead")  # ended by another cause than this agent


class Containers:
    """Runs attempts as containers of one engine.

    Args:
        folder: the agent's; it tells its containers from those of another agent.
        has_gpus: whether this device lends GPUs, which an engine then has to know.
        images: fetches the images of jobs; None if no images are fetched.
        network: gives jobs a way out; None if the owner does not want that.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        folder: Path,
        has_gpus: bool = False,
        images: Images | None = None,
        network: Egress | None = None,
    ) -> None:
        self.name = engine.name
        self.engine = engine
        self.images = images
        self._folder = folder
        agent = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self._creation = Creation(engine, agent, has_gpus=has_gpus)
        self._suitability = Suitability(engine, self._creation, folder)
        self._networks = Networks(engine, self._creation, network)
        self._watches = Watches(engine)
        self._filter = ("--filter", f"label={AGENT_LABEL}={agent}")
        self._stopped: set[str] = set()  # by this agent, until they are cleaned
        self._spaces = Spaces()

    def check(self) -> list[Finding]:
        """Return the needs of the engine, after a trial of a container with small limits."""
        return self._suitability.check()

    def prepare(self, task: Task) -> Launch:
        """Make the container of an attempt, and return its launch.

        Raises:
            TaskError: it cannot be run here; nothing is left behind.
        """
        name = name_of(task.attempt_id)
        require_sane(task.bounds)  # an engine takes a bound that it rounds to 0 for none
        self._networks.refuse_if_unable(task)
        if task.ports and not self.engine.can_reach_ports():
            raise TaskError("refused", f"ports of jobs in {self.name} cannot be reached here")
        self._suitability.require()
        self.clean(task.attempt_id)
        try:
            self._creation.create(task, self._networks.create(task))
        except TaskError:
            self.clean(task.attempt_id)
            raise
        gate = _GATE if task.network != "none" else None
        plan = {
            "seconds": task.bounds.seconds + _GUARD_SECONDS,
            "name": name,
            "engine": list(self.engine.command()),
            "mark": str(self._mark(task.attempt_id)),
            "gate": gate,
        }
        client = (*self.engine.command(), "start", "--attach", name)
        module = "proxyctl.worker.executors.containers.guarded"
        return Launch(
            argv=(sys.executable, "-s", "-S", "-m", module, json.dumps(plan), *client),
            env={**self.engine.environment(), "PYTHONPATH": _import_path()},
            gate=gate,
            disk_bytes=task.bounds.disk_bytes,
            sweep_seconds=GIVE_UP_SECONDS + CALL_SECONDS,  # the guard's, to end the container
        )

    def attach(self, task: Task, pid: int) -> None:
        """Take up an attempt that runs: watch its use, and serve its network."""
        self._watches.begin(task.attempt_id, pid)
        self._networks.open(task)

    def can_reach_ports(self) -> bool:
        """Return the engine's answer."""
        return self.engine.can_reach_ports()

    def connect(self, attempt_id: str, port: int) -> socket.socket:
        """Connect from within the network namespace of the attempt's container."""
        name = name_of(attempt_id)
        if not self.engine.can_reach_ports():
            raise TaskError("refused", f"ports of jobs in {self.name} cannot be reached here")
        return self._spaces.connect(attempt_id, port, lambda: self._pid(name))

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Ask the job to end, and kill it after the grace.

        Raises:
            TaskError: the engine does not answer, so the state is unknown.
        """
        name = name_of(attempt_id)
        try:
            status = self._state(name).get("Status")
            if status is None or str(status).lower() in _OVER:
                return
            self._stopped.add(attempt_id)
            seconds = max(0, round(grace_s))
            call(self.engine, "stop", "-t", str(seconds), name, seconds=seconds + PROBE_SECONDS)
        except EngineError as error:
            with suppress(EngineError):
                if not self._state(name).get("Running"):
                    return
            raise TaskError("host", str(error)) from None

    def running(self) -> set[str]:
        """Return the attempts of this agent that have a running container.

        Raises:
            TaskError: the engine does not answer, so the state is unknown.
        """
        containers = self._named()
        return {each.removeprefix(PREFIX) for each in containers if not is_network(each)}

    def left(self) -> set[str]:
        """Return the attempts of this agent that have a container, in any state.

        An engine may make one after its client was killed, and no attempt then knows of it. A
        container on trial is left to its trial.

        Raises:
            TaskError: the engine does not answer, so the state is unknown.
        """
        containers = [
            each for each in self._named("--all") if not self._suitability.is_on_trial(each)
        ]
        return {each.removeprefix(NETWORK_PREFIX).removeprefix(PREFIX) for each in containers}

    def ended(self, attempt_id: str) -> Ending:
        """Return the engine's knowledge of an attempt's end."""
        name = name_of(attempt_id)
        try:
            state = self._state(name)
        except EngineError as error:
            return Ending(lost=str(error))
        if state.get("Status") is None:
            return Ending(lost=f"{self.name} knows nothing of its container any more")
        watch = self._watches.find(attempt_id)
        usage = watch.usage if watch else Usage()
        has_client = watch is not None and watch.has_client()
        is_lost = self._mark(attempt_id).exists() or (state.get("Running") and not has_client)
        is_lost = is_lost or (watch is not None and watch.has_ended_client)
        is_lost = is_lost or self._has_lost_monitor(name, state)
        lost = f"the client of {self.name} that was attached to it went away" if is_lost else ""
        # podman often misses it: the control group is gone with the process. But nothing within can
        # kill the first process of a container. So if this agent did not kill it, the kernel did.
        was_killed = state.get("ExitCode") == _KILLED and attempt_id not in self._stopped
        is_new = state.get("Status") in _NEVER_RAN
        # podman reports 0 for every container that it could not start.
        tells_why = self.engine.name == "docker"
        return Ending(
            is_unstarted=is_new and tells_why and state.get("ExitCode") not in CANNOT_BE_RUN,
            is_out_of_memory=not lost and (bool(state.get("OOMKilled")) or was_killed),
            cpu_seconds=usage.cpu_seconds,
            max_memory_bytes=usage.max_memory_bytes,
            client=self.name,
            lost=lost,
            exit_code=state.get("ExitCode"),
        )

    def clean(self, attempt_id: str) -> None:
        """Remove the container with all that it has written outside the attempt's folder.

        Raises:
            TaskError: the engine does not answer, or does not remove it.
        """
        name = name_of(attempt_id)
        try:
            remove(self.engine, name)
        except EngineError as error:
            with suppress(EngineError):
                if self._state(name).get("Status") is None:
                    return
            raise TaskError("host", str(error)) from None
        finally:
            self._stopped.discard(attempt_id)
            self._watches.end(attempt_id)
            self._spaces.forget(attempt_id)
            self._networks.close(attempt_id)
            self._mark(attempt_id).unlink(missing_ok=True)

    def close(self) -> None:
        """End the watchers; the containers run on."""
        self._watches.close()
        self._spaces.close()

    def _has_lost_monitor(self, name: str, state: Mapping[str, Any]) -> bool:
        """Return whether docker has lost a container's monitor, and so has killed the container.

        It shows the status of a kill then, and at the moment itself it has said another one.
        """
        is_killed = state.get("ExitCode") == _KILLED and not state.get("OOMKilled")
        if self.engine.name != "docker" or not is_killed:
            return False
        # In whole seconds: docker cuts off the fraction of the present time, and refuses a later
        # beginning.
        started = str(state.get("StartedAt")).partition(".")[0].removesuffix("Z")
        since = ("--since", f"{started}Z", "--until", "0s")
        filters = ("--filter", f"container={name}", "--filter", "event=die")
        shown = ("--format", "{{.Actor.Attributes.exitCode}}")
        with suppress(EngineError):  # the events are unknown: the state counts as it is
            for _ in range(_EVENT_LOOKS):
                said = call(self.engine, "events", *since, *filters, *shown, seconds=PROBE_SECONDS)
                if said.split():
                    return said.split()[-1] != str(_KILLED)
                time.sleep(_EVENT_SECONDS)
        return False

    def _named(self, *options: str) -> set[str]:
        """Return the names of this agent's containers."""
        try:
            text = call(
                self.engine,
                *("ps", *options, *self._filter, "--format", "{{.Names}}"),
                seconds=PROBE_SECONDS,
            )
        except EngineError as error:
            raise TaskError("host", str(error)) from None
        return {each for each in text.split() if each.startswith(PREFIX)}

    def _pid(self, name: str) -> int | None:
        """Return the first process of a container as the machine counts; None if none runs.

        Raises:
            OSError: the engine does not tell.
        """
        try:
            text = call(
                self.engine,
                *("inspect", "--format", "{{.State.Pid}}", name),
                seconds=PROBE_SECONDS,
            )
        except EngineError as error:
            raise OSError(errno.ESRCH, str(error)) from None
        return int(text) or None

    def _state(self, name: str) -> Mapping[str, Any]:
        """Return the engine's state of a container; empty if the container does not exist.

        Raises:
            EngineError: it does not answer.
        """
        said = call(
            self.engine,
            *("ps", "--all", "--filter", f"name=^{name}$", "--format", "{{.Names}}"),
            seconds=PROBE_SECONDS,
        )
        if name not in said.split():
            return {}
        state = call_for_json(self.engine, "inspect", "--format", "{{json .State}}", name)
        return state if isinstance(state, dict) else {}

    def _mark(self, attempt_id: str) -> Path:
        """Return the file that a guard makes when it had to end a container."""
        return self._folder / names.ATTEMPTS / attempt_id / "lost"


def _import_path() -> str:
    """Return the folder or archive that `proxyctl` is imported from."""
    return str(Path(proxyctl.__file__).parent.parent)
