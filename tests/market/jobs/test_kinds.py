"""The kinds of jobs: each job has one, and a plain job is completed by few files."""

import ast
import sys
from collections.abc import Awaitable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec import structs
from support.base.cases import cases
from support.market.books import stored_job
from support.market.jobs import device_of, on, specified, wanted
from support.market.market import Market

import market as market_package
from market.base.states import JobStatus
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Template
from market.jobs.copies import Copying
from market.jobs.outcomes import KINDS
from market.jobs.specs import Spec
from market.money.money import Currency
from proxyctl.protocol.jobspec import Payload, Port, Ready, Resources
from storage.engines.store import Transaction
from storage.jobs import kinds as queries
from storage.jobs.kinds import JobKind
from storage.trust import samples as sample_queries
from storage.trust.samples import SampleRow

ROOT = Path(market_package.__file__).parent
FILES_MAX = 14
FILES_WITH_SAMPLES_MAX = 15  # the work also counts towards the next check of its device
PARAMETERS_MAX = 6
SPEC = Spec(Payload(script="print(1)"), Resources())
PROBE = Template(ports=(Port("web", 8080),), ready=Ready(8080))
CREDIT = Currency.CREDIT


async def files_of(market: Market, work: Awaitable[Any]) -> set[str]:
    """Return the files of the market in which a function runs during some work."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            files.add(str(path.relative_to(ROOT)))

    async def watch(_: Transaction) -> None:
        sys.setprofile(note)

    async def stop(_: Transaction) -> None:
        sys.setprofile(None)

    await market.store.write(watch)  # SQLite writes in a thread of its own
    sys.setprofile(note)
    try:
        await work
    finally:
        sys.setprofile(None)
        await market.store.write(stop)
    return files


async def deploy_of(market: Market, buyer: str, template: Template | None) -> str:
    """Return the job of the only replica of a new deploy."""
    new = NewDeploy("a service", "Docker", "A100", 1, 2, 1, CREDIT, "", template=template)
    if template is not None:
        new = structs.replace(new, image="web:1")
    deploy = await market.deploys.create(buyer, new)
    [job_id] = (await market.deploys.find(buyer, deploy.id)).job_ids
    return job_id


async def sample(market: Market, buyer: str, worker: str) -> str:
    """Return a job that is a sample."""
    job_id = await specified(market, buyer)
    device = await device_of(market, worker)
    row = SampleRow(job_id, device.id, worker, "42", buyer, 1, 0, market.clock.now)
    await market.store.write(sample_queries.insert, row)
    return job_id


async def test_each_job_has_a_kind(market: Market) -> None:
    buyer, worker = await market.person(credit="1000"), await market.person()
    new = wanted(job_type="script", spec=SPEC)
    jobs = {
        JobKind.PLAIN: await market.jobs.create(buyer, wanted()),
        JobKind.SCRIPTED: await market.jobs.create(buyer, new),
        JobKind.COPY: (await market.jobs.create_copies(buyer, new, Copying(2, "bytes")))[1],
        JobKind.REPLICA: await deploy_of(market, buyer, PROBE),
        JobKind.PLAIN_REPLICA: await deploy_of(market, buyer, None),
        JobKind.SAMPLE: await sample(market, buyer, worker),
    }
    for kind, job_id in jobs.items():
        assert await market.store.read(queries.find, job_id) is kind
    assert await market.store.read(queries.find, "none") is None
    assert set(jobs) == set(JobKind) == set(KINDS)
    assert len(set(KINDS.values())) == len(KINDS)


@pytest.mark.parametrize("has_samples", [False, True])
async def test_a_plain_job_is_completed_by_few_files(market: Market, has_samples: bool) -> None:
    outcomes = market.jobs.outcomes
    outcomes._terms = structs.replace(outcomes._terms, has_samples=has_samples)
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await market.jobs.create(buyer, wanted())
    device = await on(market, job_id, worker)
    files = await files_of(market, market.jobs.complete(device, job_id, "the result"))
    assert (await stored_job(market, job_id)).status == JobStatus.COMPLETED
    assert {"jobs/outcomes.py", "jobs/kinds/plain.py", "money/ledger.py"} <= files
    most = FILES_WITH_SAMPLES_MAX if has_samples else FILES_MAX
    assert len(files) <= most, "\n".join(sorted(files))


@cases("path", sorted((ROOT / "jobs").rglob("*.py")))
def test_no_function_has_many_parameters(path: Path) -> None:
    many = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        names = [each.arg for each in arguments if each.arg not in ("self", "cls")]
        if len(names) > PARAMETERS_MAX:
            many[node.name] = names
    assert not many
