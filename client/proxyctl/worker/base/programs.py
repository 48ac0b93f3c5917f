"""How a module is run as a program of its own."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

_PROGRAM: Final = """\
import sys
sys.path[:0] = {roots!r}
from {module} import main
main(sys.argv[1:])
"""


def python(module: str) -> tuple[str, ...]:
    """Return the command whose arguments are those of a module's `main`.

    It is the same wherever the folders or archives of its packages have the same paths.

    Args:
        module: its full name, in this program or in a package beside it.
    """
    packages = ("proxyctl", module.partition(".")[0])
    roots = list(dict.fromkeys(map(_root, packages)))
    return (sys.executable, "-I", "-S", "-c", _PROGRAM.format(roots=roots, module=module))


def _root(package: str) -> str:
    return str(Path(str(import_module(package).__file__)).parent.parent)
