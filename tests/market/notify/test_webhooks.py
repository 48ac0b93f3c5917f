"""Endpoints of webhooks and their deliveries: due times and outcomes."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from support.base.cases import cases
from support.market.events import said, types_of
from support.market.market import Market

from market.accounts.mail import Message, decoded
from market.base.errors import Code, MarketError
from market.events import recording as event_log
from market.events.catalogue import DeployFinished, Ping
from market.notify import webhooks
from market.notify.webhooks import (
    ENDPOINTS_MAX,
    FAILING_MAX_SECONDS,
    OVERLAP_SECONDS,
    RETENTION_SECONDS,
    SCHEDULE,
    Attempt,
    DeliveryOutcome,
    QueueBounds,
    Secret,
    WebhookTerms,
    checked_url,
)
from storage.engines.store import Transaction
from storage.events import events as event_queries
from storage.notify import webhooks as queries

URL = "https://example.com/hooks"
OK = DeliveryOutcome(200, "", 12, "thanks")
DOWN = DeliveryOutcome(None, "refused", 3)
DAY = 86_400


async def endpoint(
    market: Market, user_id: str, *types: str, url: str = "", is_new: bool = False
) -> Secret:
    """Make an endpoint, at a URL of its own; it has answered before, unless it is new."""
    count = len(await market.webhooks.all_of(user_id))
    url = url or (f"{URL}/{count}" if count else URL)
    made = await market.webhooks.create(
        user_id, url=url, types=list(types or ("*",)), description=""
    )
    if not is_new:
        await market.store.write(queries.end_failing, made.endpoint.id, url, market.clock.now)
    return made


async def happen(market: Market, user_id: str, deploy_id: str = "d") -> str:
    """Record something that happened, and return the event's identifier."""

    async def unit(tx: Transaction) -> str:
        data = DeployFinished(deploy_id)
        return (await event_log.record(tx, market.context, user_id, data)).id

    return await market.store.write(unit)


async def begun(market: Market) -> list[Attempt]:
    """Begin every attempt that is due."""
    due = await market.webhooks.due(but=(), limit=1_000)
    attempts = [await market.webhooks.begin(row.id) for row in due]
    return [attempt for attempt in attempts if attempt is not None]


async def deliver(market: Market, outcome: DeliveryOutcome = OK) -> int:
    """Make every due attempt with the same outcome. Return their number."""
    attempts = await begun(market)
    for attempt in attempts:
        await market.webhooks.settle(attempt, outcome)
    return len(attempts)


async def listed(market: Market, user_id: str, made: Secret) -> list[queries.DeliveryRow]:
    return await market.webhooks.deliveries(
        user_id, made.endpoint.id, status="", before="", limit=1_000
    )


def verified(made: Secret, attempt: Attempt) -> dict[str, object]:
    """Have the reference library verify an attempt as a receiver would, at the attempt's time."""
    receiver = Webhook(made.secret)
    now = datetime.fromtimestamp(attempt.started_at, UTC)
    # The library compares with the clock of the machine, which tests do not set.
    receiver._Webhook__verify_timestamp = lambda _: now  # type: ignore[attr-defined]
    return receiver.verify(attempt.body, attempt.headers)


