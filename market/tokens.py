"""Session tokens: who logged in and until when, signed (JWT, RFC 7519)."""

from dataclasses import dataclass

from market.errors import Code, MarketError

ALGORITHM = "HS256"
SIGNING_KEY_MIN_BYTES = 32  # the size of the hash, as RFC 7518, section 3.2, demands
TOKEN_MAX_CHARACTERS = 2048  # five times ours: what is longer is refused before it is decoded
INVALID = "The session token is malformed, or was not issued by this service; log in again."


@dataclass(frozen=True, slots=True)
class Claims:
    """The content of a token: the user, the login session, and when it was issued (UTC seconds)."""

    user_id: str
    session_id: str
    issued_at: int


class Tokens:
    """Signs and verifies session tokens.

    Args:
        signing_key: at least 32 bytes.
        lifetime_seconds: how long a token is valid.
    """

    def __init__(self, signing_key: bytes, *, lifetime_seconds: int) -> None:
        if len(signing_key) < SIGNING_KEY_MIN_BYTES:
            raise ValueError(f"the signing key has fewer than {SIGNING_KEY_MIN_BYTES} bytes")
        # Imported here because it loads all of cryptography, which most commands do not need.
        import jwt  # noqa: PLC0415

        self._jwt = jwt.PyJWT()
        self._invalid = (jwt.InvalidTokenError, ValueError, TypeError)
        self._signing_key = signing_key
        self.lifetime_seconds = lifetime_seconds

    def sign(self, claims: Claims, *, token_id: str) -> str:
        """Return a token for `claims`, valid from when they were issued."""
        payload = {
            "sub": claims.user_id,
            "sid": claims.session_id,
            "iat": claims.issued_at,
            "exp": claims.issued_at + self.lifetime_seconds,
            "jti": token_id,
        }
        return self._jwt.encode(payload, self._signing_key, algorithm=ALGORITHM)

    def verify(self, token: str, *, now: int) -> Claims:
        """Return the content of a token.

        Raises:
            MarketError: `unauthorized`: it was not issued by us, was changed, or has expired.
        """
        if len(token) > TOKEN_MAX_CHARACTERS:
            raise MarketError(Code.UNAUTHORIZED, INVALID)
        try:
            payload = self._jwt.decode(
                token,
                self._signing_key,
                algorithms=[ALGORITHM],
                options={
                    "require": ["sub", "sid", "iat", "exp", "jti"],
                    # Compared below with the clock that we were given, which tests can set.
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
            claims = Claims(str(payload["sub"]), str(payload["sid"]), int(payload["iat"]))
            expired = int(payload["exp"]) <= now
        except self._invalid as error:
            raise MarketError(Code.UNAUTHORIZED, INVALID) from error
        if expired:
            raise MarketError(Code.UNAUTHORIZED, "The session token has expired; log in again.")
        return claims
