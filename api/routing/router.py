"""Finds the route for a method and a path."""

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote

from api.http.errors import Transport, TransportError
from api.routing.routes import Route

PATHS_MAX = 256  # kept patterns: several times the paths with names, for all routers of a process


def routed(raw_path: str) -> str:
    """Return a path as it is routed: decoded, except for encoded slashes.

    An encoded delimiter is data and separates nothing (RFC 3986, section 2.2).
    """
    if "%" not in raw_path:
        return raw_path
    return "/".join(unquote(part).replace("/", "%2F") for part in raw_path.split("/"))


def wrong_method(method: str, allowed: Iterable[str]) -> TransportError:
    """Return the refusal of a method at a path that takes others."""
    names = sorted(allowed)
    others = " or ".join(name for name in names if name != "HEAD")
    return TransportError(
        Transport.METHOD_NOT_ALLOWED,
        {"Allow": ", ".join(names)},
        f"This path takes {others}, not {method or 'no method'}.",
    )


@lru_cache(PATHS_MAX)
def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path with names."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))


class Router:
    """A table of routes: fixed paths are looked up, paths with names are matched.

    Args:
        listed_at: the path that lists the others, for clients of an unknown one.
    """

    def __init__(self, routes: Iterable[Route], listed_at: str) -> None:
        self._listed_at = listed_at
        self._fixed: dict[str, dict[str, Route]] = {}
        patterns: dict[str, dict[str, Route]] = {}
        for route in routes:
            table = patterns if "{" in route.path else self._fixed
            methods = table.setdefault(route.path, {})
            methods[route.method] = route
            if route.method == "GET":
                methods["HEAD"] = route
        self._patterns = [(_pattern(path), methods) for path, methods in patterns.items()]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route, and the values of the names in its path.

        Raises:
            TransportError: `no_such_path`, or `method_not_allowed` with the header `Allow`.
        """
        methods, names = self._methods(path)
        route = methods.get(method)
        if route is None:
            raise wrong_method(method, methods)
        return route, names

    def _methods(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
        for pattern, methods in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return methods, match.groupdict()
        message = f"There is nothing at this path; {self._listed_at} lists the paths."
        raise TransportError(Transport.NO_SUCH_PATH, message=message)
