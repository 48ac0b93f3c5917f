"""API keys, webhooks and events in a browser: a key that curl uses, a server that gets webhooks."""

import asyncio
import re
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from standardwebhooks.webhooks import Webhook
from support.base.cases import cases
from support.base.waiting import until
from support.console.axe import faults, needs_axe
from support.console.browser import Tab, Visit
from support.console.console import opened
from support.daemons.service import Person, Service
from support.targets.receiver import Receiver, receiving

from api.console import FOLDER
from market.accounts.scopes import Scope
from market.events.catalogue import CATALOGUE
from market.notify.feed import FeedPace, beginning_of
from storage.events import events as event_queries
from storage.events.events import EventRow

SHOWN = "document.querySelectorAll('dialog .copy-text')"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


async def curl(line: str) -> tuple[int, dict[str, object]]:
    """Run a line that the page showed, as its reader would; return the status and the answer."""
    program, *rest = shlex.split(line)
    run = await asyncio.create_subprocess_exec(
        program, "-sS", "-w", "\n%{http_code}", *rest, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await run.communicate()
    body, _, status = said.decode().rpartition("\n")
    return int(status), msgspec.json.decode(body)


async def shown(tab: Tab, count: int) -> list[str]:
    """Return the secrets that a dialog shows once, and confirm that they are stored."""
    await tab.until(f"{SHOWN}.length === {count}")
    texts = await tab.run(f"[...{SHOWN}].map((each) => each.textContent)")
    await tab.click("I have stored it")
    await tab.until("!document.querySelector('dialog')")
    return [str(text) for text in texts]


async def kept_nowhere(tab: Tab, secret: str) -> bool:
    """Say that a secret is in no place of the page that outlives the dialog."""
    places = "location.href + JSON.stringify([localStorage, sessionStorage, history.state])"
    return secret not in await tab.run(f"{places} + document.documentElement.outerHTML")


@cases(
    ("module", "name", "stem", "all_there_is"),
    [("access", "TYPES", "type", CATALOGUE), ("keys", "SCOPES", "scope", Scope)],
)
def test_the_pages_offer_all_functions(
    module: str, name: str, stem: str, all_there_is: Iterable[str]
) -> None:
    text = (FOLDER / "pages" / "account" / f"{module}.js").read_text()
    found = re.search(rf"const {name} = \[([^\]]*)\];", text)
    assert found is not None
    assert re.findall('"([^"]+)"', found[1]) == list(all_there_is)
    sentences = msgspec.json.decode((FOLDER / "words" / "access.en.json").read_bytes())
    assert {f"access.{stem}.{each}" for each in all_there_is} <= set(sentences)


@pytest.mark.long
async def test_a_key_is_made_used_changed_replaced_and_revoked(
    service: Service, visit: Visit
) -> None:
    person = await service.person()
    tab = await opened(visit, service, person, "/console/keys")
    await tab.until_text("You have no key yet")
    await tab.fill("Name", "ci")
    await tab.click("Make the key")
    await tab.until_text("Tick at least one thing", ".problem:not([hidden])")
    await tab.fill("See the usage", value=True)
    await tab.fill("May spend, in USD", "5")
    await tab.click("Make the key")
    key, line = await shown(tab, 2)
    assert key.startswith("pxd_")
    assert await kept_nowhere(tab, key)
    await tab.until_text("Never used", ".table")
    await tab.until_text("$0.00 of $5.00", ".table")
    status, body = await curl(line)
    assert (status, body["today"]["bytes"]) == (200, 0)  # type: ignore[index]
    status, body = await curl(line.replace("/api/usage/summary", "/api/wallet"))
    assert (status, body["error"]["code"]) == (401, "scope_missing")  # type: ignore[index]
    await tab.goto(f"{service.url}/console/keys")
    await tab.until_text("from 127.0.0.", ".table")

    await tab.click("Edit: ci")
    await tab.click("Cancel")
    assert "Edit" in await tab.focused()
    await tab.click("Edit: ci")
    await tab.fill("Only from these addresses", "10.0.0.0/8 nowhere")
    visit.expect("400")
    await tab.click("Save")
    await tab.until_text("allow_ips takes addresses", ".problem:not([hidden])")
    await tab.fill("Only from these addresses", "10.0.0.0/8")
    await tab.click("Save")
    await tab.until_text("from 10.0.0.0/8 only", ".table")
    assert (await curl(line))[0] == 401
    await tab.click("Edit: ci")
    await tab.fill("Only from these addresses", "")
    await tab.click("Save")
    await tab.until("!document.querySelector('.table').textContent.includes('10.0.0.0/8')")

    await tab.click("Replace: ci")
    await tab.fill("The old key goes on for", "1")
    await tab.click("form button[type=submit]")
    other, other_line = await shown(tab, 2)
    assert other != key
    assert [(await curl(each))[0] for each in (line, other_line)] == [200, 200]
    await tab.until("document.querySelectorAll('.table tbody tr').length === 2")
    await tab.click("Revoke: ci")
    await tab.click("dialog button[value=yes]")
    await tab.until_text("Revoked", ".table")
    assert sorted([(await curl(each))[0] for each in (line, other_line)]) == [200, 401]


@pytest.mark.long
async def test_the_objects_of_a_revoked_key_are_seen_and_ended(
    service: Service, visit: Visit
) -> None:
    person = await service.person()
    scopes = [Scope.WEBHOOKS_WRITE, Scope.DEVICES_WRITE]
    body = {"name": "thief", "scopes": scopes}
    key = (await service.call("POST", "/api/keys", body, token=person.token)).body["key"]
    tab = await opened(visit, service, person, "/console/keys")
    await tab.until_text("thief", ".table")
    # The open page follows.
    hook = {"url": "https://thief.example.com/", "types": ["*"]}
    assert (await service.call("POST", "/api/webhooks", hook, token=key)).status == 200
    await tab.until_text("in use: 1 webhooks, 0 worker tokens", ".table")
    made = await service.call("POST", "/api/worker/token/create", {"name": "rig"}, token=key)
    await tab.until_text("in use: 1 webhooks, 1 worker tokens", ".table")

    await tab.click("Revoke: thief")
    await tab.click("dialog button[value=yes]")
    await tab.until_text("1 webhooks and 1 worker tokens that still work", "dialog")
    await tab.click("dialog button[value=no]")
    await tab.until_text("Revoked", ".table")
    device = {"X-Worker-Token": made.body["token"]}
    heartbeat = ("POST", "/api/worker/heartbeat", {})
    assert (await service.call(*heartbeat, headers=device)).status == 200

    # Later, after all.
    await tab.click("End its webhooks and tokens: thief")
    await tab.click("dialog button[value=yes]")
    await tab.until("!document.querySelector('.table').textContent.includes('in use')")
    assert (await service.call(*heartbeat, headers=device)).code == "worker_unauthorized"
    hooks = await service.call("GET", "/api/webhooks", token=person.token)
    assert [each["status"] for each in hooks.body["webhooks"]] == ["disabled"]
    assert "End its webhooks and tokens" not in await tab.text(".table")


@pytest.mark.long
async def test_a_webhook_is_made_tried_broken_and_sent_again(
    service: Service, visit: Visit, receiver: Receiver
) -> None:
    person = await service.person()
    tab = await opened(visit, service, person, "/console/webhooks")
    await tab.until_text("You have no endpoint yet")
    await tab.fill("Address", receiver.url)
    await tab.click("Add the webhook")
    await tab.until_text("Tick at least one event", ".problem:not([hidden])")
    await tab.fill("API key made", value=True)
    await tab.click("Add the webhook")
    [secret] = await shown(tab, 1)
    await tab.until("location.pathname.startsWith('/console/webhooks/')")
    assert await kept_nowhere(tab, secret)
    await tab.until_text(receiver.url, ".address")
    await tab.until_text("Nothing of this kind was sent yet")

    await tab.click("Send a test")
    await tab.until_text("Delivered", ".table")
    await tab.until_text("answered 200", ".table")
    [(headers, body)] = receiver.got
    assert Webhook(secret).verify(body, headers)["type"] == "test.ping"

    receiver.status = 500
    await service.call(
        "POST", "/api/keys", {"name": "ci", "scopes": ["usage:read"]}, token=person.token
    )
    # Twice, seconds apart: the third attempt by itself is minutes away.
    await until(lambda: len(receiver.got) == 3, "the broken receiver is told")
    await tab.until_text("minutes", ".table")
    await tab.until_text("Failing now", ".facts")
    await tab.until_text("answered 500", ".table")
    await tab.click("Details: API key made")
    await tab.until_text("taken", ".card .card, .card:has(pre)")
    await tab.until_text("key.created", "pre")
    receiver.status = 200
    await tab.click("Send again: API key made")
    await tab.until("document.querySelectorAll('.table .badge.good').length === 2")
    await tab.until_text("answered 200", ".card:has(pre)")  # the shown details stay current
    await tab.click("Close")
    assert "Details" in await tab.focused()
    same = {headers["webhook-id"] for headers, _ in receiver.got[1:]}
    assert len(same) == 1
    await tab.fill("Show", "failed")
    await tab.until_text("Nothing of this kind was sent yet")


@pytest.mark.long
async def test_a_webhook_is_changed_switched_off_and_deleted(
    service: Service, visit: Visit, receiver: Receiver
) -> None:
    person = await service.person()
    hook = {"url": receiver.url, "types": ["job.completed"]}
    made = await service.call("POST", "/api/webhooks", hook, token=person.token)
    path = f"/console/webhooks/{made.body['webhook']['id']}"
    tab = await opened(visit, service, person, path)
    await tab.fill("Everything", value=True)
    visit.expect("400")
    await tab.fill("Address", "ftp://example.com/")
    await tab.click("Save")
    await tab.until_text("does not begin with https://", ".problem:not([hidden])")
    await tab.fill("Address", receiver.url)
    await tab.click("Save")
    await tab.until_text("Everything", ".facts")
    await tab.click("New secret")
    await tab.click("dialog button[value=yes]")
    [secret] = await shown(tab, 1)
    assert secret != made.body["secret"]
    await tab.click("Switch off")
    await tab.until_text("You have switched it off.", ".facts")
    await tab.until_text("It is sent nothing until you switch it on.")
    await tab.click("Switch on")
    await tab.until_text("On", ".facts .badge.good")
    receiver.status = 410
    await tab.click("Send a test")
    await tab.until_text("It answered 410: gone for good.", ".facts")
    await tab.until_text("Failed", ".table")
    receiver.status = 200
    await tab.click("Switch on")
    await tab.until_text("On", ".facts .badge.good")
    # East of Greenwich the day has been longer: the filled-in time is this place's own.
    await tab.ask("Emulation.setTimezoneOverride", timezoneId="Asia/Seoul")
    for minutes, said in ((1, "0 events are sent again."), (-60, "1 event is sent again.")):
        moment = datetime.now(ZoneInfo("Asia/Seoul")) + timedelta(minutes=minutes)
        await tab.fill("Since", f"{moment:%Y-%m-%dT%H:%M}")
        await tab.click("form button[type=submit]")
        await tab.until_text(said)
    await tab.until_text("Delivered", ".table")
    await tab.click("Delete the webhook")
    await tab.click("dialog button[value=yes]")
    await tab.until_text("You have no endpoint yet")
    visit.expect("404")
    await tab.goto(service.url + path)
    await tab.until("document.querySelector('.failed .notice.bad')?.textContent.length > 5")


async def deposited_long_ago(service: Service, person: Person) -> None:
    """Record an event that no stream repeats, because it is older than a stream's beginning."""
    now = service.daemon.market.context.now() - 3600
    data = '{"amount":7.0,"currency":"usd","reference":"r"}'
    event_id = f"{beginning_of(now)}7000-8000-000000000000"
    row = EventRow(event_id, person.user_id, "wallet.deposited", None, data, now)
    await service.daemon.store.write(event_queries.insert, [row])


async def test_events_come_by_themselves_and_are_filtered(service: Service, visit: Visit) -> None:
    # A rare event is in no first part.
    service.daemon.market.event_feed.pace = FeedPace(looked_at_events=20)
    person = await service.person()
    tab = await opened(visit, service, person, "/console/events")
    await tab.until_text("Nothing has happened yet")
    await service.fund(person.email, "10")
    await tab.until_text("$10.00 came into your wallet", ".happenings")
    await tab.until("document.documentElement.dataset.live === 'live'")
    ids = []
    for number in range(50):
        body = {"name": f"key {number}", "scopes": ["usage:read"]}
        made = await service.call("POST", "/api/keys", body, token=person.token)
        assert made.status == 200, made.body
        ids.append(made.body["key_id"])
    await tab.until_text("The API key “key 0” was made", ".happenings")
    await service.call("POST", f"/api/keys/{ids[0]}/revoke", token=person.token)
    await tab.until_text("The API key “key 0” was revoked", ".happenings")
    await tab.fill("Show", "API key revoked")
    await tab.until("document.querySelectorAll('.happenings li').length === 1")
    await tab.until("location.search === '?type=key.revoked'")
    # It is older than all events on the page.
    await tab.goto(f"{service.url}/console/events")
    await tab.until("document.querySelectorAll('.happenings li').length === 50")
    await deposited_long_ago(service, person)
    await tab.fill("Show", "Money came in")
    await tab.until_text("$7.00 came into your wallet", ".happenings")
    await tab.fill("Show", "Job done")
    await tab.until_text("Nothing of this kind has happened")
    await tab.goto(f"{service.url}/console/events")
    await tab.until("document.querySelectorAll('.happenings li').length === 50")
    await tab.click("Load more")
    await tab.until("document.querySelectorAll('.happenings li').length > 50")
    await tab.until_text("The API key “key 0” was made", ".happenings")
    await tab.click("The API key “key 0” was revoked")
    await tab.until("location.pathname === '/console/keys'")


@pytest.mark.long
@needs_axe
async def test_an_unfolded_part_is_clean_by_axe(
    service: Service, visit: Visit, receiver: Receiver
) -> None:
    person = await service.person()
    key = {"name": "ci", "scopes": ["usage:read"], "spend_limit_usd": 5}
    hook = {"url": receiver.url, "types": ["*"]}
    made = {}
    for path, body in (("/api/keys", key), ("/api/webhooks", hook)):
        made[path] = await service.call("POST", path, body, token=person.token)
        assert made[path].status == 200, made[path].body
    place = f"/webhooks/{made['/api/webhooks'].body['webhook']['id']}"
    await service.call("POST", f"/api{place}/test", token=person.token)
    tab = await opened(visit, service, person, "/console/keys")
    await tab.click("Edit: ci")
    await tab.settled()
    wrong = await faults(tab)
    await tab.goto(f"{service.url}/console{place}")
    await tab.until_text("answered 200", ".table")
    await tab.click("Details: Test")
    await tab.until_text("test.ping", "pre")
    await tab.settled()
    assert wrong + await faults(tab) == []
    await tab.emulate(width=360)
    assert await faults(tab) == []
