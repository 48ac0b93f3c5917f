"""Checks the values of a specification.

A payload comes from a stranger and is carried out on another stranger's machine: everything has a
bound, and every path stays in the folder of the job, on every device.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from proxyctl.protocol.jobspec.errors import SpecError
from proxyctl.protocol.jobspec.payload import GIGABYTE, Input, Output, Payload, Port, Ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxyctl.protocol.jobspec.payload import Resources

SCRIPT_MAX_BYTES: Final = 64 * 1024
# Together: Linux takes 128 KiB for each string of the arguments and the environment of a process.
COMMAND_MAX_BYTES: Final = 32 * 1024
COMMAND_MAX_ARGUMENTS: Final = 256
VARIABLES_MAX: Final = 64
VARIABLES_MAX_BYTES: Final = 32 * 1024  # names and values together, of `env` and of `secrets` each
VARIABLE_NAME_MAX: Final = 128
FILES_MAX: Final = 64  # inputs, and outputs
SCRIPT_NAME: Final = ".script"  # of the file among the inputs that holds a job's script
PORTS_MAX: Final = 16
PORT_MAX: Final = 65_535
PATH_MAX_BYTES: Final = 1_024
PART_MAX_BYTES: Final = 255  # of a path: the limit of file systems
IMAGE_MAX: Final = 512
URL_MAX: Final = 2_048
OUTPUT_MAX_BYTES: Final = 5 * GIGABYTE
TIMEOUT_MAX_SECONDS: Final = 8_760 * 3_600  # as long as the longest job
GRACE_MAX_SECONDS: Final = 600
CHECKPOINT_MIN_SECONDS: Final = 10  # more often it would do nothing else
CHECKPOINT_MAX_SECONDS: Final = 86_400
READY_MAX_SECONDS: Final = 300
# More than any machine has, so that no number is absurd and all have an exact decimal.
GPUS_MAX: Final = 64
MODEL_MAX: Final = 100
CORES_MAX: Final = 4_096.0
GIGABYTES_MAX: Final = 1_000_000.0

# Variables that the program itself sets for a job begin with this.
OWN_VARIABLES: Final = "PROXYD_"
ARCHITECTURES: Final = ("x86_64", "aarch64")
# Names of the architectures elsewhere: Windows and Debian, container images, macOS.
ALSO_CALLED: Final = {
    "amd64": "x86_64",
    "x64": "x86_64",
    "x86-64": "x86_64",
    "arm64": "aarch64",
}

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_CUDA: Final = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,2})?")
_PRINTABLE: Final = re.compile(r"[!-~]+")
# The grammar of OCI's reference: a host, names, a tag and a digest.
_HOST: Final = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9-]+)*|\[[0-9a-fA-F:]+\])"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(
    rf"(?:{_HOST}(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def check(payload: Payload, job_type: str = "") -> None:
    """Check that a device could run a payload, as a job of a type if one is given.

    Raises:
        SpecError: it could not; says which field is why.
    """
    _check_process(payload, job_type)
    _check_variables(payload)
    _check_files(payload)
    _check_ports(payload)
    _between("timeout_s", payload.timeout_s, 0, TIMEOUT_MAX_SECONDS)
    _between("grace_s", payload.grace_s, 0, GRACE_MAX_SECONDS)


def check_resources(resources: Resources) -> None:
    """Check that a device could have some resources.

    Raises:
        SpecError: none could; says which field is why.
    """
    _between("gpus", resources.gpus, 0, GPUS_MAX)
    if len(resources.gpu_model) > MODEL_MAX or not resources.gpu_model.isprintable():
        raise SpecError("gpu_model", f"It must be a name of at most {MODEL_MAX} characters.")
    _between("vram_gb", resources.vram_gb, 0, GIGABYTES_MAX)
    _between("cores", resources.cores, 0, CORES_MAX)
    _between("ram_gb", resources.ram_gb, 0, GIGABYTES_MAX)
    _between("disk_gb", resources.disk_gb, 0, GIGABYTES_MAX)
    if resources.arch not in ("", *ARCHITECTURES):
        raise SpecError("arch", f"It must be one of: {', '.join(ARCHITECTURES)}.")
    if resources.cuda and not _CUDA.fullmatch(resources.cuda):
        raise SpecError("cuda", "It must be a version such as 12.1.")


def architecture(name: str) -> str:
    """Return Linux's name of an architecture for any of its names."""
    return ALSO_CALLED.get(name.lower(), name.lower())


