"""What devices say of their attempts: leases, reports, escrow; on both engines."""

import pytest
from support.books import refusal
from support.jobs import device_of, running
from support.market import Market

from market.attempts import require_current
from market.errors import Code, MarketError


async def test_only_the_current_attempt_of_the_device_counts(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    read = market.store.read
    assert (await read(require_current, device.id, job_id, 1)).id == job_id
    assert (await read(require_current, device.id, job_id, None)).attempts == 1
    assert await refusal(read(require_current, device.id, job_id, 2)) is Code.ATTEMPT_NOT_CURRENT
    stranger = await device_of(market, worker)
    assert await refusal(read(require_current, stranger.id, job_id, 1)) is Code.JOB_NOT_FOUND
    nothing = market.identifiers.new()
    assert await refusal(read(require_current, device.id, nothing, 1)) is Code.JOB_NOT_FOUND
    await market.jobs.cancel(buyer, job_id)
    with pytest.raises(MarketError, match="buyer has cancelled") as caught:
        await read(require_current, device.id, job_id, 1)
    assert caught.value.code is Code.ATTEMPT_NOT_CURRENT
