"""The OpenAPI 3.1 document, made from the same declarations as the routes.

The tests hold every answer of the API against this document.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from api.http import prefer, request_id
from api.http.errors import STATUS_OF_KIND, ErrorBody, Transport
from api.routing.codec import Directed, File, Money, Size
from api.routing.routes import Auth, Csv, Nothing, Route, Streamed
from api.routing.sse import CONTENT_TYPE as EVENTS
from api.serving.forms import MULTIPART
from market.base.errors import Code
from market.events.catalogue import CATALOGUE, EventData
from market.events.idempotency import KEY_MAX_CHARACTERS

REFERENCE = "#/components/schemas/{name}"
REQUEST_ID_NAME = "RequestId"
PREFER_NAME = "Prefer"
APPLIED_NAME = "PreferenceApplied"
JSON = "application/json"
BYTES = "application/octet-stream"
STAFF_PREFIX = "/staff/api/v1"

SECURITY_SCHEMES = {
    "session": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The `token` that logging in or registering returns.",
    },
    "key": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "pxd_...",
        "description": "An API key; what each operation needs of its scopes stands there.",
    },
    "worker": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Worker-Token",
        "description": "The `token` that creating a worker token returns.",
    },
}
SECURITY_SCHEMES_OF_STAFF = {
    "staff": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The `token` that logging in returns, or a staff key (`pxs_...`).",
    },
}
SECURITY_OF_AUTH: dict[Auth, list[dict[str, list[str]]]] = {
    Auth.NONE: [],
    Auth.JWT: [{"session": []}],
    Auth.OPTIONAL_JWT: [{}, {"session": []}],
    Auth.OPTIONAL_EITHER: [{}, {"session": []}, {"worker": []}],
    Auth.WORKER: [{"worker": []}],
    Auth.STAFF: [{"staff": []}],
}
REFUSALS_OF_KEYS = (
    Code.SCOPE_MISSING,
    Code.KEY_ADDRESS,
    Code.ACCOUNT_SUSPENDED,
    Code.TERMS_NOT_ACCEPTED,
)
REFUSALS_OF_AUTH: dict[Auth, tuple[Code, ...]] = {
    Auth.NONE: (),
    Auth.JWT: (Code.UNAUTHORIZED, *REFUSALS_OF_KEYS),
    Auth.OPTIONAL_JWT: (Code.UNAUTHORIZED, *REFUSALS_OF_KEYS),
    Auth.OPTIONAL_EITHER: (Code.UNAUTHORIZED, *REFUSALS_OF_KEYS, Code.WORKER_UNAUTHORIZED),
    Auth.WORKER: (Code.WORKER_UNAUTHORIZED,),
    Auth.STAFF: (
        Code.UNAUTHORIZED,
        Code.NOT_PERMITTED,
        Code.FACTOR_EXPIRED,
        *REFUSALS_OF_KEYS,
    ),
}

REPLAYED = {
    "description": "Present when this is the stored answer to an earlier request with that key.",
    "schema": {"type": "string", "enum": ["true"]},
}

REQUEST_ID = {
    "name": request_id.HEADER,
    "in": "header",
    "required": False,
    "description": "Names this request in the answer and in the server's log: 1 to 64 letters, "
    "digits and `.`, `_`, `~`, `-`. Without it, or with another text, the server makes a name up.",
    "schema": {"type": "string"},
}
PREFER = {
    "name": prefer.HEADER,
    "in": "header",
    "required": False,
    "description": "With `handling=strict` (RFC 7240), a field or a parameter that this path does "
    "not know is refused with `unknown_field`, instead of ignored.",
    "schema": {"type": "string"},
}
APPLIED = {
    "description": "Present when the request prefers a handling: the one that was applied.",
    "schema": {"type": "string", "enum": ["handling=lenient", "handling=strict"]},
}
ANSWERED_ID = {
    "description": "The name of this request: the one that it came with, or a new one.",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{request_id.PATTERN}$"},
}

# Parts of a path that are a name, an e-mail address or an identifier.
NAMES = frozenset(("user", "member"))
_OF_NAMES = {"type": "string"}
_OF_IDENTIFIERS = {"type": "string", "format": "uuid"}
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"\{(\w+)\}")
# The name of a schema has the module of its type where two types share a name. Programs that were
# generated from the document know these names, so they stay as they were in flat folders.
_DOMAIN = re.compile(r"\bapi\.\w+\.(\w+)\.(?=[A-Z])")
_FORMER_MODULES = {"sessions": "bandwidth"}


class Outline(Struct, frozen=True):
    """The parts of a document that do not follow from the routes."""

    title: str
    description: str
    security_schemes: dict[str, Any]
    catalogue: Mapping[str, type[EventData]]


USERS = Outline(
    "proxyd",
    "A compute marketplace, and a proxy that sells bandwidth by the byte.",
    SECURITY_SCHEMES,
    CATALOGUE,
)
STAFF = Outline(
    "proxyd staff",
    "The tools of the service's staff: find, read and act.",
    SECURITY_SCHEMES_OF_STAFF,
    {},
)


def document(
    routes: Iterable[Route], *, version: str, base_url: str, outline: Outline = USERS
) -> dict[str, Any]:
    """Return the whole document.

    Args:
        routes: the routes that the server serves.
        version: the program's.
        base_url: how the outside world reaches the API, "" for wherever the document came from.
        outline: the parts that do not follow from the routes.
    """
    table = tuple(routes)
    types = _types(table, outline.catalogue)
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=_schema_of, ref_template=REFERENCE
    )
    _refer_to_former_names((schemas, components))
    components = {_former_name(name): components[name] for name in components}
    refs = dict(zip(types, schemas, strict=True))
    for route in table:
        if route.form_max_bytes:
            _declare_form(components[_component(refs[route.body])])
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": outline.title,
            "version": version,
            "description": outline.description,
        },
        "servers": [{"url": base_url or "/"}],
        "paths": paths,
        "webhooks": {name: _webhook(name, kind, refs) for name, kind in outline.catalogue.items()},
        "components": {
            "schemas": components,
            "parameters": {REQUEST_ID_NAME: REQUEST_ID, PREFER_NAME: PREFER},
            "headers": {REQUEST_ID_NAME: ANSWERED_ID, APPLIED_NAME: APPLIED},
            "securitySchemes": outline.security_schemes,
        },
    }


def _former_name(name: str) -> str:
    """Return the name of a schema, or a reference to it, without the folder of a domain."""
    return _DOMAIN.sub(lambda found: f"api.{_FORMER_MODULES.get(found[1], found[1])}.", name)


def _refer_to_former_names(schema: object) -> None:
    """Change the references in a schema."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            schema["$ref"] = _former_name(schema["$ref"])
        for each in schema.values():
            _refer_to_former_names(each)
    elif isinstance(schema, list | tuple):
        for each in schema:
            _refer_to_former_names(each)


