"""Metrics of how interleaved policies reason and call tools, after ARTIST's analysis (arXiv 2505.01441)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.stream import POLICY
from midstream.core.trajectory import Call, Trajectory, Turn

_MARK = re.compile(r"</?[\w|-]+>")


class StreamMetrics(Frozen):
    """Counts and means over the finished trajectories of interleaved policies. Means of nothing are None."""

    trajectories: int = 0  # those that ended in an error are left out
    replies: int = 0  # requests to the policy
    calls: int = 0  # tool calls, malformed ones included
    correct: int = 0  # tool calls with a result
    reasoning_per_call: float | None = None  # text of calling replies in `unit`, without marks and bodies of calls
    unit: Literal["tokens", "words"] = "tokens"  # "words" if an engine gave no token ids
    answered: int = 0  # trajectories with an answer
    steps_to_answer: float | None = None  # mean number of calls of these

    @property
    def correct_rate(self) -> float | None:
        """Share of calls with a result."""
        return self.correct / self.calls if self.calls else None

    @property
    def calls_mean(self) -> float:
        """Mean number of calls of a trajectory."""
        return self.calls / max(1, self.trajectories)


def stream_metrics(trajectories: Iterable[Trajectory]) -> StreamMetrics | None:
    """Measure the finished trajectories of interleaved policies; None without any."""
    # Of each trajectory: requests to the policy, and turns that call a tool (others answer a user).
    finished = [trajectory for trajectory in trajectories if trajectory.status == "ok"]
    replies = [_sampled(trajectory.calls) for trajectory in finished]
    finished = [trajectory for trajectory, calls in zip(finished, replies, strict=True) if calls]
    if not finished:
        return None
    calling = [[turn for turn in trajectory.turns if turn.observation is not None] for trajectory in finished]
    turns = [turn for calls in calling for turn in calls]
    stretches = [stretch for calls in calling for stretch in _stretches(calls)]
    unit = "tokens" if all(call.completion_ids for calls, _ in stretches for call in calls) else "words"
    said_besides = []  # in each stretch, besides its tool calls
    for calls, bodies in stretches:
        text = "".join(call.completion for call in calls)
        if unit == "words":
            said, called = (len(_MARK.sub(" ", part).split()) for part in (text, " ".join(bodies)))
            said_besides.append(max(0, said - called))
        else:
            said, called = (len(_MARK.sub("", part)) for part in (text, "".join(bodies)))
            # The tokens of a reply are divided between its calls and the rest by characters.
            tokens = sum(len(call.completion_ids) for call in calls)
            said_besides.append(tokens * max(0, said - called) / max(1, len(text)))
    answered = [
        len(calls) for trajectory, calls in zip(finished, calling, strict=True) if trajectory.stop_reason == "answered"
    ]
    return StreamMetrics(
        trajectories=len(finished),
        replies=sum(map(len, replies)),
        calls=len(turns),
        correct=sum(turn.observation is not None and turn.observation.status == "ok" for turn in turns),
        reasoning_per_call=sum(said_besides) / len(turns) if turns else None,
        unit=unit,
        answered=len(answered),
        steps_to_answer=sum(answered) / len(answered) if answered else None,
    )


def _sampled(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if call.role == POLICY]


def _stretches(turns: Sequence[Turn]) -> list[tuple[list[Call], list[str]]]:
    """The sampled calls of each reply that calls tools, with the bodies of its tool calls.

    The first turn of a reply holds what was sampled; further tool calls of the reply have turns without a call.
    """
    found: list[tuple[list[Call], list[str]]] = []
    for turn in turns:
        sampled = _sampled(turn.calls)
        if sampled or not found:
            found.append((sampled, []))
        found[-1][1].append(turn.action.context if turn.action else "")
    return found
