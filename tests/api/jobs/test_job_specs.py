"""Jobs with a payload and needs: refused by the field, shown to their buyer and their worker."""

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases
from support.clients.story import credits_of, refused, worker_token
from support.daemons.service import Answer, Person, Service, running_in
from support.market.market import JOB_SECRETS

from api.jobs.jobs import CreateRequest, _understood
from api.routing.codec import Decoder
from market.base.errors import MarketError
from market.jobs.specs import Specs
from proxyctl.protocol.jobspec import Payload

JOBS = "/api/jobs"
UNKNOWN = "0190c5a0-0000-7000-8000-000000000000"
STRICT = {"Prefer": "handling=strict"}
SECRET = "hf_verysecret"
PAYLOAD = {
    "command": ["python3", "train.py"],
    "env": {"EPOCHS": "3"},
    "secrets": {"HF_TOKEN": SECRET},
    "ports": [{"name": "web", "port": 8888}],
}
WANTED = {"title": "train", "job_type": "training", "price_credit": 10, "duration_hrs": 2}


async def create(
    service: Service, person: Person, headers: dict[str, str] | None = None, **fields: Any
) -> Answer:
    body = {**WANTED, **fields}
    return await service.call("POST", JOBS, body, token=person.token, headers=headers)


async def shown(service: Service, path: str, **as_whom: Any) -> dict[str, Any]:
    answer = await service.call("GET", path, **as_whom)
    assert answer.status == 200, answer.body
    return dict(answer.body["job"])


async def test_a_reply_says_how_the_requirements_were_understood(service: Service) -> None:
    buyer = await service.person(credit="100")
    answer = await create(
        service, buyer, payload=PAYLOAD, requirements="2x A100 80GB, good weather"
    )
    assert answer.status == 200, answer.body
    assert answer.body["resources"]["gpus"] == 2
    assert answer.body["resources"]["gpu_model"] == "A100"
    assert answer.body["resources"]["vram_gb"] == 80
    assert answer.body["is_manual"] is False
    warning, _ = answer.body["warnings"]  # the other one: no device asks for work here
    assert '"good weather"' in warning
    answer = await create(service, buyer, payload=PAYLOAD, requirements="exactly 7 cores")
    assert answer.body["is_manual"] is True


async def test_resources_win_over_the_text(service: Service) -> None:
    buyer = await service.person(credit="100")
    answer = await create(
        service, buyer, payload=PAYLOAD, requirements="8 cores", resources={"cores": 2.5}
    )
    assert answer.body["resources"]["cores"] == 2.5
    assert not any("8 cores" in each for each in answer.body["warnings"])


async def test_a_plain_job_is_answered_as_the_specification_says_with_a_warning(
    service: Service,
) -> None:
    buyer = await service.person(credit="100")
    answer = await create(service, buyer, requirements="8 cores", payload=None, trust={})
    assert answer.body.keys() == {"ok", "job_id", "warnings", "is_manual"}  # it is warned of
    own = await shown(service, f"{JOBS}/{answer.body['job_id']}", token=buyer.token)
    assert not own.keys() & {"payload", "resources", "warnings", "is_manual", "review_hours"}


