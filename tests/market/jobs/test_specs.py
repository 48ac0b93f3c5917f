"""Work and needs of jobs: checked, sealed, counted, and sent to the right readers."""

from typing import Any

import pytest
from support.base.cases import cases
from support.market.jobs import device_of, wanted
from support.market.market import Market

from market.accounts.bounds import Bounds
from market.base.bus import WAITING
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.jobs.postings import JOB_BYTES
from market.jobs.specs import (
    REVIEW_MAX_HOURS,
    UNREADABLE,
    NewSpec,
    Spec,
    Specs,
    size_of,
    understand,
)
from market.money.money import MICRO
from proxyctl.protocol.jobspec import Payload, Resources, payload_of
from storage.jobs import job_specs as queries
from storage.jobs.job_specs import SpecRow

SECRET = "hf_verysecret"
PAYLOAD: dict[str, Any] = {
    "command": ["python3", "train.py"],
    "env": {"EPOCHS": "3"},
    "secrets": {"HF_TOKEN": SECRET},
    "outputs": [{"name": "model", "path": "out/**"}],
}


def spec_of(text: str = "", hours: int = 2, job_type: str = "training", **said: Any) -> Spec:
    """Return the specification of a payload and other fields, as understood."""
    new = NewSpec(payload_of(said.pop("payload", PAYLOAD)), **said)
    return understand(new, job_type=job_type, duration_hrs=hours, text=text)


async def put_up(market: Market, buyer: str, spec: Spec | None, **changes: Any) -> str:
    return await market.jobs.create(buyer, wanted(spec=spec, **changes))


async def stored(market: Market, job_id: str) -> SpecRow | None:
    return await market.store.read(queries.find, job_id)


def test_requirements_are_read_unless_the_resources_are_given() -> None:
    spec = spec_of("RTX 4090, 16 GB RAM, nice weather")
    assert spec.resources == Resources(1, "RTX 4090", ram_gb=16.0)
    assert len(spec.warnings) == 1
    assert not spec.is_manual
    assert spec_of("RTX 3090 or RTX 4090").is_manual
    spec = spec_of("RTX 3090 or RTX 4090", resources=Resources(gpus=1))
    assert (spec.resources, spec.warnings, spec.is_manual) == (Resources(gpus=1), (), False)
    assert spec_of(resources=Resources(arch="arm64")).resources.arch == "aarch64"
    spec = spec_of(resources=Resources(gpu_model="Frobnicator"))
    assert "Frobnicator" in spec.warnings[0]


def test_the_time_of_the_work_is_within_the_time_that_was_estimated() -> None:
    assert spec_of(hours=2).timeout_seconds == 7_200
    assert spec_of(hours=2, payload={**PAYLOAD, "timeout_s": 60}).timeout_seconds == 60
    with pytest.raises(MarketError) as caught:
        spec_of(hours=2, payload={**PAYLOAD, "timeout_s": 7_201})
    assert (caught.value.code, caught.value.field) == (Code.PAYLOAD_INVALID, "payload.timeout_s")


@cases(
    ("said", "field"),
    [
        ({"payload": {"command": []}}, "payload.command"),
        ({"payload": {**PAYLOAD, "outputs": [{"name": "m", "path": "../m"}]}}, "outputs[0].path"),
        ({"resources": Resources(cores=-1.0)}, "resources.cores"),
        ({"review_hours": REVIEW_MAX_HOURS + 1}, "trust.review_hours"),
        ({"job_type": "docker"}, "payload.image"),
    ],
)
def test_a_job_that_cannot_be_carried_out_is_refused_by_its_field(
    said: dict[str, Any], field: str
) -> None:
    with pytest.raises(MarketError) as caught:
        spec_of(**said)
    assert caught.value.code is Code.PAYLOAD_INVALID
    assert (caught.value.field or "").endswith(field)
    assert (caught.value.field or "?") in str(caught.value)


def test_only_work_with_a_payload_is_looked_at() -> None:
    with pytest.raises(MarketError) as caught:
        understand(NewSpec(review_hours=1), job_type="script", duration_hrs=1, text="")
    assert caught.value.field == "trust.review_hours"


