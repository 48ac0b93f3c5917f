"""The model behind the assistant: any server that speaks OpenAI's chat completions."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from market.assistant.model import REPLY_MAX_CHARACTERS, ModelError, ModelText, Question

ANSWER_MAX_BYTES = 1024 * 1024
STREAM_MAX_BYTES = 8 * 1024 * 1024
LINE_MAX_BYTES = 64 * 1024
CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 60.0
MODEL_NAME_MAX_CHARACTERS = 200
EVENTS = "text/event-stream"

_THOUGHTS_START, _THOUGHTS_END = "<think>", "</think>"
_RETRIED_STATUSES = frozenset((408, 409, 425, 429))
_REFUSED_REQUEST = frozenset((400, 415, 422))
_ABOUT_THE_REQUEST = _REFUSED_REQUEST | {413}


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Completion(Struct):
    """A whole answer, or a piece of a streamed one."""

    choices: list[_Choice]
    model: str | None = None


class OpenAiModel:
    """A `Model` on a server.

    Args:
        base_url: what the paths follow, with its version: `http://127.0.0.1:8000/v1`.
        api_key: shown to the server, and to nobody else; "" for none.
        max_tokens: the longest answer; 0 to leave that to the server.
        connections: how many at once.
    """

    def __init__(self, base_url: str, api_key: str, *, max_tokens: int, connections: int) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._headers = {"Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._max_tokens = max_tokens
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._speaking_at_once: set[str] = set()

    async def complete(self, question: Question, seconds: float) -> ModelText:
        """See `Model.complete`."""
        async with self._asked(question, seconds, stream=False) as response:
            return self._whole(await _body(response), question)

    async def stream(self, question: Question, seconds: float) -> AsyncGenerator[ModelText, None]:
        """See `Model.stream`; a server that does not stream gives the whole answer at once."""
        async with self._asked(question, seconds, stream=True) as response:
            if response.content_type != EVENTS:
                yield self._whole(await _body(response), question)
                return
            thoughts = self._thoughts(question)
            name = question.model
            async with aclosing(_completions(response)) as pieces:
                async for piece in pieces:
                    name = _name(piece, question)
                    delta = piece.choices[0].delta if piece.choices else None
                    spoken = thoughts.skip(delta.content or "" if delta is not None else "")
                    if spoken:
                        yield ModelText(spoken, name)
            self._note(question, thoughts)
            rest = thoughts.end()
            if rest:
                yield ModelText(rest, name)

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _asked(
        self, question: Question, seconds: float, *, stream: bool
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a question and check the head of the answer; translate what goes wrong on the way.

        Redirects are not followed: they would carry the question, and the key, elsewhere.
        """
        timeout = aiohttp.ClientTimeout(
            total=max(seconds, 0.001), sock_connect=min(CONNECT_SECONDS, max(seconds, 0.001))
        )
        try:
            async with self._connected().post(
                self._url,
                data=json.dumps(self._request(question, stream=stream)).encode(),
                headers={**self._headers, "Content-Type": "application/json"},
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise _refused(response, with_schema=question.schema is not None)
                yield response
        except TimeoutError as error:
            raise ModelError("it does not answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Not the error's own words: they can hold the URL, and a URL can hold a password.
            raise ModelError(f"it cannot be reached ({type(error).__name__})") from error

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._connections, keepalive_timeout=KEEPALIVE_SECONDS
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _request(self, question: Question, *, stream: bool) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [{"role": "system", "content": question.instructions}]
        messages += [{"role": turn.role, "content": turn.text} for turn in question.turns]
        if question.photo is not None:
            photo = base64.b64encode(question.photo).decode()
            messages[-1]["content"] = [
                {"type": "text", "text": question.turns[-1].text},
                {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{photo}"}},
            ]
        request: dict[str, Any] = {"model": question.model, "messages": messages, "stream": stream}
        if self._max_tokens:
            request["max_tokens"] = self._max_tokens
        if question.schema is not None:
            request["temperature"] = 0
            request["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": question.schema.name,
                    "strict": True,
                    "schema": question.schema.schema,
                },
            }
        return request

    def _whole(self, body: bytes, question: Question) -> ModelText:
        found = _decoded(body)
        message = found.choices[0].message if found.choices else None
        if message is None or not (message.content or "").strip():
            raise ModelError("its answer is empty")
        thoughts = _Thoughts(speaks_at_once=False)
        text = (thoughts.skip(message.content or "") + thoughts.end()).strip()
        self._note(question, thoughts)
        if not text:
            raise ModelError("its answer is nothing but thoughts")
        return ModelText(text[:REPLY_MAX_CHARACTERS], _name(found, question))

    def _thoughts(self, question: Question) -> "_Thoughts":
        return _Thoughts(speaks_at_once=question.model in self._speaking_at_once)

    def _note(self, question: Question, thoughts: "_Thoughts") -> None:
        """Note how a model's last whole answer began: the next one will like it."""
        if thoughts.began_unmarked:
            self._speaking_at_once.discard(question.model)
        else:
            self._speaking_at_once.add(question.model)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_MAX_BYTES:
            raise ModelError("its answer is too large", is_final=True)
    return bytes(body)


async def _completions(response: aiohttp.ClientResponse) -> AsyncGenerator[_Completion, None]:
    """Yield the pieces of a streamed answer; raise when it breaks off."""
    is_finished = False
    async with aclosing(_lines(response)) as lines:
        async for line in lines:
            field, _, data = line.partition(b":")
            if field != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            found = _decoded(data)
            reasons = [choice.finish_reason for choice in found.choices[:1]]
            is_finished = is_finished or any(reason is not None for reason in reasons)
            yield found
    if not is_finished:
        raise ModelError("its answer broke off")


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an answer that has them, each bounded, and all together."""
    size = 0
    rest = b""
    async for chunk in response.content.iter_any():
        size += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if size > STREAM_MAX_BYTES or len(rest) > LINE_MAX_BYTES:
            raise ModelError("its answer is too large", is_final=True)
        for line in lines:
            yield line.strip()
    yield rest.strip()


class _Thoughts:
    """Leaves out the thoughts that some models write in front of what they say.

    Some have begun to think before they answer, so that only the end of it is marked. Of a model
    that is not known to speak at once, everything is held back for as long as that end may come.

    Args:
        speaks_at_once: whether what is not marked as a thought is taken for none.
    """

    def __init__(self, *, speaks_at_once: bool) -> None:
        self._speaks_at_once = speaks_at_once
        self._held = ""
        self._is_marked = False
        self._is_over = False
        self.began_unmarked = False

    def skip(self, text: str) -> str:
        """Take the next piece; return what of it is said."""
        if self._is_over:
            ends = _THOUGHTS_END in text and not self._is_marked and _THOUGHTS_START not in text
            self.began_unmarked = self.began_unmarked or ends
            return text
        self._held += text
        if not self._is_marked:
            start = self._held.lstrip()
            if start and not start.startswith(_THOUGHTS_START[: len(start)]):
                return self._unmarked()
            self._is_marked = start.startswith(_THOUGHTS_START)
        _, found, said = self._held.partition(_THOUGHTS_END)
        if self._is_marked and not found:
            self._held = self._held[-len(_THOUGHTS_END) :]
        self._is_over = bool(found)
        return said.lstrip()

    def end(self) -> str:
        """Return what was held back in vain, now that the answer is whole."""
        return "" if self._is_over or self._is_marked else self._let_go()

    def _unmarked(self) -> str:
        thought, found, said = self._held.partition(_THOUGHTS_END)
        if found and _THOUGHTS_START not in thought:
            self.began_unmarked = self._is_over = True
            return said.lstrip()
        if self._speaks_at_once or len(self._held) > REPLY_MAX_CHARACTERS:
            return self._let_go()
        return ""

    def _let_go(self) -> str:
        self._is_over = True
        held, self._held = self._held, ""
        return held


def _decoded(body: bytes) -> _Completion:
    try:
        return msgspec.json.decode(body, type=_Completion)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError("its answer is no chat completion") from error


def _name(found: _Completion, question: Question) -> str:
    name = found.model or ""
    usable = 0 < len(name) <= MODEL_NAME_MAX_CHARACTERS and name.isprintable()
    return name if usable else question.model


def _refused(response: aiohttp.ClientResponse, *, with_schema: bool) -> ModelError:
    status = response.status
    refuses_schema = with_schema and status in _REFUSED_REQUEST
    wait = response.headers.get("Retry-After", "")
    return ModelError(
        f"it answered with status {status}",
        is_final=status < 500 and status not in _RETRIED_STATUSES and not refuses_schema,
        retry_after_seconds=float(wait) if wait.isascii() and wait.isdigit() else 0.0,
        without_schema=refuses_schema,
        is_fault=status not in _ABOUT_THE_REQUEST,
    )