async def test_buyer_worker_and_device_see_only_their_parts_of_a_job(
    service: Service,
) -> None:
    buyer, owner = await service.person(credit="100"), await service.person()
    answer = await create(
        service, buyer, payload=PAYLOAD, requirements="8 cores", trust={"review_hours": 3}
    )
    job_id = answer.body["job_id"]
    own = await shown(service, f"{JOBS}/{job_id}", token=buyer.token)
    assert own["payload"]["command"] == PAYLOAD["command"]
    assert own["payload"]["secrets"] == {"HF_TOKEN": ""}
    assert own["payload"].keys() == {each.name for each in dataclasses.fields(Payload)}
    assert own["payload"]["ports"] == [{"name": "web", "port": 8888, "protocol": "http"}]
    assert own["resources"] == answer.body["resources"]
    assert (own["resources"]["cores"], own["review_hours"]) == (8, 3)
    device = {"X-Worker-Token": await worker_token(service, owner)}
    public = f"/api/marketplace/jobs/{job_id}"
    seen = await shown(service, public, headers=device)
    assert (seen["resources"]["cores"], seen["warnings"], seen["is_manual"]) == (8, [], False)
    assert seen["review_hours"] == 3
    assert "payload" not in seen
    assert "resources" not in await shown(service, public)
    unable = await service.call("POST", f"{JOBS}/{job_id}/accept", headers=device)
    assert (unable.status, unable.body["error"]["code"]) == (400, "device_unsuitable")
    report = {"cpu_cores": 8, "ram_gb": 16}
    await service.call("POST", "/api/worker/heartbeat", report, headers=device)
    accepted = await service.call("POST", f"{JOBS}/{job_id}/accept", headers=device)
    assert accepted.status == 200, accepted.body
    work = await shown(service, f"/api/worker/jobs/{job_id}", headers=device)
    assert work["payload"]["secrets"] == {"HF_TOKEN": SECRET}
    assert (work["resources"]["cores"], work["timeout_s"]) == (8, 7_200)
    for path, as_whom in (
        (f"{JOBS}/{job_id}", {"token": buyer.token}),
        (JOBS, {"token": buyer.token}),
        (public, {"headers": device}),
        ("/api/marketplace/jobs", {}),
        ("/api/worker/jobs", {"headers": device}),
    ):
        told = await service.call("GET", path, **as_whom)
        assert SECRET not in str(told.body)