def _types(table: Sequence[Route], catalogue: Mapping[str, type[EventData]]) -> list[type[Struct]]:
    """Return the types of all requests and responses, each once."""
    kinds: dict[type[Struct], None] = {ErrorBody: None, **dict.fromkeys(catalogue.values())}
    for route in table:
        for kind in (route.body, route.query, route.response, *route.events.values()):
            if kind not in (Nothing, Csv, Streamed):
                kinds[kind] = None
    return list(kinds)


def _schema_of(kind: type[Any]) -> dict[str, Any]:
    if kind in (Money, Directed):
        return {"type": "number", "minimum": 0}
    if kind is Size:
        return {"type": "number", "exclusiveMinimum": 0}
    if kind is File:
        return {"type": "string", "format": "binary"}
    raise NotImplementedError(f"no schema for {kind}")


def _operation(
    route: Route, refs: dict[type[Struct], dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "tags": [_tag(route)],
        "security": _security(route),
        "responses": _responses(route, refs),
    }
    parameters = [*_path_parameters(route), *_query_parameters(route, refs, components)]
    if route.idempotent:
        parameters.append(_idempotency_key())
    everywhere = (REQUEST_ID_NAME, PREFER_NAME)
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in everywhere]
    operation["parameters"] = parameters
    if route.body is not Nothing:
        content: dict[str, Any] = {"schema": refs[route.body]}
        if route.example is not None:
            content["example"] = route.example
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {MULTIPART if route.form_max_bytes else JSON: content},
        }
    if route.raw_max_bytes:
        operation["requestBody"] = {"required": True, "content": {BYTES: {}}}
    return operation


