"""Which price an engine has: of its settings, or of midstream's list; what a run records of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import pytest

from midstream.engines.openai import providers
from midstream.engines.openai.providers import PROVIDERS, price_list, price_of
from midstream.engines.openai.settings import OpenAIConfig
from support.http_engine import HELLO, ask, engine_for
from support.llm_server import LLMServer, completion

LATER = {"openai": {"as_of": date(2026, 11, 1), "models": {"gpt-4o": [1.0, 4.0], "gpt-4o-mini": [0.2, 0.8]}}}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def price(model: str, **settings) -> tuple[float, float]:
    return price_of(OpenAIConfig(model=model, **settings))


@pytest.mark.parametrize("provider", price_list())
def test_each_row_prices_its_model_at_the_providers_own_server_and_behind_others(provider):
    listed = price_list()[provider]
    assert listed["source"].startswith("https://")
    assert date(2026, 1, 1) < listed["as_of"] <= date.today()
    assert PROVIDERS[provider].api_key_env, "a local server costs nothing"
    for model, prices in listed["models"].items():
        assert 0 < prices[0] < prices[1]
        assert price(model, provider=provider) == tuple(prices)
        assert price(model, provider=provider, base_url="http://localhost:8401/v1") == tuple(prices)
        assert price(f"{provider}/{model}", base_url="https://proxy.example/v1") == tuple(prices)


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
    assert price("gpt-4o") == (2.5, 10)
    assert price("gpt-4o", price_prompt_usd=3) == (3, 0)
    assert price("gpt-4o", price_prompt_usd=0) == (0, 0)


def test_a_known_name_at_another_address_has_its_list_price_and_says_so():
    for model in ("claude-haiku-4-5", "anthropic/claude-haiku-4-5"):
        listed = OpenAIConfig(model=model, base_url="https://proxy.example/v1").listed_price
        assert listed is not None
        assert (listed.prompt_usd, listed.completion_usd) == (1.0, 5.0)
        assert listed.origin.endswith(" for anthropic; proxy.example may have others")
    own = OpenAIConfig(model="gpt-4o").listed_price
    assert own is not None
    assert "may have" not in own.origin
    for provider in ("vllm", "ollama"):
        assert price("gpt-4o", provider=provider, base_url="http://gpu.example:8000/v1") == (0, 0)


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ({"model": "gpt-4o"}, True),
        ({"model": "gpt-4o", "base_url": "http://localhost:8401/v1"}, True),
        ({"model": "m", "base_url": "http://localhost:8401/v1"}, False),
        ({"model": "m", "base_url": "http://localhost:8401/v1", "price_prompt_usd": 0}, True),
        ({"model": "m", "base_url": "https://proxy.example/v1", "price_completion_usd": 0.5}, True),
        ({"model": "qwen2.5:7b", "provider": "ollama"}, False),
        ({"model": "qwen2.5:7b", "provider": "ollama", "price_prompt_usd": 0}, True),
        ({"model": "m", "provider": "vllm", "serve": ""}, False),
        ({"model": "qwen/qwen3-8b", "provider": "openrouter"}, True),
        ({"model": "m", "provider": "openrouter", "base_url": "https://proxy.example/v1"}, False),
    ],
)
def test_which_costs_are_known_before_a_run(settings, known):
    assert OpenAIConfig.model_validate(settings).priced == known


def counted(usage: Mapping[str, object], headers: dict[str, str] | None = None, **settings) -> float:
    """What a call costs whose answer has this usage and these headers."""

    def reply(body):
        made = completion(body, "ok")
        return made | {"usage": {"prompt_tokens": 1000, "completion_tokens": 100, **usage}}

    with LLMServer(reply, answer_headers=headers) as server:
        [call] = ask(engine_for(server, price_prompt_usd=2.0, price_completion_usd=10.0, **settings), HELLO)
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (1000, 100)
    return call.usage.cost_usd


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "headers", "cost"),
    [
        ({}, None, 0.003),
        ({"cost": 0.5}, None, 0.5),
        ({"cost": 0}, None, 0),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, None, 0.21),
        ({"cost": 0.01, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.2}}, None, 0.01),
        ({}, {"x-litellm-response-cost": "0.00042"}, 0.00042),
        ({"cost": 0.5}, {"x-litellm-response-cost": "0.00042"}, 0.5),
        ({}, {"x-litellm-response-cost": "0.0"}, 0.003),
        ({}, {"x-litellm-response-cost": "None"}, 0.003),
        ({"cost": {"total_cost": 1}}, {"x-litellm-response-cost": "nan"}, 0.003),
        ({"cost": -1}, None, 0.003),
        ({"cost": True}, None, 0.003),
    ],
)
def test_the_cost_that_a_server_states_wins(usage, headers, cost, stream):
    assert counted(usage, headers, stream=stream) == pytest.approx(cost)


def test_cached_tokens_have_a_price_of_their_own():
    cached = {"prompt_tokens_details": {"cached_tokens": 800}}
    assert counted(cached) == pytest.approx(0.003)
    assert counted(cached, price_cached_usd=0.5) == pytest.approx((200 * 2 + 800 * 0.5 + 100 * 10) / 1e6)
    assert counted({"prompt_tokens_details": None}, price_cached_usd=0.5) == pytest.approx(0.003)


def test_a_recorded_price_stays_until_the_model_or_its_server_changes(monkeypatch: pytest.MonkeyPatch):
    recorded = OpenAIConfig(model="gpt-4o").model_dump(mode="json")
    monkeypatch.setattr(providers, "price_list", lambda: LATER)
    assert price_of(OpenAIConfig.model_validate(recorded)) == (2.5, 10)
    assert price(**{**recorded, "price_completion_usd": 5.0}) == (0, 5)
    assert price(**{**recorded, "model": "gpt-4o-mini"}) == (0.2, 0.8)
    assert price(**{**recorded, "model": "gpt-9"}) == (0, 0)
    assert price(**{**recorded, "base_url": "https://proxy.example/v1"}) == (1, 4)
