"""The Messages API: from an HTTP request to what is answered.

`Api.answer` checks, asks the script, accounts for the cache, and has written the log by the time
it returns. It does no network I/O.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, cast

from turnkeeper.testing.provider.cache import PromptCache, cache_key
from turnkeeper.testing.provider.diagnosis import (
    Fingerprints,
    diagnosis,
    fingerprint,
    previous_id,
)
from turnkeeper.testing.provider.emitted import Memory
from turnkeeper.testing.provider.http import HttpRequest
from turnkeeper.testing.provider.journal import Journal, Record
from turnkeeper.testing.provider.models import Model, Models
from turnkeeper.testing.provider.replies import HttpReply, Json, MessageReply, Reply, dumps
from turnkeeper.testing.provider.rules import BINDING_BETA, Request, violation
from turnkeeper.testing.provider.script import Exchange, Script, answer
from turnkeeper.testing.provider.wire import Message, error_body, fill

_CREDENTIALS: Final = frozenset({"authorization", "x-api-key", "cookie", "proxy-authorization"})
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PROMPT_HEAD: Final = 200
_REMEMBERED_BODIES: Final = 50_000


@dataclass(frozen=True)
class Answer:
    """A response: its body in pieces, sent chunked for a stream, and the reply with the delays
    and the cut to apply."""

    record: Record
    status: int
    content_type: str
    pieces: list[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    chunked: bool = False
    reply: Reply | None = None


class _Refusal(Exception):
    """The provider itself refuses the request, by the rule named."""

    def __init__(self, status: int, type_: str, rule: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.rule = rule


class Api:
    """The API's state: script, models, cache, memory of emitted replies, log."""

    def __init__(
        self,
        script: Script,
        *,
        models: Models,
        api_key: str | None,
        clock: Callable[[], float],
        journal: Journal,
        log_bodies: bool,
    ) -> None:
        self._script = script
        self._models = models
        self._api_key = api_key
        self._cache = PromptCache(clock)
        self._journal = journal
        self._log_bodies = log_bodies
        self._memory = Memory()
        self._fingerprints = Fingerprints()
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._arrivals = 0
        self.rejections: Counter[str] = Counter()
        for record in journal.earlier:
            self._go_on_from(record)
        journal.earlier.clear()

    def _go_on_from(self, record: Record) -> None:
        self._arrivals = max(self._arrivals, record.arrival)
        if record.emitted is not None:
            self._memory.add(record.emitted)
        if record.step is not None and record.digest is not None:
            self._count(record.digest)

    def answer(self, http: HttpRequest) -> Answer:
        """The response to a request; its record is in the log."""
        self._arrivals += 1
        record = Record(self._arrivals, time.time(), http.method, http.path)
        record.request_id = f"req_{self._arrivals:012d}"
        try:
            response = self._route(http, record)
        except _Refusal as refusal:
            record.rule, record.problem = refusal.rule, str(refusal)
            self.rejections[refusal.rule] += 1
            body = error_body(refusal.type, str(refusal), record.request_id)
            response = Answer(record, refusal.status, "application/json", [body])
        except Exception as bug:  # noqa: BLE001 - a lost connection would hide where it comes from
            record.problem = f"bug in the scripted provider: {bug!r}"
            body = error_body("api_error", record.problem, record.request_id)
            response = Answer(record, 500, "application/json", [body])
        record.status = response.status
        self._journal.request(record)
        return response

    def _route(self, http: HttpRequest, record: Record) -> Answer:
        self._authenticate(http)
        match http.method, http.path.strip("/").split("/"):
            case "POST", ["v1", "messages"]:
                return self._messages(http, record)
            case "POST", ["v1", "messages", "count_tokens"]:
                request = self._checked(http, record, counting=True)
                return _json(record, {"input_tokens": request.prefix.tokens()})
            case "GET", ["v1", "models"]:
                models = [model.as_json() for model in self._models]
                ids = [model["id"] for model in models] or [None]
                page = {"has_more": False, "first_id": ids[0], "last_id": ids[-1]}
                return _json(record, {"data": models, **page})
            case "GET", ["v1", "models", id_]:
                model = self._models.get(id_, listed=True)
                if model is None:
                    raise _unknown_model(id_)
                return _json(record, model.as_json())
        raise _Refusal(404, "not_found_error", "path", f"Not found: {http.method} {http.path}")

    def _authenticate(self, http: HttpRequest) -> None:
        scheme, _, token = http.headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else ""
        key = key or http.headers.get("x-api-key", "")
        if not key:
            raise _Refusal(401, "authentication_error", "credentials", "a credential is required")
        if self._api_key is not None and key != self._api_key:
            raise _Refusal(401, "authentication_error", "credentials", "invalid credential")
        if "anthropic-version" not in http.headers:
            raise _invalid("version_header", "anthropic-version: header is required")

    def _checked(self, http: HttpRequest, record: Record, *, counting: bool = False) -> Request:
        """The parsed request after all rules; raises _Refusal."""
        if http.body is None:
            message = "Request exceeds the maximum size"
            raise _Refusal(413, "request_too_large", "body_size", message)
        record.digest = sha256(http.body).hexdigest()
        body = _parse(http.body)
        if "diagnostics" in body:
            # A request sent again is the same one, whatever it wants to be compared with.
            asked = {name: value for name, value in body.items() if name != "diagnostics"}
            record.digest = sha256(dumps(asked)).hexdigest()
        if self._log_bodies:
            record.body = body
        _describe(body, record)
        model = self._models.get(record.model) if record.model is not None else None
        if record.model is not None and model is None:
            raise _unknown_model(record.model)
        betas = frozenset(
            beta.strip() for beta in http.headers.get("anthropic-beta", "").split(",")
        )
        # A body without a model is refused by the first rule; any model will do to ask it.
        previous = self._fingerprints.get(previous_id(body))
        request = Request(body, betas, model or Model(""), self._memory, counting, previous)
        try:
            broken = violation(request)
            if broken is not None:
                raise _invalid(broken.rule, broken.message)
            record.tokens = request.prefix.tokens()
        except (ValueError, RecursionError) as error:
            raise _invalid("json_body", f"The request body is not valid JSON: {error}") from error
        return request

    def _messages(self, http: HttpRequest, record: Record) -> Answer:
        request = self._checked(http, record)
        repeat = self._count(str(record.digest))
        headers = {k: v for k, v in http.headers.items() if k not in _CREDENTIALS}
        exchange = Exchange(request.body, headers, repeat, record.arrival)
        record.repeat, record.prompt = repeat, exchange.prompt[:_PROMPT_HEAD]
        reply = answer(self._script, exchange)
        record.step = reply.kind
        if isinstance(reply, MessageReply) and (reply.plain is None or exchange.stream):
            return self._message(request, exchange, reply, record)
        http_reply = reply.plain if isinstance(reply, MessageReply) else reply
        return _plain(record, cast("HttpReply", http_reply))

    def _message(
        self, request: Request, exchange: Exchange, reply: MessageReply, record: Record
    ) -> Answer:
        conversation = request.prefix.continued()
        before = conversation.digest()
        used_ids: set[Any] = {place.block["id"] for place in request.of("tool_use")}
        content = fill(reply, exchange.turn, used_ids, conversation)
        record.emitted = self._memory.emit(
            [item.block for item in content],
            reply.actual_stop_reason,
            before,
            conversation.digest(),
        )
        key = cache_key(request.body, len(request.head), request.prefix)
        usage = self._cache.account(
            request.marks, request.prefix, key, request.model.min_cache_tokens
        )
        record.cache_read, record.cache_written = usage.read, usage.written
        message_id = f"msg_{sha256(f'{record.digest}{exchange.repeat}'.encode()).hexdigest()[:24]}"
        message = Message(
            reply=reply,
            id=message_id,
            model=request.model.id,
            content=content,
            input_usage=usage.as_json(),
            input_transformations=_transformations(request),
            diagnostics=self._diagnose(request, message_id),
        )
        if exchange.stream:
            events = message.events()
            return Answer(record, 200, "text/event-stream", events, chunked=True, reply=reply)
        return Answer(record, 200, "application/json", [message.plain()], reply=reply)

    def _diagnose(self, request: Request, message_id: str) -> Json | None:
        """The reply's `diagnostics`. A request with that field is remembered for later ones."""
        if request.body.get("diagnostics") is None:
            return None
        now = fingerprint(request.body, request.prefix, request.to_remember)
        self._fingerprints.add(message_id, now)
        if previous_id(request.body) is None:
            return None
        return diagnosis(request.previous, now, request.prefix)

    def _count(self, digest: str) -> int:
        """How often this body was counted before."""
        before = self._seen.pop(digest, 0)
        self._seen[digest] = before + 1
        if len(self._seen) > _REMEMBERED_BODIES:
            self._seen.popitem(last=False)
        return before


