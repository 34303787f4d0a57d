"""The request that each hosted provider gets: path, query, headers and every field, seen by a local server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from midstream.core.engine import Request
from midstream.core.errors import EngineError
from midstream.core.secrets import without_secrets
from midstream.core.trajectory import Message, Sampling
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.engines.openai.providers import PROVIDERS, ProviderName
from support.llm_server import LLMServer

KEY = "0123456789abcdef0123456789ABCDEF"
HOSTED = [name for name, provider in PROVIDERS.items() if provider.api_key_env]
FIELDS = {"model", "messages", "temperature", "top_p", "seed", "max_tokens"}
RENAMED = FIELDS - {"max_tokens"} | {"max_completion_tokens"}
# Without the path that is part of base_url. Each line is what the provider's documentation of its API says.
EXPECTED: dict[str, tuple[str, str, str, set[str]]] = {
    "openai": ("https://api.openai.com/v1", "Authorization", f"Bearer {KEY}", RENAMED),
    "openrouter": ("https://openrouter.ai/api/v1", "Authorization", f"Bearer {KEY}", FIELDS),
    "anthropic": ("https://api.anthropic.com/v1", "Authorization", f"Bearer {KEY}", FIELDS - {"seed", "top_p"}),
    "azure": ("", "api-key", KEY, RENAMED),
    "dashscope": (
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "Authorization", f"Bearer {KEY}", FIELDS
    ),
    "deepseek": ("https://api.deepseek.com", "Authorization", f"Bearer {KEY}", FIELDS),
    "gemini": (
        "https://generativelanguage.googleapis.com/v1beta/openai", "Authorization", f"Bearer {KEY}", FIELDS - {"seed"}
    ),
    "together": ("https://api.together.ai/v1", "Authorization", f"Bearer {KEY}", FIELDS),
    "xai": ("https://api.x.ai/v1", "Authorization", f"Bearer {KEY}", RENAMED),
}  # fmt: skip


def asked(server: LLMServer, name: ProviderName, top_p: float = 1.0, **settings: Any) -> Any:
    """The call of one request to a provider whose server is this one."""
    config = OpenAIConfig(model="the/model", provider=name, **{"base_url": server.base_url} | settings)
    request = Request(
        role="planner", messages=(Message(role="user", content="hello"),), sampling=Sampling(top_p=top_p), seed=5
    )

    async def ask() -> Any:
        engine = OpenAICompatibleEngine(config, "model")
        try:
            return await engine.sample(request)
        finally:
            await engine.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("name", HOSTED)
def test_a_provider_gets_what_its_documentation_says_and_nothing_else(
    name: ProviderName, monkeypatch: pytest.MonkeyPatch
):
    base_url, header, value, fields = EXPECTED[name]
    assert PROVIDERS[name].base_url == base_url
    monkeypatch.setenv(PROVIDERS[name].api_key_env, KEY)
    with LLMServer(lambda body: "hello") as server:
        # OpenAI's own field of the limit goes to OpenAI alone.
        fields = FIELDS if name == "openai" else fields
        call = asked(server, name)
    [path], [headers], [body] = server.paths, server.headers, server.bodies
    assert path == "/v1/chat/completions"
    keys = {key.title() for key, sent in headers.items() if KEY in sent}
    assert keys == {header.title()}
    assert {key.title(): sent for key, sent in headers.items()}[header.title()] == value
    assert set(body) == fields
    assert KEY not in call.model_dump_json()


def test_a_field_that_is_left_out_at_its_default_is_sent_where_it_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with LLMServer(lambda body: "hello") as server:
        asked(server, "anthropic", top_p=0.9)
    assert server.bodies[0]["top_p"] == 0.9


def test_azure_has_no_address_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    with pytest.raises(ValidationError, match="RESOURCE"):
        OpenAIConfig(model="m", provider="azure")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    assert OpenAIConfig(model="m", provider="azure").base_url == "https://mine.openai.azure.com/openai/v1"


@pytest.mark.parametrize("name", HOSTED)
def test_a_refusal_names_the_variable_and_never_the_key(name: ProviderName, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PROVIDERS[name].api_key_env, KEY)
    refusal = {"error": {"message": f"no access with {KEY}", "code": 401}}
    with LLMServer(lambda body: refusal) as server, pytest.raises(EngineError) as caught:
        asked(server, name)
    assert PROVIDERS[name].api_key_env in caught.value.fix
    assert KEY not in f"{caught.value} {caught.value.calls}"


@pytest.mark.parametrize("key", [f"tgp_v1_{KEY}", f"{'aB3' * 17}xJQQJ99BAACYeBjFXJ3w3AAABACOG{KEY[:4]}"])
def test_keys_of_the_new_providers_are_known_in_any_setting(key: str):
    assert without_secrets(["--set", f"x={key}"]) == ("--set", "***")
