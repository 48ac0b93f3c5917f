"""The owner's loan, its date and its sandbox: the record that `run` needs."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.status import InVainError
from proxyctl.worker.base import plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    Check = Callable[[object], Any]

AGREE: Final = "run: proxyctl worker setup"
NEW_TOKEN: Final = f"make a new one in your account, under devices, and {AGREE}"
JOB_TYPES: Final = ("script", "docker", "training", "inference")
WITHOUT_IMAGES: Final = ("script",)  # an owner who lends this alone needs no engine
EXECUTORS: Final = ("auto", "bwrap", "podman", "docker", "gvisor", *plugins.DISTRIBUTIONS)
LIMITS: Final = ("auto", "systemd", "cgroup2", "cgroup1")
ALL_GPUS: Final = "all"
GIGABYTE: Final = 1_000_000_000
ALWAYS: Final = "always"  # instead of hours: all of them
_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_JOBS_MAX: Final = 64  # at once: each has a process that watches it, and two threads
_TEXTS_MAX: Final = 64


class ConsentError(InVainError):
    """There is no valid consent; the message names the remedy."""


@dataclass(frozen=True)
class Lend:
    """The loan of the owner: for all jobs together, unless an attribute differs.

    Attributes:
        jobs: the types of jobs that are taken.
        cores: of processor time.
        ram_gb: of memory, in GB of 10^9 bytes.
        disk_gb: of disk, for the inputs and the files of jobs.
        gpus: `all`, or the identifiers of the lent GPUs; none of them is shared by two jobs.
        max_jobs: at the same time.
        network: `none`, or `egress`: jobs that want it may reach public addresses.
        min_price_usd: per hour; jobs that pay less are not taken.
        ports_gb_per_day: through ports on which jobs listen, both ways together; with 0 the device
            lets no user in, and takes no job that listens.
        ports_mbps: the same in megabits per second.
    """

    jobs: tuple[str, ...] = ("script",)
    cores: float = 1.0
    ram_gb: float = 1.0
    disk_gb: float = 10.0
    gpus: tuple[str, ...] = ()
    max_jobs: int = 1
    network: str = "none"
    min_price_usd: float = 0.0
    ports_gb_per_day: float = 100.0
    ports_mbps: float = 100.0


@dataclass(frozen=True)
class When:
    """The times when the device works; otherwise it takes nothing, and stops the running jobs.

    Attributes:
        hours: in the device's own time, like `22:00-07:00`; none are all hours.
        idle_minutes: the time since the last use of keyboard or mouse; 0 works beside its owner.
        on_battery: also while nothing charges the device.
        cpu_temp_max: in degrees Celsius; 0 is no bound.
        gpu_temp_max: the same, of the hottest GPU that is lent.
    """

    hours: tuple[str, ...] = ()
    idle_minutes: int = 0
    on_battery: bool = False
    cpu_temp_max: int = 90
    gpu_temp_max: int = 87

    def is_hour(self, now: datetime) -> bool:
        """Return whether the device works at this time of the day."""
        return not self.hours or any(_is_within(each, now) for each in self.hours)


@dataclass(frozen=True)
class Sandbox:
    """The environment in which jobs run.

    Attributes:
        executor: `auto` takes the present executors, in the order of `EXECUTORS`; a cluster is
            taken only by its name.
        limits: the mechanism that limits a job to its share of the machine; `auto` takes a present
            one.
        images: patterns of the images that may be run, like `docker.io/library/*`.
        registries: hosts with their ports, like `192.168.1.5:5000`, that images are fetched from
            although they are not on the public internet.
        pull_gb_per_day: of images, as they are sent.
        cache_gb: of images that are kept, unpacked; no single one may have more.
        settings: that plug-ins have, by name, where they are not the default.
    """

    executor: str = "auto"
    limits: str = "auto"
    images: tuple[str, ...] = ("*",)
    registries: tuple[str, ...] = ()
    pull_gb_per_day: float = 50.0
    cache_gb: float = 100.0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Consent:
    """An agreement.

    Attributes:
        api: the address of the marketplace's API.
        token: the worker token of this device.
        agreed_at: when, RFC 3339.
        terms: SHA-256 of the text that was shown; empty in a file of an earlier version.
    """

    api: str
    token: str = field(repr=False)
    agreed_at: str
    lend: Lend = field(default_factory=Lend)
    when: When = field(default_factory=When)
    sandbox: Sandbox = field(default_factory=Sandbox)
    terms: str = ""


def load(path: Path) -> Consent:
    """Return the agreement in a file.

    Raises:
        ConsentError: there is no record, other users can read it, or a value makes no sense; the
            message names every fault.
        FileError: the file cannot be used.
    """
    stored = files.read(path)
    if stored is None:
        raise ConsentError(no_consent(path))
    if not files.is_private(path):
        raise ConsentError(
            f"others on this machine can read {path}, which holds a token; run: chmod 600 {path}"
        )
    texts = {name: stored.get(name) for name in ("api", "token", "agreed_at")}
    if not all(isinstance(text, str) and text for text in texts.values()):
        raise ConsentError(f"{path} is not complete; {AGREE}")
    try:
        parts = parts_of(stored)
    except ConsentError as error:
        raise ConsentError(f"{path}: {error}") from None
    return Consent(**texts, **parts, terms=str(stored.get("terms") or ""))  # type: ignore[arg-type]


def no_consent(path: Path) -> str:
    """Return the words for a missing file: no owner has agreed, or the folder is a wrong one."""
    return f"no user has agreed to lend anything yet: {path} is missing; {AGREE}"


def save(path: Path, consent: Consent) -> None:
    """Write an agreement down, readable only by its owner.

    Raises:
        FileError: it cannot be written.
    """
    stored = asdict(consent)
    stored["sandbox"].update(stored["sandbox"].pop("settings"))
    files.write(path, stored, durable=True)


def parts_of(stored: dict[str, Any]) -> dict[str, Any]:
    """Return `lend`, `when` and `sandbox` of a file; missing fields have their defaults.

    Raises:
        ConsentError: something is not known, or cannot be. It is not ignored: an owner who
            mistypes the name of a limit would go without it.
    """
    problems: list[str] = []
    parts = {
        name: _part(kind, name, stored.get(name, {}), problems) for name, kind in _PARTS.items()
    }
    known = {*_PARTS, "api", "token", "agreed_at", "terms"}
    problems += [f"{name}: is not known" for name in stored if name not in known]
    if problems:
        raise ConsentError("; ".join(problems))
    return parts


def _part(kind: type, name: str, stored: object, problems: list[str]) -> object:
    if not isinstance(stored, dict):
        problems.append(f"{name}: must be an object")
        return kind()
    if kind is Sandbox:
        return _sandbox(stored, problems)
    return kind(**_checked(name, stored, _checks_of(kind, name), problems))


def _sandbox(stored: dict[str, Any], problems: list[str]) -> Sandbox:
    own = _checks_of(Sandbox, "sandbox")
    # Earlier versions wrote the settings of Kubernetes into every record, empty mostly. Where the
    # executor's plug-in is missing, its settings are no further mistakes.
    is_missing = bool(plugins.problem(stored.get("executor")))
    others = {
        key: value
        for key, value in stored.items()
        if key not in own and value not in ("", [], ()) and not is_missing
    }
    values = {key: value for key, value in stored.items() if key in own}
    checks = {each.name: each.check for each in plugins.settings().values()} if others else {}
    return Sandbox(
        **_checked("sandbox", values, own, problems),
        settings=_checked("sandbox", others, {**own, **checks}, problems),
    )


def _checks_of(kind: type, name: str) -> dict[str, Check]:
    known = [each.name for each in fields(kind) if each.name != "settings"]
    return {each: _CHECKS[f"{name}.{each}"] for each in known}


def _checked(
    name: str, stored: dict[str, Any], checks: Mapping[str, Check], problems: list[str]
) -> dict[str, Any]:
    values = {}
    for key, value in stored.items():
        if key not in checks:
            problems.append(f"{name}.{key}: is not known; known are {', '.join(sorted(checks))}")
            continue
        try:
            values[key] = checks[key](value)
        except ValueError as error:
            problems.append(f"{name}.{key}: {error}")
    return values


def _number(least: float, most: float) -> Check:
    def check(value: object) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # type: ignore[operator]
            raise ValueError(f"must be a number from {least:g} to {most:g}")
        return float(value)  # type: ignore[arg-type]

    return check


def _whole(least: int, most: int) -> Check:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return check


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - collected with the others
    return value


def _one_of(*words: str) -> Check:
    def check(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return check


def _executor(value: object) -> str:
    name = str(_one_of(*EXECUTORS)(value))
    problem = plugins.problem(name)
    if problem:
        raise ValueError(problem)
    return name


def matching(pattern: str, words: str) -> Check:
    """Return a check of a text by a pattern of all of it; other values raise the words."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(words)
        return value

    return check


