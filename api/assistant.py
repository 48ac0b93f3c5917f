"""Routes of the assistant: chat, and photos of good deeds (specification 4.10 and 4.11)."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api.codec import File
from api.forms import Form
from api.routes import Auth, Call, Reply, Route, Streamed
from market.assistant.chat import Chat, Message
from market.assistant.goodness import Goodness, Submission
from market.assistant.languages import Language, language_of
from market.assistant.model import Turn
from market.errors import Code
from market.money import MICRO
from market.photos.decoding import Photos
from market.throttle import Throttle

FORM_FIELDS_MAX_BYTES = 64 * 1024

SaidText = Annotated[str, Meta(min_length=1, max_length=8_000)]
ContextText = Annotated[str, Meta(max_length=200)]
CaptionText = Annotated[str, Meta(max_length=2_000)]


class EarlierTurn(Struct):
    """Something said before: by the `assistant`, or by the `user`.

    What a caller calls `system` is the user's words too. Of a long one the first 16,000 characters
    count.
    """

    role: Literal["user", "assistant", "system"]
    content: str


class ChatRequest(Struct):
    """What the user says, what was said before, oldest first, and where they are.

    Of a long `history` the last 200 turns count, and of these the latest with 32,000 characters.

    With `stream`, the answer comes as server-sent events: `delta`s, whose texts together are the
    reply, then one `done` with exactly the fields of the ordinary answer.
    """

    message: SaidText
    history: list[EarlierTurn] | None = None
    mode: Literal["chat", "goodness", "training"] | None = None
    location: ContextText | None = None
    weather: ContextText | None = None
    lang: Language | None = None
    stream: bool | None = None


class ChatReply(Reply, kw_only=True):
    """What the assistant says, and the name of the model that said it, `builtin` for none.

    Chat earns nothing: `credit_reward` is 0.
    """

    reply: str
    model: str
    credit_reward: int


class ChatDelta(Struct):
    """The next piece of a reply."""

    text: str


class AnalyzeForm(Struct):
    """A photo, JPEG or PNG, what its sender says about it, and the language to answer in."""

    file: File
    mode: Literal["goodness"] | None = None
    location: ContextText | None = None
    weather: ContextText | None = None
    lang: Language | None = None
    description: CaptionText | None = None


class AnalyzeReply(Reply, kw_only=True):
    """What the photo shows and what it earned, in credits; `unverified` when nobody looked."""

    is_real: bool
    goodness_type: str
    description: str
    credit_reward: int
    message: str
    model: str


class AssistantRoutes:
    """The routes of the assistant.

    Args:
        chat: answers messages.
        photos: decodes photos.
        goodness: looks at them.
        throttle: bounds how often a caller may ask.
        photo_max_bytes: the largest file.
    """

    def __init__(
        self,
        chat: Chat,
        photos: Photos,
        goodness: Goodness,
        throttle: Throttle,
        *,
        photo_max_bytes: int,
    ) -> None:
        self._chat = chat
        self._photos = photos
        self._goodness = goodness
        self._throttle = throttle
        self._form_max_bytes = photo_max_bytes + FORM_FIELDS_MAX_BYTES

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/assistant/chat",
                "Talk to the assistant",
                self.chat,
                ChatReply,
                auth=Auth.OPTIONAL_JWT,
                body=ChatRequest,
                example={
                    "message": "What can I do for my street today?",
                    "mode": "goodness",
                    "location": "Izmir",
                    "weather": "sunny, 22 degrees",
                    "lang": "en",
                },
                errors=(Code.TOO_MANY_ATTEMPTS,),
                ends_with_client=True,
                events={"delta": ChatDelta, "done": ChatReply},
            ),
            Route(
                "POST",
                "/api/assistant/analyze-image",
                "Show the assistant a photo of a good deed",
                self.analyze,
                AnalyzeReply,
                auth=Auth.OPTIONAL_JWT,
                body=AnalyzeForm,
                form_max_bytes=self._form_max_bytes,
                ends_with_client=True,
                errors=(
                    Code.PHOTO_TOO_LARGE,
                    Code.PHOTO_TOO_MANY_PIXELS,
                    Code.PHOTO_NOT_JPEG_OR_PNG,
                    Code.PHOTO_TRUNCATED,
                    Code.PHOTO_BROKEN,
                    Code.PHOTO_ANIMATED,
                    Code.PHOTO_BIT_DEPTH,
                    Code.PHOTO_TRAILING_DATA,
                    Code.AMOUNT_TOO_LARGE,
                    Code.TOO_MANY_ATTEMPTS,
                    Code.TOO_BUSY,
                ),
            ),
        ]

    async def chat(self, call: Call[ChatRequest, Any]) -> Reply:
        """Answer a message."""
        message = _message(call.body, call.accept_language, self._counted(call))
        if call.body.stream:
            return Streamed(events=self._events(message, call))
        said = await self._chat.answer(message, call.login)
        return ChatReply(reply=said.text, model=said.model, credit_reward=0)

    async def analyze(self, call: Call[Form[AnalyzeForm], Any]) -> AnalyzeReply:
        """Look at a photo, and reward a good deed."""
        asker = self._counted(call)
        async with call.body.received() as form:
            photo = await self._photos.read(form.file)
            form.file = File()
        found = await self._goodness.look(
            Submission(
                photo,
                caption=form.description or "",
                location=form.location or "",
                weather=form.weather or "",
                language=language_of(form.lang, "", call.accept_language),
                asker=asker,
            ),
            call.login,
        )
        return AnalyzeReply(
            is_real=found.is_real,
            goodness_type=found.goodness_type,
            description=found.description,
            credit_reward=found.reward // MICRO,
            message=found.message,
            model=found.model,
        )

    async def _events(
        self, message: Message, call: Call[ChatRequest, Any]
    ) -> AsyncGenerator[tuple[str, Struct], None]:
        reply, model = "", ""
        async with aclosing(self._chat.stream(message, call.login)) as pieces:
            async for piece in pieces:
                reply += piece.text
                model = piece.model
                yield "delta", ChatDelta(text=piece.text)
        yield "done", ChatReply(reply=reply, model=model, credit_reward=0)

    def _counted(self, call: Call[Any, Any]) -> str:
        """Count a call, and return who it is counted by: a user, or a network that is nobody."""
        caller = call.login.profile.user_id if call.login is not None else call.client
        self._throttle.take(caller)
        return caller


def _message(body: ChatRequest, accept_language: str, asker: str) -> Message:
    return Message(
        text=body.message,
        turns=[
            Turn("assistant" if turn.role == "assistant" else "user", turn.content)
            for turn in body.history or ()
        ],
        mode=body.mode or "chat",
        location=body.location or "",
        weather=body.weather or "",
        language=language_of(body.lang, body.message, accept_language),
        asker=asker,
    )
