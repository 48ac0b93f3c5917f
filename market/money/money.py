"""Amounts: integers of micro-units (millionths) inside, decimal numbers outside."""

from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from functools import cache

MICRO_DIGITS = 6
MICRO = 1_000_000
BYTE_DIGITS = 9
GB = 1_000_000_000

# No amount and no balance is larger, in USD or credits.
UNITS_MAX = 10**12

# Scaled numbers have no more digits than a 64-bit integer of the database holds for certain.
_WHOLE_DIGITS = 18
_EXACT = Context(prec=2 * _WHOLE_DIGITS)


class Currency(StrEnum):
    """The units that accounts and prices are in."""

    USD = "usd"
    CREDIT = "credit"


def scaled(number: int | Decimal, digits: int) -> int:
    """Return `number` times ten to the power of `digits`, rounded half to even.

    Raises:
        ValueError: the number is not finite, is negative, or has more than 18 digits once scaled.
    """
    value = Decimal(number)
    if not value.is_finite() or (value.is_signed() and value != 0):
        raise ValueError("Expected a number that is not negative")
    if value != 0 and value.adjusted() >= _WHOLE_DIGITS - digits:
        raise ValueError("Expected a smaller number")
    rounded = value.quantize(_least(digits), ROUND_HALF_EVEN, _EXACT)
    return int(rounded.scaleb(digits, _EXACT))


@cache
def _least(digits: int) -> Decimal:
    return Decimal((0, (1,), -digits))


def micro(number: int | Decimal) -> int:
    """Return an amount in millionths of its unit; raises as `scaled`."""
    return scaled(number, MICRO_DIGITS)


def cost(size_bytes: int, price_per_gb: int) -> int:
    """Return the price of bytes before their use, in micro-USD, rounded up.

    `earned` rounds down, so a hold of this amount always covers the captures from it.
    """
    return -(-size_bytes * price_per_gb // GB)


def earned(size_bytes: int, price_per_gb: int) -> int:
    """Return the price of used bytes, in micro-USD, rounded down."""
    return size_bytes * price_per_gb // GB


def as_decimal(amount: int) -> str:
    """Return micro-units as a decimal number: `1.50`; at least two decimals, none lost."""
    sign = "-" if amount < 0 else ""
    whole, fraction = divmod(abs(amount), MICRO)
    decimals = f"{fraction:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"
