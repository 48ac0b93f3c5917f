"""Exits that have cheated: barred, and their unpaid earnings go back to the buyers."""

from functools import partial

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.exits import payouts
from market.staff.base.acts import DEVICE, Act, Changes, act, reason, require_name
from market.staff.base.roles import Action, Author, Member
from market.staff.stopping.stopping import change_exit
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries
from storage.exits.exits import ConsentRow
from storage.staff.base import staff as staff_queries


class ClawedBack(Struct, frozen=True):
    """The barred exits, the number of their reversed earnings, and micro-USD.

    `amount` is what the owner loses, `refunded` what the buyers get.
    """

    devices: tuple[str, ...]
    earnings: int = 0
    amount: int = 0
    refunded: int = 0


async def claw_back(
    context: Context, author: Author, device_id: str, why: str, *, with_owner: bool = False
) -> ClawedBack:
    """Bar an exit, and reverse its unpaid earnings (`market.exits.payouts.reverse_all`).

    The log has a row for the bar, and then one for the reversed earnings. A crash after the bar
    leaves earnings for a repetition. After the reversals it loses the second row, and only the
    ledger has the sums.

    Args:
        context: the store, identifiers and the time.
        author: of the acts.
        device_id: the exit.
        why: the reason, which is kept with the device as well.
        with_owner: whether all exits of its owner are clawed back.

    Raises:
        MarketError: `not_permitted`, also if an account of the author gets money back;
            `invalid_field`; `token_not_found`, if it was never an exit.
    """
    require_name(device_id)
    text, first = reason(why), device_id.lower()
    found = await context.store.read(exit_queries.of_owner_of, first) if with_owner else []
    # One that has never been an exit is refused there.
    devices, total = tuple(found or [first]), payouts.ClawedBack()
    for each in devices:
        event = ConsentRow(context.identifiers.new(), each, "barred", "", text.body, context.now())
        bar = partial(_bar, author=author, event=event)
        barred = await change_exit(
            context, author, Action.DEVICE_CLAW_BACK, each, why, bar, is_barred=True
        )
        done = await payouts.reverse_all(context, each)
        await _record(context, author, each, barred.user_id, done)
        total += done
    return ClawedBack(devices, total.earnings, total.amount, total.refunded)


async def _bar(tx: Transaction, author: Author, event: ConsentRow) -> None:
    if isinstance(author, Member) and await staff_queries.bought_through(
        tx, author.staff_id, event.device_id
    ):
        message = "You would get money back for an account of your own; another member has to "
        raise MarketError(Code.NOT_PERMITTED, f"{message}do this.")
    await payouts.bar(tx, event)


async def _record(
    context: Context, author: Author, device_id: str, user_id: str, done: payouts.ClawedBack
) -> None:
    """Write the reversed earnings of an exit into the log."""
    if not done.earnings:
        return

    async def change(_: Transaction) -> tuple[None, Changes]:
        return None, {
            "earnings": (None, done.earnings),
            "usd": (None, -done.amount),
            "refunded_usd": (None, done.refunded),
        }

    made = Act(author, Action.DEVICE_CLAW_BACK, DEVICE, device_id, user_id)
    await context.store.write(act, context, made, change)
