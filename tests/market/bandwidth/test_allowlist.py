"""Client addresses that open a session: how they may be written, and that each opens only one."""

import asyncio

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.market.market import TERMS, Market

from market.accounts.bounds import Bounds
from market.bandwidth.allowlist import canonical
from market.bandwidth.leases import Usage
from market.bandwidth.sessions import Bandwidth, Purchase, Session
from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.events.idempotency import KeyedRequest, Receipt, Replayed, Seal
from market.money.money import GB
from storage.bandwidth.allowlist import AddressRow
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction

FIRST, SECOND = TERMS.passwordless_ports
HERE, THERE, ELSEWHERE = "192.0.2.1", "192.0.2.2", "2001:db8::7"


async def order(market: Market, *allow_ips: str, user: str = "", client: str = "") -> Purchase:
    """Buy a session for addresses; `client` is the buyer's own address."""
    user = user or await market.person("100")
    return await market.bandwidth.buy(
        user, quota_bytes=GB, price_per_gb=None, allow_ips=list(allow_ips), client=client
    )


async def buy(market: Market, *allow_ips: str, user: str = "") -> Purchase:
    """Buy a session for addresses, and prove them all."""
    bought = await order(market, *allow_ips, user=user)
    shown = [(bought.session_id, address) for address in canonical(allow_ips)]
    assert None not in await market.leases.prove(shown)
    return bought


async def listed(market: Market, user: str) -> list[Session]:
    return await market.bandwidth.page(user, status=None, before="", limit=100)


async def kept(market: Market) -> list[AddressRow]:
    async def read(tx: Transaction) -> list[AddressRow]:
        return await tx.all(AddressRow, "SELECT address, slot, session_id FROM session_addresses")

    return await market.store.read(read)


# --- notation ------------------------------------------------------------------------


@cases(
    ("texts", "addresses"),
    [
        (["192.0.2.1"], (HERE,)),
        (["::ffff:192.0.2.1", "192.0.2.1", "::FFFF:c000:201"], (HERE,)),
        (["2001:DB8:0:0::7", "2001:db8::7"], (ELSEWHERE,)),
        (["192.0.2.2", "127.0.0.1", "::1"], ("127.0.0.1", "192.0.2.2", "::1")),
        ([], ()),
    ],
)
def test_an_address_has_one_spelling(texts: list[str], addresses: tuple[str, ...]) -> None:
    assert canonical(texts) == addresses


@cases(
    "text",
    [
        *("", " ", "localhost", "192.0.2.1 ", "192.0.2.0/24", "192.0.2.1:80", "[::1]", "192.0.2"),
        *("192.0.2.01", "3221225985", "٣.٣.٣.٣", "2001:db8::/32", "fe80::1%eth0", "1" * 10_000),
        *("0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "::ffff:224.0.0.1"),
    ],
)
def test_an_address_that_no_client_comes_from_is_refused(text: str) -> None:
    with pytest.raises(MarketError, match=r"^allow_ips\[1\] is not one IPv4 or IPv6") as caught:
        canonical(["192.0.2.1", text])
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "allow_ips")


# --- choice of ports -------------------------------------------------------------------------


async def test_a_purchase_that_names_no_address_gets_no_port(market: Market) -> None:
    bought = await buy(market)
    assert bought.passwordless_port is None
    assert market.traffic.entries == []
    assert await kept(market) == []


async def test_the_first_port_on_which_none_of_the_addresses_is_taken_is_given(
    market: Market,
) -> None:
    assert (await buy(market, HERE, THERE)).passwordless_port == FIRST
    assert (await buy(market, ELSEWHERE)).passwordless_port == FIRST
    assert (await buy(market, THERE, "192.0.2.3")).passwordless_port == SECOND
    assert (await buy(market, HERE)).passwordless_port == SECOND


@pytest.mark.both_engines
async def test_live_traffic_is_notified_at_once_of_the_address_that_is_let_in(
    market: Market,
) -> None:
    await order(market, HERE, THERE, client=THERE)
    await order(market, ELSEWHERE, client=HERE)
    assert market.traffic.entries == [(0, (THERE,))]


