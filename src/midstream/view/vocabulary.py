"""The texts of tokens, from a run's own `tokenizer.json`, read without the libraries that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from midstream.core.trajectory import Call
from midstream.runs import RunDirectory

_LARGEST = 64 << 20  # bytes of a tokenizer's file


def token_texts(run: RunDirectory, resolved: Mapping[str, Any], call: Call) -> Callable[[int], str | None] | None:
    """A function from token id to text, None for one that is unknown; None if no vocabulary is at hand.

    It is that of the weights that the run exported, or of the model directory on this machine that the call's engine
    names.
    """
    engine = (resolved.get("engines") or {}).get(call.engine) or {}
    model = engine.get("model")
    places = [run.policy_dir, *([Path(model)] if isinstance(model, str) and Path(model).is_dir() else [])]
    for place in places:
        path = place / "tokenizer.json"
        if path.is_file() and path.stat().st_size <= _LARGEST:
            try:
                return _vocabulary(str(path), path.stat().st_mtime_ns).get
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
    return None


@lru_cache(maxsize=2)
def _vocabulary(path: str, changed: int) -> dict[int, str]:
    """The text of each token of a `tokenizer.json`; raises as reading JSON of another form does."""
    table = from_json(Path(path).read_bytes())
    model, decoder = table["model"], str(table.get("decoder"))
    vocabulary = model["vocab"]
    pairs = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((word, at) for at, (word, _) in enumerate(vocabulary))
    )
    read = _byte_level if "ByteLevel" in decoder else (lambda word: word.replace("▁", " "))
    texts = {number: read(word) for word, number in pairs}
    return texts | {token["id"]: token["content"] for token in table.get("added_tokens", ())}


def _byte_level(word: str) -> str:
    """The text of a token of byte-level BPE, which writes each byte as a printable character (GPT-2's table)."""
    return bytes(_BYTES.get(character, 63) for character in word).decode("utf-8", "replace")


def _byte_table() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_table()
