"""Members of the staff in a marketplace of a test."""

from pyotp import TOTP, parse_uri

from market.staff.base.roles import Machine, Member, Role, Via
from market.staff.members import accounts
from market.staff.members.accounts import Created
from market.staff.members.factors import Factors
from support.market.market import STAFF_SEALING, Market

PASSWORD = "a long password"
FACTORS = Factors(STAFF_SEALING)
ROOT = Machine("root")


async def member(market: Market, role: Role, name: str = "") -> Created:
    """Add a member of the staff, by a command on the machine."""
    return await accounts.create(
        market.context,
        market.passwords,
        FACTORS,
        ROOT,
        email=f"{name or role}@staff.example.com",
        password=PASSWORD,
        role=role,
        why="hired",
    )


def acting(created: Created) -> Member:
    """Return a member as the author of an act on a page."""
    return Member(created.id, created.role, Via.MACHINE, "root")


def code_at(created: Created, seconds: int) -> str:
    """Return the code that the authenticator of a member shows at a time."""
    authenticator = parse_uri(created.factor.uri)
    assert isinstance(authenticator, TOTP)
    return str(authenticator.at(seconds))
