"""Memory admits known clients; one query at a time looks up the others, in turn."""

from typing import Any

import pytest
from msgspec import structs
from support.base.cases import cases
from support.base.waiting import until
from support.database.statements import counted
from support.market.market import Market
from support.market.metering import HERE, THERE, admitted, bought_and_used, node_of, shown

from market.bandwidth.credentials import new_credentials
from market.bandwidth.leases import Grant
from market.exits.wants import Wants
from market.money.money import GB
from proxyd.metering.meter import Meter, MeterBounds
from proxyd.metering.session import LiveSession
from proxyd.metering.single_flight import LOOKUPS_MAX, RUNNING_MAX, NegativeBounds
from proxyd.wire.events import Refusal


def remembering(**bounds: Any) -> pytest.MarkDecorator:
    """Have the meter remember unknown credentials within these bounds (`NegativeBounds`)."""
    unknown = NegativeBounds(**bounds)
    return pytest.mark.parametrize("bounds", [MeterBounds(unknown=unknown)], ids=["remembering"])


@pytest.fixture
def reads(market: Market, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list as long as the number of times that the store was read."""
    return counted(market.store, "read", monkeypatch)


@cases(
    "username",
    ["", "admin", "a" * 15, "a" * 17, "A" * 16, "0" * 16, "a" * 15 + "\n", "ü" * 8, "é" * 16],
)
async def test_a_user_name_that_was_never_made_is_wrong_without_a_question_to_the_store(
    meter: Meter, reads: list[int], username: str
) -> None:
    assert await shown(meter, username, "secret", HERE) is Refusal.WRONG
    assert reads == []


@remembering(seconds=1000.0)
async def test_credentials_that_open_nothing_are_asked_about_once_in_a_while(
    meter: Meter, market: Market, reads: list[int]
) -> None:
    bought = await market.bandwidth.buy(
        await market.person("10"), quota_bytes=GB, price_per_gb=None
    )
    del reads[:]
    unknown = new_credentials()
    for _ in range(20):
        assert await shown(meter, unknown.username, unknown.password, HERE) is Refusal.WRONG
        assert await shown(meter, bought.username, "wrong", THERE) is Refusal.WRONG
    assert len(reads) == 2
    assert isinstance(await admitted(meter, bought), LiveSession)


@remembering(seconds=1000.0, keys_max=2)
async def test_remembered_wrong_credentials_are_bounded(meter: Meter, reads: list[int]) -> None:
    one, two, three = (new_credentials() for _ in range(3))
    for each in (one, two, three, three, two, one):  # the third drives the first out
        assert await shown(meter, each.username, "secret", HERE) is Refusal.WRONG
    assert len(reads) == 4


@remembering(seconds=0.0, keys_max=2)
async def test_remembered_wrong_credentials_are_forgotten(meter: Meter, reads: list[int]) -> None:
    for _ in range(2):
        assert await shown(meter, new_credentials().username, "secret", HERE) is Refusal.WRONG
    other = new_credentials()
    for _ in range(2):
        assert await shown(meter, other.username, "secret", HERE) is Refusal.WRONG
    assert len(reads) == 4


async def test_a_network_that_floods_with_made_up_credentials_holds_up_only_itself(
    meter: Meter, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    bought = await market.bandwidth.buy(
        await market.person("10"), quota_bytes=GB, price_per_gb=None
    )
    find, asked = market.leases.find, []

    async def noting(username: str, password: bytes) -> str | None:
        asked.append(username)
        return await find(username, password)

    monkeypatch.setattr(market.leases, "find", noting)
    outcomes: list[LiveSession | Refusal] = []
    for _ in range(LOOKUPS_MAX):
        username = new_credentials().username.encode()
        decision = meter.admit(username, b"secret", HERE, outcomes.append)
        if decision is not None:
            outcomes.append(decision)
    assert outcomes == [Refusal.UNAVAILABLE] * (LOOKUPS_MAX // 2)
    assert isinstance(await admitted(meter, bought, THERE), LiveSession)
    assert asked.index(bought.username) <= RUNNING_MAX + 1, "it has waited for the flood"
    await until(lambda: len(outcomes) == LOOKUPS_MAX, "the flood is answered, too")
    assert outcomes.count(Refusal.WRONG) == LOOKUPS_MAX // 2


async def test_a_known_session_is_decided_at_once_without_a_later_call(
    meter: Meter, market: Market
) -> None:
    bought = await market.bandwidth.buy(
        await market.person("10"), quota_bytes=GB, price_per_gb=None
    )
    username, password = bought.username.encode(), bought.password.encode()
    later: list[LiveSession | Refusal] = []
    assert meter.admit(username, password, HERE, later.append) is None
    await until(lambda: bool(later), "the store has answered")
    [session] = later
    assert meter.admit(username, password, HERE, later.append) is session
    assert meter.admit(username, b"wrong", HERE, later.append) is Refusal.WRONG
    assert meter.admit(b"nobody", password, HERE, later.append) is Refusal.WRONG
    assert later == [session]


async def test_the_connections_of_a_session_are_bounded(meter: Meter, market: Market) -> None:
    [session] = await bought_and_used(market, meter, 1)
    meter.connections_per_session = 0
    sold = meter.sessions.of_username(session.username)
    assert sold is session
    assert meter._admission._decision(session) is Refusal.TOO_MANY_CONNECTIONS


@pytest.mark.parametrize("among_nodes", [False, True])
async def test_a_session_that_was_sold_by_a_later_version_leaves_from_nowhere_else(
    meter: Meter,
    market: Market,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    among_nodes: bool,
) -> None:
    meter = (await node_of(market)).meter if among_nodes else meter
    bought = await market.bandwidth.buy(
        await market.person("10"), quota_bytes=GB, price_per_gb=None
    )
    open_lease = market.leases.open

    async def opening(session_id: str) -> Grant | None:
        grant = await open_lease(session_id)
        return structs.replace(grant, exit="planet-mars") if grant is not None else None

    with monkeypatch.context() as patch:
        patch.setattr(market.leases, "open", opening)
        for _ in range(2):
            assert await admitted(meter, bought) is Refusal.UNAVAILABLE
    assert "The parameter 'planet' is not known" in caplog.text
    session = await admitted(meter, bought)
    assert isinstance(session, LiveSession), "its lease was given back"
    assert session.wants is None
    await meter.stop()


async def test_a_session_has_the_wishes_that_it_was_sold_with(
    meter: Meter, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    bought = await market.bandwidth.buy(
        await market.person("10"), quota_bytes=GB, price_per_gb=None
    )
    open_lease = market.leases.open

    async def opening(session_id: str) -> Grant | None:
        grant = await open_lease(session_id)
        return structs.replace(grant, exit="country-de-strict") if grant is not None else None

    monkeypatch.setattr(market.leases, "open", opening)
    session = await admitted(meter, bought)
    assert isinstance(session, LiveSession)
    assert session.wants == Wants(countries=("de",), strict=True)
