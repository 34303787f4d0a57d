"""The two rewards of ARTIST (arXiv 2505.01441), every part by its name in the paper's own units.

    artist_math        most    function_calling             most
    answer             2       state                        0.5
    relaxed_format     0.5     function                     0.5
    strict_format      0.5     relaxed_format               0.1
    tool_success       1       strict_format                0.1
    total              4       total                        1.2

A score's value is its total over the most that there is, because rewards lie in [0, 1]; advantages are normalised over
a group, so the scale changes nothing. `gated` counts the format, and the success of tools, only where the answer or the
dialogue is right: else a policy earns half an answer by print(1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from midstream.core.component import Context, RewardConfig, parse_component
from midstream.core.protocols import Reward
from midstream.core.stream import Template, is_strict, stream_of, tags_present
from midstream.core.stream_template import ANY_TOOL
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.dialogue import outcome_of

ANSWER, TAG, STRICT = 2.0, 0.125, 0.5
MOST = ANSWER + 4 * TAG + STRICT + 1.0
STATE, FUNCTION, CALLING_MARK, CALLING_STRICT = 0.5, 0.5, 0.025, 0.1
CALLING_MOST = 1.2


class MathConfig(RewardConfig):
    """`answer`: the type of the rule that says whether the answer is right. `gated`: nothing counts where it is not."""

    of_stream = True

    answer: str = "math"
    gated: bool = False

    def build(self, context: Context) -> Math:
        """Build it."""
        answer = context.reward(parse_component("reward", {"type": self.answer}, "reward.answer"))
        return Math(self, answer, context.template)


class FunctionCallingConfig(RewardConfig):
    """`gated`: the format counts only where the dialogue succeeded."""

    of_dialogues = True
    of_stream = True

    gated: bool = False

    def build(self, context: Context) -> FunctionCalling:
        """Build it."""
        return FunctionCalling(self, context.template)


class Math:
    """The answer by a rule, the format of the stream, and the share of tool calls that succeeded.

    Each of the tags think, call, output and answer counts in the relaxed format where it is there and closed; output
    only where the environment wrote it. The strict format asks for all of them in order (`core.stream.is_strict`). A
    template without some of them earns less. A call counts as made where something was answered to it, malformed ones
    too; without any, tool success is 0.
    """

    def __init__(self, config: MathConfig, rule: Reward, template: Template) -> None:
        self.config, self.rule, self.template = config, rule, template
        self.name = f"ARTIST math{', gated' if config.gated else ''} ({rule.name})"
        self.judged = rule.judged

    def check(self, task: Task) -> None:
        """The rule must be able to score it."""
        self.rule.check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Score the answer by the rule; raises as the rule does. What the rule itself tells is in "answer.NAME"."""
        answer = await self.rule.score(task, trajectory)
        pieces = stream_of(trajectory)
        counts = answer.value >= 1 or not self.config.gated
        parts = {
            "answer": ANSWER * answer.value,
            "relaxed_format": TAG * sum(tags_present(pieces, self.template).values()) * counts,
            "strict_format": STRICT * is_strict(pieces, self.template) * counts,
            "tool_success": tool_success(trajectory) * counts,
        }
        inner = {f"answer.{name}": part for name, part in answer.parts.items()}
        return Score(value=_value(parts, MOST), parts=_with_total(parts) | inner, calls=answer.calls)

    async def close(self) -> None:
        """Whoever made the rule closes it."""


class FunctionCalling:
    """What of the state and of the expected calls was matched, and the format of the stream.

    The relaxed format counts each of four marks that the policy wrote anywhere: those that open and close its thoughts
    and its calls (our reading: the paper names two tags, and four parts).
    """

    judged = False

    def __init__(self, config: FunctionCallingConfig, template: Template) -> None:
        self.config, self.template = config, template
        self.name = f"ARTIST function calling{', gated' if config.gated else ''}"

    def check(self, task: Task) -> None:
        """Whether a task is a dialogue shows in its trajectory."""

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Read the outcome and the stream. Raises `RewardError` without an outcome."""
        outcome = outcome_of(trajectory, self.name)
        pieces = stream_of(trajectory)
        counts = outcome.success or not self.config.gated
        said = "\n".join(piece.text for piece in pieces if piece.sampled)
        parts = {
            "state": STATE * outcome.share("state"),
            "function": FUNCTION * outcome.share("calls"),
            "relaxed_format": CALLING_MARK * _marks_present(said, self.template) * counts,
            "strict_format": CALLING_STRICT * is_strict(pieces, self.template) * counts,
        }
        return Score(value=_value(parts, CALLING_MOST), parts=_with_total(parts))

    async def close(self) -> None:
        """Nothing to release."""


def tool_success(trajectory: Trajectory) -> float:
    """Succeeded / made over a trajectory's tool calls; 0 where none was made."""
    made = [turn.observation.status == "ok" for turn in trajectory.turns if turn.observation is not None]
    return sum(made) / len(made) if made else 0.0


def _marks_present(said: str, template: Template) -> int:
    """How many of the marks that open and close thoughts and calls stand in a text."""
    pairs = [template.tags[kind] for kind in ("think", "call") if kind in template.tags]
    marks = [re.escape(mark) for pair in pairs for mark in (pair.open, pair.close)]
    return sum(re.search(mark.replace(re.escape(ANY_TOOL), r"[\w.-]+"), said) is not None for mark in marks)


def _with_total(parts: Mapping[str, float]) -> dict[str, float]:
    return {**parts, "total": math.fsum(parts.values())}


def _value(parts: Mapping[str, float], most: float) -> float:
    return min(math.fsum(parts.values()) / most, 1.0)
