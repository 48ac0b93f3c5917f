"""Routes of the assistant: chat, and photos of good deeds (specification 4.10 and 4.11)."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api.routing.codec import File, money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Event, Nothing, Reply, Route, Streamed
from api.routing.sse import BYE, ByeEvent
from api.serving.forms import Form
from market.accounts.scopes import Scope
from market.assistant.chat import Chat, Message
from market.assistant.goodness import Goodness, Submission
from market.assistant.languages import Language, language_of
from market.assistant.model import Turn
from market.base.errors import Code
from market.base.throttle import Throttle
from market.money.money import MICRO
from market.photos.decoding import Photos

FORM_FIELDS_MAX_BYTES = 64 * 1024

MessageText = Annotated[str, Meta(min_length=1, max_length=8_000)]
ContextText = Annotated[str, Meta(max_length=200)]
CaptionText = Annotated[str, Meta(max_length=2_000)]


class EarlierTurn(Struct):
    """An earlier message: of the `assistant`, or of the `user`.

    A turn with the role `system` counts as the user's. Only the first 16,000 characters are used.
    """

    role: Literal["user", "assistant", "system"]
    content: str


class ChatRequest(Struct):
    """A message, the earlier ones (oldest first), and where the user is.

    Of a long `history` the last 200 turns are used, and of these the latest 32,000 characters.

    With `stream`, the answer comes as server-sent events: `delta`s, whose texts together are the
    reply, then one `done` with exactly the fields of the ordinary answer.
    """

    message: MessageText
    history: list[EarlierTurn] | None = None
    mode: Literal["chat", "goodness", "training"] | None = None
    location: ContextText | None = None
    weather: ContextText | None = None
    lang: Language | None = None
    stream: bool | None = None


class ChatReply(Reply, kw_only=True):
    """The reply, and the name of the model that wrote it; `builtin` without a model.

    Chat earns nothing: `credit_reward` is 0.
    """

    reply: str
    model: str
    credit_reward: int


class ChatDelta(Struct):
    """The next piece of a reply."""

    text: str


class AnalyzeForm(Struct):
    """A photo, JPEG or PNG, its sender's description of it, and the language of the answer."""

    file: File
    mode: Literal["goodness"] | None = None
    location: ContextText | None = None
    weather: ContextText | None = None
    lang: Language | None = None
    description: CaptionText | None = None


class AnalyzeReply(Reply, kw_only=True):
    """Description of the photo and its reward, in credits; `unverified` when no model saw it."""

    is_real: bool
    goodness_type: str
    description: str
    credit_reward: int
    message: str
    model: str


class PhotoReward(Struct):
    """Reward for a photo, in credits."""

    id: str
    goodness_type: str
    credit_reward: float
    created_at: Timestamp


class RewardsReply(Reply, kw_only=True):
    """The caller's rewards for photos, newest first, a hundred at most; amounts in credits.

    `daily` is the most that one user can earn in a day (UTC), `left_today` the rest that can still
    be paid today.
    """

    daily: float
    left_today: float
    rewards: list[PhotoReward]


class AssistantRoutes:
    """The routes of the assistant."""

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
                scope=Scope.ASSISTANT_USE,
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
                events={"delta": ChatDelta, "done": ChatReply, BYE: ByeEvent},
            ),
            Route(
                "POST",
                "/api/assistant/analyze-image",
                "Show the assistant a photo of a good deed",
                self.analyze,
                AnalyzeReply,
                auth=Auth.OPTIONAL_JWT,
                scope=Scope.ASSISTANT_USE,
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
                    Code.AMOUNT_TOO_LARGE,
                    Code.TOO_MANY_ATTEMPTS,
                    Code.TOO_BUSY,
                ),
            ),
            Route(
                "GET",
                "/api/assistant/rewards",
                "What my photos of good deeds have earned, and what is left today",
                self.rewards,
                RewardsReply,
                scope=Scope.ASSISTANT_USE,
            ),
        ]

    async def chat(self, call: Call[ChatRequest, Any]) -> Reply:
        """Answer a message."""
        message = _message(call.body, call.accept_language, self._counted(call))
        if call.body.stream:
            return Streamed(events=self._events(message, call))
        reply = await self._chat.answer(message, call.login)
        return ChatReply(reply=reply.text, model=reply.model, credit_reward=0)

    async def analyze(self, call: Call[Form[AnalyzeForm], Any]) -> AnalyzeReply:
        """Judge a photo, and reward a good deed."""
        asker = self._counted(call)
        async with call.body.received() as form:
            photo = await self._photos.read(form.file)
            form.file = File()
        verdict = await self._goodness.look(
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
            is_real=verdict.is_real,
            goodness_type=verdict.goodness_type,
            description=verdict.description,
            credit_reward=verdict.reward // MICRO,
            message=verdict.message,
            model=verdict.model,
        )

    async def rewards(self, call: Call[Nothing, Any]) -> RewardsReply:
        """Return the caller's rewards."""
        found = await self._goodness.rewards(call.user_id)
        return RewardsReply(
            daily=money(found.daily),
            left_today=money(found.left),
            rewards=[
                PhotoReward(
                    id=row.id,
                    goodness_type=row.category,
                    credit_reward=money(row.amount),
                    created_at=timestamp(row.created_at),
                )
                for row in found.rows
            ],
        )

    async def _events(
        self, message: Message, call: Call[ChatRequest, Any]
    ) -> AsyncGenerator[Event, None]:
        reply, model = "", ""
        async with aclosing(self._chat.stream(message, call.login)) as pieces:
            async for piece in pieces:
                reply += piece.text
                model = piece.model
                yield Event("delta", ChatDelta(text=piece.text))
        yield Event("done", ChatReply(reply=reply, model=model, credit_reward=0))

    def _counted(self, call: Call[Any, Any]) -> str:
        """Count a call; return the counted caller: the user, or the network without a login."""
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
