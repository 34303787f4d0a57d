"""Settings of the OpenAI-compatible engine, what follows from them for a request, and the advice in its errors.

Recipes are checked with this file, without loading the engine.
"""

from __future__ import annotations

import os
import re
import shlex
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, field_validator, model_validator

from midstream.components.component import ComponentConfig, Context, EngineConfig
from midstream.core.errors import RecipeError
from midstream.core.secrets import without_secrets
from midstream.engines.openai.providers import (
    LOOPBACK,
    OPENAI_HOST,
    PROVIDERS,
    SERVED,
    ListedPrice,
    ProviderName,
    default_base_url,
    find_price,
)

if TYPE_CHECKING:
    from midstream.engines.openai.engine import OpenAICompatibleEngine

REFUSES_ALL = ("missing-key", "key-refused", "quota-spent", "model-not-found")


class Advice(TypedDict):
    """Arguments of an error."""

    code: str
    fix: str


class OpenAIConfig(EngineConfig):
    """A server or provider with OpenAI's API.

    Engines with one address share its connections.

    Attributes:
        model: the server's name of the model
        provider: one of the table above; sets the next two, names of fields, and the commands in errors
        base_url: the server's address, without user name, password or query; by default the provider's
        api_key_env: the environment variable with the key; by default the provider's; a local server gets no key
        max_concurrency: the most requests in progress; engines with one address share the smallest
        timeout_s: seconds of one attempt; of a stream, to its next piece, and ten times that in all
        max_attempts: attempts before a request counts as failed
        first_pause_s: seconds before the second attempt; each later pause doubles, up to a minute
        stream: request replies in pieces, for listeners; `midstream solve` sets it where the recipe does not
        token_ids: request sampled token ids and log-probabilities, which training needs; only vLLM with
            `--logprobs-mode processed_logprobs` returns them correctly
        context_tokens: the most tokens of prompt and reply together, four characters counted as one; by default as the
            server reports. Set it for a server that cuts longer prompts silently
        requests_per_minute: the most requests in any 60 seconds; engines with one address and key share the smallest
        tokens_per_minute: the most tokens, likewise; a request counts `max_tokens` until its reply says what it used
        price_prompt_usd: dollars per million prompt tokens, 0 for a model of your own (see "Prices")
        price_completion_usd: dollars per million completion tokens
        price_cached_usd: dollars per million prompt tokens that the server read from its cache; by default as others
        listed_price: set by midstream: the price in its list if neither of the first two is set
        extra_body: added to every request as it is
        serve: the run starts the provider's server of the model at `base_url` and ends it; the value is more options of
            that server, or `""`
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
    context_tokens: int | None = Field(default=None, ge=1)
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    price_prompt_usd: float | None = Field(default=None, ge=0)
    price_completion_usd: float | None = Field(default=None, ge=0)
    price_cached_usd: float | None = Field(default=None, ge=0)
    listed_price: ListedPrice | None = None
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)
    serve: str | None = None

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII):
            fix = 'export OPENAI_API_KEY=<your key>, and api_key_env = "OPENAI_API_KEY"'
            raise _secret("api_key_env is not the name of an environment variable", fix)
        return value

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not value:
            raise ValueError('azure has no common address: base_url = "https://RESOURCE.openai.azure.com/openai/v1"')
        if any(mark in value for mark in "@?#"):
            fix = 'base_url = "https://host/v1", and the key in the environment variable that api_key_env names'
            raise _secret("base_url holds a user name, a password, a query or a fragment", fix)
        try:
            url = urlsplit(value)
            valid = url.scheme in ("http", "https") and url.hostname and url.port != 0 and value.isascii()
            if "[" in value:
                ip_address(url.hostname or "")
        except ValueError:
            # A port is out of range, or it is no IPv6 address.
            valid = False
        if not valid or not value.isprintable() or " " in value:
            raise ValueError("not an address such as http://localhost:11434/v1")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> OpenAIConfig:
        if self.serve is not None:
            if self.provider not in SERVED:
                raise ValueError(f"serve: midstream starts {', '.join(SERVED)}, not {self.provider}")
            url = urlsplit(self.base_url)
            if url.hostname not in LOOPBACK or url.scheme != "http":
                raise ValueError(f"serve: {self.base_url} is not an address such as http://localhost:8000/v1")
            # An open quotation mark is a ValueError.
            words = tuple(shlex.split(self.serve))
            if without_secrets(words) != words:
                fix = "leave it out: a server at an address such as localhost answers this machine alone"
                raise _secret("serve holds what looks like a key or a password", fix)
        return self

    @model_validator(mode="after")
    def _look_up_price(self) -> OpenAIConfig:
        host = "" if self.is_own else urlsplit(self.base_url).hostname or ""
        price = None if super().priced else find_price(self.provider, self.model, host, self.listed_price)
        object.__setattr__(self, "listed_price", price)
        return self

    @property
    def priced(self) -> bool:
        """OpenRouter states the cost of each reply. What a server on this machine costs, only its owner knows."""
        return super().priced or self.listed_price is not None or (self.provider == "openrouter" and self.is_own)

    def build(self, context: Context) -> OpenAICompatibleEngine:
        """Build it."""
        from midstream.engines.openai.engine import OpenAICompatibleEngine

        return OpenAICompatibleEngine(self, context.name)

    @property
    def is_own(self) -> bool:
        """Whether the server is the provider's own, which a hosted provider's key is for."""
        return urlsplit(PROVIDERS[self.provider].base_url).hostname in (None, urlsplit(self.base_url).hostname)

    def key(self) -> str:
        """Read the key from the environment variable that the settings name; "" without one."""
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""

    def key_header(self) -> dict[str, str]:
        """The header with the key; none without a key."""
        key, header = self.key(), PROVIDERS[self.provider].key_header
        return {header or "Authorization": key if header else f"Bearer {key}"} if key else {}

    @property
    def limit_field(self) -> str:
        """The field of a chat request that bounds the completion.

        OpenAI's newer models refuse `max_tokens`. Other servers at an address given to `openai` mostly know only that.
        """
        elsewhere = self.provider == "openai" and urlsplit(self.base_url).hostname != OPENAI_HOST
        return "max_tokens" if elsewhere else PROVIDERS[self.provider].limit


def _secret(what: str, fix: str) -> RecipeError:
    """The error for a value that may be a key: of a `ValueError` pydantic would show the value."""
    return RecipeError(what, code="secret-in-recipe", fix=fix)


def wanted_key(config: ComponentConfig) -> str:
    """The variable with the key that a hosted provider's own server wants; "" for other engines and addresses."""
    if isinstance(config, OpenAIConfig) and config.is_own and urlsplit(config.base_url).hostname not in LOOPBACK:
        return config.api_key_env
    return ""


