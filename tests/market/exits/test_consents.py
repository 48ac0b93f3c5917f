"""Exits: by the consent of their owners alone, within their limits, at the price of the sale."""

from typing import Any

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.database.statements import counted
from support.market.books import refusal
from support.market.exits import ExitDevice, SomeAttached, claw_back, device, exit_device, through
from support.market.market import RULES, Market

from market.bandwidth.leases import LeaseState, Rejection
from market.base.errors import Code, MarketError
from market.exits import consents as exits_module
from market.exits.consents import ExitDeviceLimits, Exits, ExitTerms, text_of
from market.exits.wishes import ExitWishes
from market.money.money import GB, MICRO
from storage.bandwidth.sessions import find as find_session
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction
from storage.exits import exits as queries

LIMITS = ExitDeviceLimits(4, 1_000_000, 2 * GB, (443,), 500_000)


async def authorized(market: Market, made: ExitDevice, terms: str | None = None) -> Code | None:
    """Return why a device may not attach, None if it may."""
    try:
        await market.exits.authorize(made.token, terms or market.exits.terms_hash)
    except MarketError as error:
        return error.code
    return None


async def test_a_device_needs_both_keys(market: Market) -> None:
    made = await device(market, await market.person())
    assert await authorized(market, made) is Code.CONSENT_NEEDED
    await market.exits.consent(made.owner, made.id, market.exits.terms_hash)
    assert await authorized(market, made, "of another text") is Code.TERMS_CHANGED
    assert await authorized(market, made) is None
    stranger = ExitDevice(made.id, "x" * 43, made.owner)
    assert await authorized(market, stranger) is Code.WORKER_UNAUTHORIZED


async def test_a_grant_names_the_owner_and_the_rights_of_a_device(market: Market) -> None:
    made = await exit_device(market, limits=LIMITS)
    grant = await market.exits.authorize(made.token, market.exits.terms_hash)
    assert (grant.device_id, grant.user_id) == (made.id, made.owner)
    assert (grant.limits, grant.min_price_per_gb) == (LIMITS, 500_000)
    assert not grant.paused
    default = await exit_device(market)
    grant = await market.exits.authorize(default.token, market.exits.terms_hash)
    assert grant.limits == market.exits.terms.limits


async def test_terms_that_change_are_agreed_to_anew(market: Market) -> None:
    made = await exit_device(market)
    other = Exits(market.context, market.devices, ExitTerms(is_offered=True, share_percent=50))
    assert other.terms_hash != market.exits.terms_hash
    with pytest.raises(MarketError) as caught:
        await other.authorize(made.token, other.terms_hash)
    assert caught.value.code is Code.TERMS_CHANGED
    await other.consent(made.owner, made.id, other.terms_hash)
    assert (await other.authorize(made.token, other.terms_hash)).device_id == made.id


async def test_agreeing_again_keeps_the_limits_of_before(market: Market) -> None:
    made = await exit_device(market, limits=replace(LIMITS, ports=(443, 8080)))
    terms = replace(market.exits.terms, limits=ExitDeviceLimits(16, 0, 5 * GB, (80, 443)))
    other = Exits(market.context, market.devices, terms)
    granted = await other.consent(made.owner, made.id, other.terms_hash)
    assert granted == (await other.current(made.id)).limits == LIMITS
    terms = replace(terms, limits=replace(terms.limits, ports=(80,)))
    other = Exits(market.context, market.devices, terms)
    assert (await other.consent(made.owner, made.id, other.terms_hash)).ports == (80,)


async def test_a_repeated_consent_is_kept_once(market: Market) -> None:
    made = await exit_device(market)
    for _ in range(3):
        await market.exits.consent(made.owner, made.id, market.exits.terms_hash, LIMITS)
    [given] = await market.store.read(queries.consents, made.id)
    assert given.event == "given"


