"""Second factors: codes of an authenticator, and recovery codes."""

import re

from pyotp import TOTP, parse_uri
from support.market.market import STAFF_SEALING

from market.base.sealing import Sealing
from market.staff.members.factors import CODES, STEP_SECONDS, Factors, code_hash

FACTORS = Factors(STAFF_SEALING)
NOW = 1_800_000_000


def test_an_authenticator_understands_the_address() -> None:
    authenticator = parse_uri(FACTORS.new("ada@example.com").uri)
    assert isinstance(authenticator, TOTP)
    assert (authenticator.name, authenticator.issuer) == ("ada@example.com", "proxyd")
    assert len(authenticator.byte_secret()) == 20


def test_the_step_before_and_after_count_and_no_other() -> None:
    factor = FACTORS.new("ada@example.com")
    authenticator = parse_uri(factor.uri)
    assert isinstance(authenticator, TOTP)
    step = NOW // STEP_SECONDS
    for away, expected in ((-2, None), (-1, step - 1), (0, step), (1, step + 1), (2, None)):
        code = authenticator.at(NOW + away * STEP_SECONDS)
        assert FACTORS.step_of(factor.sealed, str(code), NOW) == expected


def test_a_secret_of_another_signing_key_has_no_code() -> None:
    factor = FACTORS.new("ada@example.com")
    authenticator = parse_uri(factor.uri)
    assert isinstance(authenticator, TOTP)
    others = Factors(Sealing(b"x" * 40, b"staff factors"))
    assert others.step_of(factor.sealed, str(authenticator.at(NOW)), NOW) is None


def test_the_store_has_neither_the_secret_nor_a_code() -> None:
    factor = FACTORS.new("ada@example.com")
    secret = re.search(r"secret=(\w+)", factor.uri)
    assert secret is not None
    kept = f"{factor.sealed} {factor.code_hashes}"
    assert secret[1] not in kept
    assert not any(code in kept for code in factor.codes)


def test_recovery_codes_have_eighty_bits_and_are_all_different() -> None:
    factor = FACTORS.new("ada@example.com")
    assert len(set(factor.codes)) == CODES == 10
    assert all(re.fullmatch("([a-z2-7]{4}-){3}[a-z2-7]{4}", code) for code in factor.codes)


def test_a_recovery_code_is_read_without_case_and_groups() -> None:
    assert code_hash("ABCD efgh-2345-ijkl") == code_hash("abcd-efgh-2345-ijkl")
