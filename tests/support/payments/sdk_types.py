"""A judge of requests to a provider: the types that its own SDK declares for them."""

import builtins
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any


class _Other:
    """A type that the SDK imports for type checkers only; no part of a form has it."""

    def __class_getitem__(cls, parts: object) -> type["_Other"]:
        return cls


class _Names(dict[str, Any]):
    """The names of a module of the SDK; another one is `_Other`."""

    def __init__(self, module: str) -> None:
        super().__init__(vars(sys.modules[module]))

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _Other)


def problems(request: Mapping[str, str], kind: Any) -> list[str]:
    """Return what the SDK would not accept in a form: unknown keys, missing keys, other values.

    Args:
        request: the form or the query; `a[b][0]` is a part of `a`, and so is `a[]`.
        kind: the `TypedDict` of the SDK for this request.
    """
    tree: dict[str, Any] = {}
    for name, value in request.items():
        *way, last = name.replace("[]", "[0]").replace("]", "").split("[")
        branch = tree
        for part in way:
            branch = branch.setdefault(part, {})
        branch[last] = value
    return list(_problems(tree, kind, ""))


def _problems(value: Any, kind: Any, at: str) -> Iterator[str]:
    """Yield the problems of a value; of a union, those of the kind that fits best."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if any(typing.get_origin(each) is typing.Literal for each in parts):
            parts = tuple(each for each in parts if each is not str)  # words of later versions
        yield from min((list(_problems(value, each, at)) for each in parts), key=len)
    elif hasattr(kind, "__required_keys__"):
        yield from _of_keys(value, kind, at)
    elif origin is list:
        is_list = isinstance(value, dict) and list(value) == [str(n) for n in range(len(value))]
        yield from () if is_list else (f"{at}: not a list",)
        for place, each in value.items() if is_list else ():
            yield from _problems(each, parts[0], f"{at}[{place}]")
    elif origin is dict:
        is_flat = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        yield from () if is_flat else (f"{at}: not texts by their names",)
    elif not _is_plain(value, kind):
        yield f"{at}: {value!r} is no {kind}"


def _of_keys(value: Any, kind: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: no fields"
        return
    hints = typing.get_type_hints(kind, localns=_Names(kind.__module__))
    yield from (f"{at}: {name} is missing" for name in kind.__required_keys__ - set(value))
    for name, each in value.items():
        if name in hints:
            yield from _problems(each, hints[name], f"{at}.{name}")
        else:
            yield f"{at}.{name}: unknown"


def _is_plain(value: Any, kind: Any) -> bool:
    """Return whether a text of a form can be a number, a word or a text."""
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if not isinstance(value, str):
        return False
    if kind is int:
        return value.isdecimal()
    if kind is bool:
        return value in ("true", "false")
    return kind is str
