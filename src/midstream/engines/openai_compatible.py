"""An engine behind any OpenAI-compatible HTTP server: OpenAI, vLLM, SGLang, Ollama, llama.cpp.

A reply is believed only after it was checked. What a second try may mend (429, 5xx, time-outs, resets, a body that is
cut off, is no JSON, holds no choice, no text, or an error under status 200) is tried again with growing pauses; what it
cannot mend (a wrong key, model or address) is an `EngineError` at once that says what to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
from pydantic import Field, JsonValue, field_validator

from midstream.core.data import Frozen
from midstream.core.errors import DeadlineError, EngineError
from midstream.core.protocols import Request
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call, Usage
from midstream.engines.openai_reply import (
    Reply,
    TransientError,
    checked_reply,
    decoded,
    reported_error,
    retry_after_s,
)

_LONGEST_PAUSE_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_RETRIED_STATUS = {408, 409, 425, 429}
_OPENAI_HOST = "api.openai.com"


class Config(Frozen):
    """Where the model is and how patiently to ask for it.

    `token_ids` asks for the sampled token ids and their log-probabilities, which training needs. Only vLLM gives them,
    and under the sampling temperature only if started with `--logprobs-mode processed_logprobs`. `timeout_s` bounds one
    attempt, `first_pause_s` is the pause before the second one (each later pause is twice as long, up to a minute).
    Prices are US dollars per million tokens. `extra_body` is added to every request as it is, e.g.
    {"chat_template_kwargs": {"enable_thinking": false}}.
    """

    model: str
    base_url: str = Field(default_factory=lambda: os.environ.get("OPENAI_BASE_URL") or f"https://{_OPENAI_HOST}/v1")
    api_key_env: str = "OPENAI_API_KEY"
    max_concurrency: int = Field(default=32, ge=1)
    timeout_s: float = Field(default=300.0, gt=0)
    max_attempts: int = Field(default=8, ge=1)
    first_pause_s: float = Field(default=0.5, ge=0)
    token_ids: bool = False
    price_prompt_usd: float = Field(default=0.0, ge=0)
    price_completion_usd: float = Field(default=0.0, ge=0)
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        try:
            url = urlsplit(value)
            sound = url.scheme in ("http", "https") and url.hostname and url.port != 0
        except ValueError:  # a port out of range, half an IPv6 address
            sound = False
        if not sound:
            raise ValueError("not an address such as http://localhost:11434/v1")
        return value


@dataclass(frozen=True, slots=True)
class _Connections:
    """What belongs to one event loop."""

    client: httpx.AsyncClient
    slots: asyncio.Semaphore
    closer: AsyncGenerator[None]


class OpenAICompatibleEngine:
    """`core.protocols.Engine` over HTTP; one object serves any number of event loops, one after another or at once."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.name = config, name
        self.token_exact = config.token_ids
        self._model = config.model
        self._policy_version: int | None = None
        self._base_url = config.base_url.rstrip("/")
        self._connections: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._reached = False

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            EngineError: the server refuses, or every attempt failed.
            DeadlineError: `request.deadline_s` passed first.
        """
        model, version = self._model, self._policy_version  # an adapter that comes meanwhile is for later requests
        path = "completions" if request.prompt else "chat/completions"
        body = self._body(request, model)
        left_s = None if request.deadline_s is None else request.deadline_s - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                reply = await self._post_until_valid(path, body, request)
        except TimeoutError as failure:
            raise DeadlineError(
                f"{self.name} ({model}) gave no answer before the deadline",
                cause="the server is slow, overloaded or failing, or the trajectory's time was nearly spent",
                mend="raise the trajectory's deadline, or lower max_tokens or max_concurrency",
            ) from failure
        cost_usd = (
            reply.prompt_tokens * self.config.price_prompt_usd
            + reply.completion_tokens * self.config.price_completion_usd
        ) / 1e6
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
            usage=Usage(
                prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens, cost_usd=cost_usd
            ),
        )

    async def use_adapter(self, version: int, path: Path) -> None:
        """Sample from the LoRA adapter at `path` (on the server's disk) from now on; calls record `version`."""
        digest = blake2b(str(path).encode(), digest_size=4).hexdigest()
        name = f"midstream-{version}-{digest}"
        await self.load_lora_adapter(name, path)
        self._model, self._policy_version = name, version

    async def load_lora_adapter(self, name: str, path: Path) -> None:
        """Have vLLM load a LoRA adapter under `name`, in place of one that already has it.

        The server must run with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
        """
        body = {"lora_name": name, "lora_path": str(path)}
        response = await self._lora("load_lora_adapter", body)
        if response.status_code == 400 and "already" in response.text:
            await self._lora("unload_lora_adapter", {"lora_name": name})
            response = await self._lora("load_lora_adapter", body)
        if response.status_code != 200:
            raise EngineError(
                f"{self._base_url}/load_lora_adapter answered {response.status_code}: {response.text[:300]}",
                cause="the server does not load adapters at run time, or cannot read the path",
                mend=f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {self.config.model} --enable-lora",
            )

    async def _lora(self, action: str, body: Mapping[str, JsonValue]) -> httpx.Response:
        try:
            connections = await self._here()
            url = f"{self._base_url}/{action}"
            return await connections.client.post(url, json=body, headers=self._headers(), timeout=self.config.timeout_s)
        except httpx.HTTPError as failure:
            self._unreachable(failure)

    async def close(self) -> None:
        """Close this event loop's connections; a later request opens new ones."""
        connections = self._connections.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.closer.aclose()

    # --- one request --------------------------------------------------------------------------------------------

    def _body(self, request: Request, model: str) -> bytes:
        sampling = request.sampling
        # OpenAI's newer models refuse `max_tokens`; most other servers know nothing else.
        limit = "max_completion_tokens" if urlsplit(self._base_url).hostname == _OPENAI_HOST else "max_tokens"
        body: dict[str, Any] = {"model": model, "temperature": sampling.temperature, "top_p": sampling.top_p}
        body |= {"seed": request.seed % 2**31, limit: sampling.max_tokens}
        if request.prompt:
            body |= {"prompt": request.prompt, "max_tokens": sampling.max_tokens}
        else:
            body["messages"] = [message.model_dump() for message in request.messages]
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.json_schema is not None:
            schema = {"name": request.role or "reply", "schema": dict(request.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.config.token_ids:
            body |= {"return_token_ids": True, "logprobs": 1 if request.prompt else True}
        return json.dumps(body | self.config.extra_body).encode()

    async def _post_until_valid(self, path: str, body: bytes, request: Request) -> Reply:
        for attempt in range(1, self.config.max_attempts + 1):
            try:
                connections = await self._here()
                async with connections.slots:
                    return await self._post(connections.client, path, body)
            except TransientError as failure:
                if attempt == self.config.max_attempts:
                    raise EngineError(
                        f"{self.name} at {self._base_url} failed {attempt} times, at last: {failure}",
                        cause="the server is overloaded or broken",
                        mend="look at the server's log; lower max_concurrency, or raise max_attempts or timeout_s",
                    ) from failure
                await asyncio.sleep(self._pause_s(failure, attempt, request))
        raise AssertionError("max_attempts is at least 1")

    def _pause_s(self, failure: TransientError, attempt: int, request: Request) -> float:
        """Twice as long each time, half of it random (by the request, so that it repeats); never below Retry-After."""
        full = self.config.first_pause_s * 2 ** (attempt - 1)
        chance = random.Random(derive_seed(request.seed, request.order, request.role, attempt)).uniform(0.5, 1.0)
        return min(max(full * chance, failure.pause_s), _LONGEST_PAUSE_S)

    async def _post(self, client: httpx.AsyncClient, path: str, body: bytes) -> Reply:
        """One attempt: the checked reply, or `TransientError`, or `EngineError`."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                response = await client.post(f"{self._base_url}/{path}", content=body, headers=self._headers())
        except TimeoutError as failure:
            raise TransientError(f"no whole answer within {self.config.timeout_s:g} s") from failure
        except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL) as failure:
            if not self._reached:  # nobody is there; later on it may be a server that restarts
                self._unreachable(failure)
            raise TransientError(f"no connection ({failure})") from failure
        except httpx.HTTPError as failure:
            raise TransientError(f"{type(failure).__name__} {failure}".strip()) from failure
        self._reached = True
        data = decoded(response)
        self._check_status(response, data)
        return checked_reply(data, token_ids=self.config.token_ids)

    def _check_status(self, response: httpx.Response, data: dict[str, Any]) -> None:
        error = reported_error(response, data)
        if error is None:
            return
        status, code, said = error
        if code == "insufficient_quota":  # OpenAI's 429 for an empty account, which no pause refills
            status = 402
        if status >= 500 or status in _RETRIED_STATUS:
            raise TransientError(f"{status}: {said}", retry_after_s(response.headers))
        raise EngineError(f"{self.name} at {self._base_url} answered {status}: {said}", **self._advice(status))

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self.config.api_key_env, "").strip()
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def _advice(self, status: int) -> dict[str, str]:
        """Cause and mend of an error that trying again does not mend."""
        if status in (401, 403):
            cause = f"the key in ${self.config.api_key_env} is missing, wrong, or not allowed to use {self._model}"
            return {"cause": cause, "mend": f"export {self.config.api_key_env}=<your key>"}
        if status == 402:
            return {"cause": "the account's quota is spent", "mend": "add credit, or set base_url to another server"}
        if status == 404 or status < 400:
            cause = f"the server has no model {self._model!r}, or base_url is not its API (it usually ends in /v1)"
            return {"cause": cause, "mend": f"curl {self._base_url}/models shows the names; correct model or base_url"}
        cause = "the server does not accept this request: an unknown setting, or a prompt longer than its context"
        return {"cause": cause, "mend": "change sampling or extra_body, or serve a longer context (--max-model-len)"}

    def _unreachable(self, failure: Exception) -> NoReturn:
        url = urlsplit(self._base_url)
        mend = f"vllm serve {self.config.model} --port {url.port or 80}"
        if url.port == 11434:
            mend = f"ollama serve   (and once: ollama pull {self.config.model})"
        elif url.hostname == _OPENAI_HOST:
            mend = "check the network, or set OPENAI_BASE_URL to a server of your own"
        raise EngineError(
            f"{self.name}: nothing answers at {self._base_url} ({failure})", cause="is the server running?", mend=mend
        ) from failure

    # --- connections --------------------------------------------------------------------------------------------

    async def _here(self) -> _Connections:
        """The running loop's connections, opened at first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            self._connections = {known: kept for known, kept in self._connections.items() if not known.is_closed()}
            client = httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=self.config.max_concurrency),
            )
            slots = asyncio.Semaphore(self.config.max_concurrency)
            self._connections[loop] = _Connections(client, slots, _closer(client))
            await anext(self._connections[loop].closer)
        return self._connections[loop]


async def _closer(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Closes the client when it is closed itself.

    `asyncio.run` closes a loop's open asynchronous generators before it closes the loop, and a connection can only be
    closed in its own loop: so none leaks where nobody calls `close`.
    """
    try:
        yield
    finally:
        await client.aclose()
