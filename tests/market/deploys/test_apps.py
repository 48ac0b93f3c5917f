"""Apps: the credentials of a job or a deploy, their owner, and their end; on both engines."""

from typing import Any

import pytest
from support.market.jobs import device_of
from support.market.market import Market
from support.market.work import posted

from market.base.errors import Code, MarketError
from market.deploys.apps import Opened
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Change, Template, completed
from market.money.money import Currency
from proxyctl.protocol.jobspec import Port, Ready
from storage.devices.devices import DeviceRow

WEB = {"script": "serve()", "ports": [{"name": "web", "port": 8888}]}
NOWHERE = "01998f00-0000-7000-8000-00000000000a"


def refusal(refused: pytest.ExceptionInfo[MarketError]) -> Code:
    return refused.value.code


async def started(market: Market, job_id: str) -> DeviceRow:
    """Have a device run a job."""
    device = await device_of(market, await market.person())
    await market.jobs.accept(device, job_id)
    await market.attempt_reports.started(device, job_id, None)
    return device


async def deployed(market: Market, buyer: str, **changes: Any) -> str:
    template = Template(ports=(Port("web", 8888), Port("ssh", 22, "tcp")), ready=Ready(8888))
    new: dict[str, Any] = {
        "job_name": "a service",
        "job_type": "Jupyter",
        "gpu_model": "A100",
        "gpu_count": 1,
        "duration_hrs": 1,
        "replicas": 2,
        "currency": Currency.USD,
        "image": "web:1",
        "template": template,
        **changes,
    }
    return (await market.deploys.create(buyer, NewDeploy(**new))).id


async def test_a_job_is_opened_by_one_key_that_its_buyer_is_shown_again(market: Market) -> None:
    buyer = await market.person(credit=10)
    job_id = await posted(market, buyer, payload=WEB)
    assert await market.apps.find(job_id) is None, "nobody has asked for a key yet"
    opened = await market.apps.of_job(buyer, job_id)
    assert opened == await market.apps.of_job(buyer, job_id)
    assert opened.key is not None
    assert len(opened.key) == 43
    assert opened == Opened(job_id, (Port("web", 8888),), opened.key, is_ready=False)
    app = await market.apps.find(job_id)
    assert app is not None
    assert app.opens(opened.key)
    assert not app.opens(opened.key[:-1])
    assert not app.opens("\udc80")
    assert app.targets == ()
    device = await started(market, job_id)
    app = await market.apps.find(job_id)
    assert app is not None
    (target,) = app.targets
    assert (target.job_id, target.attempt, target.device_id) == (job_id, 1, device.id)
    assert (await market.apps.of_job(buyer, job_id)).is_ready


async def test_a_job_with_a_readiness_check_is_not_ready_before_it_says_so(market: Market) -> None:
    buyer = await market.person(credit=10)
    payload = {**WEB, "ready": {"port": 8888}}
    job_id = await posted(market, buyer, payload=payload)
    await market.apps.of_job(buyer, job_id)
    device = await started(market, job_id)
    app = await market.apps.find(job_id)
    assert app is not None
    assert app.targets == ()
    await market.attempt_reports.ready(device, job_id, None)
    app = await market.apps.find(job_id)
    assert app is not None
    assert len(app.targets) == 1


async def test_the_database_without_the_key_opens_nothing(market: Market) -> None:
    buyer = await market.person(credit=10)
    job_id = await posted(market, buyer, payload=WEB)
    key = (await market.apps.of_job(buyer, job_id)).key
    assert key is not None

    async def stored(tx: Any) -> list[str]:
        return list(await tx.all(lambda *row: str(row), "SELECT * FROM app_keys"))

    (row,) = await market.store.read(stored)
    assert key not in row


async def test_a_new_key_takes_the_place_of_the_one_before(market: Market) -> None:
    buyer = await market.person(credit=10)
    job_id = await posted(market, buyer, payload=WEB)
    changed: list[str] = []
    market.apps.watch(changed.append)
    before = await market.apps.of_job(buyer, job_id)
    after = await market.apps.new_job_key(buyer, job_id)
    assert before.key != after.key
    assert changed == [job_id]
    app = await market.apps.find(job_id)
    assert app is not None
    assert before.key is not None
    assert after.key is not None
    assert not app.opens(before.key)
    assert app.opens(after.key)
    assert await market.apps.key_hashes([job_id, NOWHERE]) == {job_id: app.key_hash}


async def test_only_its_buyer_gets_the_key_of_a_job(market: Market) -> None:
    buyer, other = await market.person(credit=10), await market.person()
    job_id = await posted(market, buyer, payload=WEB)
    for user, job in ((other, job_id), (buyer, NOWHERE)):
        for ask in (market.apps.of_job, market.apps.new_job_key):
            with pytest.raises(MarketError) as refused:
                await ask(user, job)
            assert refusal(refused) is Code.JOB_NOT_FOUND


async def test_a_job_without_ports_for_browsers_is_no_app(market: Market) -> None:
    buyer = await market.person(credit=10, usd=100)
    ssh = {"script": "x", "ports": [{"name": "ssh", "port": 22, "protocol": "tcp"}]}
    for payload in ({"script": "x"}, ssh):
        job_id = await posted(market, buyer, payload=payload)
        with pytest.raises(MarketError) as refused:
            await market.apps.of_job(buyer, job_id)
        assert refusal(refused) is Code.NO_APP
    for changes in ({"template": Template()}, {"template": Template(), "image": ""}):
        deploy_id = await deployed(market, buyer, **changes)
        with pytest.raises(MarketError) as refused:
            await market.apps.of_deploy(buyer, deploy_id)
        assert refusal(refused) is Code.NO_APP


