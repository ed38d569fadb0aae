"""`starter.py new`: an agent, a tool and a test of it, to begin with."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import sys
import unicodedata
from pathlib import Path
from string import Template

from turnkeeper.commands.place import USAGE, Complaint, Place
from turnkeeper.commands.terminal import say

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_QUESTION = "How many teapots are there?"

_AGENT = '''"""The agent `$name`: what it is told, what it may do, and how far it may go."""

from turnkeeper import Agent, Limits, ToolFailed, tool

# In place of the service that a tool would ask.
STOCK = {"kettle": 0, "teapot": 4}


@tool(effect="read", timeout=10)
async def in_stock(item: str) -> int:
    """How many of an item are in stock.

    Args:
        item: its name, in the singular.
    """
    if item not in STOCK:
        raise ToolFailed(f"There is no {item!r}. Items: {', '.join(STOCK)}.")
    return STOCK[item]


agent = Agent(
    name="$name",
    model="claude-sonnet-5-5",
    instructions="You answer questions about what is in stock. Look everything up.",
    tools=[in_stock],
    limits=Limits(turns=10),
)
'''
_SCRIPT = '''"""What plays the model where there is no ANTHROPIC_API_KEY: a reply for each turn."""

from turnkeeper.testing import call, text

script = [
    call("in_stock", {"item": "teapot"}),
    lambda seen: text(f"In stock: {seen.last_results[0].text}."),
]
'''
_TEST = '''"""The agent `$name`, without a server."""

from turnkeeper.testing import call, rehearse, text

from $name import agent
from ${name}_script import script


def test_the_stock_is_looked_up() -> None:
    """The answer is made of what the tool returned."""
    played = rehearse(agent, script, "$question")
    assert (played.outcome, played.answer) == ("completed", "In stock: 4.")
    assert [c.tool for c in played.calls] == ["in_stock"]


def test_the_model_is_told_which_items_there_are() -> None:
    """A wrong name is an error that it can mend."""
    played = rehearse(agent, [call("in_stock", {"item": "boat"}), text("There are no boats.")])
    assert played.calls[0].outcome == "error"
    assert "Items: kettle, teapot." in played.calls[0].result
'''
_FILES = {"$name.py": _AGENT, "${name}_script.py": _SCRIPT, "test_$name.py": _TEST}


def new(place: Place, options: argparse.Namespace) -> int:
    """Write the files and print what to type next."""
    name, folder = options.name, options.folder or Path(options.name)
    _check_name(name)
    filled = {"name": name, "question": _QUESTION}
    files = {
        folder / Template(path).substitute(filled): Template(text).substitute(filled)
        for path, text in _FILES.items()
    }
    if there := [str(path) for path in files if path.exists()]:
        raise Complaint(
            f"there already: {', '.join(there)}. Nothing was written; choose another name, or "
            "another folder with --folder",
            USAGE,
        )
    if _is_taken(name):
        raise Complaint(
            f"there is a Python module {name!r} already; write {_fit(name)}",
            USAGE,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        say(f"wrote {path}")
    _print_next(place, name, folder)
    return 0


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise Complaint(
            f"{name!r} cannot be the name of a module; write {_fit(name)} (small letters, digits "
            "and _, at most 40, a letter first)",
            USAGE,
        )


def _fit(name: str) -> str:
    """The nearest name that would do."""
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^a-z0-9]+", "_", ascii_only.lower()).strip("_")[:34].strip("_")
    if not plain:
        return "my_agent"
    if not plain[0].isalpha():
        plain = f"agent_{plain}"
    return f"{plain}_agent" if keyword.iskeyword(plain) or _is_taken(plain) else plain


def _is_taken(name: str) -> bool:
    """Whether `import name` finds something without the new file; a mere folder does not count."""
    if name in sys.stdlib_module_names:
        return True
    found = importlib.util.find_spec(name)
    return found is not None and found.loader is not None


def _print_next(place: Place, name: str, folder: Path) -> None:
    script = ("--script", f"{name}_script:script")
    say("Test it, then serve it (with ANTHROPIC_API_KEY set, the real model answers):")
    if folder.resolve() != Path.cwd().resolve():
        say(f"  cd {shlex.quote(str(folder))}")
    say(f"  {place.python} -m pytest test_{name}.py")
    say(f"  {place.command('dev', options=[('--agents', name), script])}")
    say("Ask it from another terminal:")
    say(f"  {place.command('run', _QUESTION, options=[('--agent', name)])}")
