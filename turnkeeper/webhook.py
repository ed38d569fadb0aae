"""Signed webhooks, by the scheme of https://www.standardwebhooks.com. Pure.

A receiver checks what it gets before it believes it:

    notice = verify(secret, request.headers, request.body, now=time.time())

A notice may come more than once, under the same id: keep the ids that were seen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any

from turnkeeper.errors import NoticeRefused
from turnkeeper.text import is_well_formed

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
# Seconds since 1970 have ten digits; `int` reads more than a float holds, and digits of any script.
_SECONDS = re.compile("[0-9]{1,16}")


def signing_key(secret: str) -> bytes:
    """The bytes that a secret stands for.

    Raises:
        ValueError: it is not `whsec_` and 24 to 64 bytes in base64.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(_PREFIX) or not _SHORTEST <= len(key) <= _LONGEST:
        # Without the secret itself: this is logged.
        raise ValueError(
            f"a webhook's secret is {_PREFIX} and {_SHORTEST} to {_LONGEST} random bytes in base64"
        )
    return key


def signed_headers(secret: str, notice_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove who has sent a body, and when (seconds since 1970)."""
    return {
        ID: notice_id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: _signature(signing_key(secret), notice_id, timestamp, body),
    }


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, now: float, tolerance: float = 300
) -> dict[str, Any]:
    """What was told, once it is certain that the owner of the secret has sent it lately.

    Args:
        secret: the worker's TURNKEEPER_WEBHOOK_SECRET.
        headers: of the request, in any case.
        body: its bytes as they came, not parsed and written again.
        now: seconds since 1970, as `time.time()` has it.
        tolerance: seconds that the request may be old, or ahead of this clock.

    Raises:
        NoticeRefused: it is not genuine, or too old.
        ValueError: the secret is none.
    """
    key = signing_key(secret)
    notice_id, timestamp, signatures = _read(headers)
    if abs(now - timestamp) > tolerance:
        raise NoticeRefused(f"it was sent {now - timestamp:.0f} s ago")
    # ASCII, or the comparison raises.
    expected = _signature(key, notice_id, timestamp, body).encode()
    # Several while a secret is being replaced; in constant time, or they could be guessed.
    if not any(hmac.compare_digest(expected, s.encode()) for s in signatures.split()):
        raise NoticeRefused("its signature is wrong")
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise NoticeRefused("it is no JSON object")
    return told


def _read(headers: Mapping[str, str]) -> tuple[str, int, str]:
    """The id, the time and the signatures, as anybody may have written them."""
    given = {name.lower(): value for name, value in headers.items()}
    try:
        notice_id, written, signatures = given[ID], given[TIMESTAMP], given[SIGNATURE]
    except KeyError:
        raise NoticeRefused("a header is missing") from None
    if not _SECONDS.fullmatch(written):
        raise NoticeRefused("its time is no number")
    # As a server decodes bytes that are no UTF-8: they cannot be encoded again.
    if not (is_well_formed(notice_id) and is_well_formed(signatures)):
        raise NoticeRefused("its id or signature is no text")
    return notice_id, int(written), signatures


def _signature(key: bytes, notice_id: str, timestamp: int, body: bytes) -> str:
    content = b".".join([notice_id.encode(), str(timestamp).encode(), body])
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
