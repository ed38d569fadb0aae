"""Parts of a content-addressed object, each one verified. Pure.

An id says what the whole is, not what a part of it is. So the whole is read once and compared with
its id; the digests of its blocks, taken on that way, are the proof by which every later part is
checked. Nothing depends on a file's time or an object's etag, which a flipped bit does not change.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

MAX_ARTIFACT_BYTES = 64_000_000
"""The largest object that is kept."""
BLOCK_BYTES = 262_144
"""What is read at least for a part of an object."""
_PROOFS = 512
"""Objects of which a worker keeps the proof, which takes 20 kB at most."""


@dataclass(frozen=True)
class Part:
    """Bytes from an object."""

    data: bytes
    size: int
    """Of the whole object."""


@dataclass(frozen=True)
class Proof:
    """What the blocks of an object are, once the whole was what its id says."""

    size: int
    digests: tuple[bytes, ...]

    def span(self, offset: int, length: int) -> tuple[int, int]:
        """First byte and end of the blocks that hold a part; equal if it lies behind the end."""
        end = min(offset + length, self.size)
        if offset >= end:
            return 0, 0
        last = -(-end // BLOCK_BYTES) * BLOCK_BYTES
        return offset // BLOCK_BYTES * BLOCK_BYTES, min(last, self.size)

    def holds(self, start: int, data: bytes) -> bool:
        """Whether `data` is what lies from `start`, a block's first byte, up to a block's end."""
        first = start // BLOCK_BYTES
        blocks = [data[i : i + BLOCK_BYTES] for i in range(0, len(data), BLOCK_BYTES)]
        wanted = self.digests[first : first + len(blocks)]
        return tuple(sha256(block).digest() for block in blocks) == wanted


class Prover:
    """Takes an object from its first byte to its last, in pieces of any size."""

    def __init__(self) -> None:
        self.size = 0
        self._whole = sha256()
        self._block = sha256()
        self._room = BLOCK_BYTES
        self._digests: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """The next bytes."""
        self.size += len(piece)
        self._whole.update(piece)
        rest = memoryview(piece)
        while rest:
            taken = rest[: self._room]
            self._block.update(taken)
            self._room -= len(taken)
            rest = rest[len(taken) :]
            if not self._room:
                self._close()

    def proof(self, artifact: str) -> Proof | None:
        """The proof, if all that was fed is the object of this id."""
        if self._whole.hexdigest() != artifact:
            return None
        if self._room < BLOCK_BYTES:
            self._close()
        return Proof(self.size, tuple(self._digests))

    def _close(self) -> None:
        self._digests.append(self._block.digest())
        self._block, self._room = sha256(), BLOCK_BYTES


class Proofs:
    """The proofs that were last used."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Proof] = OrderedDict()

    def get(self, key: str) -> Proof | None:
        """Of the object that is stored under `key`, if it is known."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def keep(self, key: str, proof: Proof) -> None:
        """Remember it, and forget the one that was not asked for longest."""
        self._known[key] = proof
        while len(self._known) > _PROOFS:
            self._known.popitem(last=False)
