"""Defaults and advice of each provider."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from midstream.core.errors import RecipeError
from midstream.engines.openai.providers import PROVIDERS, ProviderName
from midstream.engines.openai.settings import OpenAIConfig, refusal_advice, start_advice
from support.errors import coded

LOCAL = [name for name, provider in PROVIDERS.items() if provider.start]


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def test_every_name_has_its_provider_and_is_written_to_disk_whole():
    assert set(get_args(ProviderName)) == set(PROVIDERS)
    for name, provider in PROVIDERS.items():
        address = {} if provider.base_url else {"base_url": "https://mine.openai.azure.com"}
        config = OpenAIConfig(model="m", provider=name, **address)
        assert (config.base_url, config.api_key_env) == (provider.base_url or config.base_url, provider.api_key_env)
        assert bool(provider.start) != bool(provider.api_key_env)
        assert OpenAIConfig.model_validate(config.model_dump()) == config


def test_settings_have_the_last_word(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere:1/v1")
    assert OpenAIConfig(model="m").base_url == "http://elsewhere:1/v1"
    assert OpenAIConfig(model="m", base_url="http://h/v1").base_url == "http://h/v1"
    assert OpenAIConfig(model="m", provider="ollama").base_url == "http://localhost:11434/v1"
    assert OpenAIConfig(model="m", provider="ollama", api_key_env="K").api_key_env == "K"


def test_the_environments_address_is_checked_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret@h/v1")
    with pytest.raises(RecipeError, check=coded("secret-in-recipe", "base_url")):
        OpenAIConfig(model="m")


def test_a_model_name_decides_nothing():
    assert OpenAIConfig(model="qwen2.5:7b").provider == OpenAIConfig(model="openrouter/x").provider == "openai"
    with pytest.raises(ValidationError):
        OpenAIConfig.model_validate({"model": "m", "provider": "qwen"})


def test_the_limit_is_named_as_the_server_knows_it():
    assert OpenAIConfig(model="m").limit_field == "max_completion_tokens"
    assert OpenAIConfig(model="m", base_url="http://localhost:8000/v1").limit_field == "max_tokens"
    assert {OpenAIConfig(model="m", provider=name).limit_field for name in LOCAL} == {"max_tokens"}


@pytest.mark.parametrize("name", LOCAL)
def test_a_local_server_is_never_fixed_with_a_key_of_openai(name: ProviderName):
    config = OpenAIConfig(model="the-model", provider=name)
    words = start_advice(config)
    for status, too_long in ((401, False), (403, False), (404, False), (400, False), (400, True)):
        advice = refusal_advice(config, "the-model", status, too_long=too_long)
        words += advice["fix"]
    assert "OPENAI" not in words
    assert "the-model" in start_advice(config)
    assert "api_key_env" in refusal_advice(config, "m", 401, too_long=False)["fix"]


@pytest.mark.parametrize(
    ("name", "base_url", "fix"),
    [
        ("vllm", "http://gpu:9/v1", "vllm serve q --port 9"),
        ("ollama", "http://localhost:11434/v1", "ollama serve   # and once: ollama pull q"),
        ("openai", "https://api.openai.com/v1", "check the network, or set base_url to a server of your own"),
        ("openai", "http://h:5/v1", "start the server there, e.g. vllm serve q --port 5, or correct base_url"),
    ],
)
def test_how_a_server_is_started(name: ProviderName, base_url: str, fix: str):
    assert start_advice(OpenAIConfig(model="q", provider=name, base_url=base_url)) == fix
