"""The Messages API of Anthropic, and of gateways that speak it.

One `generate` is one request on the wire: neither the SDK nor the HTTP library retries or follows
a redirect, since each of those would be paid for a second time unseen.

    anthropic_request.py  entries -> request body
    anthropic_body.py     request body -> bytes
    anthropic_stream.py   server-sent events -> reply
    anthropic_errors.py   everything else -> ProviderError
    admission.py          reply -> entry
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from activities.aside import aside
from activities.providers import ModelRequest, Progress, ProviderError, ProviderReply
from activities.providers.admission import usage_of
from activities.providers.anthropic_body import encoded
from activities.providers.anthropic_errors import MAX_BODY_BYTES, AnthropicErrors
from activities.providers.anthropic_request import IMAGES, build_request, request_betas
from activities.providers.anthropic_stream import EventReader, ReplyAssembly
from activities.providers.wire_json import read_json
from activities.redact import Redactor
from turnkeeper.text import one_line

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic

MAX_REPLY_BYTES: Final = 8_000_000
"""Bytes that are received of one reply."""
CONNECT_SECONDS: Final = 10.0
POOL_SECONDS: Final = 30.0
"""The longest wait for a free connection."""
WHOLE_SECONDS: Final = 600.0
"""The longest wait for a reply in one piece, of which nothing comes before it is complete."""
MODELS_SECONDS: Final = 5.0
"""The longest wait for what a model is."""
_DRAIN_SECONDS: Final = 0.25

log = structlog.get_logger("turnkeeper.anthropic")


class AnthropicProvider:
    """Asks the Messages API; see `Provider` for the contract.

    api_key: without one every request is answered by a `stop` error.
    base_url: the API's own address if None.
    silence: the longest wait for the next byte, in seconds. A stream's pings end it.
    redactor: knows further secrets that an error's text could hold.
    transport: stands in for the network in tests (`httpx2.MockTransport`).
    """

    images = IMAGES

    def __init__(
        self,
        *,
        api_key: str | None,
        base_url: str | None = None,
        silence: float = 120.0,
        redactor: Redactor | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._api_key = (api_key or "").strip()
        self._base_url = base_url or None
        self._silence = silence
        self._transport = transport
        self._errors = AnthropicErrors(Redactor([self._api_key]), redactor or Redactor())
        self._client: AsyncAnthropic | None = None

    async def generate(self, request: ModelRequest, progress: Progress) -> ProviderReply:
        """Send one request, once; `progress` is kept up to date while the reply arrives.

        Raises:
            ProviderError: for everything the wire or the provider can do.
        """
        content = await aside(
            sum(map(len, request.images.values())),
            lambda: encoded(build_request(request), images=bool(request.images)),
        )
        headers = {
            # A compressed stream is held back by proxies, and 8 MB of it may be gigabytes.
            "Accept-Encoding": "identity",
        }
        if betas := request_betas(request):
            headers["anthropic-beta"] = ",".join(betas)
        client = await self._connected()
        progress.sent_bytes = len(content)
        started = time.monotonic()
        response: httpx2.Response | None = None
        try:
            response = await client.post(
                "/v1/messages",
                # Bytes: the SDK would walk a body object of megabytes before it encodes it.
                content=content,
                cast_to=_response_class(),
                # Of the HTTP body, in either case: its size is bounded here.
                stream=True,
                options={"headers": headers, "timeout": self._timeout(request)},
            )
            if not _is_stream(response, request):
                return await self._read_whole(response, progress)
            return await self._read_stream(response, progress, started)
        except Exception as error:  # noqa: BLE001 - the SDK raises bare ValueError, AssertionError
            raise self._errors.of_exception(error, _request_id(response)) from None
        finally:
            if response is not None:
                await response.aclose()

    async def window(self, model: str) -> int | None:
        """See `Provider`; gateways may not have the endpoint."""
        try:
            client = await self._connected()
            found = await client.models.retrieve(model, timeout=MODELS_SECONDS)
            return int(found.max_input_tokens or 0) or None
        except Exception as error:  # noqa: BLE001 - what a gateway answers may be anything
            told = self._errors.of_exception(error)
            log.warning("the model's window is unknown", model=model, error=str(told))
            return None

    async def close(self) -> None:
        """Release connections; a later `generate` opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> AsyncAnthropic:
        if not (self._api_key.isascii() and self._api_key.isprintable() and self._api_key):
            raise ProviderError(
                "stop", "authentication_error", "no usable API key; set ANTHROPIC_API_KEY"
            )
        if "anthropic" not in sys.modules:
            # The import takes over a second, in which the loop has other activities to serve.
            await asyncio.to_thread(importlib.import_module, "anthropic")
        if self._client is None:
            try:
                self._client = self._open()
            except Exception as error:  # noqa: BLE001 - bare ValueError for a proxy, among others
                found = self._errors.of_exception(error)
                raise ProviderError("stop", "invalid_configuration", found.message) from None
        return self._client

    def _open(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        # The SDK's client class has TCP keepalive, an explicit transport does without.
        own: dict[str, Any] = {} if self._transport is None else {"transport": self._transport}
        return AsyncAnthropic(
            api_key=self._api_key,
            base_url=self._base_url,
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(
                follow_redirects=False,
                event_hooks={"response": [_bound_error_body]},
                **own,
            ),
        )

    def _timeout(self, request: ModelRequest) -> httpx2.Timeout:
        import httpx2

        read = self._silence if request.stream else max(self._silence, WHOLE_SECONDS)
        return httpx2.Timeout(
            connect=CONNECT_SECONDS, read=read, write=self._silence, pool=POOL_SECONDS
        )

    async def _read_stream(
        self, response: httpx2.Response, progress: Progress, started: float
    ) -> ProviderReply:
        reader = EventReader()
        assembly = ReplyAssembly(partial(self._errors.of_response, 200, response.headers))
        async with contextlib.aclosing(_received(response, progress)) as chunks:
            async for chunk in chunks:
                for name, data in reader.feed(chunk):
                    assembly.take(name, data)
                    progress.said_bytes = assembly.said_bytes
                    if not progress.counted.all_input and assembly.usage:
                        progress.counted = usage_of(assembly.usage)
                    if progress.first_token_ms is None and assembly.begun:
                        progress.first_token_ms = round((time.monotonic() - started) * 1000)
                    if assembly.complete:
                        await _drain(chunks)
                        return assembly.reply(_request_id(response))
        for name, data in reader.end():
            assembly.take(name, data)
        return assembly.reply(_request_id(response))

    async def _read_whole(self, response: httpx2.Response, progress: Progress) -> ProviderReply:
        async with contextlib.aclosing(_received(response, progress)) as chunks:
            body = b"".join([chunk async for chunk in chunks])
        try:
            message = read_json(body.decode("utf-8", "surrogatepass"))
        except ValueError:  # JSONDecodeError, UnicodeDecodeError
            message = None
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            return ProviderReply(message, _request_id(response))
        if isinstance(message, dict) and message.get("error"):
            raise self._errors.of_response(200, response.headers, message)
        raise ProviderError(
            "retry",
            "unreadable_reply",
            f"a body of {len(body)} bytes that is no message",
            status=response.status_code,
            request_id=_request_id(response),
        )


def _is_stream(response: httpx2.Response, request: ModelRequest) -> bool:
    # Some gateways answer a stream request with the whole reply, or with a page of HTML.
    kind = response.headers.get("content-type", "").lower()
    whole = "json" in kind or "html" in kind
    return "event-stream" in kind or (request.stream and not whole)


def _response_class() -> type[httpx2.Response]:
    import httpx2

    return httpx2.Response


def _request_id(response: httpx2.Response | None) -> str | None:
    found = response.headers.get("request-id") if response is not None else None
    return one_line(found, 100) if found else None


async def _received(response: httpx2.Response, progress: Progress) -> AsyncGenerator[bytes, None]:
    """The body's chunks, counted and bounded."""
    size = 0
    async with contextlib.aclosing(response.aiter_bytes()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            progress.received_bytes += len(chunk)
            if size > MAX_REPLY_BYTES:
                raise ProviderError(
                    "retry", "reply_too_large", f"the reply has over {MAX_REPLY_BYTES} bytes"
                )
            yield chunk


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the end of a body that is complete, so that its connection can be used again.

    The end is mostly here already. It is not waited for, and nothing that happens in it may cost
    the reply.
    """
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in chunks:
                pass


async def _bound_error_body(response: httpx2.Response) -> None:
    """An event hook: the SDK reads the whole body of an error, whatever its size."""
    import httpx2

    if response.is_success or not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    stream = response.stream

    class Head(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = MAX_BODY_BYTES
            async for chunk in stream:
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    return

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Head()
