"""A deferred package gives its modules without its own code, and all its names on use."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.daemons import process

PACKAGE = "deferred_package"
BEGIN = """
import sys

from proxyd.cli.deferred import defer

defer("aiohttp")
import aiohttp.web

assert "aiohttp.client" not in sys.modules
"""


def output(script: str) -> list[str]:
    """Run a script in a process of its own, and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=process.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def deferring(folder: Path, code: str) -> str:
    """Write a package, and return the begin of a script that defers it."""
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "__init__.py").write_text(code)
    return f"""
import sys

sys.path.insert(0, {str(folder)!r})
from proxyd.cli.deferred import defer

defer({PACKAGE!r})
import {PACKAGE} as package
"""


def test_its_modules_know_its_version() -> None:
    said = output(f"{BEGIN}\nfrom aiohttp.http import SERVER_SOFTWARE\nprint(SERVER_SOFTWARE)")
    assert said[0].endswith(f"aiohttp/{version('aiohttp')}")


@pytest.mark.parametrize(
    "use",
    brief(
        [
            "session = aiohttp.ClientSession",
            "from aiohttp import *; session = ClientSession",
            "from aiohttp import ClientSession as session",
            "from aiohttp.client import ClientSession as session",
        ],
        2,
    ),
)
def test_a_caller_that_uses_the_rest_of_it_has_it(use: str) -> None:
    script = f"{BEGIN}\n{use}\nfrom aiohttp import web\nprint(session.__name__, web is aiohttp.web)"
    assert output(script) == ["ClientSession True"]


def test_it_is_whole_after_the_first_use() -> None:
    script = f"""{BEGIN}
early = aiohttp
names = aiohttp.ClientSession and set(dir(aiohttp))
import aiohttp
print(aiohttp is early, names >= set(aiohttp.__all__), "__getattr__" in names, aiohttp.__version__)
"""
    assert output(script) == [f"True True False {version('aiohttp')}"]


def test_a_name_that_it_does_not_have_is_an_attribute_error() -> None:
    script = f"{BEGIN}\nprint(hasattr(aiohttp, 'nothing'), hasattr(aiohttp, '__nothing__'))"
    assert output(script) == ["False False"]


def test_a_package_needs_no_version() -> None:
    script = """
import sys

from proxyd.cli.deferred import defer

defer("prometheus_client")
from prometheus_client.registry import CollectorRegistry
print("prometheus_client.exposition" in sys.modules)
import prometheus_client
print(prometheus_client.CollectorRegistry is CollectorRegistry)
"""
    assert output(script) == ["False", "True"]


def test_code_that_fails_says_so_at_every_use(tmp_path: Path) -> None:
    script = deferring(tmp_path, "missing = None\nraise OSError('no certificates')")
    script += """
for _ in range(3):
    try:
        package.session
    except OSError as error:
        print(error)
"""
    assert output(script) == ["no certificates"] * 3


def test_code_that_succeeds_later_is_whole(tmp_path: Path) -> None:
    code = """
def __getattr__(name):
    return "its own"

import builtins
builtins.runs += 1
if builtins.runs == 1:
    raise OSError
session = "there"
"""
    script = f"import builtins\nbuiltins.runs = 0\n{deferring(tmp_path, code)}"
    script += """
try:
    package.session
except OSError:
    print(package.session, package.other, builtins.runs)
"""
    assert output(script) == ["there its own 2"]


def test_several_threads_that_ask_at_once_all_have_it(tmp_path: Path) -> None:
    code = "import time\nprint('runs')\ntime.sleep(0.3)\nsession = 'there'"
    script = deferring(tmp_path, code)
    script += """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

ready = Barrier(8)

def ask(_):
    ready.wait()
    return package.session

with ThreadPoolExecutor(8) as threads:
    print(*threads.map(ask, range(8)))
"""
    assert output(script) == ["runs", " ".join(["there"] * 8)]


def test_its_code_may_ask_for_names_that_it_does_not_have_yet(tmp_path: Path) -> None:
    code = f"import {PACKAGE}\nfound = hasattr({PACKAGE}, 'session')\nsession = 'there'"
    script = f"{deferring(tmp_path, code)}\nprint(package.session, package.found)"
    assert output(script) == ["there False"]


@cases("name", ["ssl", "there_is_none", "api", "json"])
def test_a_missing_or_imported_package_is_left_alone(name: str) -> None:
    script = f"""
import sys
import api, json

from proxyd.cli.deferred import defer

before = sys.modules.get({name!r})
defer({name!r})
print(sys.modules.get({name!r}) is before)
"""
    assert output(script) == ["True"]


def test_the_client_of_a_model_is_complete_before_its_first_question() -> None:
    """Or the loop would stand still while it is imported."""
    script = f"{BEGIN}\nimport proxyd.outbound.chat_model\nprint('aiohttp.client' in sys.modules)"
    assert output(script) == ["True"]
