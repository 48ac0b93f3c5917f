"""A model without a network: the result of each attempt is written down beforehand."""

import asyncio
from collections.abc import AsyncGenerator

from market.assistant.model import ModelError, ModelText, Question

Attempt = str | list[str | ModelError] | ModelError | None


class ScriptedModel:
    """A `Model`: an attempt is a text, pieces, an error, or None for one that hangs.

    The last one goes on for ever.
    """

    def __init__(self, *attempts: Attempt, name: str = "scripted") -> None:
        self.attempts = list(attempts)
        self.asked: list[Question] = []
        self.name = name
        self.now = 0
        self.most = 0

    def _next(self, question: Question) -> Attempt:
        self.asked.append(question)
        return self.attempts.pop(0) if len(self.attempts) > 1 else self.attempts[0]

    async def complete(self, question: Question, seconds: float) -> ModelText:
        assert seconds > 0
        attempt = self._next(question)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            if attempt is None:
                await asyncio.Event().wait()
            if isinstance(attempt, ModelError):
                raise attempt
            return ModelText(str(attempt), self.name)
        finally:
            self.now -= 1

    async def stream(self, question: Question, seconds: float) -> AsyncGenerator[ModelText, None]:
        attempt = self._next(question)
        if attempt is None:
            await asyncio.Event().wait()
        if isinstance(attempt, ModelError):
            raise attempt
        for piece in attempt if isinstance(attempt, list) else [str(attempt)]:
            if isinstance(piece, ModelError):
                raise piece
            yield ModelText(piece, self.name)
