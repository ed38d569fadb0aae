"""A provider that does not answer: how long it was waited for, and when it is asked again. Pure."""

from __future__ import annotations

from pydantic import BaseModel

from turnkeeper.text import one_line
from turnkeeper.waiting import PROVIDER, in_words

FIRST_SECONDS, MOST_SECONDS = 60.0, 600.0
"""Between two tries. Each run spreads its own over half as much before and after, so that all that
wait do not come back at once."""
_WHY = 300


class Outage(BaseModel):
    """The provider was asked in vain, all attempts of a generation long."""

    since: float = 0
    """Workflow time, seconds since 1970; 0 while it answers."""
    tries: int = 0
    until: float = 0
    """When it is asked again."""
    why: str = ""

    def again(self, now: float, why: str, *, bound: float, spread: float) -> bool:
        """Wait once more; False if that would be longer than `bound` seconds in all.

        spread: from 0 to 1, another one for each run and try.
        """
        since = self.since or now
        left = since + bound - now
        if left <= 0:
            return False
        wait = min(FIRST_SECONDS * 2**self.tries, MOST_SECONDS) * (0.5 + spread)
        self.since, self.tries, self.why = since, self.tries + 1, one_line(why, _WHY)
        self.until = now + min(wait, left)
        return True

    def over(self) -> None:
        """It has answered."""
        self.since, self.tries, self.until, self.why = 0, 0, 0, ""

    @property
    def words(self) -> str:
        """What is waited for; empty if nothing is."""
        if not self.until:
            return ""
        return in_words(PROVIDER, [self.model_dump()])
