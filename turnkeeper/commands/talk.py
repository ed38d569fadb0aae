"""`starter.py chat`, `send` and `answer`: people talk with a run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from turnkeeper.commands.place import FAILED, Complaint, Place
from turnkeeper.commands.runs import person
from turnkeeper.commands.terminal import safe, say, say_json, tell
from turnkeeper.errors import InvalidRequest, RunError
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient
    from turnkeeper.contract import Awaited

_LOOK_SECONDS = 1.0
"""Between two looks whether the run asks something, while its answer is awaited."""


async def send(place: Place, options: argparse.Namespace) -> int:
    """Send a message to an open run; with `--wait`, print the answer."""
    named = options.message_id or _new_id()
    # Also where no server runs: it is kept there until the next worker.
    async with place.client(to_read=not options.wait) as client:
        sent = await client.send(
            options.run,
            options.text,
            message_id=named,
            interrupt=options.interrupt,
            actor=options.actor or person(),
        )
        answer = None
        if options.wait and sent != "ended":
            with _shown(place, options.run):
                answer = await client.reply(options.run, named)
    if options.json:
        say_json({"id": options.run, "message_id": named, "send": sent, "answer": answer})
    elif sent == "ended":
        raise _over(place, options.run)
    elif answer is not None:
        say(safe(answer))
    else:
        say(_told(options.run, sent))
    return FAILED if sent == "ended" else 0


async def answer(place: Place, options: argparse.Namespace) -> int:
    """Answer a question that a run has asked."""
    async with place.client(to_read=True) as client:
        answered = await client.answer(
            options.run, options.call, options.text, actor=options.actor or person()
        )
    if options.json:
        say_json({"id": options.run, "call_id": options.call, "answer": answered})
    elif answered == "answered":
        say(f"run {one_line(options.run, 200)} goes on")
    elif answered == "ended":
        raise _over(place, options.run)
    else:
        say(_told(options.run, answered))
    return FAILED if answered == "ended" else 0


def _told(run: str, sent: str) -> str:
    shown = one_line(run, 200)
    return {
        "accepted": f"run {shown} will read it",
        "duplicate": f"run {shown} has it already: it is not read twice",
        "queued": f"no worker answers: run {shown} is told as soon as one does",
    }[sent]


def _over(place: Place, run: str) -> Complaint:
    return Complaint(f"run {one_line(run, 200)} has ended: {place.again('show', run)}")


async def chat(place: Place, options: argparse.Namespace) -> int:
    """Send each line to a conversation, which is begun with the first; print the answers."""
    run = options.id or f"{options.agent}-{secrets.token_hex(4)}"
    actor = options.actor or person()
    async with place.client() as client:
        tell(f"run {run}: a line is a message; end with Ctrl-D, the run stays open")
        with contextlib.suppress(_LeftError):
            while True:
                if line := await _read():
                    with _shown(place, run):
                        await _exchange(client, options.agent, run, line, actor)
        again = [("--id", run), *place.on_queue]
        tell(f"\nTo go on: {place.again('chat', options.agent, options=again)}")
        tell(f"To end it: {place.again('stop', run)}")
    return 0


@contextlib.contextmanager
def _shown(place: Place, run: str) -> Iterator[None]:
    """Say how to look at a run that ends without an answer."""
    try:
        yield
    except RunError as error:
        raise Complaint(f"{error}\nTo see it: {place.again('show', run)}") from error


class _LeftError(Exception):
    """The person has pressed Ctrl-D, or the input has ended."""


async def _read() -> str:
    """The next line without the spaces around it, which may leave nothing.

    Raises:
        _LeftError: there is none.
    """
    if line := await _line():
        return line.strip()
    raise _LeftError


async def _line() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    loop = asyncio.get_running_loop()
    read: asyncio.Future[str] = loop.create_future()

    def settle(line: str) -> None:
        if not read.done():
            read.set_result(line)

    def wait() -> None:
        line = sys.stdin.readline()
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, line)

    # A daemon: a line that nobody writes any more does not hold up the end of the program.
    threading.Thread(target=wait, daemon=True).start()
    return await read


async def _exchange(client: AgentClient, agent: str, run: str, line: str, actor: str) -> None:
    """One line, and what comes back: the answer, or a question of the model."""
    named = _new_id()
    handle, sent = await client.send_or_start(agent, line, id=run, message_id=named, actor=actor)
    if sent == "ended":
        raise Complaint(f"run {run} has ended: choose another --id")
    if sent == "queued":
        tell("no worker answers; the message is kept for the next one")
    waiting = asyncio.ensure_future(handle.reply(named))
    asked: set[str] = set()
    try:
        while not (await asyncio.wait([waiting], timeout=_LOOK_SECONDS))[0]:
            await _answer_questions(client, run, asked, actor)
        say(safe(waiting.result()))
    finally:
        waiting.cancel()


async def _answer_questions(client: AgentClient, run: str, asked: set[str], actor: str) -> None:
    """Show what the model asks, and take the next line for the answer."""
    for one in await _questions(client, run):
        if one.call_id not in asked:
            await _answer(client, run, one, actor)
            # Only now: it may be listed for a moment longer.
            asked.add(one.call_id)


async def _questions(client: AgentClient, run: str) -> list[Awaited]:
    return [one for one in (await client.status(run)).awaited if one.kind == "answer"]


async def _answer(client: AgentClient, run: str, one: Awaited, actor: str) -> None:
    """Ask until a line is taken for the answer, or nobody waits for one any more."""
    tell(f"asked: {one_line(one.question, 500)}")
    while True:
        if not (line := await _read()):
            tell("a blank line is no answer")
            continue
        try:
            await client.answer(run, one.call_id, line, actor=actor)
        except InvalidRequest as error:
            if all(o.call_id != one.call_id for o in await _questions(client, run)):
                tell("somebody else has answered already")
                return
            tell(f"not accepted: {one_line(str(error), 300)}")
        else:
            return


def _new_id() -> str:
    return secrets.token_hex(8)
