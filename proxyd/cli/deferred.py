"""Deferred import of packages whose own code imports more modules than the daemon uses.

`import aiohttp.web` runs `aiohttp/__init__.py` first. That imports the HTTP client, which reads all
the certificates that this machine trusts: a fifth of a start, for a server that sends no requests.
Of `prometheus_client` the names of metrics are wanted, and not its HTTP server. Python cannot
import only a part of a package. So a package can be *deferred*: it is put into `sys.modules` before
its code runs, and its code runs at the first use of a name that is not one of its modules. So
`aiohttp.ClientSession` still works, only later.
"""

import importlib.util
import re
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_VERSION = re.compile(r'__version__ = "([^"]+)"')


def defer(name: str) -> None:
    """Let the modules of a package be imported without the package's own code.

    A package that is already imported, is missing, or has no code of its own stays unchanged.

    Args:
        name: of a package whose modules ask it for no more than its version, if its code begins
            with that, while they are imported.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or spec.submodule_search_locations is None:
        return
    package = importlib.util.module_from_spec(spec)
    with Path(spec.origin).open(encoding="utf-8") as code:
        version = _VERSION.match(code.readline())
    if version is not None:
        package.__dict__["__version__"] = version[1]
    package.__dict__["__getattr__"] = _Completion(package, spec)
    sys.modules[name] = package


class _Completion:
    """The `__getattr__` of a deferred package (PEP 562): runs its code at the first use.

    Of several threads that ask at once, one runs it, and the others wait for that. Code that fails
    runs again at the next use, so that a later caller also gets the reason.

    Args:
        package: the package, empty so far.
        spec: where its code is.
    """

    def __init__(self, package: ModuleType, spec: ModuleSpec) -> None:
        self._package = package
        self._spec = spec
        self._lock = threading.RLock()  # its code may ask it for a name that it does not have yet
        self._is_running = False

    def __call__(self, name: str) -> object:
        """Return the attribute `name` of the package.

        Its modules ask for no more than its version while they are imported, so none of them waits
        here for a thread that waits for it.

        Raises:
            AttributeError: it has no such name; for a module of it, the import system asks this
                first, and then imports the module.
            Exception: its code raised it.
        """
        is_special = (
            name.startswith("__") and name != "__all__"
        )  # such as names that doctest looks for
        if is_special or importlib.util.find_spec(f"{self._spec.name}.{name}") is not None:
            raise AttributeError(name)
        with self._lock:
            if self._is_running:
                raise AttributeError(name)
            if self._package.__dict__.get("__getattr__") is self:  # no other thread was first
                self._run()
        return getattr(self._package, name)

    def _run(self) -> None:
        """Run the package's code; this object stays in its place meanwhile, and after a failure."""
        names = self._package.__dict__
        assert self._spec.loader is not None  # noqa: S101 - `defer` has read its code
        self._is_running = True
        try:
            self._spec.loader.exec_module(self._package)
        except BaseException:
            names["__getattr__"] = self
            raise
        finally:
            self._is_running = False
        if names["__getattr__"] is self:  # some packages have one of their own
            del names["__getattr__"]
