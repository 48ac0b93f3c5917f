"""Calls of a model: one deadline, one retry, a bound on concurrent calls, a circuit breaker."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from market.assistant.model import REPLY_MAX_CHARACTERS, Model, ModelError, ModelText, Question
from market.base.slots import Busy, SlotBounds, Slots

FAILURES_MAX = 5  # in a row open the circuit: fewer may be chance
OPEN_SECONDS = 30.0
WAITING_MAX = 64
WAITING_PER_CALLER_MAX = 16  # a quarter: one caller leaves room for others
CUT_OFF = " …"
BUSY = {
    Busy.QUEUE_FULL: "too many calls wait for it",
    Busy.TIMED_OUT: "no call got free in time",
}

_logger = logging.getLogger("assistant")

_Read = TypeVar("_Read")


class RetryPolicy(Struct, frozen=True):
    """The calls of a model that fails, or whose answer does not end.

    Attributes:
        attempts: the number of calls for one answer.
        pause_seconds: before the retry, where the server names no time.
        without_schema_seconds: the time in which a server that refuses a JSON schema gets none.
            Then a server that was replaced or updated gets its schema again.
        reply_max_characters: the length at which an answer is cut that comes in pieces.
    """

    attempts: int = 2
    pause_seconds: float = 0.2
    without_schema_seconds: float = 3600.0
    reply_max_characters: int = REPLY_MAX_CHARACTERS


USUAL_POLICY = RetryPolicy()


class CircuitBreaker:
    """Stops calls to a server that keeps failing, and lets one through every `OPEN_SECONDS`.

    Args:
        now: a steady clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failures = 0
        self._open_until = 0.0

    def check(self) -> None:
        """Check that the circuit lets a call pass.

        Raises:
            ModelError: the circuit is open.
        """
        if self._failures < FAILURES_MAX:
            return
        if self._now() < self._open_until:
            raise ModelError("circuit open: it kept failing", is_final=True)
        self._open_until = self._now() + OPEN_SECONDS

    def succeeded(self) -> None:
        """Note that a call succeeded: the circuit closes."""
        if self._failures >= FAILURES_MAX:
            _logger.info("the model answers again")
        self._failures = 0

    def failed(self, error: ModelError) -> None:
        """Note that a call failed; `FAILURES_MAX` faults of the server in a row open the circuit.

        A failure that the question may have caused does not count, or one caller could open it for
        all others.
        """
        _logger.warning("the model failed: %s", error)
        if not error.is_fault:
            self.succeeded()  # the server does answer
            return
        self._failures += 1
        if self._failures == FAILURES_MAX:
            _logger.error("the model keeps failing; it is tried every %.0f seconds", OPEN_SECONDS)
        if self._failures >= FAILURES_MAX:
            self._open_until = self._now() + OPEN_SECONDS


def model_slots(
    concurrency: int,
    per_caller: int = 0,
    *,
    waiting_max: int = WAITING_MAX,
    waiting_per_caller_max: int = WAITING_PER_CALLER_MAX,
) -> Slots:
    """Return the slots for calls of one server, which all its models share.

    Args:
        concurrency: the number of calls that run at the same time.
        per_caller: the number of one caller's running calls; 0 for all of them.
        waiting_max: the number of waiting calls.
        waiting_per_caller_max: the number of one caller's waiting calls.
    """
    bounds = SlotBounds(
        total=concurrency,
        per_caller=per_caller,
        queue=waiting_max,
        queue_per_caller=waiting_per_caller_max,
    )
    return Slots(bounds, _busy)


def _busy(reason: Busy) -> ModelError:
    """Return and log the error of too many simultaneous calls, which is no fault of the server."""
    text = BUSY[reason]
    _logger.warning("the model was not asked: %s", text)
    return ModelError(text, is_final=True)


