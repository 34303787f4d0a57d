"""What a server says of its models: their names, and how many tokens of prompt and reply they take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from yarl import URL

from midstream.core.errors import MidstreamError, PromptTooLongError
from midstream.core.http import proxy_of, session_for
from midstream.core.protocols import Request
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.engines.openai.providers import key_header, key_of, refusal_advice
from midstream.engines.openai.settings import OpenAIConfig

LIST_LIMIT_S = 5.0
LONGEST_LIST = 8 << 20  # bytes
_SHORT = 1000  # tokens: before the first longer prompt the server is asked
# A server that gives its context mostly refuses what exceeds it, by its own count. Ours must only catch what is far
# beyond, which a few servers cut without a word: no usual text has so many characters a token.
_MOST_CHARACTERS = 6
# vLLM and SGLang; OpenRouter, Together and Ollama; Groq; Mistral; Anthropic; llama.cpp.
_SIZES = ("max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens", "n_ctx")


class ModelContext:
    """The context of one engine's model: the setting, or the server's own word. No request waits for another's."""

    def __init__(self, config: OpenAIConfig, name: str) -> None:
        self.tokens = config.context_tokens
        self._config, self._name, self._asked = config, name, False
        # Nobody else refuses: a setting is for servers that cut longer prompts without a word, and Ollama is one.
        self._alone = self.tokens is not None or config.provider == "ollama"

    async def check(self, request: Request, ids: Sequence[int] | None) -> None:
        """Raise `PromptTooLongError` if the request is too long for the model, as far as this is known."""
        size = _size(request, ids, CHARACTERS_PER_TOKEN if self._alone else _MOST_CHARACTERS)
        if self.tokens is None and not self._asked and size - (request.max_tokens or 0) > _SHORT:
            self._asked = True
            self.tokens = await served_context(self._config)
            # Ollama gives the context of models that are loaded, and loads one for its first request.
            self._asked = self.tokens is not None or self._config.provider != "ollama"
        if self.tokens is not None and size > self.tokens:
            raise PromptTooLongError(
                f"{self._name}: {'about ' if ids is None else ''}{size} tokens, {request.max_tokens or 0} of them "
                f"new, do not fit its context of {self.tokens}",
                **refusal_advice(self._config, self._config.model, 400, too_long=True),
            )

    def exceeded(self, request: Request, ids: Sequence[int] | None) -> bool:
        """Whether a refused request, by a rough count, was too long for the context that the server gives."""
        return self.tokens is not None and _size(request, ids, CHARACTERS_PER_TOKEN) > self.tokens


def _size(request: Request, ids: Sequence[int] | None, characters: int) -> int:
    """Tokens of prompt and reply; without ids, `characters` of the prompt's text count as one."""
    if ids is not None:
        return len(ids) + (request.max_tokens or 0)
    texts = [request.prompt, *(message.content for message in request.messages), *map(str, request.tools)]
    return sum(map(len, texts)) // characters + (request.max_tokens or 0)


async def served_context(config: OpenAIConfig) -> int | None:
    """The context that the server gives for the engine's model; None if it gives none, or several."""
    if config.provider == "ollama":  # its /models has no context
        found = await _listed(config, URL(config.base_url, encoded=True).with_path("/api/ps"), "models")
    else:
        found = await model_list(config)
    named = [entry for entry in found if names_model(entry, config.model)]
    sizes = set()
    for entry in named or found:  # a server of one model may know it by another name
        # OpenRouter's `top_provider` is the one that answers, llama.cpp's `meta` its server.
        places = [place for place in (entry.get("top_provider"), entry.get("meta"), entry) if isinstance(place, dict)]
        values = [place.get(name) for place in places for name in _SIZES]
        sizes |= set([value for value in values if type(value) is int and value > 0][:1])
    return sizes.pop() if len(sizes) == 1 else None


def names_model(entry: Mapping[str, Any], model: str) -> bool:
    """Whether an entry of a list is the model's: Ollama adds the tag that a name leaves out, Gemini a prefix."""
    return any(entry.get(field) in (model, f"{model}:latest", f"models/{model}") for field in ("id", "name"))


async def model_list(config: OpenAIConfig) -> list[dict[str, Any]]:
    """The entries that GET /models gives; none where it gives none for any reason, which a request then shows."""
    if config.api_version:  # it lists models, and requests name deployments
        return []
    return await _listed(config, URL(f"{config.base_url.rstrip('/')}/models", encoded=True), "data")


async def _listed(config: OpenAIConfig, url: URL, field: str) -> list[dict[str, Any]]:
    headers = {"Accept": "application/json"} | key_header(config, key_of(config))
    body = bytearray()
    try:
        async with (
            asyncio.timeout(LIST_LIMIT_S),
            session_for(proxy_of(url)) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > LONGEST_LIST:
                    return []
        entries = json.loads(body)[field] if answer.status == 200 else []
        return [entry for entry in entries if isinstance(entry, dict)]
    except (aiohttp.ClientError, MidstreamError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
