"""Which price an engine has: of its settings, of the user's list, of midstream's; what a run records of it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from midstream.core.errors import RecipeError
from midstream.engines.openai.providers import OUR_PRICES, PRICES_VARIABLE, PROVIDERS, price_list, price_of
from midstream.engines.openai.settings import OpenAIConfig
from support.errors import coded

OWN = """[openai]
as_of = 2026-11-01
source = "https://intranet/prices"
models = { gpt-4o = [1.0, 4.0], mine = [0.0, 7.0] }
"""


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", PRICES_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def price(model: str, **settings) -> tuple[float, float]:
    return price_of(OpenAIConfig(model=model, **settings))


@pytest.mark.parametrize("provider", price_list(OUR_PRICES))
def test_each_row_prices_its_model_at_the_providers_own_server_and_behind_a_proxy_on_loopback(provider):
    listed = price_list(OUR_PRICES)[provider]
    assert listed.source.startswith("https://")
    assert date(2026, 1, 1) < listed.as_of <= date.today()
    assert PROVIDERS[provider].api_key_env, "a local server costs nothing"
    for model, (prompt, completion) in listed.models.items():
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


def test_a_list_of_the_users_goes_before_midstreams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "prices.toml").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PRICES_VARIABLE, "prices.toml")
    assert price("gpt-4o") == (1, 4)
    assert price("mine") == (0, 7)
    assert price("gpt-4o-mini") == (0.15, 0.6), "what the user's list lacks"
    assert price("gpt-4o", price_completion_usd=2) == (0, 2)
    listed = OpenAIConfig(model="gpt-4o").listed_price
    assert listed is not None
    assert (listed.model, listed.origin) == ("openai/gpt-4o", f"prices of 2026-11-01 in {tmp_path / 'prices.toml'}")


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        (None, "file-not-found", "prices.toml"),
        ("[openai", "file-invalid", "prices.toml"),
        ("[opnai]", "recipe-invalid", "opnai"),
        ("openai = 3", "recipe-invalid", "openai = 3"),
        (OWN.replace("4.0", "-4.0"), "recipe-invalid", "openai.models.gpt-4o.1 = -4.0"),
        (OWN.replace("[1.0, 4.0]", "1.0"), "recipe-invalid", "openai.models.gpt-4o"),
        (OWN.replace("2026-11-01", '"today"'), "recipe-invalid", "openai.as_of"),
    ],
)
def test_what_is_wrong_with_a_list_is_named(text, code, named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "prices.toml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv(PRICES_VARIABLE, str(path))
    with pytest.raises(RecipeError, check=coded(code, named, PRICES_VARIABLE)):
        price("gpt-4o")
    assert price("gpt-4o", price_prompt_usd=1) == (1, 0), "the list is not read"


def test_a_recorded_price_stays_until_the_model_or_its_server_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    recorded = OpenAIConfig(model="gpt-4o").model_dump(mode="json")
    (tmp_path / "prices.toml").write_text(OWN)
    monkeypatch.setenv(PRICES_VARIABLE, str(tmp_path / "prices.toml"))
    assert price_of(OpenAIConfig.model_validate(recorded)) == (2.5, 10)
    assert price(**{**recorded, "price_completion_usd": 5.0}) == (0, 5)
    assert price(**{**recorded, "model": "gpt-4o-mini"}) == (0.15, 0.6)
    assert price(**{**recorded, "model": "gpt-9"}) == (0, 0)
    assert price(**{**recorded, "base_url": "https://proxy.example/v1"}) == (0, 0)
    # Runs from before there were lists recorded a price of 0, or one of their own.
    assert price(**{key: value for key, value in recorded.items() if key != "listed_price"}) == (0, 0)
