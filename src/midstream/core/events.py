"""A run as it happens: what a screen or a live viewer is told while a trajectory is under way.

    planner     start text text ... call action
    executor    start text ... call command observation
    verifier    start text ... call verdict
    generator   start text ... call answer
    policy      start text ... call (action command observation) ... | answer | answer user

Whoever listens is told once, in order, and changes nothing: a run with a listener and one without leave the same
trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

LiveKind = Literal[
    "start",  # a module begins; value None
    "text",  # a piece of its reply as it is written; value str
    "retry",  # an attempt failed, the text since `start` does not count; value str, the reason
    "call",  # a request was answered; value Call
    "action",  # value Action
    "command",  # value Command
    "observation",  # value Observation
    "verdict",  # value Verdict
    "answer",  # value str | None
    "user",  # a dialogue's user said something; value str
    "restart",  # the whole run broke down and begins again; value ErrorInfo
]
Emit = Callable[[LiveKind, Any], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened in turn `turn`, in module `role` ("" where no module did it)."""

    turn: int
    role: str
    kind: LiveKind
    value: Any = None


Listener = Callable[[Event], None]


def ignore_event(kind: LiveKind, value: Any) -> None:
    """The `Emit` of a run that nobody watches."""
