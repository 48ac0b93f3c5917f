"""Secrets that are handed out are found neither in the log, nor in the database, nor in `ps`."""

import asyncio
import base64
import re
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from support.base.waiting import until
from support.daemons import process
from support.daemons.process import Fresh, Process
from support.targets import threads
from support.targets.mailbox import Mailbox, smtp

PASSWORDS = ("a first password", "a second password")
MAIL_PASSWORD = "a password for mail"
MODEL_KEY = "a-key-for-the-model"
JOB_SECRET = "a-secret-of-a-job"
EMAIL = "ada@example.com"


class Conversation:
    """A user of everything that hands out or takes a secret; `secrets` are all of them."""

    def __init__(self, daemon: Process, mailbox: Mailbox) -> None:
        self.daemon = daemon
        self.mailbox = mailbox
        self.secrets: dict[str, str] = {}

    async def call(self, path: str, body: Any = None, token: str = "", **headers: str) -> Any:
        """Ask the API."""
        ask = partial(self.daemon.call, "POST", path, body, token, headers)
        status, answer = await asyncio.to_thread(ask)
        assert status == 200, answer
        return answer

    async def letter(self, kind: str) -> str:
        """Return the secret of the latest letter of a kind."""
        found: list[str] = []

        def has_come() -> bool:
            texts = "".join(each.get_content() for each in self.mailbox.emails)
            found[:] = re.findall(rf"/{kind}\?token=([\w-]+)", texts)
            return bool(found)

        await until(has_come, f"the letter to {kind}")
        return found[-1]

    async def hold(self, port: int) -> None:
        """Have it."""
        keep = self.secrets
        account = {"username": "ada", "email": EMAIL, "password": PASSWORDS[0]}
        keep["first token"] = (await self.call("/auth/register", account))["token"]
        keep["verification"] = await self.letter("verify")
        await self.call("/auth/verify", {"token": keep["verification"]})
        await self.call("/auth/password/forgot", {"email": EMAIL})
        keep["reset"] = await self.letter("reset")
        await self.call("/auth/password/reset", {"token": keep["reset"], "password": PASSWORDS[1]})
        funding = process.run, self.daemon.url, "wallet", "deposit", EMAIL, "--usd", "9"
        assert (await asyncio.to_thread(*funding)).returncode == 0
        login = {"email": EMAIL, "password": PASSWORDS[1]}
        token = keep["second token"] = (await self.call("/auth/login", login))["token"]
        keep["refreshed token"] = (await self.call("/auth/refresh", token=token))["token"]
        await self.buy(token, port)
        key = {"Idempotency-Key": "a-key-of-a-worker"}
        worker = await self.call("/api/worker/token/create", {"name": "rig"}, token, **key)
        keep["worker token"] = worker["token"]
        await self.call("/api/worker/heartbeat", {}, **{"X-Worker-Token": worker["token"]})
        await self.run(token, worker["token"])
        await self.have_keys(token)
        await self.call("/api/assistant/chat", {"message": "How much have I left?"}, token)
        keep |= {f"password {number}": each for number, each in enumerate(PASSWORDS)}
        keep |= {"mail password": MAIL_PASSWORD, "model key": MODEL_KEY}

    async def have_keys(self, token: str) -> None:
        """Make an API key, use it, mistype it and replace it; let a program in; make a webhook."""
        made = await self.call("/api/keys", {"name": "k", "scopes": ["sessions:read"]}, token)
        key = self.secrets["API key"] = made["key"]
        for shown in (key, key[:-1]):
            path = "/api/bandwidth/sessions"
            await asyncio.to_thread(self.daemon.call, "GET", path, None, shown)
        rolled = await self.call(f"/api/keys/{made['key_id']}/roll", {}, token)
        self.secrets["replaced API key"] = rolled["key"]
        asking = {"client_name": "attic", "scopes": ["usage:read"]}
        codes = await self.call("/auth/device", asking)
        self.secrets["device code"] = codes["device_code"]
        await self.call(f"/auth/device/{codes['user_code']}/approve", token=token)
        let_in = await self.call("/auth/device/token", {"device_code": codes["device_code"]})
        self.secrets["key of a program"] = let_in["key"]
        endpoint = {"url": "https://webhooks.example.com/", "types": ["*"]}
        webhook = await self.call("/api/webhooks", endpoint, token)
        self.secrets["secret of a webhook"] = webhook["secret"]

    async def run(self, token: str, worker: str) -> None:
        """Put up a job with a secret, rightly and wrongly, and take it."""
        self.secrets["job's secret"] = JOB_SECRET
        payload = {"script": "true", "interpreter": "bash", "secrets": {"KEY": JOB_SECRET}}
        job = {"title": "t", "job_type": "script", "price_credit": 0, "duration_hrs": 1}
        answer = await self.call("/api/jobs", {**job, "payload": payload}, token)
        for wrong in ({"script": "", "secrets": {JOB_SECRET: "name"}}, {"secrets": [JOB_SECRET]}):
            body = {**job, "payload": {**payload, **wrong}}
            status, _ = await asyncio.to_thread(self.daemon.call, "POST", "/api/jobs", body, token)
            assert status == 400
        device = {"X-Worker-Token": worker}
        await self.call(f"/api/jobs/{answer['job_id']}/accept", **device)
        path = f"/api/worker/jobs/{answer['job_id']}"
        told = await asyncio.to_thread(self.daemon.call, "GET", path, None, "", device)
        assert told[1]["job"]["payload"]["secrets"] == {"KEY": JOB_SECRET}

    async def buy(self, token: str, port: int) -> None:
        """Buy a session twice by one key, so that the answer is kept, and use it in both ways."""
        key = {"Idempotency-Key": "a-key-of-a-session"}
        for _ in range(2):
            bought = await self.call("/api/bandwidth/create", {"gb": 0.001}, token, **key)
        proxy = bought["proxy"]
        self.secrets["proxy password"] = proxy["password"]
        shown = f"{proxy['username']}:{proxy['password']}"
        self.secrets["proxy credentials"] = base64.b64encode(shown.encode()).decode()
        await asyncio.to_thread(self.use, proxy, port)

    def use(self, proxy: dict[str, Any], port: int) -> None:
        """Use a session by SOCKS5 and by HTTP; then show wrong passwords, which are secrets too."""
        with process.proxied(self.daemon, proxy, port) as sock:
            sock.sendall(b"GET /bytes/10 HTTP/1.0\r\n\r\n")
            assert sock.recv(10)
        mistaken = dict(proxy, password="not-quite-" + proxy["password"][:8])
        self.secrets["mistaken proxy password"] = mistaken["password"]
        with pytest.raises(OSError, match="authentication failed"):
            process.proxied(self.daemon, mistaken, port)
        wrong = {"email": EMAIL, "password": "a mistaken password"}
        self.secrets["mistaken password"] = wrong["password"]
        assert self.daemon.call("POST", "/auth/login", wrong)[0] == 401
        broken = b'{"email": "ada@example.com", "password": "a password in broken JSON'
        self.secrets["broken password"] = "a password in broken JSON"
        assert self.daemon.call("POST", "/auth/login", broken.decode())[0] == 400


