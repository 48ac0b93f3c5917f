"""Session tokens: who logged in and until when, signed (JWT, RFC 7519; JWS, RFC 7515).

One algorithm and one key, so little that it stands here: a library for all algorithms takes a tenth
of a start to load. Nothing in a token is decoded before its signature has been compared.
"""

import base64
import hmac

import msgspec
from msgspec import Struct

from market.errors import Code, MarketError

ALGORITHM = "HS256"
HEADER = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"  # {"alg":"HS256","typ":"JWT"}
SIGNING_KEY_MIN_BYTES = 32  # the size of the hash, as RFC 7518, section 3.2, demands
TOKEN_MAX_CHARACTERS = 2048  # five times ours: what is longer is refused before it is decoded
# Tokens that are known to be ours: each request shows one, and what it says never changes. Some
# megabytes; a token that none of these is costs one more hash.
VERIFIED_MAX = 10_000
INVALID = "The session token is malformed, or was not issued by this service; log in again."


class Claims(Struct, frozen=True):
    """The content of a token: the user, the login session, and when it was issued (UTC seconds)."""

    user_id: str
    session_id: str
    issued_at: int


class _Header(Struct):
    """What a token says of its signature; `crit` would name what must be understood to trust it."""

    alg: str
    crit: msgspec.Raw | None = None


class _Payload(Struct, omit_defaults=True):
    """The claims, by their registered names; all are there but `nbf`, which we never write."""

    sub: str
    sid: str
    iat: int
    exp: int
    jti: str
    nbf: int = 0


class Tokens:
    """Signs and verifies session tokens.

    Args:
        signing_key: at least 32 bytes.
        lifetime_seconds: how long a token is valid.
    """

    def __init__(self, signing_key: bytes, *, lifetime_seconds: int) -> None:
        if len(signing_key) < SIGNING_KEY_MIN_BYTES:
            raise ValueError(f"the signing key has fewer than {SIGNING_KEY_MIN_BYTES} bytes")
        self._signing_key = signing_key
        self._verified: dict[str, _Payload] = {}
        self.lifetime_seconds = lifetime_seconds

    def sign(self, claims: Claims, *, token_id: str) -> str:
        """Return a token for `claims`, valid from when they were issued."""
        payload = _Payload(
            sub=claims.user_id,
            sid=claims.session_id,
            iat=claims.issued_at,
            exp=claims.issued_at + self.lifetime_seconds,
            jti=token_id,
        )
        content = f"{HEADER}.{_encoded(msgspec.json.encode(payload))}"
        return f"{content}.{self._signature(content)}"

    def verify(self, token: str, *, now: int) -> Claims:
        """Return the content of a token.

        Raises:
            MarketError: `unauthorized`: it was not issued by us, was changed, or has expired.
        """
        if len(token) > TOKEN_MAX_CHARACTERS:
            raise MarketError(Code.UNAUTHORIZED, INVALID)
        try:
            payload = self._verified.get(token) or self._payload(token)
        except (ValueError, RecursionError) as error:
            raise MarketError(Code.UNAUTHORIZED, INVALID) from error
        if payload is None or payload.nbf > now:
            raise MarketError(Code.UNAUTHORIZED, INVALID)
        if payload.exp <= now:
            raise MarketError(Code.UNAUTHORIZED, "The session token has expired; log in again.")
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[token] = payload
        return Claims(payload.sub, payload.sid, payload.iat)

    def _payload(self, token: str) -> _Payload | None:
        """Return the payload of a token that we signed; None for another.

        Raises:
            ValueError, RecursionError: it cannot be decoded.
        """
        content, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(content).encode()):
            return None
        header_part, payload_part = content.split(".")
        header = msgspec.json.decode(_decoded(header_part), type=_Header)
        if header.alg != ALGORITHM or header.crit is not None:
            return None
        return msgspec.json.decode(_decoded(payload_part), type=_Payload)

    def _signature(self, content: str) -> str:
        return _encoded(hmac.digest(self._signing_key, content.encode(), "sha256"))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
