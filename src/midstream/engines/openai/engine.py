"""An engine behind any OpenAI-compatible HTTP server: OpenAI, vLLM, SGLang, Ollama, llama.cpp, OpenRouter.

Every reply is checked before it is used, whether it came as a whole or in a stream. What a second attempt may fix (429,
5xx, time-outs, resets, a body or stream that is cut off, is not JSON, holds no choice, no text, or an error under
status 200) is tried again with growing pauses. What it cannot fix (a wrong key, model or address) is an `EngineError`
at once, with its fix.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

from midstream.core.errors import DeadlineError, EngineError, PromptTooLongError, TransientError
from midstream.core.http import retry
from midstream.core.protocols import Codec, Request, Weights
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call, ErrorInfo, Usage
from midstream.engines.openai import adapters as lora
from midstream.engines.openai.exchange import Exchange, Outgoing, outgoing
from midstream.engines.openai.models import ModelContext
from midstream.engines.openai.prices import price_of
from midstream.engines.openai.providers import refusal_advice
from midstream.engines.openai.reply import Reply
from midstream.engines.openai.settings import OpenAIConfig

__all__ = ["OpenAICompatibleEngine", "OpenAIConfig"]

_NO_REPLY = Reply(text="", finish_reason="", prompt_tokens=0, completion_tokens=0)


class OpenAICompatibleEngine:
    """`core.protocols.Engine` over HTTP; one object serves any number of event loops, one after another or at once.

    With `codec` set, prompts are sent as the token ids that it gives; a server that reads other ids is an error.
    """

    takes_options = True

    def __init__(self, config: OpenAIConfig, name: str) -> None:
        self.config, self.name = config, name
        self.token_exact = config.token_ids
        self.codec: Codec | None = None
        self._model = config.model
        self._policy_version: int | None = None
        self._exchange = Exchange(config, name)
        self._context = ModelContext(config, name)
        self._adapters = lora.AdapterCalls(config, self._exchange.post)

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            EngineError: the server refuses, or every attempt failed; `calls` holds the failed call.
            PromptTooLongError: the server, or the engine before it, refuses what exceeds the context; likewise.
            DeadlineError: `request.deadline_s` passed first; likewise.
        """
        ids = None if self.codec is None else tuple(self.codec.encode(request))
        asked = outgoing(request, self.config, self._model, ids)
        version = self._policy_version  # read with the model's name: a later adapter is for later requests
        failures: list[str] = []
        deadline_s = None if request.deadline_s is None else request.deadline_s - time.monotonic()
        error: EngineError | DeadlineError
        try:
            async with asyncio.timeout(deadline_s):
                await self._context.check(request, ids)
                reply = await self._valid_reply(asked, request, failures)
            if ids is not None and self.config.token_ids and ids != reply.prompt_ids:
                raise self._changed_prompt(ids, reply.prompt_ids)
            if request.keep_stop and self.codec is not None and reply.completion_ids:
                reply = replace(reply, text=self.codec.decode(reply.completion_ids))  # the server cuts the last token
            return self._call(request, asked, version, failures, reply)
        except EngineError as failure:
            error = failure
            if failure.code == "request-refused" and self._context.exceeded(request, ids):
                error = PromptTooLongError(failure.what, **refusal_advice(self.config, self._model, 400, too_long=True))
        except TimeoutError:
            error = DeadlineError(
                f"{self.name} ({asked.sent['model']}) gave no answer before the deadline",
                code="deadline",
                fix="raise the trajectory's deadline, or lower max_tokens or max_concurrency",
            )
        info = ErrorInfo(type=type(error).__name__, message=str(error), retryable=error.retryable)
        error.calls = (self._call(request, asked, version, failures, _NO_REPLY, info),)
        raise error

    async def use_weights(self, weights: Weights) -> None:
        """Sample from the newest weights: the server loads them as a LoRA adapter. Prompts are sent as token ids."""
        self.codec = weights.codec  # ids in and out: nothing depends on the server's chat template
        await lora.hand_over(self, weights.export, weights.directory, weights.version)

    async def use_adapter(self, version: int, path: Path) -> None:
        """Sample from the LoRA adapter at `path` (on the server's disk) from now on; calls record `version`."""
        self._model, self._policy_version = await self._adapters.load(path), version

    async def drop_adapter(self, path: Path) -> None:
        """Unload the adapter at `path` from the server, if it is loaded."""
        await self._adapters.unload(path)

    async def close(self) -> None:
        """Leave this event loop's connections; they close with their last user. A later request opens new ones."""
        await self._exchange.close()

    async def _valid_reply(self, asked: Outgoing, request: Request, failures: list[str]) -> Reply:
        """The first valid reply; `failures` collects the reasons of the attempts before it."""

        async def attempt() -> Reply:
            try:
                return await self._exchange.reply(asked, request.emit)
            except TransientError as failure:
                failures.append(str(failure))
                request.emit("retry", str(failure))
                raise

        attempts = self.config.max_attempts
        try:
            return await retry(attempt, max_attempts=attempts, pause_s=lambda failed: self._pause_s(failed, request))
        except TransientError as failure:
            raise EngineError(
                f"{self.name} at {asked.sent['base_url']} failed {attempts} times, last: {failure}",
                code="endpoint-failed",
                fix="look at the server's log; lower max_concurrency, or raise max_attempts or timeout_s",
            ) from failure

    def _pause_s(self, failed: int, request: Request) -> float:
        """Twice as long after each failure, half of it random: drawn from the request, so that a run repeats."""
        chance = random.Random(derive_seed(request.seed, request.order, request.role, failed)).uniform(0.5, 1.0)
        return self.config.first_pause_s * 2 ** (failed - 1) * chance

    def _changed_prompt(self, sent: tuple[int, ...], read: tuple[int, ...]) -> EngineError:
        same = next((i for i, pair in enumerate(zip(sent, read, strict=False)) if pair[0] != pair[1]), len(read))
        return EngineError(
            f"{self.name} was sent {len(sent)} token ids and read {len(read)}, the same up to number {same}",
            code="prompt-changed",
            fix=f"vllm serve {self.config.model} with the tokenizer that encodes here; no truncate_prompt_tokens",
            retryable=False,
        )

    def _call(
        self,
        request: Request,
        asked: Outgoing,
        version: int | None,
        failures: list[str],
        reply: Reply,
        error: ErrorInfo | None = None,
    ) -> Call:
        usage = Usage(prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)
        prompt_usd, completion_usd = price_of(self.config)
        cost = usage.prompt_tokens * prompt_usd + usage.completion_tokens * completion_usd
        return request.answered(
            self.name,
            reply.text,
            prompt_ids=reply.prompt_ids,
            completion_ids=reply.completion_ids,
            logprobs=reply.logprobs,
            policy_version=version,
            finish_reason=reply.finish_reason,
            usage=usage.model_copy(update={"cost_usd": cost / 1e6}) if cost else usage,
            sent=asked.sent,
            failures=tuple(failures),
            error=error,
        )
