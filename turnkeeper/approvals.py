"""Calls that a person has to allow: what was asked, what was decided. A part of RunState. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from turnkeeper.contract import ApprovalAsked, ApproveRequest, Asks, DenyRequest
from turnkeeper.entries import digest_of
from turnkeeper.spec import ApprovalPolicy, Effect
from turnkeeper.text import age, clip, escaped, one_line, well_formed

if TYPE_CHECKING:
    from turnkeeper.state import Call

MAX_APPROVALS = 50
"""That are remembered, the last ones; those that wait are always."""
ID_DIGITS = 16


class Decision(BaseModel):
    """What a person has said."""

    approval: str
    allow: bool
    actor: str | None = None
    reason: str = ""
    remember: bool = False
    proof: str | None = None
    checking: bool = False
    """Whether it is being found out who made it."""
    verified: bool = False


class Approvals(BaseModel):
    """See the module."""

    asked: list[ApprovalAsked] = Field(default_factory=list)
    said: list[Decision] = Field(default_factory=list)
    """Accepted, and not applied yet."""
    trusted: dict[str, str] = Field(default_factory=dict)
    """By tool: the definition for which nobody is asked any more."""

    @property
    def waiting(self) -> list[ApprovalAsked]:
        """Those that nobody has decided, in the order in which they were asked for."""
        return [a for a in self.asked if a.status == "waiting"]

    @property
    def nearest(self) -> float | None:
        """Workflow time at which the first of them expires."""
        return min((a.expires for a in self.waiting), default=None)

    def ask(
        self,
        call: Call,
        asks: Asks,
        *,
        turn: int,
        effect: Effect,
        now: float,
        seconds: float,
        run_ends: float = 0,
    ) -> None:
        """A person has to allow the call: it waits."""
        call.status, call.awaits = "waiting", "approval"
        call.granted, call.approved = None, False
        call.definition, call.digest = asks.definition, asks.digest
        call.approval = digest_of([call.key, asks.digest])[:ID_DIGITS]
        asked = ApprovalAsked(
            id=call.approval,
            turn=turn,
            call_id=call.call_id,
            tool=call.tool,
            effect=effect,
            arguments=asks.arguments,
            left_out=asks.left_out,
            why=asks.why,
            since=now,
            expires=now + seconds,
            run_ends=run_ends,
        )
        settled = [a for a in self.asked if a.status != "waiting"]
        kept = settled[-(MAX_APPROVALS - 1) :]
        # The same call may be asked for twice, by a reset or after its definition was changed back.
        self.asked = [
            a for a in self.asked if (a.status == "waiting" or a in kept) and a.id != asked.id
        ] + [asked]

    def is_behind(self, run_ends: float) -> bool:
        """Whether what waits tells another end of the run's time: it was raised meanwhile."""
        return any(a.run_ends not in (0, run_ends) for a in self.waiting)

    def catch_up(self, run_ends: float) -> None:
        """What waits tells the end of the run's time as it is now."""
        for asked in self.waiting:
            asked.run_ends = run_ends

    def refusal(self, said: ApproveRequest | DenyRequest, now: float) -> str | None:
        """Why a decision cannot be taken; None if it can, or says again what was decided."""
        allow = isinstance(said, ApproveRequest)
        asked = next((a for a in self.asked if a.id == said.approval), None)
        if asked is None:
            known = ", ".join(f"{a.id} ({one_line(a.tool, 64)})" for a in self.waiting) or "none"
            wanted = one_line(said.approval, 64)
            return f"approval: {wanted!r} is none of this run; waiting: {known}"
        earlier = next((s for s in self.said if s.approval == asked.id), None)
        if earlier and earlier.checking:
            return f"approval: who decided about {asked.id} is being verified; try again later"
        status = ("approved" if earlier.allow else "denied") if earlier else asked.status
        if status == ("approved" if allow else "denied"):
            return None
        if status == "waiting":
            late = now >= asked.expires
            return f"approval: {asked.id} has expired; it is not decided any more" if late else None
        actor = earlier.actor if earlier else asked.actor
        by = f" by {one_line(actor, 100)}" if actor else ""
        told = "it has expired" if status == "expired" else f"it was {status}{by}"
        return f"approval: {asked.id} is decided: {told}"

    def take(self, said: ApproveRequest | DenyRequest) -> str | None:
        """Note a decision; one that was noted before stays as it is, and the answer says so."""
        waits = any(a.id == said.approval for a in self.waiting)
        if not waits or any(s.approval == said.approval for s in self.said):
            return "it was decided so already"
        allow = isinstance(said, ApproveRequest)
        self.said.append(Decision(allow=allow, **said.model_dump()))
        return None

    @property
    def news(self) -> list[Decision]:
        """What was said and can be looked at."""
        return [s for s in self.said if not s.checking]

    def refuse(self, decision: Decision, why: str) -> None:
        """It does not count; the call waits on, for another one."""
        self.said = [s for s in self.said if s is not decision]
        by = one_line(decision.actor or "nobody", 100)
        told = f"{'approved' if decision.allow else 'denied'} by {by}: {one_line(why, 200)}"
        self.asked = [
            a.model_copy(update={"refused": told}) if a.id == decision.approval else a
            for a in self.asked
        ]

    def apply(self, calls: Sequence[Call]) -> bool:
        """Decide calls by what was said; whether anything was."""
        said = self.news
        self.said = [s for s in self.said if s.checking]
        for decision in said:
            if (call := self._call(calls, decision.approval)) is None:
                continue
            if decision.allow:
                call.status, call.granted, call.approved = "proposed", call.digest, True
                if decision.remember:
                    self.trusted[call.tool] = call.definition
            else:
                call.finish("denied", _denied(decision))
            self._settle(decision.approval, "approved" if decision.allow else "denied", decision)
        return bool(said)

    def expire(
        self, calls: Sequence[Call], now: float, policy: ApprovalPolicy
    ) -> list[ApprovalAsked]:
        """Decide those whose time is over; answers which."""
        late = [a for a in self.waiting if a.expires <= now]
        for asked in late:
            if policy.on_expiry == "escalate" and not asked.escalated:
                asked.escalated, asked.expires = True, asked.expires + policy.expires
                continue
            if (call := self._call(calls, asked.id)) is not None:
                waited = age(asked.expires - asked.since)
                call.finish("denied", f"Nobody allowed it within {waited}: it was not run.")
            self._settle(asked.id, "expired")
        return late

    def withdraw(self, call: Call) -> None:
        """Nobody decides any more: the run is to end."""
        self._settle(call.approval, "withdrawn")

    def _settle(self, approval: str, status: str, by: Decision | None = None) -> None:
        # Nothing is left to decide, even if it is still being verified who has said something.
        self.said = [s for s in self.said if s.approval != approval]
        change = {"status": status} | (
            {"actor": by.actor, "verified": by.verified, "reason": clip(by.reason, 300)}
            if by
            else {}
        )
        self.asked = [a.model_copy(update=change) if a.id == approval else a for a in self.asked]

    @staticmethod
    def _call(calls: Sequence[Call], approval: str) -> Call | None:
        waiting = (c for c in calls if c.status == "waiting" and c.approval == approval)
        return next(waiting, None)


