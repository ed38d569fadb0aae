"""What the Messages API, a gateway before it, or the connection can answer instead of a reply.

Everything becomes a `ProviderError`. Tables decide its kind, in this order: the API's stable error
code, two wordings (there is no code for either), the HTTP status or, inside a stream, the error's
type. The API's own `x-should-retry` header then has the last word between `retry` and `stop`.

Source of the codes and statuses: anthropic 2.14.0 (`types.shared`, `_exceptions`) and the API's
error page of November 2026.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from activities.providers import Kind, ProviderError
from activities.redact import Redactor
from turnkeeper.text import one_line

MAX_MESSAGE: Final = 500
"""Characters of an error's message."""
MAX_BODY_BYTES: Final = 64_000
"""Bytes that are read of an error's body."""

_BY_CODE: Final[Mapping[str, Kind]] = {
    # A 429 that no wait will cure: somebody has to raise the limit.
    "contract_spend_limit_reached": "stop",
    "enforced_spend_limit_reached": "stop",
    "linked_organization_spend_limit_reached": "stop",
    "image_dimensions_too_large": "stop",
    "compaction_unavailable": "retry",
    "request_body_too_large_after_decoding": "overflow",
}
_BY_WORDING: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (re.compile(r"(?i)bound to a different conversation|invalid `?signature"), "thinking"),
    (re.compile(r"(?i)prompt is too long|context (window|limit|length)"), "overflow"),
)
_WORDED_STATUSES: Final = (200, 400, 422)
_BY_STATUS: Final[Mapping[int, Kind]] = {
    408: "retry",
    409: "retry",
    413: "overflow",
    425: "retry",
    429: "retry",
    # nginx and others: the connection to the API was given up.
    499: "retry",
}
_BY_HUNDRED: Final[Mapping[int, Kind]] = {3: "stop", 4: "stop", 5: "retry"}
# Inside a stream, where the status was 200 long ago.
_BY_TYPE: Final[Mapping[str, Kind]] = {
    "authentication_error": "stop",
    "billing_error": "stop",
    "invalid_request_error": "stop",
    "not_found_error": "stop",
    "permission_error": "stop",
    "request_too_large": "overflow",
}
_SHOULD_RETRY: Final[Mapping[str, Kind]] = {"true": "retry", "false": "stop"}

# By class name, so that neither library has to be imported; the nearest class of the MRO counts.
_BY_CLASS: Final[Mapping[str, tuple[Kind, str]]] = {
    "ConnectTimeout": ("retry", "connect_timeout"),
    "PoolTimeout": ("retry", "pool_timeout"),
    "ReadTimeout": ("retry", "read_timeout"),
    "WriteTimeout": ("retry", "write_timeout"),
    "TimeoutException": ("retry", "timeout"),
    "APITimeoutError": ("retry", "timeout"),
    "TransportError": ("retry", "connection_error"),
    "APIConnectionError": ("retry", "connection_error"),
    "OSError": ("retry", "connection_error"),
    "UnsupportedProtocol": ("stop", "invalid_base_url"),
    "InvalidURL": ("stop", "invalid_base_url"),
    "TooManyRedirects": ("stop", "redirect"),
    "CredentialsError": ("stop", "credentials"),
    "WorkloadIdentityError": ("stop", "credentials"),
    "DecodingError": ("retry", "unreadable_reply"),
    "APIResponseValidationError": ("retry", "unreadable_reply"),
    "ValueError": ("retry", "unreadable_reply"),
    "RecursionError": ("retry", "unreadable_reply"),
}

_SECONDS = re.compile(r"[0-9]{1,300}(\.[0-9]*)?|\.[0-9]+", re.ASCII)
_TAG = re.compile(r"<[^<>]{0,1000}>")
_MUTE = re.compile(r"(?is)<(script|style)\b[^<>]{0,1000}>[^<]*+</\1>")


