"""One attempt of a refund in a process of its own: `python -m tests.ledger_attempt URL KEY [DIE]`.

Writes the receipt. DIE is the place at which it kills itself: `before_commit` or `after_commit`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import sqlalchemy as sa

from turnkeeper import ToolContext
from turnkeeper.ledger import once_per_key


def refund(engine: sa.Engine, key: str, *, die: str = "") -> Any:
    """Insert a row into `refunds`, once per key."""
    context = ToolContext(idempotency_key=key, arguments_digest="d1", tool="refund")
    with engine.begin() as connection, once_per_key(connection, context) as effect:
        if effect.is_new:
            connection.execute(sa.text("INSERT INTO refunds VALUES (:key)"), {"key": key})
            effect.receipt = {"by": os.getpid()}
            if die == "before_commit":
                os.kill(os.getpid(), signal.SIGKILL)
    if die == "after_commit":
        os.kill(os.getpid(), signal.SIGKILL)
    return effect.receipt


if __name__ == "__main__":
    url, key, *place = sys.argv[1:]
    sys.stdout.write(json.dumps(refund(sa.create_engine(url), key, die="".join(place))))
