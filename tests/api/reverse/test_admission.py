"""Keys in addresses and cookies: read as written, in any surroundings."""

from urllib.parse import quote_plus

from hypothesis import given
from hypothesis import strategies as st

from api.reverse.admission import Names, Shown, bearer, cookies, key_in_query, shown
from api.reverse.places import Places

KEY = "abc-DEF_123"
NAMES = Names.of(Places("http://a.test", "a.test"))


def test_a_key_is_taken_out_of_a_query() -> None:
    assert key_in_query("/a?key=k") == ("k", "/a")
    assert key_in_query("/a?x=1&key=k&y=%20") == ("k", "/a?x=1&y=%20")
    assert key_in_query("/a?%6bey=a%2Bb&key=2") == ("a+b", "/a?key=2")
    assert key_in_query("/a?keys=1&key") == ("", "/a?keys=1&key")
    assert key_in_query("/key=1") == ("", "/key=1")
    assert key_in_query("?key=k") == ("k", "")


def test_the_names_of_cookies_limit_their_setters() -> None:
    assert Names.of(Places("https://a.test", "a.test")).key == "__Host-proxyd-app"
    assert Names.of(Places("https://a.test", "")).key == "__Secure-proxyd-app"
    assert NAMES.key == "proxyd-app"


def test_any_of_several_cookies_of_the_name_may_be_the_one() -> None:
    """Another host below the domain may have put one of its own before it."""
    headers = [(b"Cookie", f"proxyd-app=evil; proxyd-app={KEY}".encode())]
    assert shown("/", headers, NAMES, KEY.__eq__) is Shown.COOKIE
    many = "; ".join(["proxyd-app=evil"] * 1000 + [f"proxyd-app={KEY}"])
    asked: list[str] = []

    def opens(key: str) -> bool:
        asked.append(key)
        return key == KEY

    assert shown("/", [(b"cookie", many.encode())], NAMES, opens) is None
    assert len(asked) < 10


@given(st.binary(max_size=100), st.text(max_size=50))
def test_nothing_that_is_sent_raises_or_opens(value: bytes, query: str) -> None:
    headers = [
        (b"Cookie", value),
        (b"Authorization", value),
        (b"Authorization", b"Bearer " + value),
    ]
    target = "/?" + query
    assert shown(target, headers, NAMES, lambda _: False) is None
    bearer(headers)
    cookies(headers)


@given(st.lists(st.tuples(st.sampled_from(["key", "a", "k"]), st.text("ab&=+ %", max_size=5))))
def test_other_parts_of_a_query_stay_as_they_are(pairs: list[tuple[str, str]]) -> None:
    parts = [f"{name}={quote_plus(value)}" for name, value in pairs]
    key, rest = key_in_query("/p?" + "&".join(parts))
    keys = [index for index, (name, _) in enumerate(pairs) if name == "key"]
    if not keys:
        assert key == ""
        return
    assert key == pairs[keys[0]][1]
    left = parts[: keys[0]] + parts[keys[0] + 1 :]
    assert rest == ("/p?" + "&".join(left) if left else "/p")
