"""A user name with wishes behind it: `BASE-country-de-session-abc`.

User names that were made here have no `-`, so the first one ends them. The meaning of the wishes is
in `market.exits.wants`, because a sale also has them.
"""

from typing import Final

from market.exits.wants import Wants, WantsError, parse

__all__ = ["Wants", "WantsError", "parse", "split", "wanted"]

SEPARATOR: Final = b"-"


def split(username: bytes) -> tuple[bytes, bytes]:
    """Return a user name as it was sold, and the parameters behind it; empty when there are none.

    Nothing behind a `-` is a mistake, which `wanted` finds: a variable of the client's may be
    empty. Callers that must be fast look for a `-` first: most user names have none.
    """
    base, separator, parameters = username.partition(SEPARATOR)
    return base, parameters or separator


def wanted(parameters: bytes, default: Wants | None) -> Wants | None:
    """Return the wishes of a connection: its own wishes over those of the sale.

    Args:
        parameters: the parameters from `split`; empty when there were none.
        default: the wishes of the session; None when it leaves directly.

    Returns:
        None when it leaves directly.

    Raises:
        WantsError: see `parse`.
    """
    if not parameters:
        return default
    return parse(parameters.decode("latin-1")).over(default)