async def test_a_consent_that_ends_during_its_look_up_lets_no_device_attach(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, read = await exit_device(market), list[str]()

    async def read_just_before_the_end(work: Any, *arguments: Any, **options: Any) -> Any:
        found = await just_read(work, *arguments, **options)
        if work is exits_module._standing and not read:
            read.append(made.id)
            await market.exits.revoke(made.owner, made.id)
        return found

    just_read = market.store.read
    monkeypatch.setattr(market.store, "read", read_just_before_the_end)
    assert await authorized(market, made) is Code.CONSENT_NEEDED
    assert read == [made.id]


@pytest.mark.both_engines
async def test_consents_are_kept_for_good(market: Market) -> None:
    made = await exit_device(market)
    for _ in range(2):
        await market.exits.revoke(made.owner, made.id)
    assert await authorized(market, made) is Code.CONSENT_NEEDED
    await market.exits.consent(made.owner, made.id, market.exits.terms_hash)
    history = await market.store.read(queries.consents, made.id)
    assert [each.event for each in history] == ["given", "revoked", "given"]
    assert [bool(each.terms_hash) for each in history] == [True, False, True]

    async def rewrite(tx: Transaction) -> None:
        await tx.run("UPDATE exit_consents SET event = 'given'")

    with pytest.raises(ConstraintError, match="append_only"):
        await market.store.write(rewrite)


async def test_a_watcher_gets_every_change(market: Market) -> None:
    made, heard = await exit_device(market), list[str]()
    market.exits.watch(heard.append)
    exits = market.exits
    await exits.pause(made.owner, made.id)
    assert (await exits.current(made.id)).paused
    assert await authorized(market, made) is Code.EXIT_PAUSED
    await exits.resume(made.owner, made.id)
    assert not (await exits.current(made.id)).paused
    await exits.change_limits(made.owner, made.id, LIMITS)
    assert (await exits.current(made.id)).limits == LIMITS
    await exits.revoke(made.owner, made.id)
    assert heard == [made.id] * 4
    assert await refusal(exits.current(made.id)) is Code.CONSENT_NEEDED


async def test_a_consent_that_another_process_has_ended_is_notified(market: Market) -> None:
    names = ("honest", "paused", "revoked", "barred", "without a token")
    made = {name: await exit_device(market) for name in names}
    elsewhere = Exits(market.context, market.devices, market.exits.terms)
    await elsewhere.pause(made["paused"].owner, made["paused"].id)
    await elsewhere.revoke(made["revoked"].owner, made["revoked"].id)
    await claw_back(market.context, made["barred"].id, "injects")
    await market.devices.revoke(made["without a token"].owner, made["without a token"].id)
    heard: list[str] = []
    market.exits.watch(heard.append)
    assert await market.exits.look() == 0
    assert heard == []
    attached = SomeAttached()
    market.exits.join(attached)
    for each in made.values():
        attached.come(each.id)
    assert await market.exits.look() == 4
    assert sorted(heard) == sorted(each.id for name, each in made.items() if name != "honest")


@pytest.mark.both_engines
async def test_a_consent_that_another_process_has_changed_is_notified_once(market: Market) -> None:
    made, other = await exit_device(market), await exit_device(market)
    elsewhere = Exits(market.context, market.devices, market.exits.terms)
    attached = SomeAttached()
    market.exits.join(attached)
    for each in (made, other):
        attached.come(each.id)
    heard: list[str] = []
    market.exits.watch(heard.append)

    async def looked(state: str) -> tuple[int, list[str]]:
        """Look twice. Return the first findings, and check that the second look has no news."""
        heard.clear()
        ended, told = await market.exits.look(), heard.copy()
        attached.states[made.id] = state
        assert await market.exits.look() == 0
        assert heard == told
        return ended, told

    assert await looked("") == (0, [])
    await elsewhere.change_limits(made.owner, made.id, LIMITS)
    assert await looked("") == (0, [made.id])
    await elsewhere.pause(made.owner, made.id)
    assert await looked("paused in the account") == (1, [made.id])
    await elsewhere.resume(made.owner, made.id)
    assert await looked("") == (0, [made.id])
    await elsewhere.pause(made.owner, made.id)
    for _ in range(2):  # until the watchers are notified: it still carries
        assert await market.exits.look() == 1


async def test_a_device_whose_token_is_revoked_is_no_exit(market: Market) -> None:
    made = await exit_device(market)
    await market.devices.revoke(made.owner, made.id)
    assert await authorized(market, made) is Code.WORKER_UNAUTHORIZED
    assert await refusal(market.exits.current(made.id)) is Code.WORKER_UNAUTHORIZED
    agreeing = market.exits.consent(made.owner, made.id, market.exits.terms_hash)
    assert await refusal(agreeing) is Code.TOKEN_NOT_FOUND


async def test_no_user_decides_about_the_device_of_another(market: Market) -> None:
    made, other = await exit_device(market), await market.person()
    exits, terms = market.exits, market.exits.terms_hash
    assert await refusal(exits.consent(other, made.id, terms)) is Code.TOKEN_NOT_FOUND
    assert await refusal(exits.pause(other, made.id)) is Code.TOKEN_NOT_FOUND
    assert await refusal(exits.resume(other, made.id)) is Code.TOKEN_NOT_FOUND
    assert await refusal(exits.change_limits(other, made.id, LIMITS)) is Code.TOKEN_NOT_FOUND
    assert await refusal(exits.revoke(other, made.id)) is Code.TOKEN_NOT_FOUND
    assert await authorized(market, made) is None
    mere = await device(market, other)
    assert await refusal(exits.pause(other, mere.id)) is Code.CONSENT_NEEDED


@cases(
    ("field", "value"),
    [
        ("connections", 0),
        ("connections", 1_001),
        ("bytes_per_second", -1),
        ("bytes_per_day", -1),
        ("bytes_per_day", 1 << 62),
        ("ports", ()),
        ("ports", (443, 25)),
        ("min_price_per_gb", -1),
    ],
)
async def test_limits_out_of_range_are_refused_by_name(
    market: Market, field: str, value: object
) -> None:
    made = await device(market, await market.person())
    limits = replace(LIMITS, **{field: value})
    agreeing = market.exits.consent(made.owner, made.id, market.exits.terms_hash, limits)
    with pytest.raises(MarketError) as caught:
        await agreeing
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, f"limits.{field}")