def _security(route: Route) -> list[dict[str, list[str]]]:
    """Return the logins or keys that a request may show: {} is nothing."""
    ways = SECURITY_OF_AUTH[route.auth]
    return ways if route.scope is None else [*ways, {"key": [route.scope.value]}]


def _operation_id(route: Route) -> str:
    """Return the operationId: the method and the path, as words."""
    path = route.path.removeprefix("/api").removeprefix(STAFF_PREFIX)
    words = _WORD.findall(path) or ["root"]
    return "_".join([route.method.lower(), *words])


def _tag(route: Route) -> str:
    path = route.path.removeprefix(STAFF_PREFIX)
    parts = [part for part in path.split("/") if part and part != "api"]
    return "health" if not parts or parts[0].endswith("z") else parts[0].partition(".")[0]


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _OF_NAMES if name in NAMES else _OF_IDENTIFIERS,
        }
        for name in _NAME.findall(route.path)
    ]


def _query_parameters(
    route: Route, refs: dict[type[Struct], dict[str, Any]], components: dict[str, Any]
) -> list[dict[str, Any]]:
    if route.query is Nothing:
        return []
    properties: dict[str, Any] = components[_component(refs[route.query])]["properties"]
    return [
        {"name": key, "in": "query", "required": False, "schema": _without_null(schema)}
        for key, schema in properties.items()
    ]


def _component(reference: dict[str, Any]) -> str:
    return str(reference["$ref"].rpartition("/")[2])


