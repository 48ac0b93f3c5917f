"""Makes the library of the compiled modules out of the sources of a checkout."""

import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from proxyd.compiled import manifest
from proxyd.compiled.toolchain import CompileError, Toolchain

ROOMS = ("proxyd", "api", "market", "storage", "config")
CONSTRAINTS = "constraints.txt"  # the versions of mypyc, and of the packages whose types are used
# A step takes seconds on one slow core, half a minute at most; a step that takes this long hangs.
STEP_SECONDS = 600.0


class Steps:
    """Runs programs, and writes their output to a log.

    Args:
        environment: their variables.
        log: the file, which is begun anew.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._environment = {**environment}
        self._log = log
        log.write_text("")

    def run(self, command: list[str], what: str, folder: Path) -> None:
        """Run a step in a folder.

        Raises:
            CompileError: it failed, or hangs.
        """
        with self._log.open("a") as log:
            print("$", shlex.join(command), file=log, flush=True)
            try:
                done = subprocess.run(  # noqa: S603 - the words are the builder's own
                    command,
                    cwd=folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=STEP_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise CompileError(f"{what} takes too long; its output is in {self._log}") from None
        if status := done.returncode:
            how = f"status {status}" if status > 0 else f"signal {-status}"
            raise CompileError(f"{what} failed ({how}); its output is in {self._log}")


class Compilation:
    """The making of one library.

    Args:
        checkout: the root of the checkout, in which every step runs.
        place: the folder for the results, which exists; the path of one within the checkout is
            relative to its root: the checkout may be moved then, and nothing changes. Results of an
            earlier run are not made again.
    """

    def __init__(self, checkout: Path, place: Path, toolchain: Toolchain, steps: Steps) -> None:
        self._checkout = checkout
        self._place = place
        self._work = checkout / place
        self._toolchain = toolchain
        self._steps = steps

    def make(self) -> Path:
        """Compile the sources; return the library.

        Raises:
            CompileError: a step failed.
            OSError: something cannot be written.
        """
        self._probe()
        self._run([*self._generating(), str(self._place), sys.executable], "mypyc")
        sources, modules, flags = self._plan()
        sources.append(self._entrances(modules))
        sources.sort(key=lambda source: -(self._checkout / source).stat().st_size)
        seed = self._seed(flags)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(lambda source: self._object(source, flags, seed), sources))
        library = self._work / f"{manifest.LIBRARY}{manifest.SUFFIX}"
        paths = [str(self._place / "objects" / name) for name in objects]
        self._run(self._toolchain.linking(paths, str(library)), "the linker")
        for other in {each.name for each in self._objects().iterdir()} - set(objects):
            (self._objects() / other).unlink()
        return library

    def _run(self, command: list[str], what: str) -> None:
        self._steps.run(command, what, self._checkout)

    def _probe(self) -> None:
        """Compile a tiny program first, so that a broken compiler fails early."""
        source, output = (str(self._place / name) for name in ("probe.c", "probe.o"))
        (self._checkout / source).write_text("#include <Python.h>\n")
        self._run(self._toolchain.compiling(source, [], output), "the C compiler")

    def _generating(self) -> list[str]:
        """Return the command that writes the C code, in an environment with mypyc."""
        module = ["-m", "proxyd.compiled.generate"]
        if find_spec("mypyc") and find_spec("setuptools"):
            return [sys.executable, *module]
        place = self._work / "compiler"
        python = str(place / "bin" / "python")
        self._run([sys.executable, "-m", "venv", "--clear", str(place)], "making an environment")
        options = ["--quiet", "--disable-pip-version-check", "--constraint", CONSTRAINTS]
        self._run(
            [python, "-m", "pip", "install", *options, "mypy", "setuptools"], "fetching mypyc"
        )
        return [python, *module]

    def _plan(self) -> tuple[list[str], list[str], list[str]]:
        """Return mypyc's C files, the file of the modules' entrances, and the compiler's flags."""
        try:
            plan = json.loads((self._work / "plan.json").read_bytes())
            flags = [*plan["flags"], *(f"-I{each}" for each in plan["includes"])]
            return [*plan["sources"]], [*plan["modules"]], flags
        except (ValueError, KeyError, TypeError) as error:
            raise CompileError(f"{self._work / 'plan.json'} is damaged: {error}") from None

    def _entrances(self, modules: list[str]) -> str:
        """Write one file with the entrance of every module, and return its path.

        mypyc writes a library for each module, with nothing in it but the way into the one that
        has them all. One library with all these ways in is quicker to load and to look at.
        """
        text = "".join(
            f'#define PyInit___init__ init_{number}\n#include "{path}"\n#undef PyInit___init__\n'
            for number, path in enumerate(Path(each).relative_to(self._place) for each in modules)
        )
        path = self._place / "entrances.c"
        (self._checkout / path).write_text(text)
        return str(path)

    def _objects(self) -> Path:
        folder = self._work / "objects"
        folder.mkdir(exist_ok=True)
        return folder

    def _seed(self, flags: list[str]) -> bytes:
        """Return a digest of everything that an object depends on, except its own C file."""
        digest = hashlib.sha256("\n".join(self._toolchain.compiling("", flags, "")).encode())
        # mypyc's own headers change with its version
        for path in (self._checkout / CONSTRAINTS, *sorted(self._work.glob("*.h"))):
            digest.update(b"\n" + path.read_bytes())
        return digest.digest()

    def _object(self, source: str, flags: list[str], seed: bytes) -> str:
        """Compile one file of C, unless an object of the same text is there; return its name."""
        text = (self._checkout / source).read_bytes()
        name = hashlib.sha256(seed + text).hexdigest() + ".o"
        finished = self._objects() / name
        if not finished.exists():
            unfinished = self._place / "objects" / f"{name}.part"
            command = self._toolchain.compiling(source, flags, str(unfinished))
            self._run(command, "the C compiler")
            (self._checkout / unfinished).rename(finished)
        return name


def sources(checkout: Path, modules: Sequence[str]) -> list[str]:
    """Return the paths, from a checkout's root, of all files that the compiled code needs.

    The types and constants that a compiled module imports are also in its code, and so on.

    Raises:
        CompileError: one of them is not Python.
        OSError: one of them cannot be read.
    """
    found: dict[str, None] = {"proxyd/compiled/hot.py": None}  # names the modules of the library
    waiting = [name.replace(".", "/") + ".py" for name in modules]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = None
            waiting.extend(_imports(checkout, path))
    return sorted(found)


def _imports(checkout: Path, path: str) -> Iterator[str]:
    try:
        tree = ast.parse((checkout / path).read_bytes())
    except (SyntaxError, ValueError) as error:  # the second one for a null byte
        raise CompileError(f"{path} is not Python: {error}") from None
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        for name in names:
            if name.partition(".")[0] in ROOMS:
                yield from _files(checkout, name.replace(".", "/"))


def _files(checkout: Path, name: str) -> Iterator[str]:
    for path in (f"{name}.py", f"{name}/__init__.py"):
        if (checkout / path).exists():
            yield path
