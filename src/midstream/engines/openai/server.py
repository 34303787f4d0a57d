"""What a server holds: its models with their contexts, and, on vLLM, the LoRA adapters of a run.

An adapter's directory is named after its content, and its name on the server after that directory. New weights
therefore never meet the server's prefix cache of old ones, also after a resume, equal weights find theirs again, and
adapters that a killed run left on the server are known from its run directory. The server must read the same disk, run
with `--enable-lora`, and have VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import aiohttp
from pydantic import JsonValue
from yarl import URL

from midstream.core.data import JsonObject
from midstream.core.engine import Request
from midstream.core.errors import EngineError, MidstreamError, PromptTooLongError, StorageError
from midstream.core.http import proxy_of, session_for
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.engines.openai.settings import OpenAIConfig, refusal_advice

LIST_LIMIT_S = 5.0
# Directories: the adapter in use, and the one before.
ADAPTERS_KEPT = 2
# post(path, body) -> (status, text)
Post = Callable[[str, Mapping[str, str]], Awaitable[tuple[int, str]]]
# Tokens: before the first longer prompt the server is asked for its context.
_SHORT = 1000
# A server that gives its context mostly refuses what exceeds it, by its own count. Ours must only catch what is far
# beyond, which a few servers cut without a word: no usual text has so many characters a token.
_MOST_CHARACTERS = 6
# vLLM and SGLang; OpenRouter, Together and Ollama; Groq; Mistral; Anthropic; llama.cpp.
_SIZES = ("max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens", "n_ctx")


class ModelContext:
    """The context of one engine's model: the setting, or the one that the server lists."""

    def __init__(self, config: OpenAIConfig, name: str) -> None:
        self.tokens = config.context_tokens
        self._config, self._name, self._asked = config, name, False
        # Nobody else refuses: a setting is for servers that cut longer prompts without a word, and Ollama is one.
        self._alone = self.tokens is not None or config.provider == "ollama"

    async def check(self, request: Request, ids: Sequence[int] | None) -> None:
        """Raise `PromptTooLongError` if the request is too long for the model, as far as this is known."""
        size = estimated_tokens(request, ids, CHARACTERS_PER_TOKEN if self._alone else _MOST_CHARACTERS)
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

    def is_exceeded(self, request: Request, ids: Sequence[int] | None) -> bool:
        """Whether a refused request, by a rough count, was too long for the context that the server gives."""
        return self.tokens is not None and estimated_tokens(request, ids) > self.tokens


def estimated_tokens(request: Request, ids: Sequence[int] | None, characters: int = CHARACTERS_PER_TOKEN) -> int:
    """Tokens of prompt and reply; without ids, `characters` of the prompt's text count as one."""
    if ids is not None:
        return len(ids) + (request.max_tokens or 0)
    texts = [request.prompt, *(message.content for message in request.messages), *map(str, request.tools)]
    return sum(map(len, texts)) // characters + (request.max_tokens or 0)


async def served_context(config: OpenAIConfig) -> int | None:
    """The context that the server gives for the engine's model; None if it gives none, or several."""
    if config.provider == "ollama":
        # Its /models has no context.
        entries = await _fetch_list(config, URL(config.base_url, encoded=True).with_path("/api/ps"), "models")
    else:
        entries = await fetch_models(config)
    named = [entry for entry in entries if names_model(entry, config.model)]
    sizes = set()
    # A server of one model may know it by another name.
    for entry in named or entries:
        # OpenRouter's `top_provider` is the one that answers, llama.cpp's `meta` its server.
        places = [place for place in (entry.get("top_provider"), entry.get("meta"), entry) if isinstance(place, dict)]
        values = [place.get(name) for place in places for name in _SIZES]
        sizes |= set([value for value in values if type(value) is int and value > 0][:1])
    return sizes.pop() if len(sizes) == 1 else None


def names_model(entry: Mapping[str, JsonValue], model: str) -> bool:
    """Whether an entry of a list is the model's: Ollama adds the tag that a name leaves out, Gemini a prefix."""
    return any(entry.get(field) in (model, f"{model}:latest", f"models/{model}") for field in ("id", "name"))


async def fetch_models(config: OpenAIConfig) -> list[JsonObject]:
    """The entries that GET /models gives; none where it gives none for any reason, which a request then shows."""
    # Azure lists models, and requests name deployments.
    if config.provider == "azure":
        return []
    return await _fetch_list(config, URL(f"{config.base_url.rstrip('/')}/models", encoded=True), "data")


async def _fetch_list(config: OpenAIConfig, url: URL, field: str) -> list[JsonObject]:
    headers = {"Accept": "application/json"} | config.key_header()
    try:
        async with (
            asyncio.timeout(LIST_LIMIT_S),
            session_for(proxy_of(url)) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            entries = (await answer.json(content_type=None))[field] if answer.status == 200 else []
        return [entry for entry in entries if isinstance(entry, dict)]
    except (aiohttp.ClientError, MidstreamError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def write_adapter(export: Callable[[Path], None], root: Path, version: int) -> Path:
    """Write an adapter with `export`; returns its directory `version-N-DIGEST`, which is complete or does not exist."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Below `root`, so that the rename stays on one disk. A killed run leaves it; the next export clears it.
        for leftover in root.glob("unfinished-*"):
            shutil.rmtree(leftover)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=root))
        # The server may run as another user.
        unfinished.chmod(0o755)
        export(unfinished)
        digest = blake2b(digest_size=8)
        # Of the weights only: peft's settings vary in their order.
        for file in sorted(unfinished.rglob("adapter_model*")):
            digest.update(file.read_bytes())
        directory = root / f"version-{version}-{digest.hexdigest()}"
        if directory.exists():
            shutil.rmtree(unfinished)
            os.utime(directory)
        else:
            unfinished.rename(directory)
    except OSError as failure:
        raise StorageError(
            f"the adapter could not be written below {root}: {failure}",
            code="write-failed",
            fix="make room on the disk, then resume the run",
        ) from failure
    return directory


def adapter_name(path: Path) -> str:
    """The adapter's name on the server: its directory's name, and a digest of its parent (runs may share a server)."""
    return f"midstream-{path.name}-{blake2b(str(path.parent).encode(), digest_size=4).hexdigest()}"


async def change_adapter(action: Literal["load", "unload"], path: Path, config: OpenAIConfig, post: Post) -> str:
    """Load or unload the adapter at `path`, unless that is done already; returns its name. Raises `EngineError`."""
    name = adapter_name(path)
    body = {"lora_name": name} | ({"lora_path": str(path)} if action == "load" else {})
    status, text = await post(f"{action}_lora_adapter", body)
    if status == 200 or (status == 404 if action == "unload" else status == 400 and "already" in text):
        return name
    fix = f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {config.model} --enable-lora"
    if "rank" in text:
        fix = f"vllm serve {config.model} --enable-lora --max-lora-rank RANK, at least learner.lora's rank"
    elif "No adapter found" in text:
        fix = "run both on one machine or on a shared disk, under the same path, which the server may read"
    what = f"{config.base_url}/{action}_lora_adapter answered {status}: {text[:300]}"
    raise EngineError(what, code="adapter-refused", fix=fix)
