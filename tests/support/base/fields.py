"""The fields of classes, as their source has them."""

import ast
from pathlib import Path


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the names of the attributes that a class declares or assigns to `self`."""
    found = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.unparse(each.annotation)
    }
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
        ):
            found.add(each.attr)
    return found


def fields_by_class(path: Path) -> dict[str, set[str]]:
    """Return the fields of each class of a module."""
    return {
        each.name: fields_of(each)
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.ClassDef)
    }
