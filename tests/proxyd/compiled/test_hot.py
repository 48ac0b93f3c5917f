"""The sources of the compiled modules keep to the rules for them."""

import ast
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest
from support.daemons.process import ROOT

from api.http.limits import ApiLimits
from api.http.rate import Rates
from api.routing.callers import Callers
from api.routing.routes import Auth, Route
from market.accounts.accounts import Caller
from proxyd.compiled.hot import HOT
from storage.accounts.users import LoginRow

SUSPENDING = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)
BEARER = {"Authorization": "Bearer token"}


def source_of(module: str) -> ast.Module:
    name = module.replace(".", "/")
    (path,) = (
        path
        for root in (ROOT, ROOT / "client")
        for path in (root / f"{name}.py", root / name / "__init__.py")
        if path.exists()
    )
    return ast.parse(path.read_text(), str(path))


def nodes_of(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of statements, without those of functions within."""
    todo = list(statements)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def faults_of(function: ast.AsyncFunctionDef) -> Iterator[int]:
    """Yield the lines at which a coroutine may wait while it handles an exception."""
    for node in nodes_of(function.body):
        if isinstance(node, ast.Try):
            handlers = [line for each in node.handlers for line in each.body]
            for each in nodes_of([*handlers, *node.finalbody]):
                if isinstance(each, SUSPENDING):
                    yield each.lineno
        if isinstance(node, ast.AsyncWith):
            managers = [ast.unparse(each.context_expr) for each in node.items]
            if not all(each.startswith("asyncio.timeout(") for each in managers):
                yield node.lineno


def test_no_compiled_coroutine_awaits_while_it_handles_an_exception() -> None:
    found = [
        f"{module}: {each.name}, line {line}"
        for module in HOT
        for each in ast.walk(source_of(module))
        if isinstance(each, ast.AsyncFunctionDef)
        for line in faults_of(each)
    ]
    assert not found


async def failed() -> None:
    """Raise by a future, as a driver of a database does."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    loop.call_soon(waiter.set_exception, TimeoutError("of a statement"))
    await waiter


async def test_the_failure_of_one_request_is_not_raised_for_another() -> None:
    async def handler(_: Any) -> Any:
        raise NotImplementedError

    async def refused(*_: str) -> Caller:
        await failed()
        raise NotImplementedError

    async def retried(*_: str) -> Caller:
        try:
            await failed()
        except TimeoutError:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        profile = LoginRow("u", "ada", "ada@example.com", None, 0, 0, 0, 0)
        return Caller(profile, "s")

    rates = Rates(ApiLimits(), time.monotonic)
    request = cast(Any, type("Request", (), {"headers": BEARER}))
    route = Route("GET", "/x", "Nothing", handler, dict, auth=Auth.JWT)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="of a statement"):
            await Callers(refused, refused, cast(Any, refused), rates).identify(request, route, "a")
        assert sys.exc_info() == (None, None, None)
        login, _device = await Callers(retried, retried, cast(Any, retried), rates).identify(
            request, route, "a"
        )
        assert login is not None
        assert login.session_id == "s"
