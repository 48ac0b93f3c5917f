"""The tools of erasures for one command, and their end on this machine."""

from collections.abc import Mapping

from market.erasure.erasing import Tools
from market.staff.base.roles import Action
from market.staff.cases.cases import Cases
from market.staff.leaving.posters import leaving_posters
from market.staff.money.second_person import Poster
from proxyd.cli.staff.base.desk import Desk
from proxyd.cli.staff.base.letters import letters_of, sealing_of
from proxyd.ops.erasure import erasures


def tools_of(desk: Desk) -> Tools:
    """Return the last e-mail of a user, and the marks of addresses."""
    return Tools(letters_of(desk), sealing_of(desk))


def posters_of(desk: Desk) -> Mapping[Action, Poster]:
    """Return the functions that carry out what a second person approves."""
    tools = tools_of(desk)
    cases = Cases(desk.context, tools.letters)
    return {**cases.posters, **leaving_posters(tools)}


async def finish_erasures(desk: Desk) -> None:
    """Finish the erasures that the database has and this machine has not recorded."""
    await erasures.of_settings(desk.settings, desk.context.store).look(desk.context.now())
