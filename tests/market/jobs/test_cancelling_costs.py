"""The quoted cost of cancelling is the real one, for any job, to the millionth."""

import pytest
from support.market.books import available, refusal
from support.market.jobs import running, wanted
from support.market.market import Market

from market.base.errors import Code
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Template
from market.jobs.copies import Copying
from market.jobs.specs import Spec
from market.money.money import MICRO, Currency
from proxyctl.protocol.jobspec import Payload, Port, Ready, Resources

CREDIT = Currency.CREDIT
HOUR = 3_600
PROBE = Template(ports=(Port("web", 8080),), ready=Ready(8080))


async def cancelled(market: Market, buyer: str, job_id: str, currency: Currency) -> int:
    """Cancel a job as its buyer, and return the amount paid; the quote was right."""
    quote = await market.jobs.cancelling_costs(buyer, job_id)
    before = await available(market, buyer, currency)
    await market.jobs.cancel(buyer, job_id)
    returned = await available(market, buyer, currency) - before
    assert (quote.currency, quote.returns) == (currency, returned)
    assert await refusal(market.jobs.cancelling_costs(buyer, job_id)) is Code.JOB_OVER
    return quote.pays


async def test_a_waiting_job_costs_nothing(market: Market) -> None:
    buyer = await market.person(credit="10")
    job_id = await market.jobs.create(buyer, wanted())
    assert await cancelled(market, buyer, job_id, CREDIT) == 0


@pytest.mark.parametrize("ran", [0, 1, HOUR, 2 * HOUR, 300 * HOUR])
async def test_a_running_job_costs_the_share_that_has_run(market: Market, ran: int) -> None:
    buyer = await market.person(credit="10")
    job_id, _ = await running(market, buyer, await market.person())
    market.clock.now += ran
    share = 10 * MICRO * min(ran, 2 * HOUR) // (2 * HOUR)
    assert await cancelled(market, buyer, job_id, CREDIT) == share


async def test_all_copies_are_counted(market: Market) -> None:
    buyer = await market.person(credit="30")
    new = wanted(job_type="script", spec=Spec(Payload(script="print(1)"), Resources()))
    first, *_ = await market.jobs.create_copies(buyer, new, Copying(3, "bytes"))
    quote = await market.jobs.cancelling_costs(buyer, first)
    assert (quote.stopped, quote.pays, quote.returns) == (3, 0, 30 * MICRO)


@pytest.mark.parametrize("currency", [Currency.USD, CREDIT])
async def test_a_replica_costs_the_time_that_it_could_be_used(
    market: Market, currency: Currency
) -> None:
    buyer = await market.person("3", "300")
    new = NewDeploy("a service", "Docker", "A100", 1, 2, 1, currency, "web:1", template=PROBE)
    deploy = await market.deploys.create(buyer, new)
    [job_id] = (await market.deploys.find(buyer, deploy.id)).job_ids
    owner = await market.person()
    made = await market.devices.create(owner, name="a", device_type="server", min_price_usd=None)
    device = await market.devices.authenticate(made.token)
    await market.jobs.accept(device, job_id)
    await market.attempt_reports.started(device, job_id, None)
    await market.attempt_reports.ready(device, job_id, None)
    market.clock.now += HOUR // 2
    await market.jobs.fail(device, job_id, "too hot")  # drawn money is paid, and not again
    price = (3 if currency is Currency.USD else 300) * MICRO
    quote = await market.jobs.cancelling_costs(buyer, job_id)
    assert (quote.pays, quote.returns) == (0, price - price // 4)
    assert await cancelled(market, buyer, job_id, currency) == 0


async def test_a_replica_that_is_served_now_has_a_cost_until_now(market: Market) -> None:
    buyer = await market.person("3")
    new = NewDeploy("a service", "Docker", "A100", 1, 2, 1, Currency.USD, "web:1", template=PROBE)
    deploy = await market.deploys.create(buyer, new)
    [job_id] = (await market.deploys.find(buyer, deploy.id)).job_ids
    made = await market.devices.create(
        await market.person(), name="a", device_type="server", min_price_usd=None
    )
    device = await market.devices.authenticate(made.token)
    await market.jobs.accept(device, job_id)
    await market.attempt_reports.started(device, job_id, None)
    await market.attempt_reports.ready(device, job_id, None)
    market.clock.now += HOUR
    assert await cancelled(market, buyer, job_id, Currency.USD) == 3 * MICRO // 2


async def test_only_its_buyer_gets_the_cost(market: Market) -> None:
    job_id = await market.jobs.create(await market.person(credit="10"), wanted())
    stranger = await market.person()
    assert await refusal(market.jobs.cancelling_costs(stranger, job_id)) is Code.JOB_NOT_FOUND
