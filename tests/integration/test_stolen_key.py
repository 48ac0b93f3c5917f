"""A stolen API key: found by the address of its use, revoked, and all that it made is ended.

The commands and the daemon are processes, as an operator runs them. The daemon stands behind a
proxy, so the thief has another address than the user.
"""

import asyncio
import json
import re
import socket
from typing import Any

import pytest
from support.base.brief import brief
from support.base.ports import free_port
from support.base.waiting import until
from support.daemons import process
from support.daemons.process import Process
from support.targets import threads
from support.targets.mailbox import Mailbox, smtp

ADA = {"username": "ada", "email": "ada@example.com", "password": "a long password"}
THIEF = {"X-Forwarded-For": "203.0.113.77"}
SCOPES = ["sessions:write", "devices:write", "webhooks:write", "usage:read"]
WHY = ("--reason", "ada telephoned: somebody has copied the key")
HOOK = {"url": "https://thief.example/", "types": ["*"]}


class Story:
    """A daemon with a user, and the commands of the staff beside it."""

    def __init__(self, url: str, port: int) -> None:
        self.url = url
        self.settings = {
            "PROXYD_API__TRUSTED_PROXIES": '["127.0.0.1"]',
            "PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": "50000",
            "PROXYD_MAIL__HOST": "127.0.0.1",
            "PROXYD_MAIL__PORT": str(port),
            "PROXYD_MAIL__TLS": "none",
        }
        self.daemon = Process(url, **self.settings)

    def staff(self, *words: str) -> Any:
        """Run a command of the staff, and return its document."""
        done = process.run(self.url, *words, "--json", **self.settings)
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    def asked(self, path: str, body: Any, token: str = "", *, is_thief: bool = False) -> Any:
        """Post to the API, as the user or as the thief; return the answer."""
        headers = THIEF if is_thief else {}
        status, answer = self.daemon.call("POST", path, body, token, headers)
        assert status == 200, answer
        return answer

    def as_thief(self, key: str) -> tuple[int, Any]:
        """Ask for the sessions with the key."""
        return self.daemon.call("POST", "/api/bandwidth/create", {"gb": 1}, key, THIEF)


def stolen(story: Story, token: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Make a key, and let a thief use it; return the key, the thief's session and device."""
    new = {"name": "nightly", "scopes": SCOPES}
    key = story.asked("/api/keys", new, token)["key"]
    bought = story.asked("/api/bandwidth/create", {"gb": 5}, key, is_thief=True)
    rig = {"name": "rig", "device_type": "server"}
    device = story.asked("/api/worker/token/create", rig, key, is_thief=True)
    story.asked("/api/webhooks", HOOK, key, is_thief=True)
    return key, bought, device


def found(story: Story) -> str:
    """Find the key by the address that the thief used; return its beginning."""
    by_address = story.staff("who", "203.0.113.77")["found"]
    [hit] = [hit for each in by_address for hit in each["hits"] if hit["kind"] == "key"]
    assert hit["username"] == "ada"
    page = story.staff("user", "show", hit["user"])
    [key] = page["keys"]
    assert (key["id"], key["name"], key["revoked"]) == (hit["id"], "nightly", None)
    assert key["last_used"]
    assert "203.0.113" not in json.dumps(page)  # masked until a reason is given
    story.staff("user", "reveal", hit["user"], *WHY)
    [key] = story.staff("user", "show", hit["user"])["keys"]
    assert key["last_used_network"].startswith("203.0.113.")
    return str(key["prefix"])


def ended(connection: socket.socket) -> bool:
    """Read to the end of a connection; False if it still carries bytes after a while."""
    connection.settimeout(5)
    try:
        while connection.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def judged(story: Story, token: str) -> str:
    """The theft and its end; return the identifier of the key."""
    key, bought, device = stolen(story, token)
    daemon = story.daemon
    worker = {"X-Worker-Token": device["token"]}
    with (
        threads.endless() as target,
        process.proxied(daemon, bought["proxy"], target.port) as line,
    ):
        assert line.recv(1)
        prefix = found(story)
        assert story.staff("key", "revoke", prefix, *WHY)["revoked"]["name"] == "nightly"
        status, refusal = story.as_thief(key)
        assert (status, refusal["error"]["code"]) == (401, "unauthorized")
        # The session is paid, and outlives the key: the member ends it apart.
        assert line.recv(1)
        cut = story.staff("session", "end", bought["session_id"], *WHY)["cut"]
        assert (cut["answered"], cut["connections"]) == (1, 1)
        assert ended(line)
    with pytest.raises(OSError, match="auth") as refused:
        process.proxied(daemon, bought["proxy"], target.port)
    assert process.is_refused(refused.value)
    # Devices and webhooks of the key end if its owner wishes it.
    assert daemon.call("GET", "/api/worker/jobs", headers=worker)[0] == 200
    _, listed = daemon.call("GET", "/api/keys", token=token)
    [mine] = listed["keys"]
    assert (mine["created_devices"], mine["created_webhooks"]) == (1, 1)
    story.asked(f"/api/keys/{mine['id']}/revoke", {"with_created": True}, token)
    assert daemon.call("GET", "/api/worker/jobs", headers=worker)[0] == 401
    _, hooks = daemon.call("GET", "/api/webhooks", token=token)
    assert [each["disabled_reason"] for each in hooks["webhooks"]] == ["key"]
    return str(mine["id"])


def recorded(story: Story, token: str, key_id: str) -> None:
    """Check what the owner and the log of the staff say about it."""
    _, answer = story.daemon.call("GET", "/api/events?types=key.revoked", token=token)
    [event] = answer["events"]
    assert (event["data"]["key_id"], "telephoned" in json.dumps(answer)) == (key_id, False)
    acts = story.staff("log", "--user", "ada", "--limit", "50")["log"]
    assert {"key.revoke", "session.end", "user.reveal", "user.view"} <= {
        each["action"] for each in acts
    }
    [act] = [each for each in acts if each["action"] == "key.revoke"]
    assert act["text"] == WHY[1]


@pytest.mark.parametrize("engine", brief(["sqlite", "postgres"]))
@pytest.mark.both_engines
async def test_a_stolen_key_is_found_by_an_address_and_ended(store_url: str) -> None:
    mailbox = Mailbox()
    port = free_port()
    story = Story(store_url, port)
    async with smtp(mailbox, port=port):
        with process.running(story.daemon) as daemon:
            await asyncio.to_thread(daemon.wait_ready)
            token = (await asyncio.to_thread(story.asked, "/auth/register", ADA))["token"]
            await until(lambda: len(mailbox.emails) == 1, "the e-mail to confirm")
            [link] = re.findall(r"token=(\S+)", mailbox.emails[0].get_content())
            await asyncio.to_thread(story.asked, "/auth/verify", {"token": link})
            paid = ("wallet", "deposit", ADA["email"], "--usd", "20", "--reference", "story-1")
            done = await asyncio.to_thread(process.run, store_url, *paid, **story.settings)
            assert done.returncode == 0, done
            key_id = await asyncio.to_thread(judged, story, token)
            await asyncio.to_thread(recorded, story, token, key_id)
            await until(lambda: len(mailbox.emails) == 2, "the letter about the key")
            letter = mailbox.emails[1]
            assert letter["Subject"] == "An API key was revoked"
            assert "nightly" in letter.get_content()
            assert "telephoned" not in letter.get_content()
            assert await asyncio.to_thread(daemon.stop) == 0
    await asyncio.to_thread(process.assert_audit, store_url)
