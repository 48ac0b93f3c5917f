"""The interface of a language model, as the assistant needs it."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

REPLY_MAX_CHARACTERS = 16_000


class Turn(Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    text: str


class Schema(Struct, frozen=True):
    """A JSON schema that an answer must keep to, with a name for it."""

    name: str
    schema: Mapping[str, Any]


class Question(Struct, frozen=True):
    """A question to a model.

    `instructions` are the service's own; `turns` has all texts of the caller; the last turn is the
    present one, and `photo`, a JPEG, belongs to it. With a `schema` the answer must be JSON of that
    schema; some servers ignore it.
    """

    model: str
    instructions: str
    turns: tuple[Turn, ...]
    photo: bytes | None = None
    schema: Schema | None = None


class ModelText(Struct, frozen=True):
    """An answer of a model, or the next piece of one, and the model's name for itself."""

    text: str
    model: str


class ModelError(Exception):
    """A model gave no answer, or no useful one; the message describes the failure without a secret.

    Args:
        reason: the cause, for the operator.
        is_final: whether a retry is pointless.
        retry_after_seconds: the pause that the server demands before a retry.
        without_schema: whether the server may be one that refuses schemas.
        is_fault: whether it is the server's fault; False if the question may have caused it.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_final: bool = False,
        retry_after_seconds: float = 0.0,
        without_schema: bool = False,
        is_fault: bool = True,
    ) -> None:
        super().__init__(reason)
        self.is_final = is_final
        self.retry_after_seconds = retry_after_seconds
        self.without_schema = without_schema
        self.is_fault = is_fault


class Model(Protocol):
    """Answers questions; each call is one attempt, and ends within its time."""

    async def complete(self, question: Question, seconds: float) -> ModelText:
        """Return the whole answer.

        Raises:
            ModelError: the model gave no answer.
        """

    def stream(self, question: Question, seconds: float) -> AsyncGenerator[ModelText, None]:
        """Yield the answer piece by piece.

        Raises:
            ModelError: the model gave no answer, or the answer broke off.
        """
