"""Tools that ask a language model: one request, its text and its call."""

from __future__ import annotations

from midstream.core.errors import EngineError, PromptTooLongError, ToolServerError
from midstream.core.protocols import Engine, Request, ToolResult
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Message, Sampling


async def ask(engine: Engine, tool: str, prompt: str, sampling: Sampling) -> ToolResult:
    """The engine's answer to one user message, with its call; the seed is the prompt's own.

    `ok=False` where the answer is empty or the prompt too long for the model: `text` then says so.

    The engine is shared, and whoever made it closes it. It must not be a lockstep engine that waits for all live
    trajectories: this request is no turn of theirs.

    Raises:
        ToolServerError: the engine failed; `calls` holds the failed request.
    """
    request = Request(
        role=tool, messages=(Message(role="user", content=prompt),), sampling=sampling, seed=derive_seed(tool, prompt)
    )
    try:
        call = await engine.sample(request)
    except PromptTooLongError as error:
        return ToolResult(text=f"the request is too long: {error.what}", ok=False, calls=error.calls)
    except EngineError as error:
        failed = ToolServerError(f"the model of tool {tool} failed: {error.what}", cause=error.cause, fix=error.fix)
        failed.calls, failed.retryable = error.calls, error.retryable
        raise failed from error
    text = call.completion.strip()
    return ToolResult(text=text or "the model gave no answer", ok=bool(text), calls=(call,))
