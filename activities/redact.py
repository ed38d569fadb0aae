"""Keep secrets out of every text that leaves an activity."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from turnkeeper.text import well_formed

REDACTED = "[redacted]"
# Of variables whose values are kept out of results: names that can mean nothing else.
_NAMES = re.compile(
    r"((^|_)(KEY|TOKEN|CREDENTIALS?)|APIKEY|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE
)
# Of those whose values are kept out of errors and logs, which are worth less than a secret.
_SUSPECTED_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8
_LONG = 12
# What a secret looks like where its value is not known here.
_SHAPES = (
    re.compile(r"\bsk-[A-Za-z0-9_-]{12,}"),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}"),
    re.compile(r"(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)"),
    re.compile(r"(?i)(?<=[?&])(api[_-]?key|token|secret|password|signature)=[^&\s]{4,}"),
)


class Redactor:
    """Replaces known secrets and what looks like one.

    secrets: replaced everywhere.
    suspected: replaced in errors and logs only. Results are what a run is about, and SORT_KEY may
        well be an ordinary word.
    """

    def __init__(self, secrets: Iterable[str] = (), suspected: Iterable[str] = ()) -> None:
        secrets = list(secrets)
        self._known = _spellings(secrets)
        self._suspected = _spellings([*secrets, *suspected])
        self.names: tuple[str, ...] = ()
        """Of the environment's variables whose values are replaced everywhere."""
        self.suspected_names: tuple[str, ...] = ()
        """Of those whose values are replaced in errors and logs only."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Redactor:
        """Knows the values of variables whose name says key, token, secret or password."""
        variables = dict(os.environ if environment is None else environment)
        worth = {k: v for k, v in variables.items() if len(v) >= _SHORTEST}
        names = [k for k, v in worth.items() if _NAMES.search(k) and _looks_secret(v)]
        others = [k for k in worth if _SUSPECTED_NAMES.search(k) and k not in names]
        made = cls((worth[k] for k in names), (worth[k] for k in others))
        made.names, made.suspected_names = tuple(sorted(names)), tuple(sorted(others))
        return made

    def known(self, text: str) -> str:
        """`text` without known secrets: for results, where a mere look-alike may be the content."""
        return _without(self._known, text)

    def error(self, text: str) -> str:
        """`text` of an error, well-formed, without known secrets and their look-alikes."""
        text = _without(self._suspected, well_formed(text))
        for shape in _SHAPES:
            text = shape.sub(REDACTED, text)
        return text


def _looks_secret(value: str) -> bool:
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return len(value) >= _LONG or mixed


def _spellings(secrets: Iterable[str]) -> list[str]:
    """All that is looked for, the longest first: a secret may be part of another one."""
    return sorted({w for s in secrets if len(s) >= _SHORTEST for w in _written(s)}, key=len)[::-1]


def _without(spellings: list[str], text: str) -> str:
    # One by one: in a text of megabytes that is quicker than one expression with all of them.
    for spelling in spellings:
        text = text.replace(spelling, REDACTED)
    return text


def _written(secret: str) -> set[str]:
    """A secret as it is, and as JSON and Python's repr write it."""
    quoted = (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret))
    return {secret, *(q[1:-1] for q in quoted)}
