"""What GPUs can do at most, as their makers publish it: cards.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from midstream.core.data import Settings
from midstream.core.errors import UnsupportedError, did_you_mean
from midstream.core.tables import validate
from midstream.core.text_file import read_toml


class Card(Settings):
    """One GPU: TFLOP/s in `half` (bfloat16) and `single` precision, GB, GB/s; see cards.toml."""

    half: float
    single: float
    memory: float
    bandwidth: float
    link: float | None = None
    pcie: float
    network: float
    source: str

    def rate(self, dtype: str) -> float:
        """Most operations a second in this type."""
        return (self.single if dtype == "float32" else self.half) * 1e12


@cache
def cards() -> Mapping[str, Card]:
    """Every known GPU by name."""
    path = Path(__file__).with_name("cards.toml")
    return {name: validate(Card, table, f"cards.toml: {name}") for name, table in read_toml(path).items()}


def card_of(text: str) -> tuple[int, str, Card]:
    """The number, name and card of "8xH100" or "H100". Raises `UnsupportedError` for one that is not known."""
    count, sign, name = text.rpartition("x")
    known = {each.casefold(): each for each in cards()}
    found = known.get(name.casefold(), known.get(f"{name}-80gb".casefold()))  # "A100" is the larger one
    if found is None or (sign and not re.fullmatch("0*[1-9][0-9]{0,8}", count)):
        raise UnsupportedError(
            f"unknown GPUs: {text!r}",
            code="unknown-gpu",
            fix=f"{did_you_mean(name, cards())}write a number and a name, e.g. 8xH100; known: {', '.join(cards())}",
        )
    return int(count or 1), found, cards()[found]