def start_advice(config: OpenAIConfig) -> str:
    """The fix of an error where no server answers."""
    url, provider = urlsplit(config.base_url), PROVIDERS[config.provider]
    if provider.start:
        return provider.start.format(model=config.model, port=url.port or 80)
    if config.is_own:
        return "check the network, or set base_url to a server of your own"
    start = PROVIDERS["vllm"].start.format(model=config.model, port=url.port or 80)
    return f"start the server there, e.g. {start}, or correct base_url"


def refusal_advice(config: OpenAIConfig, model: str, status: int, *, too_long: bool) -> Advice:
    """Code and fix of an answer that another attempt does not change, as arguments of an error.

    `model` is the requested one, which may be an adapter.
    """
    longer, api_key_env = PROVIDERS[config.provider].longer.format(model=model), config.api_key_env
    if too_long:
        fix = f"lower max_turns or sampling.max_tokens, or {longer or 'name a model with a longer context'}"
        return {"code": "prompt-too-long", "fix": fix}
    if status in (401, 403) and not api_key_env:
        fix = "set api_key_env to the environment variable that holds the server's key"
        return {"code": "missing-key", "fix": fix}
    if status in (401, 403):
        return {"code": "key-refused", "fix": f"export {api_key_env}=<your key>, one that may use {model}"}
    if status == 402:
        return {"code": "quota-spent", "fix": "add credit to the account, or set another base_url"}
    if status == 404 or status < 400:
        fix = f"curl {config.base_url.rstrip('/')}/models shows the names; correct model or base_url (it ends in /v1)"
        if config.provider == "azure":
            # There /models lists models, and requests name deployments.
            fix = "correct model (the name of a deployment) or base_url (it ends in /openai/v1)"
        return {"code": "model-not-found", "fix": fix}
    fix = f"change sampling or extra_body; or serve a longer context{f': {longer}' if longer else ''}"
    return {"code": "request-refused", "fix": fix}
