"""Session tokens: signed claims come back, and any other token is refused."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from market.accounts.tokens import (
    INVALID,
    SIGNING_KEY_MIN_BYTES,
    TOKEN_MAX_CHARACTERS,
    Claims,
    Tokens,
)
from market.base.errors import Code, MarketError

KEY = b"k" * SIGNING_KEY_MIN_BYTES
NOW = 1_800_000_000
LIFETIME = 86_400
CLAIMS = Claims("user", "session", NOW)
TOKENS = Tokens(KEY, lifetime_seconds=LIFETIME)
GOOD = TOKENS.sign(CLAIMS, token_id="token")
PAYLOAD = {"sub": "user", "sid": "session", "iat": NOW, "exp": NOW + LIFETIME, "jti": "token"}


def encoded(part: bytes) -> str:
    """Encode a part of a token."""
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def decoded(part: str) -> Any:
    """Return the contents of a part of a token."""
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def made(
    header: Any, payload: Any, *, key: bytes = KEY, algorithm: str = "sha256", raw: bool = False
) -> str:
    """Return a token made by hand, rightly signed."""
    parts = (header, payload) if raw else (json.dumps(header), json.dumps(payload))
    said = ".".join(encoded(part.encode()) for part in parts)
    return f"{said}.{encoded(hmac.digest(key, said.encode(), algorithm))}"


def refused(token: str, *, now: int = NOW, tokens: Tokens = TOKENS) -> str:
    """Check that a token is refused. Return the message."""
    with pytest.raises(MarketError) as caught:
        tokens.verify(token, now=now)
    assert caught.value.code is Code.UNAUTHORIZED
    return caught.value.message


def test_a_signed_token_comes_back() -> None:
    assert TOKENS.verify(GOOD, now=NOW) == CLAIMS


def test_a_token_made_by_hand_with_the_key_is_the_same() -> None:
    assert TOKENS.verify(made({"alg": "HS256"}, PAYLOAD), now=NOW) == CLAIMS


def test_a_token_names_its_user_session_and_times() -> None:
    header, payload, _ = GOOD.split(".")
    assert decoded(header) == {"alg": "HS256", "typ": "JWT"}
    assert decoded(payload) == PAYLOAD


def test_the_signature_is_the_one_of_the_standard() -> None:
    said, _, signature = GOOD.rpartition(".")
    assert signature == encoded(hmac.new(KEY, said.encode(), hashlib.sha256).digest())


def test_a_token_is_valid_until_its_last_second() -> None:
    assert TOKENS.verify(GOOD, now=NOW + LIFETIME - 1) == CLAIMS
    assert refused(GOOD, now=NOW + LIFETIME) == "The session token has expired; log in again."
    assert refused(GOOD, now=NOW + 10 * LIFETIME) == "The session token has expired; log in again."


def test_a_clock_that_was_set_back_does_not_end_a_token() -> None:
    assert TOKENS.verify(GOOD, now=NOW - 3600) == CLAIMS


def test_only_the_clock_of_the_caller_counts() -> None:
    for moment in (1_000_000_000, 4_000_000_000):
        claims = Claims("user", "session", moment)
        assert TOKENS.verify(TOKENS.sign(claims, token_id="t"), now=moment + 1) == claims


def test_the_lifetime_of_its_signing_counts() -> None:
    longer = Tokens(KEY, lifetime_seconds=10 * LIFETIME)
    refused(GOOD, now=NOW + LIFETIME, tokens=longer)
    assert longer.verify(longer.sign(CLAIMS, token_id="t"), now=NOW + LIFETIME) == CLAIMS


def test_a_token_of_another_key_is_refused() -> None:
    other = Tokens(b"o" * 32, lifetime_seconds=LIFETIME)
    refused(other.sign(CLAIMS, token_id="token"))
    refused(GOOD, tokens=other)
    longer = Tokens(KEY + b"x", lifetime_seconds=LIFETIME)
    refused(longer.sign(CLAIMS, token_id="token"))
    refused(GOOD, tokens=longer)


@cases("algorithm", ["none", "None", "NONE", "nOnE", "", None])
def test_a_token_without_a_signature_is_refused(algorithm: str | None) -> None:
    said = f"{encoded(json.dumps({'alg': algorithm}).encode())}.{GOOD.split('.')[1]}"
    refused(f"{said}.")
    refused(said)
    refused(f"{said}.{GOOD.split('.')[2]}")
    refused(made({"alg": algorithm}, PAYLOAD))


def test_another_library_understands_ours_and_we_understand_its() -> None:
    read = jwt.decode(GOOD, KEY, algorithms=["HS256"], options={"verify_iat": False})
    assert read == PAYLOAD
    assert TOKENS.verify(jwt.encode(PAYLOAD, KEY, algorithm="HS256"), now=NOW) == CLAIMS


def test_pyjwts_own_unsigned_token_is_refused() -> None:
    refused(jwt.encode(PAYLOAD, None, algorithm="none"))


@cases(("name", "digest"), [("HS384", "sha384"), ("HS512", "sha512")])
def test_another_algorithm_is_refused_even_with_our_key(name: str, digest: str) -> None:
    refused(made({"alg": name}, PAYLOAD, algorithm=digest))


@cases("name", ["RS256", "ES256", "EdDSA", "HS1", "HS256 ", "hs256"])
def test_our_signature_under_another_name_is_refused(name: str) -> None:
    refused(made({"alg": name}, PAYLOAD))


@cases(
    "change",
    [{"sub": "another"}, {"sid": "another"}, {"exp": NOW + 10 * LIFETIME}, {"admin": True}],
)
def test_a_changed_payload_is_refused(change: dict[str, object]) -> None:
    header, _, signature = GOOD.split(".")
    changed = encoded(json.dumps(PAYLOAD | change).encode())
    refused(f"{header}.{changed}.{signature}")


def test_the_same_bytes_in_another_spelling_are_refused() -> None:
    """One token has one text; else a single one would fill the memory of good tokens."""
    header, payload, signature = GOOD.split(".")
    tokens = Tokens(KEY, lifetime_seconds=LIFETIME)
    for end in ("=", "==", "!", " ", "\n"):
        refused(f"{GOOD}{end}", tokens=tokens)
        refused(f"{header}.{payload}{end}.{signature}", tokens=tokens)
        refused(f"{header}{end}.{payload}.{signature}", tokens=tokens)
    assert tokens.remembered == 0


def test_a_changed_signature_is_refused() -> None:
    said, _, signature = GOOD.rpartition(".")
    refused(f"{said}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}")
    refused(f"{said}.{signature[:-4]}")
    refused(f"{said}.{signature}AAAA")
    refused(f"{said}.")


@cases("claim", list(PAYLOAD))
def test_a_missing_claim_is_refused(claim: str) -> None:
    rest = {name: value for name, value in PAYLOAD.items() if name != claim}
    refused(made({"alg": "HS256"}, rest))
    refused(made({"alg": "HS256"}, PAYLOAD | {claim: None}))


@cases(
    "change",
    [
        {"exp": "soon"},
        {"exp": [NOW + 1]},
        {"exp": {}},
        {"iat": "today"},
        {"iat": []},
        {"sub": 1},
        {"sub": ["user"]},
        {"exp": 0},
        {"exp": -1},
        {"nbf": 32_503_680_000},
    ],
)
def test_a_claim_of_the_wrong_kind_is_refused(change: dict[str, object]) -> None:
    refused(made({"alg": "HS256"}, PAYLOAD | change))


@cases("payload", [[], "text", 1, None, [PAYLOAD]])
def test_a_payload_that_is_no_object_is_refused(payload: object) -> None:
    refused(made({"alg": "HS256"}, payload))


@cases("header", [[], "HS256", None, {}, {"alg": 1}, {"alg": ["HS256"]}])
def test_a_header_that_names_no_algorithm_is_refused(header: object) -> None:
    refused(made(header, PAYLOAD))


@cases("critical", [["exp"], [], "exp", 1])
def test_a_header_that_demands_to_be_understood_is_refused(critical: object) -> None:
    refused(made({"alg": "HS256", "crit": critical}, PAYLOAD))


@cases("opening", ["[", '{"a":'])
def test_nesting_without_end_is_refused(opening: str) -> None:
    deep = opening * (1_400 // len(opening))
    refused(made(deep, "{}", raw=True))
    refused(made('{"alg":"HS256"}', deep, raw=True))


@cases(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "é.é.é",
        "\x00.\x00.\x00",
        "\udcff.\udcff.\udcff",
        GOOD + ".",
        "." + GOOD,
        GOOD.replace(".", "!"),
        "Bearer " + GOOD,
        GOOD + " " + GOOD,
    ],
)
def test_a_text_that_is_no_token_is_refused(token: str) -> None:
    assert refused(token) == INVALID


@given(st.text(max_size=200))
def test_no_text_is_believed_or_breaks_anything(text: str) -> None:
    refused(text)


@given(st.text(max_size=100), st.text(max_size=100))
def test_no_text_in_a_rightly_signed_token_breaks_anything(header: str, payload: str) -> None:
    refused(made(header, payload, raw=True))


def test_the_characters_of_a_token_are_bounded() -> None:
    padding = 0
    while len(token := made({"alg": "HS256"}, PAYLOAD | {"x": "y" * padding})) <= (
        TOKEN_MAX_CHARACTERS
    ):
        assert TOKENS.verify(token, now=NOW) == CLAIMS
        padding += 50
    refused(token)
    assert len(GOOD) < TOKEN_MAX_CHARACTERS


@cases("size", [0, 1, 31])
def test_a_short_key_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="fewer than 32 bytes"):
        Tokens(b"k" * size, lifetime_seconds=LIFETIME)


def test_tokens_that_were_verified_are_remembered_in_bounded_number() -> None:
    tokens = Tokens(KEY, lifetime_seconds=LIFETIME, verified_max=3)
    claims = [Claims("user", f"session {number}", NOW) for number in range(10)]
    signed = [tokens.sign(each, token_id="t") for each in claims]
    sizes = []
    for _ in range(2):
        for token, each in zip(signed, claims, strict=True):
            assert tokens.verify(token, now=NOW) == each
            sizes.append(tokens.remembered)
    assert sizes[:4] == [1, 2, 3, 1]
    assert max(sizes) == 3


def test_a_refused_token_is_not_remembered() -> None:
    tokens = Tokens(KEY, lifetime_seconds=LIFETIME)
    for token in ("a.b.c", GOOD[:-4], "x" * (TOKEN_MAX_CHARACTERS + 1)):
        refused(token, tokens=tokens)
    assert tokens.remembered == 0


def test_a_remembered_token_still_ends() -> None:
    tokens = Tokens(KEY, lifetime_seconds=LIFETIME)
    assert tokens.verify(GOOD, now=NOW) == CLAIMS
    refused(GOOD, now=NOW + LIFETIME, tokens=tokens)
    assert tokens.verify(GOOD, now=NOW + LIFETIME - 1) == CLAIMS


def test_the_key_is_not_shown() -> None:
    assert "kkkk" not in repr(TOKENS)
