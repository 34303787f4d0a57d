"""Where a completion ends: stop strings across tokens, inside of one and cut off, with real byte pairs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from midstream.core.engine import Request
from midstream.core.trajectory import Call, Sampling
from midstream.engines.local.engine import TransformersLocal
from support.small_tokenizers import byte_pairs

STOPS = ("</python>", "</answer>")
# Its tokens hold more than a mark's end, or less: ">5", "</", "n><".
TOKENIZER = byte_pairs(texts=["</python></answer>5\n\n<output>5</python>\n", "print(1)</python>\n\n"] * 4, size=330)
IDS = sorted(TOKENIZER.encode("print(1)</python></answer>5\n\n<output>5</python>\né😀</pyth", add_special_tokens=False))
END: int = TOKENIZER.convert_tokens_to_ids("<|im_end|>")  # type: ignore[assignment]


class Recital(Qwen2ForCausalLM):
    """A model that says the tokens it was given, whatever it reads."""

    def __init__(self, says: list[int], prompt: int) -> None:
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
        super().__init__(Qwen2Config(num_hidden_layers=1, vocab_size=8, **sizes))
        self.generation_config = SimpleNamespace(eos_token_id=END)
        self._says, self._prompt = says, prompt

    def forward(self, *, position_ids: torch.Tensor, **_: Any) -> Any:
        logits = torch.zeros(len(position_ids), 1, len(TOKENIZER))
        logits[:, :, self._says[int(position_ids[0, -1]) - self._prompt + 1]] = 50.0
        return SimpleNamespace(logits=logits)


def said(ids: list[int], *, stop: tuple[str, ...] = STOPS, keep: bool = False, max_tokens: int = 0) -> Call:
    """The call in which a model says `ids`."""
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens or len(ids), stop=stop)
    engine = TransformersLocal(Recital(ids, 2), TOKENIZER)
    return asyncio.run(engine.sample(Request(role="policy", prompt_ids=(5, 6), sampling=sampling, keep_stop=keep)))


def pieces(*texts: str) -> list[int]:
    return [one for text in texts for one in TOKENIZER.encode(text, add_special_tokens=False)]


def test_the_tokenizer_of_these_tests_joins_marks_to_what_follows():
    tokens = [TOKENIZER.decode([one]) for one in pieces("</python>\n\n")]
    assert not any(token.endswith(">") for token in tokens)
    assert len(pieces("</pyt")) > 1


@given(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=40), keep=st.booleans())
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(ids: list[int], keep: bool):
    texts = [TOKENIZER.decode(ids[: i + 1]) for i in range(len(ids))]
    end = next((i for i, text in enumerate(texts) if any(stop in text for stop in STOPS)), None)
    call = said(ids, keep=keep)
    if end is None:
        assert (call.completion_ids, call.completion, call.finish_reason) == (tuple(ids), texts[-1], "length")
        return
    assert (call.completion_ids, call.finish_reason) == (tuple(ids[: end + 1]), "stop")
    first = min(place for stop in STOPS if (place := texts[end].find(stop)) >= 0)
    assert call.completion == (texts[end] if keep else texts[end][:first])


@given(cut=st.integers(min_value=1, max_value=30), keep=st.booleans())
def test_a_limit_inside_a_stop_string_is_a_limit(cut: int, keep: bool):
    ids = pieces(*"1</python")
    assume(cut <= len(ids))
    call = said([*ids, *pieces(*">")], max_tokens=cut, keep=keep)
    assert (call.completion, call.finish_reason) == (TOKENIZER.decode(ids[:cut]), "length")


@pytest.mark.parametrize(("keep", "text"), [(True, "print(1)</python>\n\n"), (False, "print(1)")])
def test_what_the_last_token_holds_beyond_is_kept_with_the_stop_string(keep: bool, text: str):
    call = said(pieces("print(1)", "</python>\n\n", "<output>"), keep=keep)
    assert (call.completion, call.finish_reason) == (text, "stop")
    assert TOKENIZER.decode(call.completion_ids) == "print(1)</python>\n\n"


def test_an_end_token_is_no_part_of_a_kept_text():
    call = said([*pieces("print(1)"), END, *pieces("</python>")], keep=True)
    assert (call.completion, call.completion_ids[-1], call.finish_reason) == ("print(1)", END, "stop")


@pytest.mark.parametrize("stop", ["é", "😀", "\n\n", " ", "> <"])
def test_any_stop_string_is_found(stop: str):
    call = said(pieces("a", *stop, "b"), stop=("never said", stop))
    assert (call.completion, call.finish_reason) == ("a", "stop")
