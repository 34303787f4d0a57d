"""Which price an engine has: of its settings, or of midstream's list; what a run records of it."""

from __future__ import annotations

from datetime import date

import pytest

from midstream.engines.openai import providers
from midstream.engines.openai.providers import PROVIDERS, price_list, price_of
from midstream.engines.openai.settings import OpenAIConfig

LATER = {"openai": {"as_of": date(2026, 11, 1), "models": {"gpt-4o": [1.0, 4.0], "gpt-4o-mini": [0.2, 0.8]}}}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def price(model: str, **settings) -> tuple[float, float]:
    return price_of(OpenAIConfig(model=model, **settings))


@pytest.mark.parametrize("provider", price_list())
def test_each_row_prices_its_model_at_the_providers_own_server_and_behind_a_proxy_on_loopback(provider):
    listed = price_list()[provider]
    assert listed["source"].startswith("https://")
    assert date(2026, 1, 1) < listed["as_of"] <= date.today()
    assert PROVIDERS[provider].api_key_env, "a local server costs nothing"
    for model, (prompt, completion) in listed["models"].items():
        assert 0 < prompt < completion
        assert price(model, provider=provider) == (prompt, completion)
        assert price(model, provider=provider, base_url="http://localhost:8401/v1") == (prompt, completion)
        assert price(model, provider=provider, base_url="https://proxy.example/v1") == (0, 0)


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o-2099-01-01"),
        ("openai", "gpt-9"),
        ("openrouter", "gpt-4o"),
        ("ollama", "gpt-4o"),
        ("vllm", "m"),
    ],
)
def test_other_models_and_providers_have_no_price(provider, model):
    config = OpenAIConfig(model=model, provider=provider)
    assert (config.listed_price, price_of(config)) == (None, (0, 0))


def test_a_price_in_the_settings_is_the_only_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://proxy.example/v1")
    assert price("gpt-4o") == (0, 0)
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert price("gpt-4o") == (2.5, 10)
    assert price("gpt-4o", price_prompt_usd=3) == (3, 0)
    assert price("gpt-4o", price_prompt_usd=0) == (0, 0)


def test_a_recorded_price_stays_until_the_model_or_its_server_changes(monkeypatch: pytest.MonkeyPatch):
    recorded = OpenAIConfig(model="gpt-4o").model_dump(mode="json")
    monkeypatch.setattr(providers, "price_list", lambda: LATER)
    assert price_of(OpenAIConfig.model_validate(recorded)) == (2.5, 10)
    assert price(**{**recorded, "price_completion_usd": 5.0}) == (0, 5)
    assert price(**{**recorded, "model": "gpt-4o-mini"}) == (0.2, 0.8)
    assert price(**{**recorded, "model": "gpt-9"}) == (0, 0)
    assert price(**{**recorded, "base_url": "https://proxy.example/v1"}) == (0, 0)
