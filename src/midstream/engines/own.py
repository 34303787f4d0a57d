"""A plain function as an engine: `type = "my_model.py:answer"`.

def answer(messages) -> str:
    return "42"
"""

from __future__ import annotations

from pydantic import Field

from midstream.components.component import EngineConfig, Kind
from midstream.components.own_settings import OwnFunction, class_or_object
from midstream.core.engine import Engine, Request
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Call, Usage
from midstream.engines.openai.providers import price_of

GIVEN = ("messages", "request", "seed")


class FunctionEngineSettings(EngineConfig):
    """Settings of a function as an engine, next to those that it takes itself.

    Attributes:
        price_prompt_usd: dollars per million prompt tokens; 0 if it costs nothing
        price_completion_usd: dollars per million completion tokens
    """

    price_prompt_usd: float | None = Field(default=None, ge=0)
    price_completion_usd: float | None = Field(default=None, ge=0)


class FunctionEngine(Engine):
    """A function of a request's messages as a model; it returns the reply's text, or a whole `Call`.

    `messages` are dictionaries with `role` and `content`; `request` is all of it, with tools and sampling. Four
    characters count as a token. A `Call` costs what its `usage` says, a text what the settings' prices say.
    """

    token_exact = False

    def __init__(self, name: str, function: OwnFunction, settings: FunctionEngineSettings) -> None:
        self.name, self._function, self._settings = name, function, settings

    async def sample(self, request: Request) -> Call:
        """The function's reply. Raises `EngineError` if it raises, or returns no text."""
        messages = [message.wire() for message in request.messages]
        if request.prompt:
            messages = [{"role": "user", "content": request.prompt}]
        values = {"messages": messages, "request": request, "seed": request.seed}
        found = await self._function.called(self._settings, values)
        if isinstance(found, Call):
            return found
        if not isinstance(found, str):
            raise self._function.wrong(found, "return the reply's text")
        prompt = sum(len(str(message["content"])) for message in messages)
        counts = [-(-size // CHARACTERS_PER_TOKEN) for size in (prompt, len(found))]
        cost = sum(count * price for count, price in zip(counts, price_of(self._settings), strict=True)) / 1e6
        usage = Usage(prompt_tokens=counts[0], completion_tokens=counts[1], cost_usd=cost)
        return request.answered(self.name, found, finish_reason="stop", usage=usage)


def own_engine(kind: Kind, reference: str, value: object) -> type[EngineConfig]:
    """The settings of an engine of your own: a function, or a class or object with `sample`."""
    if made := class_or_object(kind, EngineConfig, reference, value, Engine, "sample"):
        return made
    function = OwnFunction(kind, reference, value, GIVEN, "a function of `messages` that returns the reply's text")
    return function.settings(
        FunctionEngineSettings, build=lambda settings, context: FunctionEngine(context.name, function, settings)
    )
