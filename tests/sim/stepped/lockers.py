"""The functions of the product that lock rows, as the source has them."""

import ast
from collections.abc import Iterator

from tests.sim.stepped.store import ROOT

# Each row that is locked is locked by `Transaction.lock`, or by a function of this name around it.
NAMES = (
    *("lock", "lock_user", "lock_reputations", "lock_accounts", "lock_pairs", "lock_members"),
    *("lock_head", "lock_and_keep"),
)


def lockers() -> set[str]:
    """Return each function of the market and the storage that locks, as `module.function`."""
    return {
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}.{name}"
        for folder in ("market", "storage")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent.name != "engines"
        for name in _lockers_in(ast.parse(path.read_text()), "")
    }


def _lockers_in(tree: ast.AST, around: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _lockers_in(node, f"{around}{node.name}.")
        elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            name = f"{around}{node.name}"
            if any(_is_lock(each) for each in _own(node)):
                yield name
            yield from _lockers_in(node, f"{name}.<locals>.")


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes of a function without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda):
            yield node
            yield from _own(node)


def _is_lock(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Await)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in NAMES
    )
