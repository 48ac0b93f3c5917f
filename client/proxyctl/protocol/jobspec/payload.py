"""The payload of a job, as the buyer writes it and the device reads it.

`payload_of` makes one out of JSON's values, and `as_fields` the other way round. The rules for
values are in `checks`: a payload that was not checked may say anything.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from proxyctl.protocol.jobspec.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Read = Callable[[str, object], Any]

GIGABYTE: Final = 1_000_000_000
OUTPUT_BYTES: Final = GIGABYTE  # of one output, unless the buyer says otherwise
TIMEOUT_AS_ESTIMATED: Final = 0  # seconds: the job's `duration_hrs` is its limit


@dataclass(frozen=True)
class Input:
    """A file that is there when the job starts, at `path` below `/inputs`; read-only.

    It is an artifact of the buyer's, or fetched from a URL, and then its SHA-256 (hexadecimal) is
    needed. Without a `path` it lies there as `name`. `unpack` says that it is an archive whose
    content is wanted.
    """

    name: str
    path: str = ""
    artifact_id: str = ""
    url: str = ""
    sha256: str = ""
    unpack: bool = False


@dataclass(frozen=True)
class Output:
    """Files that are kept after the job: files of its folder that match the pattern `path`.

    `**` stands for any number of folders. More than `max_bytes` together are not kept.
    """

    name: str
    path: str
    max_bytes: int = OUTPUT_BYTES


@dataclass(frozen=True)
class Checkpoint:
    """A folder that is kept while the job runs, and given back to the attempt that comes next."""

    path: str
    every_s: int = 300


@dataclass(frozen=True)
class Port:
    """A port on which the job listens."""

    name: str
    port: int
    protocol: Literal["http", "tcp"] = "http"


@dataclass(frozen=True)
class Ready:
    """The check whether a job is ready: its port takes a connection.

    With `http`, the path of a request, it must be answered with a status below 400.
    """

    port: int
    http: str = ""
    every_s: int = 5


@dataclass(frozen=True)
class Payload:
    """The program of a job, its inputs and its outputs.

    `secrets` are variables of the environment like those of `env`, but only the device that runs
    the job gets them. `timeout_s` ends the work, and is `duration_hrs` if it is 0; a job that is
    stopped has `grace_s` to end by itself.
    """

    image: str = ""
    command: tuple[str, ...] = ()
    script: str = ""
    interpreter: Literal["python3", "bash"] = "python3"
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # for the sake of logs
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    checkpoint: Checkpoint | None = None
    ports: tuple[Port, ...] = ()
    ready: Ready | None = None
    network: Literal["none", "egress"] = "none"
    timeout_s: int = TIMEOUT_AS_ESTIMATED
    grace_s: int = 10
    restart: Literal["never", "on_failure", "always"] = "never"

    @property
    def has_archives(self) -> bool:
        """Whether its device unpacks something: an input, or the checkpoint of another device."""
        return self.checkpoint is not None or any(each.unpack for each in self.inputs)


@dataclass(frozen=True)
class Resources:
    """The least that a job needs of a device; 0 and "" ask for nothing.

    `vram_gb` is of each GPU. Sizes are in GB of 10^9 bytes. `cuda` is the version that the driver
    must have, as in "12.1".
    """

    gpus: int = 0
    gpu_model: str = ""
    vram_gb: float = 0.0
    cores: float = 0.0
    ram_gb: float = 0.0
    disk_gb: float = 0.0
    arch: str = ""
    cuda: str = ""

    @property
    def needed_gpus(self) -> int:
        """Number of GPUs that are needed: one, if the job only asks for a property of a GPU."""
        asks = bool(self.gpu_model or self.vram_gb or self.cuda)
        return max(self.gpus, int(asks))


@dataclass(frozen=True)
class Capacity:
    """The free part of a device for jobs.

    `gpu_names` names all its GPUs, and `gpus` is the number of free ones; `vram_gb` is the memory
    of the smallest of these. `arch` is as `uname -m` has it.
    """

    slots: int = 0
    cores: float = 0.0
    ram_gb: float = 0.0
    disk_gb: float = 0.0
    gpus: int = 0
    vram_gb: float = 0.0
    gpu_names: tuple[str, ...] = ()
    arch: str = ""
    cuda: str = ""


Spec = TypeVar("Spec")


def payload_of(said: Mapping[str, Any]) -> Payload:
    """Return the payload from JSON's values; unknown fields are left out.

    Raises:
        SpecError: a value has the wrong type, or a needed one is missing.
    """
    return _read(Payload, "", said)


def resources_of(said: Mapping[str, Any]) -> Resources:
    """Return the resources that JSON's values are; raises as `payload_of`."""
    return _read(Resources, "", said)


