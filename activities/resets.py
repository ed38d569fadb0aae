"""What a run did before it was reset, for calls that nothing else keeps from being made twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.redact import Redactor
from turnkeeper.contract import NOTHING_HAPPENED, ExecuteInput, ExecuteOutput
from turnkeeper.entries import result
from turnkeeper.retry import past_call
from turnkeeper.text import arguments_line, one_line


@dataclass(frozen=True)
class Made:
    """A call that is not made again, and whose result is not known. sure: this one changed nothing,
    and neither did it before under these arguments."""

    why: str
    sure: bool = False


class Resets:
    """Reads histories that a reset has replaced."""

    def __init__(self, client: Client, redactor: Redactor) -> None:
        self._client = client
        self._redactor = redactor

    async def call(self, asked: ExecuteInput) -> ExecuteOutput | Made | None:
        """What became of the call of this key before the run was reset; None if it was not made.

        Raises:
            ApplicationError: it cannot be told now; to be tried again, nothing was done.
        """
        info = activity.info()
        workflow_id, run_id = str(info.workflow_id), str(info.workflow_run_id)
        try:
            past = await past_call(self._client, workflow_id, run_id, asked.key)
        except LookupError:
            return Made("the run was reset, and whether it was begun before is not kept any more")
        except RPCError as error:
            why = one_line(self._redactor.error(str(error)), 300)
            raise ApplicationError(
                f"What was done before the run was reset cannot be read: {why}",
                type=NOTHING_HAPPENED,
                next_retry_delay=timedelta(seconds=min(2.0 ** (info.attempt - 1), 30)),
            ) from None
        if past is None:
            return None
        if past.output is None:
            return Made("it was begun before the run was reset, and is not begun again")
        if past.input.arguments_digest != asked.arguments_digest:
            line = arguments_line(past.input.arguments, 300)
            return Made(
                "Not run: before this run was reset, this call was made with other arguments "
                f"({line}), and is not made again.",
                sure=True,
            )
        value = past.output.entry.value
        entry = result(
            asked.call_id,
            asked.tool,
            value["text"],
            error=bool(value.get("error")),
            images=value.get("images", ()),
        )
        return past.output.model_copy(update={"entry": entry})
