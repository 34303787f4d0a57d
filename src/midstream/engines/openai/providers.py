"""Model servers by name: where each listens, what its settings are called, which command starts it.

A recipe names the provider; nothing is inferred from a model's name. Sources: each project's own documentation of its
OpenAI-compatible server. A server that runs locally is sent no key unless `api_key_env` is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

ProviderName = Literal["openai", "vllm", "sglang", "ollama", "llama_cpp", "openrouter"]
OPENAI_HOST = "api.openai.com"


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """`limit` is the request field that bounds the completion, `start` the command that serves `{model}` on `{port}`.

    `longer` serves a longer context. A hosted provider has no `start`; a local one no `api_key_env`.
    """

    base_url: str
    api_key_env: str = ""
    limit: str = "max_tokens"
    start: str = ""
    longer: str = ""


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
    "openrouter": Provider(base_url="https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY"),
}


def default_base_url(name: ProviderName) -> str:
    """Where a provider listens. OPENAI_BASE_URL moves OpenAI, as its own clients have it."""
    moved = os.environ.get("OPENAI_BASE_URL") if name == "openai" else None
    return moved or PROVIDERS[name].base_url


def limit_field(name: ProviderName, base_url: str) -> str:
    """The field of a chat request that bounds the completion.

    OpenAI's newer models refuse `max_tokens`; of other servers at an address given to `openai`, most know nothing else.
    """
    moved = name == "openai" and urlsplit(base_url).hostname != OPENAI_HOST
    return "max_tokens" if moved else PROVIDERS[name].limit


def start_advice(name: ProviderName, base_url: str, model: str) -> str:
    """What to do where nothing answers."""
    url, provider = urlsplit(base_url), PROVIDERS[name]
    if provider.start:
        return provider.start.format(model=model, port=url.port or 80)
    if url.hostname == urlsplit(provider.base_url).hostname:
        return "check the network, or set base_url to a server of your own"
    likely = [one.start for one in PROVIDERS.values() if one.start and urlsplit(one.base_url).port == url.port]
    start = (likely or [PROVIDERS["vllm"].start])[0].partition("   #")[0].format(model=model, port=url.port or 80)
    return f"start the server there, e.g. {start}, or correct base_url"


def refusal_advice(
    name: ProviderName, base_url: str, model: str, api_key_env: str, status: int, *, too_long: bool
) -> dict[str, str]:
    """Cause and fix of an answer that trying again does not fix."""
    longer = PROVIDERS[name].longer.format(model=model)
    if too_long:
        cause = "the memory of a long run, or max_tokens, outgrew the context that the model is served with"
        fewer = "lower max_turns or sampling.max_tokens"
        return {"cause": cause, "fix": f"{fewer}, or {longer or 'name a model with a longer context'}"}
    if status in (401, 403) and not api_key_env:
        cause = f"the server asks for a key, and none is sent to provider {name!r} unless api_key_env is set"
        return {"cause": cause, "fix": "set api_key_env to the environment variable that holds the server's key"}
    if status in (401, 403):
        cause = f"the key in ${api_key_env} is missing, wrong, or not allowed to use {model}"
        return {"cause": cause, "fix": f"export {api_key_env}=<your key>"}
    if status == 402:
        return {"cause": "the account's quota is spent", "fix": "add credit, or set base_url to another server"}
    if status == 404 or status < 400:
        cause = f"the server has no model {model!r}, or base_url is not its API (it usually ends in /v1)"
        return {"cause": cause, "fix": f"curl {base_url}/models shows the names; correct model or base_url"}
    cause = "the server does not accept this request: an unknown setting, or a prompt longer than its context"
    return {
        "cause": cause,
        "fix": f"change sampling or extra_body; or serve a longer context{f': {longer}' if longer else ''}",
    }