async def test_an_address_that_is_taken_on_every_port_is_refused_and_costs_nothing(
    market: Market,
) -> None:
    user = await market.person("100")
    for _ in TERMS.passwordless_ports:
        await buy(market, HERE)
    before = len(await kept(market))
    with pytest.raises(MarketError) as caught:
        await buy(market, THERE, HERE, user=user)
    assert (caught.value.code, caught.value.field) == (Code.ADDRESSES_TAKEN, "allow_ips")
    assert await listed(market, user) == []
    assert len(await kept(market)) == before


@pytest.mark.both_engines
async def test_of_twenty_purchases_at_once_each_port_goes_to_one(market: Market) -> None:
    users = [await market.person("100") for _ in range(4)]
    outcomes = await asyncio.gather(
        *(order(market, HERE, user=users[each % 4], client=HERE) for each in range(20)),
        return_exceptions=True,
    )
    sold = [each for each in outcomes if isinstance(each, Purchase)]
    refused = [each for each in outcomes if isinstance(each, MarketError)]
    assert {each.passwordless_port for each in sold} == {FIRST, SECOND}
    assert (len(sold), len(refused)) == (2, 18)
    assert {each.code for each in refused} == {Code.ADDRESSES_TAKEN}
    assert len(await kept(market)) == 2
    sessions = [await listed(market, user) for user in users]
    assert sum(map(len, sessions)) == 2


@pytest.mark.both_engines
async def test_the_database_itself_refuses_a_second_session(market: Market) -> None:
    await buy(market, HERE)
    other = await buy(market)

    async def take(tx: Transaction) -> None:
        await tx.run(
            "INSERT INTO session_addresses (address, slot, session_id) VALUES (:a, 0, :id)",
            a=HERE,
            id=other.session_id,
        )

    with pytest.raises(ConstraintError):
        await market.store.write(take)


async def test_a_purchase_without_money_takes_no_address(market: Market) -> None:
    poor = await market.person("0.5")
    with pytest.raises(MarketError) as caught:
        await buy(market, HERE, user=poor)
    assert caught.value.code is Code.INSUFFICIENT_FUNDS
    assert (await buy(market, HERE)).passwordless_port == FIRST


async def test_where_there_is_no_such_port_no_address_may_be_named(market: Market) -> None:
    terms = replace(TERMS, passwordless_ports=())
    bandwidth = Bandwidth(market.context, market.leases, market.traffic, terms, Bounds)
    user = await market.person("100")
    with pytest.raises(MarketError) as caught:
        await bandwidth.buy(user, quota_bytes=GB, price_per_gb=None, allow_ips=[HERE])
    assert (caught.value.code, caught.value.field) == (
        Code.PASSWORDLESS_NOT_OFFERED,
        "allow_ips",
    )
    await bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)


async def test_a_purchase_that_is_repeated_is_answered_although_its_address_is_taken(
    market: Market,
) -> None:
    user = await market.person("100")
    request = KeyedRequest(user, "key", "hash", Seal(b"k" * 40), market.clock.seconds())
    receipt = Receipt(request, lambda purchase: f"port {purchase.passwordless_port}".encode())
    await buy(market, HERE)
    await market.bandwidth.buy(
        user, quota_bytes=GB, price_per_gb=None, allow_ips=[HERE], receipt=receipt
    )
    with pytest.raises(Replayed) as replayed:
        await market.bandwidth.buy(
            user, quota_bytes=GB, price_per_gb=None, allow_ips=[HERE], receipt=receipt
        )
    assert replayed.value.answer == f"port {SECOND}".encode()
    assert len(await listed(market, user)) == 1


# --- whose they are -----------------------------------------------------------------------------


async def test_an_address_that_is_only_named_is_left_to_the_client_that_comes_from_it(
    market: Market,
) -> None:
    squatters = [await order(market, HERE) for _ in range(5)]
    owner = await order(market, HERE, client=HERE)
    assert (owner.passwordless_port, owner.pending_ips) == (FIRST, ())
    assert [each.pending_ips for each in squatters] == [(HERE,)] * 5
    assert await market.leases.find_by_address(0, HERE) == owner.session_id


