"""The OpenAPI document is valid, complete, and true."""

import re
from typing import Any

import jsonschema
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from support.base.aside import run_aside
from support.daemons.service import Service, running_in

from api import openapi
from api.routing.codec import Decoder
from api.routing.routes import Reply, Route
from market.events.catalogue import CATALOGUE

SPECIFIED = [
    ("post", "/auth/login"),
    ("get", "/auth/me"),
    ("post", "/api/worker/token/create"),
    ("post", "/api/worker/heartbeat"),
    ("post", "/api/worker/offline"),
    ("get", "/api/worker/devices"),
    ("get", "/api/marketplace/jobs"),
    ("post", "/api/jobs"),
    ("post", "/api/jobs/{job_id}/accept"),
    ("post", "/api/assistant/chat"),
    ("post", "/api/assistant/analyze-image"),
    ("post", "/api/bandwidth/create"),
    ("get", "/api/bandwidth/terms"),
    ("get", "/api/bandwidth/sessions"),
    ("get", "/api/bandwidth/sessions/{session_id}"),
    ("post", "/api/bandwidth/end"),
    ("get", "/api/referral/info"),
    ("post", "/api/referral/apply"),
    ("post", "/api/deploy/job"),
]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document as a daemon serves it; no test changes it."""

    async def served() -> dict[str, Any]:
        async with (
            running_in(tmp_path_factory.mktemp("daemon")) as service,
            service.http.get(service.url + "/openapi.json") as response,
        ):
            assert response.status == 200
            assert response.headers["Content-Type"] == "application/json"
            return dict(msgspec.json.decode(await response.read()))

    return run_aside(served())


async def test_the_document_is_openapi(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()


async def test_every_endpoint_of_the_specification_is_in_it(document: dict[str, Any]) -> None:
    missing = [
        (method, path)
        for method, path in SPECIFIED
        if method not in document["paths"].get(path, {})
    ]
    assert missing == []


async def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))


async def test_every_refusal_has_an_example_of_its_schema(document: dict[str, Any]) -> None:
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status in ("200", "206", "302"):
                    assert "examples" not in response["content"].get("application/json", {})
                    continue
                examples = response["content"]["application/json"]["examples"]
                assert examples
                for word, example in examples.items():
                    assert example["value"]["error"]["code"] == word


async def test_every_example_of_a_request_is_one_that_works(document: dict[str, Any]) -> None:
    examples = [
        operation["requestBody"]["content"]["application/json"]["example"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if "example"
        in operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    ]
    assert len(examples) >= 7


async def test_an_example_that_no_route_reads_would_be_found(service: Service) -> None:
    with_example = [route for route in service.daemon.http.routes if route.example is not None]
    assert with_example
    for route in with_example:
        Decoder(route.body).decode(msgspec.json.encode(route.example))


async def test_credentials_are_declared_where_they_are_asked_for(
    document: dict[str, Any],
) -> None:
    assert document["paths"]["/auth/me"]["get"]["security"] == [
        {"session": []},
        {"key": ["account:read"]},
    ]
    assert document["paths"]["/auth/logout"]["post"]["security"] == [{"session": []}]
    assert document["paths"]["/api/worker/offline"]["post"]["security"] == [{"worker": []}]
    assert document["paths"]["/api/marketplace/jobs"]["get"]["security"] == []


async def test_every_operation_takes_and_answers_a_name_of_the_request(
    service: Service, document: dict[str, Any]
) -> None:
    header = document["components"]["headers"]["RequestId"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert {"$ref": "#/components/parameters/RequestId"} in operation["parameters"]
            for response in operation["responses"].values():
                assert response["headers"]["X-Request-Id"] == {
                    "$ref": "#/components/headers/RequestId"
                }
    assert document["components"]["parameters"]["RequestId"]["name"] == "X-Request-Id"
    for method, path, offered in (
        ("GET", "/healthz", "mine.1_2~3-"),
        ("GET", "/auth/me", "no name"),
        ("POST", "/auth/login", ""),
    ):
        answer = await service.call(method, path, headers={"X-Request-Id": offered})
        answered = answer.headers["X-Request-Id"]
        assert re.fullmatch(header["schema"]["pattern"], answered)
        assert (answered == offered) is (offered == "mine.1_2~3-")


def test_the_base_url_is_the_server() -> None:
    made = openapi.document([], version="1", base_url="https://api.example.com")
    assert made["servers"] == [{"url": "https://api.example.com"}]


async def test_a_form_is_declared_with_its_file(document: dict[str, Any]) -> None:
    operation = document["paths"]["/api/assistant/analyze-image"]["post"]
    assert operation["security"] == [{}, {"session": []}, {"key": ["assistant:use"]}]
    (kind, content), *others = operation["requestBody"]["content"].items()
    assert (kind, others) == ("multipart/form-data", [])
    form = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    assert form["properties"]["file"] == {"type": "string", "format": "binary"}
    assert form["required"] == ["file"]
    assert "null" not in str(form)


async def test_a_stream_is_declared_event_by_event(document: dict[str, Any]) -> None:
    done = document["paths"]["/api/assistant/chat"]["post"]["responses"]["200"]["content"]
    assert set(done) == {"application/json", "text/event-stream"}
    events = {
        each["properties"]["event"]["const"]: each["properties"]["data"]["contentSchema"]
        for each in done["text/event-stream"]["schema"]["oneOf"]
    }
    assert list(events) == ["delta", "done", "bye"]
    assert events["done"] == done["application/json"]["schema"]


async def test_limits_that_are_enforced_are_stated(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def stated(schema: str, field: str) -> dict[str, Any]:
        found = dict(schemas[schema]["properties"][field])
        for choice in found.pop("anyOf", ()):
            found |= choice if choice != {"type": "null"} else {}
        return found

    for schema, field, limits in (
        ("RegisterRequest", "password", {"minLength": 8, "maxLength": 128}),
        ("ResetRequest", "password", {"minLength": 8, "maxLength": 128}),
        ("ChangePasswordRequest", "new_password", {"minLength": 8, "maxLength": 128}),
        ("CreateRequest", "duration_hrs", {"minimum": 1, "maximum": 8760}),
        ("CreateRequest", "price_credit", {"minimum": 0, "maximum": 1_000_000}),
        ("DeployRequest", "replicas", {"minimum": 1, "maximum": 100}),
        ("DeployRequest", "gpu_count", {"minimum": 1, "maximum": 64}),
        ("ApplyRequest", "referral_code", {"minLength": 8, "maxLength": 8}),
        ("BuyRequest", "gb", {"exclusiveMinimum": 0, "maximum": 10_000}),
        ("OwnJob", "created_at", {"format": "date-time"}),
        ("SessionItem", "expires_at", {"format": "date-time"}),
        ("SessionItem", "status", {"enum": ["active", "ended", "exhausted", "expired"]}),
        ("DeviceItem", "device_type", {"enum": ["desktop", "mini_pc", "phone", "server"]}),
    ):
        found = stated(schema, field)
        assert {name: found.get(name) for name in limits} == limits, (schema, field)


async def test_a_replayed_answer_is_documented(service: Service, document: dict[str, Any]) -> None:
    for route in service.daemon.http.routes:
        answer = document["paths"][route.path][route.method.lower()]["responses"]["200"]
        assert ("Idempotency-Replayed" in answer.get("headers", {})) is route.idempotent


def test_a_body_of_bytes_is_declared_as_such() -> None:
    async def handler(_: object) -> Reply:
        return Reply()

    route = Route("PUT", "/files/{name}", "A file", handler, Reply, raw_max_bytes=1)
    made = openapi.document([route], version="1", base_url="")["paths"]["/files/{name}"]["put"]
    assert made["requestBody"] == {"required": True, "content": {"application/octet-stream": {}}}
    assert {"408", "413", "415"} <= made["responses"].keys()


async def test_every_event_is_declared_as_a_webhook_of_its_own_shape(
    service: Service, document: dict[str, Any]
) -> None:
    assert list(document["webhooks"]) == list(CATALOGUE)
    person = await service.person("10")
    await service.end(person, await service.buy(person))
    answer = await service.call("GET", "/api/events", token=person.token)
    assert len(answer.body["events"]) >= 2
    for event in answer.body["events"]:
        operation = document["webhooks"][event["type"]]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        whole = {"components": document["components"], **schema}
        jsonschema.validate(event, whole)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**event, "data": {}}, whole)


async def test_the_names_of_schemas_are_those_of_before_the_folders(
    document: dict[str, Any],
) -> None:
    """Two types of one name have a module in their names; programs generated from them know it."""
    names = [each for each in document["components"]["schemas"] if "." in each]
    assert "api.bandwidth.ListReply" in names
    assert [each for each in names if each.count(".") != 2] == []
