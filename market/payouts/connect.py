"""Accounts of users at a payment service: the service checks its users by itself, on its pages."""

from typing import Protocol

from market.payouts.providers import Progress


class Connect(Protocol):
    """A payment service with accounts for users."""

    async def open_account(self, key: str) -> str:
        """Open an account, and return its name; a repetition with the same key opens no second one.

        Raises:
            ProviderError: the service refused it or did not answer.
        """

    async def link(self, account_id: str, return_url: str) -> str:
        """Return a page of the service for the user to fill the account in.

        The page leads to `return_url` at its end.

        Raises:
            ProviderError: the service refused it or did not answer.
        """

    async def is_ready(self, account_id: str) -> bool:
        """Return whether an account can receive payouts now.

        Raises:
            ProviderError: the service refused it or did not answer.
        """

    async def payout_of(self, transfer_id: str) -> tuple[str, Progress]:
        """Return the payout that a transfer is of, and its progress; "" for none of this service.

        Raises:
            ProviderError: the service refused it or did not answer.
        """

    async def close(self) -> None:
        """Close every connection; later calls open new ones."""