async def test_an_address_that_is_pending_opens_nothing_until_it_is_proved(market: Market) -> None:
    user = await market.person("100")
    bought = await order(market, HERE, THERE, user=user, client=THERE)
    assert await market.leases.find_by_address(0, THERE) == bought.session_id
    assert await market.leases.find_by_address(0, HERE) is None
    [session] = await listed(market, user)
    assert (session.allow_ips, session.pending_ips) == ((HERE, THERE), (HERE,))
    grant = await market.lease(bought)
    assert grant is not None
    assert (grant.entries, grant.pending) == (((0, THERE),), (HERE,))
    assert await market.leases.prove([(bought.session_id, HERE)]) == [0]
    assert await market.leases.find_by_address(0, HERE) == bought.session_id
    [session] = await listed(market, user)
    assert (session.allow_ips, session.pending_ips) == ((HERE, THERE), ())


@pytest.mark.both_engines
async def test_the_first_prover_of_an_address_has_it(market: Market) -> None:
    first, second = await order(market, HERE), await order(market, HERE)
    outcomes = await asyncio.gather(
        *(market.leases.prove([(each.session_id, HERE)]) for each in (first, second) * 5)
    )
    assert sorted(outcomes, key=str) == [[0]] * 5 + [[None]] * 5
    assert await market.leases.find_by_address(0, HERE) in (first.session_id, second.session_id)


async def test_a_buyer_proves_an_address_by_a_request_from_it(market: Market) -> None:
    user = await market.person("100")
    bought = await order(market, HERE, user=user)
    for _ in range(2):
        door = await market.bandwidth.allow(user, bought.session_id, HERE)
        assert (door.address, door.port) == (HERE, FIRST)
    assert await market.leases.find_by_address(0, HERE) == bought.session_id
    assert market.traffic.entries == [(0, (HERE,))] * 2


async def test_a_request_from_where_it_was_not_bought_for_proves_nothing(market: Market) -> None:
    user, stranger = await market.person("100"), await market.person()
    bought = await order(market, HERE, user=user)
    await order(market, HERE, client=HERE)
    for who, client, code in (
        (user, THERE, Code.ADDRESS_NOT_PENDING),
        (user, HERE, Code.ADDRESSES_TAKEN),
        (stranger, HERE, Code.SESSION_NOT_FOUND),
    ):
        with pytest.raises(MarketError) as caught:
            await market.bandwidth.allow(who, bought.session_id, client)
        assert caught.value.code is code
    assert await market.leases.prove([(bought.session_id, THERE), ("none", HERE)]) == [None] * 2


async def test_an_address_that_is_pending_for_oneself_is_on_another_port(market: Market) -> None:
    user = await market.person("100")
    ports = [(await order(market, HERE, user=user)).passwordless_port for _ in range(2)]
    assert ports == [FIRST, SECOND]
    with pytest.raises(MarketError) as caught:
        await order(market, HERE, user=user)
    assert caught.value.code is Code.ADDRESSES_TAKEN


async def test_a_session_that_is_over_waits_for_no_address(market: Market) -> None:
    user = await market.person("100")
    over = await order(market, HERE, user=user)
    await market.bandwidth.end(user, over.session_id)
    assert await market.leases.prove([(over.session_id, HERE)]) == [None]
    assert await kept(market) == []
    [session] = await listed(market, user)
    assert (session.allow_ips, session.pending_ips) == ((), ())


async def test_the_addresses_of_a_user_are_bounded(market: Market) -> None:
    market.change_bounds(Bounds(addresses=3))
    user, other = await market.person("100"), await market.person("100")
    bought = await order(market, HERE, THERE, user=user, client=HERE)
    with pytest.raises(MarketError) as caught:
        await order(market, ELSEWHERE, "192.0.2.3", user=user)
    assert (caught.value.code, caught.value.field) == (Code.TOO_MANY_ADDRESSES, "allow_ips")
    await order(market, ELSEWHERE, user=user)
    await order(market, ELSEWHERE, "192.0.2.3", user=other)
    await market.bandwidth.end(user, bought.session_id)
    await order(market, "192.0.2.3", "192.0.2.4", user=user)


