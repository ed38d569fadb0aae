"""A payload codec for tests: unreadable at rest, transparent for payloads that it did not make."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

_ENCODING = b"binary/masked"
_MASK = bytes(b ^ 0x5A for b in range(256))


class Masking(PayloadCodec):
    """Flips bits: enough to show that no code reads payloads beside the converter."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Mask."""
        return [
            Payload(metadata={"encoding": _ENCODING}, data=p.SerializeToString().translate(_MASK))
            for p in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Unmask what we made."""
        return [
            Payload.FromString(p.data.translate(_MASK))
            if p.metadata.get("encoding") == _ENCODING
            else p
            for p in payloads
        ]
