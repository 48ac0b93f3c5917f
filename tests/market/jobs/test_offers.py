"""A device accepts by hand the jobs alone whose needs it has reported to meet."""

from typing import Any

import pytest
from support.market.books import refusal, stored_job
from support.market.jobs import device_of
from support.market.market import Market
from support.market.work import SMALL, ask, offer, posted

from market.base.errors import Code
from market.base.states import JobStatus
from market.devices.devices import Report
from market.jobs.hindrances import Hindrance
from market.jobs.matching import Needs
from market.jobs.offers import IN_WORDS, missing, reported
from proxyctl.protocol.jobspec import Resources
from storage.devices.devices import DeviceRow

ABLE: Report = {"cpu_cores": 8, "ram_gb": 16.0, "gpu_name": "NVIDIA A100 80GB"}


async def device(market: Market, report: Report | None) -> DeviceRow:
    """Register a device that has reported this."""
    owner = await market.person()
    made = await device_of(market, owner)
    if report is None:
        return made
    market.devices.heartbeat(made, report)
    [heard] = await market.devices.page(owner, before="", limit=1)
    return heard


@pytest.mark.parametrize(
    ("resources", "report", "is_able"),
    [
        ({}, None, True),
        ({"cores": 1_000}, None, False),
        ({"cores": 1_000}, ABLE, False),
        ({"cores": 8}, ABLE, True),
        ({"ram_gb": 17}, ABLE, False),
        ({"gpus": 1, "gpu_model": "A100", "vram_gb": 80}, ABLE, True),
        ({"gpus": 1, "gpu_model": "RTX 4090"}, ABLE, False),
        ({"gpus": 1}, None, False),
        ({"disk_gb": 1}, ABLE, False),  # no heartbeat says it: a request for work does
        ({"arch": "aarch64"}, ABLE, False),
    ],
)
async def test_a_job_with_needs_is_for_devices_that_have_reported_to_meet_them(
    market: Market, resources: dict[str, Any], report: Report | None, is_able: bool
) -> None:
    job_id = await posted(market, await market.person(credit="10"), resources=resources)
    accepting = market.jobs.accept(await device(market, report), job_id)
    if is_able:
        assert (await accepting).status == JobStatus.RUNNING
        return
    assert await refusal(accepting) is Code.DEVICE_UNSUITABLE
    job = await stored_job(market, job_id)
    assert (job.status, job.attempts) == (JobStatus.WAITING, 0)


async def test_a_request_for_work_says_more_than_a_heartbeat(market: Market) -> None:
    buyer = await market.person(credit="10")
    jobs = [await posted(market, buyer, resources={"disk_gb": size}) for size in (50, 51)]
    asking = await device(market, None)
    await market.dispatch.next(asking, ask(offer(SMALL)))
    said = market.dispatch.devices.offer_of(asking)
    assert (await market.jobs.accept(asking, jobs[0], "", said)).status == JobStatus.RUNNING
    assert await refusal(market.jobs.accept(asking, jobs[1], "", said)) is Code.DEVICE_UNSUITABLE


async def test_silence_is_no_obstacle_where_a_person_has_read_the_job(market: Market) -> None:
    """Nor is it about the GPUs of a replica, but a smaller figure is."""
    needs = Needs(Resources(cores=4, ram_gb=8, disk_gb=5, gpus=1, gpu_model="H100"), "script")
    silent = reported(await device(market, None))
    weak = reported(await device(market, {"cpu_cores": 2}))
    other = reported(await device(market, ABLE))
    assert missing(needs, silent, has_payload=False, is_replica=False) is None
    assert missing(needs, weak, has_payload=False, is_replica=False) == IN_WORDS[Hindrance.CORES]
    assert missing(needs, other, has_payload=False, is_replica=False) == IN_WORDS[Hindrance.GPU]
    gpus = needs._replace(resources=Resources(gpus=1, gpu_model="H100"))
    assert missing(gpus, silent, has_payload=True, is_replica=False) == IN_WORDS[Hindrance.GPU]
    assert missing(gpus, silent, has_payload=True, is_replica=True) is None
    assert missing(gpus, other, has_payload=True, is_replica=True) == IN_WORDS[Hindrance.GPU]
