"""The limits of new accounts, by the settings.

A module of its own: commands that read a user do not wait for the settings of all the service.
"""

from config.settings import Settings
from market.accounts.levels import NewAccounts
from market.money.money import GB

DAY_SECONDS = 86_400


def new_accounts(settings: Settings) -> NewAccounts:
    """Return the limits of new accounts."""
    new = settings.new_accounts
    return NewAccounts(
        seconds=new.days * DAY_SECONDS,
        connections=new.connections,
        ports=new.ports,
        bytes_per_day=new.gb_per_day * GB,
        needs_email=new.confirmed_email,
    )
