"""Prices of hosted models: midstream's list, `prices.toml`, and a list of the user's that goes before it.

Nothing is inferred from a model's name: a dated one ("gpt-4o-2024-08-06") has a row of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import NonNegativeFloat

from midstream.components.component import ComponentConfig
from midstream.components.tables import validate
from midstream.core.data import Settings
from midstream.core.errors import name_place
from midstream.core.text_file import read_toml
from midstream.engines.openai.providers import LOOPBACK, ProviderName, is_own

if TYPE_CHECKING:
    from midstream.engines.openai.settings import OpenAIConfig

VARIABLE = "MIDSTREAM_PRICES"
OURS = Path(__file__).with_name("prices.toml")


class ProviderPrices(Settings):
    """The table of a provider in a list: the day and the page on which its prices were read, and the prices."""

    as_of: date
    source: str
    models: dict[str, tuple[NonNegativeFloat, NonNegativeFloat]]


class PriceList(Settings):
    """A list: the file's tables."""

    providers: dict[ProviderName, ProviderPrices]


class ListedPrice(Settings):
    """The price of `model` ("provider/name") in a list, as a run records it; `origin` says which list, for people."""

    model: str
    prompt_usd: NonNegativeFloat
    completion_usd: NonNegativeFloat
    origin: str


def listed_price(config: OpenAIConfig) -> ListedPrice | None:
    """The price of an engine's model; None without one, or at an address where nothing is known to bill it."""
    named = os.environ.get(VARIABLE)
    for path in (Path(named).expanduser().absolute(), OURS) if named else (OURS,):
        if not has_listed_price(config) or (table := price_list(path).get(config.provider)) is None:
            continue
        if (price := table.models.get(config.model)) is not None:
            origin = f"midstream's prices of {table.as_of}" if path == OURS else f"prices of {table.as_of} in {path}"
            model = f"{config.provider}/{config.model}"
            return ListedPrice(model=model, prompt_usd=price[0], completion_usd=price[1], origin=origin)
    return None


def has_listed_price(config: OpenAIConfig) -> bool:
    """Whether a list applies to the server: it is the provider's own, or on loopback, a proxy in front of that one."""
    return is_own(config) or urlsplit(config.base_url).hostname in LOOPBACK


@cache
def price_list(path: Path) -> Mapping[ProviderName, ProviderPrices]:
    """The tables of a list by provider; a file is read once. Raises `RecipeError`."""
    with name_place(VARIABLE):
        return validate(PriceList, {"providers": read_toml(path)}, "", of=f"price list {path}").providers


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
