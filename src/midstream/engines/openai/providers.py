"""Model servers by name: default address, names of their settings, the command that starts each, and prices.

A recipe names the provider; nothing is inferred from a model's name. Sources: each project's own documentation of its
OpenAI-compatible server. A server that runs locally receives no key unless `api_key_env` is set.

Where a hosted provider differs from OpenAI:

    anthropic   ignores `seed`; newer models refuse `top_p` next to `temperature`
    azure       the key in the header `api-key`; the model is the name of a deployment
    gemini      refuses `seed`; lists its models as "models/NAME"

Prices are in midstream's list, `prices.toml`. A dated model ("gpt-4o-2024-08-06") has its own row.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import NonNegativeFloat

from midstream.components.component import ComponentConfig
from midstream.core.data import Settings

ProviderName = Literal[
    "openai", "vllm", "sglang", "ollama", "llama_cpp", "openrouter", "anthropic", "azure", "dashscope", "deepseek",
    "gemini", "together", "xai", "transformers",
]  # fmt: skip
OPENAI_HOST = "api.openai.com"


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """Defaults and commands of a server.

    `limit` is the request field that bounds the completion, `unsent` the fields that are left out (`top_p` only where
    it is 1), `key_header` the header with the key if it is not `Authorization`. `start` is the command that serves
    `{model}` on `{port}`, `longer` the one that serves a longer context. With `text_calls` earlier calls are sent in
    the text of messages: the server drops text next to `tool_calls`. Hosted providers have no `start`, local ones no
    `api_key_env`. Azure's `base_url` is "": each customer has another.
    """

    base_url: str
    api_key_env: str = ""
    key_header: str = ""
    limit: str = "max_tokens"
    unsent: tuple[str, ...] = ()
    start: str = ""
    longer: str = ""
    text_calls: bool = False


PROVIDERS: Mapping[ProviderName, Provider] = {
    "openai": Provider(
        base_url=f"https://{OPENAI_HOST}/v1", api_key_env="OPENAI_API_KEY", limit="max_completion_tokens"
    ),
    "vllm": Provider(
        base_url="http://localhost:8000/v1",
        start="vllm serve {model} --port {port}",
        longer="vllm serve {model} --max-model-len N",
    ),
    "sglang": Provider(
        base_url="http://localhost:30000/v1",
        start="python -m sglang.launch_server --model-path {model} --port {port}",
        longer="python -m sglang.launch_server --model-path {model} --context-length N",
    ),
    "ollama": Provider(
        base_url="http://localhost:11434/v1",
        start="ollama serve   # and once: ollama pull {model}",
        longer="OLLAMA_CONTEXT_LENGTH=N ollama serve",
    ),
    "llama_cpp": Provider(
        base_url="http://localhost:8080/v1",
        start="llama-server --model {model} --port {port}",
        longer="llama-server --model {model} --ctx-size N",
    ),
    "transformers": Provider(
        base_url="http://localhost:8000/v1", start="transformers serve {model} --port {port}", text_calls=True
    ),
    "openrouter": Provider(base_url="https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY"),
    "anthropic": Provider(
        base_url="https://api.anthropic.com/v1", api_key_env="ANTHROPIC_API_KEY", unsent=("seed", "top_p")
    ),
    "azure": Provider(
        base_url="",
        api_key_env="AZURE_OPENAI_API_KEY",
        key_header="api-key",
        limit="max_completion_tokens",
    ),
    "dashscope": Provider(
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1", api_key_env="DASHSCOPE_API_KEY"
    ),
    "deepseek": Provider(base_url="https://api.deepseek.com", api_key_env="DEEPSEEK_API_KEY"),
    "gemini": Provider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        api_key_env="GEMINI_API_KEY",
        unsent=("seed",),
    ),
    "together": Provider(base_url="https://api.together.ai/v1", api_key_env="TOGETHER_API_KEY"),
    "xai": Provider(base_url="https://api.x.ai/v1", api_key_env="XAI_API_KEY", limit="max_completion_tokens"),
}
# Those that a run can start for itself.
SERVED = ("vllm", "sglang", "llama_cpp", "transformers")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def default_base_url(name: ProviderName) -> str:
    """The address of a provider.

    OPENAI_BASE_URL overrides OpenAI's, OLLAMA_HOST ("HOST:PORT") Ollama's, and AZURE_OPENAI_ENDPOINT gives Azure's.
    """
    if name == "ollama" and (host := os.environ.get("OLLAMA_HOST")):
        url = urlsplit(host if "://" in host else f"http://{host}")
        # A server listens at 0.0.0.0, and no client can connect to it.
        named = "127.0.0.1" if url.hostname in (None, "0.0.0.0") else url.hostname
        return f"{url.scheme}://{named}:{url.port or 11434}/v1"
    # Variables of OpenAI's own clients.
    if name == "azure" and (endpoint := os.environ.get("AZURE_OPENAI_ENDPOINT")):
        return f"{endpoint.rstrip('/').removesuffix('/openai/v1')}/openai/v1"
    return (name == "openai" and os.environ.get("OPENAI_BASE_URL")) or PROVIDERS[name].base_url


class ListedPrice(Settings):
    """The price of `model` ("provider/name") in a list, as a run records it; `origin` names the list for people."""

    model: str
    prompt_usd: NonNegativeFloat
    completion_usd: NonNegativeFloat
    origin: str


def find_price(provider: ProviderName, model: str, host: str, recorded: ListedPrice | None) -> ListedPrice | None:
    """Find the price of a provider's model in midstream's list; None if it is not there.

    Another `host` has that of any provider's model of this name, or "PROVIDER/NAME", unless it serves local models.
    A `recorded` price stays until the model or the server is another.
    """
    name, tables = f"{provider}/{model}" + f" at {host}" * bool(host), price_list()
    if recorded is not None and recorded.model == name:
        return recorded
    for known in (provider, *(tables if host and not PROVIDERS[provider].start else ())):
        table = tables.get(known, {"models": {}})
        if price := table["models"].get(model.removeprefix(f"{known}/") if host else model):
            origin = f"midstream's prices of {table['as_of']}" + f" for {known}; {host} may have others" * bool(host)
            return ListedPrice(model=name, prompt_usd=price[0], completion_usd=price[1], origin=origin)
    return None


@cache
def price_list() -> Mapping[str, Any]:
    """The tables of `prices.toml` by provider: prices of `models`, and the day and page on which they were read."""
    return tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))


def price_of(config: ComponentConfig) -> tuple[float, float]:
    """Dollars per million prompt and completion tokens of any engine; 0 where none is known."""
    listed: ListedPrice | None = getattr(config, "listed_price", None)
    if listed is not None:
        return listed.prompt_usd, listed.completion_usd
    return getattr(config, "price_prompt_usd", None) or 0.0, getattr(config, "price_completion_usd", None) or 0.0


def prices_used(resolved: Mapping[str, Any]) -> str:
    """The listed prices of a resolved recipe's engines, and where they are from, on one line; "" for none."""
    words = "{name} ${prompt_usd:g} + ${completion_usd:g} a million tokens ({origin})"
    tables = resolved.get("engines", {}).items()
    return "; ".join(
        words.format(name=name, **table["listed_price"]) for name, table in tables if "listed_price" in table
    )