async def test_its_buyer_and_its_device_get_its_program(market: Market) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    spec = spec_of("8 cores", review_hours=5)
    job_id = await put_up(market, buyer, spec)
    shown = (await market.jobs.find(buyer, job_id)).spec
    assert shown is not None
    assert shown.payload is not None
    assert shown.payload.secrets == {"HF_TOKEN": ""}
    assert shown.payload.env == {"EPOCHS": "3"}
    assert (shown.resources.cores, shown.review_hours) == (8.0, 5)
    assert (await market.jobs.find_open(job_id)).spec == shown
    device = await device_of(market, owner)
    market.devices.heartbeat(device, {"cpu_cores": 8})
    [device] = await market.devices.page(owner, before="", limit=1)
    await market.jobs.accept(device, job_id)
    assert (await market.jobs.work(device, job_id)).spec == spec


async def test_a_plain_job_says_nothing_beyond_itself(market: Market) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    job_id = await put_up(market, buyer, None, requirements="RTX 4090")
    assert await stored(market, job_id) is None
    assert (await market.jobs.find(buyer, job_id)).spec is None
    device = await device_of(market, owner)
    await market.jobs.accept(device, job_id)
    assert (await market.jobs.work(device, job_id)).spec is None


async def test_requirements_can_be_set_without_a_program(market: Market) -> None:
    buyer = await market.person(credit="100")
    new = NewSpec(resources=Resources(gpus=1))
    spec = understand(new, job_type="script", duration_hrs=1, text="")
    job_id = await put_up(market, buyer, spec)
    row = await stored(market, job_id)
    assert row is not None
    assert (row.payload, row.secrets, row.timeout_seconds) == (None, None, None)
    assert (await market.jobs.find(buyer, job_id)).spec == spec


async def test_secrets_are_sealed_and_forgotten_when_the_job_is_over(market: Market) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    jobs = [await put_up(market, buyer, spec_of()) for _ in range(3)]
    for job_id in jobs:
        row = await stored(market, job_id)
        assert row is not None
        assert row.secrets is not None
        assert SECRET not in "".join(map(str, row))
    device = await device_of(market, owner)
    await market.jobs.accept(device, jobs[0])
    await market.jobs.complete(device, jobs[0], "done", attempt=1)
    await market.jobs.cancel(buyer, jobs[1])
    for job_id in jobs[:2]:
        row = await stored(market, job_id)
        assert row is not None
        assert row.secrets is None
        assert row.payload is not None
        assert "HF_TOKEN" in row.payload
    row = await stored(market, jobs[2])
    assert row is not None
    assert row.secrets is not None


async def test_a_job_whose_secrets_cannot_be_read_is_given_to_no_device(market: Market) -> None:
    buyer, owner = await market.person(credit="100"), await market.person()
    job_id = await put_up(market, buyer, spec_of())
    row = await stored(market, job_id)
    assert row is not None
    assert row.payload is not None
    other = Specs(Sealing(b"o" * 40, b"job secrets"))
    assert other.payload_of(row.payload, row.secrets) is None
    assert other.payload_of(row.payload, None) is None
    assert SECRET not in repr(payload_of(PAYLOAD))
    assert market.specs.payload_of(row.payload, row.secrets) == payload_of(PAYLOAD)
    device = await device_of(market, owner)
    await market.jobs.accept(device, job_id)
    market.jobs._specs = other
    with pytest.raises(MarketError) as caught:
        await market.jobs.work(device, job_id)
    assert caught.value.field == "payload.secrets"
    # Its buyer is notified, and has the money back.
    owned = await market.jobs.find(buyer, job_id)
    assert (owned.job.status, owned.job.failure_reason) == ("cancelled", UNREADABLE)
    assert owned.paid == 0


async def test_its_specification_counts_as_the_text_of_its_buyer(market: Market) -> None:
    buyer = await market.person(credit="100")
    script = Payload(script="#" * 10_000)
    spec = understand(NewSpec(script), job_type="script", duration_hrs=2, text="")
    row = market.specs.row("id", spec)
    assert size_of(row) > 10_000
    market.change_bounds(Bounds(job_bytes=JOB_BYTES + len("train") + size_of(row)))
    job_id = await put_up(market, buyer, spec)
    assert (await market.jobs.find(buyer, job_id)).job.text_bytes == size_of(row) + len("train")
    with pytest.raises(MarketError) as caught:
        await put_up(market, buyer, None, price=MICRO)
    assert caught.value.code is Code.TOO_MUCH_JOB_TEXT


async def test_a_device_that_waits_for_jobs_is_notified_of_those_with_a_payload(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, heard = await market.person(credit="100"), []
    market.context.bus.subscribe(WAITING, heard.extend)
    job_id = await put_up(market, buyer, spec_of())
    await put_up(market, buyer, None)
    assert heard == [job_id]
