"""Model servers by name: default address, names of their settings, and the command that starts each.

A recipe names the provider; nothing is inferred from a model's name. Sources: each project's own documentation of its
OpenAI-compatible server. A server that runs locally receives no key unless `api_key_env` is set.

Where a hosted provider differs from OpenAI:

    anthropic   ignores `seed`; newer models refuse `top_p` next to `temperature`
    azure       the key in the header `api-key`; the model is a deployment, in the path, and the query has the version
    gemini      refuses `seed`; lists its models as "models/NAME"
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from midstream.engines.openai.settings import OpenAIConfig

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
    `{model}` on `{port}`, `longer` the one that serves a longer context. Hosted providers have no `start`, local ones
    no `api_key_env`. Azure's `base_url` is "": each customer has another.
    """

    base_url: str
    api_key_env: str = ""
    api_version: str = ""
    key_header: str = ""
    limit: str = "max_tokens"
    unsent: tuple[str, ...] = ()
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
    "transformers": Provider(base_url="http://localhost:8000/v1", start="transformers serve {model} --port {port}"),
    "openrouter": Provider(base_url="https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY"),
    "anthropic": Provider(
        base_url="https://api.anthropic.com/v1", api_key_env="ANTHROPIC_API_KEY", unsent=("seed", "top_p")
    ),
    "azure": Provider(
        base_url="",
        api_key_env="AZURE_OPENAI_API_KEY",
        api_version="2024-10-21",
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
SERVED = ("vllm", "sglang", "llama_cpp", "transformers")  # those that a run can start for itself
LOOPBACK = ("localhost", "127.0.0.1", "::1")
REFUSES_ALL = ("missing-key", "key-refused", "quota-spent", "model-not-found")  # codes of `refusal_advice`
_ADDRESSES = {"openai": "OPENAI_BASE_URL", "azure": "AZURE_OPENAI_ENDPOINT"}  # variables of OpenAI's own clients


def default_base_url(name: ProviderName) -> str:
    """The address of a provider.

    OPENAI_BASE_URL overrides OpenAI's, OLLAMA_HOST ("HOST:PORT") Ollama's, and AZURE_OPENAI_ENDPOINT gives Azure's.
    """
    if name == "ollama" and (host := os.environ.get("OLLAMA_HOST")):
        url = urlsplit(host if "://" in host else f"http://{host}")
        # A server listens at 0.0.0.0, and no client can connect to it.
        named = "127.0.0.1" if url.hostname in (None, "0.0.0.0") else url.hostname
        return f"{url.scheme}://{named}:{url.port or 11434}/v1"
    return os.environ.get(_ADDRESSES.get(name, "")) or PROVIDERS[name].base_url


def is_own(config: OpenAIConfig) -> bool:
    """Whether the server is the provider's own, which a hosted provider's key is for."""
    return urlsplit(PROVIDERS[config.provider].base_url).hostname in (None, urlsplit(config.base_url).hostname)


def key_of(config: OpenAIConfig) -> str:
    """The key in the environment variable that the settings name; "" without one."""
    return os.environ.get(config.api_key_env, "").strip() if config.api_key_env else ""


def key_header(config: OpenAIConfig, key: str) -> dict[str, str]:
    """The header with the key; none without a key."""
    named = PROVIDERS[config.provider].key_header
    return {named or "Authorization": key if named else f"Bearer {key}"} if key else {}


def request_url(config: OpenAIConfig, path: str) -> str:
    """The address of `path`; with an `api_version`, below the model's deployment."""
    base_url = config.base_url.rstrip("/")
    if not config.api_version:
        return f"{base_url}/{path}"
    deployment, version = quote(config.model, safe=""), quote(config.api_version, safe="")
    return f"{base_url}/openai/deployments/{deployment}/{path}?api-version={version}"


def limit_field(config: OpenAIConfig) -> str:
    """The field of a chat request that bounds the completion.

    OpenAI's newer models refuse `max_tokens`. Other servers at an address given to `openai` mostly know nothing else.
    """
    elsewhere = config.provider == "openai" and urlsplit(config.base_url).hostname != OPENAI_HOST
    return "max_tokens" if elsewhere else PROVIDERS[config.provider].limit


def start_advice(config: OpenAIConfig) -> str:
    """The fix where no server answers."""
    url, provider = urlsplit(config.base_url), PROVIDERS[config.provider]
    if provider.start:
        return provider.start.format(model=config.model, port=url.port or 80)
    if is_own(config):
        return "check the network, or set base_url to a server of your own"
    # A hosted provider's name with another address: the port says which local server it probably is.
    local = [known for known in PROVIDERS.values() if known.start]
    likely = next((known for known in local if urlsplit(known.base_url).port == url.port), PROVIDERS["vllm"])
    start = likely.start.partition("   #")[0].format(model=config.model, port=url.port or 80)
    return f"start the server there, e.g. {start}, or correct base_url"


def refusal_advice(config: OpenAIConfig, model: str, status: int, *, too_long: bool) -> dict[str, Any]:
    """Code, cause and fix of an answer that another attempt does not change, as arguments of an error.

    `model` is the requested one, which may be an adapter.
    """
    longer, api_key_env = PROVIDERS[config.provider].longer.format(model=model), config.api_key_env
    if too_long:
        code, cause = "prompt-too-long", "a long run's memory, or max_tokens, exceeds the context of the served model"
        fix = f"lower max_turns or sampling.max_tokens, or {longer or 'name a model with a longer context'}"
    elif status in (401, 403) and not api_key_env:
        code, cause = "missing-key", f"provider {config.provider!r} receives no key unless api_key_env is set"
        fix = "set api_key_env to the environment variable that holds the server's key"
    elif status in (401, 403):
        code, cause = "key-refused", f"the key in ${api_key_env} is missing, wrong, or not allowed to use {model}"
        fix = f"export {api_key_env}=<your key>"
    elif status == 402:
        code, cause, fix = "quota-spent", "the account's quota is spent", "add credit, or set another base_url"
    elif status == 404 or status < 400:
        code = "model-not-found"
        cause = f"the server has no model {model!r}, or base_url is not its API (it usually ends in /v1)"
        fix = f"curl {config.base_url.rstrip('/')}/models shows the names; correct model or base_url"
        if config.api_version:
            fix = "correct model (the deployment's name), base_url (https://RESOURCE.openai.azure.com) or api_version"
    else:
        code, cause = "request-refused", "the server rejects a setting, or the prompt is longer than its context"
        fix = f"change sampling or extra_body; or serve a longer context{f': {longer}' if longer else ''}"
    return {"code": code, "cause": cause, "fix": fix}
