"""`starter.py chat`, `send` and `answer` as people use them: real processes, server and worker."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from pathlib import Path

from tests.commands.test_approvals import paste
from tests.commands.test_unknown import Shell
from tests.rig import Rig, RigFactory, until
from tests.talking import echo, read
from tests.test_conversations_open import idle
from tests.test_starter import read_until
from tests.test_waiting_tools import ASKS, asks
from turnkeeper import ask_person
from turnkeeper.client import AgentRunHandle
from turnkeeper.testing import Exchange, Reply
from turnkeeper.testing.embedded import EmbeddedServer


def asks_once(x: Exchange) -> Reply:
    """A question for the first message, then echoes."""
    return ASKS[0] if x.turn == 0 else echo(x)  # type: ignore[return-value]


async def chat(r: Rig, server: EmbeddedServer, folder: Path, run: str, lines: str) -> list[str]:
    """What a chat prints on stdout."""
    r.ids.append(run)
    arguments = ("chat", "tester", "--id", run, "--task-queue", r.task_queue)
    done = await Shell(server, folder).starter(*arguments, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert f"chat tester --id {run} --task-queue {r.task_queue}\n" in done.stderr
    return done.stdout.splitlines()


async def test_a_line_is_a_message(rig: RigFactory, server: EmbeddedServer, tmp_path: Path) -> None:
    """Each line is answered; a later chat with the same id goes on with the conversation."""
    run = f"chat-{uuid.uuid4()}"
    async with rig(echo) as r:
        assert await chat(r, server, tmp_path, run, "hello\n\nand you?\n") == [
            "re: hello",
            "re: and you?",
        ]
        assert await chat(r, server, tmp_path, run, "once more\n") == ["re: once more"]
        assert len(await read(r, AgentRunHandle(r.agents, run))) == 3
        await r.agents.stop(run)
        await r.agents.result(run, check=False)
        ended = await Shell(server, tmp_path).starter("chat", "tester", "--id", run, stdin="x\n")
        assert ended.returncode == 1
        assert "has ended: choose another --id" in ended.stderr


async def test_a_question_is_answered_by_the_next_line(
    rig: RigFactory, server: EmbeddedServer, tmp_path: Path
) -> None:
    """What the model asks with `ask_person` is shown, and the next line is the answer."""
    run = f"chat-{uuid.uuid4()}"
    async with rig(asks_once, tools=[ask_person]) as r:
        said = await chat(r, server, tmp_path, run, "help me\nthe blue one\n")
        assert said == ["re: help me"]
        results = [e.value for e in (await r.transcript(run)).entries if e.kind == "result"]
        assert [v["text"] for v in results] == ["the blue one"]
        await r.agents.stop(run)


async def test_a_question_waits_for_an_answer_or_the_end(
    rig: RigFactory, server: EmbeddedServer, tmp_path: Path
) -> None:
    """A blank line is none, nor is one that is too long, for which nobody else is blamed; the end
    of the input leaves the run with its question."""
    run, left = f"chat-{uuid.uuid4()}", f"chat-{uuid.uuid4()}"
    async with rig(asks_once, tools=[ask_person]) as r:
        r.ids.append(run)
        lines = f"help me\n\n{'x' * 20_001}\nthe blue one\n"
        arguments = ("chat", "tester", "--id", run, "--task-queue", r.task_queue)
        done = await Shell(server, tmp_path).starter(*arguments, stdin=lines)
        assert (done.returncode, done.stdout) == (0, "re: help me\n")
        assert "a blank line is no answer" in done.stderr
        assert "20000 characters" in done.stderr
        assert "somebody else" not in done.stderr
        assert await chat(r, server, tmp_path, left, "help me\n") == []
        assert [a.question for a in (await r.agents.status(left)).awaited] == ["Which one?"]
        await r.agents.stop(run)
        await r.agents.stop(left)


async def test_send_and_answer(rig: RigFactory, server: EmbeddedServer, tmp_path: Path) -> None:
    """From another terminal: the question of a run is listed with how to answer, answered, and a
    message sent, once."""
    shell = Shell(server, tmp_path)
    async with rig(asks_once, tools=[ask_person]) as r:
        run = await r.start(keep_open=True)
        await asks(run)

        async def listed() -> str:
            found = await shell.starter("list", f"WorkflowId = '{run.id}'")
            return found.stdout if "waiting for" in found.stdout else ""

        assert 'an answer to "Which one?" (call c1)' in await until(listed)
        found = await shell.starter("list", f"WorkflowId = '{run.id}'")
        why = await paste(found.stderr.partition("To see what the first that waits needs: ")[2])
        assert 'why       it waits for an answer to "Which one?" (call c1)\n' in why.stdout
        shown = await shell.starter("show", run.id)
        (told,) = re.findall(r"^To answer c1: (.+)$", why.stderr, re.MULTILINE)
        assert f"To answer c1: {told}\n" in shown.stderr
        following = shell.popen("show", run.id, "--follow")
        try:
            assert told in await asyncio.to_thread(read_until, following, "To answer c1: ")
        finally:
            following.kill()
            await asyncio.to_thread(following.communicate)
        wrong = await shell.starter("answer", run.id, "c9", "x")
        assert (wrong.returncode, "waiting: c1" in wrong.stderr) == (2, True)
        done = await paste(told.replace("...", "the blue one"))
        assert (done.returncode, done.stdout) == (0, f"run {run.id} goes on\n")
        await idle(run)
        idling = await shell.starter("why", run.id)
        assert f"send {run.id} '...'" in idling.stderr
        arguments = ("send", run.id, "and now?", "--message-id", "m1")
        done = await shell.starter(*arguments, "--wait")
        assert (done.returncode, done.stdout) == (0, "re: and now?\n")
        again = await shell.starter(*arguments, "--json")
        assert json.loads(again.stdout)["send"] == "duplicate"
        await run.stop()
        await run.result(check=False)
        over = await shell.starter("send", run.id, "hello?")
        assert (over.returncode, "has ended" in over.stderr, over.stdout) == (1, True, "")