class AnthropicErrors:
    """Makes `ProviderError`s whose texts hold none of the secrets that the redactors know."""

    def __init__(self, *redactors: Redactor) -> None:
        self._redactors = redactors

    def of_exception(self, error: Exception, request_id: str | None = None) -> ProviderError:
        """The error for anything that the SDK or its HTTP library raises."""
        if isinstance(error, ProviderError):
            return error
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and status >= 300:
            body = getattr(error, "body", None)
            return self.of_response(status, getattr(response, "headers", {}), body)
        # The SDK wraps what the connection raised into "Connection error.".
        told = error.__cause__ if isinstance(error.__cause__, Exception) else error
        names = [c.__name__ for c in (*type(told).__mro__, *type(error).__mro__)]
        found = next((_BY_CLASS[n] for n in names if n in _BY_CLASS), None)
        kind, code = found or ("retry", "client_error")
        message = self._line(f"{type(told).__name__}: {told}")
        return ProviderError(kind, code, message, request_id=request_id)

    def of_response(self, status: int, headers: Mapping[str, str], body: Any) -> ProviderError:
        """The error that an HTTP response reports; `body` is its JSON, or its text, or None."""
        error = body.get("error") if isinstance(body, dict) else None
        fields: dict[str, Any] = error if isinstance(error, dict) else {}
        details = fields.get("details")
        error_code = details.get("error_code") if isinstance(details, dict) else None
        names = [
            self._line(n, 100) for n in (error_code, fields.get("type")) if isinstance(n, str) and n
        ]
        message = _wording(error, body)
        kind = _kind(status, names, message)
        if kind in ("retry", "stop") and not any(n in _BY_CODE for n in names):
            kind = _SHOULD_RETRY.get(headers.get("x-should-retry", "").strip().lower(), kind)
        request_id = headers.get("request-id") or headers.get("x-request-id")
        return ProviderError(
            kind,
            names[0] if names else f"http_{status}",
            self._line(message) or "the response has no message",
            status=status,
            request_id=one_line(request_id, 100) if request_id else None,
            retry_after=retry_after(headers),
        )

    def _line(self, text: str, limit: int = MAX_MESSAGE) -> str:
        # Longer than what is shown: a secret at the cut would not be recognised.
        text = text[: 32 * MAX_MESSAGE]
        for redactor in self._redactors:
            text = redactor.error(text)
        return one_line(text, limit)


def _kind(status: int, names: list[str], message: str) -> Kind:
    for name in names:
        if name in _BY_CODE:
            return _BY_CODE[name]
    if status in _WORDED_STATUSES:
        for wording, kind in _BY_WORDING:
            if wording.search(message):
                return kind
    if status < 300:
        # An unknown type is retried: whatever it is, no status said that it is our fault.
        return next((_BY_TYPE[n] for n in names if n in _BY_TYPE), "retry")
    return _BY_STATUS.get(status) or _BY_HUNDRED.get(status // 100, "stop")


def _wording(error: Any, body: Any) -> str:
    """The text for people in an error body: the API's form, a gateway's, HTML, or plain text."""
    candidates = [error]
    if isinstance(error, dict):
        candidates = [error.get("message")]
    if isinstance(body, dict):
        candidates += [body.get("message"), body.get("detail")]
    candidates.append(body)
    text = next((c for c in candidates if isinstance(c, str)), "")[: 64 * MAX_MESSAGE]
    if text.lstrip().startswith("<"):
        text = _TAG.sub(" ", _MUTE.sub(" ", text))
    return text


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that a response asks to wait, or None.

    `retry-after-ms` counts before `retry-after`; a date in the past is 0; what is neither a number
    nor a date is ignored. The number may be huge: the caller has a limit of its own.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _number(value)
    return seconds if seconds is not None else _seconds_until(value, now or datetime.now(UTC))


def _number(value: str) -> float | None:
    # float() would also take "nan", "infinity", "1_0" and a sign.
    number = float(value) if _SECONDS.fullmatch(value := value.strip()) else math.inf
    return number if math.isfinite(number) else None


def _seconds_until(value: str, now: datetime) -> float | None:
    try:
        date = parsedate_to_datetime(value[:100])
        # A date of zone -0000 comes without one, and means UTC.
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max((date - now).total_seconds(), 0.0)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
