"""A model that is a function of its prompt and seed: the agents and reflectors of the simulated worlds (`worlds/`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from midstream.core.component import Context, EngineConfig
from midstream.core.errors import RecipeError
from midstream.core.protocols import Engine, Plays, Request
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Call, Message, Usage

Reply = Callable[[Sequence[Message], int], str]  # (messages, seed) -> the model's reply
_HEADING = re.compile(r"^# (.+)\n", re.MULTILINE)
_SEEDS = 2**31  # as many as a request to a model server can hold


class SimulatedConfig(EngineConfig):
    """A program of a simulated world that plays a model.

    Four characters count as a token.

    Attributes:
        plays: `agent` or `reflector`
        skill: at the desks, the probability that a call is right; other worlds set their own
        price_prompt_usd: dollars per million prompt tokens
        price_completion_usd: dollars per million completion tokens
    """

    plays: Literal["agent", "reflector"]
    skill: float = Field(default=1.0, ge=0, le=1)
    price_prompt_usd: float = Field(default=0.0, ge=0)
    price_completion_usd: float = Field(default=0.0, ge=0)

    def build(self, context: Context) -> SimulatedEngine:
        """Build it."""
        assert isinstance(context.source, Plays)
        return SimulatedEngine(context.source.play(self.plays, self.skill, context), self, context.name)


class SimulatedEngine(Engine):
    """A function of messages and seed, in process."""

    token_exact = False

    def __init__(self, reply: Reply, config: SimulatedConfig, name: str) -> None:
        self.name, self.config = name, config
        self._reply = reply

    async def sample(self, request: Request) -> Call:
        """The function's reply. Raises `RecipeError` for a text without messages, as the compact planner's are."""
        if not request.messages:
            raise RecipeError(
                f"engine {self.name!r} was asked to continue a text by the {request.role}",
                code="engine-chat-only",
                fix='give the module type = "prompted", or another engine',
            )
        completion = self._reply(request.messages, request.seed % _SEEDS)
        characters = sum(len(message.content) for message in request.messages)
        prompt_tokens, completion_tokens = (-(-size // CHARACTERS_PER_TOKEN) for size in (characters, len(completion)))
        cost = prompt_tokens * self.config.price_prompt_usd + completion_tokens * self.config.price_completion_usd
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost_usd=cost / 1e6)
        return request.answered(self.name, completion, finish_reason="stop", usage=usage)


def sections_of(prompt: str) -> dict[str, str]:
    """The sections of a prompt by their headings."""
    parts = _HEADING.split(prompt)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def json_lines(section: str) -> Iterator[dict[str, Any]]:
    """The lines of JSON in a section; other lines are for people."""
    return (json.loads(line) for line in section.splitlines() if line.startswith("{"))


def merged_change(proposal: Mapping[str, Any], proposals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A change as the merger returns it, with the `proposals` that it stands for."""
    kept = {key: proposal[key] for key in ("kind", "id", "text", "module", "why") if key in proposal}
    return {**kept, "from": [source["proposal"] for source in proposals]}