def _check_process(payload: Payload, job_type: str) -> None:
    if payload.image and (len(payload.image) > IMAGE_MAX or not _IMAGE.fullmatch(payload.image)):
        message = "It must be an image such as debian:12 or host/name@sha256: and 64 digits."
        raise SpecError("image", message)
    if job_type == "docker" and not payload.image:
        raise SpecError("image", "A job of the type docker needs one.")
    if payload.script and payload.command:
        raise SpecError("script", "There is a command already: a job has one or the other.")
    if not (payload.script or payload.command or payload.image):
        raise SpecError("command", "There is nothing to run: say a command, a script or an image.")
    if job_type not in ("", "docker") and not (payload.script or payload.command):
        raise SpecError("command", f"A job of the type {job_type} needs it, or a script.")
    _check_text("script", payload.script, SCRIPT_MAX_BYTES)
    if len(payload.command) > COMMAND_MAX_ARGUMENTS:
        raise SpecError("command", f"It has more than {COMMAND_MAX_ARGUMENTS} arguments.")
    if payload.command and not payload.command[0]:
        raise SpecError("command[0]", "The name of the program is empty.")
    size = 0
    for at, argument in enumerate(payload.command):
        size += _check_text(f"command[{at}]", argument, COMMAND_MAX_BYTES)
    if size > COMMAND_MAX_BYTES:
        raise SpecError("command", f"It has more than {COMMAND_MAX_BYTES} bytes.")


def _check_variables(payload: Payload) -> None:
    for where, variables in (("env", payload.env), ("secrets", payload.secrets)):
        if len(variables) > VARIABLES_MAX:
            raise SpecError(where, f"There are more than {VARIABLES_MAX}.")
        size = 0
        for name, value in variables.items():
            if len(name) > VARIABLE_NAME_MAX or not _VARIABLE.fullmatch(name):
                message = f"A name has letters, digits and _, at most {VARIABLE_NAME_MAX}."
                raise SpecError(where, message)
            if name.startswith(OWN_VARIABLES):
                raise SpecError(f"{where}.{name}", f"Names with {OWN_VARIABLES} are not yours.")
            size += len(name) + _check_text(f"{where}.{name}", value, VARIABLES_MAX_BYTES)
        if size > VARIABLES_MAX_BYTES:
            raise SpecError(where, f"They have more than {VARIABLES_MAX_BYTES} bytes.")
    for name in payload.secrets:
        if name in payload.env:
            raise SpecError(f"secrets.{name}", "It is in env as well.")


def _check_files(payload: Payload) -> None:
    _check_count("inputs", payload.inputs)
    _check_count("outputs", payload.outputs)
    for at, each in enumerate(payload.inputs):
        _check_input(f"inputs[{at}]", each)
    check_apart([each.path or each.name for each in payload.inputs])
    for at, output in enumerate(payload.outputs):
        _check_output(f"outputs[{at}]", output)
    _check_different("outputs", [each.name for each in payload.outputs], "name")
    if payload.checkpoint is not None:
        check_path("checkpoint.path", payload.checkpoint.path)
        every_s = payload.checkpoint.every_s
        _between("checkpoint.every_s", every_s, CHECKPOINT_MIN_SECONDS, CHECKPOINT_MAX_SECONDS)


def check_apart(paths: Sequence[str]) -> None:
    """Check that no input lies where another one is, or inside another one.

    Raises:
        SpecError: one does.
    """
    places = set(paths)
    # Not at each slash: a path has hundreds of them, and there are few inputs.
    lengths = {len(path) for path in paths}
    _check_different("inputs", paths, "path")
    for at, path in enumerate(paths):
        if path.partition("/")[0] == SCRIPT_NAME:
            message = f"{SCRIPT_NAME} is the name of the job's own script."
            raise SpecError(f"inputs[{at}].path", message)
        if any(path[length : length + 1] == "/" and path[:length] in places for length in lengths):
            raise SpecError(f"inputs[{at}].path", "It is inside of another input.")


