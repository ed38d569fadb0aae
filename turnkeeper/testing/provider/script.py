"""A script: which reply a request gets.

A script is a function `(Exchange) -> Reply`, or a sequence of steps. Step number `turn` answers a
request with `turn` assistant messages, so a request that is sent again after a crash gets the same
step again. A step is a reply, a function, or a list of alternatives for identical requests: the
first sending gets the first, the second the second, and the last one stays.

    script: Script = [
        [status(529), call("search", {"q": "revenue"})],
        lambda exchange: text(exchange.last_results[0].text),
    ]

A sequence plays a run as long as its view only grows. A run that outgrows the model's window needs
a function: it also asks for a summary, and in the shorter view after that `turn` begins anew, and
`prompt` is the opening of that view. Where such a run stands is best read from its last result.

    def script(exchange: Exchange) -> Reply:
        if exchange.wants_summary:
            return summary("Pages up to 7 are read.")
        ...
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from turnkeeper.testing.provider.replies import Json, Reply, status


class Result(NamedTuple):
    """A tool result as the model reads it; `text` joins its text blocks by newlines."""

    tool_use_id: str
    text: str
    is_error: bool


@dataclass(frozen=True)
class Exchange:
    """A request that passed the rules, as a script sees it.

    body: the parsed request. headers: lower-case names, without the credentials.
    repeat: how often a request with this very body (but for its `diagnostics`) was answered before.
    arrival: the number of this request among all that reached the provider, from 1.
    """

    body: Json
    headers: Mapping[str, str]
    repeat: int
    arrival: int

    @cached_property
    def turn(self) -> int:
        """The number of assistant messages in the request; after a summary it begins anew."""
        return sum(message["role"] == "assistant" for message in self.body["messages"])

    @property
    def stream(self) -> bool:
        """Whether the request asked for server-sent events."""
        return bool(self.body.get("stream"))

    @property
    def tools(self) -> list[str]:
        """The names of the tools in the request."""
        return [tool["name"] for tool in self.body.get("tools") or [] if "name" in tool]

    @cached_property
    def last_results(self) -> list[Result]:
        """The tool results in the last message, if a user message; else nothing."""
        last = self.body["messages"][-1]
        if last["role"] != "user":
            return []
        return [
            Result(block["tool_use_id"], _text(block.get("content")), bool(block.get("is_error")))
            for block in _blocks(last["content"])
            if block["type"] == "tool_result"
        ]

    @cached_property
    def wants_summary(self) -> bool:
        """Whether the run asks for a summary of itself, to be answered with `summary(...)`."""
        # Here, since a provider that plays something else needs no packages.
        from turnkeeper.epoch import SUMMARISE

        return self.last_text.startswith(SUMMARISE.partition("{")[0])

    @cached_property
    def prompt(self) -> str:
        """The first text of a user, or an empty string; after a summary it is that."""
        return self._user_text(self.body["messages"])

    @cached_property
    def last_text(self) -> str:
        """The text of the last user message that has any, or an empty string."""
        return self._user_text(reversed(self.body["messages"]))

    @staticmethod
    def _user_text(messages: Any) -> str:
        texts = (_text(message["content"]) for message in messages if message["role"] == "user")
        return next((text for text in texts if text), "")


StepFunction: TypeAlias = Callable[[Exchange], Reply]
Step: TypeAlias = Reply | StepFunction | Sequence[Reply | StepFunction]
Script: TypeAlias = StepFunction | Sequence[Step]


def answer(script: Script, exchange: Exchange) -> Reply:
    """The script's reply to `exchange`.

    A step that is missing, raises, or gives something else than a reply is answered with HTTP 500
    and a message that says so: the test that wrote the script has to see it.
    """
    try:
        step: Any = script
        if not callable(script):
            if exchange.turn >= len(script):
                return _broken(f"the script has no step for turn {exchange.turn}", len(script))
            step = script[exchange.turn]
        if isinstance(step, Sequence):
            step = step[min(exchange.repeat, len(step) - 1)]
        if callable(step):
            step = step(exchange)
    except Exception as error:  # noqa: BLE001 - any failure of a script is shown to its author
        return _broken(f"the script raised {type(error).__name__}: {error}")
    if not isinstance(step, Reply):
        return _broken(
            f"the script gave {type(step).__name__} for turn {exchange.turn}, not a Reply"
        )
    return step


def _broken(problem: str, steps: int | None = None) -> Reply:
    length = "" if steps is None else f" (it has {steps}, counted from 0)"
    return status(500, message=problem + length)


def _blocks(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content or []


def _text(content: Any) -> str:
    return "\n".join(block["text"] for block in _blocks(content) if block["type"] == "text")


def load_script(reference: str) -> Any:
    """The script that `MODULE:NAME` names.

    Raises:
        ValueError: there is none; one line says why.
    """
    module, _, name = reference.partition(":")
    if not name or "/" in module or module.endswith(".py"):
        raise ValueError(f"--script {reference}: write it as MODULE:NAME, e.g. my_script:script")
    try:
        script = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        where = "" if error.name == module else f", which {module} imports,"
        raise ValueError(
            f"--script {reference}: there is no module {error.name}{where} in the checkout, the "
            "current folder or PYTHONPATH"
        ) from error
    except Exception as error:
        raise ValueError(f"--script {reference}: {type(error).__name__}: {error}") from error
    if script is None:
        raise ValueError(f"--script {reference}: module {module} has no {name}")
    if not callable(script) and (isinstance(script, str) or not isinstance(script, Sequence)):
        raise ValueError(f"--script {reference}: it is no script but a {type(script).__name__}")
    return script