def as_fields(spec: Payload | Resources) -> dict[str, Any]:
    """Return values for JSON, without the optional values that are not set."""
    return _fields_of(spec)


def _fields_of(
    spec: Payload | Resources | Input | Output | Checkpoint | Port | Ready,
) -> dict[str, Any]:
    said = {}
    for each in fields(spec):
        value = getattr(spec, each.name)
        is_empty = each.default_factory is not MISSING and not value
        if not is_empty and value != each.default:
            said[each.name] = _value_of(value)
    return said


def _value_of(value: object) -> object:
    if isinstance(value, tuple):
        return [_value_of(each) for each in value]
    if isinstance(value, (Input, Output, Checkpoint, Port, Ready)):
        return _fields_of(value)
    return value


def _read(kind: type[Spec], where: str, said: object) -> Spec:
    if not isinstance(said, dict):
        raise SpecError(where or "payload", "It must be an object.")
    prefix = f"{where}." if where else ""
    read = {}
    for each in fields(kind):  # type: ignore[arg-type]
        value = said.get(each.name)
        if value is not None:  # null says as little as nothing
            read[each.name] = _READERS[kind][each.name](prefix + each.name, value)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise SpecError(prefix + each.name, "It is missing.")
    return kind(**read)


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(where, "It must be a string.")
    return value


def _flag(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SpecError(where, "It must be true or false.")
    return value


def _whole(where: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(where, "It must be a whole number.")
    return value


def _number(where: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise SpecError(where, "It must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise SpecError(where, "It is too large.") from None


def _one_of(*words: str) -> Read:
    def read(where: str, value: object) -> str:
        if value not in words:
            raise SpecError(where, f"It must be one of: {', '.join(words)}.")
        return _text(where, value)

    return read


def _texts(where: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SpecError(where, "It must be an object.")
    return {_text(where, name): _text(f"{where}.{name}", each) for name, each in value.items()}


def _all(read: Read) -> Read:
    def read_all(where: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise SpecError(where, "It must be an array.")
        return tuple(read(f"{where}[{at}]", each) for at, each in enumerate(value))

    return read_all


def _object(kind: type[Spec]) -> Read:
    return lambda where, value: _read(kind, where, value)


_READERS: Final[dict[type, dict[str, Read]]] = {
    Input: {
        "name": _text,
        "path": _text,
        "artifact_id": _text,
        "url": _text,
        "sha256": _text,
        "unpack": _flag,
    },
    Output: {"name": _text, "path": _text, "max_bytes": _whole},
    Checkpoint: {"path": _text, "every_s": _whole},
    Port: {"name": _text, "port": _whole, "protocol": _one_of("http", "tcp")},
    Ready: {"port": _whole, "http": _text, "every_s": _whole},
    Payload: {
        "image": _text,
        "command": _all(_text),
        "script": _text,
        "interpreter": _one_of("python3", "bash"),
        "env": _texts,
        "secrets": _texts,
        "inputs": _all(_object(Input)),
        "outputs": _all(_object(Output)),
        "checkpoint": _object(Checkpoint),
        "ports": _all(_object(Port)),
        "ready": _object(Ready),
        "network": _one_of("none", "egress"),
        "timeout_s": _whole,
        "grace_s": _whole,
        "restart": _one_of("never", "on_failure", "always"),
    },
    Resources: {
        "gpus": _whole,
        "gpu_model": _text,
        "vram_gb": _number,
        "cores": _number,
        "ram_gb": _number,
        "disk_gb": _number,
        "arch": _text,
        "cuda": _text,
    },
}