async def test_a_key_dies_with_its_job(market: Market) -> None:
    buyer = await market.person(credit=10)
    over, open_one = [await posted(market, buyer, payload=WEB) for _ in range(2)]
    for job_id in (over, open_one):
        await market.apps.of_job(buyer, job_id)
    await market.jobs.cancel(buyer, over)
    assert await market.apps.find(over) is None
    assert await market.apps.key_hashes([over]) == {}
    with pytest.raises(MarketError) as refused:
        await market.apps.of_job(buyer, over)
    assert refusal(refused) is Code.JOB_OVER
    assert await market.apps.sweep() == 1
    assert await market.apps.sweep() == 0
    assert await market.apps.find(open_one) is not None


async def test_a_deploy_leads_to_the_replicas_that_are_ready(market: Market) -> None:
    buyer, other = await market.person(usd=100), await market.person()
    deploy_id = await deployed(market, buyer)
    (whole,) = await market.apps.of_deploy(buyer, deploy_id)
    assert (whole.id, whole.ports, whole.is_ready) == (deploy_id, (Port("web", 8888),), False)
    first, second = (await market.deploys.find(buyer, deploy_id)).job_ids
    device = await started(market, first)
    await started(market, second)
    await market.attempt_reports.ready(device, first, None)
    whole, replica = await market.apps.of_deploy(buyer, deploy_id)
    assert (whole.is_ready, replica.id, replica.number) == (True, first, 1)
    assert whole.key != replica.key
    app, own = await market.apps.find(deploy_id), await market.apps.find(first)
    assert app is not None
    assert own is not None
    assert app.stays
    assert [each.job_id for each in app.targets] == [first]
    assert app.targets[0].ports == (Port("web", 8888),)
    assert own.targets[0].device_id == app.targets[0].device_id
    assert replica.key is not None
    assert own.opens(replica.key)
    assert not app.opens(replica.key)
    new = await market.apps.new_deploy_key(buyer, deploy_id)
    assert new.key != whole.key
    assert (await market.apps.of_deploy(buyer, deploy_id))[1].key == replica.key
    for ask in (market.apps.of_deploy, market.apps.new_deploy_key):
        with pytest.raises(MarketError) as refused:
            await ask(other, deploy_id)  # type: ignore[operator]
        assert refusal(refused) is Code.DEPLOY_NOT_FOUND


@pytest.mark.both_engines
async def test_a_key_dies_with_its_deploy(market: Market) -> None:
    buyer = await market.person(usd=100)
    deploy_id = await deployed(market, buyer)
    await market.apps.of_deploy(buyer, deploy_id)
    await market.rollouts.revise(buyer, deploy_id, Change(image="web:2"))
    assert await market.apps.find(deploy_id) is not None, "another revision has the same key"
    await market.deploys.cancel(buyer, deploy_id)
    assert await market.apps.find(deploy_id) is None
    with pytest.raises(MarketError) as refused:
        await market.apps.of_deploy(buyer, deploy_id)
    assert refusal(refused) is Code.DEPLOY_OVER
    assert await market.apps.sweep() == 1


def test_the_port_of_a_default_image_is_declared_for_it() -> None:
    notebook = completed(Template(env={"A": "1"}), "Jupyter", "notebook:1")
    assert (notebook.image, notebook.ports[0].port) == ("notebook:1", 8888)
    assert notebook.ready == Ready(8888)
    assert notebook.env.keys() == {"A", "NOTEBOOK_ARGS"}
    for said in (
        Template(image="mine:1"),
        Template(command="mine"),
        Template(ports=(Port("a", 1),)),
    ):
        kept = completed(said, "Jupyter", "notebook:1")
        assert (kept.ports, kept.env, kept.ready) == (said.ports, {}, None)
    assert completed(Template(), "Docker", "").image == ""


@pytest.mark.both_engines
async def test_a_key_of_another_signing_key_is_not_shown(market: Market) -> None:
    buyer = await market.person(credit=10)
    job_id = await posted(market, buyer, payload=WEB)
    await market.apps.of_job(buyer, job_id)

    async def spoil(tx: Any) -> None:
        await tx.run("UPDATE app_keys SET sealed_key = 'of another key'")

    await market.store.write(spoil)
    assert (await market.apps.of_job(buyer, job_id)).key is None
    assert (await market.apps.new_job_key(buyer, job_id)).key is not None


@pytest.mark.both_engines
async def test_the_devices_with_listening_jobs_are_known(market: Market) -> None:
    buyer = await market.person(credit=10)
    talks = {"script": 'print(\'{"ports":[{"name":"web"}]}\')', "env": {"ports": "[{"}}
    job_id = await posted(market, buyer, payload=WEB)
    listening = await started(market, job_id)
    silent = await started(market, await posted(market, buyer, payload=talks))
    idle = await device_of(market, await market.person())
    asked = [listening.id, silent.id, idle.id, NOWHERE]
    assert await market.devices.listening_among(asked) == [listening.id]
    assert await market.devices.listening_among([]) == []
    await market.jobs.complete(listening, job_id, "done", attempt=1)
    assert await market.devices.listening_among(asked) == []
