"""Masks of personal data: each answer has them, until a member reveals one user with a reason."""

import json

from support.base.cases import cases
from support.market.books import refusal
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.staff.abuse import exit_use
from market.staff.abuse.exit_use import Destination, Found, Question, Use
from market.staff.base import masks
from market.staff.base.roles import Author, Machine, Member, Role, Via
from market.staff.finding import history, search, users
from market.staff.money import money

EMAIL, NETWORK, ADDRESS = "person1@example.com", "203.0.113.0/24", "203.0.113.9"
OTHER = Machine("olga")


@cases(
    "email, masked",
    [
        ("ada@example.com", "a…@e…"),
        ("é@é.example", "é…@é…"),
        ("@", "…@…"),
        ("no-address", "n…@…"),
        ("", "…@…"),
    ],
)
def test_an_email_address_keeps_one_character_of_each_side(email: str, masked: str) -> None:
    assert masks.masked_email(email) == masked


@cases(
    "network, masked",
    [
        ("203.0.113.0/24", "203…"),
        ("203.0.113.9", "203…"),
        ("2001:db8::/48", "2001…"),
        ("::1", "…"),
        ("", ""),
    ],
)
def test_a_network_keeps_its_first_part(network: str, masked: str) -> None:
    assert masks.masked_network(network) == masked


async def logged_in(market: Market) -> str:
    """Add a person with a login and a used key, and return their identifier."""
    user = await market.person()
    await market.accounts.login(email=EMAIL, password="long enough", client=NETWORK)
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    await market.keys.authenticate(key.key, ADDRESS)
    return user


async def seen(market: Market, author: Author, user: str) -> set[str]:
    """Return the texts with personal data that an author gets, by each way."""
    page = await users.view(market.context, author, user)
    found = [
        hit
        for text in (EMAIL, "@example.com", "person1", user)
        for each in await search.who(market.context, author, text)
        for hit in each.hits
    ]
    session = (await market.bandwidth.page(user, status=None, before="", limit=1))[0]
    use = Use(session.id, "x", 1, 2, "tcp", 22, 0, Destination.EQUAL, 1, 1, "")

    async def recorded(_: Question) -> Found:
        return Found((use,), ())

    answer = await exit_use.look_up(
        market.context, author, Question("192.0.2.1", 1, "target"), None, recorded
    )
    assert answer.customer is not None
    return {
        page.user.email,
        answer.customer.email,
        (await money.history(market.context, author, user, limit=1)).user.email,
        *(hit.email for hit in found),
        *(hit.matched for hit in found if "@" in hit.matched),
        *(login.network for login in page.logins if login.network),
        *(key.last_used_network for key in page.keys if key.last_used_network),
    }


async def test_each_way_is_masked_until_its_author_reveals_the_user(market: Market) -> None:
    user = await logged_in(market)
    await market.deposit(EMAIL, 2_000_000)
    await market.bandwidth.buy(user, quota_bytes=1_000_000_000, price_per_gb=None)
    support = acting(await member(market, Role.OPERATOR))
    masked = {"p…@e…", "203…"}
    for author in (support, ROOT):
        assert await seen(market, author, user) == masked
        revealed = await users.reveal(market.context, author, EMAIL, "the user telephones")
        assert (revealed.user_id, revealed.until) == (user, market.clock.now + 3_600)
        assert await seen(market, author, user) == {EMAIL, NETWORK, ADDRESS}
        assert await seen(market, OTHER, user) == masked
    market.clock.now += 3_600
    for author in (support, ROOT):
        assert await seen(market, author, user) == masked


async def test_a_reveal_is_one_act_an_hour_and_about_one_user(market: Market) -> None:
    user, other = await market.person(), await market.person()
    for _ in range(2):
        await users.reveal(market.context, ROOT, user, "the user telephones")
    [row] = await history.read(market.context, ROOT, action="user.reveal", limit=9)
    assert (row.user_id, row.text, row.unix_user) == (user, "the user telephones", "root")
    assert (await users.view(market.context, ROOT, other)).is_masked
    assert not (await users.view(market.context, ROOT, user)).is_masked
    market.clock.now += 3_600
    await users.reveal(market.context, ROOT, user, "again")
    assert len(await history.read(market.context, ROOT, action="user.reveal", limit=9)) == 2


async def test_a_reveal_counts_for_the_login_that_asked_for_it(market: Market) -> None:
    user = await market.person()
    found = await member(market, Role.SUPPORT)
    page, other, key = (
        Member(found.id, found.role, via, session_id=session_id)
        for via, session_id in ((Via.PAGE, "login-1"), (Via.PAGE, "login-2"), (Via.API, "key-1"))
    )
    await users.reveal(market.context, page, user, "the user telephones")
    for author, is_masked in ((page, False), (other, True), (key, True), (acting(found), True)):
        assert (await users.view(market.context, author, user)).is_masked is is_masked
    await users.reveal(market.context, other, user, "from another place")
    assert not (await users.view(market.context, other, user)).is_masked
    [second, first] = await history.read(market.context, ROOT, action="user.reveal", limit=9)
    logins = [json.loads(each.changes)["login"] for each in (first, second)]
    assert logins == [[None, "login-1"], [None, "login-2"]]


async def test_a_reveal_needs_a_reason_and_a_user(market: Market) -> None:
    user = await market.person()
    for name, why, code in ((user, " ", Code.INVALID_FIELD), ("eve", "x", Code.USER_NOT_FOUND)):
        assert await refusal(users.reveal(market.context, ROOT, name, why)) is code
    assert (await users.view(market.context, ROOT, user)).is_masked
