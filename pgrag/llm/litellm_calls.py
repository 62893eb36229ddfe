"""Requests through LiteLLM: sent once, their failures told apart, the connections closed at the end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from pgrag.llm.retry import CallError, CallTimeoutError, parse_retry_after
from pgrag.text.masking import mask

# Options a model can do without, and the words by which servers say that they do not take them.
OPTIONAL = {
    "response_format": re.compile(
        r"response.?format|json.?schema|structured.?output|grammar|json_validate|generate json", re.IGNORECASE
    ),
    "temperature": re.compile(r"temperature", re.IGNORECASE),
    "stream_options": re.compile(r"stream.?options|include.?usage", re.IGNORECASE),
    "dimensions": re.compile(r"dimension|matryoshka", re.IGNORECASE),
}
_PREFIX = re.compile(r"^(?:litellm\.)?[A-Za-z]+(?:Error|Exception|Timeout)(?: Error)?\s*(?::|-)\s*")
_NO_KEY = re.compile(
    r"missing (?:credentials|[\w ]*api[ _]key)|no api[ _]key|api_key client option must be set", re.IGNORECASE
)
_TOO_LONG = re.compile(
    r"context.?(?:length|window|size)|(?:maximum|max)\W?(?:input|sequence|context|seq)|too (?:long|many tokens|large)"
    r"|(?:exceed|longer than|more than|over).{0,60}(?:tokens|length|limit)|input length|ContextWindowExceeded",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"input .{0,40}is too large to process", re.IGNORECASE)
_NO_CREDIT = re.compile(r"insufficient[_ ](?:quota|balance|credit)|exceeded your current quota", re.IGNORECASE)


class NoRetries(int):
    """0 that is true: LiteLLM takes a plain 0 in embedding requests for "not given", and repeats them by itself."""

    def __bool__(self) -> bool:
        return True


# ---------------------------------------------------------------- requests


async def request(call: Callable[..., Awaitable[Any]], options: Mapping[str, Any]) -> Any:
    """The response of `litellm.acompletion` or `.aembedding`, asked once. Raises CallError."""
    try:
        async with asyncio.timeout(options["timeout"]):  # LiteLLM's own begins anew with every byte that comes
            return await call(
                **options,
                max_retries=NoRetries(0),
                num_retries=0,
                drop_params=True,
                allowed_openai_params=["dimensions"] if "dimensions" in options else None,
            )
    except Exception as error:  # errors of litellm, openai, httpx, aiohttp and pydantic, and plain ones
        raise call_error(error) from error


async def next_chunk(stream: Any, seconds: float) -> Any:
    """The next piece of a streamed response; None at its end. Raises CallError."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(stream)
    except StopAsyncIteration:
        return None
    except Exception as error:
        raise call_error(error) from error


def refused_option(error: CallError, options: Sequence[str]) -> str | None:
    """The one of `options` that the server refuses, by its words."""
    if error.status not in (400, 404, 422) or too_long(error):
        return None
    return next((name for name in options if name in OPTIONAL and OPTIONAL[name].search(error.words)), None)


def too_long(error: CallError) -> bool:
    """Whether the server says that the text does not fit the model."""
    return error.status == 413 or (error.status in (400, 422) and bool(_TOO_LONG.search(error.words)))


# ---------------------------------------------------------------- errors


def call_error(error: Exception) -> CallError:
    """The same failure as a CallError: the server's words on one line, without keys, and what they mean."""
    if isinstance(error, CallError):
        return error
    words = _words(error)
    headers = _headers(error)
    status = getattr(error, "status_code", None)
    late = isinstance(error, TimeoutError) or type(error).__name__ in ("Timeout", "APITimeoutError")
    if late and not headers:  # with headers it is the server that says 408
        return CallTimeoutError(words, status=None)
    if _NO_KEY.search(words):
        return CallError(words, status=401)
    if status == 429 and (_NO_CREDIT.search(words) or "insufficient_quota" in str(getattr(error, "body", ""))):
        return CallError(words, status=429, passing=False)
    if status == 422 and not headers:  # LiteLLM's status for a reply it cannot read
        return CallError(words, status=None)
    if status == 500 and _TOO_LARGE.search(words):  # llama.cpp's server, of a text to embed
        return CallError(words, status=413)
    if not isinstance(status, int):
        return CallError(f"{type(error).__name__}: {words}" if words else type(error).__name__, status=None)
    return CallError(words, status=status, retry_after=_retry_after(headers))


def _words(error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "").partition("Original exception:")[0]
    text = text.strip()
    while (shorter := _PREFIX.sub("", text)) != text:
        text = shorter
    return mask(text)[:300].rstrip()


def _headers(error: Exception) -> Mapping[str, str]:
    given = getattr(getattr(error, "response", None), "headers", None)
    given = given or getattr(error, "litellm_response_headers", None)
    return {str(name).lower(): str(value) for name, value in (given or {}).items()}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    seconds = parse_retry_after(headers.get("retry-after"), time.time())
    thousandths = parse_retry_after(headers.get("retry-after-ms"), time.time())
    return seconds if thousandths is None else thousandths / 1000


# ---------------------------------------------------------------- connections


async def close_connections(litellm: Any) -> None:
    """Closes the idle connections LiteLLM keeps for this event loop; it opens new ones if it is used again."""
    import aiohttp

    loop = asyncio.get_running_loop()
    for transport in _transports(litellm):
        session = getattr(transport, "client", None)
        if not isinstance(session, aiohttp.ClientSession) or getattr(session, "_loop", None) is not loop:
            continue
        if not getattr(session.connector, "_acquired", None):  # another gateway's requests go on
            await session.close()


def _transports(litellm: Any) -> Iterator[Any]:
    for client in list(getattr(litellm.in_memory_llm_clients_cache, "cache_dict", {}).values()):
        for holder in (getattr(client, "_client", None), getattr(client, "client", None)):
            if (transport := getattr(holder, "_transport", None)) is not None:
                yield transport