async def everything_kept(url: str) -> bytes:
    """Return every byte of a database, its log of changes included."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        rows = [
            row["kept"]
            for (table,) in tables
            for row in await connection.fetch(f'SELECT t::text AS kept FROM "{table}" t')
        ]
        return "\n".join(rows).encode()
    finally:
        await connection.close()


async def test_no_secret_is_found_where_it_does_not_belong(store_url: str, tmp_path: Path) -> None:
    mailbox = Mailbox()
    keyfile = tmp_path / "signing.key"
    async with smtp(mailbox) as mail_port:
        settings = {
            "PROXYD_LOG__LEVEL": "debug",
            "PROXYD_AUTH__SIGNING_KEY": "",
            "PROXYD_AUTH__SIGNING_KEY_FILE": str(keyfile),
            "PROXYD_MAIL__HOST": "127.0.0.1",
            "PROXYD_MAIL__PORT": str(mail_port),
            "PROXYD_MAIL__TLS": "none",
            "PROXYD_ASSISTANT__BASE_URL": "http://127.0.0.1:1",
            "PROXYD_ASSISTANT__API_KEY": MODEL_KEY,
            "PROXYD_ASSISTANT__MODEL": "m",
            "PROXYD_ASSISTANT__TIMEOUT_SECONDS": "2",
        }
        with threads.web() as web:
            daemon = Fresh(store_url, **settings)
            try:
                await asyncio.to_thread(daemon.wait_ready)
                conversation = Conversation(daemon, mailbox)
                await conversation.hold(web.port)
                shown = " ".join(psutil.Process(daemon.process.pid).cmdline()).encode()
                kept = await everything_kept(store_url)
            finally:
                await asyncio.to_thread(daemon.stop)
    conversation.secrets["signing key"] = keyfile.read_text().strip()
    told = daemon.output.encode()
    assert EMAIL.encode() in kept, "what is kept is looked through"
    assert b"credentials refused" in told, "what is told is looked through"
    for name, secret in conversation.secrets.items():
        assert len(secret) > 8
        for place, where in (("log", told), ("database", kept), ("command line", shown)):
            assert secret.encode() not in where, f"the {name} stands in the {place}"