def why_of(answer: object) -> str:
    """Why a person is asked, by a tool's own word on a call; empty if nobody is."""
    if answer is False:
        return ""
    return answer if isinstance(answer, str) and answer.strip() else "of its arguments"


def shortened(asked: ApprovalAsked, limit: int) -> ApprovalAsked:
    """With at most `limit` characters of its arguments, on one line, and how many that leaves out.

    What nobody sees is escaped: a person who decides must not take two texts for the same.
    """
    line = " ".join(escaped(well_formed(asked.arguments)).split())
    left_out = asked.left_out + max(len(line) - limit, 0)
    return asked.model_copy(update={"arguments": line[:limit], "left_out": left_out})


def arguments_of(asked: ApprovalAsked, limit: int) -> str:
    """`limit` characters of the arguments; if there are more, how many, and where they are."""
    shown = shortened(asked, limit)
    more = f"… [{shown.left_out:,} characters more: starter.py show]" if shown.left_out else ""
    return shown.arguments + more


def _denied(decision: Decision) -> str:
    by = f" by {one_line(decision.actor, 100)}" if decision.actor else ""
    why = f": {clip(decision.reason, 2_000)}" if decision.reason else ""
    return (
        f"Denied{by}{why}\nIt was not run. Do not ask for the same again; go on without it, or say "
        "what is missing."
    )
