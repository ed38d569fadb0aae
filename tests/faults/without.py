"""Each mechanism that keeps a promise, switched off: the crash suite has to notice.

Laid over a worker by `WITHOUT=NAME` in its environment; nothing of this is in the product.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from turnkeeper import NotLanded, Tool, ToolContext


def switch_off(name: str, reconcilable: Tool) -> None:
    """Do without a mechanism of `plan.MECHANISMS`; with an empty name, without none."""
    if name:
        _OFF[name](reconcilable)


def _key(_: Tool) -> None:
    """Every further attempt gets a key of its own."""
    from temporalio import activity

    from activities.execute import Execute

    execute: Any = Execute
    plain = execute._context

    def fresh(self: Any, *args: Any) -> Any:
        context = plain(self, *args)
        if activity.info().attempt > 1:
            context.idempotency_key = uuid.uuid4().hex
        return context

    execute._context = fresh


def _probe(reconcilable: Tool) -> None:
    """The probe says of everything that it did not happen."""

    def never(_ctx: ToolContext, _args: Mapping[str, Any]) -> NotLanded:
        return NotLanded()

    reconcilable.probe = never


def _one_attempt(_: Tool) -> None:
    """A `once` call whose worker was lost is begun again, as an idempotent one is.

    The server would not hand it out, and the activity would not begin it: both are switched off.
    """
    from temporalio.common import RetryPolicy

    from activities.execute import Execute
    from turnkeeper.spec import ToolSpec

    policy: Any = RetryPolicy
    spec: Any = ToolSpec
    execute: Any = Execute
    plain, refuse = policy.__init__, execute._refuse_spent

    def retrying(self: Any, **options: Any) -> None:
        final = options.pop("non_retryable_error_types", None) or []
        kept = [t for t in final if not t.startswith("TemporalTimeout:")]
        plain(self, non_retryable_error_types=kept, **options)

    def refusing(self: Any, asked: Any, attempts: Any) -> None:
        refuse(self, asked.model_copy(update={"effect": "idempotent"}), attempts)

    policy.__init__, execute._refuse_spent = retrying, refusing
    spec.attempts = property(lambda _: 3)


def _ledger(_: Tool) -> None:
    """once_per_key has its block run whether the key is on record or not."""
    from turnkeeper import ledger

    record: Any = ledger._Record
    record.claim = lambda _: ledger.Effect(is_new=True)
    record.finish = lambda *_: None


def _pairing(_: Tool) -> None:
    """RESUME loses the last result of each reply."""
    from turnkeeper.state import RunState

    state: Any = RunState
    plain = state.take_results

    def losing(self: RunState) -> None:
        plain(self)
        self.pending.pop()

    state.take_results = losing


_OFF: dict[str, Callable[[Tool], None]] = {
    "key": _key,
    "probe": _probe,
    "one-attempt": _one_attempt,
    "ledger": _ledger,
    "pairing": _pairing,
}
