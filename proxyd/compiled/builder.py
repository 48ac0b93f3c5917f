"""Compiles the hot modules, for `make setup` and `make install`.

It never fails: where nothing can be compiled, the sources run interpreted, and one line says why.
"""

import argparse
import ast
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from proxyd.compiled import manifest
from proxyd.compiled.finder import SWITCH
from proxyd.compiled.hot import HOT
from proxyd.compiled.manifest import Manifest, UnusableError, entry_of

ROOMS = ("proxyd", "api", "market", "storage", "config")
CONSTRAINTS = "constraints.txt"  # the versions of mypyc, and of the packages whose types are used
# What else changes the library that is made of the same sources.
RECIPE = (CONSTRAINTS, "proxyd/compiled/builder.py", "proxyd/compiled/generate.py")
COST = (
    "it costs about 1.4 to 1.7 times the CPU per connection and per small message; bulk is the same"
)
# A step takes seconds on one slow core, half a minute at most; what takes this long hangs.
STEP_SECONDS = 600.0
# Calls within the library need not look up the function by its name, and may be inlined.
FLAGS = ("-fvisibility=hidden", "-fno-semantic-interposition")
# Run where the files were put, by the Python that will: what it cannot import is not left there.
TRIAL = """
import importlib, sys
from proxyd.compiled.finder import FINDER
from proxyd.compiled.hot import HOT
if why := FINDER.why_interpreted():
    sys.exit(why)
for name in HOT:
    importlib.import_module(name)
"""


class CompileError(Exception):
    """It could not be compiled; the message says why, in half a line."""


class Toolchain:
    """The C compiler, and what this Python says about its use.

    Args:
        environment: the process's variables; `CC` names a compiler, `CFLAGS` has flags for it, as
            for any program.
        headers: the folder that must have Python's headers.
    """

    def __init__(self, environment: Mapping[str, str], headers: Path) -> None:
        variables = sysconfig.get_config_vars()
        named = environment.get("CC", "")
        candidates = [named] if named else [str(variables.get("CC") or ""), "cc", "gcc", "clang"]
        self._path = environment.get("PATH")
        self._candidates = [each for each in dict.fromkeys(candidates) if each]
        self._headers = headers
        self._flags = [
            *shlex.split(str(variables.get("CFLAGS") or "")),
            *shlex.split(str(variables.get("CCSHARED") or "")),
            *(f"-I{each}" for each in dict.fromkeys([headers, sysconfig.get_path("platinclude")])),
        ]
        self._more_flags = shlex.split(environment.get("CFLAGS", ""))
        self._link_flags = shlex.split(str(variables.get("LDSHARED") or "cc -shared"))[1:]

    @property
    def compiler(self) -> list[str]:
        """The command that compiles: the first of those that may be meant that is there.

        Raises:
            CompileError: none is.
        """
        for candidate in self._candidates:
            words = shlex.split(candidate)
            if shutil.which(words[0], path=self._path):
                return words
        names = ", ".join(self._candidates)
        raise CompileError(f"there is no C compiler ({names}); apt-get install gcc")

    def check(self) -> None:
        """See whether everything is there.

        Raises:
            CompileError: something is not.
        """
        _ = self.compiler
        if not (self._headers / "Python.h").exists():
            raise CompileError(
                f"Python's headers are missing ({self._headers}); apt-get install python3-dev"
            )

    def compiling(self, source: str, flags: list[str], output: str) -> list[str]:
        """Return the command that makes an object of a file of C."""
        flags = [*self._flags, *flags, *FLAGS, *self._more_flags]
        return [*self.compiler, *flags, "-c", source, "-o", output]

    def linking(self, objects: list[str], output: str) -> list[str]:
        """Return the command that makes a library of objects."""
        return [*self.compiler, *self._link_flags, *objects, "-o", output]


