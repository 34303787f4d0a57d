"""A model that is a function of its prompt and seed: the agents and reflectors of the simulated worlds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from midstream.components.component import Context, EngineConfig
from midstream.core.engine import Engine, Request
from midstream.core.errors import RecipeError
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Call, Message, Usage

if TYPE_CHECKING:
    from midstream.recipe.schema import Recipe

Reply = Callable[[Sequence[Message], int], str]  # (messages, seed) -> the model's reply
_HEADING = re.compile(r"^# (.+)\n", re.MULTILINE)
_SEEDS = 2**31  # as many as a request to a model server can hold


@runtime_checkable
class Plays(Protocol):
    """A task source with programs that stand in for models on its tasks; its settings name them as `plays`."""

    def play(self, role: str, skill: float, context: Context) -> Reply:
        """Return the function from messages and a seed to the reply of `role`, one of the settings' `plays`."""
        ...


class SimulatedConfig(EngineConfig):
    """A program of a simulated world that plays a model.

    Four characters count as a token.

    Attributes:
        plays: `agent` or `reflector`
        skill: at the desks, the probability that a call is right; other worlds set their own
        price_prompt_usd: dollars per million prompt tokens
        price_completion_usd: dollars per million completion tokens
    """

    limits = (
        "A model is simulated: it follows rules that are known. What this shows is that the loop, the gate and its "
        "statistics work; it says nothing about how much a real model gains."
    )

    plays: Literal["agent", "reflector"]
    skill: float = Field(default=1.0, ge=0, le=1)
    price_prompt_usd: float = Field(default=0.0, ge=0)
    price_completion_usd: float = Field(default=0.0, ge=0)

    def check_recipe(self, where: str, recipe: Recipe) -> None:
        """Check that a program of the tasks' world plays what is asked for. Raises `RecipeError`."""
        tasks = recipe.tasks
        plays: tuple[str, ...] = getattr(tasks.config, "plays", ())
        if self.plays not in plays:
            raise RecipeError(
                f"{where}.plays = {self.plays!r} with tasks.type = {tasks.type!r}",
                code="setting-conflict",
                cause=f"on these tasks a program plays: {' or '.join(plays) or 'nothing'}",
                fix="use an engine of type openai_compatible, or the tasks of a world that has such a program",
            )
        if self.skill != 1 and tasks.type != "desks":
            raise RecipeError(
                f"{where}.skill = {self.skill!r} with tasks.type = {tasks.type!r}",
                code="setting-conflict",
                cause="only the agent at the desks has a skill; elsewhere the tasks' settings decide success",
                fix="remove `skill`",
            )

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
        """The function's reply. Raises `RecipeError` for a text without messages, as those of `action_lines` are."""
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
