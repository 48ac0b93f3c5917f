"""Alerts to the webhook of the operator: signed, repeated, and each once."""

import json
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook
from support.base.waiting import until
from support.daemons.service import running_in
from support.market.market import Market
from support.targets.receiver import receiving

from market.accounts.outbox import Outbox
from market.base.sealing import Sealing
from market.staff.site.alerts import HOOK_CHANNEL, Alerts, Finding
from proxyd.egress.resolve import DnsResolver
from proxyd.outbound.alert_hook import AlertHook, poster_of
from storage.site import alerts as queries

KEY = b"a key of thirty-two bytes, or so"
SECRET = "whsec_YSBrZXkgb2YgdGhpcnR5LXR3byBieXRlcywgb3Igc28="


async def test_an_alert_is_signed_repeated_and_sent_once(market: Market) -> None:
    outbox = Outbox(market.context, Sealing(KEY, b"outbox"), HOOK_CHANNEL)
    alerts = Alerts(market.context, market.emails, (), "Ada's", 23, outbox)
    with receiving() as receiver:
        resolver = DnsResolver()
        hook = AlertHook(
            outbox, receiver.url, KEY, lambda: poster_of(resolver, "x"), market.context.now
        )
        receiver.status = 500
        await alerts.look([Finding("disk", "The disk has 3 % left.")])
        await hook.look()
        assert len(receiver.got) == 1
        await hook.look()  # it waits
        assert len(receiver.got) == 1
        receiver.status = 204
        market.clock.now += 60
        for _ in range(2):
            await hook.look()
        assert len(receiver.got) == 2
    first, second = receiver.got
    names = [{name.lower(): value for name, value in each[0].items()} for each in (first, second)]
    assert names[0]["webhook-id"] == names[1]["webhook-id"]
    assert names[0]["webhook-signature"] != names[1]["webhook-signature"]  # of another time
    assert json.loads(second[1])["data"]["kind"] == "disk"
    assert await outbox.due(again=True, limit=10) == []


@pytest.mark.both_engines
async def test_the_daemon_sends_to_the_webhook_of_its_settings(tmp_path: Path) -> None:
    with receiving() as receiver:
        settings = {"webhook_url": receiver.url, "webhook_secret": SECRET}
        async with running_in(tmp_path, alerts=settings) as service:
            context = service.daemon.market.context
            await context.store.write(queries.note_upkeep, "audit", 1, has_passed=False)
            for look in service.daemon.services._looks:
                if look.name == "alerts":
                    await look.run()
            await until(lambda: any(b'"audit"' in body for _, body in receiver.got))
    headers, body = next(each for each in receiver.got if b'"audit"' in each[1])
    Webhook(SECRET).verify(body, {name.lower(): value for name, value in headers.items()})
