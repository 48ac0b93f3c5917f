"""Makes the containers of attempts, with the options that wall them in."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import INPUTS, WORK, Bounds, Task, TaskError
from proxyctl.worker.executors.base.ownership import give_away
from proxyctl.worker.executors.containers import trial
from proxyctl.worker.executors.containers.engine import (
    Engine,
    EngineError,
    call,
    call_for_json,
)
from proxyctl.worker.executors.containers.naming import (
    AGENT_LABEL,
    ATTEMPT_LABEL,
    name_of,
    network_name_of,
)
from proxyctl.worker.executors.limits.base import file_bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VOLUME: Final = re.compile(r"(/[A-Za-z0-9._-]{1,255}){1,32}")
_VOLUMES_MAX: Final = 16  # of an image; each becomes a file system in memory
_OPEN_FILES: Final = 4096  # at the same time by one process; servers and data loaders take hundreds
_USER_PROCESSES: Final = 32768  # podman's own limit on a machine that gives root no more
_SHARES: Final = 64  # of 1,024: the owner's own programs come first
_TMP: Final = "/tmp"  # noqa: S108 - the container's


class Creation:
    """Makes containers with one engine; none of them is started.

    Attributes:
        label: the options that mark a container as made by this agent.
        has_gpus: whether this device lends GPUs.

    Args:
        agent: distinguishes the containers of this agent from those of another agent.
        has_gpus: whether this device lends GPUs.
    """

    def __init__(self, engine: Engine, agent: str, *, has_gpus: bool) -> None:
        self.label = ("--label", f"{AGENT_LABEL}={agent}")
        self.has_gpus = has_gpus
        self._engine = engine

    def create(self, task: Task, network_env: Mapping[str, str] | None) -> None:
        """Make the container of an attempt.

        Args:
            task: of the attempt.
            network_env: the variables of the job's way out; None if the job has no network.

        Raises:
            TaskError: the container cannot be made.
        """
        if task.gpus and not self.has_gpus:
            raise TaskError("refused", "this device lends no GPUs")
        volumes, has_entrypoint = self._image(task.image)
        network, env = "none", task.env
        if network_env is not None:
            network = f"container:{network_name_of(task.attempt_id)}"
            env = {**network_env, **env}
        owner = self._engine.owner()
        if owner.changes_owner:
            for each in (WORK, INPUTS):
                give_away(task.folder / each, owner.uid, owner.gid)
        secrets = task.folder / "engine.env"
        profile = task.folder / "seccomp.json"
        try:
            _write(secrets, _environment_file(env))
            _write(profile, json.dumps(self._engine.profile()).encode())
            options = [
                *_walls(task.bounds, self._engine.spare_processes(), network),
                *("--security-opt", f"seccomp={profile}"),
                *owner.options,
                *self._engine.options(
                    shows_devices=bool(task.gpus), has_network=task.network != "none"
                ),
                *_mounts(task, volumes),
                *("--label", f"{ATTEMPT_LABEL}={task.attempt_id}"),
                *self.label,
                *("--env-file", str(secrets)),
                *(word for gpu in task.gpus for word in ("--device", f"nvidia.com/gpu={gpu}")),
            ]
            command = list(task.command)
            if command and has_entrypoint and task.job_type != "docker":
                options += ["--entrypoint", command.pop(0)]
            call(
                self._engine,
                "create",
                "--name",
                name_of(task.attempt_id),
                *options,
                task.image,
                *command,
            )
        except EngineError as error:
            raise TaskError("host" if error.is_gone else "image", str(error)) from None
        except OSError as error:
            raise TaskError("host", f"{task.folder}: {error.strerror}") from None
        finally:
            for path in (secrets, profile):
                with suppress(OSError):
                    path.unlink()

    def create_idle(self, name: str, bounds: Bounds) -> None:
        """Make a container that does nothing, for a trial or for the network of a job.

        Raises:
            EngineError: the engine did not make it.
        """
        options = [
            *_walls(bounds, self._engine.spare_processes(), "none"),
            *self._engine.owner().options,
            *self._engine.options(shows_devices=False),
            *self.label,
        ]
        call(self._engine, "create", "--name", name, *options, trial.IMAGE, "/pause")

    def _image(self, image: str) -> tuple[list[str], bool]:
        """Return the volumes that an image declares, and whether it has a program of its own."""
        if not image:
            message = f"{self._engine.name} runs images, and this job has none"
            raise TaskError("refused", message)
        try:
            config = call_for_json(
                self._engine, "image", "inspect", "--format", "{{json .Config}}", image
            )
        except EngineError as error:
            raise TaskError("host" if error.is_gone else "image", str(error)) from None
        config = config if isinstance(config, dict) else {}
        volumes = [str(each).rstrip("/") for each in config.get("Volumes") or {}]
        if len(volumes) > _VOLUMES_MAX or not all(_is_volume(each) for each in volumes):
            raise TaskError("image", "it declares volumes at places where none can be made")
        ours = (_TMP, "/" + WORK, "/" + INPUTS)
        return [each for each in volumes if each not in ours], bool(config.get("Entrypoint"))


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
    # Counted over all of a user's processes on the machine, so it bounds no single job: that is the
    # control group's part. It is set because podman would otherwise ask for more than it may.
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