@cases(
    ("fields", "code", "field"),
    [
        ({"payload": {"command": []}}, "payload_invalid", "payload.command"),
        ({"payload": {"command": ["x"], "script": "y"}}, "payload_invalid", "payload.script"),
        ({"payload": {"image": "A B"}}, "payload_invalid", "payload.image"),
        (
            {"payload": {"command": ["x"], "timeout_s": 7_201}},
            "payload_invalid",
            "payload.timeout_s",
        ),
        (
            {"payload": {"command": ["x"], "env": {"A B": "c"}}},
            "payload_invalid",
            "payload.env",
        ),
        (
            {"payload": {"command": ["x"], "outputs": [{"name": "a", "path": "/etc"}]}},
            "payload_invalid",
            "payload.outputs[0].path",
        ),
        (
            {"payload": {"command": ["x"], "inputs": [{"name": "a", "artifact_id": UNKNOWN}]}},
            "invalid_field",
            "payload.inputs[0].artifact_id",
        ),
        ({"resources": {"gpus": 65}}, "payload_invalid", "resources.gpus"),
        ({"resources": {"arch": "mips"}}, "payload_invalid", "resources.arch"),
        ({"trust": {"review_hours": 1}}, "payload_invalid", "trust.review_hours"),
        ({"trust": {"review_hours": -1}}, "invalid_field", "trust.review_hours"),
        ({"payload": "ls"}, "invalid_field", "payload"),
        ({"payload": {"command": "ls"}}, "invalid_field", "payload.command"),
        ({"payload": {"command": ["ls", 1]}}, "invalid_field", "payload.command[1]"),
        ({"payload": {"env": {"A": 1}}}, "invalid_field", "payload.env[...]"),
        ({"payload": {"network": "all"}}, "invalid_field", "payload.network"),
        ({"payload": {"ports": [{"name": "x"}]}}, "invalid_field", "payload.ports[0].port"),
        ({"payload": {"timeout_s": 1.5}}, "invalid_field", "payload.timeout_s"),
        ({"resources": {"cores": "4"}}, "invalid_field", "resources.cores"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_held(
    service: Service, fields: dict[str, Any], code: str, field: str
) -> None:
    buyer = await service.person(credit="100")
    answer = await create(service, buyer, **fields)
    assert (answer.status, answer.code, answer.field) == (400, code, field), answer.body
    assert answer.body["error"]["message"]
    assert await credits_of(service, buyer) == 100


async def test_unknown_fields_are_named_also_inside(service: Service) -> None:
    buyer = await service.person(credit="100")
    for fields, name in (
        ({"payload": {**PAYLOAD, "comand": []}}, "payload.comand"),
        ({"payload": {"ports": [{"nam": "x"}]}}, "payload.ports[0].nam"),
        ({"resources": {"gpu": 1}}, "resources.gpu"),
        ({"trust": {"copys": 2}}, "trust.copys"),
    ):
        answer = await create(service, buyer, headers=STRICT, **fields)
        assert (answer.status, answer.code, answer.field) == (400, "unknown_field", name)
    answer = await create(service, buyer, headers=STRICT, payload=PAYLOAD)
    assert answer.status == 200, answer.body


async def test_a_repeated_request_is_answered_alike_and_done_once(service: Service) -> None:
    buyer = await service.person(credit="100")
    key = {"Idempotency-Key": "one"}
    fields = {"payload": PAYLOAD, "requirements": "8 cores, nice"}
    first = await create(service, buyer, headers=key, **fields)
    again = await create(service, buyer, headers=key, **fields)
    assert (first.status, again.body) == (200, first.body)
    assert len(again.body["warnings"]) == 2
    assert await credits_of(service, buyer) == 90
    other = await create(service, buyer, headers=key, payload={"command": ["other"]})
    assert other.code == "idempotency_key_reused"


async def test_the_largest_payload_fits_in_a_body(service: Service) -> None:
    buyer = await service.person(credit="100")
    most = {
        "script": "\n" * 65_536,  # two bytes each, in JSON
        "env": {"A": "\x01" * 32_767},  # six
        "secrets": {"B": "\x01" * 32_767},
    }
    answer = await create(service, buyer, description="ü" * 20_000, payload=most)
    assert answer.status == 200, answer.body


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_TEXTS = (
    st.sampled_from(["", "a", "a/b", "../a", "debian:12", "\ud800", "é" * 200, "A=B"]) | st.text()
)
_FILE = st.fixed_dictionaries({"name": _TEXTS}, optional={"path": _TEXTS, "url": _TEXTS})
_PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "image": _TEXTS | _VALUES,
        "command": st.lists(_TEXTS, max_size=3) | _VALUES,
        "script": _TEXTS,
        "env": st.dictionaries(_TEXTS, _TEXTS, max_size=3) | _VALUES,
        "secrets": st.dictionaries(_TEXTS, _TEXTS, max_size=3),
        "inputs": st.lists(_FILE | _VALUES, max_size=2),
        "outputs": st.lists(_FILE, max_size=2),
        "checkpoint": st.fixed_dictionaries({"path": _TEXTS}) | _VALUES,
        "ports": st.lists(st.fixed_dictionaries({"name": _TEXTS, "port": st.integers()})),
        "ready": st.fixed_dictionaries({"port": st.integers()}, optional={"http": _TEXTS}),
        "timeout_s": st.integers(),
        "restart": st.sampled_from(["never", "sometimes"]),
    },
)


@given(_PAYLOADS | _VALUES, st.text())
def test_any_specification_is_taken_whole_or_refused(payload: Any, text: str) -> None:
    body = json.dumps({**WANTED, "payload": payload, "requirements": text}).encode()
    specs, spec = Specs(JOB_SECRETS), None
    with suppress(MarketError):
        spec = _understood(Decoder(CreateRequest).decode(body))
    if spec is not None:
        row = specs.row("id", spec)
        assert row.payload is not None
        assert specs.payload_of(row.payload, row.secrets) == spec.payload
        assert "\0" not in "".join(map(str, row))  # PostgreSQL cannot store it


async def test_the_document_shows_it(service: Service) -> None:
    document = (await service.call("GET", "/openapi.json")).body
    schemas = document["components"]["schemas"]
    assert {"payload", "resources", "trust"} <= schemas["CreateRequest"]["properties"].keys()
    payload = schemas["Payload"]["properties"]
    assert payload["network"]["enum"] == ["egress", "none"]
    assert {"image", "command", "secrets", "inputs", "outputs", "checkpoint"} <= payload.keys()


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Service]:
    """A service behind a proxy on this machine."""
    async with running_in(tmp_path, api={"trusted_proxies": ["127.0.0.1"]}) as made:
        yield made


