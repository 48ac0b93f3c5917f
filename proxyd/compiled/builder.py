"""Compiles the hot modules, for `make setup` and `make install`.

It never fails: where nothing can be compiled, the sources run interpreted, and one line says why.
Only `make test` checks, with `--must`, that every module that can be compiled is compiled.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from proxyd.compiled import manifest
from proxyd.compiled.compilation import CONSTRAINTS, Compilation, Steps, sources
from proxyd.compiled.finder import FINDER, SWITCH
from proxyd.compiled.hot import HOT
from proxyd.compiled.manifest import Entry, Manifest, UnusableError, entry_of
from proxyd.compiled.toolchain import CompileError, Toolchain

# Further files that change the library made of the same sources.
RECIPE = (
    CONSTRAINTS,
    *(f"proxyd/compiled/{each}.py" for each in ("builder", "compilation", "generate", "toolchain")),
)
COST = (
    "it costs about 1.4 to 1.7 times the CPU per connection and per small message; bulk is the same"
)
ANNOUNCEMENT = "compiling the data path: this takes some minutes on a small machine"
STAGED = f"{manifest.FILE}.part"  # a manifest that is not in its place yet
# Run where the files were put, by the Python that will: files that it cannot import are not used
# there.
TRIAL = """
import importlib, sys
from proxyd.compiled.finder import FINDER, CompiledFinder
from proxyd.compiled.hot import HOT
trial = CompiledFinder(sys.argv[1], {}, sys.argv[2])
sys.meta_path[sys.meta_path.index(FINDER)] = trial
if why := trial.why_interpreted():
    sys.exit(why)
for name in HOT:
    importlib.import_module(name)
