"""A client of language models: any server with OpenAI's chat completions API."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from market.assistant.model import REPLY_MAX_CHARACTERS, ModelError, ModelText, Question

# Far above a reply of `REPLY_MAX_CHARACTERS` with its thoughts and its JSON.
ANSWER_MAX_BYTES = 1024 * 1024
# A streamed answer wraps each token in some 200 bytes of JSON.
STREAM_MAX_BYTES = 8 * 1024 * 1024
LINE_MAX_BYTES = 64 * 1024  # one token's line has a few hundred bytes
CONNECT_SECONDS = 5.0  # a server that is up accepts at once; the rest of the time is for its answer
KEEPALIVE_SECONDS = 60.0  # saves TCP and TLS in a conversation
MODEL_NAME_MAX_CHARACTERS = 200  # a longer one is no name, and would fill our answers
EVENTS = "text/event-stream"

_THOUGHTS_START, _THOUGHTS_END = "<think>", "</think>"
# Statuses below 500 after which another attempt may succeed.
_RETRIED_STATUSES = frozenset((408, 409, 425, 429))
# A server that does not know `response_format` answers with one of these.
_REFUSED_REQUEST = frozenset((400, 415, 422))
# The request may be to blame for these, and not the server: they do not open the circuit breaker.
_ABOUT_THE_REQUEST = _REFUSED_REQUEST | {413}


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Completion(Struct):
    """A complete answer, or one chunk of a streamed answer."""

    choices: list[_Choice]
    model: str | None = None


class OpenAiModel:
    """A `Model` on a server.

    Args:
        base_url: the API's URL, with its version: `http://127.0.0.1:8000/v1`.
        api_key: sent to the server, and never logged; "" for none.
        max_tokens: the longest answer; 0 to leave that to the server.
        connections: limit of simultaneous connections.
        stream_max_bytes: the largest size of a streamed answer.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        max_tokens: int,
        connections: int,
        stream_max_bytes: int = STREAM_MAX_BYTES,
    ) -> None:
        self._stream_max_bytes = stream_max_bytes
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._headers = {"Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._max_tokens = max_tokens
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        # Models whose last whole answer had no unmarked thoughts: they may be streamed without a
        # wait.
        self._direct_models: set[str] = set()

    async def complete(self, question: Question, seconds: float) -> ModelText:
        """See `Model.complete`."""
        async with self._post(question, seconds, stream=False) as response:
            return self._whole(await _body(response), question)

    async def stream(self, question: Question, seconds: float) -> AsyncGenerator[ModelText, None]:
        """See `Model.stream`; a server that does not stream gives one piece, the whole answer."""
        async with self._post(question, seconds, stream=True) as response:
            if response.content_type != EVENTS:
                yield self._whole(await _body(response), question)
                return
            thoughts = self._thoughts(question)
            name = question.model
            async with aclosing(_completions(response, self._stream_max_bytes)) as pieces:
                async for piece in pieces:
                    name = _name(piece, question)
                    delta = piece.choices[0].delta if piece.choices else None
                    text = thoughts.skip(delta.content or "" if delta is not None else "")
                    if text:
                        yield ModelText(text, name)
            self._remember(question, thoughts)
            rest = thoughts.end()
            if rest:
                yield ModelText(rest, name)

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _post(
        self, question: Question, seconds: float, *, stream: bool
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a question and check the answer's status; every failure becomes a `ModelError`.

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
            # Not the error's own text: it can have the URL, and a URL can have a password.
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
        completion = _decoded(body)
        message = completion.choices[0].message if completion.choices else None
        if message is None or not (message.content or "").strip():
            raise ModelError("its answer is empty")
        thoughts = _Thoughts(is_direct=False)
        text = (thoughts.skip(message.content or "") + thoughts.end()).strip()
        self._remember(question, thoughts)
        if not text:
            raise ModelError("its answer is nothing but thoughts")
        return ModelText(text[:REPLY_MAX_CHARACTERS], _name(completion, question))

    def _thoughts(self, question: Question) -> "_Thoughts":
        return _Thoughts(is_direct=question.model in self._direct_models)

    def _remember(self, question: Question, thoughts: "_Thoughts") -> None:
        """Remember how a model's last whole answer began; its next one will begin the same way."""
        if thoughts.began_unmarked:
            self._direct_models.discard(question.model)
        else:
            self._direct_models.add(question.model)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_MAX_BYTES:
            raise ModelError("its answer is too large", is_final=True)
    return bytes(body)


async def _completions(
    response: aiohttp.ClientResponse, max_bytes: int
) -> AsyncGenerator[_Completion, None]:
    """Yield the chunks of a streamed answer.

    Raises:
        ModelError: a chunk is malformed, or the answer ends without a reason or `[DONE]`.
    """
    is_finished = False
    async with aclosing(_lines(response, max_bytes)) as lines:
        async for line in lines:
            field, _, data = line.partition(b":")
            if field != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            chunk = _decoded(data)
            reasons = [choice.finish_reason for choice in chunk.choices[:1]]
            is_finished = is_finished or any(reason is not None for reason in reasons)
            yield chunk
    if not is_finished:
        raise ModelError("its answer broke off")


async def _lines(response: aiohttp.ClientResponse, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of an answer; each line and the whole answer are bounded."""
    size = 0
    rest = b""
    async for chunk in response.content.iter_any():
        size += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if size > max_bytes or len(rest) > LINE_MAX_BYTES:
            raise ModelError("its answer is too large", is_final=True)
        for line in lines:
            yield line.strip()
    yield rest.strip()


class _Thoughts:
    """Leaves out the thoughts that some models write before their answer.

    Most mark both ends: `<think>…</think>answer`. The prompt of some ends with the first mark, so
    that their text begins inside the thoughts and has the second mark only. So the text of a model
    is held back until the second mark comes or the answer ends, unless the model is known to answer
    directly.

    Args:
        is_direct: whether text without a first mark is the answer from its first character on.
    """

    def __init__(self, *, is_direct: bool) -> None:
        self._is_direct = is_direct
        self._buffer = ""
        self._is_marked = False
        self._is_over = False
        self.began_unmarked = False

    def skip(self, text: str) -> str:
        """Take the next piece of text; return the part of the answer that is certain now."""
        if self._is_over:
            ends = _THOUGHTS_END in text and not self._is_marked and _THOUGHTS_START not in text
            self.began_unmarked = self.began_unmarked or ends
            return text
        self._buffer += text
        if not self._is_marked:
            start = self._buffer.lstrip()
            if start and not start.startswith(_THOUGHTS_START[: len(start)]):
                return self._unmarked()
            self._is_marked = start.startswith(_THOUGHTS_START)
        _, end_mark, answer = self._buffer.partition(_THOUGHTS_END)
        if self._is_marked and not end_mark:
            # Thoughts are dropped, except a possible beginning of the mark that ends them.
            self._buffer = self._buffer[-len(_THOUGHTS_END) :]
        self._is_over = bool(end_mark)
        return answer.lstrip()

    def end(self) -> str:
        """Return the text that was held back, now that no mark can come any more."""
        return "" if self._is_over or self._is_marked else self._release()

    def _unmarked(self) -> str:
        thought, end_mark, answer = self._buffer.partition(_THOUGHTS_END)
        if end_mark and _THOUGHTS_START not in thought:
            self.began_unmarked = self._is_over = True
            return answer.lstrip()
        # Thoughts can be longer than a reply may be, but holding back has to end somewhere.
        if self._is_direct or len(self._buffer) > REPLY_MAX_CHARACTERS:
            return self._release()
        return ""

    def _release(self) -> str:
        self._is_over = True
        text, self._buffer = self._buffer, ""
        return text


def _decoded(body: bytes) -> _Completion:
    try:
        return msgspec.json.decode(body, type=_Completion)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError("its answer is no chat completion") from error


def _name(completion: _Completion, question: Question) -> str:
    """Return the model's name for itself; the name in the question if it has no usable one."""
    name = completion.model or ""
    usable = 0 < len(name) <= MODEL_NAME_MAX_CHARACTERS and name.isprintable()
    return name if usable else question.model


def _refused(response: aiohttp.ClientResponse, *, with_schema: bool) -> ModelError:
    """Return the error for an answer with another status than 200."""
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
