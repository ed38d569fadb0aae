"""Agents that play recorded conversations, and the script of their model.

One agent for each conversation, which its instructions name: so the model knows which one it plays.
The recordings are read where RECORDED says.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnkeeper import Agent, HistoryPolicy, Limits, ModelSpec, Tool, ToolContext, tool
from turnkeeper.returned import text_of
from turnkeeper.testing import Exchange, Reply, call, reply, text

CLOSING = "The recording is over."
"""Every recording ends with something that has no answer: this one is added."""
_DELAY = float(os.environ.get("RECORDED_DELAY", "1.5"))
"""Seconds that a reply takes."""


@dataclass(frozen=True)
class Conversation:
    """What users said, what was replied, and what tools answered, in order."""

    id: str
    steps: list[dict[str, Any]]

    @property
    def said(self) -> list[str]:
        """The messages of the user."""
        return [s["user"] for s in self.steps if "user" in s]

    @functools.cached_property
    def replies(self) -> list[dict[str, Any]]:
        """The replies of the model, each with its calls and their results."""
        return [s for s in self.steps if "user" not in s]

    def result(self, call_id: str) -> str:
        """What the tool of a call answered."""
        _, number, index = call_id.rsplit("_", 2)
        return str(self.replies[int(number)]["calls"][int(index)]["result"])

    def told(self) -> Iterator[list[Any]]:
        """The whole of it, as a transcript has it."""
        number = 0
        for step in self.steps:
            if "user" in step:
                yield ["message", step["user"]]
                continue
            made = step.get("calls", [])
            yield ["reply", step["assistant"], [[c["name"], c["arguments"]] for c in made]]
            # A text that is empty is told in words.
            yield from (["result", c["name"], c["result"] or text_of("")] for c in made)
            number += 1
        yield ["reply", CLOSING, []]


@functools.cache
def conversations(path: Path) -> dict[str, Conversation]:
    """By id; a line without steps is what all have in common."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {r["id"]: Conversation(r["id"], r["steps"]) for r in rows if "steps" in r}


def script(exchange: Exchange) -> Reply:
    """The recorded reply that comes after as many as the request has."""
    system = json.dumps(exchange.body["system"])
    named = system.partition("Conversation ")[2].partition(".")[0]
    one = conversations(Path(os.environ["RECORDED"]))[named]
    if exchange.turn >= len(one.replies):
        return text(CLOSING, delay=_DELAY)
    played = one.replies[exchange.turn]
    made = [
        call(c["name"], c["arguments"], id=f"{named}_{exchange.turn}_{index}")
        for index, c in enumerate(played.get("calls", []))
    ]
    said = [text(played["assistant"])] if played["assistant"] else []
    return reply([*said, *made], delay=_DELAY)


def _tool(name: str, parameters: list[str]) -> Tool:
    async def answer(ctx: ToolContext, **_: Any) -> str:
        known = conversations(Path(os.environ["RECORDED"]))
        return known[ctx.agent].result(ctx.call_id)

    # What was recorded decides which parameters there are.
    kinds = {"ctx": ToolContext} | dict.fromkeys(parameters, Any)
    answer.__name__, answer.__doc__ = name, f"Recorded: {name}."
    answer.__annotations__ = {**kinds, "return": str}
    answer.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if parameter == "ctx" else None,
                annotation=kind,
            )
            for parameter, kind in kinds.items()
        ]
    )
    return tool(effect="idempotent")(answer)


def _agents(path: Path) -> dict[str, Agent]:
    known = conversations(path)
    parameters: dict[str, dict[str, None]] = {}
    for one in known.values():
        for made in (c for s in one.replies for c in s.get("calls", [])):
            parameters.setdefault(made["name"], {}).update(dict.fromkeys(made["arguments"]))
    tools = [_tool(name, list(found)) for name, found in sorted(parameters.items())]
    return {
        name.replace("-", "_"): Agent(
            name=name,
            model=ModelSpec(name="claude-sonnet-5-5", window=1_000_000),
            instructions=f"Conversation {name}. You are a recording.",
            tools=tools,
            limits=Limits(turns=1_000, consecutive_errors=100, repetition=100),
            history=HistoryPolicy(events=150),
        )
        for name in known
    }


if "RECORDED" in os.environ:
    # Where workers look for agents: among the names of the module.
    globals().update(_agents(Path(os.environ["RECORDED"])))