@pytest.mark.both_engines
async def test_an_event_is_delivered_signed(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    event_id = await happen(market, me)
    [attempt] = await begun(market)
    said = verified(made, attempt)
    assert said["type"] == "deploy.finished"
    assert said["data"] == {"deploy_id": "d"}
    assert str(said["timestamp"]).endswith("Z")
    assert attempt.headers["webhook-id"] == event_id
    assert attempt.url == URL
    await market.webhooks.settle(attempt, OK)
    assert await begun(market) == []
    [row] = await listed(market, me, made)
    assert (row.status, row.attempts, row.last_status, row.last_ms) == ("delivered", 1, 200, 12)
    shown = await market.webhooks.delivery(me, row.id)
    assert shown.body == attempt.body.decode()
    assert [(each.number, each.answer) for each in shown.attempts] == [(1, "thanks")]


async def test_a_body_that_was_changed_or_signed_by_another_secret_is_refused(
    market: Market,
) -> None:
    me = await market.person()
    made, other = await endpoint(market, me), await endpoint(market, me)
    await happen(market, me)
    first = next(each for each in await begun(market) if each.row.endpoint_id == made.endpoint.id)
    with pytest.raises(WebhookVerificationError):
        verified(other, first)
    with pytest.raises(WebhookVerificationError):
        Webhook(made.secret).verify(first.body + b" ", first.headers)


async def test_only_wanted_events_are_delivered_and_only_to_their_user(market: Market) -> None:
    me, other = await market.person(), await market.person()
    await endpoint(market, me, "job.created", "job.failed")
    theirs = await endpoint(market, other, "deploy.finished")
    await happen(market, me)
    await happen(market, other)
    [attempt] = await begun(market)
    assert attempt.row.endpoint_id == theirs.endpoint.id


async def test_an_event_that_is_rolled_back_is_not_delivered(market: Market) -> None:
    me = await market.person()
    await endpoint(market, me)

    async def unit(tx: Transaction) -> None:
        await event_log.record(tx, market.context, me, DeployFinished("d"))
        raise LookupError

    with pytest.raises(LookupError):
        await market.store.write(unit)
    assert await begun(market) == []


async def test_both_secrets_sign_for_a_day_after_a_roll(market: Market) -> None:
    me = await market.person()
    old = await endpoint(market, me, "deploy.finished")
    new = await market.webhooks.roll(me, old.endpoint.id)
    assert new.secret != old.secret
    await happen(market, me)
    [attempt] = await begun(market)
    assert verified(old, attempt) == verified(new, attempt)
    market.clock.now += OVERLAP_SECONDS
    [attempt] = await begun(market)
    verified(new, attempt)
    with pytest.raises(WebhookVerificationError):
        verified(old, attempt)


async def test_a_secret_is_as_the_specification_says(market: Market) -> None:
    made = await endpoint(market, await market.person())
    kind, _, text = made.secret.partition("_")
    assert kind == "whsec"
    assert len(base64.b64decode(text, validate=True)) == 32
    assert text not in made.endpoint.sealed_secret


async def test_a_receiver_that_is_down_for_days_gets_everything_once(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    told: list[str] = []
    events = [await happen(market, me, f"{number}") for number in range(5)]
    began = market.clock.now
    while market.clock.now < began + 2 * DAY:
        await deliver(market, DOWN)
        market.clock.now += 600
    while market.clock.now < began + 4 * DAY:
        for attempt in await begun(market):
            told.append(attempt.headers["webhook-id"])
            await market.webhooks.settle(attempt, OK)
        market.clock.now += 600
    assert sorted(told) == events
    rows = await listed(market, me, made)
    assert {row.status for row in rows} == {"delivered"}
    [shown] = await market.webhooks.all_of(me)
    assert shown.failing_since is None


async def test_attempts_are_on_the_schedule_and_then_given_up(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    for pause in SCHEDULE[1:]:
        assert await deliver(market, DOWN) == 1
        [row] = await listed(market, me, made)
        assert row.status == "pending"
        assert 0.8 * pause <= row.next_at - market.clock.seconds() <= 1.2 * pause
        market.clock.now = row.next_at - 1
        assert await begun(market) == []
        market.clock.now += 1
    assert await deliver(market, DOWN) == 1
    [row] = await listed(market, me, made)
    assert (row.status, row.attempts, row.last_error) == ("failed", len(SCHEDULE), "refused")
    assert sum(SCHEDULE) * 1.2 < FAILING_MAX_SECONDS


async def test_an_attempt_that_ends_after_the_look_takes_its_pause(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    [attempt] = await begun(market)
    [listed_before] = await market.webhooks.due(but=(), limit=10)
    await market.webhooks.settle(attempt, DOWN)
    assert await market.webhooks.begin(listed_before.id) is None
    [row] = await listed(market, me, made)
    assert (row.status, row.attempts) == ("pending", 1)


async def test_a_server_that_asks_to_be_left_alone_is(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    await deliver(market, DeliveryOutcome(429, "status 429", 1, retry_after_seconds=4_000))
    [row] = await listed(market, me, made)
    assert row.next_at == market.clock.seconds() + 4_000
    market.clock.now = row.next_at
    await deliver(market, DeliveryOutcome(503, "status 503", 1, retry_after_seconds=10**9))
    [row] = await listed(market, me, made)
    assert row.next_at == market.clock.seconds() + DAY


@pytest.mark.both_engines
async def test_an_endpoint_that_is_gone_is_disabled_at_once(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me, "deploy.finished")
    other = await endpoint(market, me, "webhook.disabled")
    await happen(market, me, "first")
    await happen(market, me, "second")
    attempts = await begun(market)
    await market.webhooks.settle(attempts[0], DeliveryOutcome(410, "status 410", 1))
    [shown, _] = await market.webhooks.all_of(me)
    assert shown.disabled_reason == "gone"
    rows = await listed(market, me, made)
    assert {(row.status, row.last_error) for row in rows} == {
        ("failed", "status 410"),
        ("failed", "disabled"),
    }
    # An attempt in progress changes nothing any more, and new events do not go to it.
    await market.webhooks.settle(attempts[1], OK)
    await happen(market, me, "third")
    assert len(await listed(market, me, made)) == 2
    assert {row.status for row in await listed(market, me, made)} == {"failed"}
    [told] = await begun(market)
    assert told.row.endpoint_id == other.endpoint.id
    assert json.loads(told.body)["data"] == {
        "webhook_id": made.endpoint.id,
        "url": URL,
        "reason": "gone",
    }


@pytest.mark.long
@pytest.mark.both_engines
async def test_five_days_of_failures_disable_with_a_letter(market: Market) -> None:
    me = await market.person()
    await confirmed(market, me)
    made = await endpoint(market, me)
    began = market.clock.now
    while market.clock.now < began + FAILING_MAX_SECONDS - DAY:
        await happen(market, me)
        await deliver(market, DOWN)
        market.clock.now += 3_600
    [shown] = await market.webhooks.all_of(me)
    assert (shown.disabled_at, shown.failing_since) == (None, began)
    assert await letters(market) == []
    market.clock.now = began + FAILING_MAX_SECONDS
    await deliver(market, DOWN)
    [shown] = await market.webhooks.all_of(me)
    assert shown.disabled_reason == "failing"
    assert [each["reason"] for each in await said(market, me, "webhook.disabled")] == ["failing"]
    [letter] = await letters(market)
    assert URL in letter.text
    assert await begun(market) == []
    enabled = await market.webhooks.change(me, made.endpoint.id, is_enabled=True)
    assert (enabled.disabled_at, enabled.failing_since) == (None, None)


async def letters(market: Market) -> list[Message]:
    """Return the e-mails that wait."""
    rows = await market.emails.due(again=False, limit=100)
    return [decoded(market.emails.opened(row) or b"") for row in rows]


async def confirmed(market: Market, user_id: str) -> None:
    async def unit(tx: Transaction) -> None:
        await tx.run("UPDATE users SET email_verified_at = 1 WHERE id = :id", id=user_id)
        await tx.run("DELETE FROM outbox")

    await market.store.write(unit)


async def test_one_success_ends_five_days_of_failures(market: Market) -> None:
    me = await market.person()
    await endpoint(market, me)
    began = market.clock.now
    await happen(market, me)
    await deliver(market, DOWN)
    market.clock.now = began + FAILING_MAX_SECONDS - 1
    await deliver(market, OK)
    market.clock.now += 2
    await happen(market, me)
    await deliver(market, DOWN)
    [shown] = await market.webhooks.all_of(me)
    assert (shown.disabled_at, shown.failing_since) == (None, market.clock.now)


@pytest.mark.both_engines
async def test_another_url_has_not_failed_yet(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    await deliver(market, DOWN)
    market.clock.now += FAILING_MAX_SECONDS
    changed = await market.webhooks.change(me, made.endpoint.id, url=f"{URL}/corrected")
    assert changed.failing_since is None
    assert await deliver(market, DOWN) == 1
    [shown] = await market.webhooks.all_of(me)
    assert (shown.disabled_at, shown.failing_since) == (None, market.clock.now)


async def test_another_description_leaves_the_failures(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    await deliver(market, DOWN)
    began = market.clock.now
    market.clock.now += DAY
    changed = await market.webhooks.change(me, made.endpoint.id, url=URL, description="the same")
    assert changed.failing_since == began


@pytest.mark.parametrize("outcome", [OK, DOWN, DeliveryOutcome(410, "status 410", 1)])
async def test_an_attempt_at_the_url_before_says_nothing_of_the_next_one(
    market: Market, outcome: DeliveryOutcome
) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    [attempt] = await begun(market)
    await market.webhooks.change(me, made.endpoint.id, url=f"{URL}/other")
    await market.webhooks.settle(attempt, outcome)
    [shown] = await market.webhooks.all_of(me)
    assert (shown.proven_at, shown.failing_since, shown.disabled_at) == (None, None, None)
    [row] = await listed(market, me, made)
    assert row.attempts == 1
    # The next server gets what the one before has not taken.
    market.clock.now += 10
    assert [each.url for each in await begun(market)] == [f"{URL}/other"] * bool(outcome.error)


@pytest.mark.both_engines
async def test_a_deleted_endpoint_gets_nothing(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    [attempt] = await begun(market)
    await market.webhooks.delete(me, made.endpoint.id)
    await market.webhooks.settle(attempt, DOWN)
    assert await begun(market) == []
    await happen(market, me)
    assert await begun(market) == []
    assert await market.webhooks.all_of(me) == []
    with pytest.raises(MarketError) as refused:
        await market.webhooks.delete(me, made.endpoint.id)
    assert refused.value.code is Code.WEBHOOK_NOT_FOUND


async def test_a_disabled_endpoint_gets_nothing_until_it_recovers(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me, "waits")
    await market.webhooks.change(me, made.endpoint.id, is_enabled=False)
    assert await begun(market) == []
    for refused in (
        market.webhooks.test(me, made.endpoint.id),
        market.webhooks.recover(me, made.endpoint.id, 0),
    ):
        with pytest.raises(MarketError) as error:
            await refused
        assert error.value.code is Code.WEBHOOK_DISABLED
    await market.webhooks.change(me, made.endpoint.id, is_enabled=True)
    assert await begun(market) == []
    assert await market.webhooks.recover(me, made.endpoint.id, 0) == 1
    assert len(await begun(market)) == 1


async def test_deliveries_that_have_failed_since_a_time_are_recovered(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    for name in ("old", "new"):
        await happen(market, me, name)
        [attempt] = await begun(market)
        await market.store.write(queries.give_up, attempt.row.id, "refused")
        market.clock.now += 100
    await happen(market, me, "delivered")
    await deliver(market)
    since = market.clock.seconds() - 150
    assert await market.webhooks.recover(me, made.endpoint.id, since) == 1
    [attempt] = await begun(market)
    assert json.loads(attempt.body)["data"] == {"deploy_id": "new"}
    # The whole schedule is before it again.
    assert attempt.row.tries == 0


@pytest.mark.both_engines
async def test_a_delivery_that_its_owner_retries_during_an_attempt_is_not_failed(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    [due] = await market.webhooks.due(but=(), limit=1)
    await market.webhooks.change(me, made.endpoint.id, is_enabled=False)
    write = market.store.write

    async def late(unit: Any, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        await market.webhooks.change(me, made.endpoint.id, is_enabled=True)
        await market.webhooks.retry(me, due.id)
        return await write(unit, *args, **kwargs)

    monkeypatch.setattr(market.store, "write", late)
    assert await market.webhooks.begin(due.id) is None
    assert [row.status for row in await listed(market, me, made)] == ["pending"]
    assert await deliver(market) == 1


@pytest.mark.both_engines
async def test_a_delivery_that_waits_at_a_disabled_endpoint_fails(market: Market) -> None:
    """An event that happened at the moment of the disabling."""
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    [due] = await market.webhooks.due(but=(), limit=1)
    await market.webhooks.change(me, made.endpoint.id, is_enabled=False)
    await market.store.write(queries.retry, due.id, market.clock.now)
    assert await begun(market) == []
    [row] = await listed(market, me, made)
    assert (row.status, row.last_error) == ("failed", "disabled")
    await market.store.write(queries.give_up_disabled, "of no delivery")


@pytest.mark.both_engines
async def test_one_delivery_is_sent_again_by_hand_even_after_its_success(market: Market) -> None:
    me, other = await market.person(), await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    [first] = await begun(market)
    await market.webhooks.settle(first, OK)
    await market.webhooks.retry(me, first.row.id)
    [second] = await begun(market)
    assert second.body == first.body
    assert second.headers["webhook-id"] == first.headers["webhook-id"]
    await market.webhooks.settle(second, OK)
    [row] = await listed(market, me, made)
    assert (row.status, row.attempts) == ("delivered", 2)
    with pytest.raises(MarketError) as refused:
        await market.webhooks.retry(other, first.row.id)
    assert refused.value.code is Code.DELIVERY_NOT_FOUND


@pytest.mark.parametrize("outcome", [OK, DOWN])
async def test_a_request_during_the_last_attempt_gets_the_whole_schedule_again(
    market: Market, outcome: DeliveryOutcome
) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    for pause in SCHEDULE[1:]:
        assert await deliver(market, DOWN) == 1
        market.clock.now += round(1.2 * pause) + 1
    [last] = await begun(market)
    await market.webhooks.retry(me, last.row.id)
    await market.webhooks.settle(last, outcome)
    [row] = await listed(market, me, made)
    assert row.attempts == len(SCHEDULE)
    if outcome is OK:
        assert row.status == "delivered"
    else:
        [again] = await begun(market)
        assert again.row.tries == 0


async def test_a_test_goes_the_way_of_every_other_delivery(market: Market) -> None:
    me = await market.person()
    made, other = await endpoint(market, me, "job.created"), await endpoint(market, me)
    delivery_id = await market.webhooks.test(me, made.endpoint.id)
    [attempt] = await begun(market)
    assert attempt.row.id == delivery_id
    assert verified(made, attempt)["type"] == "test.ping"
    assert await listed(market, me, other) == []
    assert await types_of(market, me) == ["webhook.created"] * 2 + ["test.ping"]


async def test_deliveries_that_are_sent_by_hand_are_bounded(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    for _ in range(webhooks.BY_HAND_PER_WINDOW):
        await market.webhooks.test(me, made.endpoint.id)
    with pytest.raises(MarketError) as refused:
        await market.webhooks.test(me, made.endpoint.id)
    assert refused.value.code is Code.TOO_MANY_ATTEMPTS
    assert len(await listed(market, me, made)) == webhooks.BY_HAND_PER_WINDOW


@pytest.mark.both_engines
async def test_the_queue_of_an_endpoint_is_bounded(market: Market) -> None:
    market.webhooks.bounds = QueueBounds(pending=5)
    me = await market.person()
    made = await endpoint(market, me)
    events = [await happen(market, me, f"{number}") for number in range(8)]
    await market.webhooks.sweep()
    assert market.webhooks.waiting.deliveries == 5
    assert market.webhooks.late_seconds == 0
    market.clock.now += 7
    await market.webhooks.sweep()
    assert market.webhooks.late_seconds == 7
    assert [each.headers["webhook-id"] for each in await begun(market)] == events[:5]
    rows = await listed(market, me, made)
    assert [row.last_error for row in rows if row.status == "failed"] == ["too many waiting"] * 3
    # There is no more room than that to recover them, either.
    assert await market.webhooks.recover(me, made.endpoint.id, 0) == 0
    await deliver(market)
    assert await market.webhooks.recover(me, made.endpoint.id, 0) == 3


async def test_endpoints_take_turns(market: Market) -> None:
    me, other = await market.person(), await market.person()
    busy = await endpoint(market, me)
    for number in range(20):
        await happen(market, me, f"{number}")
    quiet = await endpoint(market, other)
    await happen(market, other)
    rows = await market.webhooks.due(but=(), limit=2)
    assert {row.endpoint_id for row in rows} == {busy.endpoint.id, quiet.endpoint.id}
    rows = await market.webhooks.due(but={busy.endpoint.id}, limit=10)
    assert [row.endpoint_id for row in rows] == [quiet.endpoint.id]


async def test_an_attempt_that_was_made_twice_counts_once(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    [first] = await begun(market)
    [second] = await begun(market)  # another daemon, after the first has died
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    await market.webhooks.settle(second, OK)
    await market.webhooks.settle(first, DOWN)
    [row] = await listed(market, me, made)
    assert (row.status, row.attempts) == ("delivered", 1)
    assert market.webhooks.ends == {"delivered": 1, "failed": 0}


async def test_old_deliveries_are_deleted(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    await deliver(market)
    market.clock.now += RETENTION_SECONDS - 10
    await market.webhooks.sweep()
    [row] = await listed(market, me, made)
    market.clock.now += 20
    await market.webhooks.sweep()
    assert await listed(market, me, made) == []
    with pytest.raises(MarketError) as refused:
        await market.webhooks.delivery(me, row.id)
    assert refused.value.code is Code.DELIVERY_NOT_FOUND


@pytest.mark.both_engines
async def test_a_delivery_of_an_event_that_is_not_kept_is_given_up(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me)
    await happen(market, me)
    await market.store.write(event_queries.delete_before, "g", limit=10)
    assert await begun(market) == []
    [row] = await listed(market, me, made)
    assert (row.status, row.last_error) == ("failed", "event not kept")


async def test_no_user_has_more_endpoints_than_that(market: Market) -> None:
    me = await market.person()
    for _ in range(ENDPOINTS_MAX):
        await endpoint(market, me)
    with pytest.raises(MarketError) as refused:
        await endpoint(market, me)
    assert refused.value.code is Code.TOO_MANY_WEBHOOKS


@pytest.mark.parametrize("types", [["job.creatd"], ["test.ping"], ["*", "nothing"], []])
async def test_types_are_those_of_the_catalogue(market: Market, types: list[str]) -> None:
    with pytest.raises(MarketError) as refused:
        await market.webhooks.create(await market.person(), url=URL, types=types, description="")
    assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, "types")


TERMS = WebhookTerms(blocked_ports=frozenset((6_667,)))


@cases(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "//example.com/",
        "example.com",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://@example.com/",
        "https://example.com/#part",
        "https://example.com:22/",
        "https://example.com:80/",
        "https://example.com:0/",
        "https://example.com:6667/",
        "https://example.com:65536/",
        "https://example.com:x/",
        "https://example.com/a b",
        "https://example.com/\r\nHost: other",
        "https://example.com\\@other.com/",
        "https://exämple.com/",
        "http://127.0.0.1:8000/",
        "https://[::1/",
        "https://example.com/" + "a" * 2_000,
    ],
)
def test_urls_that_nothing_may_be_sent_to(url: str) -> None:
    with pytest.raises(MarketError) as refused:
        checked_url(url, TERMS)
    assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, "url")


@cases(
    "url",
    [
        "https://example.com",
        "https://example.com:443/a?b=c",
        "https://example.com:8443/",
        "https://xn--bcher-kva.example/",
        "https://[2606:2800:220:1::1]/",
    ],
)
def test_urls_that_something_may_be_sent_to(url: str) -> None:
    assert checked_url(url, TERMS) == url


def test_a_demonstration_may_notify_this_machine_without_tls() -> None:
    demo = WebhookTerms(allows_loopback=True)
    for url in ("http://127.0.0.1:8000/", "http://localhost:8000/", "http://[::1]:8000/"):
        assert checked_url(url, demo) == url
    with pytest.raises(MarketError):
        checked_url("http://example.com:8000/", demo)


def test_the_body_is_the_same_in_every_attempt() -> None:
    event = event_queries.EventRow("e", "u", "test.ping", None, json_of(Ping("w")), 0)
    assert webhooks.body_of(event) == (
        b'{"type":"test.ping","timestamp":"1970-01-01T00:00:00Z","data":{"webhook_id":"w"}}'
    )


def json_of(data: Ping) -> str:
    return json.dumps({"webhook_id": data.webhook_id}, separators=(",", ":"))


async def test_a_server_that_never_agreed_is_left_alone(market: Market) -> None:
    me = await market.person()
    made = await endpoint(market, me, is_new=True)
    attempts = 0
    for _ in range(50):  # an hour in which something happens each minute or so
        await happen(market, me)
        attempts += await deliver(market, DOWN)
        market.clock.now += 70
    assert attempts <= 15
    [row] = await market.webhooks.all_of(me)
    assert row.quiet_until > market.clock.now
    await market.webhooks.test(me, made.endpoint.id)
    [attempt] = await begun(market)
    assert json.loads(attempt.body)["type"] == "test.ping"
    await market.webhooks.settle(attempt, OK)
    assert await deliver(market) > 40, "it has answered, and gets what waited"


async def test_a_server_that_has_answered_before_is_not_left_alone(market: Market) -> None:
    me = await market.person()
    await endpoint(market, me)
    for _ in range(5):
        await happen(market, me)
        assert await deliver(market, DOWN) == 1
    await market.webhooks.change(me, (await market.webhooks.all_of(me))[0].id, url=f"{URL}/other")
    [row] = await market.webhooks.all_of(me)
    assert row.proven_at is None, "another server has agreed to nothing yet"


async def test_a_url_is_one_endpoint_of_a_user(market: Market) -> None:
    me, other = await market.person(), await market.person()
    await endpoint(market, me, url=URL)
    second = await endpoint(market, me, url=f"{URL}/2")
    await endpoint(market, other, url=URL)
    for attempt in (
        endpoint(market, me, url=URL),
        market.webhooks.change(me, second.endpoint.id, url=URL),
    ):
        with pytest.raises(MarketError) as refused:
            await attempt
        assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, "url")
    await market.webhooks.change(me, second.endpoint.id, url=f"{URL}/2")
