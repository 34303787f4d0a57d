"""Byte-level BPE in which a name is the same tokens wherever it stands, and the chat template that goes with it.

A small model learns to copy tokens, not letters. A capitalized word and a number therefore never take the space before
them into their tokens: "Kyoto" is the same after a space, a quotation mark and a bracket, so the name in a call is the
tokens of the question. Lower-case words keep their space, digits stand alone, and the punctuation of JSON is taken in
runs (`": {"`). Any text comes back unchanged. `scripts/tokenizer.py` trains it.
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
SPECIAL = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")
PAD_ID, END_ID = 0, 1
# Written by the model and read from its text, so not special: decoding keeps them.
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


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