class Builder:
    """Makes the compiled files for one tree of the packages.

    Args:
        checkout: the root of the checkout, where the sources are compiled.
        target: the root of the tree that gets the compiled files: the checkout, or where it was
            installed.
        environment: the process's variables.
        headers: the folder that must have Python's headers.
        modules: the names of the modules that are compiled; the checkout's own list.
    """

    def __init__(
        self,
        checkout: Path,
        target: Path,
        environment: Mapping[str, str],
        headers: Path,
        modules: Sequence[str] = HOT,
    ) -> None:
        self._modules = modules
        self._checkout = checkout
        self._target = target
        self._environment = {**environment}
        self._toolchain = Toolchain(environment, headers)
        # Steps run in the checkout and name files from there: it may be moved, and nothing changes.
        self._relative = Path("build") / "compiled" / manifest.PYTHON
        self._work = checkout / self._relative
        self._log = self._work / "log"

    def build(self) -> str:
        """Compile what is not compiled yet; return what there is to say, which may be nothing."""
        if self._environment.get(SWITCH, "") not in {"", "0"}:
            return f"proxyd runs interpreted: {SWITCH} is set; nothing was compiled"
        if self._is_current(self._target):
            return ""
        try:
            return self._build_alone()
        except (CompileError, OSError) as failure:
            self._give_up(str(failure))
            return f"proxyd runs interpreted: {failure}; {COST}"

    def _build_alone(self) -> str:
        self._work.mkdir(parents=True, exist_ok=True)
        with (self._work / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another `make` may be at it
            if self._is_current(self._target):
                return ""
            began = time.monotonic()
            self._log.write_text("")
            if self._target == self._checkout or not self._is_current(self._checkout):
                library = self._compile()
            else:
                library = Path(manifest.library_path(str(self._checkout)))
            self._publish(library)
        seconds = time.monotonic() - began
        return f"compiled: {len(self._modules)} modules of the data path, in {seconds:.0f} s"

    def _is_current(self, root: Path) -> bool:
        try:
            recipe = manifest.check(str(root)).recipe
        except UnusableError:
            return False
        try:
            return recipe == self._recipe()
        except CompileError:  # the compiler has gone since
            return True

    def _recipe(self) -> str:
        text = [(self._checkout / each).read_text() for each in RECIPE]
        text += self._toolchain.compiling("", [], "")
        return hashlib.sha256("\n".join(text).encode()).hexdigest()

    def _compile(self) -> Path:
        """Compile the checkout's sources; return the library."""
        self._toolchain.check()
        self._probe()
        before = {path: entry_of(str(self._checkout / path)).digest for path in self._sources()}
        self._run([*self._generating(), str(self._relative), sys.executable], "mypyc")
        plan = json.loads((self._work / "plan.json").read_text())
        flags = [*plan["flags"], *(f"-I{each}" for each in plan["includes"])]
        sources = [*plan["sources"], self._entrances(plan["modules"])]
        sources.sort(key=lambda source: -(self._checkout / source).stat().st_size)
        seed = self._seed(flags)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(lambda source: self._object(source, flags, seed), sources))
        library = self._work / f"{manifest.LIBRARY}{manifest.SUFFIX}"
        paths = [str(self._relative / "objects" / name) for name in objects]
        self._run(self._toolchain.linking(paths, str(library)), "the linker")
        for other in {each.name for each in self._objects().iterdir()} - set(objects):
            (self._objects() / other).unlink()
        if any(entry_of(str(self._checkout / path)).digest != was for path, was in before.items()):
            raise CompileError("a source was edited meanwhile")
        return library

    def _probe(self) -> None:
        """Compile next to nothing: a compiler that fails need not be waited for."""
        source, output = (str(self._relative / name) for name in ("probe.c", "probe.o"))
        (self._checkout / source).write_text("#include <Python.h>\n")
        self._run(self._toolchain.compiling(source, [], output), "the C compiler")

    def _generating(self) -> list[str]:
        """Return the command that writes the C code, of an environment that has mypyc."""
        module = ["-m", "proxyd.compiled.generate"]
        if find_spec("mypyc") and find_spec("setuptools"):
            return [sys.executable, *module]
        place = self._checkout / "build" / "compiler"
        python = str(place / "bin" / "python")
        self._run([sys.executable, "-m", "venv", "--clear", str(place)], "making an environment")
        options = ["--quiet", "--disable-pip-version-check", "--constraint", CONSTRAINTS]
        self._run(
            [python, "-m", "pip", "install", *options, "mypy", "setuptools"], "fetching mypyc"
        )
        return [python, *module]

    def _entrances(self, modules: list[str]) -> str:
        """Write one file with the entrance of every module, and return its path.

        mypyc writes a library for each module, with nothing in it but the way into the one that
        has them all. One library with all these ways in is quicker to load and to look at.
        """
        text = "".join(
            f'#define PyInit___init__ init_{number}\n#include "{path}"\n#undef PyInit___init__\n'
            for number, path in enumerate(
                Path(each).relative_to(self._relative) for each in modules
            )
        )
        path = self._relative / "entrances.c"
        (self._checkout / path).write_text(text)
        return str(path)

    def _objects(self) -> Path:
        folder = self._work / "objects"
        folder.mkdir(exist_ok=True)
        return folder

    def _seed(self, flags: list[str]) -> str:
        """Return a digest of all that an object depends on, but its own file of C."""
        headers = sorted(self._work.rglob("*.h"))
        command = self._toolchain.compiling("", flags, "")
        versions = (self._checkout / CONSTRAINTS).read_text()  # of mypyc's own headers, too
        text = "\n".join([*command, versions, *(each.read_text() for each in headers)])
        return hashlib.sha256(text.encode()).hexdigest()

    def _object(self, source: str, flags: list[str], seed: str) -> str:
        """Compile one file of C, unless an object of the same text is there; return its name."""
        text = (self._checkout / source).read_bytes()
        name = hashlib.sha256(seed.encode() + text).hexdigest() + ".o"
        finished = self._objects() / name
        if not finished.exists():
            unfinished = self._relative / "objects" / f"{name}.part"
            command = self._toolchain.compiling(source, flags, str(unfinished))
            self._run(command, "the C compiler")
            (self._checkout / unfinished).rename(finished)
        return name

    def _run(self, command: list[str], what: str, *, cwd: Path | None = None) -> None:
        """Run a step, with what it says in the log.

        Raises:
            CompileError: it failed, or hangs.
        """
        with self._log.open("a") as log:
            print("$", shlex.join(command), file=log, flush=True)
            try:
                done = subprocess.run(  # noqa: S603 - the words are the builder's own
                    command,
                    cwd=cwd or self._checkout,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=STEP_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise CompileError(f"{what} takes too long; {self._log} has its words") from None
        if done.returncode != 0:
            raise CompileError(f"{what} failed; {self._log} has its words")

    def _publish(self, library: Path) -> None:
        """Put the library and its manifest where the finder looks, and see whether it loads.

        Nothing is written over: a daemon that runs keeps the library that it has.
        """
        folder = Path(manifest.folder(str(self._target)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / manifest.FILE).unlink(missing_ok=True)
        target = Path(manifest.library_path(str(self._target)))
        shutil.copyfile(library, target.with_suffix(".part"))
        target.with_suffix(".part").rename(target)
        files = {
            path: entry_of(str(self._target / path))
            for path in [*self._sources(), manifest.relative_library()]
        }
        (folder / "MANIFEST.part").write_text(Manifest(self._recipe(), files).text())
        (folder / "MANIFEST.part").rename(folder / manifest.FILE)
        self._run([sys.executable, "-c", TRIAL], "loading what was compiled", cwd=self._target)

    def _give_up(self, why: str) -> None:
        """Have `proxyd --version` say what went wrong, and leave nothing that is half done."""
        folder = Path(manifest.folder(str(self._target)))
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / manifest.FILE).write_text(f"{manifest.FAILED}{why}\n")
            Path(manifest.library_path(str(self._target))).unlink(missing_ok=True)

    def _sources(self) -> list[str]:
        """Return the paths of all that the compiled code depends on.

        The types and constants of what a compiled module imports are in its code, too, and so on.
        """
        found: dict[str, None] = {"proxyd/compiled/hot.py": None}  # names what is in the library
        waiting = [name.replace(".", "/") + ".py" for name in self._modules]
        while waiting:
            path = waiting.pop()
            if path not in found:
                found[path] = None
                waiting.extend(self._imports(path))
        return sorted(found)

    def _imports(self, path: str) -> Iterator[str]:
        for node in ast.walk(ast.parse((self._checkout / path).read_bytes())):
            names = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            for name in names:
                if name.partition(".")[0] in ROOMS:
                    yield from self._files(name.replace(".", "/"))

    def _files(self, name: str) -> Iterator[str]:
        for path in (f"{name}.py", f"{name}/__init__.py"):
            if (self._checkout / path).exists():
                yield path


def main() -> None:
    """Compile for a checkout, which is the present folder, or for where it was installed."""
    parser = argparse.ArgumentParser(description="Compile the modules of the data path.")
    parser.add_argument("--installed", type=Path, metavar="FOLDER", help="has the packages")
    checkout = Path.cwd()
    target = parser.parse_args().installed or checkout
    builder = Builder(checkout, target, os.environ, Path(sysconfig.get_path("include")))
    if words := builder.build():
        print(words, flush=True)  # noqa: T201 - what `make` says


if __name__ == "__main__":
    main()
