"""The functions that end an account after the approval of a second person."""

from collections.abc import Mapping

from market.erasure.erasing import Tools
from market.staff.base.roles import Action
from market.staff.leaving.closing import Closer
from market.staff.leaving.erasing import Eraser
from market.staff.money.second_person import Poster


def leaving_posters(tools: Tools) -> Mapping[Action, Poster]:
    """Return the functions, by their acts."""
    return {
        Action.USER_CLOSE: Closer(tools.letters).post,
        Action.USER_ERASE: Eraser(tools).post,
    }