async def test_copies_are_put_up_together_and_shown_with_their_results(
    behind: Service,
) -> None:
    service, buyer = behind, await behind.person(credit="100")
    payload = {"script": "print(2 / 3)"}
    trust = {"copies": 3, "compare": "numbers:1e-6"}
    key = {"Idempotency-Key": "three times"}
    answer = await create(service, buyer, key, payload=payload, trust=trust)
    assert answer.status == 200, answer.body
    jobs = answer.body["copies"]
    assert (len(set(jobs)), jobs[0]) == (3, answer.body["job_id"])
    again = await create(service, buyer, key, payload=payload, trust=trust)
    assert again.body == answer.body
    assert await credits_of(service, buyer) == 70
    own = await shown(service, f"{JOBS}/{jobs[2]}", token=buyer.token)
    assert own["copies"] == {
        "compare": "numbers:1e-6",
        "state": "open",
        "jobs": [{"job_id": job_id, "status": "waiting"} for job_id in jobs],
    }
    owners = [await service.person() for _ in jobs]
    devices = [await worker_token(service, owner) for owner in owners]
    open_job = await shown(
        service, f"/api/marketplace/jobs/{jobs[0]}", headers={"X-Worker-Token": devices[0]}
    )
    assert (open_job["copies"], open_job["compare"]) == (3, "numbers:1e-6")
    networks = ("8.8.8.8", "9.9.9.9", "9.9.9.10")
    for job_id, device, network in zip(jobs, devices, networks, strict=True):
        accepted = await service.call(
            "POST",
            f"{JOBS}/{job_id}/accept",
            headers={"X-Worker-Token": device, "X-Forwarded-For": network},
        )
        if network == "9.9.9.10":  # the same network
            refused(accepted, "copy_taken_here", None)
            break
        assert accepted.status == 200, accepted.body
    for job_id, device, result in zip(jobs, devices, ("0.6666667", "0.66666666"), strict=False):
        path = f"/api/worker/jobs/{job_id}/complete"
        headers = {"X-Worker-Token": device}
        done = await service.call("POST", path, {"result": result}, headers=headers)
        assert done.status == 200, done.body
    own = await shown(service, f"{JOBS}/{jobs[0]}", token=buyer.token)
    assert own["copies"]["state"] == "agreed"
    assert own["copies"]["canonical"] == jobs[0]
    assert own["copies"]["jobs"] == [
        {"job_id": jobs[0], "status": "completed", "agrees": True},
        {"job_id": jobs[1], "status": "completed", "agrees": True},
        {"job_id": jobs[2], "status": "cancelled"},
    ]
    assert await credits_of(service, buyer) == 80


async def test_copies_that_make_no_sense_are_refused_by_their_field(service: Service) -> None:
    buyer = await service.person(credit="100")
    payload = {"script": "print(1)"}
    for trust, field in (
        ({"copies": 2, "compare": "nearly"}, "trust.compare"),
        ({"compare": "json"}, "trust.compare"),
    ):
        answer = await create(service, buyer, payload=payload, trust=trust)
        refused(answer, "payload_invalid", field)
    answer = await create(service, buyer, trust={"copies": 2})
    refused(answer, "payload_invalid", "trust.copies")
    for copies in (0, 6, "2", 2.5):
        answer = await create(service, buyer, payload=payload, trust={"copies": copies})
        refused(answer, "invalid_field", "trust.copies")
    once = await create(service, buyer, payload=payload, trust={"copies": 1})
    assert "copies" not in once.body
    assert await credits_of(service, buyer) == 90
