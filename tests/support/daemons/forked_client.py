"""proxyctl, the program for devices, forked from one process that has imported all of it.

Its interpreter and its imports take a quarter of a second of processor time, and the tests start it
a hundred times. As with daemons (`forked.py`), the first start of a process of tests runs the
program below. Tests of other Pythons, and benchmarks, start each one as a new process.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from tempfile import TemporaryFile
from typing import NoReturn

from support.daemons.forked import ROOT, ForkedProcess, Forker, channel_of, end, forked_request

PATHS = (ROOT / "client", ROOT / "tests", ROOT)
MODULE = "support.daemons.forked_client"
PROGRAM = "proxyctl"
RUN_SECONDS = 60.0
MAIN = {PROGRAM: "proxyctl.__main__"}

ClientProcess = ForkedProcess | subprocess.Popen[bytes]


class Client:
    """The process that forks; None outside `forking`."""

    forker: Forker | None = None


@contextmanager
def forking() -> Iterator[None]:
    """Fork the program until the tests are over."""
    forker = Client.forker = Forker(MODULE, PATHS)
    try:
        yield
    finally:
        Client.forker = None
        forker.close()


def start(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    standard: Sequence[int],
    *,
    program: str = PROGRAM,
    python: str = sys.executable,
) -> ClientProcess:
    """Start the program.

    Args:
        arguments: its command line.
        variables: its environment.
        standard: its standard input, output and error output, which stay open here.
        program: another module, which changes it.
        python: the Python that runs it. Only that of the tests is forked.
    """
    if Client.forker is not None and python == sys.executable:
        return Client.forker.start(program, arguments, variables, standard, leads=False)
    given, out, errors = standard
    return subprocess.Popen(
        [python, "-m", program, *arguments],
        env=dict(variables),
        stdin=given,
        stdout=out,
        stderr=errors,
    )


def run(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    typed: str = "",
    are_mixed: bool = False,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        arguments: its command line.
        variables: its environment.
        typed: its standard input.
        are_mixed: whether both of its outputs are in `stdout`, in their order.
        python: as in `start`.
    """
    with ExitStack() as stack:
        given, out, errors = (stack.enter_context(TemporaryFile()) for _ in range(3))
        given.write(typed.encode())
        given.seek(0)
        standard = [each.fileno() for each in (given, out, out if are_mixed else errors)]
        status = start(arguments, variables, standard, python=python).wait(RUN_SECONDS)
        printed = []
        for file in (out, errors):
            file.seek(0)
            printed.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), status, *printed)


# --- the program ---------------------------------------------------------------------------------


def _import_all() -> None:
    """Import the commands, and everything that they run with."""
    for topic in ("exit", "worker"):
        for path in sorted((ROOT / "client" / "proxyctl" / topic / "commands").glob("*.py")):
            import_module(f"proxyctl.{topic}.commands.{path.stem}")


def _run(channel: socket.socket) -> NoReturn:
    request = forked_request(channel)
    sys.argv = [request["program"], *request["arguments"]]
    end(import_module(MAIN.get(request["program"], request["program"])).main)


if __name__ == "__main__":
    _run(channel_of(sys.argv[1:], _import_all))
