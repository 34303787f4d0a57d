"""The base generator: a language model answers a request directly, without tools."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, JsonValue

from midstream.components.component import ToolConfig
from midstream.core.engine import ORDER, Engine, Request
from midstream.core.errors import EngineError, PromptTooLongError, RefusedError, ToolServerError
from midstream.core.seeds import derive_seed
from midstream.core.text import spoken
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import text_arguments
from midstream.core.trajectory import Message, Sampling


async def ask(engine: Engine, tool: str, prompt: str, sampling: Sampling) -> ToolResult:
    """Send one user message for a tool and return the engine's answer without thoughts, and its call.

    The prompt determines the seed. `ok=False` if the answer is empty or the prompt too long for the model; `text` then
    gives the reason. Raises `ToolServerError`, whose `calls` hold the failed request, if the engine failed.

    The engine is shared, and its owner closes it. One in this process batches the request with those of the other
    trajectories, in the place of the trajectory that calls the tool.
    """
    request = Request(
        role=tool,
        messages=(Message(role="user", content=prompt),),
        sampling=sampling,
        seed=derive_seed(tool, prompt),
        order=ORDER.get(),
    )
    try:
        call = await engine.sample(request)
    except PromptTooLongError as error:
        return ToolResult(text=f"the request is too long: {error.what}", ok=False, calls=error.calls)
    except RefusedError:
        # The server refuses every request, so it stops the run and not this call alone.
        raise
    except EngineError as error:
        raise error.of(ToolServerError, f"the model of tool {tool} failed", code=error.code) from error
    text = spoken(call.completion).strip()
    return ToolResult(text=text or "the model gave no answer", ok=bool(text), calls=(call,))


class BaseGenerator(Tool):
    """Sends the request to an engine as one user message, unchanged (see `ask` for which engines can be used)."""

    name = "base_generator"
    description = "A language model that answers a request directly from what it knows: step-by-step reasoning, text."
    parameters: Mapping[str, JsonValue] = text_arguments(query="the request, with everything needed to answer it")

    def __init__(self, config: BaseGeneratorConfig, engine: Engine) -> None:
        self._engine = engine
        self._sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
        self.timeout_s = config.timeout_s
        self.output_tokens = config.max_tokens

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The engine's answer, with its call; `ok` and errors as for `ask`."""
        return await ask(self._engine, self.name, str(arguments["query"]), self._sampling)


class BaseGeneratorConfig(ToolConfig):
    """A language model that answers a request from what it knows.

    Attributes:
        temperature: 0 is greedy
        max_tokens: the most new tokens
        timeout_s: seconds of one call
    """

    component = BaseGenerator
    asks = "always"

    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=2048, ge=1)
    timeout_s: float = Field(default=500.0, gt=0)
