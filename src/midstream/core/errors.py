"""Errors: every kind that midstream raises on purpose.

All are subclasses of `MidstreamError`. The text has up to three lines: what happened with the value seen, the likely
cause, and the command or edit that fixes it. The `code` is stable; docs/errors.md lists all of them.

    MidstreamError
    ├── UsageError              the user's input is wrong: exit code 2, nothing was started
    │   ├── RecipeError         a recipe, a --set override or a component's settings
    │   ├── RunError            a run directory: missing, of another version, already there
    │   └── UnsupportedError    a named thing that midstream does not do (yet)
    ├── InfrastructureError     an endpoint, tool server, judge or sandbox failed: retried, then the trajectory is
    │   │                       `status="error"`; it is never a reward of 0
    │   ├── EngineError
    │   │   ├── PromptTooLongError
    │   │   └── RefusedError    an endpoint refuses every request (key, model, address, quota): the run stops at once
    │   ├── ToolServerError
    │   ├── SandboxError
    │   ├── RewardError
    │   ├── DeadlineError       a trajectory exceeded its wall-clock limit
    │   └── BudgetError         the run's budget is spent: no new work starts, and the run ends with its results so far
    ├── RepeatedError           a component fails again and again in the same way: the run stops, and can be resumed
    ├── CheckpointError         no checkpoint of a run could be read
    ├── StorageError            the disk is full or a write failed: the run stops, and resumes from its last checkpoint
    └── TrainingError           a non-finite loss, no usable group: the run stops, and resumes from its last checkpoint

A *model's* mistake (a malformed action, invalid arguments, code that raises) is not an error but data, recorded in the
turn that it costs. Code catches named exceptions. It catches `Exception` only at the boundary to code that may raise
anything (a user's agent, tool or reward, a third-party library), with a comment that gives the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from midstream.core.trajectory import Call

FailureT = TypeVar("FailureT", bound="InfrastructureError")


class MidstreamError(Exception):
    """An error that midstream raises on purpose: what happened, why, and how to fix it.

    Args:
        what: what happened, with the value seen.
        code: the stable name of this kind of error, listed in docs/errors.md; the class's own if not given.
        cause: the likely cause, where it adds something to `what`.
        fix: the command or edit that fixes it.
    """

    code = "midstream"

    def __init__(self, what: str, *, code: str = "", cause: str = "", fix: str = "") -> None:
        self.what, self.cause, self.fix = what, cause, fix
        self.code = code or self.code
        super().__init__(what)

    def __str__(self) -> str:
        labeled = (f"  {label}: {text}" for label, text in (("cause", self.cause), ("fix", self.fix)) if text)
        # Lines of a text that a server or file contributed are indented, so that none looks like a cause or fix.
        return "\n".join(re.sub(r"\n(?! {4})", "\n    ", line) for line in (self.what, *labeled))


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The beginning of a fix for a misspelt name: "did you mean 'ollama'? "; "" if no `known` name is close."""
    by_fold = {other.casefold().replace("_", "-"): other for other in known}
    close = get_close_matches(str(name).casefold().replace("_", "-"), by_fold, n=1)
    return f"did you mean {by_fold[close[0]]!r}? " if close else ""


@contextmanager
def name_place(place: str) -> Iterator[None]:
    """Begin the text of an error in the block with its place, unless the text names that already."""
    try:
        yield
    except MidstreamError as error:
        if place not in error.what:
            error.what = f"{place}: {error.what}"
        raise


class UsageError(MidstreamError):
    """The user's input is wrong; nothing was started."""

    code = "usage"


class RecipeError(UsageError):
    """A recipe, a `--set` override or a component's settings are invalid."""

    code = "recipe-invalid"


class RunError(UsageError):
    """A run directory is missing, already taken, or of another version."""

    code = "run-directory"


class UnsupportedError(UsageError):
    """A named thing that midstream does not support."""

    code = "unsupported"


@contextmanager
def needs_extra(what: str, extra: str, otherwise: str = "") -> Iterator[None]:
    """Raise `UnsupportedError`, which says `what`, if an import in the block fails: midstream's `extra` has it."""
    try:
        yield
    except ImportError as error:
        fix = f"pip install 'midstream[{extra}]'{otherwise}"
        raise UnsupportedError(what, code="missing-extra", fix=fix) from error


class InfrastructureError(MidstreamError):
    """Something around the model failed; the trajectory is retried if that can help, then its error is recorded."""

    code = "infrastructure"
    retryable = True

    def __init__(
        self,
        what: str,
        *,
        code: str = "",
        cause: str = "",
        fix: str = "",
        retryable: bool | None = None,  # whether another attempt may succeed; the class's own if not given
        calls: tuple[Call, ...] = (),  # that led to it, the failed one last, so that a trace holds the requests
    ) -> None:
        super().__init__(what, code=code, cause=cause, fix=fix)
        self.retryable = self.retryable if retryable is None else retryable
        self.calls = calls

    def of(self, kind: type[FailureT], what: str, *, code: str) -> FailureT:
        """The same failure as that of what asked: a tool's or a judge's, whose model failed."""
        words = f"{what}: {self.what}"
        return kind(words, code=code, cause=self.cause, fix=self.fix, retryable=self.retryable, calls=self.calls)


class EngineError(InfrastructureError):
    """A model endpoint failed or answered with something that is not a completion."""

    code = "engine-failed"


class ToolServerError(InfrastructureError):
    """A tool's back end failed (a tool that answers "no result" has not failed)."""

    code = "tool-failed"


class SandboxError(InfrastructureError):
    """The sandbox could not run code (code that raises has not failed it)."""

    code = "sandbox-failed"


class RewardError(InfrastructureError):
    """A judge or scorer failed to give a score."""

    code = "reward-failed"


class DeadlineError(InfrastructureError):
    """A trajectory exceeded its wall-clock limit."""

    code = "deadline"
    retryable = False


class BudgetError(InfrastructureError):
    """A limit that the user set on rollouts, tokens, dollars or time would be exceeded."""

    code = "budget-spent"
    retryable = False


class PromptTooLongError(EngineError):
    """A prompt and its completion do not fit the model's context; a retry would fail in the same way."""

    code = "prompt-too-long"
    retryable = False


class RefusedError(EngineError):
    """An endpoint refuses every request: a wrong key, model or address, or an empty account. It ends the whole run."""

    code = "key-refused"
    retryable = False


class RepeatedError(MidstreamError):
    """A reward, tool, judge or agent fails the same way in run after run: no further one is started."""

    code = "component-failed"


class CheckpointError(MidstreamError):
    """A checkpoint of a run could not be loaded."""

    code = "checkpoint-unfit"


class StorageError(MidstreamError):
    """The disk is full or a write failed."""

    code = "storage"


class TrainingError(MidstreamError):
    """Training cannot continue: a non-finite loss or gradient, or no usable group."""

    code = "training-failed"


class TransientError(Exception):
    """An attempt of a request failed and another may succeed; `pause_s` is how long the server asks to wait."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


def shown(value: object) -> str:
    """A value for an error message, cut if it is long."""
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
