"""A cheating exit: found by a canary, barred with its case upheld, and pardoned later.

The daemon and the commands of the staff are processes. The device speaks the protocol of exits, and
answers with invented pages.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.base.brief import brief
from support.base.waiting import until, until_true
from support.daemons import process
from support.daemons.process import Process
from support.exits.canaries import BODY, EVIL, answer, saying
from support.exits.device import Device, Obey, carry, hello
from support.exits.process import LISTENS
from support.targets import threads

from proxyctl.protocol.frames import DENY
from proxyd.exits.attached.certificate import own_certificate

PAGE = "/page"
WHY = ("--reason", "it injects scripts")


class Story:
    """A daemon that looks at exits, its people, and the commands of the staff."""

    def __init__(self, url: str, daemon: Process, settings: dict[str, str]) -> None:
        self.url = url
        self.daemon = daemon
        self._settings = settings
        owner, password = "owner@example.com", "long enough"
        self.owner = daemon.log_in(owner, password)
        bought = daemon.buy(daemon.log_in("buyer@example.com", password))
        username = bought["proxy"]["username"] + "-country-xx"
        self.proxy = {**bought["proxy"], "username": username}
        self.device_id, self.first = self._consented()

    def staff(self, *words: str) -> Any:
        """Run a command of the staff, and return its document."""
        return json.loads(self.printed(*words, "--json"))

    def printed(self, *words: str) -> str:
        """Run a command, and return its output."""
        done = process.run(self.url, *words, **self._settings)
        assert (done.returncode, done.stderr) == (0, ""), done
        return str(done.stdout)

    async def attached(self, obey: Obey) -> Device:
        """Attach the device, which obeys orders in a way."""
        listens = LISTENS.search(self.daemon.output)
        assert listens is not None, self.daemon.output
        device = Device(int(listens[1]))
        device.obey = obey
        return await device.attach(self.first)

    def state(self) -> str:
        """Return the state of the exit, as its owner sees it."""
        _, mine = self.daemon.call("GET", "/api/exits/me", token=self.owner)
        return str(mine["exits"][0]["state"])

    def reaches(self, port: int) -> bool:
        """Return whether a buyer reaches a port through an exit."""
        try:
            connection = process.proxied(self.daemon, self.proxy, port)
        except OSError:
            return False
        with connection:
            connection.sendall(f"GET {PAGE} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
            received = b""
            while data := connection.recv(65_536):
                received += data
        return received.endswith(BODY)

    def _consented(self) -> tuple[str, Any]:
        rig = {"name": "box", "device_type": "mini_pc"}
        status, made = self.daemon.call("POST", "/api/worker/token/create", rig, self.owner)
        assert status == 200, made
        _, terms = self.daemon.call("GET", "/api/exits/terms")
        agreed = {"token_id": made["token_id"], "terms_hash": terms["terms_hash"]}
        status, done = self.daemon.call("POST", "/api/worker/exit/consent", agreed, self.owner)
        assert status == 200, done
        first = hello(made["token"], terms=terms["terms_hash"], features=(DENY,))
        return str(made["token_id"]), first


def judged(story: Story) -> None:
    """Find the device, look at its history, uphold its case, and bar it."""
    device = story.device_id
    [found] = story.staff("who", device)["found"]
    [hit] = found["hits"]
    assert (hit["kind"], hit["username"]) == ("device", "owner")
    page = story.staff("user", "show", hit["user"])
    assert [each["id"] for each in page["devices"]] == [device]
    assert f"{device}  " in story.printed("exits", "list")
    shown = story.printed("exits", "show", device)
    assert "barred since" in shown
    assert "found content: " in shown
    [case] = story.staff("case", "list", "canary")["cases"]
    assert (case["device"], case["open"]) == (device, True)
    facts = story.staff("case", "show", "canary", case["id"])["facts"]
    assert {"name": "exit", "value": "barred"} in facts
    story.staff("case", "uphold", "canary", case["id"], *WHY)
    story.staff("exits", "bar", device, *WHY)
    _, events = story.daemon.call("GET", "/api/events?types=case.decided", token=story.owner)
    [event] = events["events"]
    assert WHY[1] in json.dumps(event)
    acts = story.staff("log", "--user", "owner", "--limit", "50")["log"]
    assert {"user.view", "case.view", "case.decide", "device.bar"} <= {
        each["action"] for each in acts
    }
    assert [each["text"] for each in acts if each["action"] == "device.bar"] == [WHY[1]]


@pytest.mark.parametrize("engine", brief(["sqlite", "postgres"]))
@pytest.mark.both_engines
async def test_a_cheating_exit_is_barred_its_case_upheld_and_later_pardoned(
    store_url: str, tmp_path: Path
) -> None:
    for name in ("owner", "buyer"):
        await asyncio.to_thread(process.funded, store_url, "20", name)
    with threads.web() as target:
        target.pages[PAGE] = BODY
        certificate = str(own_certificate(tmp_path / "certificate", 1_700_000_000))
        settings = {
            "PROXYD_EXITS__HOST": "127.0.0.1",
            "PROXYD_EXITS__PORT": "0",
            "PROXYD_EXITS__TLS_CERT": certificate,
            "PROXYD_EXITS__TLS_KEY": certificate,
            "PROXYD_EXITS__PORTS": f"[{target.port}]",
            "PROXYD_EXITS__CANARIES": json.dumps([f"http://127.0.0.1:{target.port}{PAGE}"]),
            "PROXYD_GEO__KNOWN": '{"127.0.0.0/8": "xx"}',
        }
        with process.running(Process(store_url, **settings)) as daemon:
            await asyncio.to_thread(daemon.wait_ready)
            story = await asyncio.to_thread(Story, store_url, daemon, settings)
            cheat = await story.attached(saying(answer(EVIL)))
            await until(lambda: cheat.is_over, "it is found and cut")
            await asyncio.to_thread(until_true, lambda: story.state() == "barred", "barred")
            await asyncio.to_thread(judged, story)
            again = await story.attached(carry)
            assert again.sorry is not None
            assert again.sorry.code == "exit_barred"
            assert not await asyncio.to_thread(story.reaches, target.port)

            pardon = ("exits", "pardon", story.device_id, "--reason", "another provider")
            await asyncio.to_thread(story.staff, *pardon)
            honest = await story.attached(carry)
            assert honest.welcome is not None, honest.sorry
            await asyncio.to_thread(
                until_true, lambda: story.reaches(target.port), "it carries again"
            )
            shown = await asyncio.to_thread(story.printed, "exits", "show", story.device_id)
            assert "not barred" in shown
            assert "content (pardoned)" in shown
            for device in (cheat, again, honest):
                await device.kill()
            assert await asyncio.to_thread(daemon.stop) == 0
    await asyncio.to_thread(process.assert_audit, store_url)
