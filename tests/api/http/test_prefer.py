"""With Prefer: handling=strict a misspelt field is refused and named; without it it is ignored."""

from typing import Any

import pytest
from support.base.cases import cases
from support.daemons.service import Answer, Service
from support.market.pictures import jpeg, natural

from api.http.prefer import Handling, handling

STRICT = {"Prefer": "handling=strict"}
BUY = "/api/bandwidth/create"


def refused(answer: Answer, field: str, like: str = "") -> None:
    assert (answer.status, answer.code, answer.field) == (400, "unknown_field", field)
    assert field in answer.body["error"]["message"]
    assert ("did you mean" in answer.body["error"]["message"]) is bool(like)
    assert like in answer.body["error"]["message"]
    assert answer.headers["Preference-Applied"] == "handling=strict"


@cases(
    ("lines", "found"),
    [
        ([], Handling.UNSPECIFIED),
        ([""], Handling.UNSPECIFIED),
        (["handling=strict"], Handling.STRICT),
        (["handling=lenient"], Handling.LENIENT),
        (["Handling = Strict"], Handling.STRICT),
        (['handling="strict"'], Handling.STRICT),
        (['handling="st\\rict"'], Handling.STRICT),
        (["respond-async, wait=10, handling=strict"], Handling.STRICT),
        (["respond-async", "wait=10", "handling=strict"], Handling.STRICT),
        (["handling=strict; foo=1; bar"], Handling.STRICT),
        (['foo="a, handling=lenient, b"; x="handling=lenient", handling=strict'], Handling.STRICT),
        (["handling=lenient, handling=strict"], Handling.LENIENT),
        (["handling=strict", "handling=lenient"], Handling.STRICT),
        (["handling"], Handling.UNSPECIFIED),
        (['handling=""'], Handling.UNSPECIFIED),
        (["handling=other"], Handling.UNSPECIFIED),
        (["handling=strict lenient"], Handling.UNSPECIFIED),
        (["xhandling=strict"], Handling.UNSPECIFIED),
        (["x;handling=strict"], Handling.UNSPECIFIED),
        (['"handling=strict"'], Handling.UNSPECIFIED),
        ([", ,,handling=strict,"], Handling.STRICT),
        (['handling="strict'], Handling.UNSPECIFIED),
        (["=strict", "@", ";", '"', "\\"], Handling.UNSPECIFIED),
        (['a="' * 2_000], Handling.UNSPECIFIED),
        ([",;= " * 2_000], Handling.UNSPECIFIED),
    ],
)
def test_a_preference_is_read_however_it_is_written(lines: list[str], found: Handling) -> None:
    assert handling(lines) is found


def test_a_quotation_that_is_never_closed_is_read_once() -> None:
    """To try again behind each quotation mark took nine seconds for 32 KB, and would take hours."""
    said = 'handling="' + '\\"' * 500_000
    assert handling([said]) is Handling.UNSPECIFIED
    assert handling([said], max_characters=len(said)) is Handling.UNSPECIFIED


async def test_a_field_that_is_there_twice_is_refused_and_costs_nothing(service: Service) -> None:
    buyer = await service.person(usd="10")
    twice = {"Content-Type": "application/json"}
    body = b'{"gb": 0.001, "gb": 0.002}'
    for headers in (STRICT | twice, twice):
        answer = await service.call("POST", BUY, token=buyer.token, raw=body, headers=headers)
        assert (answer.status, answer.code, answer.field) == (400, "invalid_field", "gb")
    assert await service.balance(buyer) == 10


def test_more_preferences_than_any_client_has_are_ignored() -> None:
    assert handling(["handling=strict", "x" * 1024]) is Handling.UNSPECIFIED


async def test_a_misspelt_field_of_a_purchase_is_refused_and_costs_nothing(
    service: Service,
) -> None:
    buyer = await service.person(usd="10")
    misspelt = {"gb": 1, "price_pergb": 2.0}
    refused(
        await service.call("POST", BUY, misspelt, token=buyer.token, headers=STRICT),
        "price_pergb",
        "price_per_gb",
    )
    assert await service.balance(buyer) == 10
    right = {"gb": 1, "price_per_gb": 2.0}
    answer = await service.call("POST", BUY, right, token=buyer.token, headers=STRICT)
    assert answer.status == 200
    assert answer.headers["Preference-Applied"] == "handling=strict"
    assert await service.balance(buyer) == 8


