"""docs/operate.md: its queries and commands are those of the product."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from temporalio.client import Client

import starter

PAGE = (Path(__file__).parents[1] / "docs" / "operate.md").read_text()
VIEWS = re.findall(r"^\| (\S[^|]*) \| `(.+?)` \| ", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("view", "query"), VIEWS)
async def test_the_server_understands_every_view(client: Client, view: str, query: str) -> None:
    """As it stands on the page."""
    assert (await client.count_workflows(query)).count >= 0


def test_every_command_can_be_typed() -> None:
    """With the options that it has."""
    commands = re.findall(r"starter\.py (.+?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert len(commands) == 8
    for command in commands:
        starter._parser().parse_args(shlex.split(command))
    assert len(VIEWS) == 9
