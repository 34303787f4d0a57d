"""The error model, told once.

Every error midstream raises on purpose is a `MidstreamError`. Its text has three lines: what happened with the value
seen, the likely cause, the command or edit that mends it.

    MidstreamError
    ├── UsageError              the user's input is wrong: exit code 2, nothing was started
    │   ├── RecipeError         a recipe, a --set override or a component's settings
    │   ├── RunError            a run directory: missing, of another version, already there
    │   └── UnsupportedError    a named thing that midstream does not do (yet)
    ├── InfrastructureError     an endpoint, tool server, judge or sandbox failed: retried, then the trajectory is
    │   │                       `status="error"`; it is never a reward of 0
    │   ├── EngineError
    │   │   └── PromptTooLongError
    │   ├── ToolServerError
    │   ├── SandboxError
    │   ├── RewardError
    │   ├── DeadlineError       a trajectory ran out of its wall-clock time
    │   └── BudgetError         the run's budget is spent: nothing new is started, the run ends with what it has
    ├── CheckpointError         no checkpoint of a run could be read
    ├── StorageError            the disk is full or a write failed: the run stops, and resumes from its last checkpoint
    └── TrainingError           a non-finite loss, no usable group: the run stops, and resumes from its last checkpoint

What a *model* gets wrong (a malformed action, invalid arguments, code that raises) is none of these: it is data,
recorded in the turn that it costs. Named exceptions are caught where they can be mended; the one broad boundary is in
`rollout.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midstream.core.trajectory import Call


class MidstreamError(Exception):
    """What happened, why, and the mend, as one three-line text.

    Args:
        what: what happened, with the value seen.
        cause: the likely cause.
        mend: the command or edit that mends it.
    """

    def __init__(self, what: str, *, cause: str = "", mend: str = "") -> None:
        self.what, self.cause, self.mend = what, cause, mend
        lines = [what] + [f"  {label}: {text}" for label, text in (("cause", cause), ("mend", mend)) if text]
        super().__init__("\n".join(lines))


class UsageError(MidstreamError):
    """The user's input is wrong; nothing was started."""


class RecipeError(UsageError):
    """A recipe, a `--set` override or a component's settings are invalid."""


class RunError(UsageError):
    """A run directory is missing, already taken, or of another version."""


class UnsupportedError(UsageError):
    """A named thing that midstream does not support."""


class InfrastructureError(MidstreamError):
    """Something around the model failed; the trajectory is run again if that can help, then its error is recorded.

    `calls` are the engine calls that led to it, the failed one last, so that a trace holds what was asked.
    """

    retryable = True
    calls: tuple[Call, ...] = ()


class EngineError(InfrastructureError):
    """A model endpoint failed or answered with something that is not a completion."""


class ToolServerError(InfrastructureError):
    """A tool's back end failed (a tool that answers "no result" has not failed)."""


class SandboxError(InfrastructureError):
    """The sandbox could not run code (code that raises has not failed it)."""


class RewardError(InfrastructureError):
    """A judge or scorer failed to give a score."""


class DeadlineError(InfrastructureError):
    """A trajectory ran out of its wall-clock time."""

    retryable = False


class BudgetError(InfrastructureError):
    """A limit that the user set on rollouts, tokens, dollars or time would be passed."""

    retryable = False


class PromptTooLongError(EngineError):
    """A prompt and its completion do not fit the model's context; the same run would end there again."""

    retryable = False


class CheckpointError(MidstreamError):
    """No checkpoint of a run could be read."""


class StorageError(MidstreamError):
    """The disk is full or a write failed."""


class TrainingError(MidstreamError):
    """Training cannot go on: a non-finite loss or gradient, or no usable group."""
