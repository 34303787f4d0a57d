"""The base generator: a language model answers a request directly, without tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue

from midstream.core.data import Frozen
from midstream.core.protocols import Engine, ToolResult
from midstream.core.trajectory import Sampling
from midstream.tools.web.asking import ask


class Config(Frozen):
    """Settings of the base generator. `temperature` 0 is greedy, `timeout_s` wall-clock seconds of one call."""

    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=2048, ge=1)
    timeout_s: float = Field(default=500.0, gt=0)


class BaseGenerator:
    """Sends the request to an engine as one user message, as it stands (`asking.ask` says what engine will do)."""

    name = "base_generator"
    description = "A language model that answers a request directly from what it knows: step-by-step reasoning, text."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "the request, with everything needed to answer it"}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, engine: Engine, config: Config | None = None) -> None:
        config = config or Config()
        self._engine = engine
        self._sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
        self.timeout_s = config.timeout_s
        self.output_tokens = config.max_tokens

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The engine's answer, with its call; an empty one, or a request too long for the model, is `ok=False`.

        Raises:
            ToolServerError: the engine failed.
        """
        return await ask(self._engine, self.name, str(arguments["query"]), self._sampling)

    async def close(self) -> None:
        """Nothing to release: the engine belongs to whoever made it."""
