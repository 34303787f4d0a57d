"""The two rewards of ARTIST (arXiv 2505.01441), every part by its name in the paper's own units.

    artist_math        most    function_calling             most
    answer             2       state                        0.5
    relaxed_format     0.5     function                     0.5
    strict_format      0.5     relaxed_format               0.1
    tool_success       1       strict_format                0.1
    total              4       total                        1.2

A score's value is its total divided by the maximum, because rewards lie in [0, 1]; advantages are normalized over a
group, so the scale changes nothing. `gated` counts the format, and the success of tools, only if the answer or the
dialogue is right: otherwise a policy earns half an answer by print(1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from midstream.components.component import Context, RewardConfig
from midstream.components.tables import parse_component
from midstream.core.source import Reward
from midstream.core.stream import is_strict, stream_of, tags_present
from midstream.core.stream_template import ANY_TOOL, Template
from midstream.core.task import Task
from midstream.core.trajectory import Call, Score, Trajectory
from midstream.rewards.dialogue import outcome_of
from midstream.rewards.rule import BaseReward

ANSWER, TAG, STRICT = 2.0, 0.125, 0.5
MOST = ANSWER + 4 * TAG + STRICT + 1.0
STATE, FUNCTION, CALLING_MARK, CALLING_STRICT = 0.5, 0.5, 0.025, 0.1
CALLING_MOST = 1.2


class ArtistMathConfig(RewardConfig):
    """ARTIST's reward for mathematics (arXiv 2505.01441): answer, format and tool success.

    Attributes:
        answer: the type of the rule-based reward that scores the answer
        gated: the other parts count only if the answer is right
    """

    of_stream = True

    answer: str = "math"
    gated: bool = False

    def build(self, context: Context) -> ArtistMath:
        """Build it."""
        answer = context.reward(parse_component("reward", {"type": self.answer}, "reward.answer"))
        assert context.template is not None, "recipe/check.py requires an agent with a template"
        return ArtistMath(self, answer, context.template)


class FunctionCallingConfig(RewardConfig):
    """ARTIST's reward for function calling (arXiv 2505.01441): state, calls and format.

    Attributes:
        gated: the format counts only if the dialogue succeeded
    """

    of_dialogues = True
    of_stream = True

    gated: bool = False

    def build(self, context: Context) -> ArtistFunctionCalling:
        """Build it."""
        assert context.template is not None, "recipe/check.py requires an agent with a template"
        return ArtistFunctionCalling(self, context.template)


class ArtistMath(BaseReward):
    """The answer by a rule, the format of the stream, and the share of tool calls that succeeded.

    Each of the tags think, call, output and answer counts in the relaxed format if it is there and closed; output only
    if the environment wrote it. The strict format requires all of them in order (`core.stream.is_strict`). A template
    without some of them earns less. A call counts as made if it was answered, malformed ones too; without any call,
    tool success is 0.
    """

    def __init__(self, config: ArtistMathConfig, rule: Reward, template: Template) -> None:
        self.config, self.rule, self.template = config, rule, template
        self.name = f"ARTIST math{', gated' if config.gated else ''} ({rule.name})"
        self.judged = rule.judged

    def check(self, task: Task) -> None:
        """The rule must be able to score it."""
        self.rule.check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Score the answer by the rule; raises as the rule does. The rule's own parts are in "answer.NAME"."""
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
        return _score(parts, MOST, inner, answer.calls)


class ArtistFunctionCalling(BaseReward):
    """The matched shares of the state and of the expected calls, and the format of the stream.

    The relaxed format counts each of four marks that the policy wrote anywhere: those that open and close its thoughts
    and its calls (our reading: the paper names two tags, and four parts).
    """

    def __init__(self, config: FunctionCallingConfig, template: Template) -> None:
        self.config, self.template = config, template
        self.name = f"ARTIST function calling{', gated' if config.gated else ''}"

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Read the outcome and the stream. Raises `RewardError` without an outcome."""
        outcome = outcome_of(trajectory, self.name)
        pieces = stream_of(trajectory)
        counts = outcome.success or not self.config.gated
        written = "\n".join(piece.text for piece in pieces if piece.sampled)
        tags = [self.template.tags[kind] for kind in ("think", "call") if kind in self.template.tags]
        marks = [
            re.escape(mark).replace(re.escape(ANY_TOOL), r"[\w.-]+") for tag in tags for mark in (tag.open, tag.close)
        ]
        parts = {
            "state": STATE * outcome.share("state"),
            "function": FUNCTION * outcome.share("calls"),
            "relaxed_format": CALLING_MARK * sum(re.search(mark, written) is not None for mark in marks) * counts,
            "strict_format": CALLING_STRICT * is_strict(pieces, self.template) * counts,
        }
        return _score(parts, CALLING_MOST, {}, ())


def tool_success(trajectory: Trajectory) -> float:
    """Succeeded / made over a trajectory's tool calls; 0 if none was made."""
    made = [turn.observation.status == "ok" for turn in trajectory.turns if turn.observation is not None]
    return sum(made) / len(made) if made else 0.0


def _score(parts: Mapping[str, float], most: float, inner: Mapping[str, float], calls: Sequence[Call]) -> Score:
    total = math.fsum(parts.values())
    return Score(value=min(total / most, 1.0), parts={**parts, "total": total, **inner}, calls=tuple(calls))
