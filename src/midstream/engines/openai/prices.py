"""Prices of hosted models: the list that comes with midstream, and a list of the user's that goes before it.

A list is a TOML file with a table for each provider: `as_of`, the day on which its prices were read; `source`, the page
with them; and `models`, dollars per million prompt and completion tokens by the exact name of each model. Nothing is
inferred from a name: a dated one ("gpt-4o-2024-08-06") has a row of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeFloat

from midstream.core.component import ComponentConfig
from midstream.core.data import Settings
from midstream.core.errors import RecipeError, did_you_mean
from midstream.core.tables import validate
from midstream.core.text_file import read_toml
from midstream.engines.openai.providers import PROVIDERS, is_own

if TYPE_CHECKING:
    from midstream.engines.openai.settings import OpenAIConfig

VARIABLE = "MIDSTREAM_PRICES"
OURS = Path(__file__).with_name("prices.toml")


class ProviderPrices(Settings):
    """The table of a provider in a list."""

    as_of: date
    source: str
    models: dict[str, tuple[NonNegativeFloat, NonNegativeFloat]]


class ListedPrice(Settings):
    """The price of `model` ("provider/name") in a list, as a run records it; `origin` says which list, for people."""

    model: str
    prompt_usd: NonNegativeFloat
    completion_usd: NonNegativeFloat
    origin: str


def listed_price(config: OpenAIConfig) -> ListedPrice | None:
    """The price of an engine's model; None without one, or if the server is not the provider's own."""
    if not is_own(config):
        return None
    named = os.environ.get(VARIABLE)
    for path in (Path(named).expanduser().absolute(), OURS) if named else (OURS,):
        table = price_list(path).get(config.provider)
        if table is not None and config.model in table.models:
            prompt, completion = table.models[config.model]
            origin = f"midstream's prices of {table.as_of}" if path == OURS else f"prices of {table.as_of} in {path}"
            model = f"{config.provider}/{config.model}"
            return ListedPrice(model=model, prompt_usd=prompt, completion_usd=completion, origin=origin)
    return None


@cache
def price_list(path: Path) -> Mapping[str, ProviderPrices]:
    """The tables of a list by provider; a file is read once. Raises `RecipeError`."""
    try:
        tables = read_toml(path)
        for name in (name for name, table in tables.items() if name not in PROVIDERS or not isinstance(table, dict)):
            raise RecipeError(
                f"{name!r} in {path} is not the table of a provider",
                code="unknown-name",
                fix=f"{did_you_mean(name, PROVIDERS)}name one of: {', '.join(f'[{known}]' for known in PROVIDERS)}",
            )
        return {name: validate(ProviderPrices, table, name, of=f"price list {path}") for name, table in tables.items()}
    except RecipeError as error:
        raise RecipeError(f"{VARIABLE}: {error.what}", code=error.code, fix=error.fix) from error


def price_of(config: ComponentConfig) -> tuple[float, float]:
    """Dollars per million prompt and completion tokens of any engine; 0 where none is known."""
    listed: ListedPrice | None = getattr(config, "listed_price", None)
    if listed is not None:
        return listed.prompt_usd, listed.completion_usd
    return getattr(config, "price_prompt_usd", 0.0), getattr(config, "price_completion_usd", 0.0)


def prices_used(resolved: Mapping[str, Any]) -> str:
    """The prices of a resolved recipe's engines, and where they are from, on one line; "" for none."""
    found = []
    for name, table in resolved.get("engines", {}).items():
        prompt, completion, origin = table.get("price_prompt_usd"), table.get("price_completion_usd"), "the recipe's"
        if (listed := table.get("listed_price")) is not None:
            prompt, completion, origin = listed["prompt_usd"], listed["completion_usd"], listed["origin"]
        if prompt or completion:
            found.append(f"{name} ${prompt:g} + ${completion:g} ({origin})")
    return f"{'; '.join(found)} a million prompt + completion tokens" if found else ""
