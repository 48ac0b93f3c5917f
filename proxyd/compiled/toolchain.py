"""The C compiler, and its command line for this Python."""

import shlex
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

# Calls within the library need not look up the function by its name, and may be inlined.
FLAGS = ("-fvisibility=hidden", "-fno-semantic-interposition")


class CompileError(Exception):
    """The compilation failed; the message has the reason, in half a line."""


class Toolchain:
    """The C compiler, and this Python's settings for it.

    Args:
        environment: the process's variables; `CC` names a compiler, `CFLAGS` has flags for it, as
            for any program.
        headers: the folder that must have Python's headers.
    """

    def __init__(self, environment: Mapping[str, str], headers: Path) -> None:
        variables = sysconfig.get_config_vars()
        named = environment.get("CC", "").strip()
        candidates = [named] if named else [str(variables.get("CC") or ""), "cc", "gcc", "clang"]
        self._path = environment.get("PATH")
        self._candidates = [each for each in dict.fromkeys(candidates) if each]
        self._headers = headers
        self._flags = [
            *shlex.split(str(variables.get("CFLAGS") or "")),
            *shlex.split(str(variables.get("CCSHARED") or "")),
            *(f"-I{each}" for each in dict.fromkeys([headers, sysconfig.get_path("platinclude")])),
        ]
        self._more_flags = environment.get("CFLAGS", "")
        self._link_flags = shlex.split(str(variables.get("LDSHARED") or "cc -shared"))[1:]

    @property
    def compiler(self) -> list[str]:
        """The command that compiles: the first candidate that exists.

        Raises:
            CompileError: none is, or `CC` cannot be understood.
        """
        for candidate in self._candidates:
            words = _words("CC", candidate)
            if words and shutil.which(words[0], path=self._path):
                return words
        names = ", ".join(self._candidates)
        raise CompileError(f"there is no C compiler ({names}); apt-get install gcc")

    def check(self) -> None:
        """Check that all tools are present.

        Raises:
            CompileError: something is not.
        """
        _ = self.compiler
        if not (self._headers / "Python.h").exists():
            raise CompileError(
                f"Python's headers are missing ({self._headers}); apt-get install python3-dev"
            )

    def compiling(self, source: str, flags: list[str], output: str) -> list[str]:
        """Return the command that compiles a file of C into an object.

        Raises:
            CompileError: there is no compiler, or its flags cannot be understood.
        """
        flags = [*self._flags, *flags, *FLAGS, *_words("CFLAGS", self._more_flags)]
        return [*self.compiler, *flags, "-c", source, "-o", output]

    def linking(self, objects: list[str], output: str) -> list[str]:
        """Return the command that links objects into a library."""
        return [*self.compiler, *self._link_flags, *objects, "-o", output]


def _words(name: str, value: str) -> list[str]:
    """Split a variable's value as a shell would."""
    try:
        return shlex.split(value)
    except ValueError as error:
        raise CompileError(f"{name} cannot be understood: {error}") from None
