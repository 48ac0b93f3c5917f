"""Session tokens: signed statements of who logged in, and when that ends (JWT, RFC 7519)."""

from dataclasses import dataclass

from market.errors import Code, MarketError

ALGORITHM = "HS256"
SIGNING_KEY_MIN_BYTES = 32
TOKEN_MAX_CHARACTERS = 2048
INVALID = "The session token is malformed, or is none of this service; log in again."


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says: the user, the login session, and when it was made (UTC seconds)."""

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
        # Here, so that commands that sign nothing do not wait for it: it loads all of cryptography.
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
        """Return what a token says.

        Raises:
            MarketError: `unauthorized`, when it is not ours, was changed, or is out of date.
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
