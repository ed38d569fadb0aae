"""`starter.py dev`: Temporal server, UI, worker and provider in the foreground."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from turnkeeper.commands.place import FAILED, USAGE, Complaint, Option, Place
from turnkeeper.commands.terminal import say, tell
from turnkeeper.suggestion import Suggestion

if TYPE_CHECKING:
    from turnkeeper.commands.sources import Sources
    from turnkeeper.testing.stack import DemoAgent, DevRecord, Stack

UI_PORT = 8233
"""Where the UI is unless the port is taken."""
_LOOK_SECONDS = 0.2
_WORKER = Suggestion(options=(("--agents", "MODULE"),), program="worker.py")


def dev(place: Place, options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; exit 1 if a part ends by itself."""
    from turnkeeper.testing.stack import GRACE_SECONDS, Stack

    refuse_address(place)
    if there := os.environ.get("TEMPORAL_ADDRESS"):
        raise Complaint(
            f"TEMPORAL_ADDRESS is set: other commands go to {there}, while `dev` starts a server "
            "of its own. Unset it here and there.",
            USAGE,
        )
    serving = _served(place, options)
    _refuse_second(place, options)
    stopping = threading.Event()
    started: list[Stack] = []

    def heard(*_: object) -> None:
        if stopping.is_set():
            # Not `tell`: the main thread may be in the middle of it.
            os.write(sys.stderr.fileno(), b"Ending at once.\n")
            if not started:
                raise KeyboardInterrupt
            started[0].hurry()
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, heard)
    with Stack.start(
        place.root, place.state, demo=serving, ui=True, console=True, announce=tell
    ) as stack:
        started.append(stack)
        sources = _sources(place, serving, os.environ) if options.reload else None
        agents = stack.ready()
        _print_links(place, stack.publish(serving.agents), agents)
        while not stopping.wait(_LOOK_SECONDS):
            if fallen := stack.fallen():
                tell(f"The {fallen.name} ended with status {fallen.status}.{fallen.tail()}")
                return FAILED
            if sources:
                _reload(stack, sources)
        tell(
            f"Stopping: calls in flight have {GRACE_SECONDS} s to end. Ctrl-C again ends at once."
            if stack.worker
            else "Stopping."
        )
    return 0


def _sources(place: Place, serving: DemoAgent, environment: Mapping[str, str]) -> Sources | None:
    """The files that the worker is made anew for; as it imports them, before they can change."""
    from turnkeeper.commands.sources import Sources

    given = [Path(p) for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    modules = [m.strip() for m in serving.agents.split(",") if m.strip()]
    sources = Sources(modules, [place.root, Path.cwd(), *given])
    return sources if sources.folders else None


def _reload(stack: Stack, sources: Sources) -> None:
    if (path := sources.changed()) is not None:
        tell(f"{path} has changed: another worker takes over.")
        stack.renew_worker()
    done = stack.renewed()
    if done:
        tell("The new worker takes work; the one before it ends with its calls.")
    elif done is False:
        tell("The new worker does not start: its log says why. The one before it goes on.")


def refuse_address(place: Place) -> None:
    """For commands that start a server of their own."""
    if place.address or place.namespace:
        raise Complaint(
            "--address and --namespace do not go with this command, which starts a server of its "
            f"own; {place.write(_WORKER)} serves agents on another",
            USAGE,
        )


def _refuse_second(place: Place, options: argparse.Namespace) -> None:
    """One stack for each state folder: another one has a folder of its own."""
    from turnkeeper.testing.stack import living_dev

    if (there := living_dev(place.state)) is None:
        return
    own = Path.cwd() / ".turnkeeper"
    if own == place.state:
        own = own.with_name(f"{own.name}-2")
    named = {"--agents": options.agents, "--script": options.script}
    given: list[Option] = [(name, value) for name, value in named.items() if value]
    given += ["--no-worker"] if options.no_worker else []
    given += [] if options.reload else ["--no-reload"]
    beside = dataclasses.replace(place, state=own).command("dev", options=given)
    raise Complaint(
        f"`dev` serves {place.state} already (pid {there.pid}). Stop it there with Ctrl-C, or "
        f"serve beside it, with a state of its own: {beside}"
    )


def _served(place: Place, options: argparse.Namespace) -> DemoAgent:
    """What the worker serves and what stands in for its model; checked before anything starts."""
    from turnkeeper.testing.stack import FINANCE, DemoAgent, uses_real_provider

    if options.no_worker:
        if options.agents or options.script:
            raise Complaint("--no-worker goes with neither --agents nor --script", USAGE)
        return DemoAgent(agents="")
    agents = options.agents or FINANCE
    if uses_real_provider(os.environ):
        return DemoAgent(agents=agents)
    if options.script is None:
        if agents != FINANCE:
            playing = [("--agents", agents), ("--script", "MODULE:NAME")]
            raise Complaint(
                "ANTHROPIC_API_KEY is not set: agents could not reach their model. Set it, or play "
                f"a script: {place.command('dev', options=playing)}",
                USAGE,
            )
        return DemoAgent(reload=options.reload)
    from turnkeeper.testing.provider.script import load_script

    sys.path.append(str(Path.cwd()))
    try:
        load_script(options.script)
    except ValueError as error:
        raise Complaint(str(error), USAGE) from error
    return DemoAgent(agents=agents, script=options.script, reload=options.reload)


def _print_links(place: Place, record: DevRecord, agents: list[str]) -> None:
    say(f"Temporal server  {record.address}")
    say(f"Temporal UI      {record.ui_url}/namespaces/default/workflows")
    if agents:
        model = "the real API" if record.provider is None else f"{record.provider} (scripted)"
        say(f"model            {model}")
        say(f"agents           {', '.join(agents)}")
    say("In another terminal, for example:")
    if agents:
        asked = "What is 7% of last year's revenue?" if agents[0] == "finance" else "..."
        say(f"  {place.command('run', asked, options=[('--agent', agents[0])])}")
    else:
        say(f"  {place.write(_WORKER)}")
    if not record.address.endswith(":7233"):
        say("Programs of your own look at another port, unless you tell them:")
        say(f"  export TEMPORAL_ADDRESS={record.address}")
    say("Ctrl-C ends it all.")
