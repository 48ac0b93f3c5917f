"""How a module of this program is run as a program of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import proxyctl

_PROGRAM: Final = """\
import sys
sys.path.insert(0, {root!r})
from proxyctl.worker.{module} import main
main(sys.argv[1:])
"""


def python(module: str) -> tuple[str, ...]:
    """Return the command whose arguments are those of a module's `main`.

    It is the same wherever the folder or archive of this program has the same path.
    """
    root = str(Path(proxyctl.__file__).parent.parent)
    return (sys.executable, "-I", "-S", "-c", _PROGRAM.format(root=root, module=module))
