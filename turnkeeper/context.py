"""How full the model's window is, and when room has to be made. Pure arithmetic.

What was sent is known from the provider's own count; what is new is estimated, rather too high than
too low: a request that does not fit is refused, or worse, cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum

from pydantic import BaseModel

from turnkeeper.contract import Checkpoint, Epoch
from turnkeeper.entries import Entry, Position
from turnkeeper.epoch import bulky_results, says_something
from turnkeeper.usage import Usage
from turnkeeper.view import size

TOKENS_PER_BYTE = 1 / 3
"""Of text that was not counted yet; prose has a quarter, digits and code more."""
LEAST_TOKENS_PER_BYTE = 1 / 6
"""A provider that reports fewer is not believed: too low a count would fill the window unseen."""
_UNCOUNTED = 0.6
"""Share of an estimate that is believed where nothing was counted yet: what may fit is tried."""
_FREED_BY_REFERENCES = 0.8
"""Of a bulky result; the rest is the reference."""
MAX_IN_VAIN = 2
"""Times in a row that room is made, or a summary asked for, without getting any further."""


class Room(Enum):
    """Whether the next request fits."""

    AMPLE = 0
    SCARCE = 1
    """It fits, but it is time to prepare a summary."""
    NONE = 2


def scarce_from(*, output: int, window: int, soft: float) -> float:
    """Tokens of a request above which a summary is prepared."""
    # With a long output the window is full earlier than its soft share says.
    return min(soft * window, 0.8 * (window - output))


class Context(BaseModel):
    """What a run knows of its view, which only activities hold."""

    head_tokens: int = 0
    """Of instructions and tools, estimated."""
    tokens: int = 0
    """Of everything up to the base, the head included."""
    bytes: int = 0
    """Of the entries up to the base."""
    bulky: int = 0
    """Bytes of bulky results that the model has read and said nothing about."""
    spare: int = 0
    """Bytes of those that it has used: references can stand for them."""
    epoch: Epoch | None = None
    """None is the first, whose view is the transcript."""
    said: Position | None = None
    """The base as a place in the transcript, from the second epoch on."""
    checkpoint: Checkpoint | None = None
    """Prepared for the next epoch."""
    unsummarised: int = 0
    """Summaries in a row that were asked for in vain."""
    shortened: int = 0
    """New epochs in a row without a reply."""
    overflow: str = ""
    """The provider says that the request does not fit, whatever was counted here."""

    @property
    def number(self) -> int:
        """Of the epoch; 0 is the first."""
        return self.epoch.number if self.epoch else 0

    @property
    def tokens_per_byte(self) -> float:
        """Of entries: as this conversation had so far, but never less than `TOKENS_PER_BYTE`."""
        return min(max(self._counted, TOKENS_PER_BYTE), 1.0)

    @property
    def _counted(self) -> float:
        """Tokens per byte of entries, as the provider has counted them so far."""
        return max(0, self.tokens - self.head_tokens) / self.bytes if self.bytes else 0

    def estimate(self, entries: Iterable[Entry]) -> int:
        """Tokens of entries that were not counted yet."""
        return math.ceil(sum(map(size, entries)) * self.tokens_per_byte)

    def request_tokens(self, pending: Iterable[Entry]) -> int:
        """Of the next request."""
        return self.request_with(self.estimate(pending))

    def request_with(self, new: int) -> int:
        """Of the next request, `new` tokens of which were not counted yet."""
        return max(self.tokens, self.head_tokens) + new

    def room(self, pending: list[Entry], *, output: int, window: int, soft: float) -> Room:
        """For the next request, whose reply may have `output` tokens."""
        asked = self.request_tokens(pending)
        if not self.tokens:
            asked = math.floor(asked * _UNCOUNTED)
        if self.overflow or asked + output > window:
            return Room.NONE
        scarce = asked > scarce_from(output=output, window=window, soft=soft)
        return Room.SCARCE if scarce else Room.AMPLE

    def room_bytes(self, pending: list[Entry], *, output: int, window: int) -> int:
        """What the opening of a new epoch may have, so that it is not full again at once."""
        left = window - output - self.head_tokens - self.estimate(pending)
        return max(0, math.floor(left * 0.6 / self.tokens_per_byte))

    def tail_bytes(self, pending: list[Entry], *, output: int, window: int) -> int:
        """What may stay word for word beside a summary that is begun now: with what will be said
        until the window is full, it is to fit into the opening."""
        opening = self.room_bytes(pending, output=output, window=window)
        left = max(0, window - output - self.request_tokens(pending))
        # Rather too many bytes than too few: as counted, not as estimated.
        said = left / max(self._counted, LEAST_TOKENS_PER_BYTE) + sum(map(size, pending))
        return max(0, opening - math.ceil(said))

    def needs_summary(self, room: int, frees: float) -> bool:
        """Whether references would make too little room: less than `frees` of the view, or more
        than `room` bytes left."""
        freed = self.spare * _FREED_BY_REFERENCES
        return freed < frees * self.bytes or self.bytes - freed > room

    def heard(self, pending: Sequence[Entry], usage: Usage, at_least: int) -> None:
        """The provider has counted the request; results of `at_least` bytes are bulky."""
        self.bytes += sum(map(size, pending))
        self.bulky += sum(size(pending[i]) for i in bulky_results(pending, at_least))
        sent = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        self.tokens = max(sent, math.ceil(self.bytes * LEAST_TOKENS_PER_BYTE))
        if self.said is not None:
            self.said = self.said.after(pending)
        self.shortened, self.overflow = 0, ""

    def kept(self, reply: Entry, usage: Usage) -> None:
        """The reply is part of the view."""
        self.bytes += size(reply)
        if says_something(reply):
            self.spare, self.bulky = self.spare + self.bulky, 0
        self.tokens += max(usage.output_tokens, math.ceil(size(reply) * LEAST_TOKENS_PER_BYTE))
        if self.said is not None:
            self.said = self.said.after([reply])

    def take_over(self, size: int) -> None:
        """Begin with entries of another run, of `size` bytes."""
        self.bytes = size
        if size:
            self.tokens = self.head_tokens + math.ceil(size * TOKENS_PER_BYTE * _UNCOUNTED)

    def begin(self, epoch: Epoch, size: int) -> None:
        """Go on with a new view, whose opening has `size` bytes."""
        self.tokens = self.head_tokens + math.ceil(size * self.tokens_per_byte)
        self.bytes, self.epoch, self.said = size, epoch, epoch.said
        self.spare = self.bulky = 0
        self.checkpoint, self.unsummarised, self.overflow = None, 0, ""
        self.shortened += 1
