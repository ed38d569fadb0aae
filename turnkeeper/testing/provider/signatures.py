"""Signatures of thinking blocks.

The real API binds a thinking block to everything before it: system, tools and all earlier blocks.
A signature here is two digests, of that prefix and of the block's own text, so that a changed
conversation can be told from a changed block. It needs no secret and no memory: a provider that
was killed and started again accepts the blocks that the earlier process signed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal

Fault = Literal["forged", "modified", "bound"]

_SIGNATURE = re.compile(r"(?:sig|red)_([0-9a-f]{32})_([0-9a-f]{16})")
THINKING_TYPES = ("thinking", "redacted_thinking")


def sign(prefix: bytes, text: str) -> str:
    """The signature of a thinking block with this text, after the prefix of this digest."""
    return f"sig_{_binding(prefix, text)}"


def redact(prefix: bytes) -> str:
    """The data of a redacted_thinking block after the prefix of this digest."""
    return f"red_{_binding(prefix, '')}"


def seal(block: Mapping[str, Any]) -> str:
    """What identifies a thinking block: its signature, or its redacted data."""
    return str(block["signature"] if block["type"] == "thinking" else block["data"])


def fault(block: Mapping[str, Any], prefix: bytes) -> Fault | None:
    """What is wrong with a thinking block that is sent back after `prefix`.

    `forged`: no signature of this provider. `modified`: the block's text is another. `bound`: the
    block belongs to another conversation, or this one was changed before it.
    """
    match = _SIGNATURE.fullmatch(seal(block))
    if match is None:
        return "forged"
    if match[2] != _text_digest(block.get("thinking", "")):
        return "modified"
    return None if match[1] == prefix.hex()[:32] else "bound"


def _binding(prefix: bytes, text: str) -> str:
    return f"{prefix.hex()[:32]}_{_text_digest(text)}"


def _text_digest(text: str) -> str:
    # A script may think in lone surrogates; they cannot come back, but must not stop the reply.
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