def texts(is_valid: Callable[[str], object], words: str) -> Check:
    """Return a check of a list of valid texts; other values raise the words."""

    def check(value: object) -> tuple[str, ...]:
        is_list = isinstance(value, (list, tuple)) and len(value) <= _TEXTS_MAX
        if not is_list or not all(isinstance(each, str) and is_valid(each) for each in value):  # type: ignore[attr-defined]
            raise ValueError(words)
        return tuple(value)  # type: ignore[arg-type]

    return check


def _is_span(text: str) -> bool:
    return _HOURS.fullmatch(text) is not None and text[:5] != text[6:]


def _is_within(hours: str, now: datetime) -> bool:
    match = _HOURS.fullmatch(hours)
    assert match is not None  # noqa: S101 - checked when it was read
    begin, end = (int(match[at]) * 60 + int(match[at + 1]) for at in (1, 3))
    minute = now.hour * 60 + now.minute
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


_PARTS: Final[dict[str, type]] = {"lend": Lend, "when": When, "sandbox": Sandbox}
_CHECKS: Final[dict[str, Check]] = {
    "lend.jobs": texts(JOB_TYPES.__contains__, f"must be a list of {', '.join(JOB_TYPES)}"),
    "lend.cores": _number(0.1, 10_000),
    "lend.ram_gb": _number(0.1, 1_000_000),
    "lend.disk_gb": _number(0.1, 1_000_000),
    "lend.gpus": texts(len, "must be a list of identifiers, or of `all`"),
    "lend.max_jobs": _whole(1, _JOBS_MAX),
    "lend.network": _one_of("none", "egress"),
    "lend.min_price_usd": _number(0, 1_000_000),
    "lend.ports_gb_per_day": _number(0, 1_000_000),
    "lend.ports_mbps": _number(0.1, 1_000_000),
    "when.hours": texts(
        _is_span, "must be a list of spans like 22:00-07:00, which begin and end at other times"
    ),
    "when.idle_minutes": _whole(0, 24 * 60),
    "when.on_battery": _flag,
    "when.cpu_temp_max": _whole(0, 150),
    "when.gpu_temp_max": _whole(0, 150),
    "sandbox.executor": _executor,
    "sandbox.limits": _one_of(*LIMITS),
    "sandbox.images": texts(len, "must be a list of patterns like docker.io/library/*"),
    "sandbox.registries": texts(len, "must be a list of hosts like 192.168.1.5:5000"),
    "sandbox.pull_gb_per_day": _number(0, 1_000_000),
    "sandbox.cache_gb": _number(0, 1_000_000),
}