async def test_without_exits_no_owner_agrees_and_nothing_is_sold(market: Market) -> None:
    made = await device(market, await market.person())
    none = Exits(market.context, market.devices, ExitTerms())
    assert (
        await refusal(none.consent(made.owner, made.id, none.terms_hash)) is Code.EXITS_NOT_OFFERED
    )
    assert await refusal(none.authorize(made.token, none.terms_hash)) is Code.EXITS_NOT_OFFERED
    market.bandwidth._exit_terms = ExitTerms()
    buying = market.bandwidth.buy(
        await market.person("5"), quota_bytes=GB, price_per_gb=None, exit_wishes=ExitWishes()
    )
    assert await refusal(buying) is Code.EXITS_NOT_OFFERED


def test_the_text_has_the_settings_of_the_operator() -> None:
    terms = ExitTerms(share_percent=55, hold_seconds=3 * 86_400)
    text = text_of(terms)
    for part in ("55 percent", "3 days", "80, 443, 8080, 8443"):
        assert part in text
    assert "{" not in text


# Sessions


async def test_a_sale_keeps_the_wishes_of_its_buyer_and_the_lease_has_them(market: Market) -> None:
    buyer = await market.person("10")
    wishes = ExitWishes(countries=("FR", "de"), session="abc", strict=True)
    bought = await market.bandwidth.buy(
        buyer, quota_bytes=GB, price_per_gb=None, exit_wishes=wishes
    )
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.exit == "country-de_fr-session-abc-strict"
    assert (grant.user_id, grant.price_per_gb) == (buyer, MICRO)
    [listed] = await market.bandwidth.page(buyer, status=None, before="", limit=1)
    assert listed.exit == grant.exit
    plain = await market.bandwidth.buy(buyer, quota_bytes=GB, price_per_gb=None)
    grant = await market.lease(plain)
    assert grant is not None
    assert grant.exit == ""
    row = await market.store.read(find_session, plain.session_id)
    assert row is not None
    assert row.exit_share_percent == RULES.exits.share_percent


