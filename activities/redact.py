"""Keep secrets out of every text that leaves an activity."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from turnkeeper.text import well_formed

REDACTED = "[redacted]"
_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8
# What a secret looks like where its value is not known here.
_SHAPES = (
    re.compile(r"\bsk-[A-Za-z0-9_-]{12,}"),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}"),
    re.compile(r"(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)"),
    re.compile(r"(?i)(?<=[?&])(api[_-]?key|token|secret|password|signature)=[^&\s]{4,}"),
)


class Redactor:
    """Replaces known secrets and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # Longest first: a secret may be part of another one.
        written = {w for s in secrets if len(s) >= _SHORTEST for w in _written(s)}
        known = sorted(written, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Redactor:
        """Knows the values of all variables whose name says key, token, secret or password."""
        variables = os.environ if environment is None else environment
        return cls(v for k, v in variables.items() if _NAMES.search(k))

    def known(self, text: str) -> str:
        """`text` without known secrets: for results, where a mere look-alike may be the content."""
        return self._known.sub(REDACTED, text) if self._known else text

    def error(self, text: str) -> str:
        """`text` of an error, well-formed, without known secrets and their look-alikes."""
        text = self.known(well_formed(text))
        for shape in _SHAPES:
            text = shape.sub(REDACTED, text)
        return text


def _written(secret: str) -> set[str]:
    """A secret as it is, and as JSON and Python's repr write it."""
    quoted = (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret))
    return {secret, *(q[1:-1] for q in quoted)}
