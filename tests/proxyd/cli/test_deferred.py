"""A deferred package gives its modules without its own code, and all it has to whoever asks."""

import subprocess
import sys
from importlib.metadata import version

import pytest
from support import process

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


def test_its_modules_know_its_version() -> None:
    said = output(f"{BEGIN}\nfrom aiohttp.http import SERVER_SOFTWARE\nprint(SERVER_SOFTWARE)")
    assert said[0].endswith(f"aiohttp/{version('aiohttp')}")


@pytest.mark.parametrize(
    "use",
    [
        "session = aiohttp.ClientSession",
        "from aiohttp import ClientSession as session",
        "from aiohttp.client import ClientSession as session",
        "from aiohttp import *; session = ClientSession",
    ],
)
def test_whoever_uses_the_rest_of_it_has_it(use: str) -> None:
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


@pytest.mark.parametrize("name", ["ssl", "there_is_none", "api", "json"])
def test_what_is_no_package_or_there_already_is_left_alone(name: str) -> None:
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
