"""Turnkeeper: AI agents that never lose their place.

The names a team writes agents and calls runs with. They are imported on first use, so that
`--help` and the workflow pay for what they need only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeeper.agent import Agent
    from turnkeeper.client import AgentClient
    from turnkeeper.contract import RunRequest, RunResult, RunStatus, Signature
    from turnkeeper.errors import RetryTool, StopRun, ToolFailed
    from turnkeeper.media import Media
    from turnkeeper.probe import Landed, NotLanded, Unknown
    from turnkeeper.spec import (
        ApprovalPolicy,
        ContextPolicy,
        HistoryPolicy,
        Limits,
        ModelSpec,
        Price,
    )
    from turnkeeper.tools import Tool, ToolContext, tool
    from turnkeeper.waiting_tools import ask_person, sleep, wait_until

_HOME = {
    "Agent": "agent",
    "AgentClient": "client",
    "ApprovalPolicy": "spec",
    "ContextPolicy": "spec",
    "HistoryPolicy": "spec",
    "Landed": "probe",
    "Limits": "spec",
    "Price": "spec",
    "Media": "media",
    "ModelSpec": "spec",
    "NotLanded": "probe",
    "RetryTool": "errors",
    "RunRequest": "contract",
    "RunResult": "contract",
    "RunStatus": "contract",
    "Signature": "contract",
    "StopRun": "errors",
    "Tool": "tools",
    "ToolContext": "tools",
    "ToolFailed": "errors",
    "Unknown": "probe",
    "ask_person": "waiting_tools",
    "sleep": "waiting_tools",
    "tool": "tools",
    "wait_until": "waiting_tools",
}

__all__ = [
    "Agent",
    "AgentClient",
    "ApprovalPolicy",
    "ContextPolicy",
    "HistoryPolicy",
    "Landed",
    "Limits",
    "Media",
    "ModelSpec",
    "NotLanded",
    "Price",
    "RetryTool",
    "RunRequest",
    "RunResult",
    "RunStatus",
    "Signature",
    "StopRun",
    "Tool",
    "ToolContext",
    "ToolFailed",
    "Unknown",
    "ask_person",
    "sleep",
    "tool",
    "wait_until",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'turnkeeper' has no attribute {name!r}")
    return getattr(import_module(f"turnkeeper.{_HOME[name]}"), name)