def _declare_form(component: dict[str, Any]) -> None:
    """Declare the fields of a form as texts, which are left out or empty, never null."""
    properties = component["properties"]
    for name, schema in properties.items():
        properties[name] = _without_null(schema)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter, or a field of a form, is left out, never null."""
    reduced = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    for choice in schema.get("anyOf", ()):
        if choice != {"type": "null"}:
            reduced |= choice
    if isinstance(reduced.get("enum"), list):
        reduced["enum"] = [value for value in reduced["enum"] if value is not None]
    if schema.get("default") is not None:
        reduced["default"] = schema["default"]
    return reduced


def _idempotency_key() -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "The same key and body, within 24 hours, get the first answer again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": KEY_MAX_CHARACTERS},
    }


def _responses(route: Route, refs: dict[type[Struct], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    responses = _successes(route, refs)
    refusals: dict[int, list[tuple[str, str]]] = {}
    for code in _market_refusals(route):
        status = STATUS_OF_KIND[code.kind]
        refusals.setdefault(status, []).append((code.word, code.meaning))
    for reason in _transport_refusals(route):
        refusals.setdefault(reason.status, []).append((reason.word, reason.meaning))
    for status, found in sorted(refusals.items()):
        examples = {
            word: {"value": {"ok": False, "error": {"code": word, "message": meaning}}}
            for word, meaning in found
        }
        responses[str(status)] = {
            "description": " ".join(f"`{word}`: {meaning}" for word, meaning in found),
            "content": {JSON: {"schema": refs[ErrorBody], "examples": examples}},
        }
    names = {request_id.HEADER: REQUEST_ID_NAME, prefer.APPLIED_HEADER: APPLIED_NAME}
    for response in responses.values():
        headers = response.setdefault("headers", {})
        for header, name in names.items():
            headers[header] = {"$ref": f"#/components/headers/{name}"}
    return responses


def _successes(route: Route, refs: dict[type[Struct], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    if route.response is Csv:
        table = {"text/csv": {"schema": {"type": "string"}}}
        return {"200": {"description": "The table.", "content": table}}
    if route.response is Streamed:
        stream = {EVENTS: _events(route, refs)}
        return {"200": {"description": "What happens, until it ends.", "content": stream}}
    done: dict[str, Any] = {JSON: {"schema": refs[route.response]}}
    if route.has_file:
        elsewhere = {
            "description": "The file is elsewhere, at an address that works for a while.",
            "content": done,
            "headers": {"Location": {"schema": {"type": "string", "format": "uri"}}},
        }
        return {
            "200": {"description": "The file.", "content": {BYTES: {}}},
            "206": {"description": "One range of the file.", "content": {BYTES: {}}},
            "302": elsewhere,
        }
    if route.has_text:
        done["text/plain"] = {"schema": {"type": "string"}}
    if route.events:
        done[EVENTS] = _events(route, refs)
    responses: dict[str, dict[str, Any]] = {"200": {"description": "Done.", "content": done}}
    if route.idempotent:
        responses["200"]["headers"] = {"Idempotency-Replayed": REPLAYED}
    return responses


def _events(route: Route, refs: dict[type[Struct], dict[str, Any]]) -> dict[str, Any]:
    """Declare a stream of events: the schema is that of one (OpenAPI 3.2 calls it itemSchema)."""
    return {
        "schema": {
            "description": "One of the server-sent events.",
            "oneOf": [
                {
                    "type": "object",
                    "properties": {
                        "event": {"const": name},
                        "data": {
                            "type": "string",
                            "contentMediaType": JSON,
                            "contentSchema": refs[kind],
                        },
                    },
                    "required": ["event", "data"],
                }
                for name, kind in route.events.items()
            ],
        }
    }


def _webhook(
    name: str, kind: type[EventData], refs: dict[type[Struct], dict[str, Any]]
) -> dict[str, Any]:
    """Declare the event that endpoints of webhooks receive, and readers of the feed."""
    identifier = {"type": "string", "format": "uuid"}
    event = {
        "type": "object",
        "properties": {
            "id": identifier,
            "type": {"const": name},
            "subject_id": {"type": ["string", "null"]},
            "data": refs[kind],
            "created_at": {"type": "string", "format": "date-time"},
        },
        "required": ["id", "type", "subject_id", "data", "created_at"],
    }
    operation = {
        "summary": (kind.__doc__ or "").partition("\n")[0],
        "operationId": f"event_{name.replace('.', '_')}",
        "tags": ["events"],
        "requestBody": {"required": True, "content": {JSON: {"schema": event}}},
        "responses": {"2XX": {"description": "The event was taken."}},
    }
    return {"post": operation}


def _market_refusals(route: Route) -> list[Code]:
    codes = list(route.errors)
    if route.body is not Nothing or route.query is not Nothing or route.idempotent:
        codes.insert(0, Code.INVALID_FIELD)
    if route.idempotent:
        codes.append(Code.IDEMPOTENCY_KEY_REUSED)
    codes.append(Code.UNKNOWN_FIELD)
    codes += REFUSALS_OF_AUTH[route.auth]
    return list(dict.fromkeys(codes))


def _transport_refusals(route: Route) -> list[Transport]:
    reasons = [
        Transport.BAD_REQUEST,
        Transport.MISDIRECTED,
        Transport.INTERNAL_ERROR,
        Transport.STORE_UNAVAILABLE,
        Transport.UNKNOWN_CODING,
    ]
    if route.method != "GET":
        reasons.append(Transport.OUTCOME_UNKNOWN)
    if route.body is not Nothing or route.raw_max_bytes:
        reasons += [
            Transport.REQUEST_TIMEOUT,
            Transport.BODY_TOO_LARGE,
            Transport.UNSUPPORTED_MEDIA_TYPE,
        ]
    if route.has_file:
        reasons += [Transport.RANGE_NOT_SATISFIABLE, Transport.FILES_UNAVAILABLE]
    reasons.append(Transport.TOO_MANY_REQUESTS)
    if not route.while_draining:
        reasons.append(Transport.DRAINING)
    return [*reasons, *route.unavailable]
