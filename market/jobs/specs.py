"""Work and needs of a job: checked when it is posted, sent to the device that holds it.

Secrets are sealed beside the payload, and forgotten when the job is over. Only the device that
holds the job sees their values; all others see the names.
"""

import dataclasses
from typing import NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from proxyctl.protocol.jobspec import (
    Payload,
    Resources,
    SpecError,
    architecture,
    as_fields,
    check,
    check_resources,
    gpus,
    payload_of,
    requirements,
    resources_of,
)
from storage.engines.store import Transaction
from storage.jobs import job_specs as queries
from storage.jobs.job_specs import SpecRow

# Buyers may take longer than the operator proposes, up to a week; the worker bears this delay.
REVIEW_MAX_HOURS = 168
HOUR_SECONDS = 3_600
UNREADABLE = "The secrets of this job cannot be read any more; its buyer must put it up again."


class NewSpec(Struct, frozen=True):
    """Fields that a buyer sends beyond the specification's own; None means absent."""

    payload: Payload | None = None
    resources: Resources | None = None
    review_hours: int | None = None
    min_reputation: int = 0


class Spec(Struct, frozen=True):
    """Work and needs of a job, read from the buyer's fields or text.

    `payload` has the values of its secrets only for the device that holds the job. `warnings` name
    the requirements that were not understood. `is_manual`: the job is not offered to devices
    automatically. `min_reputation` is the least reputation of a device, in millionths.
    """

    payload: Payload | None
    resources: Resources
    warnings: tuple[str, ...] = ()
    is_manual: bool = False
    timeout_seconds: int | None = None
    review_hours: int | None = None
    min_reputation: int = 0

    @property
    def artifact_ids(self) -> list[str]:
        """The artifacts that the job is given, in the order of its inputs; "" for another input."""
        return [] if self.payload is None else [each.artifact_id for each in self.payload.inputs]


def understand(new: NewSpec, *, job_type: str, duration_hrs: int, text: str) -> Spec:
    """Read and check the specification of a job. Return it with the values of secrets.

    Args:
        new: the fields that the buyer sent. If it has resources, these are used, and the text is
            not read.
        job_type: the type of the job.
        duration_hrs: the longest duration of the job.
        text: its requirements in words.

    Raises:
        MarketError: `payload_invalid`, naming the field.
    """
    payload, timeout_seconds = new.payload, None
    if payload is not None:
        timeout_seconds = _checked(payload, job_type, duration_hrs)
    if new.review_hours is not None:
        if payload is None:
            _refuse("trust.review_hours", "A job without a payload is paid when it is completed.")
        if not 0 <= new.review_hours <= REVIEW_MAX_HOURS:
            _refuse("trust.review_hours", f"It must be from 0 to {REVIEW_MAX_HOURS}.")
    if new.resources is None:
        parsed = requirements.parse(text)
        resources, warnings, is_manual = parsed.resources, parsed.warnings, parsed.is_manual
    else:
        arch = architecture(new.resources.arch)
        resources, is_manual = dataclasses.replace(new.resources, arch=arch), False
        warnings = _checked_resources(resources)
    return Spec(
        payload,
        resources,
        warnings,
        is_manual,
        timeout_seconds,
        new.review_hours,
        new.min_reputation,
    )


class Specs:
    """Store of the payloads and needs of jobs."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    def row(self, job_id: str, spec: Spec) -> SpecRow:
        """Return the row of a job's specification, its secrets sealed."""
        payload, secrets = spec.payload, None
        if payload is not None and payload.secrets:
            secrets = self.seal(payload.secrets)
            payload = dataclasses.replace(payload, secrets=dict.fromkeys(payload.secrets, ""))
        return SpecRow(
            job_id=job_id,
            payload=None if payload is None else _json(as_fields(payload)),
            secrets=secrets,
            resources=_json(as_fields(spec.resources)),
            warnings=_json(spec.warnings),
            is_manual=int(spec.is_manual),
            timeout_seconds=spec.timeout_seconds,
            review_hours=spec.review_hours,
            min_reputation=spec.min_reputation,
        )

    async def find(self, tx: Transaction, job_id: str) -> Spec | None:
        """Return the fields for every reader who may see the job; None without a specification."""
        row = await queries.find(tx, job_id)
        return None if row is None else _spec(row)

    async def work_of(self, tx: Transaction, job_id: str) -> Spec | None:
        """Return a job's specification with its secrets, for the device that holds the job.

        The caller must check first that this device asks.

        Raises:
            MarketError: `payload_invalid`, when the secrets cannot be read any more.
        """
        row = await queries.find(tx, job_id)
        if row is None:
            return None
        spec = _spec(row)
        if row.payload is None:
            return spec
        payload = self.payload_of(row.payload, row.secrets)
        if payload is None:
            _refuse("payload.secrets", UNREADABLE)
        return replace(spec, payload=payload)

    def payload_of(self, payload: str, secrets: str | None) -> Payload | None:
        """Return a payload with its secrets, built from its columns.

        None when the secrets cannot be read: the key of the service has changed. Such a job must
        not be assigned to a device, because its work without the secrets is undefined.
        """
        read = payload_of(msgspec.json.decode(payload))
        if not read.secrets:
            return read
        values = None if secrets is None else self.unseal(secrets)
        return None if values is None else dataclasses.replace(read, secrets=values)

    def seal(self, secrets: dict[str, str]) -> str:
        """Return secrets in the stored, sealed form."""
        return self._sealing.close(msgspec.json.encode(secrets))

    def unseal(self, sealed: str) -> dict[str, str] | None:
        """Return the secrets that `seal` sealed, or None when the key has changed since."""
        opened = self._sealing.open(sealed)
        return None if opened is None else msgspec.json.decode(opened, type=dict[str, str])


def size_of(row: SpecRow) -> int:
    """Return the number of bytes of a row, without its columns of fixed size."""
    texts = (row.payload or "", row.secrets or "", row.resources, row.warnings)
    return sum(len(text.encode()) for text in texts)


def _checked(payload: Payload, job_type: str, duration_hrs: int) -> int:
    """Check a payload. Return the number of seconds that it may run."""
    try:
        check(payload, job_type)
    except SpecError as error:
        _refuse(f"payload.{error.field}", error.message)
    most = duration_hrs * HOUR_SECONDS
    if payload.timeout_s > most:
        _refuse("payload.timeout_s", f"The job's duration_hrs are {most} seconds.")
    return payload.timeout_s or most


def _checked_resources(resources: Resources) -> tuple[str, ...]:
    try:
        check_resources(resources)
    except SpecError as error:
        _refuse(f"resources.{error.field}", error.message)
    if not resources.gpu_model or gpus.is_known(resources.gpu_model):
        return ()
    return (requirements.unknown_model(resources.gpu_model),)


def _refuse(field: str, message: str) -> NoReturn:
    raise MarketError(Code.PAYLOAD_INVALID, f"{field}: {message}", field=field)


def _spec(row: SpecRow) -> Spec:
    return Spec(
        # Not decoded by their types: a reply would leave out the defaults of objects that msgspec
        # decodes.
        payload=None if row.payload is None else payload_of(msgspec.json.decode(row.payload)),
        resources=resources_of(msgspec.json.decode(row.resources)),
        warnings=msgspec.json.decode(row.warnings, type=tuple[str, ...]),
        is_manual=bool(row.is_manual),
        timeout_seconds=row.timeout_seconds,
        review_hours=row.review_hours,
        min_reputation=row.min_reputation,
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
