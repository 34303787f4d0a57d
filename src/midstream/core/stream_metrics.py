"""How interleaved policies reason and call tools, measured as ARTIST's analysis does (arXiv 2505.01441)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.stream import POLICY
from midstream.core.trajectory import Call, Trajectory, Turn

_MARK = re.compile(r"</?[\w|-]+>")


class StreamMetrics(Frozen):
    """Counts and means over the `trajectories` of interleaved policies, those with an error among them left out.

    `replies` are requests to the policy. `calls` are the tool calls it made, malformed ones too; `correct` those whose
    tool gave a result. `reasoning_per_call` is how much the replies that call a tool say beside their calls' bodies and
    the marks, for each call, in `unit`: "tokens", or "words" where an engine gave no token ids; tokens of one reply are
    shared out by characters. `answered` trajectories came to their answer, in `steps_to_answer` calls on average. Means
    of nothing are None.
    """

    trajectories: int = 0
    replies: int = 0
    calls: int = 0
    correct: int = 0
    reasoning_per_call: float | None = None
    unit: Literal["tokens", "words"] = "tokens"
    answered: int = 0
    steps_to_answer: float | None = None

    @property
    def correct_rate(self) -> float | None:
        """The share of calls whose tool gave a result."""
        return self.correct / self.calls if self.calls else None

    @property
    def calls_mean(self) -> float:
        """Calls of a trajectory."""
        return self.calls / max(1, self.trajectories)


def stream_metrics(trajectories: Iterable[Trajectory]) -> StreamMetrics | None:
    """Measure the finished trajectories of interleaved policies; None where there is none."""
    ours = [one for one in trajectories if one.status == "ok" and _replies(one)]
    if not ours:
        return None
    turns = [turn for one in ours for turn in _calls(one)]
    replies = [reply for one in ours for reply in _calling(one)]
    unit = "tokens" if all(call.completion_ids for reply in replies for call in reply.calls) else "words"
    reasoning = sum(reply.tokens() if unit == "tokens" else reply.words() for reply in replies)
    answered = [len(_calls(one)) for one in ours if one.stop_reason == "answered"]
    return StreamMetrics(
        trajectories=len(ours),
        replies=sum(len(_replies(one)) for one in ours),
        calls=len(turns),
        correct=sum(turn.observation is not None and turn.observation.status == "ok" for turn in turns),
        reasoning_per_call=reasoning / len(turns) if turns else None,
        unit=unit,
        answered=len(answered),
        steps_to_answer=sum(answered) / len(answered) if answered else None,
    )


def _replies(trajectory: Trajectory) -> list[Call]:
    return [call for call in trajectory.calls if call.role == POLICY]


def _calls(trajectory: Trajectory) -> list[Turn]:
    """The turns that are calls of a tool; others are what was said to a user."""
    return [turn for turn in trajectory.turns if turn.observation is not None]


def _calling(trajectory: Trajectory) -> list[_Reply]:
    """Each stretch that calls tools: the first turn holds what was sampled, the next ones have its other calls."""
    found: list[_Reply] = []
    for turn in _calls(trajectory):
        sampled = [call for call in turn.calls if call.role == POLICY]
        if sampled or not found:
            found.append(_Reply(calls=sampled, bodies=[]))
        found[-1].bodies.append(turn.action.context if turn.action else "")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reply:
    """What was sampled before tools ran (`calls`: more than one where sampling went on), and what they were told."""

    calls: list[Call]
    bodies: list[str]

    def words(self) -> float:
        """Of what it says beside the bodies and all marks."""
        said, called = (len(_MARK.sub(" ", text).split()) for text in (self._text(), " ".join(self.bodies)))
        return max(0, said - called)

    def tokens(self) -> float:
        """The share of its tokens that it has in characters beside the bodies and all marks."""
        text = self._text()
        said, called = (len(_MARK.sub("", one)) for one in (text, "".join(self.bodies)))
        return sum(len(call.completion_ids) for call in self.calls) * max(0, said - called) / max(1, len(text))

    def _text(self) -> str:
        return "".join(call.completion for call in self.calls)
