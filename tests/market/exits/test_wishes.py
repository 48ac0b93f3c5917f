"""Wishes of a buyer for exits: checked by name, and one text for equal wishes."""

import pytest
from support.base.cases import cases

from market.base.errors import Code, MarketError
from market.exits.wants import COUNTRIES, EUROPEAN_UNION, parse
from market.exits.wishes import COUNTRIES_MAX, ExitWishes, canonical, countries_in


@cases(
    ("wishes", "text"),
    [
        (ExitWishes(), "kind-any"),
        (ExitWishes(kind="any"), "kind-any"),
        (ExitWishes(countries=("US", "ca", "us")), "country-ca_us"),
        (ExitWishes(state="New_York", city="albany"), "state-new_york-city-albany"),
        (ExitWishes(asn=3320, kind="Mobile"), "asn-3320-kind-mobile"),
        (ExitWishes(session="a1", lifetime_seconds=600), "session-a1-lifetime-10"),
        (ExitWishes(lifetime_seconds=90), "lifetime-90s"),
        (ExitWishes(dns_at_exit=True, tls_only=True, strict=True), "dns-exit-tls-only-strict"),
        (ExitWishes(secure=True), "secure"),
        (ExitWishes(rotate=True), "rotate"),
        (ExitWishes(session="aB"), "session-aB"),
        (ExitWishes(countries=("eu", "ch", "de")), "country-eu_ch"),
        (ExitWishes(countries=("us",), state="us_texas"), "country-us-state-texas"),
    ],
)
def test_wishes_become_one_text(wishes: ExitWishes, text: str) -> None:
    assert canonical(wishes) == text
    assert parse(text).text == text, "whatever is sold, a client can be let in with"


@cases(
    ("wishes", "field"),
    [
        (ExitWishes(countries=("deu",)), "exit.country"),
        (ExitWishes(countries=("d-",)), "exit.country"),
        (
            ExitWishes(countries=[f"a{chr(97 + each)}" for each in range(COUNTRIES_MAX + 1)]),
            "exit.country",
        ),
        (ExitWishes(state="new york"), "exit.state"),
        (ExitWishes(city="köln"), "exit.city"),
        (ExitWishes(city="a-strict"), "exit.city"),
        (ExitWishes(asn=-1), "exit.asn"),
        (ExitWishes(asn=2**32), "exit.asn"),
        (ExitWishes(kind="house"), "exit.kind"),
        (ExitWishes(session="x" * 33), "exit.session"),
        (ExitWishes(lifetime_seconds=86_401), "exit.lifetime_seconds"),
        (ExitWishes(strict=True, rotate=True), "exit.rotate"),
        (ExitWishes(session="a", rotate=True), "exit.rotate"),
        (ExitWishes(countries=("qq",)), "exit.country"),
        (ExitWishes(lifetime_seconds=59), "exit.lifetime_seconds"),
        (ExitWishes(city="c" * 64, state="s" * 64, countries=list("abcdefghijkl")), "exit.country"),
    ],
)
def test_an_impossible_wish_is_named(wishes: ExitWishes, field: str) -> None:
    with pytest.raises(MarketError) as caught:
        canonical(wishes)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, field)


def test_a_text_that_would_not_fit_behind_a_user_name_is_refused() -> None:
    wishes = ExitWishes(
        city="c" * 64,
        state="s" * 64,
        countries=sorted(COUNTRIES)[:COUNTRIES_MAX],
        session="x" * 32,
    )
    with pytest.raises(MarketError) as caught:
        canonical(wishes)
    assert caught.value.field == "exit"


@cases(
    ("text", "countries"),
    [
        ("country-de_fr-city-x", ("de", "fr")),
        ("kind-any", ()),
        ("", ()),
        ("city-country", ()),
        ("country-eu_ch", tuple(sorted({*EUROPEAN_UNION, "ch"}))),
    ],
)
def test_countries_are_read_from_a_text(text: str, countries: tuple[str, ...]) -> None:
    assert countries_in(text) == countries
