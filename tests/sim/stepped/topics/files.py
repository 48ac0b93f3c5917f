"""Units on files: announced, received, shared, needed, deleted; the bytes are in no folder."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from market.files import artifacts
from proxyctl.protocol.jobspec import Input
from tests.sim.stepped.belongings import ARTIFACTS, file_of
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.jobs import JOBS
from tests.sim.stepped.world import SPEC, script


async def _announces(content: bytes, name: str, side: Side) -> Any:
    row = file_of(side.market, side.buyer, name, content)
    return await side.market.store.write(artifacts._announce, row, ARTIFACTS)


async def _announces_for_job(side: Side) -> Any:
    job_id, device = side.world.jobs["running"], side.world.devices["running"]
    row = file_of(side.market, "", "model", b"output", job_id=job_id)
    return await side.market.store.write(artifacts._announce_for_job, row, device.id, ARTIFACTS)


async def _finishes(name: str, side: Side) -> Any:
    row = side.world.people_have.files[name]
    key = f"received {name} {side.label}"
    return await side.market.store.write(
        artifacts._finish, row.id, key, True, None, side.market.clock.now
    )


async def _deletes(name: str, side: Side) -> Any:
    row, now = side.world.people_have.files[name], side.market.clock.now
    await side.market.store.write(artifacts._delete_owned, side.buyer, row.id, now)


async def _expires(name: str, side: Side) -> Any:
    row, now = side.world.people_have.files[name], side.market.clock.now
    await side.market.store.write(artifacts._expire, row.id, now)


async def _posts_with_input(side: Side) -> Any:
    file = side.world.people_have.files["whole"]
    made = script()
    payload = replace(SPEC.payload, inputs=(Input("data", artifact_id=file.id),))
    new = structs.replace(made, spec=structs.replace(SPEC, payload=payload))
    await side.market.jobs.create(side.buyer, new)


FILES: Mapping[str, Action] = {
    "announces a file": partial(_announces, b"new", "new"),
    "receives a file": partial(_finishes, "announced"),
    "receives the same bytes": partial(_finishes, "same again"),
    "announces a file that is there": partial(_announces, b"whole", "again"),
    "announces a file of a job": _announces_for_job,
    "deletes a whole file": partial(_deletes, "whole"),
    "deletes an announced file": partial(_deletes, "announced"),
    "drops an old file": partial(_expires, "announced"),
    "posts a job with a file": _posts_with_input,
    "completes a job": JOBS["completes a job"],
}