async def test_exits_of_a_country_have_a_price_of_their_own(market: Market) -> None:
    floors = {"de": 3 * MICRO, "any": 2 * MICRO}
    market.bandwidth._exit_terms = ExitTerms(is_offered=True, price_floors=floors)
    buyer = await market.person("100")

    async def price(wishes: ExitWishes | None, offered: int | None) -> int | Code:
        try:
            bought = await market.bandwidth.buy(
                buyer, quota_bytes=GB, price_per_gb=offered, exit_wishes=wishes
            )
        except MarketError as error:
            return error.code
        return bought.cost

    assert await price(None, MICRO) == MICRO
    assert await price(ExitWishes(), MICRO) is Code.PRICE_BELOW_FLOOR
    assert await price(ExitWishes(), None) == 2 * MICRO
    assert await price(ExitWishes(countries=("fr",)), 2 * MICRO) == 2 * MICRO
    assert await price(ExitWishes(countries=("fr", "de")), 2 * MICRO) is Code.PRICE_BELOW_FLOOR
    assert await price(ExitWishes(countries=("fr", "de")), None) == 3 * MICRO


# Counts


async def test_bytes_that_exits_carried_are_written_with_the_lease(market: Market) -> None:
    first, second = await exit_device(market), await exit_device(market)
    session = await through(market)
    state = LeaseState(GB, is_used_up=False)
    assert await session.report(1_000_000, (first, 400_000), (second, 500_000)) == state
    for _ in range(2):  # absolute, so repeating it changes nothing
        assert await session.report(2_000_000, (first, 700_000)) == state
    today = await market.exits.today([first.id, second.id])
    assert today[first.id].used_bytes == 700_000
    assert today[first.id].earned == 700_000 * MICRO * 60 // (GB * 100) == 420
    assert today[second.id].used_bytes == 500_000
    grant = await market.exits.current(first.id)
    assert grant.bytes_today == 700_000
    market.clock.now += 86_400
    assert (await market.exits.current(first.id)).bytes_today == 0