def _check_input(where: str, each: Input) -> None:
    check_name(f"{where}.name", each.name)
    if each.path:
        check_path(f"{where}.path", each.path)
    if bool(each.artifact_id) == bool(each.url):
        raise SpecError(where, "It needs an artifact_id or a url, and not both.")
    if each.artifact_id and not _UUID.fullmatch(each.artifact_id):
        raise SpecError(f"{where}.artifact_id", "It must be the identifier of an artifact.")
    if each.url:
        is_web = each.url.startswith(("https://", "http://"))
        if not is_web or len(each.url) > URL_MAX or not _PRINTABLE.fullmatch(each.url):
            message = f"It must be an address with http or https of at most {URL_MAX} characters."
            raise SpecError(f"{where}.url", message)
        if not each.sha256:
            raise SpecError(f"{where}.sha256", "What comes from a url needs it.")
    if each.sha256 and not _SHA256.fullmatch(each.sha256):
        raise SpecError(f"{where}.sha256", "It must be 64 digits of 0-9 and a-f.")


def _check_output(where: str, each: Output) -> None:
    check_name(f"{where}.name", each.name)
    check_path(f"{where}.path", each.path)
    _between(f"{where}.max_bytes", each.max_bytes, 1, OUTPUT_MAX_BYTES)


def _check_ports(payload: Payload) -> None:
    if len(payload.ports) > PORTS_MAX:
        raise SpecError("ports", f"There are more than {PORTS_MAX}.")
    for at, each in enumerate(payload.ports):
        if not _NAME.fullmatch(each.name):
            message = "It must have 1 to 32 letters a-z, digits and hyphens."
            raise SpecError(f"ports[{at}].name", message)
        _between(f"ports[{at}].port", each.port, 1, PORT_MAX)
    _check_different("ports", [each.name for each in payload.ports], "name")
    _check_different("ports", [each.port for each in payload.ports], "port")
    if payload.ready is not None:
        _check_ready(payload.ready, payload.ports)


def _check_ready(ready: Ready, ports: Sequence[Port]) -> None:
    if ready.port not in [each.port for each in ports]:
        raise SpecError("ready.port", "It must be one of the ports.")
    is_path = ready.http.startswith("/") and _PRINTABLE.fullmatch(ready.http)
    if ready.http and (not is_path or len(ready.http) > PATH_MAX_BYTES):
        raise SpecError("ready.http", "It must be the path of a request, such as /healthz.")
    _between("ready.every_s", ready.every_s, 1, READY_MAX_SECONDS)


def check_name(where: str, name: str) -> None:
    """Check that a text can name a file in a folder.

    Raises:
        SpecError: it cannot.
    """
    if "/" in name:
        raise SpecError(where, "It must be a name without a slash.")
    check_path(where, name)


def check_path(where: str, path: str) -> None:
    """Check that a path is relative, normal, and stays below its start.

    Raises:
        SpecError: it does not.
    """
    if not path:
        raise SpecError(where, "It is empty.")
    if not path.isprintable():  # nor is a half of a surrogate pair
        raise SpecError(where, "It has a character that cannot be shown.")
    if "\\" in path:
        raise SpecError(where, "It has a backslash.")
    if path.startswith("/"):
        raise SpecError(where, "It must be relative to the folder of the job.")
    if len(path.encode()) > PATH_MAX_BYTES:
        raise SpecError(where, f"It has more than {PATH_MAX_BYTES} bytes.")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise SpecError(where, "It has an empty part, a . or a .. in it.")
        if len(part.encode()) > PART_MAX_BYTES:
            raise SpecError(where, f"A part of it has more than {PART_MAX_BYTES} bytes.")


def _check_text(where: str, text: str, most: int) -> int:
    """Return how many bytes a text has that a process can be given."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SpecError(where, "It has a half of a character in it.") from None
    if "\0" in text:
        raise SpecError(where, "It has the character U+0000 in it.")
    if size > most:
        raise SpecError(where, f"It has more than {most} bytes.")
    return size


def _check_count(where: str, files: Sequence[object]) -> None:
    if len(files) > FILES_MAX:
        raise SpecError(where, f"There are more than {FILES_MAX}.")


def _check_different(where: str, values: Sequence[object], name: str) -> None:
    seen: set[object] = set()
    for at, value in enumerate(values):
        if value in seen:
            raise SpecError(f"{where}[{at}].{name}", "Another one has it already.")
        seen.add(value)


def _between(where: str, value: float, least: float, most: float) -> None:
    if not math.isfinite(value) or not least <= value <= most:
        raise SpecError(where, f"It must be from {least:g} to {most:.15g}.")
