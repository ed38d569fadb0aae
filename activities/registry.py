"""The agents that this worker serves, found by module."""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

import turnkeeper
from activities import built_in
from activities.runners import can_run
from turnkeeper.agent import Agent
from turnkeeper.contract import problem_text
from turnkeeper.errors import DefinitionError
from turnkeeper.tools import Tool

_LIBRARIES = ("<frozen", "importlib", "site-packages", str(Path(turnkeeper.__file__).parent))
"""What stands in the paths of files where no author's fault is."""


class Registry:
    """Agents by name; a tool is found by agent and name."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self.agents: dict[str, Agent] = {}
        for agent in agents:
            if self.agents.setdefault(agent.name, agent) is not agent:
                raise DefinitionError(f"two agents are called {agent.name!r}; rename one")

    def like(self, name: str) -> str | None:
        """The agent whose name is closest to a name that nobody has, if one is close."""
        close = difflib.get_close_matches(name, self.agents, n=1)
        return close[0] if close else None

    def tool(self, agent: str, name: str) -> Tool | None:
        """The tool, built-in ones included; None if this worker does not have it."""
        known = self.agents.get(agent)
        if known is None:
            return None
        return known.tools.get(name) or built_in.find(name)

    def unstoppable(self) -> list[str]:
        """Tools that may go on after their run's end, as `agent.tool`: they need a thread."""
        return [
            f"{a.name}.{t.name}"
            for a in self.agents.values()
            for t in a.tools.values()
            if t.spec.mutates and not t.is_async and not can_run(t)
        ]

    def undeclared(self) -> list[str]:
        """Tools whose author stated no effect, as `agent.tool`: each gets one attempt."""
        return [
            f"{a.name}.{t.name}"
            for a in self.agents.values()
            for t in a.tools.values()
            if not t.declared
        ]


def find_agents(modules: Iterable[str]) -> list[Agent]:
    """The agents defined in modules; of a package that defines none, those of its `agent` module.

    Raises:
        DefinitionError: a module that cannot be imported or holds no agent.
    """
    found: list[Agent] = []
    homes: dict[str, str] = {}
    for name in modules:
        module = _import(name)
        agents = _agents_in(module)
        if not agents and hasattr(module, "__path__"):
            agents = _agents_in(_import(f"{name}.agent"))
        if not agents:
            raise DefinitionError(
                f"module {name!r} defines no agent; write `agent = Agent(...)` in it or in "
                f"{name}/agent.py"
            )
        for agent in agents:
            if agent in found:
                continue
            if agent.name in homes:
                where = " and ".join(dict.fromkeys((homes[agent.name], name)))
                raise DefinitionError(
                    f"two agents are called {agent.name!r}, in {where}; rename one"
                )
            homes[agent.name] = name
            found.append(agent)
    return found


def _import(name: str) -> ModuleType:
    if "/" in name or name.endswith(".py"):
        meant = Path(name).name.removesuffix(".py")
        raise DefinitionError(f"{name!r} is a path; give the module's name: {meant}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise DefinitionError(f"{name!r} is not a module's name, such as examples.finance")
    try:
        return importlib.import_module(name)
    except DefinitionError as error:
        raise _broken(name, error, str(error)) from error
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if f"{name}.".startswith(f"{missing}."):
            raise DefinitionError(
                f"cannot import {name!r}: no module {missing!r}; run from the folder that holds "
                "it, or add that folder to PYTHONPATH"
            ) from error
        ours = missing.partition(".")[0] == name.partition(".")[0]
        told = "which does not exist" if ours else "which is not installed"
        raise _broken(name, error, f"imports {missing!r}, {told}") from error
    except ValidationError as error:
        raise _broken(name, error, problem_text(error)) from error
    except Exception as error:
        raise _broken(name, error, f"{type(error).__name__}: {error}") from error


def _broken(name: str, error: BaseException, why: str) -> DefinitionError:
    """With the place of the fault: the last line of the traceback that is no library's."""
    places = [
        frame
        # The first is ours.
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        if not any(part in frame.filename for part in _LIBRARIES)
    ]
    # What is declared wrong says itself where.
    told = bool(places) and not why.startswith(f"{places[-1].filename}:")
    place = f"{places[-1].filename}:{places[-1].lineno}: " if told else ""
    return DefinitionError(f"cannot import {name!r}: {place}{why}")


def _agents_in(module: ModuleType) -> list[Agent]:
    return [v for v in vars(module).values() if isinstance(v, Agent)]
