"""Finds the compiled modules if all of them may be used; otherwise leaves all of them to Python.

`import proxyd` puts it before Python's own finders. Whether compiled files are used is decided once
in a process, at the first import of one of their modules or at the first query: no process runs
some modules compiled and others from a source that has changed since.

The finder compares each file with its entry in the manifest, by size and time, and by its hash if
the time differs. It uses the whole library, or none of it if anything differs. So an edit is never
shadowed, and a damaged library, or the library of another Python, is never loaded. `proxyd
--version`, the log and the metric `proxyd_build_info` say whether the data path runs compiled; the
first two also say why not.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType

from proxyd.compiled import manifest
from proxyd.compiled.hot import HOT
from proxyd.compiled.manifest import UnusableError

# Any value but the empty one and 0 has everything interpreted.
SWITCH = "PROXYD_INTERPRETED"
REMEDY = "`make setup` compiles it"


class CompiledFinder:
    """A meta path finder for the compiled modules.

    Args:
        root: the folder with the package `proxyd`.
        environment: the process's variables.
        name: the manifest's name; another than the usual one before it is put in place.
    """

    def __init__(
        self, root: str, environment: Mapping[str, str], name: str = manifest.FILE
    ) -> None:
        self._root = root
        self._manifest = name
        self._library = ""  # where it is, once that is decided
        self._is_switched_off = environment.get(SWITCH, "") not in {"", "0"}
        self._names = {*HOT, manifest.LIBRARY}
        self._why: str | None = None  # not decided yet; empty if the compiled files are used

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where to load a module from, or None if it is not one of the compiled ones."""
        if name not in self._names or self.why_interpreted():
            return None
        loader = CompiledLoader(name, self._library, self._root)
        spec = ModuleSpec(name, loader, origin=self._library)
        spec.has_location = True  # so that the module has a __file__
        return spec

    def why_interpreted(self) -> str:
        """Return why the compiled files are not used, or nothing if they are."""
        if self._why is None:
            self._why = self._decide()
        return self._why

    def _decide(self) -> str:
        if self._is_switched_off:
            return f"{SWITCH} is set"
        try:
            found = manifest.check(self._root, self._manifest)
        except UnusableError as error:
            return f"{error}; {REMEDY}"
        if early := next(filter(_is_interpreted, HOT), None):
            return f"{early} was imported before proxyd"
        self._library = os.path.join(self._root, found.library)
        self._why = ""  # while this looks whether it can be loaded at all
        try:
            import_module(manifest.LIBRARY)
        except ImportError as error:
            return f"the compiled files cannot be loaded: {error}; {REMEDY}"
        return ""


class CompiledLoader(ExtensionFileLoader):
    """Loads one of the modules in the library; tracebacks show the lines of its source.

    Args:
        root: the folder with the package `proxyd`.
    """

    def __init__(self, name: str, library: str, root: str) -> None:
        super().__init__(name, library)
        self._source = os.path.join(root, *name.split(".")) + ".py"

    def get_source(self, _name: str) -> str | None:  # type: ignore[override] # Python's has none
        """Return the text that the module was compiled from, or None if it cannot be read."""
        try:
            with open(self._source, encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError):  # it was edited since, and is no text
            return None


def _is_interpreted(name: str) -> bool:
    """Return whether a module was imported from its source, which compiled code does not expect."""
    module = sys.modules.get(name)
    return module is not None and not isinstance(module.__loader__, ExtensionFileLoader)


def _root() -> str:
    here = os.path.abspath(__file__)
    return os.path.dirname(os.path.dirname(os.path.dirname(here)))


FINDER = CompiledFinder(_root(), os.environ)


def install() -> None:
    """Make this process look for compiled modules before it looks for sources."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def way() -> str:
    """Return how the data path runs, in a word."""
    return "interpreted" if FINDER.why_interpreted() else "compiled"


def description() -> str:
    """Return how the data path runs, for people: `compiled`, or `interpreted: ` and why."""
    why = FINDER.why_interpreted()
    return f"interpreted: {why}" if why else "compiled"
