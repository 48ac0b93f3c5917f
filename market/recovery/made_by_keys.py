"""Worker tokens and webhooks that API keys have made, which end with a stolen key or with all keys.

A key of a line that was rolled counts for the line: a later one ends the work of an earlier one.
"""

from collections.abc import Sequence

from market.devices.devices import Devices, Revoked, revoke_device
from market.events.context import Context
from market.exits.consents import Exits
from market.jobs.sweeper import JobSweeper
from market.notify.webhooks import BY_KEY, disable_all
from storage.accounts import keys as key_queries
from storage.accounts import users
from storage.devices import made_by_keys as queries
from storage.devices.made_by_keys import MadeRow
from storage.engines.store import Transaction


class MadeByKeys:
    """Counts and ends the tokens and endpoints that the keys of users have made.

    Args:
        devices: forget tokens that were revoked.
        exits: cut those of devices that were revoked.
        sweeper: takes their work back.
    """

    def __init__(
        self, context: Context, devices: Devices, exits: Exits, sweeper: JobSweeper
    ) -> None:
        self._context = context
        self._store = context.store
        self._devices = devices
        self._exits = exits
        self._sweeper = sweeper

    async def counts(self, user_id: str) -> dict[str, MadeRow]:
        """Return the counts of tokens and endpoints in use, by the line of keys that made them."""
        rows = await self._store.read(queries.counts, user_id)
        return {row.purse_id: row for row in rows}

    async def end(self, user_id: str, key_id: str) -> None:
        """End the tokens and endpoints that the line of a key has made. Idempotent."""

        async def unit(tx: Transaction) -> list[Revoked]:
            await users.lock(tx, user_id)  # a request of the key that is under way comes first
            key = await key_queries.find(tx, user_id, key_id)
            if key is None:
                return []
            await disable_all(tx, self._context, user_id, reason=BY_KEY, made_by=key.purse_id)
            return await revoke_made(tx, self._context, user_id, key.purse_id)

        await self.ended(await self._store.write(unit))

    async def ended(self, revoked: Sequence[Revoked]) -> None:
        """Refuse and cut devices whose tokens a transaction has revoked, and end their work."""
        for each in revoked:
            self._devices.note_revoked(each.token_hash)
            self._exits.tell(each.device_id)
            await self._sweeper.take_back_from(each.device_id)


async def revoke_made(
    tx: Transaction, context: Context, user_id: str, purse_id: str = ""
) -> list[Revoked]:
    """Revoke the worker tokens that a line of keys has made, or all keys of a user."""
    revoked = []
    for device_id in await queries.devices(tx, user_id, purse_id):
        token_hash = await revoke_device(tx, context, device_id, user_id, context.now())
        if token_hash is not None:
            revoked.append(Revoked(device_id, token_hash))
    return revoked
