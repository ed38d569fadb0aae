"""`starter.py demo`: one agent answers one question through the whole stack."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnkeeper.commands.dev import UI_PORT, refuse_address
from turnkeeper.commands.place import FAILED, Complaint, Place, exit_code
from turnkeeper.commands.terminal import StepPrinter, quiet_sdk, safe, say, say_json, tell

if TYPE_CHECKING:
    from turnkeeper.contract import RunResult
    from turnkeeper.testing.stack import Stack

QUESTION = "What is 7% of last year's revenue?"
AGENT = "finance"
_LOOK_SECONDS = 0.5


def demo(place: Place, options: argparse.Namespace) -> int:
    """Run the question, print the steps and where to look; `--crash` kills workers meanwhile."""
    refuse_address(place)
    if options.crash:
        return _crash(place, options)
    with _stack(place) as stage:
        return asyncio.run(_ask(place, options, stage))


@dataclass(frozen=True)
class _Stage:
    """Where the demo plays: `stack` is None for that of another terminal."""

    address: str
    ui_url: str | None
    stack: Stack | None = None


def _crash(place: Place, options: argparse.Namespace) -> int:
    from turnkeeper.testing.crash import CrashDemo

    tell("The same question; another process kills the worker twice. Starting ...")
    quiet_sdk()
    steps = StepPrinter(sys.stderr if options.json else sys.stdout)
    report = CrashDemo(
        root=place.root,
        state_dir=place.state,
        question=QUESTION,
        agent=AGENT,
        say=tell if options.json else say,
        show=steps.print,
    ).run()
    if options.json:
        say_json(report.as_json())
    else:
        say(f"\nTranscript: {place.command('show', report.id)}")
    return 0 if report.passed else FAILED


@contextlib.contextmanager
def _stack(place: Place) -> Iterator[_Stage]:
    """The stack of `dev` in another terminal, or one of our own."""
    from turnkeeper.testing.stack import DemoAgent, Stack, living_dev

    dev = living_dev(place.state)
    if dev is not None and dev.agents == DemoAgent().agents:
        tell(f"`dev` serves in another terminal (pid {dev.pid}): its server and worker are used.")
        tell(_model_line(dev.provider))
        yield _Stage(dev.address, dev.ui_url)
        return
    tell("Starting the Temporal server and a worker ...")
    with Stack.start(place.root, place.state, announce=tell) as stack:
        tell(_model_line(stack.provider_url))
        # What we need is imported while the worker does the same.
        importlib.import_module("turnkeeper.client")
        stack.ready()
        yield _Stage(stack.address, None, stack)


def _model_line(scripted: str | None) -> str:
    if scripted is None:
        return "ANTHROPIC_API_KEY is set: the model answers through the real API."
    return (
        "ANTHROPIC_API_KEY is not set: a scripted provider on loopback stands in for the model\n"
        "(examples/finance/script.py). Server, worker, HTTP and tools are real."
    )


async def _ask(place: Place, options: argparse.Namespace, stage: _Stage) -> int:
    from turnkeeper.commands.progress import progress
    from turnkeeper.testing.stack import connect

    quiet_sdk()
    client = await connect(stage.address, place.state)
    run = await client.start(AGENT, QUESTION, id=options.id)
    tell(f"\nquestion  {QUESTION}\nrun       {run.id}\n")
    steps = StepPrinter(sys.stderr if options.json else sys.stdout)
    shown = asyncio.ensure_future(steps.print(progress(client, run.id)))
    try:
        await _while_it_stands(stage.stack, shown)
    except asyncio.CancelledError:
        tell("\nInterrupted. The run goes on with the next demo, or with `make dev`.")
        raise
    result = await run.result(check=False)
    if options.json:
        say_json({"id": run.id, "existed": run.existed, **result.model_dump(mode="json")})
    else:
        _print_end(place, run.id, result, stage.ui_url)
    return exit_code(result.outcome)


async def _while_it_stands(stack: Stack | None, work: asyncio.Future[None]) -> None:
    """Await `work`, unless a part of the stack ends by itself."""
    while not work.done():
        if stack is not None and (fallen := stack.fallen()):
            raise Complaint(f"the {fallen.name} ended with status {fallen.status}{fallen.tail()}")
        await asyncio.wait([work], timeout=_LOOK_SECONDS)
    work.result()


def _print_end(place: Place, run_id: str, result: RunResult, ui_url: str | None) -> None:
    from turnkeeper.render import result_lines

    outcome, *reason = result_lines(result)
    say(f"\nanswer    {safe(result.answer or '(none)')}")
    say(f"outcome   {outcome}")
    for line in reason:
        say(f"          {line}")
    base = ui_url or f"http://127.0.0.1:{UI_PORT}"
    say("\nWhere to look")
    say(f"  transcript   {place.command('show', run_id)}")
    say(f"  Temporal UI  {base}/namespaces/default/workflows/{run_id}")
    if ui_url is None:
        say(f"               served by `make dev` ({place.command('dev')})")
