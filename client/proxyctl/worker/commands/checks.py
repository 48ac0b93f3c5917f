"""The needs of a device: the present state, the reason for each need, and the remedy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from proxyctl.words import plain_text
from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.base.link import Link, LinkError, RefusedError
from proxyctl.worker.base.record import AGREE, GIGABYTE, JOB_TYPES, Lend, Sandbox
from proxyctl.worker.commands.setup import not_there
from proxyctl.worker.executors.base.base import Finding, TaskError
from proxyctl.worker.files import unpacking
from proxyctl.worker.sensors import host, nvidia

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from proxyctl.worker.base.record import Consent

_DISK_MIN_BYTES: Final = GIGABYTE
# Without these a device works all the same.
_SENSORS: Final = "sensors"
_FILES: Final = "files"


class Requirements(NamedTuple):
    """Whether any job can be run here, and a text for the owner of each missing thing."""

    are_met: bool
    missing: list[str]


def requirements(lend: Lend, sandbox: Sandbox, folder: Path) -> Requirements:
    """Try the sandboxes that would be lent, before anybody agrees to lend them."""
    try:
        executors, findings = sandboxes.usable(sandbox, lend, folder.absolute())
    except TaskError as error:
        return Requirements(are_met=False, missing=[error.message])
    for executor in executors.values():
        executor.close()
    # One engine is enough: the owner installs no second one.
    enough = sandboxes.ENGINES if executors.keys() & sandboxes.ENGINES else frozenset()
    missing = [
        line_of(part, each)
        for part, some in findings.items()
        if part not in executors and part not in enough
        for each in some
        if not each.is_met
    ]
    return Requirements(bool(executors), missing)


def everything(consent: Consent | None, folder: Path) -> list[tuple[str, Finding]]:
    """Return all findings, each with the part of the agent that it concerns."""
    sandbox = Sandbox() if consent is None else consent.sandbox
    lend = Lend(jobs=JOB_TYPES) if consent is None else consent.lend
    try:
        _, findings = sandboxes.usable(sandbox, lend, folder.absolute())
    except TaskError as error:
        findings = {
            "sandbox": [Finding("limits", False, error.message, "limits", "jobs end", AGREE)]
        }
    found = [(part, each) for part, some in findings.items() for each in some]
    found += [("device", each) for each in _device(consent, folder)]
    found += [(_SENSORS, each) for each in _sensors()]
    found.append((_FILES, unpacking.check(folder if folder.is_dir() else None)))
    if consent is not None:
        found.append(("marketplace", _marketplace(consent)))
    return found


def can_work(findings: Sequence[tuple[str, Finding]]) -> bool:
    """Return whether jobs can be run: by one executor, with one kind of limits."""
    parts: dict[str, bool] = {}
    for part, each in findings:
        parts[part] = parts.get(part, True) and each.is_met
    executors = [parts[name] for name in sandboxes.ALL if name in parts]
    return any(executors) and parts.get("device", True) and parts.get("marketplace", True)


def line_of(part: str, finding: Finding) -> str:
    """Return a finding as its owner reads it."""
    mark = "ok  " if finding.is_met else "MISS"
    line = f"{mark} {part}/{finding.id}: {finding.actual}"
    if not finding.is_met:
        line += f"\n     needed: {finding.needed}, {finding.why}"
        if finding.remedy:
            line += "\n     do: " + finding.remedy.replace("\n", "\n         ")
    return plain_text(line)


def _device(consent: Consent | None, folder: Path) -> list[Finding]:
    place = folder
    while not place.exists():
        place = place.parent
    free = host.free_disk_bytes(place)
    findings = [
        Finding(
            "disk",
            free >= _DISK_MIN_BYTES,
            f"{free / GIGABYTE:.1f} GB are free at {place}",
            "1 GB",
            "for what jobs are given, write and print",
            "make room, or choose another place by --folder",
        )
    ]
    if consent is not None:
        problems = not_there(consent.lend, consent.sandbox, folder)
        findings.append(
            Finding(
                "lent",
                not problems,
                "; ".join(problems) or "all that is lent is there",
                "no more lent than is there",
                "because jobs are given to this device by it",
                AGREE,
            )
        )
    return findings


def _sensors() -> list[Finding]:
    gpus = nvidia.read_gpus()
    degrees = host.cpu_temperature()
    return [
        Finding(
            "temperature",
            degrees is not None,
            "not known" if degrees is None else f"{degrees:.0f} degrees Celsius",
            "a thermometer that Linux shows",
            "to rest when the processor is hot; without one it never rests for that",
        ),
        Finding(
            "gpus",
            bool(gpus),
            ", ".join(f"{each.name} ({each.uuid})" for each in gpus) or "none",
            "a driver of NVIDIA and the Python package nvidia-ml-py",
            "to lend GPUs; without one none is lent",
        ),
    ]


def _marketplace(consent: Consent) -> Finding:
    link = Link(consent.api, consent.token)
    begun = time.monotonic()
    remedy = "look at the address, the network and the clock of this device"
    try:
        link.get("/api/worker/jobs?limit=1")
    except LinkError as error:
        actual, is_met = str(error), False
    except RefusedError as error:
        actual, is_met = str(error), False
        remedy = f"make a new token in your account, and {AGREE}"
    else:
        actual, is_met = f"answered within {time.monotonic() - begun:.2f} s", True
    finally:
        link.close()
    return Finding(
        "reachable",
        is_met,
        actual,
        f"{consent.api} and a token that it knows",
        "to get work",
        remedy,
    )