async def test_counts_of_exits_that_cannot_be_are_refused_whole(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    assert await session.report(1_000, (made, 600)) == LeaseState(GB, is_used_up=False)
    stranger = await device(market, await market.person())
    for used, exits in (
        (2_000, [(made, 599)]),  # falls
        (2_000, [(made, 2_001)]),  # more than the lease has used
        (2_000, [(made, 600), (stranger, 1)]),  # no exit
        (599, []),  # the lease falls below the bytes of its exits
        (GB + 1, [(made, 700)]),
    ):
        assert await session.report(used, *exits) == Rejection(), used
        row = await market.store.read(find_session, session.bought.session_id)
        assert row is not None
        assert row.bytes_used == 1_000
    assert await session.report(1_300, (made, 1_300)) == LeaseState(GB, is_used_up=False)


async def test_a_refused_report_does_not_hold_up_the_others_of_its_batch(market: Market) -> None:
    made = await exit_device(market)
    bad, good = await through(market), await through(market)
    replies = await market.leases.report(
        [bad.usage(10, [(made, 11)]), good.usage(10, [(made, 10)]), good.usage(20, [(made, 15)])]
    )
    state = LeaseState(GB, is_used_up=False)
    assert replies == [Rejection(), state, state]
    assert (await market.exits.today([made.id]))[made.id].used_bytes == 15


@pytest.mark.both_engines
async def test_the_database_itself_refuses_counts_that_cannot_be(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(1_000, (made, 600))
    for statement in (
        "UPDATE exit_usage SET used_bytes = 599",
        "UPDATE exit_usage SET used_bytes = 1001",
        "DELETE FROM exit_usage",
        "UPDATE bandwidth_leases SET used_bytes = 599",
    ):

        async def tamper(tx: Transaction, statement: str = statement) -> None:
            await tx.run(statement)

        with pytest.raises(ConstraintError):
            await market.store.write(tamper)


async def test_a_report_about_many_exits_costs_a_few_statements(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await exit_device(market) for _ in range(6)]
    sessions = [await through(market) for _ in range(4)]
    statements = counted(market.store, "write", monkeypatch)
    for size in (1, 6):
        exits = [(each, 5) for each in made[:size]]
        await market.leases.report([each.usage(50, exits) for each in sessions[:size]])
    assert statements[0] == statements[1] <= 8


async def test_ones_own_exit_earns_nothing_of_ones_own_sessions(market: Market) -> None:
    buyer = await market.person("10")
    made = await exit_device(market, buyer)
    session = await through(market, buyer=buyer)
    await session.report(GB // 2, (made, GB // 2))
    today = await market.exits.today([made.id])
    assert (today[made.id].used_bytes, today[made.id].earned) == (GB // 2, 0)


# Views of people


async def test_an_owner_sees_the_state_of_each_device(market: Market) -> None:
    owner = await market.person()
    attached = SomeAttached()
    market.exits.join(attached)
    names = ("away", "busy", "resting", "paused", "revoked")
    made = {name: await exit_device(market, owner) for name in names}
    attached.states = {made["busy"].id: "", made["resting"].id: "the battery is low"}
    await market.exits.pause(owner, made["paused"].id)
    await market.exits.revoke(owner, made["revoked"].id)
    shown = await market.exits.page(owner, before="", limit=10)
    assert [(each.id, each.state) for each in shown] == [
        (made["revoked"].id, "revoked"),
        (made["paused"].id, "paused"),
        (made["resting"].id, "resting"),
        (made["busy"].id, "online"),
        (made["away"].id, "offline"),
    ]
    older = await market.exits.page(owner, before=shown[1].id, limit=2)
    assert older == shown[2:4]
    assert await market.exits.page(await market.person(), before="", limit=10) == []


async def test_earnings_are_listed_by_day(market: Market) -> None:
    owner = await market.person()
    made = [await exit_device(market, owner) for _ in range(2)]
    session, today = await through(market), market.clock.now // 86_400
    await session.report(3_000_000, (made[0], 1_000_000), (made[1], 2_000_000))
    market.clock.now += 86_400
    await session.report(9_000_000, (made[0], 5_000_000))
    days = [(day.day, day.used_bytes, day.earned) for day in await market.exits.earnings(owner)]
    assert days == [(today + 1, 4_000_000, 2_400), (today, 3_000_000, 1_800)]


async def test_a_buyer_sees_where_a_session_left(market: Market) -> None:
    made = [await exit_device(market) for _ in range(3)]
    attached = SomeAttached()
    market.exits.join(attached)
    for each, country in zip(made, ("de", "de", "xx"), strict=True):
        attached.come(each.id, country)
    await market.exits.look()
    for each, country in zip(made, ("de", "fr", "de"), strict=True):
        attached.come(each.id, country)
    for _ in range(2):
        await market.exits.look()
    session = await through(market)
    await session.report(100, (made[0], 30), (made[1], 45), (made[2], 20))
    shown = await market.exits.by_country(session.buyer, session.bought.session_id)
    assert [tuple(each) for each in shown] == [("de", 2, 50), ("fr", 1, 45)]
    asked = market.exits.by_country(await market.person(), session.bought.session_id)
    assert await refusal(asked) is Code.SESSION_NOT_FOUND
