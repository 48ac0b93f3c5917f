"""Session tokens: the user and the end of a login, signed (JWT, RFC 7519)."""

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from market.base.errors import Code, MarketError

if TYPE_CHECKING:
    from jwt import PyJWT

ALGORITHM = "HS256"
SIGNING_KEY_MIN_BYTES = 32  # the size of the hash, as RFC 7518, section 3.2, demands
TOKEN_MAX_CHARACTERS = 2048  # five times ours: a longer token is refused before it is decoded
# Cached tokens with a verified signature: each request has one, and its content never changes. They
# take some megabytes. Another token costs fifty microseconds.
VERIFIED_MAX = 10_000
INVALID = "The session token is malformed, or was not issued by this service; log in again."


class Claims(Struct, frozen=True):
    """The content of a token: the user, the login session, and when it was issued (UTC seconds)."""

    user_id: str
    session_id: str
    issued_at: int


class _Verified(Struct, frozen=True):
    """Claims of a token with our signature; `expires_at` is in UTC seconds."""

    claims: Claims
    expires_at: int


class Tokens:
    """Signs and verifies session tokens.

    Args:
        signing_key: at least 32 bytes.
        lifetime_seconds: how long a token is valid.
        audience: the part of the service that takes the tokens; "" for the API of the users.
        verified_max: how many tokens are remembered.
    """

    def __init__(
        self,
        signing_key: bytes,
        *,
        lifetime_seconds: int,
        audience: str = "",
        verified_max: int = VERIFIED_MAX,
    ) -> None:
        if len(signing_key) < SIGNING_KEY_MIN_BYTES:
            raise ValueError(f"the signing key has fewer than {SIGNING_KEY_MIN_BYTES} bytes")
        self._signing_key = signing_key
        self._audience = audience
        self._verified_max = verified_max
        self._verified: dict[str, _Verified] = {}
        self.lifetime_seconds = lifetime_seconds

    @property
    def remembered(self) -> int:
        """Number of cached valid tokens."""
        return len(self._verified)

    def sign(self, claims: Claims, *, token_id: str) -> str:
        """Return a token for `claims`, valid from when they were issued."""
        payload = {
            "sub": claims.user_id,
            "sid": claims.session_id,
            "iat": claims.issued_at,
            "exp": claims.issued_at + self.lifetime_seconds,
            "jti": token_id,
            **({"aud": self._audience} if self._audience else {}),
        }
        return self._jwt.encode(payload, self._signing_key, algorithm=ALGORITHM)

    def verify(self, token: str, *, now: int) -> Claims:
        """Return the content of a token.

        Raises:
            MarketError: `unauthorized`: it was not issued by us, was changed, or has expired.
        """
        verified = self._verified.get(token)
        if verified is None:
            verified = self._decoded(token)
            if len(self._verified) >= self._verified_max:
                self._verified.clear()
            self._verified[token] = verified
        if verified.expires_at <= now:
            raise MarketError(Code.UNAUTHORIZED, "The session token has expired; log in again.")
        return verified.claims

    def _decoded(self, token: str) -> _Verified:
        # Base64 with padding would be another text of the same token (RFC 7515, section 2).
        if len(token) > TOKEN_MAX_CHARACTERS or "=" in token:
            raise MarketError(Code.UNAUTHORIZED, INVALID)
        try:
            payload = self._jwt.decode(
                token,
                self._signing_key,
                algorithms=[ALGORITHM],
                audience=self._audience or None,  # without one, a token with an audience is refused
                options={
                    "require": ["sub", "sid", "iat", "exp", "jti"],
                    # `verify` compares with the clock that it is given, which tests can set.
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
            claims = Claims(str(payload["sub"]), str(payload["sid"]), int(payload["iat"]))
            return _Verified(claims, int(payload["exp"]))
        except self._invalid as error:
            raise MarketError(Code.UNAUTHORIZED, INVALID) from error

    def load(self) -> None:
        """Import the library, in any thread, after the start.

        The import would take a tenth of the start. A request with a token before that waits for the
        import, and blocks the event loop meanwhile.
        """
        assert self._jwt  # noqa: S101 - asking for it imports it
        assert self._invalid  # noqa: S101 - as above

    @cached_property
    def _jwt(self) -> "PyJWT":
        """The library, imported at the first use; see `load`."""
        import jwt  # noqa: PLC0415

        return jwt.PyJWT()

    @cached_property
    def _invalid(self) -> tuple[type[Exception], ...]:
        import jwt  # noqa: PLC0415 - as above

        return (jwt.InvalidTokenError, ValueError, TypeError)