@pytest.mark.parametrize("headers", [{}, {"Prefer": "handling=lenient"}, {"Prefer": "wait=5"}])
async def test_without_strict_handling_unknown_preferences_are_ignored(
    service: Service, headers: dict[str, str]
) -> None:
    buyer = await service.person(usd="10")
    body = {"gb": 1, "price_pergb": 2.0}
    answer = await service.call("POST", BUY + "?x=1", body, token=buyer.token, headers=headers)
    assert answer.status == 200
    applied = "handling=lenient" if "lenient" in str(headers) else None
    assert answer.headers.get("Preference-Applied") == applied


async def test_a_refusal_for_another_reason_has_the_applied_preferences(
    service: Service,
) -> None:
    answer = await service.call("POST", BUY, {"gb": 1}, headers=STRICT)
    assert answer.status == 401
    assert answer.headers["Preference-Applied"] == "handling=strict"
    answer = await service.call("POST", "/auth/login", raw=b"{", headers=STRICT)
    assert (answer.status, answer.code) == (400, "invalid_field")


@pytest.mark.parametrize(
    ("body", "field", "like"),
    [
        ({"message": "hi", "histroy": []}, "histroy", "history"),
        ({"messge": "hi"}, "messge", "message"),
        ({"message": "hi", "zzzzzz": 1}, "zzzzzz", ""),
        (
            {"message": "hi", "history": [{"role": "user", "content": "x", "rol": 1}]},
            "history[0].rol",
            "history[0].role",
        ),
        ({"message": "hi", "x" * 500: 1}, "x" * 40 + "…", ""),
    ],
)
async def test_the_field_is_named_with_the_one_that_is_most_like_it(
    service: Service, body: dict[str, Any], field: str, like: str
) -> None:
    answer = await service.call("POST", "/api/assistant/chat", body, headers=STRICT)
    refused(answer, field, like)


@pytest.mark.parametrize(
    ("path", "field", "like"),
    [
        ("/api/marketplace/jobs?stauts=waiting", "stauts", "status"),
        ("/api/marketplace/jobs?limit=5&q=1", "q", ""),
        ("/healthz?x=1", "x", ""),
    ],
)
async def test_an_unknown_parameter_is_refused(
    service: Service, path: str, field: str, like: str
) -> None:
    refused(await service.call("GET", path, headers=STRICT), field, like)
    assert (await service.call("GET", path)).status == 200


async def test_a_parameter_that_is_no_unicode_is_refused(service: Service) -> None:
    async with service.http.get(
        service.url + "/api/marketplace/jobs?%ff%fe=1", headers=STRICT
    ) as answer:
        assert answer.status == 400


async def test_a_wrong_field_of_a_form_is_refused(service: Service) -> None:
    for field, status in (("descripton", 400), ("description", 200)):
        body = (
            f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\nnice\r\n--x\r\n'
            'Content-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
        ).encode()
        headers = {**STRICT, "Content-Type": "multipart/form-data; boundary=x"}
        raw = body + jpeg(natural(1, (64, 48))) + b"\r\n--x--\r\n"
        path = "/api/assistant/analyze-image"
        answer = await service.call("POST", path, raw=raw, headers=headers)
        assert answer.status == status
        if status == 400:
            refused(answer, field, "description")


async def test_a_stream_has_its_applied_preferences(service: Service) -> None:
    body = {"message": "hi", "stream": True}
    async with service.http.post(
        service.url + "/api/assistant/chat", json=body, headers=STRICT
    ) as answer:
        assert answer.headers["Preference-Applied"] == "handling=strict"
        assert b"event: done" in await answer.read()


async def test_every_operation_declares_it(service: Service) -> None:
    for operations in service.daemon.http.openapi["paths"].values():
        for operation in operations.values():
            assert {"$ref": "#/components/parameters/Prefer"} in operation["parameters"]
            assert "unknown_field" in operation["responses"]["400"]["description"]
            for response in operation["responses"].values():
                assert "Preference-Applied" in response["headers"]
