"""What the worker says of agents that it cannot serve: where, what, and how to mend it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from activities.registry import Registry, find_agents
from turnkeeper import Agent
from turnkeeper.errors import DefinitionError

AGENT = (
    'from turnkeeper import Agent, Limits\nagent = Agent(name="b", model="m", instructions="")\n'
)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1", r"^module 'shop' defines no agent; write `agent = "),
        ("import nowhere_to_be_found", r"shop\.py:1: imports 'nowhere_to_be_found', which is not"),
        ("import shop.tools", r"^cannot import 'shop': .*'shop\.tools'"),
        (
            "\nx = 1 / 0",
            r"^cannot import 'shop': .*shop\.py:2: ZeroDivisionError: division by zero$",
        ),
        ("def", r"^cannot import 'shop': SyntaxError: .*\(shop\.py, line 1\)$"),
        (
            AGENT + "Limits(max_turns=3)",
            r"shop\.py:3: Limits: max_turns is not a limit; known: turn",
        ),
        (
            'from turnkeeper import tool\n@tool(effect="x")\ndef f(): ...',
            r"^cannot import 'shop': [^:]*shop\.py:2: tool 'f': effect 'x' is none of ",
        ),
        (
            AGENT + 'Agent(name="b ", model="m", instructions="")',
            r"shop\.py:3: agent name 'b ': use 1 to 64",
        ),
        (
            AGENT + 'other = Agent(name="b", model="m", instructions="")',
            r"'b', in shop; rename one$",
        ),
    ],
)
def test_a_module_that_cannot_be_served_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    """The file and line of the fault and what is missing, without a traceback."""
    tmp_path.joinpath("shop.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    with pytest.raises(DefinitionError, match=told) as raised:
        find_agents(["shop"])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "../mylib/library.py",
            r"'../mylib/library\.py' is a path; give the module's name: library$",
        ),
        ("my-shop", "'my-shop' is not a module's name"),
        ("nowhere_to_be_found", "run from the folder that holds it"),
    ],
)
def test_what_is_no_module_is_told_with_the_way_to_write_it(name: str, told: str) -> None:
    """A path, a distribution's name, a module of another folder."""
    with pytest.raises(DefinitionError, match=told):
        find_agents([name])


def test_two_agents_of_one_name_are_told_with_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them may be somebody else's: the message says where to look."""
    for module in ("one_shop", "other_shop"):
        tmp_path.joinpath(f"{module}.py").write_text(AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DefinitionError, match="'b', in one_shop and other_shop; rename one"):
        find_agents(["one_shop", "other_shop"])


def test_a_name_that_nobody_has_may_be_close_to_one() -> None:
    """For "did you mean": only what is close is offered."""
    registry = Registry([Agent(name="library", model="m", instructions="")])
    assert registry.like("libary") == "library"
    assert registry.like("finance") is None
