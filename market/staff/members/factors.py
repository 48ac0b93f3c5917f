"""The second factor of the staff: codes of an authenticator (RFC 6238), and recovery codes."""

import hashlib
import secrets

from msgspec import Struct
from pyotp import TOTP, random_base32
from pyotp.exceptions import OTPVerificationError

from market.base.sealing import Sealing

ISSUER = "proxyd"
CODES = 10
CODE_CHARACTERS = 16  # of 32 kinds: 80 bits
GROUP_CHARACTERS = 4
STEP_SECONDS = 30
STEPS_AROUND = 1  # clocks of telephones differ: the step before and after count as well
SECRET_CHARACTERS = 32  # of 32 kinds: the 160 bits that RFC 4226, section 4, recommends

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


class NewFactor(Struct, frozen=True):
    """A new second factor: its address for an authenticator, and the recovery codes.

    Both are shown once; the store has the sealed secret and the hashes of the codes.
    """

    uri: str
    codes: tuple[str, ...]
    sealed: str

    @property
    def code_hashes(self) -> tuple[str, ...]:
        """The hashes of the recovery codes."""
        return tuple(code_hash(code) for code in self.codes)


class Factors:
    """Makes second factors, and compares their codes.

    Args:
        sealing: seals the secrets that the store keeps.
    """

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    def new(self, email: str) -> NewFactor:
        """Return a new second factor for a member of the staff."""
        secret = random_base32(SECRET_CHARACTERS)
        uri = TOTP(secret).provisioning_uri(name=email, issuer_name=ISSUER)
        codes = tuple(_new_code() for _ in range(CODES))
        return NewFactor(uri, codes, self._sealing.close(secret.encode()))

    def step_of(self, sealed: str, code: str, now: int) -> int | None:
        """Return the time step whose code this is, None if it is wrong.

        A caller refuses a step that is not newer than the last used one.
        """
        secret = self._sealing.open(sealed)
        if secret is None:  # sealed by another signing key
            return None
        try:
            return TOTP(secret.decode()).verify_and_get_timecode(
                code, for_time=now, valid_window=STEPS_AROUND
            )
        except OTPVerificationError:
            return None


def code_hash(code: str) -> str:
    """Return the hash of a recovery code, whose groups and case do not count."""
    plain = "".join(each for each in code.casefold() if each.isalnum())
    return hashlib.sha256(plain.encode()).hexdigest()


def _new_code() -> str:
    letters = "".join(secrets.choice(_ALPHABET) for _ in range(CODE_CHARACTERS))
    groups = range(0, CODE_CHARACTERS, GROUP_CHARACTERS)
    return "-".join(letters[at : at + GROUP_CHARACTERS] for at in groups)