def _plain(record: Record, reply: HttpReply) -> Answer:
    content = reply.content
    if not isinstance(content, bytes):
        content = dumps({**content, "request_id": record.request_id})
    return Answer(record, reply.status, reply.content_type, [content], reply.headers, reply=reply)


def _json(record: Record, value: Json) -> Answer:
    return Answer(record, 200, "application/json", [dumps(value)])


def _invalid(rule: str, message: str) -> _Refusal:
    return _Refusal(400, "invalid_request_error", rule, message)


def _unknown_model(id_: str) -> _Refusal:
    return _Refusal(404, "not_found_error", "model_known", f"model: {id_}")


def _parse(data: bytes) -> Json:
    """The body as strict JSON: UTF-8, no duplicate keys, no NaN, no lone surrogates."""
    try:
        body = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
        if _SURROGATE.search(data):
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        message = f"The request body is not valid JSON: {error}"
        raise _invalid("json_body", message.encode(errors="replace").decode()) from error
    if not isinstance(body, dict):
        raise _invalid("json_body", "The request body must be a JSON object")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = Counter(key for key, _ in pairs)
        raise ValueError(f"duplicate key {keys.most_common(1)[0][0]!r}")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _describe(body: Json, record: Record) -> None:
    """Note for the log what can be told before the rules have passed."""
    model, messages = body.get("model"), body.get("messages")
    record.model = model if isinstance(model, str) else None
    record.stream = body.get("stream") is True
    if isinstance(messages, list):
        roles = [message.get("role") for message in messages if isinstance(message, dict)]
        record.messages, record.turn = len(messages), roles.count("assistant")
    record.metadata = body.get("metadata") if isinstance(body.get("metadata"), dict) else None


def _transformations(request: Request) -> list[Json] | None:
    """The thinking blocks that were dropped at the request's wish; None without the beta."""
    if BINDING_BETA not in request.betas:
        return None
    return [
        {
            "type": "thinking_dropped",
            "path": place.path,
            "reason": "prefix_binding_mismatch",
        }
        for place in request.mismatched
    ]
