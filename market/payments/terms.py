"""The operator's terms of payments."""

from msgspec import Struct

from market.money.money import MICRO

CENT = 10_000  # micro-USD
DAY_SECONDS = 86_400


class PaymentTerms(Struct, frozen=True):
    """Limits in micro-USD and seconds, and the lines of receipts.

    Attributes:
        least: the smallest payment.
        most: the largest payment.
        new_account_day: the most that a new account pays in a day; 0 for no ceiling.
        new_account_seconds: the age below which an account is new.
        refund_seconds: the time in which users get unspent money back.
        seller: the name, the address and the tax number of the operator, in lines.
        tax_name: the name of the tax that prices include; "" for none.
        tax_basis_points: its rate in hundredths of a percent.
        site_name: the name of the service.
        top_up_month: the largest ceiling of automatic payments in a month; 0 offers none.
    """

    least: int = 5 * MICRO
    most: int = 1_000 * MICRO
    new_account_day: int = 100 * MICRO
    new_account_seconds: int = 30 * DAY_SECONDS
    refund_seconds: int = 60 * DAY_SECONDS
    seller: str = ""
    tax_name: str = ""
    tax_basis_points: int = 0
    site_name: str = "proxyd"
    top_up_month: int = 0
