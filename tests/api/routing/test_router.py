"""Finding the route for a method and a path."""

import pytest
from support.base.cases import cases

from api.http.errors import Transport, TransportError
from api.routing.router import Router, routed
from api.routing.routes import Call, Reply, Route


async def nothing(_: Call[object, object]) -> Reply:
    return Reply()


def route(method: str, path: str) -> Route:
    """Return a route whose summary has its method and path."""
    return Route(method, path, f"{method} {path}", nothing, Reply)


ROUTER = Router(
    [
        route("GET", "/"),
        route("GET", "/healthz"),
        route("GET", "/api/jobs"),
        route("POST", "/api/jobs"),
        route("GET", "/api/jobs/mine"),
        route("GET", "/api/jobs/{id}"),
        route("DELETE", "/api/jobs/{id}"),
        route("POST", "/api/jobs/{id}/cancel"),
        route("GET", "/api/users/{user}/jobs/{job}"),
        route("GET", "/files/{name}.json"),
        route("POST", "/only/post"),
    ],
    "/docs",
)


def refused(method: str, path: str) -> TransportError:
    """Return the refusal of a request."""
    with pytest.raises(TransportError) as caught:
        ROUTER.find(method, path)
    return caught.value


@cases(
    ("method", "path", "names"),
    [
        ("GET", "/", {}),
        ("GET", "/healthz", {}),
        ("GET", "/api/jobs", {}),
        ("POST", "/api/jobs", {}),
        ("GET", "/api/jobs/{id}", {"id": "7"}),
        ("DELETE", "/api/jobs/{id}", {"id": "7"}),
        ("POST", "/api/jobs/{id}/cancel", {"id": "7"}),
        ("GET", "/api/users/{user}/jobs/{job}", {"user": "u", "job": "j"}),
    ],
)
def test_a_route_is_found_with_the_names_in_its_path(
    method: str, path: str, names: dict[str, str]
) -> None:
    found, values = ROUTER.find(method, path.format(**names))
    assert found.summary == f"{method} {path}"
    assert values == names


@cases("value", ["a.b", "a b", "{id}", "..", "%2F", "größe", "a:b", "mine2", "\n"])
def test_a_name_stands_for_anything_without_a_slash(value: str) -> None:
    found, values = ROUTER.find("GET", f"/api/jobs/{value}")
    assert found.summary == "GET /api/jobs/{id}"
    assert values == {"id": value}


def test_a_path_without_names_goes_before_a_pattern() -> None:
    found, values = ROUTER.find("GET", "/api/jobs/mine")
    assert found.summary == "GET /api/jobs/mine"
    assert values == {}


@cases("path", ["/", "/api/jobs", "/api/jobs/7", "/api/users/u/jobs/j"])
def test_head_is_answered_by_the_route_of_get(path: str) -> None:
    assert ROUTER.find("HEAD", path) == ROUTER.find("GET", path)


def test_a_route_of_its_own_for_head_is_not_overwritten() -> None:
    router = Router([route("GET", "/a"), route("HEAD", "/a")], "/docs")
    assert router.find("HEAD", "/a")[0].summary == "HEAD /a"


@cases(
    "path",
    [
        "",
        "/nosuch",
        "/healthz/",
        "/Healthz",
        "//",
        "//healthz",
        "/api",
        "/api/jobs/",
        "/api/jobs//cancel",
        "/api/jobs/7/",
        "/api/jobs/7/8",
        "/api/jobs/7/cancel/",
        "/api/jobs/7/cancel/8",
        "x/api/jobs/7",
        "/api/users//jobs/j",
        "/healthz\n",
    ],
)
@cases("method", ["GET", "POST", "NOSUCH"])
def test_another_path_is_not_found_with_any_method(path: str, method: str) -> None:
    error = refused(method, path)
    assert error.reason is Transport.NO_SUCH_PATH
    assert error.headers == {}


@cases(
    ("method", "path", "allow"),
    [
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", "/api/jobs", "GET, HEAD, POST"),
        ("POST", "/api/jobs/7", "DELETE, GET, HEAD"),
        ("GET", "/api/jobs/7/cancel", "POST"),
        ("HEAD", "/only/post", "POST"),
        ("GET", "/only/post", "POST"),
        ("OPTIONS", "/healthz", "GET, HEAD"),
        ("get", "/healthz", "GET, HEAD"),
        ("", "/healthz", "GET, HEAD"),
        ("TRACE", "/api/jobs/7", "DELETE, GET, HEAD"),
    ],
)
def test_another_method_gets_the_list_of_allowed_ones(method: str, path: str, allow: str) -> None:
    error = refused(method, path)
    assert error.reason is Transport.METHOD_NOT_ALLOWED
    assert error.headers == {"Allow": allow}


def test_a_dot_in_a_pattern_is_a_dot() -> None:
    assert ROUTER.find("GET", "/files/a.json")[1] == {"name": "a"}
    assert refused("GET", "/files/a-json").reason is Transport.NO_SUCH_PATH


@cases(
    ("raw", "path"),
    [
        ("/api/jobs/7", "/api/jobs/7"),
        ("/%61pi/jobs/%37", "/api/jobs/7"),
        ("/api%2Fjobs", "/api%2Fjobs"),
        ("/api/jobs/a%2fb", "/api/jobs/a%2Fb"),
        ("/api/jobs/gr%C3%B6%C3%9Fe", "/api/jobs/größe"),
        ("/%zz%", "/%zz%"),
    ],
)
def test_a_path_is_decoded_except_for_separators(raw: str, path: str) -> None:
    assert routed(raw) == path


def test_without_routes_nothing_is_found() -> None:
    with pytest.raises(TransportError, match="; /list lists the paths"):
        Router([], "/list").find("GET", "/")
