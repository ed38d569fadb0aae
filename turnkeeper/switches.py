"""What is switched off: tools, agents and tenants, by whom and why; and limits per day. Pure.

There is one list for the whole namespace, and one for each task queue that has things of its own
switched off. Each lies in the memo of a small workflow, `workflows/switches.py`;
`turnkeeper/switchboard.py` reads and changes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnkeeper.day_limits import DayLimit
from turnkeeper.names import NAME_OF_KIND, Kind, check_name
from turnkeeper.spec import Strict
from turnkeeper.text import WHITE, one_line

EVERYWHERE = "turnkeeper-switches"
"""Id of the workflow that keeps the namespace's list, and its task queue. All workers serve it: one
of any application will do."""
_Model = TypeVar("_Model", bound=BaseModel)
MAX_SWITCHES = 200
"""Things that can be switched off at once; the list travels whole."""


class SwitchRequest(Strict):
    """The body of `switch`."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                NAME_OF_KIND,
                {
                    "if": {"properties": {"off": {"const": True}}, "required": ["off"]},
                    "then": {
                        "properties": {"reason": {"pattern": f"[^{WHITE}]"}},
                        "required": ["reason"],
                    },
                },
            ]
        }
    )

    kind: Kind
    name: Annotated[str, Field(min_length=1, max_length=512)]
    """Of a tool `issue_refund`, or `refunds.issue_refund` for that agent's alone."""
    off: Annotated[bool, Field(strict=True)]
    reason: Annotated[str, Field(max_length=300)] = ""
    """Of one that is switched off, needed: the model and everybody who waits reads it."""
    actor: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        check_name(self.kind, self.name)
        if self.off and not self.reason.strip():
            raise ValueError("reason: is empty; say why it is switched off")
        return self


class Switch(BaseModel):
    """One thing that is switched off."""

    model_config = ConfigDict(extra="ignore")

    kind: Kind
    name: str
    reason: str = ""
    actor: str | None = None
    since: float = 0
    """Seconds since 1970."""
    task_queue: str | None = None
    """Where alone it is off; None: everywhere. Known by the list that it was read from."""

    @property
    def told(self) -> str:
        """A sentence without its end: `Tool refund was switched off by ann: too many`."""
        return f"{self.kind.capitalize()} {one_line(self.name, 130)} was switched {self._off}"

    @property
    def awaited(self) -> str:
        """What a run waits for: `agent finance to be switched on again: off by ann: too many`."""
        return f"{self.kind} {one_line(self.name, 130)} to be switched on again: {self._off}"

    @property
    def _off(self) -> str:
        by = f" by {one_line(self.actor, 100)}" if self.actor else ""
        return f"off{by}: {one_line(self.reason, 300).rstrip('. ')}"


class SwitchList(BaseModel):
    """All of them, in the order in which they were switched off."""

    model_config = ConfigDict(extra="ignore")

    switches: list[Switch] = Field(default_factory=list)
    day_limits: list[DayLimit] = Field(default_factory=list)
    """Of the namespace's list alone."""

    @classmethod
    def read(cls, published: Any, limits: Any = None) -> SwitchList:
        """What a memo has in its two fields; what is none of ours in it is passed over."""
        return cls(switches=_known(Switch, published), day_limits=_known(DayLimit, limits))

    def memo(self) -> dict[str, Any]:
        """As `read` reads it, by field of the memo."""
        left_out = {"task_queue"}
        switches = [
            s.model_dump(mode="json", exclude=left_out, exclude_none=True) for s in self.switches
        ]
        limits = [x.model_dump(mode="json", exclude_none=True) for x in self.day_limits]
        return {"switches": switches, "day_limits": limits}

    def find(self, kind: Kind, name: str | None) -> Switch | None:
        """The switch of that very thing, if it is off."""
        return next((s for s in self.switches if (s.kind, s.name) == (kind, name)), None)

    def refusal(self, asked: SwitchRequest) -> str | None:
        """Why a change cannot be made; None if it can."""
        full = len(self.switches) >= MAX_SWITCHES
        if asked.off and full and self.find(asked.kind, asked.name) is None:
            return f"{MAX_SWITCHES} things are switched off, which is the most: switch one on first"
        return None

    def take(self, asked: SwitchRequest, now: float) -> bool:
        """Make a change; False if there was nothing to do.

        What is off already keeps its first reason: it says who, and since when.
        """
        known = self.find(asked.kind, asked.name)
        if asked.off == (known is not None):
            return False
        if known is not None:
            self.switches.remove(known)
        else:
            made = asked.model_dump(include={"kind", "name", "reason", "actor"})
            self.switches.append(Switch(**made, since=now))
        return True

    def agent_off(self, agent: str, tenant: str | None) -> Switch | None:
        """What keeps an agent's run from asking its model."""
        return self.find("tenant", tenant) or self.find("agent", agent)

    def limits_of(self, agent: str, tenant: str | None) -> list[DayLimit]:
        """What bounds an agent's run per day."""
        of = {("agent", agent), ("tenant", tenant)}
        return [x for x in self.day_limits if (x.kind, x.name) in of]

    def tool_off(self, agent: str, tool: str, tenant: str | None) -> Switch | None:
        """What keeps an agent's run from calling a tool."""
        return (
            self.agent_off(agent, tenant)
            or self.find("tool", tool)
            or self.find("tool", f"{agent}.{tool}")
        )


def _known(model: type[_Model], published: Any) -> list[_Model]:
    found: list[_Model] = []
    for told in published if isinstance(published, list) else []:
        try:
            found.append(model.model_validate(told))
        except ValidationError:
            # Of a release with another idea of it.
            continue
    return found
