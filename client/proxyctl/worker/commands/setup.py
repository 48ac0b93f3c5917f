"""The second key: a person at the device reads the loan, and types `yes`."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.api import api_address
from proxyctl.words import OwnerError
from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.base import lock, names, plugins, record
from proxyctl.worker.base.link import Link, LinkError, RefusedError
from proxyctl.worker.base.record import (
    ALL_GPUS,
    ALWAYS,
    GIGABYTE,
    WITHOUT_IMAGES,
    Consent,
    Lend,
    Sandbox,
    When,
)
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.sensors import host, nvidia

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from proxyctl.worker.commands.checks import Requirements

_YES: Final = "yes"
_DISK_PART: Final = 0.25  # of the free space, unless the owner sets an amount
_DISK_MOST_GB: Final = 100
_RESERVE_GB: Final = 1  # of disk, which is never lent

_TEXT: Final = """\
Jobs of strangers will run on this device, walled in:
  a job sees: the programs in /usr (read-only), or the image that it names; its own folder; of your
    files, your other programs and your network nothing
  a job has: {lend}
  it works: {when}
  it runs in: {sandbox}
  it earns: what its buyer pays, at least {price} USD an hour, less the fee of the marketplace

What runs here can be seen by you as well, and by everybody who can become root on this device.
Nothing is taken without this agreement; `proxyctl worker drain --now` ends everything at once.
The marketplace is {api}.
"""


class NoConsentError(OwnerError):
    """The owner did not agree; the message gives the reason."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the agreement; an option that is not given keeps its value of before."""
    parser.add_argument(
        "--api", metavar="URL", help="address of the marketplace; needed the first time"
    )
    for part, name, kind, words in _options():
        option = f"--{name.replace('_', '-')}"
        if kind is bool:
            parser.add_argument(option, dest=f"{part}.{name}", choices=("yes", "no"), help=words)
        elif kind is list:
            parser.add_argument(
                option, dest=f"{part}.{name}", action="append", metavar="WORD", help=words
            )
        else:
            # Fails before the parser refuses an option of a missing plug-in, and with more words.
            read = _executor if (part, name) == ("sandbox", "executor") else kind
            parser.add_argument(
                option, dest=f"{part}.{name}", type=read, metavar=name.upper(), help=words
            )


def _executor(name: str) -> str:
    problem = plugins.problem(name)
    if problem:
        raise argparse.ArgumentTypeError(problem)
    return name


def agree(
    path: Path,
    arguments: argparse.Namespace,
    *,
    require: Callable[[Lend, Sandbox], Requirements],
    token: Callable[[str], str],
    show: Callable[[str], None],
    ask: Callable[[str], str],
) -> bool:
    """Show missing things and lent things, and write the agreement down.

    Args:
        path: of the record.
        arguments: of the command line.
        require: tries the sandboxes; there is no question without one.
        token: returns the worker token, given the one of before or an empty text; called before the
            lent things are shown, because reading them is useless with an unknown token.
        show: shows lines to the person at the device.
        ask: shows a question and returns the typed answer.

    Returns:
        Whether there was a question. With `unless_agreed` an earlier consent to the same text needs
        no question: then only a new token is written down.

    Raises:
        ApiError: the address is not one of an API.
        ConsentError: something cannot be lent.
        TokenError: there is no token.
        NoConsentError: anything but `yes` was typed, no job can be run here, an agent runs in the
            folder, or there is no marketplace that knows the token.
        FileError: it cannot be written down.
    """
    _refuse_beside_agent(path.parent)
    stored = files.read(path) or {}
    address = api_address(arguments.api or _agreed_api(stored))
    lend, when, sandbox = _wanted(path, arguments)
    problems = not_there(lend, sandbox, path.parent)
    if problems:
        raise NoConsentError("; ".join(problems))
    are_met, missing = require(lend, sandbox)
    for line in missing:
        show(line)
    if not are_met:
        raise NoConsentError(
            "no job can be walled in here before that is there; nothing was agreed to"
        )
    text = _TEXT.format(
        lend=_lend_in_words(lend),
        when=_when_in_words(when),
        sandbox=_sandbox_in_words(sandbox, lend),
        price=f"{lend.min_price_usd:g}",
        api=address,
    )
    # A token is for one marketplace: another one is not told it.
    before = str(stored.get("token") or "") if stored.get("api") == address else ""
    agreed_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    terms = hashlib.sha256(text.encode()).hexdigest()
    consent = Consent(address, token(before), agreed_at, lend, when, sandbox, terms)
    _try(consent)
    if arguments.unless_agreed and _is_agreed(path, consent):
        if consent.token != before:
            record.save(path, replace(consent, agreed_at=str(stored.get("agreed_at"))))
        return False
    show(text)
    if ask(f"Type {_YES} if you agree to all of this: ").strip() != _YES:
        raise NoConsentError("nothing was agreed to, and nothing was changed")
    _refuse_beside_agent(path.parent)  # one that was started in the meantime
    record.save(path, consent)
    files.remove(path.with_name(names.CONTROL))
    return True


