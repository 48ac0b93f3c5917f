"""Heads in transfer, with any content."""

from hypothesis import given
from hypothesis import strategies as st
from support.base.cost import seconds_of

from api.reverse.admission import Shown
from api.reverse.headers import Client, from_job, length_of, target_of, to_job
from api.reverse.places import Place

PLACE = Place("app", 0, "http://x.a.test", "", "/")
BELOW = PLACE._replace(prefix="/apps/app")
CLIENT = Client("192.0.2.1", "x.a.test", "http")
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"Connection", b"X-A", b"Set-Cookie", b"Upgrade", b"Content-Length", b"Location"]
        )
        | st.binary(max_size=8),
        st.sampled_from([b"x-a", b"close, upgrade", b"proxyd-app=1", b"a=1; Domain=b", b"/x"])
        | st.binary(max_size=12),
    ),
    max_size=8,
).map(tuple)


@given(HEADERS)
def test_text_in_an_answer_frames_nothing_and_breaks_no_line(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    for place in (PLACE, BELOW):
        for name, value in from_job(headers, place):
            assert not set(name) & set(b"\r\n: \0")
            assert not set(value) & set(b"\r\n\0")
            assert name.lower() not in (b"connection", b"upgrade", b"content-length")
            if name.lower() == b"set-cookie":
                assert b"domain" not in value.lower()
                assert not value.lower().startswith((b"proxyd-app", b"proxyd-replica"))


def test_a_cookie_stays_below_the_path_of_its_app() -> None:
    said = ((b"Set-Cookie", b"a=1; path=/b; DOMAIN=c; Secure"), (b"Set-Cookie", b"a=1; Path=b"))
    assert [value for _, value in from_job(said, BELOW)] == [
        b"a=1; Secure; Path=/apps/app/b",
        b"a=1; Path=/apps/app/",
    ]


def test_a_job_neither_reads_nor_sets_a_cookie_of_the_service() -> None:
    """Below one host, a browser sends the logins of the console and of the staff to every port."""
    logins = "proxyd=a; __Host-proxyd=b; proxyd-staff=c; PROXYD-APP =d; __Secure-proxyd-replica=e"
    sent = ((b"Cookie", f"{logins}; theme=dark; proxydark=1".encode()),)
    told = dict(to_job(sent, PLACE, CLIENT, Shown.COOKIE))
    assert told[b"Cookie"] == b"theme=dark; proxydark=1"
    said = tuple((b"Set-Cookie", each.encode()) for each in f"{logins}; staff=f".split("; "))
    assert list(from_job(said, PLACE)) == [(b"Set-Cookie", b"staff=f")]


def test_a_job_that_sends_its_client_elsewhere_may() -> None:
    for value in (b"https://example.com/", b"//example.com/", b"next"):
        ((_, told),) = from_job(((b"Location", value),), BELOW)
        assert told == value


def test_credentials_of_others_schemes_pass_and_the_key_does_not() -> None:
    sent = ((b"Authorization", b"Bearer KEY"), (b"Authorization", b"Basic x"))
    told = dict(to_job(sent, PLACE, CLIENT, Shown.BEARER))
    assert told[b"Authorization"] == b"Basic x"


def test_a_length_is_one_number_or_invalid() -> None:
    assert length_of(((b"Content-Length", b"12"), (b"content-length", b" 12"))) == 12
    for values in ((b"1", b"2"), (b"-1",), (b"1e3",), (b"",), (b"9" * 30,), ()):
        assert length_of(tuple((b"Content-Length", value) for value in values)) is None


def test_a_job_gets_no_key_that_opens_its_app() -> None:
    def asked(target: str) -> str:
        return target_of(PLACE._replace(target=target), lambda key: key == "k/1")

    assert asked("/") == "/"
    assert asked("/?") == "/?"
    assert asked("/?a=1&b") == "/?a=1&b"
    assert asked("/?key=k/1") == "/"
    assert asked("/a?x=1&key=k%2F1&y=&ke%79=k/1&key") == "/a?x=1&y=&key"
    # Others may mean something to the job.
    assert asked("/?key=other&key=&key=k/1") == "/?key=other&key="


def test_the_longest_query_of_keys_is_read_once() -> None:
    target = "/?" + "&".join(["a="] * 1_200 + ["key=" + "k" * 32] * 120)
    assert len(target) <= 8_190
    seconds = seconds_of(lambda: target_of(PLACE._replace(target=target), lambda _: True))
    assert seconds < 0.015
