"""`starter.py run`: start an agent run and wait for it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from turnkeeper.commands.place import USAGE, Complaint, Place, exit_code
from turnkeeper.commands.terminal import (
    StepPrinter,
    safe,
    say,
    say_json,
    tell,
    tell_commands,
    tell_deciding,
    tell_settling,
)
from turnkeeper.suggestion import Suggestion, ending_waits

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient, AgentRunHandle
    from turnkeeper.contract import RunResult
    from turnkeeper.follow import Step


_EXAMPLES = {
    "--limit": "turns=8",
    "--metadata": "tenant=acme",
    "raise-limits ID": "turns=100",
}


async def run(place: Place, options: argparse.Namespace) -> int:
    """Start, show the steps on stderr, print the answer on stdout."""
    limits, metadata = limits_of(options.limit), pairs_of("--metadata", options.metadata)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    async with place.client() as client:
        handle = await client.start(
            options.agent,
            prompt,
            id=options.id,
            limits=limits,
            request_key=options.request_key,
            metadata=metadata,
        )
        if handle.existed:
            tell(f"run {handle.id} exists already: nothing new was started")
        if options.no_wait:
            if options.json:
                say_json({"id": handle.id, "run_id": handle.run_id, "existed": handle.existed})
            else:
                say(handle.id)
                tell(f"To see it: {place.again('watch', handle.id)}")
            return 0
        # Whatever answers at the default address may be the server of something else.
        address = client.client.service_client.config.target_host
        tell(f"run {handle.id} at {address} (namespace {client.client.namespace})")
        result = await wait(place, client, handle.id)
        return print_result(place, handle, result, as_json=options.json)


async def wait(place: Place, client: AgentClient, run_id: str) -> RunResult:
    """Show a run's steps on stderr until it ends; its result, whatever the outcome."""
    from turnkeeper.commands.progress import progress

    try:
        steps = _with_advice(place, client, run_id, progress(client, run_id))
        await StepPrinter(sys.stderr).print(steps)
    except asyncio.CancelledError:
        tell(f"\nThe run goes on without you. To see it: {place.again('watch', run_id)}")
        tell(f"To stop it: {place.again('stop', run_id)}")
        raise
    except ConnectionError as error:
        again = place.again("watch", run_id)
        raise ConnectionError(
            f"{error}\nThe run goes on when the server is back. To see it: {again}"
        ) from error
    return await client.result(run_id, check=False)


async def _with_advice(
    place: Place, client: AgentClient, run_id: str, steps: AsyncIterator[Step]
) -> AsyncIterator[Step]:
    """The steps; and, where one waits for a person, the commands that settle it."""
    told: set[Suggestion] = set()
    async for step in steps:
        yield step
        # Told of what waits now: steps of the past are followed as well.
        if step.phase != "WAITING":
            continue
        waiting, others = await _waiting(client, run_id)
        if step.call_id in waiting:
            tell_settling(place, run_id, step.call_id)
        if step.approval in waiting:
            tell_deciding(place, run_id, step.approval)
        tell_commands(place, [o for o in others if o not in told])
        told.update(others)


async def _waiting(client: AgentClient, run_id: str) -> tuple[list[str], list[Suggestion]]:
    """Ids of the calls, and of the approvals, for which a person is waited for; and what ends the
    other waits."""
    from temporalio.service import RPCError

    from turnkeeper.outside import approvals_of, awaited_of, paused_of, unknown_of

    try:
        described = await client.client.get_workflow_handle(run_id).describe()
    except RPCError:
        # Who follows the steps waits for the server, and says so.
        return [], []
    unsure = [c.call_id for c in await unknown_of(described) if c.status == "waiting"]
    ids = unsure + [a.id for a in await approvals_of(described)]
    paused = await paused_of(described) is not None
    return ids, ending_waits(run_id, await awaited_of(described), paused=paused)


def print_result(place: Place, handle: AgentRunHandle, result: RunResult, *, as_json: bool) -> int:
    """Print how a run ended; the exit code for it."""
    from turnkeeper.render import result_lines, unknown_line

    if as_json:
        told = {"id": handle.id, "existed": handle.existed, **result.model_dump(mode="json")}
        say_json(told)
        return exit_code(result.outcome)
    if result.output is not None:
        # To be piped: the model's own text may stand in a code fence.
        say(safe(json.dumps(result.output, ensure_ascii=False)))
    elif result.answer:
        say(safe(result.answer))
    for line in result_lines(result):
        tell(line)
    if unsure := [c for c in result.unknown if c.status == "open"]:
        for call in unsure:
            tell(unknown_line(call))
        tell(f"To see more: {place.again('show', handle.id)}")
    return exit_code(result.outcome)


def limits_of(given: Sequence[str], option: str = "--limit") -> dict[str, Any]:
    """`--limit turns=8`: values are JSON where they can be, else text."""
    return {name: _value(text) for name, text in pairs_of(option, given).items()}


def pairs_of(option: str, given: Sequence[str]) -> dict[str, str]:
    """Repeated `name=value` options as a dict."""
    found: dict[str, str] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            shown = _EXAMPLES[option]
            raise Complaint(
                f"{option} {pair}: write it as name=value, e.g. {option} {shown}", USAGE
            )
        if name in found:
            raise Complaint(f"{option} {name} is given twice", USAGE)
        found[name] = value
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
