"""A notebook in a real browser: a kernel in a sandbox computes (`make notebook`).

The notebook is Debian's: what a sandbox sees of the machine has it, so it needs no network for it.
"""

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest
from support.base.waiting import until
from support.console.browser import CHROMIUM, browsing
from support.daemons.service import Service
from support.workers.app_story import app_of, devices_of, offering, put_up

NOTEBOOK = Path("/usr/bin/jupyter-notebook")
COMMAND = [
    "/usr/bin/python3",
    str(NOTEBOOK),
    "--ip=127.0.0.1",
    "--port=8888",
    "--no-browser",
    "--allow-root",
    "--NotebookApp.token=",
    "--NotebookApp.allow_remote_access=True",
    "--notebook-dir=/work",
]
READY = {"port": 8888, "http": "/api", "every_s": 1}
# What a person does: a new notebook, a line in its first cell, and a click on "Run".
IS_THERE = (
    "window.Jupyter !== undefined && Jupyter.notebook !== undefined && Jupyter.notebook !== null"
    " && Jupyter.notebook.kernel !== null && Jupyter.notebook.kernel.is_connected()"
)
NEW = """
fetch("/api/contents", {method: "POST", body: JSON.stringify({type: "notebook"}), headers: {
  "X-XSRFToken": document.cookie.match(/_xsrf=([^;]*)/)[1]}}).then(answer => answer.json())
  .then(made => { location.href = "/notebooks/" + made.path; return made.path })
"""
RUN = "Jupyter.notebook.get_cell(0).set_text('print(6*7)'); Jupyter.notebook.execute_cell(); true"
PRINTED = "document.querySelector('.output_stdout pre')?.textContent.trim() === '42'"

pytestmark = pytest.mark.skipif(
    os.environ.get("REQUIRE_NOTEBOOK") != "1", reason="takes its time: make notebook"
)


@pytest.fixture
async def service(tmp_path: Path):
    async with offering(tmp_path) as running:
        yield running


async def test_a_kernel_computes_the_line_that_is_typed_in_a_browser(
    service: Service, tmp_path: Path
) -> None:
    assert NOTEBOOK.exists()
    assert CHROMIUM is not None
    async with devices_of(service, tmp_path, ram_gb=1.0) as agent:
        buyer = await service.person(credit="5")
        payload = {
            "command": COMMAND,
            "script": "",
            "ports": [{"name": "notebook", "port": 8888}],
            "ready": READY,
            "env": {"HOME": "/work"},
        }
        job_id = await put_up(service, buyer, **payload)

        async def is_ready() -> bool:
            return bool((await app_of(service, buyer, job_id))["is_ready"])

        await until(is_ready, agent.log)
        url = (await app_of(service, buyer, job_id))["url"]
        async with (
            aiohttp.ClientSession() as http,
            browsing(url, http, tmp_path, expected=["."]) as tab,  # what it says is not ours
        ):
            assert "key=" not in await tab.run("location.href"), "the key has left the address"
            assert "proxyd-app" not in await tab.run("document.cookie"), "no script reads it"
            await tab.run(NEW)
            await tab.until(IS_THERE)
            await tab.run(RUN)
            await tab.until(PRINTED)
        assert (await app_of(service, buyer, job_id))["received_bytes"] > 0
        await asyncio.to_thread(agent.kill)