"""


class Builder:
    """Makes the compiled files for one tree of the packages.

    Args:
        checkout: the root of the checkout, where the sources are compiled.
        target: the root of the tree that gets the compiled files: the checkout, or where it was
            installed.
        environment: the process's variables.
        headers: the folder that must have Python's headers.
        modules: the names of the modules that are compiled; the checkout's own list.
        announce: called with the description of a long step, before it begins.
    """

    def __init__(
        self,
        checkout: Path,
        target: Path,
        environment: Mapping[str, str],
        headers: Path,
        modules: Sequence[str] = HOT,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._announce = announce
        self._modules = modules
        self._checkout = checkout
        self._target = target
        self._environment = {**environment}
        self._toolchain = Toolchain(environment, headers)
        self._folder = Path(manifest.folder(str(target)))

    def build(self) -> str:
        """Compile the missing files. Return a message for the operator, which may be empty."""
        if self._is_switched_off():
            return f"proxyd runs interpreted: {SWITCH} is set; nothing was compiled"
        try:
            if self._is_current(self._target):
                return self._unchanged()
            return self._build_alone()
        except (CompileError, OSError) as failure:
            return self._without(reason(failure))

    def shortfall(self, why: str) -> str:
        """Return why compiled files are not used, where they could be; otherwise an empty text.

        Args:
            why: the reason why this process does not use them; empty if it uses them.
        """
        try:
            self._toolchain.check()
        except CompileError:
            return ""
        if self._is_switched_off():
            return ""
        if not why and not self._is_current(self._target):
            return "what is compiled was made in another way than it would be now"
        return why

    def _is_switched_off(self) -> bool:
        return self._environment.get(SWITCH, "") not in {"", "0"}

    def _build_alone(self) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another `make` may be at it
            try:
                if self._is_current(self._target):
                    return self._unchanged()
                return self._renew()
            except (CompileError, OSError) as failure:
                self._note(reason(failure))
                return self._without(reason(failure))

    def _renew(self) -> str:
        began = time.monotonic()
        is_installed = self._target != self._checkout
        is_made = is_installed and self._is_current(self._checkout)
        if not is_made:
            self._toolchain.check()
        found = sources(self._checkout, self._modules)
        before = {path: entry_of(str(self._checkout / path)).digest for path in found}
        self._targets(before)  # otherwise the work would be useless
        what = f"compiled: {len(self._modules)} modules of the data path"
        if not is_installed:
            # Within the checkout, because the next time there is less to compile.
            place = Path("build") / "compiled" / manifest.PYTHON
            (self._checkout / place).mkdir(parents=True, exist_ok=True)
            steps = Steps(self._environment, self._checkout / place / "log")
            self._publish(self._compiled(place, steps), before, steps)
            return f"{what}, in {time.monotonic() - began:.0f} s"
        steps = Steps(self._environment, self._folder / "log")
        if is_made:
            made = manifest.check(str(self._checkout))
            digests = {path: entry.digest for path, entry in made.files.items()}
            digest = digests.pop(made.library)
            self._publish(self._checkout / made.library, digests, steps, digest)
            return f"{what}, as the checkout has them"
        # Root may install another user's checkout, and must leave nothing in there.
        with tempfile.TemporaryDirectory(prefix="proxyd-compiled-") as folder:
            self._publish(self._compiled(Path(folder), steps), before, steps)
        return f"{what}, in {time.monotonic() - began:.0f} s"

    def _compiled(self, place: Path, steps: Steps) -> Path:
        self._announce(ANNOUNCEMENT)
        return Compilation(self._checkout, place, self._toolchain, steps).make()

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
        digest = hashlib.sha256("\n".join(self._toolchain.compiling("", [], "")).encode())
        for path in RECIPE:
            digest.update(b"\n" + (self._checkout / path).read_bytes())
        return digest.hexdigest()

    def _targets(self, digests: Mapping[str, str]) -> dict[str, Entry]:
        """Return the entries of the target's sources.

        Raises:
            CompileError: their digests differ from those of the library's sources.
        """
        entries = {path: entry_of(str(self._target / path)) for path in digests}
        for path, entry in entries.items():
            if entry.digest == digests[path]:
                continue
            if self._target == self._checkout:
                raise CompileError(f"{path} was edited meanwhile")
            raise CompileError(f"{self._target / path} differs from {self._checkout}")
        return entries

    def _publish(
        self, library: Path, digests: Mapping[str, str], steps: Steps, digest: str = ""
    ) -> None:
        """Put the library and its manifest where the finder looks, if it can be loaded there.

        Until then the old library is used, and nothing is written over: a daemon that runs keeps
        the library that it has. The one before stays until the next time, for processes that start
        meanwhile.

        Args:
            library: where it was made.
            digests: the digests of the library's sources, by their paths below the root.
            steps: runs the trial.
            digest: the digest that the library must have, if that is known.
        """
        part = self._folder / "library.part"
        shutil.copyfile(library, part)
        copied = entry_of(str(part)).digest
        if digest not in {"", copied}:
            raise CompileError(f"{library} was replaced meanwhile")
        name = manifest.library_of(copied)
        last = self._target / name
        is_new = not last.exists() or entry_of(str(last)).digest != copied
        if is_new:
            part.rename(last)
        files = {**self._targets(digests), name: entry_of(str(last))}
        (self._folder / STAGED).write_text(Manifest(self._recipe(), name, files).text())
        try:
            trial = [sys.executable, "-c", TRIAL, str(self._target), STAGED]
            steps.run(trial, "loading what was compiled", self._target)
        except CompileError:
            if is_new:
                last.unlink()
            raise
        kept = {last.name, self._library_before()}
        (self._folder / STAGED).rename(self._folder / manifest.FILE)
        for each in self._folder.glob(f"{manifest.LIBRARY}*"):
            if each.name not in kept:
                each.unlink()
        part.unlink(missing_ok=True)

    def _library_before(self) -> str:
        try:
            return Path(manifest.read(str(self._target)).library).name
        except UnusableError:
            return ""

    def _note(self, why: str) -> None:
        """Record the failure for `proxyd --version`, unless an earlier library is usable."""
        with suppress(OSError):
            for each in self._folder.glob("*.part"):
                each.unlink()
            if not self._is_usable():
                text = why.encode("ascii", "backslashreplace").decode()
                (self._folder / STAGED).write_text(f"{manifest.FAILED}{text}\n")
                (self._folder / STAGED).rename(self._folder / manifest.FILE)

    def _is_usable(self) -> bool:
        try:
            manifest.check(str(self._target))
        except UnusableError:
            return False
        return True

    def _without(self, why: str) -> str:
        if self._is_usable():
            return f"compiled: as before, because it cannot be done anew: {why}"
        return f"proxyd runs interpreted: {why}; {COST}"

    def _unchanged(self) -> str:
        return "" if self._target == self._checkout else "compiled: as before; nothing has changed"


def reason(failure: CompileError | OSError) -> str:
    """Return in half a line why something failed."""
    told = " ".join(str(failure).split())
    if not isinstance(failure, PermissionError) or not failure.filename:
        return told
    there = Path(failure.filename)
    while not there.exists():
        there = there.parent
    try:
        owner = there.owner()
    except KeyError:
        owner = str(there.stat().st_uid)
    return f"{failure.filename} may not be written: {there} belongs to {owner}"


def main() -> None:
    """Compile for a checkout, which is the present folder, or for its installed copy."""
    parser = argparse.ArgumentParser(description="Compile the modules of the data path.")
    parser.add_argument("--installed", type=Path, metavar="FOLDER", help="has the packages")
    parser.add_argument(
        "--must",
        action="store_true",
        help="compile nothing; fail if the present folder could run compiled and does not",
    )
    arguments = parser.parse_args()
    checkout = Path.cwd()
    headers = Path(sysconfig.get_path("include"))
    target = arguments.installed or checkout
    builder = Builder(checkout, target, os.environ, headers, announce=_say)
    if not arguments.must:
        if outcome := builder.build():
            _say(outcome)
    elif why := builder.shortfall(FINDER.why_interpreted()):
        sys.exit(f"a C compiler is here, and the data path is not compiled: {why}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what `make` says


if __name__ == "__main__":
    main()
