"""The fields of classes, as their source has them."""

import ast
from pathlib import Path


def fields_of(path: Path) -> dict[str, set[str]]:
    """Return the names that the methods of each class of a module assign to `self`."""
    return {
        each.name: _assigned(each)
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.ClassDef)
    }


def _assigned(of: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(of)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
