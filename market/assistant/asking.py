"""Asking a model: one deadline, one retry, a bound on calls at once, and a circuit breaker."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from market.assistant.model import REPLY_MAX_CHARACTERS, Model, ModelError, Question, Said
from market.slots import Bounds, Busy, Slots

ATTEMPTS = 2
PAUSE_SECONDS = 0.2
FAILURES_MAX = 5
OPEN_SECONDS = 30.0
WITHOUT_SCHEMA_SECONDS = 3600.0
WAITING_MAX = 64
WAITING_PER_CALLER_MAX = 16
CUT_OFF = " …"
BUSY = {
    Busy.QUEUE_FULL: "too many calls wait for it",
    Busy.TIMED_OUT: "no call got free in time",
}

_logger = logging.getLogger("assistant")

_Read = TypeVar("_Read")


class CircuitBreaker:
    """Stops calls to a server that keeps failing, and lets one through now and then.

    Args:
        now: a steady clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failures = 0
        self._open_until = 0.0

    def check(self) -> None:
        """Let a call pass.

        Raises:
            ModelError: the circuit is open.
        """
        if self._failures < FAILURES_MAX:
            return
        if self._now() < self._open_until:
            raise ModelError("it kept failing and is left alone for a while", is_final=True)
        self._open_until = self._now() + OPEN_SECONDS

    def succeeded(self) -> None:
        """Note that a call succeeded: the circuit closes."""
        if self._failures >= FAILURES_MAX:
            _logger.info("the model answers again")
        self._failures = 0

    def failed(self, error: ModelError) -> None:
        """Note that a call failed; enough faults of the server in a row open the circuit.

        What a question may have caused does not count, or a caller could open it for all others.
        """
        _logger.warning("the model failed: %s", error)
        if not error.is_fault:
            self.succeeded()  # it answers, if not well
            return
        self._failures += 1
        if self._failures == FAILURES_MAX:
            _logger.error("the model keeps failing; it is tried every %.0f seconds", OPEN_SECONDS)
        if self._failures >= FAILURES_MAX:
            self._open_until = self._now() + OPEN_SECONDS


def model_slots(concurrency: int, per_caller: int = 0) -> Slots:
    """Return the slots for calls of one server; whoever asks it shares them.

    Args:
        concurrency: how many calls run at once.
        per_caller: how many of one caller's do; 0 for no less than all.
    """
    bounds = Bounds(
        total=concurrency,
        per_caller=per_caller,
        queue=WAITING_MAX,
        queue_per_caller=WAITING_PER_CALLER_MAX,
    )
    return Slots(bounds, _busy)


def _busy(reason: Busy) -> ModelError:
    """Return, and log, that too many calls are made at once; that is no fault of the server."""
    text = BUSY[reason]
    _logger.warning("the model was not asked: %s", text)
    return ModelError(text, is_final=True)


class Asking:
    """Asks one model.

    Args:
        model: the model.
        slots: shared with whoever else asks the same server.
        seconds: how long an answer may take in all, with waiting and the retry.
    """

    def __init__(self, model: Model, slots: Slots, *, seconds: float) -> None:
        self._model = model
        self._slots = slots
        self._seconds = seconds
        self._breaker = CircuitBreaker(_clock)
        self._without_schema_until = 0.0

    async def ask(
        self, question: Question, read: Callable[[str], _Read], caller: str
    ) -> tuple[_Read, str]:
        """Return what `read` makes of an answer, and the name of the model that gave it.

        Args:
            question: what to ask.
            read: makes sense of the text; raises `ModelError` where there is none.
            caller: by whom the call is counted.

        Raises:
            ModelError: there is no answer, after a retry where that made sense.
        """
        self._breaker.check()
        deadline = _clock() + self._seconds
        if _clock() < self._without_schema_until:
            question = dataclasses.replace(question, schema=None)
        has_schema = question.schema is not None
        async with self._slots.slot(caller, deadline=deadline):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    said = await self._complete(question, deadline)
                    answer = read(said.text)
                except ModelError as error:
                    self._breaker.failed(error)
                    question = await _again(question, error, attempt, deadline)
                else:
                    self._breaker.succeeded()
                    if has_schema and question.schema is None:
                        self._leave_schemas_out()
                    return answer, said.model
        raise AssertionError("the last attempt returns or raises")

    def _leave_schemas_out(self) -> None:
        """Remember that the server answers without a schema what it refused with one."""
        words = "the model refuses a JSON schema; for %.0f seconds it is asked without"
        _logger.info(words, WITHOUT_SCHEMA_SECONDS)
        self._without_schema_until = _clock() + WITHOUT_SCHEMA_SECONDS

    async def stream(self, question: Question, caller: str) -> AsyncGenerator[Said, None]:
        """Yield an answer as it comes; one that breaks off, or never ends, ends with an ellipsis.

        Args:
            question: what to ask.
            caller: by whom the call is counted.

        Raises:
            ModelError: nothing came, after a retry where that made sense.
        """
        self._breaker.check()
        deadline = _clock() + self._seconds
        async with self._slots.slot(caller, deadline=deadline):
            for attempt in range(1, ATTEMPTS + 1):
                last: Said | None = None
                try:
                    async with aclosing(self._pieces(question, deadline)) as pieces:
                        async for last in pieces:
                            yield last
                    self._breaker.succeeded()
                except ModelError as error:
                    self._breaker.failed(error)
                    if last is None:
                        question = await _again(question, error, attempt, deadline)
                        continue
                    yield Said(CUT_OFF, last.model)
                return

    async def _complete(self, question: Question, deadline: float) -> Said:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._model.complete(question, deadline - _clock())
        except TimeoutError as error:
            raise ModelError("it took too long", is_final=True) from error

    async def _pieces(self, question: Question, deadline: float) -> AsyncGenerator[Said, None]:
        """Yield pieces; the time limit stands around each, never around a `yield`."""
        length = 0
        async with aclosing(self._model.stream(question, deadline - _clock())) as pieces:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    break
                except TimeoutError as error:
                    raise ModelError("it took too long", is_final=True) from error
                room = REPLY_MAX_CHARACTERS - length
                length += len(piece.text)
                yield Said(piece.text[:room], piece.model)
                if length > REPLY_MAX_CHARACTERS:
                    raise ModelError("its answer does not end", is_final=True)
        if not length:
            raise ModelError("its answer is empty")


async def _again(question: Question, error: ModelError, attempt: int, deadline: float) -> Question:
    """Wait until it makes sense to ask again, and return what to ask; raise when it does not."""
    pause = max(error.retry_after_seconds, PAUSE_SECONDS)
    if attempt == ATTEMPTS or error.is_final or _clock() + pause >= deadline:
        raise error
    await asyncio.sleep(pause)
    return dataclasses.replace(question, schema=None) if error.without_schema else question


def _clock() -> float:
    return asyncio.get_running_loop().time()
