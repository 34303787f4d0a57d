"""A plain function as an engine: `type = "my_model.py:answer"`.

def answer(messages) -> str:
    return "42"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from midstream.core.component import Context, EngineConfig, Kind
from midstream.core.errors import EngineError, InfrastructureError
from midstream.core.own_settings import (
    called,
    class_or_object,
    described,
    own_values,
    parameters_of,
    plain_function,
    settings_of,
    where_raised,
)
from midstream.core.protocols import Engine, Request
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Call, Usage

GIVEN = ("messages", "request", "seed")


class FunctionEngine(Engine):
    """A function of a request's messages as a model; it returns the reply's text, or a whole `Call`.

    `messages` are dictionaries with `role` and `content`; `request` is all of it, with tools and sampling. Four
    characters count as a token.
    """

    token_exact = False

    def __init__(self, name: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self.name, self._function, self._settings = name, function, settings
        self._takes = parameters_of(name, function).keys() & GIVEN

    async def sample(self, request: Request) -> Call:
        """The function's reply. Raises `EngineError` if it raises, or returns no text."""
        messages = [message.model_dump() for message in request.messages]
        if request.prompt:
            messages = [{"role": "user", "content": request.prompt}]
        values = {"messages": messages, "request": request, "seed": request.seed}
        try:
            found = await called(self._function, {name: values[name] for name in self._takes} | dict(self._settings))
        except InfrastructureError:
            raise
        except Exception as error:  # what a user's function raises can be anything
            raise EngineError(
                f"engine {self.name} raised {described(error)}",
                code="component-failed",
                cause=where_raised(error),
                fix="correct the function",
            ) from error
        if isinstance(found, Call):
            return found
        if not isinstance(found, str):
            raise EngineError(
                f"engine {self.name} returned {found!r:.100}",
                code="component-failed",
                fix="return the reply's text",
                retryable=False,
            )
        prompt = sum(len(message["content"]) for message in messages)
        counts = [-(-size // CHARACTERS_PER_TOKEN) for size in (prompt, len(found))]
        return Call(
            role=request.role,
            engine=self.name,
            prompt=request.prompt,
            messages=request.messages,
            completion=found,
            sampling=request.sampling,
            finish_reason="stop",
            usage=Usage(prompt_tokens=counts[0], completion_tokens=counts[1]),
        )


def own_engine(kind: Kind, reference: str, value: Any) -> type[EngineConfig]:
    """The settings of an engine of your own: a function, or a class or object with `sample`."""
    if made := class_or_object(kind, EngineConfig, reference, value, Engine, "sample"):
        return made
    function = plain_function(kind, reference, value, "a function of `messages` that returns the reply's text")

    def build(self: EngineConfig, context: Context) -> FunctionEngine:
        return FunctionEngine(context.name, function, own_values(self))

    return settings_of(EngineConfig, reference, function, build=build, given=GIVEN)
