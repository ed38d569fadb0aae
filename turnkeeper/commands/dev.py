"""`starter.py dev`: Temporal server, UI, worker and provider in the foreground."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import TYPE_CHECKING

from turnkeeper.commands.place import FAILED, Place
from turnkeeper.commands.terminal import say, tell

if TYPE_CHECKING:
    from turnkeeper.testing.stack import DevRecord

UI_PORT = 8233
"""Where the UI is unless the port is taken."""
_LOOK_SECONDS = 0.2


def dev(place: Place, options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; exit 1 if a part ends by itself."""
    from turnkeeper.testing.stack import DemoAgent, Stack

    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    demo = DemoAgent(agents=options.agents, script=options.script)
    with Stack.start(
        place.root, place.state, demo=demo, ui=True, console=True, announce=tell
    ) as stack:
        stack.ready()
        _print_links(place, stack.publish(options.agents))
        while not stopping.wait(_LOOK_SECONDS):
            if fallen := stack.fallen():
                tell(f"The {fallen.name} ended with status {fallen.status}.{fallen.tail()}")
                return FAILED
        tell("Stopping.")
    return 0


def _print_links(place: Place, record: DevRecord) -> None:
    say(f"Temporal server  {record.address}")
    say(f"Temporal UI      {record.ui_url}/namespaces/default/workflows")
    model = "the real API" if record.provider is None else f"{record.provider} (scripted)"
    say(f"model            {model}")
    say(f"agents           {record.agents}")
    say("In another terminal, for example:")
    question = '"What is 7% of last year\'s revenue?"'
    say(f"  {place.command(f'run --agent finance {question}')}")
    say("Ctrl-C ends it all.")
