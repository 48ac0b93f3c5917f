"""kill -9 in the middle of deliveries: everything arrives, and is written down once."""

import asyncio
import signal
from typing import Any

from standardwebhooks.webhooks import Webhook
from support.base.waiting import until
from support.daemons.process import Process
from support.targets.receiver import receiving

EVA = {"username": "eva", "email": "eva@example.com", "password": "a first password"}
EVENTS = 6


def asked(daemon: Process, method: str, path: str, token: str = "", body: Any = None) -> Any:
    status, answer = daemon.call(method, path, body, token)
    assert status == 200, answer
    return answer


async def test_deliveries_under_way_are_sent_again_after_a_kill(store_url: str) -> None:
    with receiving() as receiver:
        daemon = await asyncio.to_thread(lambda: Process(store_url).wait_ready())
        try:
            token = asked(daemon, "POST", "/auth/register", body=EVA)["token"]
            body = {"url": receiver.url, "types": ["*"]}
            made = asked(daemon, "POST", "/api/webhooks", token, body)
            path = f"/api/webhooks/{made['webhook']['id']}"

            async def delivered(count: int) -> bool:
                where = f"{path}/deliveries?status=delivered"
                answer = await asyncio.to_thread(asked, daemon, "GET", where, token)
                return len(answer["deliveries"]) == count

            # Before its first good reply an endpoint gets only the deliveries of one look.
            asked(daemon, "POST", f"{path}/test", token)
            await until(lambda: delivered(1), "the endpoint has replied")
            receiver.is_open.clear()
            for _ in range(EVENTS):
                asked(daemon, "POST", f"{path}/test", token)
            # As many as one endpoint is sent at once are in the middle.
            await until(lambda: len(receiver.got) == 5, "attempts are under way")
        finally:
            await asyncio.to_thread(daemon.stop, signal.SIGKILL)
        receiver.is_open.set()
        daemon = await asyncio.to_thread(lambda: Process(store_url).wait_ready())
        try:
            token = await asyncio.to_thread(daemon.log_in, EVA["email"], EVA["password"])
            await until(lambda: delivered(EVENTS + 1), "everything is delivered")
            deliveries = asked(daemon, "GET", f"{path}/deliveries", token)["deliveries"]
        finally:
            await asyncio.to_thread(daemon.stop)
    assert [each["attempts"] for each in deliveries] == [1] * (EVENTS + 1)
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert sorted(set(ids)) == sorted(each["event_id"] for each in deliveries)
    assert len(ids) == EVENTS + 1 + 4  # the four in the middle twice, by the same identifiers
    for headers, body in receiver.got:
        assert Webhook(made["secret"]).verify(body, headers)["type"] == "test.ping"
