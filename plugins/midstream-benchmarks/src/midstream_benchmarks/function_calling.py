"""ARTIST's reward for function calling (arXiv 2505.01441), every part by its name in the paper's own units.

    state 0.5    function 0.5    relaxed_format 0.1    strict_format 0.1    total 1.2

A score's value is its total divided by the maximum, because rewards lie in [0, 1]; advantages are normalized over a
group, so the scale changes nothing.
"""

from __future__ import annotations

import math
import re

from midstream.components.component import Context, RewardConfig
from midstream.core.stream import stream_of
from midstream.core.stream_template import ANY_TOOL, Template
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import BaseReward
from midstream_worlds.dialogue_reward import outcome_of
from midstream_worlds.stream_format import is_strict

STATE, FUNCTION, MARK, STRICT = 0.5, 0.5, 0.025, 0.1
MOST = 1.2


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
            "relaxed_format": MARK * sum(re.search(mark, written) is not None for mark in marks) * counts,
            "strict_format": STRICT * is_strict(pieces, self.template) * counts,
        }
        total = math.fsum(parts.values())
        return Score(value=min(total / MOST, 1.0), parts={**parts, "total": total})