def _is_agreed(path: Path, consent: Consent) -> bool:
    """Return whether the owner agreed to all of this before; only the token may be another one.

    The words leave some settings out, such as those of a cluster, so they alone prove nothing.
    """
    try:
        before = record.load(path)
    except (files.FileError, record.ConsentError):
        return False
    return replace(before, token=consent.token, agreed_at=consent.agreed_at) == consent


def _agreed_api(stored: Mapping[str, Any]) -> str:
    api = stored.get("api")
    if not isinstance(api, str) or not api:
        raise NoConsentError("name the marketplace: --api URL")
    return api


def _try(consent: Consent) -> None:
    """Ask the marketplace something that only a device may."""
    link = Link(consent.api, consent.token)
    try:
        reply = link.get("/api/worker/jobs?limit=1")
        if "jobs" not in reply:
            raise NoConsentError(f"{consent.api} is no marketplace; nothing was changed")
    except RefusedError as error:
        if error.is_revoked:
            raise NoConsentError(
                f"{consent.api} does not know this token, or has revoked it; {record.NEW_TOKEN}"
            ) from None
        raise NoConsentError(f"{consent.api} refuses: {error}; nothing was changed") from None
    except LinkError as error:
        raise NoConsentError(
            f"{error}; nothing was changed. Look at the address (--api) and the network"
        ) from None
    finally:
        link.close()


def _refuse_beside_agent(folder: Path) -> None:
    """Refuse a change beside a running agent, which has read its record at its start."""
    pid = lock.holder(folder)
    if pid is not None:
        raise NoConsentError(
            f"an agent works in {folder} as process {pid}, by the agreement at its"
            f" start; nothing was changed. End it first: proxyctl worker drain --folder {folder}"
        )


def not_there(lend: Lend, sandbox: Sandbox, folder: Path) -> list[str]:
    """Return the lent things that the device does not have, in words."""
    problems = not_in_machine(lend, sandbox, folder)
    disk_gb = _free_gb(folder)
    if lend.disk_gb > disk_gb:
        problems.append(f"{lend.disk_gb:g} GB of disk are lent, and {disk_gb:.1f} are free")
    return problems


def not_in_machine(lend: Lend, sandbox: Sandbox, folder: Path) -> list[str]:
    """Return the same without the disk, which has less free as soon as jobs are there."""
    problems = []
    try:
        cores, memory = sandboxes.capacity(sandbox, folder)
    except TaskError as error:
        return [error.message]
    if lend.cores > cores:
        problems.append(f"{lend.cores:g} cores are lent, and {cores} are there")
    memory_gb = memory / GIGABYTE
    if lend.ram_gb > memory_gb:
        problems.append(f"{lend.ram_gb:g} GB of memory are lent, and {memory_gb:.1f} are there")
    if sandbox.executor in sandboxes.CLUSTERS:
        return problems + _not_on_clusters(lend)
    if lend.gpus:
        known = {each.uuid for each in nvidia.read_gpus()}
        missing = set(lend.gpus) - {ALL_GPUS} - known
        if missing or not known:
            names_of = ", ".join(sorted(missing)) or "any"
            problems.append(f"GPUs are lent that are not there: {names_of}")
    return problems


def _not_on_clusters(lend: Lend) -> list[str]:
    problems = []
    if lend.gpus:
        problems.append("GPUs of a cluster cannot be lent")
    if lend.network != "none":
        problems.append("jobs on a cluster cannot be given a network")
    return problems


def _wanted(path: Path, arguments: argparse.Namespace) -> tuple[Lend, When, Sandbox]:
    """Return the agreement of before, with the changes of the command line."""
    stored, options = files.read(path), _options()
    parts = {name: dict((stored or {}).get(name) or {}) for name in ("lend", "when", "sandbox")}
    if stored is None:
        named = {
            name: getattr(arguments, f"{part}.{name}", None)
            for part, name, _, _ in options
            if part == "sandbox"
        }
        given = {name: value for name, value in named.items() if value is not None}
        sandbox = record.parts_of({"sandbox": given})["sandbox"]
        parts["lend"] = _suggested(path.parent, sandbox)
    for part, name, kind, _ in options:
        value = getattr(arguments, f"{part}.{name}", None)
        if value is not None:
            if (part, name, value) == ("when", "hours", [ALWAYS]):
                value = []
            parts[part][name] = value == _YES if kind is bool else value
    checked = record.parts_of(parts)
    return checked["lend"], checked["when"], checked["sandbox"]


