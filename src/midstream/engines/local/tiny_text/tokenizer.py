"""Byte-level BPE in which a name is the same tokens wherever it stands, and the chat template that goes with it.

A small model learns to copy tokens, not letters. A capitalized word and a number therefore never take the space before
them into their tokens: "Kyoto" is the same after a space, a quotation mark and a bracket, so the name in a call is the
tokens of the question. Lower-case words keep their space, digits stand alone, and the punctuation of JSON is taken in
runs (`": {"`). Any text comes back unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
SPECIAL = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")
PAD_ID, END_ID = 0, 1
# Written by the model and read from its text, so not special: decoding keeps them.
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
PIECES = (
    r"\d"  # a digit
    r"| ?\p{Ll}+(?:_\p{Ll}+)*|\p{Lu}\p{Ll}*"  # a word or identifier, with its space; a capitalized word without
    r"|'s\b"
    r"|[{}\":,\[\] ]*[{}\"][{}\":,\[\] ]*"  # a run of JSON's punctuation with a brace or quotation mark in it
    r"|\n+| |[^\w\s]|."
)
_MARK = re.compile("|".join(map(re.escape, (*SPECIAL, *TAGS))))


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Train a tokenizer of `size` tokens, marks and bytes included, on texts; their marks are left out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((part for text in texts for part in _MARK.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


def load_tokenizer() -> PreTrainedTokenizerFast:
    """The shipped tokenizer with its chat template."""
    here = Path(__file__).parent
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(here / "tokenizer.json"),
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        additional_special_tokens=list(SPECIAL[2:]),
    )
    tokenizer.chat_template = (here / "chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer
