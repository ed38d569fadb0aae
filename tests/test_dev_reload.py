"""`starter.py dev` follows the code: a real server, provider and workers, one after the other."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rig import until
from tests.test_starter import ROOT, environment, processes_of
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.testing.stack import living_dev

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

AGENT = '''
import asyncio
from pathlib import Path

from gates_words import WORD
from turnkeeper import Agent, tool

HERE = Path(__file__).parent


@tool(effect="read", timeout=60)
async def pass_gate() -> str:
    """Wait until the gate is open."""
    (HERE / "waits").touch()
    while not (HERE / "open").exists():
        await asyncio.sleep(0.05)
    return WORD


agent = Agent(name="gates", model="claude-sonnet-5-5", instructions="Pass.", tools=[pass_gate])
'''
SCRIPT = """
from turnkeeper.testing import call, text

script = [call("pass_gate"), lambda seen: text(f"SAID {seen.last_results[0].text}")]
"""


@dataclass
class Dev:
    """What runs in the other terminal, and the folder with the code."""

    process: subprocess.Popen[str]
    folder: Path
    state: Path

    def read_until(self, words: str) -> str:
        """All that it prints up to a line with these words."""
        assert self.process.stdout is not None
        read = ""
        for line in self.process.stdout:
            read += line
            if words in line:
                return read
        raise AssertionError(f"dev ended with status {self.process.wait()}:\n{read}")

    async def start(self, run: str) -> AgentRunHandle:
        """Start a run."""
        record = living_dev(self.state)
        assert record is not None
        client = await AgentClient.connect(record.address)
        return await client.start("gates", "Pass.", id=run)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """It serves the agent `gates`, whose tool waits for a gate and returns a word."""
    folder, state = tmp_path / "gates", tmp_path / "state"
    folder.mkdir()
    (folder / "gates.py").write_text(AGENT)
    (folder / "gates_script.py").write_text(SCRIPT)
    (folder / "gates_words.py").write_text("WORD = 'one'\n")
    command = [sys.executable, str(ROOT / "starter.py"), "--state", str(state), "dev"]
    process = subprocess.Popen(
        [*command, "--agents", "gates", "--script", "gates_script:script"],
        cwd=folder,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    serving = Dev(process, folder, state)
    try:
        serving.read_until("Ctrl-C ends it all.")
        yield serving
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not processes_of(state)


@pytest.mark.long
async def test_the_worker_follows_the_code(dev: Dev) -> None:
    """A run goes on over a broken save and a mended one; the next has the new code and script."""
    words = dev.folder / "gates_words.py"
    first = await dev.start("first")
    await until((dev.folder / "waits").exists)

    words.write_text("WORD = 'broken'\n1/0\n")
    printed = dev.read_until("does not start")
    assert "gates_words.py has changed: another worker takes over." in printed
    assert "ZeroDivisionError" in printed

    words.write_text("WORD = 'another'\n")
    dev.read_until("The new worker takes work")
    (dev.folder / "gates_script.py").write_text(SCRIPT.replace("SAID", "AND SAID"))
    (dev.folder / "open").touch()
    # Its call ends in the worker that began it, or is handed over if that takes too long.
    assert (await first.result()).answer in ("AND SAID one", "AND SAID another")
    second = await dev.start("second")
    assert (await second.result()).answer == "AND SAID another"
