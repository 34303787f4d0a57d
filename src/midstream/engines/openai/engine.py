"""An engine behind any OpenAI-compatible HTTP server: OpenAI, vLLM, SGLang, Ollama, llama.cpp, OpenRouter.

A reply is believed only after it was checked, whether it came whole or in a stream. What a second try may fix (429,
5xx, time-outs, resets, a body or stream that is cut off, is no JSON, holds no choice, no text, or an error under status
200) is tried again with growing pauses; what it cannot fix (a wrong key, model or address) is an `EngineError` at once
that says what to do.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from pydantic import Field, JsonValue, field_validator

from midstream.core.data import Frozen
from midstream.core.errors import DeadlineError, EngineError, RecipeError
from midstream.core.http import TransientError
from midstream.core.protocols import Codec, Request
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call, ErrorInfo, Usage
from midstream.engines.openai import adapters as lora
from midstream.engines.openai import pool as http_pool
from midstream.engines.openai.exchange import Exchange
from midstream.engines.openai.providers import PROVIDERS, ProviderName, default_base_url, limit_field
from midstream.engines.openai.reply import LONGEST_PAUSE_S, Reply
from midstream.engines.openai.request import Outgoing, outgoing

_NO_REPLY = Reply(text="", finish_reason="", prompt_tokens=0, completion_tokens=0)


class Config(Frozen):
    """Where the model is and how patiently to ask for it.

    `provider` gives `base_url` and `api_key_env` where they are not set, and the commands that errors name. Engines of
    one address share its connections and the smallest `max_concurrency` among them. `token_ids` asks for the sampled
    token ids and their log-probabilities, which training needs. Only vLLM gives them, and under the sampling
    temperature only if started with `--logprobs-mode processed_logprobs`. `stream` has replies come in pieces, for
    those who watch. `timeout_s` bounds one attempt, of a stream the wait for its next piece (and ten times as long the
    whole); `first_pause_s` is the pause before the second attempt (each later pause is twice as long, up to a minute).
    Prices are US dollars per million tokens. `extra_body` is added to every request as it is, e.g.
    {"chat_template_kwargs": {"enable_thinking": false}}.
    """

    model: str
    provider: ProviderName = "openai"
    # Older versions of pydantic call a default's factory where `provider` is wrong, and so not known.
    base_url: str = Field(
        default_factory=lambda known: default_base_url(known.get("provider", "openai")), validate_default=True
    )
    api_key_env: str = Field(default_factory=lambda known: PROVIDERS[known.get("provider", "openai")].api_key_env)
    max_concurrency: int = Field(default=32, ge=1)
    timeout_s: float = Field(default=300.0, gt=0)
    max_attempts: int = Field(default=8, ge=1)
    first_pause_s: float = Field(default=0.5, ge=0)
    stream: bool = False
    token_ids: bool = False
    price_prompt_usd: float = Field(default=0.0, ge=0)
    price_completion_usd: float = Field(default=0.0, ge=0)
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII):
            raise RecipeError(  # a ValueError would show the value, which may be the key
                "api_key_env is not the name of an environment variable",
                cause="the key itself may stand there; it would be written into run directories",
                fix='export OPENAI_API_KEY=<your key>, and api_key_env = "OPENAI_API_KEY"',
            )
        return value

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if any(mark in value for mark in "@?#"):
            raise RecipeError(  # a ValueError would show the address
                "base_url holds a user name, a password, a query or a fragment",
                cause="it is written into run directories, where no secret belongs",
                fix='base_url = "https://host/v1", and the key in the environment variable that api_key_env names',
            )
        try:
            url = urlsplit(value)
            sound = url.scheme in ("http", "https") and url.hostname and url.port != 0 and value.isascii()
            httpx2.URL(value)
        except (ValueError, httpx2.InvalidURL):  # a port out of range, half an IPv6 address, a control character
            sound = False
        if not sound or any(character <= " " for character in value):
            raise ValueError("not an address such as http://localhost:11434/v1")
        return value


class OpenAICompatibleEngine:
    """`core.protocols.Engine` over HTTP; one object serves any number of event loops, one after another or at once.

    With `codec` set, prompts go out as the token ids that it gives, and a reply to other ids is an error.
    """

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.name = config, name
        self.token_exact = config.token_ids
        self.codec: Codec | None = None
        self._model = config.model
        self._policy_version: int | None = None
        self._base_url = config.base_url.rstrip("/")
        self._limit = limit_field(config.provider, self._base_url)
        self._exchange = Exchange(config, name)

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            EngineError: the server refuses, or every attempt failed; `calls` holds the failed call.
            DeadlineError: `request.deadline_s` passed first; likewise.
        """
        asked, ids = self._outgoing(request)
        version = self._policy_version  # with the model's name: an adapter that comes meanwhile is for later requests
        failures: list[str] = []
        left_s = None if request.deadline_s is None else request.deadline_s - time.monotonic()
        error: EngineError | DeadlineError
        try:
            async with asyncio.timeout(left_s):
                reply = await self._until_valid(asked, request, failures)
            if ids is not None and self.config.token_ids:
                self._check_echo(ids, reply.prompt_ids)
            if request.keep_stop and self.codec is not None and reply.completion_ids:
                reply = replace(reply, text=self.codec.decode(reply.completion_ids))  # the server cuts the last token
            return self._call(request, asked, version, failures, reply)
        except EngineError as failure:
            error = failure
        except TimeoutError:
            error = DeadlineError(
                f"{self.name} ({asked.sent['model']}) gave no answer before the deadline",
                cause="the server is slow, overloaded or failing, or the trajectory's time was nearly spent",
                fix="raise the trajectory's deadline, or lower max_tokens or max_concurrency",
            )
        info = ErrorInfo(type=type(error).__name__, message=str(error), retryable=error.retryable)
        error.calls = (self._call(request, asked, version, failures, _NO_REPLY, info),)
        raise error

    async def use_adapter(self, version: int, path: Path) -> None:
        """Sample from the LoRA adapter at `path` (on the server's disk) from now on; calls record `version`."""
        self._model, self._policy_version = await self._adapters.load(path), version

    async def drop_adapter(self, path: Path) -> None:
        """Have the server unload the adapter at `path`, if it has it."""
        await self._adapters.unload(path)

    @property
    def _adapters(self) -> lora.AdapterCalls:
        config = self.config
        return lora.AdapterCalls(
            send=self._send_adapter_call,
            address=self._base_url,
            model=config.model,
            max_attempts=config.max_attempts,
            first_pause_s=config.first_pause_s,
        )

    async def _send_adapter_call(self, action: str, body: dict[str, str]) -> tuple[int, str]:
        return await self._exchange.post(await self._endpoint(), action, json.dumps(body).encode())

    async def close(self) -> None:
        """Leave this event loop's connections, which close if no other engine uses them; a later request joins anew."""
        await (await http_pool.endpoint_of(self._base_url)).leave(self)

    # --- one request --------------------------------------------------------------------------------------------

    def _outgoing(self, request: Request) -> tuple[Outgoing, tuple[int, ...] | None]:
        config = self.config
        ids = None if self.codec is None else tuple(self.codec.encode(request))
        asked = outgoing(
            request,
            model=self._model,
            limit=self._limit,
            token_ids=config.token_ids,
            stream=config.stream,
            extra_body=config.extra_body,
            prompt_ids=ids,
        )
        asked.sent["base_url"] = self._base_url
        return asked, ids

    def _call(
        self,
        request: Request,
        asked: Outgoing,
        version: int | None,
        failures: list[str],
        reply: Reply,
        error: ErrorInfo | None = None,
    ) -> Call:
        price, usage = self.config, Usage(prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)
        cost = usage.prompt_tokens * price.price_prompt_usd + usage.completion_tokens * price.price_completion_usd
        return Call(
            role=request.role,
            engine=self.name,
            prompt=request.prompt,
            messages=request.messages,
            completion=reply.text,
            prompt_ids=reply.prompt_ids,
            completion_ids=reply.completion_ids,
            logprobs=reply.logprobs,
            sampling=request.sampling,
            policy_version=version,
            finish_reason=reply.finish_reason,
            usage=usage.model_copy(update={"cost_usd": cost / 1e6}) if cost else usage,
            sent=asked.sent,
            failures=tuple(failures),
            error=error,
        )

    async def _until_valid(self, asked: Outgoing, request: Request, failures: list[str]) -> Reply:
        """The first checked reply; `failures` gathers the reasons of the attempts before it."""
        for attempt in range(1, self.config.max_attempts + 1):
            endpoint = await self._endpoint()
            try:
                async with endpoint.slots:
                    return await self._exchange.reply(endpoint, asked, request.tell)
            except TransientError as failure:
                failures.append(str(failure))
                request.tell("retry", str(failure))
                if attempt == self.config.max_attempts:
                    raise EngineError(
                        f"{self.name} at {self._base_url} failed {attempt} times, at last: {failure}",
                        cause="the server is overloaded or broken",
                        fix="look at the server's log; lower max_concurrency, or raise max_attempts or timeout_s",
                    ) from failure
                await asyncio.sleep(self._pause_s(failure, attempt, request))
        raise AssertionError("max_attempts is at least 1")

    def _pause_s(self, failure: TransientError, attempt: int, request: Request) -> float:
        """Twice as long each time, half of it random (by the request, so that it repeats); never below Retry-After."""
        full = self.config.first_pause_s * 2 ** (attempt - 1)
        chance = random.Random(derive_seed(request.seed, request.order, request.role, attempt)).uniform(0.5, 1.0)
        return min(max(full * chance, failure.pause_s), LONGEST_PAUSE_S)

    def _check_echo(self, sent: tuple[int, ...], read: tuple[int, ...]) -> None:
        if sent == read:
            return
        same = next((i for i, pair in enumerate(zip(sent, read, strict=False)) if pair[0] != pair[1]), len(read))
        error = EngineError(
            f"{self.name} was sent {len(sent)} token ids and read {len(read)}, the same up to number {same}",
            cause="the server changes prompts: it cuts them off, adds a token at their start, or has another tokenizer",
            fix=f"vllm serve {self.config.model} with the tokenizer that encodes here; no truncate_prompt_tokens",
        )
        error.retryable = False
        raise error

    async def _endpoint(self) -> http_pool.Endpoint:
        """The running loop's connections to the server."""
        endpoint = await http_pool.endpoint_of(self._base_url)
        endpoint.join(self, self.config.max_concurrency)
        return endpoint
