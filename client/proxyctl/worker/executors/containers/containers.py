"""The executor for container engines: an attempt is a container with its identifier as its name.

`prepare` makes the container and starts nothing. The supervisor starts it, by the engine's own
client, which stays attached and so hands the job's output to the supervisor's pipes; `guarded.py`
ends the container when that client has ended. What an attempt has left behind is found by name and
label alone, and another agent on the machine, with another folder, is left alone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import proxyctl
from proxyctl.worker.base import names
from proxyctl.worker.executors.base.base import (
    CANNOT_BE_RUN,
    GATE,
    INPUTS,
    WORK,
    Bounds,
    Ending,
    Finding,
    Launch,
    Task,
    TaskError,
)
from proxyctl.worker.executors.base.family import is_alive
from proxyctl.worker.executors.base.ownership import give_away
from proxyctl.worker.executors.bwrap.netns import Spaces
from proxyctl.worker.executors.containers import trial
from proxyctl.worker.executors.containers.container_watch import ContainerWatch, Usage
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
from proxyctl.worker.executors.limits.base import file_bytes_of, require_sane

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from proxyctl.worker.executors.bwrap.bwrap import JobNetwork
    from proxyctl.worker.images.images import Images

ATTEMPT_LABEL: Final = "proxyd.attempt"
AGENT_LABEL: Final = "proxyd.agent"

_PREFIX: Final = "proxyd-"  # of a container's name, before the attempt's identifier
_NETWORK_PREFIX: Final = "proxyd-net-"  # the same of the container that has its network
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VOLUME: Final = re.compile(r"(/[A-Za-z0-9._-]{1,255}){1,32}")
_VOLUMES_MAX: Final = 16  # of an image; each becomes a file system in memory
_OPEN_FILES: Final = 4096  # at once by one process; servers and data loaders take hundreds
_USER_PROCESSES: Final = 32768  # what podman has left itself on a machine that gives root no more
_GUARD_SECONDS: Final = 60  # after the supervisor would have ended it
_SHARES: Final = 64  # of 1,024: the owner's own programs go first
_TMP: Final = "/tmp"  # noqa: S108 - the container's
# States of a container whose program has not run.
_NEVER_RAN: Final = frozenset(("created", "configured", "initialized"))
_GATE: Final = 12  # a descriptor of the launch
_KILLED: Final = 128 + 9  # the status of what SIGKILL has ended
# docker tells of an end after whoever is attached has seen it: on a busy machine, a second.
_EVENT_LOOKS: Final = 10
_EVENT_SECONDS: Final = 0.2
_OVER: Final = ("exited", "stopped", "dead")  # whatever ended it, it was nobody here


class Containers:
    """Runs attempts as containers of one engine.

    Args:
        engine: which.
        folder: the agent's; it tells its containers from those of another agent.
        has_gpus: whether this device lends GPUs, which an engine then has to know.
        images: fetches the images of jobs; None where nobody runs any.
        network: gives jobs a way out; None if the owner does not want that.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        folder: Path,
        has_gpus: bool = False,
        images: Images | None = None,
        network: JobNetwork | None = None,
    ) -> None:
        self.name = engine.name
        self.engine = engine
        self.images = images
        self._network = network
        self._folder = folder
        self._has_gpus = has_gpus
        self._agent = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self._findings: list[Finding] | None = None
        self._checking = threading.Lock()
        self._stopped: set[str] = set()  # by this agent, until they are cleaned
        self._watches: dict[str, ContainerWatch] = {}  # until they are cleaned
        self._lock = threading.Lock()
        self._spaces = Spaces()

    def check(self) -> list[Finding]:
        """Say what it needs; a container is started and looked at from outside to be sure."""
        with self._checking:
            findings = self.engine.needs()
            if all(each.is_met for each in findings):
                if self._has_gpus:
                    findings.append(_gpu_finding(self.name))
                findings.append(self._try_one())
            self._findings = findings
        return findings

    def prepare(self, task: Task) -> Launch:
        """Make the container of an attempt, and return how it is started.

        Raises:
            TaskError: it cannot be run here; nothing is left behind.
        """
        name = _name(task.attempt_id)
        require_sane(task.bounds)  # an engine takes a bound that it rounds to 0 for none
        if task.network != "none" and (
            self._network is None or not self.engine.can_share_network()
        ):
            raise TaskError("refused", f"this device gives jobs in {self.name} no network")
        if task.ports and not self.engine.can_reach_ports():
            raise TaskError("refused", f"ports of jobs in {self.name} cannot be reached here")
        self._refuse_if_useless()
        self.clean(task.attempt_id)
        try:
            if task.network != "none":
                self._create_network(task)
            self._create(task, name)
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
        """Take up an attempt that runs: watch what it uses, and serve its network."""
        with self._lock:
            if task.attempt_id not in self._watches:
                watch = ContainerWatch(self.engine, _name(task.attempt_id), pid)
                self._watches[task.attempt_id] = watch
                watch.start()
        if task.network != "none":
            self._open_network(task)

    def can_reach_ports(self) -> bool:
        """Return what the engine says."""
        return self.engine.can_reach_ports()

    def connect(self, attempt_id: str, port: int) -> socket.socket:
        """Connect from within the network namespace of the attempt's container."""
        name = _name(attempt_id)
        if not self.engine.can_reach_ports():
            raise TaskError("refused", f"ports of jobs in {self.name} cannot be reached here")
        return self._spaces.connect(attempt_id, port, lambda: self._pid(name))

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Ask the job to end, and end all of it after so many seconds.

        Raises:
            TaskError: the engine does not answer, so nobody knows.
        """
        name = _name(attempt_id)
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
        """Return the attempts of this agent of which a container runs.

        Raises:
            TaskError: the engine does not answer, so nobody knows.
        """
        containers = self._named()
        return {each.removeprefix(_PREFIX) for each in containers if not _is_network(each)}

    def left(self) -> set[str]:
        """Return the attempts of this agent that have a container, whatever it does.

        An engine may make one after its client was killed, and nobody has ever been told of it.
        What is on trial just now is left to whoever tries it.

        Raises:
            TaskError: the engine does not answer, so nobody knows.
        """
        containers = [each for each in self._named("--all") if not self._is_on_trial(each)]
        return {each.removeprefix(_NETWORK_PREFIX).removeprefix(_PREFIX) for each in containers}

    def ended(self, attempt_id: str) -> Ending:
        """Say what the engine knows of an attempt's end."""
        name = _name(attempt_id)
        try:
            state = self._state(name)
        except EngineError as error:
            return Ending(lost=str(error))
        if state.get("Status") is None:
            return Ending(lost=f"{self.name} knows nothing of its container any more")
        watch = self._watches.get(attempt_id)
        usage = watch.usage if watch else Usage()
        has_client = watch is not None and watch.has_client()
        is_lost = self._mark(attempt_id).exists() or (state.get("Running") and not has_client)
        is_lost = is_lost or (watch is not None and watch.has_ended_client)
        is_lost = is_lost or self._has_lost_monitor(name, state)
        lost = f"the client of {self.name} that was attached to it went away" if is_lost else ""
        # podman often misses it: the control group is gone with the process. But nothing within
        # can kill the first process of a container, so if nobody here did, the kernel did.
        was_killed = state.get("ExitCode") == _KILLED and attempt_id not in self._stopped
        is_new = state.get("Status") in _NEVER_RAN
        # podman says 0 of all that it could not start, whatever the reason.
        tells_why = self.engine.name == "docker"
        return Ending(
            is_unstarted=is_new and tells_why and state.get("ExitCode") not in CANNOT_BE_RUN,
            is_out_of_memory=not lost and (bool(state.get("OOMKilled")) or was_killed),
            cpu_seconds=usage.cpu_seconds,
            max_memory_bytes=usage.max_memory_bytes,
            client=self.name,
            lost=lost,
        )

    def clean(self, attempt_id: str) -> None:
        """Remove the container with all that it has written outside the attempt's folder.

        Raises:
            TaskError: the engine does not answer, or does not remove it.
        """
        name = _name(attempt_id)
        try:
            remove(self.engine, name)
        except EngineError as error:
            with suppress(EngineError):
                if self._state(name).get("Status") is None:
                    return
            raise TaskError("host", str(error)) from None
        finally:
            self._stopped.discard(attempt_id)
            self._let_go(attempt_id)
            self._spaces.forget(attempt_id)
            self._close_network(attempt_id)
            self._mark(attempt_id).unlink(missing_ok=True)

    def close(self) -> None:
        """End the watchers; the containers run on."""
        for attempt_id in list(self._watches):
            self._let_go(attempt_id)
        self._spaces.close()

    def _has_lost_monitor(self, name: str, state: Mapping[str, Any]) -> bool:
        """Say whether docker has lost what watched a container for it, and so has killed that.

        It shows the status of a kill then, and at the moment itself it has said another one.
        """
        is_killed = state.get("ExitCode") == _KILLED and not state.get("OOMKilled")
        if self.engine.name != "docker" or not is_killed:
            return False
        # In whole seconds: docker cuts off the rest of what is now, and refuses a later beginning.
        started = str(state.get("StartedAt")).partition(".")[0].removesuffix("Z")
        since = ("--since", f"{started}Z", "--until", "0s")
        filters = ("--filter", f"container={name}", "--filter", "event=die")
        shown = ("--format", "{{.Actor.Attributes.exitCode}}")
        with suppress(EngineError):  # nobody knows: it is what it looks like
            for _ in range(_EVENT_LOOKS):
                said = call(self.engine, "events", *since, *filters, *shown, seconds=PROBE_SECONDS)
                if said.split():
                    return said.split()[-1] != str(_KILLED)
                time.sleep(_EVENT_SECONDS)
        return False

    def _is_on_trial(self, name: str) -> bool:
        """Say whether this agent tries a container out, or a `worker check` in its folder."""
        maker = trial.maker_of(name)
        if maker == os.getpid():
            return self._checking.locked()
        return maker is not None and is_alive(Path("/proc", str(maker)))

    def _named(self, *options: str) -> set[str]:
        """Return the names of this agent's containers."""
        label = f"label={AGENT_LABEL}={self._agent}"
        try:
            text = call(
                self.engine,
                *("ps", *options, "--filter", label, "--format", "{{.Names}}"),
                seconds=PROBE_SECONDS,
            )
        except EngineError as error:
            raise TaskError("host", str(error)) from None
        return {each for each in text.split() if each.startswith(_PREFIX)}

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
        """Return what the engine knows of a container, nothing if there is none.

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

    def _create_network(self, task: Task) -> None:
        """Start a container that does nothing but have a network, which the job then shares.

        So the network is there before the job is, and its way out is served when that starts.
        """
        name = _network_name(task.attempt_id)
        options = [
            *_walls(trial.BOUNDS, self.engine.spare_processes(), "none"),
            *self.engine.owner().options,
            *self.engine.options(shows_devices=False),
            *("--label", f"{AGENT_LABEL}={self._agent}"),
        ]
        try:
            trial.add_image(self.engine)
            call(self.engine, "create", "--name", name, *options, trial.IMAGE, "/pause")
            call(self.engine, "start", name)
        except EngineError as error:
            raise TaskError("host", str(error)) from None
        with suppress(FileExistsError):
            os.mkfifo(task.folder / GATE, 0o600)

    def _open_network(self, task: Task) -> None:
        if self._network is None:
            raise TaskError("refused", f"this device gives jobs in {self.name} no network")
        name = _network_name(task.attempt_id)
        try:
            text = call(self.engine, "inspect", "--format", "{{.State.Pid}}", name)
        except EngineError as error:
            raise TaskError("host", str(error)) from None
        self._network.open(task.attempt_id, int(text))
        # Nobody waits there any more if it was opened before, by an agent that has ended.
        with suppress(OSError):
            gate = os.open(task.folder / GATE, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(gate, b"\n")
            finally:
                os.close(gate)

    def _close_network(self, attempt_id: str) -> None:
        if self._network is None:
            return
        self._network.close(attempt_id)
        with suppress(EngineError):  # most have none; one that is left has no process of a job
            remove(self.engine, _network_name(attempt_id))

    def _let_go(self, attempt_id: str) -> None:
        with self._lock:
            watch = self._watches.pop(attempt_id, None)
        if watch is not None:
            watch.close()

    def _refuse_if_useless(self) -> None:
        findings = self._findings if self._findings is not None else self.check()
        unmet = [each for each in findings if not each.is_met]
        if unmet:
            first = unmet[0]
            raise TaskError(
                "refused", f"{self.name} cannot wall a job in here: {first.actual}. {first.remedy}"
            )

    def _create(self, task: Task, name: str) -> None:
        if task.gpus and not self._has_gpus:
            raise TaskError("refused", "this device lends no GPUs")
        volumes, has_entrypoint = self._image(task.image)
        network, env = "none", task.env
        if task.network != "none" and self._network is not None:
            network = f"container:{_network_name(task.attempt_id)}"
            env = {**self._network.env(), **env}
        owner = self.engine.owner()
        if owner.changes_owner:
            for each in (WORK, INPUTS):
                give_away(task.folder / each, owner.uid, owner.gid)
        secrets = task.folder / "engine.env"
        profile = task.folder / "seccomp.json"
        try:
            _write(secrets, _environment_file(env))
            _write(profile, json.dumps(self.engine.profile()).encode())
            options = [
                *_walls(task.bounds, self.engine.spare_processes(), network),
                *("--security-opt", f"seccomp={profile}"),
                *owner.options,
                *self.engine.options(
                    shows_devices=bool(task.gpus), has_network=task.network != "none"
                ),
                *_mounts(task, volumes),
                *("--label", f"{ATTEMPT_LABEL}={task.attempt_id}"),
                *("--label", f"{AGENT_LABEL}={self._agent}"),
                *("--env-file", str(secrets)),
                *(word for gpu in task.gpus for word in ("--device", f"nvidia.com/gpu={gpu}")),
            ]
            command = list(task.command)
            if command and has_entrypoint and task.job_type != "docker":
                options += ["--entrypoint", command.pop(0)]
            call(self.engine, "create", "--name", name, *options, task.image, *command)
        except EngineError as error:
            raise TaskError("host" if error.is_gone else "image", str(error)) from None
        except OSError as error:
            raise TaskError("host", f"{task.folder}: {error.strerror}") from None
        finally:
            for path in (secrets, profile):
                with suppress(OSError):
                    path.unlink()

    def _image(self, image: str) -> tuple[list[str], bool]:
        """Return the volumes that an image declares, and whether it has a program of its own."""
        if not image:
            message = f"{self.name} runs images, and this job has none"
            raise TaskError("refused", message)
        try:
            config = call_for_json(
                self.engine, "image", "inspect", "--format", "{{json .Config}}", image
            )
        except EngineError as error:
            raise TaskError("host" if error.is_gone else "image", str(error)) from None
        config = config if isinstance(config, dict) else {}
        volumes = [str(each).rstrip("/") for each in config.get("Volumes") or {}]
        if len(volumes) > _VOLUMES_MAX or not all(_is_volume(each) for each in volumes):
            raise TaskError("image", "it declares volumes at places where none can be made")
        ours = (_TMP, "/" + WORK, "/" + INPUTS)
        return [each for each in volumes if each not in ours], bool(config.get("Entrypoint"))

    def _try_one(self) -> Finding:
        """Start a container with small limits, and see from outside whether they hold."""
        return trial.run(self.engine, self._folder, self._create_trial)

    def _create_trial(self, name: str, bounds: Bounds) -> None:
        options = [
            *_walls(bounds, self.engine.spare_processes(), "none"),
            *self.engine.owner().options,
            *self.engine.options(shows_devices=False),
            *("--label", f"{AGENT_LABEL}={self._agent}"),
        ]
        call(self.engine, "create", "--name", name, *options, trial.IMAGE, "/pause")


def _walls(bounds: Bounds, spare_processes: int, network: str) -> list[str]:
    """Return the options that wall a container in; without any of them it is not started."""
    processes = str(bounds.processes + spare_processes)
    memory = str(bounds.memory_bytes)
    file_bytes = file_bytes_of(bounds)
    return [
        *("--pull", "never"),
        *("--network", network),
        *("--ipc", "private"),
        *("--cgroupns", "private"),
        *(("--hostname", "job") if network == "none" else ()),  # the other container's
        "--read-only",
        *("--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges"),
        *("--pids-limit", processes),
        *("--memory", memory),
        *("--memory-swap", memory),  # both together: no swap
        *("--cpus", f"{bounds.cores:.2f}"),
        *("--cpu-shares", str(_SHARES)),
        *("--oom-score-adj", "500"),
        *("--ulimit", f"nofile={_most_files()}:{_most_files()}"),
        *("--ulimit", f"nproc={_most_processes()}:{_most_processes()}"),
        *("--ulimit", "core=0:0"),
        *("--ulimit", f"fsize={file_bytes}:{file_bytes}"),
        *("--shm-size", str(bounds.memory_bytes // 2)),
        *("--tmpfs", f"{_TMP}:rw,nosuid,nodev,mode=1777,size={bounds.memory_bytes // 2}"),
        *("--workdir", "/" + WORK),
        *("--stop-signal", "SIGTERM"),
        *("--log-driver", "none"),
        "--no-healthcheck",
    ]


def _mounts(task: Task, volumes: list[str]) -> list[str]:
    options = []
    for name, mode in ((WORK, ""), (INPUTS, ",readonly")):
        folder = task.folder / name
        if folder.is_dir():
            mount = f"type=bind,source={folder},destination=/{name}{mode}"
            options += ["--mount", mount]
    for each in volumes:
        # An engine would make a folder on the disk for it, which nothing bounds.
        options += ["--tmpfs", f"{each}:rw,nosuid,nodev,size={task.bounds.memory_bytes // 2}"]
    return options


def _environment_file(env: Mapping[str, str]) -> bytes:
    """Return variables as an engine reads them from a file: on a command line others see them."""
    lines = []
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise TaskError("refused", f"{name!r} cannot be the name of a variable")
        if any(each in value for each in "\n\r\0"):
            raise TaskError(
                "refused",
                f"the variable {name} has more than one line, which a container cannot be given "
                "without showing it to others; put it into a file that is an input",
            )
        lines.append(f"{name}={value}\n")
    return "".join(lines).encode()


def _most_files() -> int:
    return _at_most("RLIMIT_NOFILE", _OPEN_FILES)


def _most_processes() -> int:
    # Counted over all of a user's processes on the machine, so it bounds no single job: that is
    # the control group's part. It is named only because podman would ask for more than it may.
    return _at_most("RLIMIT_NPROC", _USER_PROCESSES)


def _at_most(name: str, most: int) -> int:
    import resource  # noqa: PLC0415 - Windows has none, and no engine that this speaks to

    hard = resource.getrlimit(getattr(resource, name))[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _is_volume(path: str) -> bool:
    """Return whether a volume can be made at a path of an image.

    Below the job's folders an engine would make the place for it in the attempt's own folder on
    the disk, as root, and an agent that is an ordinary user could never remove that.
    """
    is_plain = bool(_VOLUME.fullmatch(path)) and not {".", ".."} & set(path.split("/"))
    return is_plain and not path.startswith((f"/{WORK}/", f"/{INPUTS}/"))


def _name(attempt_id: str) -> str:
    """Return the name of an attempt's container.

    Raises:
        TaskError: the identifier is none.
    """
    if not _ATTEMPT.fullmatch(attempt_id):
        raise TaskError("refused", f"{attempt_id!r} is no identifier of an attempt")
    return _PREFIX + attempt_id


def _network_name(attempt_id: str) -> str:
    """Return the name of the container that has an attempt's network."""
    return _NETWORK_PREFIX + attempt_id


def _is_network(name: str) -> bool:
    return name.startswith(_NETWORK_PREFIX)


def _import_path() -> str:
    """Return the folder or archive that `proxyctl` is imported from."""
    return str(Path(proxyctl.__file__).parent.parent)


def _gpu_finding(name: str) -> Finding:
    folders = [Path("/etc/cdi"), Path("/var/run/cdi")]
    is_met = any(list(each.glob("*.[jy]*")) for each in folders if each.is_dir())
    return Finding(
        id=f"{name}-gpus",
        is_met=is_met,
        actual="GPUs are described" if is_met else "no GPU is described in /etc/cdi",
        needed="a description of the GPUs (CDI)",
        why="an engine gives a container one GPU, and no other, by its name in there",
        remedy="" if is_met else "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    )
