"""The command that changes limits and the price of one user."""

from argparse import Namespace

from config.settings import Settings
from market.accounts.levels import Level
from market.staff.money import user_limits
from market.staff.money.user_limits import KEPT, LevelValue, NewLimits, Value
from proxyd.cli.parsing import DEFAULT
from proxyd.cli.staff.base.desk import Command, Desk, Report, Row, when
from proxyd.cli.staff.base.ends import end_of
from storage.accounts.user_limits import UserLimitsRow


async def _limit(desk: Desk, options: Namespace) -> Report:
    unset: Value = None if options.clear else KEPT

    def value(given: int | None) -> Value:
        return unset if given is None else None if given == DEFAULT else given

    new = NewLimits(
        sessions=value(options.sessions),
        jobs=value(options.jobs),
        devices=value(options.devices),
        price_percent=value(options.price_percent),
        until=unset if options.until is None else end_of(options.until, desk.context.now()),
        level=_level(options),
    )
    row = await user_limits.change(desk.context, desk.author, options.user, new, options.reason)
    return {"limits": {"user": row.user_id, **personal_row(row)}}


def _level(options: Namespace) -> LevelValue:
    if options.level is None:
        return None if options.clear else KEPT
    return None if options.level == "default" else Level(options.level)


def personal_row(row: UserLimitsRow) -> Row:
    """Return a user's own limits and price; a value that is absent is the service's."""
    bounds = {"sessions": row.sessions, "jobs": row.jobs, "devices": row.devices}
    return {
        **{name: "none" if value == 0 else value for name, value in bounds.items()},
        "price_percent": row.price_percent,
        "level": row.level,
        "until": when(row.until),
    }


def limits_of(personal: UserLimitsRow | None, settings: Settings) -> dict[str, int]:
    """Return the limits of a user; 0 means no limit."""
    own = personal._asdict() if personal is not None else {}
    service = settings.limits
    values = {
        "sessions": service.sessions_per_user,
        "jobs": service.jobs_per_user,
        "devices": service.devices_per_user,
    }
    return {name: value if own.get(name) is None else own[name] for name, value in values.items()}


COMMANDS: dict[str, Command] = {"user limit": _limit}
