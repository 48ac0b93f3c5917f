"""Every page in every language, on wide and narrow screens, light and dark: whole, clean, readable.

The pages are read from the console's own table. One tab goes through an area, so that a browser
starts once; the shown person has one of everything.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.base.brief import brief
from support.console.axe import faults, needs_axe
from support.console.browser import Sent, Tab, Visit
from support.console.console import be_patient, log_in
from support.daemons.earning import work
from support.daemons.service import Person, Service
from support.payments.taking import Shop, shop

from api.console import FOLDER
from market.events.catalogue import CATALOGUE

LANGUAGES = ["en", "tr", "ru", "ko"]
WIDTHS = [1280, 360]
# The widths at which the styles change. Just above each of them a layout has the least room; a
# table of cards that fits the narrowest screen also fits beside the menu.
BREAKS = sorted(
    {
        int(rem) * 16
        for rem in re.findall(r"max-width: (\d+)rem\) \{", (FOLDER / "app.css").read_text())
    }
)
NARROWEST = [320, BREAKS[-1] + 1]
EVERY = sorted({*range(320, 1441, 160), *BREAKS, *(each + 1 for each in BREAKS)})
# `["/console/jobs/{id}", "work/job", ...]` of app.js.
ROW = re.compile(r'^  \["(?P<path>[^"]+)", "(?P<module>[^"]+)"', re.MULTILINE)
PAGES: list[tuple[str, str]] = ROW.findall((FOLDER / "app.js").read_text())
AREAS = ["overview", "entry", "traffic", "money", "work", "account"]
# The first words of keys: a text such as "work.jobs.title" on a page is one without its words.
KEYS = {
    key
    for path in (FOLDER / "words").glob("*.en.json")
    for key in msgspec.json.decode(path.read_bytes())
}
STEMS = {key.split(".")[0] for key in KEYS}
KEY = re.compile(rf"(?<![\w./@-])(?:{'|'.join(sorted(STEMS))})\.[a-z_]+(?:\.[a-z0-9_]+)*(?![\w(/])")
JOB = {
    "title": "count",
    "job_type": "script",
    "price_credit": 1,
    "duration_hrs": 1,
    "payload": {"command": ["python3", "-c", "print(1)"]},
}
DEPLOY = {
    "job_name": "tiny",
    "job_type": "Jupyter",
    "gpu_model": "RTX 4090",
    "duration_hrs": 1,
    "image": "jupyter/scipy-notebook",
}
HOOK = {"url": "https://example.com/hook-with-a-long-name", "types": ["*"]}
API_KEY = {
    "name": "ci",
    "scopes": ["usage:read", "sessions:write", "devices:write", "wallet:read"],
    "allow_ips": ["2001:db8:1234:5678::/64", "192.0.2.0/24"],
    "spend_limit_usd": 5,
}
FAILED = {
    "reason": "it ended with the status 1; its last words: Traceback (most recent call last):"
    f' File "/job/{"a" * 60}.py", line 1, in <module> ModuleNotFoundError',
    "kind": "host",
}
SAID = """
[document.title, document.body.innerText, ...[...document.querySelectorAll("*")].flatMap((each) =>
  ["aria-label", "title", "placeholder", "alt"].map((name) => each.getAttribute(name) || ""))]
  .join("\\n")
"""
# Elements wider than the window, by tag, class and first words.
WIDE = """
document.documentElement.scrollWidth <= document.documentElement.clientWidth ? [] :
  [...document.querySelectorAll("body *")]
    .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
    .map((each) => `${each.tagName}.${each.className} ${each.textContent.trim().slice(0, 40)}`)
    .slice(-6)
"""


@pytest.fixture
async def taking(tmp_path: Path) -> AsyncIterator[Shop]:
    """A daemon that takes payments and pays earnings out."""
    async with shop(tmp_path) as running:
        yield running


@dataclass
class World:
    """A user with one of everything, and the identifiers for the pages' paths."""

    service: Service
    person: Person
    ids: dict[str, str]

    def address(self, path: str) -> str:
        """Return a page's address, with the identifier of its object."""
        return self.service.url + path.replace("{id}", self.ids.get(path, ""))


async def paid(taking: Shop, person: Person) -> dict[str, str]:
    """Pay, have a part back, earn and request a payout; return the identifiers for the pages."""
    service = taking.service
    await taking.confirm(person)
    payment_id = await taking.pay(person)
    await work(service, person, 2_000)
    bank = {"kind": "bank", "holder": "Ada", "iban": "DE89370400440532013000"}

    async def call(path: str, body: Any) -> Any:
        answer = await service.call("POST", path, body, token=person.token)
        assert answer.status == 200, (path, answer.body)
        return answer.body

    await call(f"/api/payments/{payment_id}/refund", {"amount_usd": 1})
    added = await call("/api/payouts/methods", bank)
    await call("/api/payouts", {"amount": 1_000, "method_id": added["method"]["id"]})
    return {
        "/console/wallet/pay/{id}": payment_id,
        "/console/wallet/receipt/{id}": payment_id,
    }


