"""The agents that this worker serves, found by module."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from activities.read_artifact import read_artifact
from turnkeeper.agent import Agent
from turnkeeper.errors import DefinitionError
from turnkeeper.tools import Tool

_BUILT_IN = {read_artifact.name: read_artifact}


class Registry:
    """Agents by name; a tool is found by agent and name."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self.agents: dict[str, Agent] = {}
        for agent in agents:
            if self.agents.setdefault(agent.name, agent) is not agent:
                raise DefinitionError(f"two agents are called {agent.name!r}; rename one")

    def tool(self, agent: str, name: str) -> Tool | None:
        """The tool, built-in ones included; None if this worker does not have it."""
        known = self.agents.get(agent)
        if known is None:
            return None
        return known.tools.get(name) or _BUILT_IN.get(name)

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
        found += [a for a in agents if a not in found]
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except DefinitionError:
        raise
    except ModuleNotFoundError as error:
        raise DefinitionError(
            f"cannot import {name!r}: no module {error.name!r}; run from the folder that holds it, "
            "or add that folder to PYTHONPATH"
        ) from error
    except Exception as error:
        raise DefinitionError(f"cannot import {name!r}: {type(error).__name__}: {error}") from error


def _agents_in(module: ModuleType) -> list[Agent]:
    return [v for v in vars(module).values() if isinstance(v, Agent)]
