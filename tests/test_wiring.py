"""The wiring: each part gets its collaborators when it is built, and none afterwards."""

import ast
import re
from pathlib import Path

import pytest
from support.base.cases import cases

ROOT = Path(__file__).parent.parent
# All modules that build parts of the daemon out of others.
WIRING = sorted([*(ROOT / "proxyd" / "wiring").glob("build*.py"), ROOT / "market" / "market.py"])
ROOMS = ("proxyd", "market", "api", "storage", "config")
# Comments that announce a part which is written in from outside, later.
ANNOUNCED = re.compile(
    r"set by who|puts itself here|(?:is|are) (?:set|replaced) by the daemon|set before the daemon"
    r"|(?:is|are|be) set until|whoever builds",
    re.IGNORECASE,
)


def late_assignments(source: str) -> list[str]:
    """Return the statements of a module that assign to an attribute of an object.

    A constructor may assign to the attributes of its own object.
    """
    tree = ast.parse(source)
    own = {
        id(node)
        for init in ast.walk(tree)
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
        for node in ast.walk(init)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if id(node) not in own:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "setattr",
            "__setattr__",
        ):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@cases(
    "statement",
    [
        "part.other = 1",
        "part.other = own = 1",
        "part.deep.other += 1",
        "part.other: int = 1",
        "one, part.other = 1, 2",
        "for part.other in (): pass",
        "with open(name) as part.other: pass",
        "setattr(part, 'other', 1)",
        "object.__setattr__(part, 'other', 1)",
        "class Part:\n    def __init__(self): part.other = 1",
        "class Part:\n    def change(self): self.other = 1",
    ],
)
def test_each_way_to_write_into_an_object_is_found(statement: str) -> None:
    assert late_assignments(statement)


def test_a_constructor_may_set_its_own_attributes() -> None:
    assert not late_assignments("class Part:\n    def __init__(self): self.other = self.more = 1")


@pytest.mark.parametrize("path", WIRING, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_part_is_written_into_another_after_it_was_built(path: Path) -> None:
    assert late_assignments(path.read_text()) == []


def test_all_that_builds_is_looked_at() -> None:
    names = {path.name for path in WIRING}
    assert {"build.py", "build_exits.py", "build_services.py", "market.py"} <= names


def test_no_comment_announces_a_part_that_is_written_in_later() -> None:
    announced = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ANNOUNCED.search(line)
    ]
    assert announced == []
