"""ARTIST's reward for mathematics (arXiv 2505.01441), every part by its name in the paper's own units.

    answer 2    relaxed_format 0.5    strict_format 0.5    tool_success 1    total 4

A score's value is its total divided by the maximum, because rewards lie in [0, 1]; advantages are normalized over a
group, so the scale changes nothing. `gated` counts the format, and the success of tools, only if the answer is right:
otherwise a policy earns half an answer by print(1). The reward for function calling is in midstream-benchmarks.
"""

from __future__ import annotations

import math

from midstream.components.component import Context, RewardConfig
from midstream.components.tables import parse_component
from midstream.core.source import Reward
from midstream.core.stream import stream_of
from midstream.core.stream_template import Template
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward
from midstream_worlds.stream_format import is_strict, tags_present

ANSWER, TAG, STRICT = 2.0, 0.125, 0.5
MOST = ANSWER + 4 * TAG + STRICT + 1.0


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


class ArtistMath(BaseReward):
    """The answer by a rule, the format of the stream, and the share of tool calls that succeeded.

    Each of the tags think, call, output and answer counts in the relaxed format if it is there and closed; output only
    if the environment wrote it. The strict format requires all of them in order (`stream_format.is_strict`). A template
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
        made = [turn.observation.status == "ok" for turn in trajectory.turns if turn.observation is not None]
        parts = {
            "answer": ANSWER * answer.value,
            "relaxed_format": TAG * sum(tags_present(pieces, self.template).values()) * counts,
            "strict_format": STRICT * is_strict(pieces, self.template) * counts,
            "tool_success": (sum(made) / len(made) if made else 0.0) * counts,
        }
        total = math.fsum(parts.values())
        inner = {f"answer.{name}": part for name, part in answer.parts.items()}
        return Score(value=min(total / MOST, 1.0), parts={**parts, "total": total, **inner}, calls=answer.calls)
