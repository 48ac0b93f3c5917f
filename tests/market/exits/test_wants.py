"""A buyer's wishes for exits: read from parameters, refused by name, written again in one way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from market.exits import wants
from market.exits.wants import (
    COUNTRIES,
    EUROPEAN_UNION,
    PARAMETERS_MAX_CHARACTERS,
    Wants,
    WantsError,
    from_pairs,
    parse,
)

EU = tuple(sorted(EUROPEAN_UNION))


@cases(
    ("parameters", "expected"),
    [
        ("country-de", Wants(countries=("de",))),
        ("country-us_ca", Wants(countries=("ca", "us"))),
        ("country-de_de", Wants(countries=("de",))),
        ("country-eu", Wants(countries=EU)),
        ("country-eu_ch_de", Wants(countries=tuple(sorted((*EU, "ch"))))),
        ("country-uk", Wants(countries=("gb",))),
        ("country-xk_xx", Wants(countries=("xk", "xx"))),
        ("COUNTRY-DE", Wants(countries=("de",))),
        ("state-new_york", Wants(state="new_york")),
        ("city-st.gallen", Wants(city="st.gallen")),
        ("asn-3320", Wants(asn=3320)),
        ("asn-AS3320", Wants(asn=3320)),
        ("kind-mobile", Wants(kind="mobile")),
        ("kind-any", Wants(spelled_out=frozenset({"kind"}))),
        ("session-aB_9", Wants(session="aB_9")),
        ("session-" + "a" * 32, Wants(session="a" * 32)),
        ("lifetime-1", Wants(lifetime_seconds=60)),
        ("lifetime-1440", Wants(lifetime_seconds=86_400)),
        ("lifetime-90s", Wants(lifetime_seconds=90)),
        ("lifetime-30M", Wants(lifetime_seconds=1800)),
        ("lifetime-24h", Wants(lifetime_seconds=86_400)),
        ("lifetime-10", Wants(spelled_out=frozenset({"lifetime"}))),
        ("strict", Wants(strict=True)),
        ("rotate", Wants(rotate=True)),
        ("direct", Wants(direct=True)),
        ("dns-exit", Wants(dns_at_exit=True)),
        ("dns-node", Wants(spelled_out=frozenset({"dns"}))),
        ("tls-only", Wants(tls_only=True)),
        ("secure", Wants(secure=True)),
        ("country-de-rotate", Wants(countries=("de",), rotate=True)),
    ],
)
def test_a_parameter_has_its_literal_meaning(parameters: str, expected: Wants) -> None:
    assert parse(parameters) == expected


@cases(
    ("theirs", "ours"),
    [
        ("country-us-city-new_york-session-1-sessionduration-30",) * 2,
        (
            "cc-US-st-us_california-city-los_angeles-sessid-abc12345-sesstime-10",
            "country-us-state-california-city-los_angeles-session-abc12345-lifetime-10",
        ),
        ("st-us_texas-cc-us", "country-us-state-texas"),
        ("cc-de-sessid_oneip-abc", "country-de-session-abc-strict"),
        ("country-us-state-ny-city-sanfrancisco-asn-56386-session-abc-const",) * 2,
        ("country-fr-dns-remote", "country-fr-dns-exit"),
        ("country-fr-dns-local", "country-fr-dns-node"),
        ("country-us-region-ohio-sid-10000", "country-us-state-ohio-session-10000"),
        ("session-x-sesstime-1440", "session-x-lifetime-24h"),
        ("cc-fr-sessttl-60", "country-fr-lifetime-1h"),
        ("type-datacenter-oneip", "kind-datacenter-strict"),
    ],
)
def test_the_words_of_other_services_are_understood(theirs: str, ours: str) -> None:
    assert parse(theirs) == parse(ours)


def test_a_state_keeps_a_name_that_begins_like_another_country() -> None:
    assert parse("country-es-state-la_rioja").state == "la_rioja"


@cases(
    ("parameters", "parameter", "words"),
    [
        ("ctry-de", "ctry", "'country'"),
        ("Sesion-abc", "Sesion", "did you mean 'session'"),
        ("zip-10115", "zip", "is not known."),
        ("hidden", "hidden", "is not known"),
        ("country", "country", "needs a value"),
        ("session-a-lifetime", "lifetime", "needs a value"),
        ("country-germany", "country", "codes of countries (ISO 3166, two letters) such as"),
        ("cc-de_yy", "cc", "not 'de_yy'"),
        ("country-", "country", "not ''"),
        ("country-de_", "country", "not 'de_'"),
        ("state-s\xe3o_paulo", "state", "not 's?o_paulo'"),
        ("city-" + "a" * 65, "city", "berlin or new_york"),
        ("asn-0", "asn", "number of a network"),
        ("asn-4294967296", "asn", "number of a network"),
        ("asn-\u0663", "asn", "number of a network"),
        ("kind-fast", "kind", "residential, mobile, datacenter or any"),
        ("session-" + "a" * 33, "session", "digits and _, not '" + "a" * 32 + "...'"),
        ("session-a.b", "session", "letters, digits and _"),
        ("lifetime-0", "lifetime", "1 to 1440"),
        ("lifetime-59s", "lifetime", "60s to 24h"),
        ("lifetime-1441", "lifetime", "1 to 1440"),
        ("lifetime-25h", "lifetime", "1 to 1440"),
        ("lifetime-1d", "lifetime", "1 to 1440"),
        ("dns-1.1.1.1", "dns", "node or exit"),
        ("tls-any", "tls", "takes only"),
        ("strict-1", "1", "is not known"),
        ("country-de-country-us", "country", "twice"),
        ("session-a-sid-b", "sid", "twice"),
        ("sessid_oneip-a-session-b", "session", "twice"),
        ("direct-country-de", "direct", "no 'country'"),
        ("cc-de-direct", "direct", "no 'cc'"),
        ("rotate-sid-a", "rotate", "no 'sid'"),
        ("const-rotate", "rotate", "no 'const'"),
        ("country-de-", "", "too many"),
        ("-country-de", "", "too many"),
        ("", "", "too many"),
        ("x" * (PARAMETERS_MAX_CHARACTERS + 1), "", "More than 512"),
    ],
)
def test_a_mistake_is_refused_and_named(parameters: str, parameter: str, words: str) -> None:
    with pytest.raises(WantsError) as refused:
        parse(parameters)
    assert refused.value.parameter == parameter
    assert words in refused.value.message


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
def test_a_mistake_in_any_text_fits_into_a_header(text: str) -> None:
    try:
        parse(text)
    except WantsError as error:
        for shown in (error.parameter, error.message):
            assert shown.isascii()
            assert shown.isprintable()
            assert not set(shown) & set('"\\')
            assert len(shown) <= 200


def test_the_table_of_countries_is_whole() -> None:
    assigned = wants._ASSIGNED.split()
    assert assigned == sorted(set(assigned))
    assert len(assigned) == 249
    assert len(EUROPEAN_UNION) == 27
    assert set(assigned) > EUROPEAN_UNION
    assert "uk" not in COUNTRIES


# --- written again -------------------------------------------------------------------------------

places = st.from_regex("[a-z0-9_.]{1,64}", fullmatch=True)
pairs = st.fixed_dictionaries(
    {},
    optional={
        "country": st.lists(
            st.sampled_from(sorted({*COUNTRIES, "eu", "uk"})), min_size=1, max_size=40
        ).map("_".join),
        "state": places,
        "city": places,
        "asn": st.integers(1, 4_294_967_295).map(str),
        "kind": st.sampled_from(["residential", "mobile", "datacenter", "any"]),
        "session": st.from_regex("[A-Za-z0-9_]{1,32}", fullmatch=True),
        "lifetime": st.integers(60, 86_400).map(lambda seconds: f"{seconds}s"),
        "dns": st.sampled_from(["node", "exit"]),
        "tls": st.just("only"),
        "strict": st.just(""),
    },
)
wishes = pairs.map(lambda given: from_pairs(given.items()))
any_wishes = (
    wishes
    | st.just(Wants(direct=True))
    | st.builds(lambda given: replace(given, session="", strict=False, rotate=True), wishes)
)


@given(any_wishes)
def test_the_text_says_the_same_again_and_is_never_empty(wanted: Wants) -> None:
    assert wanted.text
    again = parse(wanted.text)
    assert again.text == wanted.text
    if wanted != Wants():
        assert again == wanted


def test_no_wish_at_all_is_any_exit_and_not_the_way_without() -> None:
    assert parse(Wants().text).over(None).direct is False
    assert replace(parse(Wants().text), spelled_out=frozenset()) == Wants()


# --- over a sale's -------------------------------------------------------------------------------


@cases(
    ("own", "sale", "expected"),
    [
        ("session-a", "country-de-session-b", "country-de-session-a"),
        ("country-fr", "country-de-session-b", "country-fr-session-b"),
        ("country-fr", "country-de-state-bavaria-city-munich-asn-3320", "country-fr"),
        ("state-hesse", "country-de-state-bavaria-city-munich", "country-de-state-hesse"),
        ("state-us_ohio", "country-us_ca", "country-us_ca-state-ohio"),
        ("country-ca-state-us_ohio", "country-us", "country-ca-state-us_ohio"),
        ("city-berlin", "country-de-strict", "country-de-city-berlin-strict"),
        ("asn-3209", "country-de-asn-3320", "country-de-asn-3209"),
        ("kind-any", "country-de-kind-mobile", "country-de"),
        ("kind-residential", "kind-mobile", "kind-residential"),
        ("lifetime-10", "session-a-lifetime-30", "session-a"),
        ("lifetime-20", "session-a-lifetime-30", "session-a-lifetime-20"),
        ("strict", "session-a-lifetime-30", "session-a-lifetime-30-strict"),
        ("dns-node", "country-de-dns-exit", "country-de"),
        ("dns-exit", "country-de", "country-de-dns-exit"),
        ("country-de", "tls-only", "country-de-tls-only"),
        ("rotate", "session-a-strict", "rotate"),
        ("strict", "rotate", "strict"),
        ("session-a", "rotate", "session-a"),
        ("direct", "country-de", "direct"),
        ("country-de", "direct", "country-de"),
    ],
)
def test_the_wishes_of_a_user_name_win_key_by_key(own: str, sale: str, expected: str) -> None:
    assert parse(own).over(parse(sale)) == parse(expected)


@given(any_wishes)
def test_wishes_over_none_are_themselves(wanted: Wants) -> None:
    assert wanted.over(None) is wanted


@given(any_wishes, any_wishes)
def test_a_result_contradicts_itself_no_more_than_its_parts(own: Wants, sale: Wants) -> None:
    both = own.over(sale)
    parse(both.text)
    assert not (both.rotate and (both.session or both.strict))
    assert both.over(sale) == both or not own.direct