async def made(taking: Shop, area: str) -> World:
    """Buy, put up and register one of everything."""
    service = taking.service
    person = await service.person(usd="10", credit="100")
    if area == "money":
        return World(service, person, await paid(taking, person))

    async def call(method: str, path: str, body: Any) -> Any:
        answer = await service.call(method, path, body, token=person.token)
        assert answer.status in (200, 201), (path, answer.body)
        return answer.body

    bought = await service.buy(person)
    device = await call("POST", "/api/worker/token/create", {"name": "rig-with-a-long-name-1"})
    report = {"hostname": "rig.example.com", "gpu_name": "H200", "cpu_cores": 8, "ram_gb": 64}
    job = await call("POST", "/api/jobs", JOB)

    async def told(path: str, body: Any = None) -> None:
        headers = {"X-Worker-Token": device["token"]}
        answer = await service.call("POST", path, body, headers=headers)
        assert answer.status == 200, answer.body

    await told("/api/worker/heartbeat", report)
    await (
        service.daemon.market.devices.reports.flush()
    )  # its event comes now, and not under the pages
    await told(f"/api/jobs/{job['job_id']}/accept")
    await told(f"/api/worker/jobs/{job['job_id']}/fail", FAILED)
    deploy = await call("POST", "/api/deploy/job", DEPLOY)
    ids = {
        "/console/sessions/{id}": bought.id,
        "/console/devices/{id}": device["token_id"],
        "/console/jobs/{id}": job["job_id"],
        "/console/deploys/{id}": deploy["job_id"],
    }
    if area == "account":
        hook = await call("POST", "/api/webhooks", HOOK)
        await call("POST", "/api/keys", API_KEY)
        ids["/console/webhooks/{id}"] = hook["webhook"]["id"]
    return World(service, person, ids)


def pages_of(area: str) -> list[tuple[str, str]]:
    return [(path, module) for path, module in PAGES if module.split("/")[0] == area]


def test_every_page_of_the_table_has_its_module_and_is_looked_at() -> None:
    assert len(PAGES) >= 33
    assert {module.split("/")[0] for _, module in PAGES} == set(AREAS)
    for _, module in PAGES:
        assert (FOLDER / "pages" / f"{module}.js").exists(), module


def test_no_key_of_words_is_a_type_of_events() -> None:
    """A page may show a type as it is, so a key of the same name without its words is missed."""
    assert KEYS.isdisjoint(CATALOGUE)


async def entered(world: World, visit: Visit, area: str) -> Tab:
    """Open the console, with a login unless the pages come before it."""
    tab = await visit.open(f"{world.service.url}/login")
    await be_patient(tab)
    if area != "entry":
        await log_in(tab, world.person.email)
    await tab.settled()
    return tab


def twice(sent: list[Sent]) -> list[str]:
    """Return the addresses of the API that were requested more than once."""
    asked = [each.url for each in sent if each.method == "GET" and each.kind == "Fetch"]
    return sorted({url for url in asked if asked.count(url) > 1})


async def speaking(tab: Tab, language: str, address: str) -> None:
    await tab.run(f"localStorage.setItem('proxyd.language', '{language}') && 0")
    await tab.goto(address)
    await tab.settled()


@pytest.mark.parametrize(
    "languages", [LANGUAGES[:1], pytest.param(LANGUAGES[1:], marks=pytest.mark.long)], ids=" ".join
)
@pytest.mark.parametrize("area", brief(AREAS, 2))
async def test_pages_fit_and_speak_every_language(
    taking: Shop, visit: Visit, area: str, languages: list[str]
) -> None:
    world = await made(taking, area)
    tab = await entered(world, visit, area)
    wrong = []
    for path, _ in pages_of(area):
        for language in languages:
            before = len(tab.requests)
            await speaking(tab, language, world.address(path))
            wrong += [f"{path} asks twice: {url}" for url in twice(tab.requests[before:])]
            for width in EVERY if language == "en" else NARROWEST:
                await tab.emulate(width=width)
                wide = await tab.run(WIDE)
                wrong += [f"{path} {language} {width}: {each}" for each in wide]
            said = await tab.run(SAID)
            assert await tab.run("document.documentElement.lang") == language
            # Pages of webhooks and events show a type such as "account.resumed" as the API has it.
            keys = [key for key in KEY.findall(said) if key not in CATALOGUE]
            wrong += [f"{path} {language}: {key}" for key in keys]
            assert await tab.run("document.querySelector('main h1').textContent.trim()"), path
    assert not wrong, "\n".join(wrong)


@needs_axe
@pytest.mark.parametrize(
    "views",
    [
        pytest.param([(False, WIDTHS[0]), (True, WIDTHS[1])], id="light wide, dark narrow"),
        pytest.param(
            [(True, WIDTHS[0]), (False, WIDTHS[1])],
            id="dark wide, light narrow",
            marks=pytest.mark.long,
        ),
    ],
)
@pytest.mark.parametrize("area", brief(AREAS))
async def test_pages_are_clean_by_axe(
    taking: Shop, visit: Visit, area: str, views: list[tuple[bool, int]]
) -> None:
    world = await made(taking, area)
    tab = await entered(world, visit, area)
    wrong = []
    for path, _ in pages_of(area):
        await tab.emulate(dark=False, width=WIDTHS[0])
        await tab.goto(world.address(path))
        await tab.settled()
        for dark, width in views:
            await tab.emulate(dark=dark, width=width)
            found = await faults(tab, colours_alone=dark)
            wrong += [f"{path} {'dark' if dark else 'light'} {width}: {each}" for each in found]
    assert not wrong, "\n".join(wrong)
