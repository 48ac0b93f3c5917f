"""Why a process cannot serve, from known facts and one query."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from support.base.cases import cases

from proxyd.readiness import PROBE_SECONDS, Readiness
from storage.engines.errors import Cause, ConstraintError, UnavailableError
from storage.engines.health import Health

if TYPE_CHECKING:
    from proxyd.gateway import Gateway
    from storage.engines.store import Store


class Place:
    """A gateway, a store and a node in one, as far as readiness is about them."""

    def __init__(self) -> None:
        self.is_listening = True
        self.known = Health()
        self.reason = ""
        self.failure: Exception | None = None
        self.seconds = 0.0
        self.queries = 0

    def health(self) -> Health:
        return self.known

    def trouble(self) -> str:
        return self.reason

    def set_aside(self) -> "Place":
        return self

    async def read(self, *_: Any) -> None:
        self.queries += 1
        await asyncio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure

    async def why_not(self, seconds: float = PROBE_SECONDS) -> str:
        readiness = Readiness(cast("Gateway", self), cast("Store", self), self, seconds)
        return await readiness.why_not()


async def test_a_process_with_its_listeners_and_its_database_is_ready() -> None:
    place = Place()
    assert await place.why_not() == ""
    assert place.queries == 1


async def test_a_known_state_costs_no_query() -> None:
    place = Place()
    place.reason = "store: no commit for 13 s"
    assert await place.why_not() == "store: no commit for 13 s"
    place.known = Health(trouble=Cause.READ_ONLY)
    assert await place.why_not() == "store: read_only"
    place.is_listening = False
    assert await place.why_not() == "the proxy accepts no clients"
    assert place.queries == 0


@cases(
    ("failure", "reason"),
    [
        (UnavailableError("no answer", Cause.SILENT), "store: silent"),
        (ConstraintError("", "a rule"), "store: other"),
    ],
)
async def test_a_query_that_fails_names_its_cause(failure: Exception, reason: str) -> None:
    place = Place()
    place.failure = failure
    assert await place.why_not() == reason


async def test_a_silent_database_is_named_in_time() -> None:
    place = Place()
    place.seconds = 60.0
    assert await place.why_not(0.01) == "store: no answer in time"