# --- the session of an address and a port --------------------------------------------------------


async def test_an_address_finds_its_session_only_on_its_port(market: Market) -> None:
    first, second = await buy(market, HERE, ELSEWHERE), await buy(market, HERE)
    find = market.leases.find_by_address
    assert await find(0, HERE) == await find(0, ELSEWHERE) == first.session_id
    assert await find(1, HERE) == second.session_id
    assert await find(1, ELSEWHERE) is await find(0, THERE) is await find(2, HERE) is None


async def test_a_lease_names_the_addresses(market: Market) -> None:
    grant = await market.lease(await buy(market, HERE, ELSEWHERE))
    assert grant is not None
    assert sorted(grant.entries) == [(0, HERE), (0, ELSEWHERE)]


@pytest.mark.parametrize(
    "status", [SessionStatus.ENDED, SessionStatus.EXHAUSTED, SessionStatus.EXPIRED]
)
async def test_a_session_that_is_over_frees_its_addresses(
    market: Market, status: SessionStatus
) -> None:
    user = await market.person("100")
    over, other = await buy(market, HERE, THERE, user=user), await buy(market, HERE)
    if status is SessionStatus.ENDED:
        await market.bandwidth.end(user, over.session_id)
    elif status is SessionStatus.EXHAUSTED:
        grant = await market.lease(over)
        assert grant is not None
        usage = Usage(over.session_id, grant.lease_id or "", GB)
        await market.leases.settle(over.session_id, status, usage)
    else:
        market.clock.now += TERMS.lifetime_seconds
        assert await market.bandwidth.expire() == 2
    assert await market.leases.find_by_address(0, HERE) is None
    assert [session.status for session in await listed(market, user)] == [status]
    left = {row.session_id for row in await kept(market)}
    assert left == (set() if status is SessionStatus.EXPIRED else {other.session_id})
    again = await buy(market, THERE, HERE)
    assert again.passwordless_port == FIRST
    assert await market.leases.find_by_address(0, HERE) == again.session_id


async def test_an_ending_that_comes_late_leaves_the_next_session_its_address(
    market: Market,
) -> None:
    user = await market.person("100")
    over = await buy(market, HERE, user=user)
    await market.bandwidth.end(user, over.session_id)
    after = await buy(market, HERE)
    await market.bandwidth.end(user, over.session_id)
    await market.leases.settle(over.session_id, SessionStatus.ENDED, None)
    assert await market.leases.find_by_address(0, HERE) == after.session_id


async def test_the_list_shows_addresses_and_port_while_a_session_is_active(market: Market) -> None:
    user = await market.person("100")
    await buy(market, "203.0.113.9", user=user)
    named = await buy(market, ELSEWHERE, "::ffff:192.0.2.2", HERE, user=user)
    plain = await buy(market, user=user)
    shown = {session.id: session for session in await listed(market, user)}
    assert shown[named.session_id].allow_ips == (HERE, THERE, ELSEWHERE)
    assert shown[named.session_id].passwordless_port == FIRST
    assert shown[plain.session_id].allow_ips == ()
    assert shown[plain.session_id].passwordless_port is None
    [second] = await market.bandwidth.page(user, status=None, before=plain.session_id, limit=1)
    assert second.allow_ips == (HERE, THERE, ELSEWHERE)
    await market.bandwidth.end(user, named.session_id)
    shown = {session.id: session for session in await listed(market, user)}
    assert shown[named.session_id].allow_ips == ()
    assert shown[named.session_id].passwordless_port is None


async def test_a_port_that_was_changed_is_notified_and_one_that_is_gone_is_not(
    market: Market,
) -> None:
    user = await market.person("100")
    for _ in TERMS.passwordless_ports:
        await buy(market, HERE, user=user)
    terms = replace(TERMS, passwordless_ports=(3001,))
    bandwidth = Bandwidth(market.context, market.leases, market.traffic, terms, Bounds)
    found = await bandwidth.page(user, status=None, before="", limit=10)
    assert [(each.passwordless_port, each.allow_ips) for each in found] == [
        (None, (HERE,)),
        (3001, (HERE,)),
    ]
