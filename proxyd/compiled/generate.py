"""Writes the C code of the hot modules: `python -m proxyd.compiled.generate FOLDER PYTHON`.

It is a program of its own because mypyc may end its process, and because it may have to run in
another environment of the same Python than the builder: serving needs no mypyc. It runs in the root
of the sources.
"""

import json
import sys
from pathlib import Path

from mypyc.build import mypycify

from proxyd.compiled.hot import HOT
from proxyd.compiled.manifest import GROUP

PLAN = "plan.json"


def main(folder: str, python: str) -> None:
    """Write the C files into a folder, and the plan of their compilation into its `PLAN`.

    Args:
        folder: the folder for the files.
        python: the Python in whose environment the packages are whose types are wanted.
    """
    extensions = mypycify(
        [
            f"--python-executable={python}",
            # of its own: where it says that nothing has changed, the C files must be in FOLDER
            f"--cache-dir={Path(folder) / 'mypy'}",
            *(name.replace(".", "/") + ".py" for name in HOT),
        ],
        opt_level="3",
        # perf and tracebacks need none, and the library is a third of the size
        debug_level="0",
        # a file of C for each module: all cores compile, and nothing that has not changed
        multi_file=True,
        group_name=GROUP,
        target_dir=folder,
    )
    library, *modules = extensions
    plan = {
        "sources": library.sources,
        "modules": [each.sources[0] for each in modules],
        "includes": library.include_dirs,
        # a warning of a compiler that mypyc does not know yet is no reason to go without
        "flags": [each for each in library.extra_compile_args if each != "-Werror"],
    }
    (Path(folder) / PLAN).write_text(json.dumps(plan))


if __name__ == "__main__":
    main(*sys.argv[1:])
