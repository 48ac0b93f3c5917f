"""Limits and the price of one user: set by the staff, effective with the next purchase."""

from msgspec import Struct

from market.accounts.levels import Level
from market.bandwidth import halts
from market.bandwidth.halts import HaltKind
from market.base.errors import Code, MarketError
from market.events.catalogue import LimitsChanged, timestamp
from market.events.context import Context
from market.events.recording import record
from market.staff.base.acts import USER, Act, Changes, act, reason
from market.staff.base.roles import Action, Author, Member
from market.staff.finding.users import find
from storage.accounts import user_limits as queries
from storage.accounts.user_limits import UserLimitsRow
from storage.engines.store import Transaction
from storage.staff.money import money_writes as writes
from storage.staff.stopping import suspending

LIMIT_MAX = 1_000_000
PRICE_PERCENT_MAX = 1_000
UNTIL_MAX_SECONDS = 10 * 366 * 86_400


class PriceBounds(Struct, frozen=True):
    """The lowest and the highest price that a member gives a user, in percent of the service's."""

    least: int = 1
    most: int = PRICE_PERCENT_MAX


ANY_PRICE = PriceBounds()


class Kept(Struct, frozen=True):
    """Marks a value that stays as it is."""


KEPT = Kept()
Value = int | None | Kept
LevelValue = Level | None | Kept


class NewLimits(Struct, frozen=True):
    """New values of one user: None for the service's, `KEPT` for the present one.

    0 removes a limit. `price_percent` is the part of the service's prices per GB. `until` is the
    end of all of them, in UTC seconds; None for no end. `level` makes the account new or known.
    """

    sessions: Value = KEPT
    jobs: Value = KEPT
    devices: Value = KEPT
    price_percent: Value = KEPT
    until: Value = KEPT
    level: LevelValue = KEPT


async def change(
    context: Context,
    author: Author,
    name: str,
    new: NewLimits,
    why: str,
    *,
    prices: PriceBounds = ANY_PRICE,
) -> UserLimitsRow:
    """Change limits or the price of a user, and return the values from now on.

    A change of the price, and of nothing else, is also permitted to the finance role. Only a
    command on the machine sets a price beyond the bounds: no second person checks it.

    Args:
        context: the store, identifiers and the time.
        author: of the act.
        name: of the user.
        new: the values.
        why: the reason, for the staff.
        prices: the bounds of a member.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`.
    """
    text = reason(why)
    _check(new, context.now())
    _check_price(author, new.price_percent, prices)
    user = await find(context, author, name)
    has_limits = not all(
        isinstance(each, Kept)
        for each in (new.sessions, new.jobs, new.devices, new.until, new.level)
    )

    async def set_new(tx: Transaction) -> tuple[UserLimitsRow, Changes]:
        now = context.now()
        before = await queries.find_valid(tx, user.id, now) or UserLimitsRow(
            user.id, None, None, None, None, None, now
        )
        values = {
            each: value
            for each in NewLimits.__struct_fields__
            if not isinstance(value := getattr(new, each), Kept)
        }
        row = before._replace(changed_at=now, **values)
        await writes.set_limits(tx, row)
        event = LimitsChanged(
            row.sessions,
            row.jobs,
            row.devices,
            row.price_percent,
            None if row.until is None else timestamp(row.until),
        )
        await record(tx, context, user.id, event, subject_id=user.id)
        if before.level != row.level:  # all nodes look at the user's sessions again
            number = await suspending.order(tx, HaltKind.LOOK, user.id, None, now=now)
            await halts.call_nodes(tx, number)
        return row, {each: (getattr(before, each), value) for each, value in values.items()}

    action = Action.USER_LIMIT if has_limits else Action.USER_PRICE
    made = Act(author, action, USER, user.id, user.id, text)
    return await context.store.write(act, context, made, set_new)


def _check_price(author: Author, percent: Value, bounds: PriceBounds) -> None:
    if not isinstance(author, Member) or not isinstance(percent, int):
        return
    if not bounds.least <= percent <= bounds.most:
        raise MarketError(
            Code.NOT_PERMITTED,
            f"A member of the staff sets a price from {bounds.least} to {bounds.most} percent. "
            "A command on the machine sets any other.",
            field="price_percent",
        )


def _check(new: NewLimits, now: int) -> None:
    values = [getattr(new, each) for each in NewLimits.__struct_fields__]
    if all(isinstance(each, Kept) for each in values):
        raise MarketError(Code.INVALID_FIELD, "Nothing to change: give a limit or a price.")
    for field, least, most in (
        ("sessions", 0, LIMIT_MAX),
        ("jobs", 0, LIMIT_MAX),
        ("devices", 0, LIMIT_MAX),
        ("price_percent", 1, PRICE_PERCENT_MAX),
        ("until", now + 1, now + UNTIL_MAX_SECONDS),
    ):
        value = getattr(new, field)
        if isinstance(value, int) and not least <= value <= most:
            message = f"{field} is a number from {least} to {most}."
            if field == "until":
                message = "The end is in the future, within ten years."
            raise MarketError(Code.INVALID_FIELD, message, field=field)
