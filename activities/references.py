"""Artifacts that a conversation refers to in the runtime's own words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from turnkeeper.entries import Entry
from turnkeeper.epoch import ARTIFACTS_NAMED

_ID = r"[0-9a-f]{64}"
_ARTIFACT = re.compile(
    rf"(?:whole text is artifact|read before: read_artifact| bytes, artifact) ({_ID})\b"
)
"""In the words of `results.extract`, `epoch.reference` and `Attachments`. Any other hash is most
likely a tool's own, of which a list of files has hundreds."""
_CARRIED = re.compile(rf"{re.escape(ARTIFACTS_NAMED)}({_ID}(?:, {_ID})*)\Z")


def artifacts_named(entries: Iterable[Entry]) -> list[str]:
    """Ids that the runtime told the model of, each once, in the order of their first mention."""
    found: dict[str, None] = {}
    for entry in entries:
        if entry.kind == "result":
            found |= dict.fromkeys(_ARTIFACT.findall(entry.value["text"]))
        elif entry.kind == "message" and (named := _CARRIED.search(entry.value["text"])):
            found |= dict.fromkeys(named[1].split(", "))
    return list(found)
