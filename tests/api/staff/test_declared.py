"""Each operation of the staff declares the refusals that its services promise.

The docstring of a service names its codes in the section `Raises`; the OpenAPI document has those
of its route. A refusal that only some request gets would else be found by a user.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from support.clients.staff import PREFIX, StaffApi, staffed

from api.openapi import _market_refusals
from api.routing.routes import StaffRoute
from api.staff.money import MoneyRoutes
from market.base.errors import Code

WORDS = {each.word for each in Code}
# Each operation may answer these.
GENERAL = {Code.INVALID_FIELD.word, Code.NOT_PERMITTED.word}
# Refusals of services that a route cannot cause: it asks for the appeals of all users.
NEVER = {f"{PREFIX}/appeals": {"user_not_found", "ambiguous"}}
# The user of a request exists: its row refers to them.
NEVER_APPROVED = {"user_not_found"}
_RAISES = re.compile(r"Raises:\n(.*?)(?:\n\s*\n|$)", re.DOTALL)


def promised(function: Callable[..., Any]) -> set[str]:
    """Return the codes that a docstring names in its section about errors.

    "as `name`" stands for those of another function.
    """
    [found] = _RAISES.findall(inspect.getdoc(function) or "") or [""]
    codes = set(re.findall(r"`([a-z_]+)`", found)) & WORDS
    for name in re.findall(r"\bas `([\w.]+)`", found):
        other = _named(function, name)
        codes |= promised(other) if inspect.isroutine(other) else set()
    return codes


def _named(function: Callable[..., Any], name: str) -> Any:
    """Return what a docstring names: by its full name, or in the module of the function."""
    module, _, last = name.rpartition(".")
    place = import_module(module) if module else inspect.getmodule(function)
    return getattr(place, last, None)


def called(handler: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the services of the market that a handler calls by name, also through its class."""
    owner = getattr(handler, "__self__", None)
    names = vars(inspect.getmodule(handler))
    tree = ast.parse(textwrap.dedent(inspect.getsource(handler)))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        found = _value(node, owner, names)
        module = getattr(found, "__module__", None) or ""
        if inspect.isroutine(found) and module.startswith("market.staff"):
            yield found
        is_own = inspect.ismethod(found) and found.__self__ is owner
        if is_own and found.__name__ != handler.__name__:
            yield from called(found)


def _value(node: ast.expr, owner: object, names: dict[str, Any]) -> Any:
    """Return the object that an expression of names names; None for another expression."""
    if isinstance(node, ast.Name):
        return owner if node.id == "self" else names.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, owner, names), node.attr, None)
    return None


def gaps(route: StaffRoute, services: Iterable[Callable[..., Any]]) -> set[str]:
    """Return the codes that services promise, and a route does not declare."""
    declared = {code.word for code in _market_refusals(route)}
    return set().union(*map(promised, services)) - declared - GENERAL


async def test_each_operation_declares_the_refusals_of_its_services(tmp_path: Path) -> None:
    async with staffed(tmp_path) as staff:
        routes = staff_routes(staff)
        assert len({each for route in routes for each in called(route.handler)}) > 50
        wrong = {
            f"{each.method} {each.path}": found
            for each in routes
            if (found := gaps(each, called(each.handler)) - NEVER.get(each.path, set()))
        }
        assert not wrong


async def test_an_approval_declares_the_refusals_of_all_acts(tmp_path: Path) -> None:
    async with staffed(tmp_path) as staff:
        [route] = [each for each in staff_routes(staff) if each.path.endswith("l}/approve")]
        owner = route.handler.__self__
        assert isinstance(owner, MoneyRoutes)
        posters = owner.posters
        assert len(posters) > 9
        wrong = {
            action: found
            for action, post in posters.items()
            if (found := gaps(route, [post]) - NEVER_APPROVED)
        }
        assert not wrong


def staff_routes(staff: StaffApi) -> list[StaffRoute]:
    return [each for each in staff.http.routes if isinstance(each, StaffRoute)]
