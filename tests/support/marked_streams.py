"""Trajectories of interleaved policies from a few words: what the policy sampled, and what the environment put in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from midstream.core.trajectory import Action, Call, Observation, Trajectory, Turn


@dataclass(frozen=True)
class Output:
    """The output of the call that was sampled before it."""

    text: str = "5"
    ok: bool = True
    before: str = "<output>"
    after: str = "</output>"


FAILED = Output("NameError: x", ok=False)


def said(text: str) -> Call:
    """One reply, its tokens as many as its characters over four."""
    return Call(role="policy", completion=text, completion_ids=(1,) * (len(text) // 4))


def calling(text: str, output: Output, *, body: str = "", index: int = 1) -> Turn:
    """A reply that calls a tool, and its output."""
    return Turn(
        index=index,
        action=Action(tool="python", context=body),
        observation=Observation(status="ok" if output.ok else "error", text=output.text),
        calls=(said(text),),
        appended=f"{output.before}{output.text}{output.after}",
    )


def stream(*parts: str | Output, answer: str | None = None, **more: Any) -> Trajectory:
    """Texts are replies; one with an output behind it called a tool, the others ended the run, or spoke to a user."""
    turns: list[Turn] = []
    for place, part in enumerate(parts[:-1]):
        following = parts[place + 1]
        if isinstance(part, str) and isinstance(following, Output):
            turns.append(calling(part, following, index=len(turns) + 1))
        elif isinstance(part, str):
            turns.append(Turn(index=len(turns) + 1, calls=(said(part),)))
    last = parts[-1] if parts else ""
    closing = (said(last),) if isinstance(last, str) else ()
    return Trajectory(
        id="t#0", task_id="t", agent="interleaved", turns=tuple(turns), closing_calls=closing, answer=answer, **more
    )
