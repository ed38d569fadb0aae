"""The tools that agents have besides their own. All of them only read."""

from __future__ import annotations

from activities.notes import note, read_notes
from activities.read_artifact import read_artifact
from activities.recall import recall
from activities.search_artifact import search_artifact
from turnkeeper.spec import AgentSpec
from turnkeeper.tools import Tool

_ALL = {t.name: t for t in (read_artifact, search_artifact, recall, note, read_notes)}
"""Their names are those of `turnkeeper.spec`, where agents are kept from using them."""


def find(name: str) -> Tool | None:
    """The built-in tool of that name, for whatever run has it in its spec."""
    return _ALL.get(name)


def extended(spec: AgentSpec) -> AgentSpec:
    """The spec with the built-in tools; as it is without tools of its own and without notes."""
    names = spec.built_in()
    return spec.model_copy(update={"tools": (*spec.tools, *(_ALL[n].spec for n in names))})
