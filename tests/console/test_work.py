"""Devices, jobs, the market and deploys in a browser, and an agent that runs the shown lines."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.base.waiting import until
from support.clients.story import worker_token
from support.console.browser import Visit
from support.console.console import agent, be_patient, log_in, opened
from support.daemons.service import Person, Service, running_in
from support.exits.device import EXITS, Consented, hello
from support.workers.process import require_sandbox

from market.files.artifacts import Artifacts

LINES = "document.querySelectorAll('dialog .copy-text')"


async def listed(service: Service, person: Person, path: str, key: str) -> list[dict[str, Any]]:
    answer = await service.call("GET", path, token=person.token)
    assert answer.status == 200, answer.body
    return list(answer.body[key])


async def test_a_machine_is_registered_a_job_posted_and_its_earnings_seen(
    service: Service, visit: Visit, tmp_path: Path
) -> None:
    require_sandbox(tmp_path)
    person = await service.person(credit="10")
    tab = await opened(visit, service, person, "/console/devices")
    await tab.until_text("You lend no machine yet")
    await tab.fill("Name", "rig-1")
    await tab.click("Register device")
    await tab.until(f"{LINES}.length === 3")
    lines = str(await tab.run(f"{LINES}[1].textContent"))
    await tab.click("I have stored it")
    [device] = await listed(service, person, "/api/worker/devices", "devices")
    await tab.until(f"location.pathname === '/console/devices/{device['id']}'")
    await tab.until_text("Nothing has ever come from it")

    async with agent(tmp_path, lines) as log:
        try:
            await tab.until_text("It asks for work and would take some")
        except AssertionError as error:
            raise AssertionError(log.read_text()) from error
        await tab.goto(f"{service.url}/console/jobs/new")
        await tab.fill("Title", "say it")
        script = "print(6 * 7)\nopen('answer.txt', 'w').write('forty-two')"
        await tab.fill("textarea[name=script]", script)
        await tab.fill("Files to keep", "*.txt")
        await tab.click("Post the job")
        await tab.until_text("42", ".log")
        await tab.until_text("Done", ".facts")
        await tab.until_text("answer.txt")
    await tab.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    await tab.click("Download: answer.txt")
    saved = tmp_path / "answer.txt"
    await until(saved.exists, "the file is saved")
    assert saved.read_text() == "forty-two"
    await tab.goto(f"{service.url}/console/devices/{device['id']}")
    await tab.until_text("1.8 credits")
    await tab.until_text("say it")


@pytest.mark.long
async def test_a_job_is_cancelled_after_its_cost_was_shown(service: Service, visit: Visit) -> None:
    person = await service.person(credit="10")
    tab = await opened(visit, service, person, "/console/jobs")
    await tab.until_text("You have posted no job yet")
    await tab.click("Post a job")
    await tab.fill("Title", "never run")
    await tab.click("Post the job")
    await tab.until_text("No device has taken it yet")
    await tab.click("Cancel the job")
    await tab.until_text("2 credits come back to you", "dialog")
    await tab.click("Cancel the job")
    await tab.until_text("Cancelled", ".facts")
    wallet = await service.call("GET", "/api/wallet", token=person.token)
    assert wallet.body["credit_balance"] == 10


@pytest.mark.long
async def test_a_refused_job_names_the_needed_change(service: Service, visit: Visit) -> None:
    person = await service.person()
    visit.expect("409")
    visit.expect("402")
    visit.expect("400")
    tab = await opened(visit, service, person, "/console/jobs/new")
    await tab.until_text("you have none")
    await tab.click("Post the job")
    await tab.until("document.querySelector('form .problem:not([hidden])')?.textContent.length > 5")
    await tab.click("Whole request")
    await tab.fill("POST /api/jobs", "{")
    await tab.click("div[role=tabpanel]:not([hidden]) .button.primary")
    await tab.until_text("This is not JSON")


@pytest.mark.long
async def test_a_device_shows_the_reason_that_keeps_each_job_from_it(
    service: Service, visit: Visit
) -> None:
    person, buyer = await service.person(), await service.person(credit="100")
    made = await service.call(
        "POST", "/api/worker/token/create", {"name": "rig"}, token=person.token
    )
    headers = {"X-Worker-Token": made.body["token"]}
    await service.call("POST", "/api/worker/heartbeat", {"cpu_temp": 61.5}, headers=headers)
    asked = {
        "capacity": {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50},
        "capabilities": {"executors": ["bwrap"], "job_types": ["script"]},
    }
    await service.call("POST", "/api/worker/next", asked, headers=headers)
    job = {
        "title": "large",
        "job_type": "script",
        "price_credit": 1,
        "duration_hrs": 1,
        "payload": {"script": "print(1)"},
        "resources": {"cores": 64},
    }
    await service.call("POST", "/api/jobs", job, token=buyer.token)
    await until(lambda: len(service.daemon.market.dispatch.jobs) == 1, "the job waits")
    path = f"/console/devices/{made.body['token_id']}"
    tab = await opened(visit, service, person, path)
    await tab.until_text("1 job waits in the market.")
    await tab.until_text("Needs more cores")
    await tab.until_text("61.5 °C")
    await tab.click("End its token")
    await tab.until_text("It runs no job now", "dialog")
    await tab.click("dialog button[value=yes]")
    await tab.until_text("Its token was ended")


@pytest.mark.long
async def test_the_market_is_filtered_and_shows_how_a_device_accepts(
    service: Service, visit: Visit
) -> None:
    buyer, person = await service.person(credit="100"), await service.person()
    for title, kind, price in (("cheap", "script", 1), ("dear", "docker", 20)):
        job = {"title": title, "job_type": kind, "price_credit": price, "duration_hrs": 1}
        await service.call("POST", "/api/jobs", job, token=buyer.token)
    tab = await opened(visit, service, person, "/console/market")
    await tab.until_text("cheap")
    await tab.fill("Credits per hour, at least", "5")
    await tab.press("Enter")
    await tab.until("location.search === '?least=5'")
    await tab.until("!document.querySelector('main').innerText.includes('cheap')")
    await tab.click("Accept by hand: dear")
    await tab.until_text("/accept", "dialog .copy-text")
    await tab.click("Close")


async def test_a_deploy_is_ordered_at_the_cost_that_was_shown_and_cancelled(
    service: Service, visit: Visit
) -> None:
    person = await service.person(usd="20")
    tab = await opened(visit, service, person, "/console/deploys")
    await tab.until_text("You have ordered nothing yet")
    await tab.click("Order a deploy")
    await tab.fill("Name", "a model")
    await tab.fill("GPU model", "A100")
    await tab.fill("Hours", "2")
    await tab.fill("Replicas", "3")
    await tab.fill("Image", "web:1")
    await tab.fill("Replicas", "99")  # more than there is money for
    await tab.until("document.querySelector('main form [type=submit]').disabled")
    assert "To the wallet" in await tab.text(".total")
    await tab.fill("Replicas", "3")
    shown = await tab.text(".total")
    await tab.click("Order a deploy")
    await tab.until_text("0 of 3 ready")
    [deploy] = await listed(service, person, "/api/deploy/jobs", "deploys")
    assert f"${deploy['cost']:.2f} at most" in shown
    # A change of the price asks first, and names the price.
    await tab.fill("main form [name=replicas]", "4")
    await tab.click("Set replicas")
    await tab.until_text(f"4 replicas instead of 3: ${deploy['cost'] / 3:.2f} more", "dialog")
    await tab.click("Cancel")
    await tab.click("Restart all")
    await tab.until_text("$0.00 for work that was done", "dialog")
    await tab.click("Cancel")
    await tab.until_text("0 of 3 ready")
    # Rolling back also asks.
    change = {"image": "web:2"}
    where = f"/api/deploy/job/{deploy['id']}/revision"
    assert (await service.call("POST", where, change, token=person.token)).status == 200
    await tab.click("Roll back to revision 1")
    await tab.until_text("take the place of the running ones", "dialog")
    await tab.click("Cancel")
    await tab.click("Roll back to revision 1")
    await tab.click("dialog button[value=yes]")
    await tab.until_text("revision 3", ".facts")
    # One deploy has one currency on every page.
    tab_of = {
        "/console/jobs": f"${deploy['cost'] / 3:.2f}",
        "/console/market": f"${deploy['cost'] / 3:.2f}",
        "/console/events": "for a deploy",
    }
    for path, said in tab_of.items():
        await tab.goto(service.url + path)
        await tab.until_text(said, "main")
        assert "credits" not in await tab.text("main")
    await tab.goto(f"{service.url}/console/deploys/{deploy['id']}")
    await tab.click("Cancel the deploy")
    await tab.until_text("come back to you", "dialog")
    await tab.click("dialog button[value=yes]")
    await tab.until_text("Cancelled", ".facts")
    assert await service.balance(person) == 20


@pytest.mark.long
async def test_figures_that_cannot_be_had_any_more_say_how_old_they_are(
    visit: Visit, tmp_path: Path
) -> None:
    async with running_in(tmp_path) as service:
        person = await service.person()
        tab = await opened(visit, service, person, "/console/devices")
        await tab.until_text("You lend no machine yet")
        visit.expect("ERR_INTERNET_DISCONNECTED")
        await tab.emulate(offline=True)
        await tab.run("document.dispatchEvent(new Event('visibilitychange'))")
        await tab.until_text("Not current: as of")
        await tab.emulate(offline=False)
        await tab.run("document.dispatchEvent(new Event('visibilitychange'))")
        await tab.until("!document.querySelector('main').classList.contains('stale')")


@pytest.mark.long
async def test_a_device_becomes_an_exit_and_ends_being_one(visit: Visit, tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        person = await service.person()
        made = await service.call(
            "POST", "/api/worker/token/create", {"name": "box"}, token=person.token
        )
        path = f"/console/devices/{made.body['token_id']}"
        tab = await opened(visit, service, person, path)
        await tab.until_text("Its owner gets 60 %")
        await tab.click("Agree to the terms")
        await tab.click("form button[type=submit]")
        await tab.until_text("Please fill this in.")
        await tab.fill("I have read the terms, and may lend this connection", value=True)
        await tab.click("form button[type=submit]")
        await tab.until_text("Withdraw consent")
        await tab.click("Limits")
        await tab.fill("Simultaneous connections", "5")
        await tab.click("Save")
        await tab.until_text("Saved.")
        [exit_] = await listed(service, person, "/api/exits/me", "exits")
        assert exit_["limits"]["connections"] == 5
        await tab.click("Pause")
        await tab.until_text("Paused")
        await tab.click("Resume")
        await tab.until_text("Offline")
        terms = (await service.call("GET", "/api/exits/terms")).body["terms_hash"]
        first = hello(made.body["token"], terms=terms)
        device = await Consented(person, made.body["token_id"], first).attach(service)
        await tab.run("document.dispatchEvent(new Event('visibilitychange'))")
        # It is no worker: the page has no word of work, and the line for exits.
        await tab.until_text("now, as an exit", ".facts")
        await tab.until_text("paid out 7 days after the hour in which it was earned")
        words = "document.querySelector('main').innerText"
        await tab.until(f"!/Never seen|Offline|never/.test({words})")
        shown = await tab.text("main")
        line = "document.querySelector('[aria-label=\"Carry traffic as an exit\"]')"
        assert "proxyctl exit run" in await tab.run(f"{line}.textContent")
        assert "proxyctl worker" not in shown
        for path, state in (("/console/devices", "Carries"), ("/console", "Online")):
            await tab.goto(service.url + path)
            await tab.until_text(state, "main table")
            assert "Never seen" not in await tab.text("main table")
        await device.kill()
        await tab.goto(service.url + f"/console/devices/{made.body['token_id']}")
        await tab.until_text("Offline", ".facts")
        await tab.click("Withdraw consent")
        await tab.click("dialog button[value=yes]")
        await tab.until_text("Withdrawn")
        await tab.until_text("Agree to the terms")


# Breaks the first stream of a log once it has said something, as a network does.
BREAK_ONCE = """
const before = window.fetch;
let isBroken = false;
window.fetch = async (path, options) => {
  const isLog = String(path).endsWith("/log");
  if (!isLog || isBroken) return before(path, options);
  isBroken = true;
  const answer = await before(path, options);
  const reader = answer.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      const { value } = await reader.read();
      controller.enqueue(value);
      if (!new TextDecoder().decode(value).includes("one")) return;
      controller.error(new TypeError("cut"));
      await reader.cancel();
    },
  });
  return new Response(body, { headers: answer.headers });
};
0
"""


class Runner:
    """A device that obeys orders by hand, so that a page can be seen meanwhile."""

    def __init__(self, service: Service, token: str, job_id: str) -> None:
        self._service = service
        self._headers = {"X-Worker-Token": token}
        self._job = f"/api/worker/jobs/{job_id}"
        self._job_id = job_id
        self._written = 0

    async def say(self, path: str, body: Any = None, raw: bytes | None = None) -> None:
        answer = await self._service.call("POST", path, body, raw=raw, headers=self._headers)
        assert answer.status == 200, answer.body

    async def begin(self) -> None:
        await self.say(f"/api/jobs/{self._job_id}/accept")
        await self.say(f"{self._job}/started")

    async def write(self, text: bytes) -> None:
        await self.say(f"{self._job}/log?attempt=1&offset={self._written}", raw=text)
        self._written += len(text)

    async def leave(self, name: str, content: bytes) -> None:
        """Send a file that the job has left."""
        digest = hashlib.sha256(content).hexdigest()
        new = {"kind": "output", "name": name, "size_bytes": len(content), "sha256": digest}
        announced = await self._service.call(
            "POST", f"{self._job}/artifacts", {"attempt": 1, **new}, headers=self._headers
        )
        where = f"/api/worker/artifacts/{announced.body['artifact_id']}"
        await self._service.call("PUT", f"{where}/content", raw=content, headers=self._headers)
        await self.say(f"{where}/done")

    async def complete(self, result: str = "42") -> None:
        await self.say(f"{self._job}/complete", {"result": result})

    async def fail(self, reason: str) -> None:
        await self.say(f"{self._job}/fail", {"reason": reason, "kind": "host", "exit_code": 3})


async def test_a_job_is_followed_line_by_line_and_its_result_confirmed(
    service: Service, visit: Visit
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    made = await service.call(
        "POST", "/api/worker/token/create", {"name": "box"}, token=owner.token
    )
    job = {
        "title": "slow",
        "job_type": "script",
        "price_credit": 10,
        "duration_hrs": 1,
        "payload": {"script": "print(1)"},
    }
    posted = await service.call("POST", "/api/jobs", job, token=buyer.token)
    job_id = str(posted.body["job_id"])
    runner = Runner(service, str(made.body["token"]), job_id)
    tab = await opened(visit, service, buyer, "/console/jobs")
    await tab.run(BREAK_ONCE)
    await tab.click("slow")
    await tab.until_text("No device has taken it yet")
    await runner.begin()
    await tab.until_text("Running", ".facts")
    await runner.write(b"one\n")
    await tab.until_text("one", ".log")
    await runner.write(b"two <b>bold</b>\n")
    await tab.until_text("two <b>bold</b>", ".log")
    await runner.write(b" 10%|#\r 50%|###\r100%|######")
    await runner.write(b"\nall \x1b[31mred\x1b[0m\n")
    await tab.until_text("all red", ".log")
    # The stream was cut in between, and went on where it was; a progress bar is one line.
    lines = ["— attempt 1 —", "one", "two <b>bold</b>", "100%|######", "all red"]
    assert (await tab.text(".log")).splitlines() == lines
    # The result is the end of the log: the page shows it once.
    await runner.complete("100%|######\nall \x1b[31mred\x1b[0m\n")
    await tab.until_text("Complete")
    await tab.until_text("Its result is the end of the log below")
    assert (await tab.text("main")).count("all red") == 1
    # The wallet of its worker does not ask for a deposit.
    await log_in(tab, owner.email)
    await tab.goto(f"{service.url}/console/wallet")
    await tab.until_text("the earnings of your devices are in review")
    await log_in(tab, buyer.email)
    await tab.goto(f"{service.url}/console/jobs/{job_id}")
    await tab.click("Confirm and pay")
    await tab.until_text("You have confirmed the result; it is paid.")
    wallet = await service.call("GET", "/api/wallet", token=owner.token)
    assert wallet.body["credit_balance"] == 9


@pytest.mark.long
async def test_a_failure_is_shown_in_the_reader_s_language_and_a_traceback_is_folded(
    service: Service, visit: Visit
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    body = {"name": "box"}
    made = await service.call("POST", "/api/worker/token/create", body, token=owner.token)
    job = {"title": "slow", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    posted = await service.call("POST", "/api/jobs", job, token=buyer.token)
    job_id = str(posted.body["job_id"])
    runner = Runner(service, str(made.body["token"]), job_id)
    await runner.begin()
    await runner.fail(
        "it ended with the status 3; its last words:\n\x1b[31mTraceback\x1b[0m " + 30 * "x" * 20
    )
    tab = await opened(visit, service, buyer, "/console")
    await tab.run("localStorage.setItem('proxyd.language', 'tr') && 0")
    for path, said in (
        ("/console", "“slow” işi başka bir cihaz bekliyor"),
        ("/console/events", "“slow” işi başka bir cihaz bekliyor"),
        (f"/console/jobs/{job_id}", "Son başarısızlık: cihaz başarısız · çıkış durumu 3"),
    ):
        await tab.goto(service.url + path)
        await tab.until_text(said, "main")
        assert "Traceback" not in await tab.text("main")
    await tab.click("Bunun hakkında söylenen")
    await tab.until_text("Traceback xxx", "details[open] pre")


@pytest.mark.long
async def test_the_page_of_a_job_that_is_over_asks_once_and_says_once_why_it_failed(
    service: Service, visit: Visit
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job = {"title": "wrong", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    posted = await service.call("POST", "/api/jobs", job, token=buyer.token)
    job_id = str(posted.body["job_id"])
    runner = Runner(service, await worker_token(service, owner), job_id)
    await runner.begin()
    ending = {"reason": "it ended with the status 3; no luck", "kind": "job", "exit_code": 3}
    await runner.say(f"/api/worker/jobs/{job_id}/fail", ending)
    await service.call("POST", f"/api/jobs/{job_id}/cancel", token=buyer.token)
    tab = await opened(visit, service, buyer, "/console")
    await be_patient(tab)
    before = len(tab.requests)
    await tab.goto(f"{service.url}/console/jobs/{job_id}")
    note = "document.querySelector('.log')?.previousSibling.textContent"
    await tab.until(f"['It printed nothing.', 'Complete'].includes({note})")
    await tab.settled()
    asked = [sent.path for sent in tab.requests[before:] if f"/jobs/{job_id}" in sent.path]
    api = sorted(path for path in asked if path.startswith("/api/"))
    assert api == [f"/api/jobs/{job_id}{part}" for part in ("", "/artifacts", "/attempts", "/log")]
    rows = await tab.text("tbody")
    assert "no luck" in rows
    assert "exit status 3" in rows
    assert "it ended with" not in rows


async def handed_over(request: web.Request) -> web.Response:
    """Answer as an object store does: without a word that lets pages of others read it."""
    headers = {"Content-Disposition": "attachment; filename*=UTF-8''answer.txt"}
    return web.Response(body=b"from the store", headers=headers)


@pytest.mark.long
async def test_a_file_that_an_object_store_has_is_saved_from_there(
    service: Service, visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    body = {"name": "box"}
    made = await service.call("POST", "/api/worker/token/create", body, token=owner.token)
    job = {"title": "slow", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    posted = await service.call("POST", "/api/jobs", job, token=buyer.token)
    job_id = str(posted.body["job_id"])
    runner = Runner(service, str(made.body["token"]), job_id)
    await runner.begin()
    await runner.leave("answer.txt", b"from here")
    await runner.complete()
    app = web.Application()
    app.router.add_get("/bucket/{key}", handed_over)
    async with TestServer(app) as store:
        url = str(store.make_url("/bucket/x"))
        monkeypatch.setattr(Artifacts, "address", lambda _self, _artifact: url)
        tab = await opened(visit, service, buyer, f"/console/jobs/{job_id}")
        await tab.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        await tab.click("Download: answer.txt")
        saved = tmp_path / "answer.txt"
        await until(saved.exists, "the file is saved")
    assert saved.read_bytes() == b"from the store"
    assert await tab.run("location.pathname") == f"/console/jobs/{job_id}"


@pytest.mark.long
async def test_a_job_that_no_device_runs_warns_and_leads_to_the_supply(
    service: Service, visit: Visit
) -> None:
    for number in range(3):
        owner = await service.person()
        token = await worker_token(service, owner, f"rig {number}")
        ask = {
            "capacity": {"slots": 1, "cores": 8, "ram_gb": 32, "gpus": 1, "vram_gb": 24},
            "capabilities": {
                "executors": ["bwrap"],
                "job_types": ["script"],
                "gpus": [{"name": "NVIDIA GeForce RTX 4090"}],
            },
            "min_price_usd": 0.25,
        }
        answer = await service.call(
            "POST", "/api/worker/next", ask, headers={"X-Worker-Token": token}
        )
        assert answer.status == 200, answer.body
    person = await service.person(credit="100", usd="100")
    job = {
        "title": "big",
        "job_type": "script",
        "price_credit": 50,
        "duration_hrs": 1,
        "payload": {"script": "print()"},
        "resources": {"cores": 64},
    }
    made = await service.call("POST", "/api/jobs", job, token=person.token)
    tab = await opened(visit, service, person, f"/console/jobs/{made.body['job_id']}")
    await tab.until_text("3 lend fewer than 64 cores")
    assert "64 cores" in await tab.text("main .notice [lang=en]")  # in no other language yet
    await tab.click("main .notice a")
    await tab.until("location.pathname === '/console/supply'")
    await tab.until_text("NVIDIA GeForce RTX 4090")
    await tab.goto(f"{service.url}/console/jobs")
    await tab.until_text("no device runs it")
    deploy = {"job_name": "nb", "job_type": "Script", "gpu_model": "H100", "script": "1"}
    made = await service.call("POST", "/api/deploy/job", deploy, token=person.token)
    for width in (360, 1280):
        await tab.emulate(width=width)
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth"), width
    await tab.goto(f"{service.url}/console/deploys/{made.body['job_id']}")
    await tab.until_text("3 lack the GPUs (GPU: 1 x H100)", "main .notice [lang=en]")