def _suggested(folder: Path, sandbox: Sandbox) -> dict[str, Any]:
    """Return half of the processor and of the memory, and no GPU."""
    try:
        all_cores, memory = sandboxes.capacity(sandbox, folder)
    except TaskError as error:
        raise NoConsentError(error.message) from None
    cores = max(1, all_cores // 2)
    return {
        "cores": cores,
        "ram_gb": max(0.1, int(memory / GIGABYTE / 2 * 10) / 10),
        "disk_gb": max(0.1, min(_DISK_MOST_GB, int(_free_gb(folder) * _DISK_PART * 10) / 10)),
        "max_jobs": min(2, cores),
    }


def _free_gb(folder: Path) -> float:
    while not folder.exists():
        folder = folder.parent
    return max(0.0, host.free_disk_bytes(folder) / GIGABYTE - _RESERVE_GB)


def _lend_in_words(lend: Lend) -> str:
    gpus = "all GPUs" if ALL_GPUS in lend.gpus else ", ".join(lend.gpus) or "no GPU"
    cores = "1 core" if lend.cores == 1 else f"{lend.cores:g} cores"
    network = "no network" if lend.network == "none" else "public addresses, if it wants them"
    ports = "nobody is let in at their ports"
    if lend.ports_gb_per_day:
        ports = (
            f"through their ports {lend.ports_gb_per_day:g} GB a day, at {lend.ports_mbps:g} Mbit/s"
        )
    return (
        f"at most {cores}, {lend.ram_gb:g} GB of memory and {lend.disk_gb:g} GB of"
        f" disk, shared by {lend.max_jobs} at once; {gpus}; {network}; {ports};"
        f" types: {', '.join(lend.jobs)}"
    )


def _sandbox_in_words(sandbox: Sandbox, lend: Lend) -> str:
    words = f"{sandbox.executor}, with limits by {sandbox.limits}"
    if lend.jobs == WITHOUT_IMAGES and sandbox.executor == "auto":
        return words
    places = ["the public internet", *sandbox.registries]
    return (
        f"{words}; images like {', '.join(sandbox.images)}, from {', '.join(places)}; at most"
        f" {sandbox.pull_gb_per_day:g} GB a day are fetched, and {sandbox.cache_gb:g} GB kept"
    )


def _when_in_words(when: When) -> str:
    words = [", ".join(when.hours) or "at all hours"]
    if when.idle_minutes:
        words.append(f"when nobody has touched the device for {when.idle_minutes} minutes")
    words.append("on battery, too" if when.on_battery else "not on battery")
    for name, degrees in (("processor", when.cpu_temp_max), ("GPU", when.gpu_temp_max)):
        if degrees:
            words.append(f"with its {name} below {degrees} degrees Celsius")
    return "; ".join(words)


_OPTIONS: Final[tuple[tuple[str, str, type, str], ...]] = (
    ("lend", "jobs", list, "type of jobs to take, like script; may be repeated"),
    ("lend", "cores", float, "of processor time, for all jobs together"),
    ("lend", "ram_gb", float, "of memory, for all jobs together"),
    ("lend", "disk_gb", float, "of disk, for all jobs together"),
    ("lend", "gpus", list, "identifier of a GPU to lend, or all; may be repeated"),
    ("lend", "max_jobs", int, "most jobs at the same time"),
    ("lend", "network", str, "none, or egress: jobs may reach public addresses"),
    ("lend", "min_price_usd", float, "lowest price of a job per hour"),
    (
        "lend",
        "ports_gb_per_day",
        float,
        "traffic through ports of jobs; 0 takes no job with ports; 100",
    ),
    ("lend", "ports_mbps", float, "rate through ports of jobs, in megabits per second; 100"),
    ("when", "hours", list, "hours of work, like 22:00-07:00; may be repeated; always: all hours"),
    ("when", "idle_minutes", int, "work after this time without a user at the device"),
    ("when", "on_battery", bool, "work while nothing charges the device; no"),
    ("when", "cpu_temp_max", int, "rest above this, in degrees Celsius; 90"),
    ("when", "gpu_temp_max", int, "rest above this, in degrees Celsius; 87"),
    ("sandbox", "executor", str, ", ".join(record.EXECUTORS)),
    ("sandbox", "limits", str, "auto, systemd, cgroup2 or cgroup1"),
    ("sandbox", "images", list, "pattern of the permitted images; may be repeated"),
    ("sandbox", "registries", list, "host of a registry that is not public; may be repeated"),
    ("sandbox", "pull_gb_per_day", float, "images to fetch in a day, compressed; 50"),
    ("sandbox", "cache_gb", float, "images to keep, unpacked; 100"),
)


def _options() -> tuple[tuple[str, str, type, str], ...]:
    """Return all options: part of the record, name, type and words for the list of options."""
    others = plugins.settings().values()
    return (
        *_OPTIONS,
        *(("sandbox", each.name, list if each.is_list else str, each.words) for each in others),
    )
