"""Names of what is counted, as metrics of Temporal's runtime.

`worker.py --metrics HOST:PORT` serves them to Prometheus, beside Temporal's own.
"""

from __future__ import annotations

__all__ = ["ATTEMPTS_STOPPED", "ATTEMPTS_TIMED_OUT", "INPUT_TOKENS"]

ATTEMPTS_TIMED_OUT = "turnkeeper_attempts_timed_out"
"""{tool}: attempts of tool calls of whose end the server was told nothing. Their time was over, or
their worker died, was stopped or cut off. Each is counted once: by the next attempt or, if there is
none, by the run."""
ATTEMPTS_STOPPED = "turnkeeper_attempts_stopped"
"""{tool, loss}: attempts that their worker stopped itself. `superseded`: the server had given them
up. `silent`: the tool no longer answered."""
INPUT_TOKENS = "turnkeeper_input_tokens"
"""{agent, model, cache}: tokens that models read, as their providers counted them. `read` from the
prompt cache, `written` to it, or `uncached`. A process tells a bounded number of agents and models
apart; further ones are `other`."""