class Asking:
    """Calls one model.

    Args:
        slots: shared by all models of the same server.
        seconds: how long an answer may take in all, with waiting and the retry.
        policy: the rules for calls that fail, or whose answer does not end.
    """

    def __init__(
        self, model: Model, slots: Slots, *, seconds: float, policy: RetryPolicy = USUAL_POLICY
    ) -> None:
        self._model = model
        self._slots = slots
        self._seconds = seconds
        self._policy = policy
        self._breaker = CircuitBreaker(_clock)
        self._without_schema_until = 0.0

    async def ask(
        self, question: Question, read: Callable[[str], _Read], caller: str
    ) -> tuple[_Read, str]:
        """Return the result of `read` for an answer, and the name of its model.

        Args:
            question: the question.
            read: parses the answer; raises `ModelError` when it cannot.
            caller: the user or the network that the call is counted by.

        Raises:
            ModelError: there is no answer, after a retry where that made sense.
        """
        self._breaker.check()
        deadline = _clock() + self._seconds
        if _clock() < self._without_schema_until:
            question = replace(question, schema=None)
        has_schema = question.schema is not None
        async with self._slots.slot(caller, deadline=deadline):
            for attempt in range(1, self._policy.attempts + 1):
                try:
                    reply = await self._complete(question, deadline)
                    answer = read(reply.text)
                except ModelError as error:
                    self._breaker.failed(error)
                    question = await self._again(question, error, attempt, deadline)
                else:
                    self._breaker.succeeded()
                    if has_schema and question.schema is None:
                        self._leave_schemas_out()
                    return answer, reply.model
        raise AssertionError("the last attempt returns or raises")

    def _leave_schemas_out(self) -> None:
        """Remember that the server refuses schemas, and answers without them."""
        text = "the model refuses a JSON schema; for %.0f seconds it is called without"
        seconds = self._policy.without_schema_seconds
        _logger.info(text, seconds)
        self._without_schema_until = _clock() + seconds

    async def stream(self, question: Question, caller: str) -> AsyncGenerator[ModelText, None]:
        """Yield an answer as it comes; one that breaks off, or does not end, ends with an ellipsis.

        Args:
            question: the question.
            caller: the user or the network that the call is counted by.

        Raises:
            ModelError: nothing came, after a retry where that made sense.
        """
        self._breaker.check()
        deadline = _clock() + self._seconds
        async with self._slots.slot(caller, deadline=deadline):
            for attempt in range(1, self._policy.attempts + 1):
                last: ModelText | None = None
                try:
                    async with aclosing(self._pieces(question, deadline)) as pieces:
                        async for last in pieces:
                            yield last
                    self._breaker.succeeded()
                except ModelError as error:
                    self._breaker.failed(error)
                    if last is None:
                        question = await self._again(question, error, attempt, deadline)
                        continue
                    yield ModelText(CUT_OFF, last.model)
                return

    async def _complete(self, question: Question, deadline: float) -> ModelText:
        seconds = _left(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._model.complete(question, seconds)
        except TimeoutError as error:
            raise ModelError("it took too long", is_final=True) from error

    async def _pieces(self, question: Question, deadline: float) -> AsyncGenerator[ModelText, None]:
        """Yield pieces; the time limit is around each `anext`, never around a `yield`."""
        length, most = 0, self._policy.reply_max_characters
        async with aclosing(self._model.stream(question, _left(deadline))) as pieces:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    break
                except TimeoutError as error:
                    raise ModelError("it took too long", is_final=True) from error
                room = most - length
                length += len(piece.text)
                yield ModelText(piece.text[:room], piece.model)
                if length > most:
                    raise ModelError("its answer does not end", is_final=True)
        if not length:
            raise ModelError("its answer is empty")

    async def _again(
        self, question: Question, error: ModelError, attempt: int, deadline: float
    ) -> Question:
        """Wait before a retry, and return its question; raise the error if no retry makes sense."""
        pause = max(error.retry_after_seconds, self._policy.pause_seconds)
        if attempt == self._policy.attempts or error.is_final or _clock() + pause >= deadline:
            raise error
        await asyncio.sleep(pause)
        return replace(question, schema=None) if error.without_schema else question


def _left(deadline: float) -> float:
    """Return the seconds until a deadline: a slot may have come free just at the end of the wait.

    Raises:
        ModelError: it has passed.
    """
    seconds = deadline - _clock()
    if seconds <= 0:
        raise ModelError("it took too long", is_final=True)
    return seconds


def _clock() -> float:
    return asyncio.get_running_loop().time()
