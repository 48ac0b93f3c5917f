"""Declarations of the OpenAPI document; each answer that a test gets is checked against them."""

import re
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from api.routing.routes import Route
from api.server import HttpServer

DOCUMENT = "https://proxyd.test/openapi.json"


class Declared:
    """The operations of a document, and the schemas of their answers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = {"components": document["components"]}
        self._paths = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operations)
            for path, operations in sorted(
                document["paths"].items(), key=lambda item: item[0].count("{")
            )
        ]
        self._validators: dict[str, Draft202012Validator] = {}

    def check(self, method: str, path: str, status: int, body: Any) -> None:
        """Check an answer against its declaration. An undeclared answer fails."""
        operation = self._operation(method, path)
        if operation is None:
            assert status in (200, 400, 404, 405, 429, 503), (method, path, status)
            return
        declared = operation["responses"].get(str(status))
        assert declared is not None, f"{method} {path} answered {status}, which is not declared"
        if body is not None:
            schema = declared["content"]["application/json"]["schema"]
            errors = list(self._validator(schema["$ref"]).iter_errors(body))
            assert not errors, (method, path, status, errors[0].message)
            code = body["error"]["code"] if status >= 400 else None
            codes = declared["content"]["application/json"].get("examples", {})
            assert code is None or code in codes, f"{method} {path} declares no {code} ({status})"

    def check_event(self, path: str, name: str, data: Any, method: str = "POST") -> None:
        """Check one event of a stream against its declaration."""
        operation = self._operation(method, path)
        assert operation is not None, path
        declared = operation["responses"]["200"]["content"]["text/event-stream"]["schema"]
        schema = {
            each["properties"]["event"]["const"]: each["properties"]["data"]["contentSchema"]
            for each in declared["oneOf"]
        }[name]
        errors = list(self._validator(schema["$ref"]).iter_errors(data))
        assert not errors, (path, name, errors[0].message)

    def _operation(self, method: str, path: str) -> dict[str, Any] | None:
        for pattern, operations in self._paths:
            if pattern.fullmatch(path):
                return operations.get(method.lower())
        return None

    def _validator(self, reference: str) -> Draft202012Validator:
        if reference not in self._validators:
            schema = {"$ref": reference, **self._components}
            self._validators[reference] = Draft202012Validator(schema)
        return self._validators[reference]


class _Table:
    """The routes of a server; equal to others with the same declarations."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._declares = [_declaring(route) for route in server.routes]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Table) and self._declares == other._declares

    def __hash__(self) -> int:
        return len(self._declares)


_declaring = attrgetter(
    *(each.name for each in msgspec.structs.fields(Route) if each.name != "handler")
)


def declared(server: HttpServer) -> Declared:
    """Return a server's declarations: thousands of tests start one, and most declare the same."""
    return _declared(_Table(server))


@cache
def _declared(table: _Table) -> Declared:
    return Declared(table.server.openapi)
