"""The pages that people read first: what they tell to type can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import starter
import worker

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


COMMAND = re.compile(r"^    \S*python \S*(starter|worker)\.py (.+?)(?: +#.*)?$", re.MULTILINE)


def typed() -> Iterator[tuple[str, str, str]]:
    """Page, program and arguments of each command in an indented block."""
    for page in PAGES:
        for program, arguments in COMMAND.findall(page.read_text()):
            yield page.name, program, arguments


COMMANDS = list(typed())


@pytest.mark.parametrize(("page", "program", "arguments"), COMMANDS)
def test_every_command_on_the_pages_can_be_typed(page: str, program: str, arguments: str) -> None:
    """It has the options that the page gives it."""
    parser = (starter if program == "starter" else worker)._parser()
    parser.parse_args(shlex.split(arguments))


def test_commands_are_found_on_the_pages() -> None:
    """Of both programs."""
    assert len(COMMANDS) > 30
    assert {program for _, program, _ in COMMANDS} == {"starter", "worker"}
